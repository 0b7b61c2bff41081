"""Copies the shared libraries that a wheel's own libraries load from this system: what repair may vendor.

Usage: collect_libraries.py WHEEL_FOLDER DEST. Runs in the build image, where the dynamic linker can answer.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def main() -> int:
    wheels = sorted(Path(sys.argv[1]).glob("*.whl"))
    dest = Path(sys.argv[2])
    if len(wheels) != 1:
        print(f"expected one wheel in {sys.argv[1]}, found {len(wheels)}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(folder)
        for library in sorted(Path(folder).rglob("*.so*")):
            answer = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
            for name, path in re.findall(r"^\s*(\S+) => (/\S+) \(", answer, re.MULTILINE):
                if not path.startswith(folder) and not (dest / name).exists():
                    shutil.copy(path, dest / name)
                    print(f"{name}: from {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
