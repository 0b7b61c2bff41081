"""Tags that libraries earn, here and by auditwheel: `python tests/bench/tags.py WHEEL...`; 1 if
they differ.
"""

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from farm.wheel.inspect import inspect


def main(wheels: list[Path]) -> int:
    differing = 0
    for wheel in wheels:
        here = inspect(wheel, decoded=0).manylinux
        command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        there = re.search(r'platform\s+tag:\s+"(\w+?)_(?:x86_64|aarch64)"', done.stdout)
        differing += here != (there and there[1])
        print(
            f"{wheel.name}: {here}, auditwheel {there[1] if there else done.stderr.strip()[-80:]}"
        )
    print(f"{len(wheels) - differing} of {len(wheels)} equal")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(list(map(Path, sys.argv[1:]))))
