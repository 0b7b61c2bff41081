"""What `farm inspect` and `farm verify` cost: `python tests/bench/inspection.py CUOBJDUMP WHEEL...`.

CUOBJDUMP is NVIDIA's program of CUDA 11.8, the last that lists Kepler code (`tests/e2e/wheels/test_cuobjdump.py`
fetches it).
Each wheel is inspected without decoding machine code, and verified with all DLLs and libraries declared as dispatching:
wall and CPU seconds and the peak of memory of the whole process. Its largest ELF library with device code is listed by
cuobjdump (`--list-elf` and `--list-ptx`) and by the fat binary reader: the same multiset, and how much faster.
"""

import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from farm.wheel.archive import Archive
from farm.wheel.elf import ELF_MAGIC, read_elf, section_ranges
from farm.wheel.fatbin import FATBIN_SECTION, read_fatbins

ROOT = Path(__file__).parents[2]
ROUNDS = 3
INSPECT = "from farm.wheel.inspect import inspect; inspect(Path(sys.argv[1]), decoded=0)"
VERIFY = """
from farm.wheel.metadata import parse_wheel_name
from farm.wheel.policy import Policy
from farm.wheel.verify import verify
name = parse_wheel_name(Path(sys.argv[1]).name)
python, _, platform = sorted(name.tags)[0].split("-")
verify(Path(sys.argv[1]), Policy(
    name=name.name, version=name.version, python=python, platform=platform, cpu="sse41", dispatching=("*",)))
"""


def cost(code: str, wheel: Path) -> tuple[float, float, float]:
    """(wall, CPU seconds, MB) of a Python process: the medians by wall of a few."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        command = [sys.executable, "-c", "import sys; from pathlib import Path\n" + code, str(wheel)]
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{wheel.name}: failed")
        found.append((time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3))
    return sorted(found)[ROUNDS // 2]


def ours(file: Path) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for _, start, end in section_ranges(data, (s for s in read_elf(data).sections if s.name == FATBIN_SECTION)):
            for container in read_fatbins(data, start, end):
                for entry in container.entries:
                    kind = "PTX" if entry.kind == "ptx" else "ELF"
                    found[kind, str(entry.sm)] += 1
    return found


def theirs(cuobjdump: str, file: Path) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for option in ("--list-elf", "--list-ptx"):
        done = subprocess.run([cuobjdump, option, file], check=False, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            if line.startswith(("ELF file", "PTX file")):
                found[line[:3], line.rpartition(".sm_")[2].partition(".")[0]] += 1
    return found


def used() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def listing(cuobjdump: str, wheel: Path, folder: Path) -> tuple[str, str]:
    """(the largest library with device code, our and cuobjdump's CPU time for it, as text)."""
    file = folder / "library"
    with Archive(wheel) as archive:
        for name in sorted(archive.members, key=lambda name: archive.members[name].size, reverse=True):
            if not archive.starts_with(name, (ELF_MAGIC,)):
                continue
            with file.open("wb") as out:
                out.writelines(archive.chunks(name))
            start = used()
            mine = ours(file)
            middle = used()
            if not mine:
                continue
            expected = theirs(cuobjdump, file)
            end = used()
            if mine != expected:
                sys.exit(f"{wheel.name}: {name}: {mine} is not {expected}")
            size, count = archive.members[name].size / 1e6, mine.total()
            own, other = middle - start, end - middle
            told = f"{own * 1e3:.0f} : {other * 1e3:.0f} = {other / own:.0f} ({count} entries)"
            return f"{name.rpartition('/')[2]} {size:.0f} MB", told
    return "-", "-"


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    table = Table(title=f"medians of {ROUNDS}; wall s / CPU s / MB")
    for column in ("wheel", "MB", "inspect", "verify", "largest library", "reader : cuobjdump, CPU ms"):
        table.add_column(column, justify="left" if column in ("wheel", "largest library") else "right")
    wheels = [Path(name) for name in sys.argv[2:]]
    # All of them first: a process begins with the peak of the one that started it.
    costs = [["{:.2f} / {:.2f} / {:.0f}".format(*cost(code, path)) for code in (INSPECT, VERIFY)] for path in wheels]
    for path, texts in zip(wheels, costs, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            library, told = listing(sys.argv[1], path, Path(folder))
        table.add_row("-".join(path.name.split("-")[:2]), f"{path.stat().st_size / 1e6:.0f}", *texts, library, told)
    Console(width=180).print(table)
    print("Other work on the machine moves these figures, wall seconds most.")


if __name__ == "__main__":
    main()
