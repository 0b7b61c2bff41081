"""Copies the shared libraries that a wheel's own libraries load from this system: what repair may vendor.

Usage: collect_libraries.py WHEEL_FOLDER DEST [PATTERN...]. Runs in the build image, where the dynamic linker answers.
The patterns are of libraries that others open by name: no library names them, the linker's cache does.
"""

import fnmatch
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
    dest.mkdir(parents=True, exist_ok=True)
    if len(wheels) != 1:
        print(f"expected one wheel in {sys.argv[1]}, found {len(wheels)}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(folder)
        for library in sorted(Path(folder).rglob("*.so*")):
            answer = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
            for name, path in re.findall(r"^\s*(\S+) => (/.+) \(", answer, re.MULTILINE):
                if not path.startswith(folder) and not (dest / name).exists():
                    shutil.copy(path, dest / name)
                    print(f"{name}: from {path}")
    return opened_by_name(sys.argv[3:], dest)


def opened_by_name(patterns: list[str], dest: Path) -> int:
    if not patterns:
        return 0
    cache = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    known = dict(re.findall(r"^\s*(\S+) \(.*\) => (/.+)", cache, re.MULTILINE))
    for pattern in patterns:
        names = fnmatch.filter(known, pattern)
        if not names:
            print(f"no library of this system is named {pattern}", file=sys.stderr)
            return 1
        for name in names:
            shutil.copy(known[name], dest / name)
            print(f"{name}: from {known[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
