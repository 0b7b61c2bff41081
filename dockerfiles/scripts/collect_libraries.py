"""Copies the shared libraries that a wheel's own libraries load from this system: what repair may
vendor.

Usage: collect_libraries.py [--exclude PATTERN]... WHEEL_FOLDER DEST [PATTERN...]. Runs in the build
image, where the dynamic linker answers. The patterns are of libraries that others open by name: no
library names them, the linker's cache does. `--exclude`: what is never vendored, since the driver
or another wheel has it. CUDA's libraries are 3 GB.
"""

import argparse
import fnmatch
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exclude", action="append", default=[])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("dest", type=Path)
    parser.add_argument("opens", nargs="*")
    args = parser.parse_args()
    wheels = sorted(args.wheels.glob("*.whl"))
    args.dest.mkdir(parents=True, exist_ok=True)
    if len(wheels) != 1:
        print(f"expected one wheel in {args.wheels}, found {len(wheels)}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(folder)
        for library in sorted(Path(folder).rglob("*.so*")):
            answer = subprocess.run(
                ["ldd", str(library)], capture_output=True, text=True, check=False
            ).stdout
            for name, path in re.findall(r"^\s*(\S+) => (/.+) \(", answer, re.MULTILINE):
                if not path.startswith(folder):
                    copy(name, path, args.dest, args.exclude)
    return opened_by_name(args.opens, args.dest, args.exclude)


def copy(name: str, path: str, dest: Path, exclude: "list[str]") -> None:
    if (dest / name).exists() or any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
        return
    shutil.copy(path, dest / name)
    print(f"{name}: from {path}")


def opened_by_name(patterns: "list[str]", dest: Path, exclude: "list[str]") -> int:
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
            copy(name, known[name], dest, exclude)
    return 0


if __name__ == "__main__":
    sys.exit(main())
