"""Runs a script of a build beside a virus scanner: scanner.py SCRIPT [ARGUMENT...].

It has each file open that is renamed or removed for the first time, which Windows refuses, and not
when it is tried again. What it opened is printed at the end.
"""

import os
import runpy
import sys
from pathlib import Path

PYTHONS = (
    b"blat"  # tempfile looks for a folder by such a file, and gives up where it cannot be removed
)
opened, seen = {}, []


def scan(event, arguments):
    if event not in ("os.rename", "os.remove"):
        return
    path = os.fspath(arguments[0])
    if path in opened:
        opened.pop(path).close()
    elif path not in seen and Path(path).is_file() and Path(path).read_bytes() != PYTHONS:
        seen.append(path)
        opened[path] = open(path, "rb")  # noqa: SIM115, PTH123


sys.dont_write_bytecode = True
sys.addaudithook(scan)
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("scanned", *sorted({Path(path).name for path in seen}))
