"""CPUs by emulation: the model that stands for a level, and imports of a wheel's libraries on it.

They show what the static check cannot decide.
"""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from farm.base.errors import InfrastructureError, UsageError
from farm.base.requirement import python_of
from farm.base.temporary import temporary_folder
from farm.base.yamlfile import Model, load
from farm.smoke.environment import find_python, probe_environment
from farm.wheel.archive import Archive
from farm.wheel.checks.cpu import died_when_loaded
from farm.wheel.inspect import inspect
from farm.wheel.metadata import parse_wheel_name
from farm.wheel.needs import installed_path
from farm.wheel.policy import Check, Report
from farm.wheel.tags import platform_machine


class _Data(Model):
    package: str
    minimum: str
    models: dict[str, str]
    not_emulated: dict[str, str]


@dataclass(frozen=True)
class CpuModel:
    """qemu's name for the plain machine of a CPU level, or None and the reason."""

    name: str | None
    reason: str | None = None


@cache
def _data() -> _Data:
    return load(Path(__file__).with_name("emulation.yaml"), _Data)


def model_for(cpu: str) -> CpuModel:
    """The emulated CPU for a level of the variant's CPU axis (`avx`): it has that level and nothing
    newer.
    """
    data = _data()
    if cpu in data.models:
        return CpuModel(data.models[cpu])
    return CpuModel(None, data.not_emulated.get(cpu, f"no emulated CPU is known for {cpu!r}"))


def find_emulator() -> str:
    """The program of qemu for this machine's own programs; `InfrastructureError`: not on the PATH,
    or too old.
    """
    data = _data()
    name = f"qemu-{platform.machine()}"
    if sys.platform != "linux":
        reason = f"{name} emulates a CPU for Linux programs alone"
        raise InfrastructureError(reason, hint="try the wheel on a machine with that CPU")
    hint = f"install the Debian package {data.package} ({data.minimum} or newer)"
    program = shutil.which(name)
    if program is None:
        raise InfrastructureError(f"{name} is not on the PATH", hint=hint)
    try:
        answer = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise InfrastructureError(f"{program} --version failed: {error}", hint=hint) from error
    match = re.search(r"version (\d+)\.(\d+)", answer)
    if match is None:
        raise InfrastructureError(f"{program} --version answered {answer[:80]!r}", hint=hint)
    if (int(match[1]), int(match[2])) < tuple(int(part) for part in data.minimum.split(".")):
        raise InfrastructureError(f"{program} is {match[1]}.{match[2]}: too old", hint=hint)
    return program


_LIMIT_S = 600  # of one process, which loads all libraries unless one kills it
_MAX_STARTS = 20
_LAST_WORDS = 300  # characters
_NUMBER = re.compile(r"(\d+) (\S.*)")
_PROGRAM = Path(__file__).with_name("load_each.py")


def emulate(
    report: Report,
    wheel: Path,
    command: list[str] | None = None,
    *,
    only: Collection[str] | None = None,
) -> Report:
    """The report with what the import of libraries and modules on the emulated CPU shows, in the
    check `cpu`.

    `command`: a Python that the wheel is for, on such a CPU; else one of this machine is taken.
    `only`: these members.

    Raises:
        UsageError: No CPU level is promised, or none that can be emulated; the wheel is not for
            Linux on x86-64.
        InfrastructureError: There is no emulator here, or no Python that the wheel is for.
    """
    level = report.policy.cpu
    if level is None:
        raise UsageError("no CPU level is promised", hint="give --variant, or `cpu` in the policy")
    model = model_for(level)
    if model.name is None:
        raise UsageError(str(model.reason), hint="leave --emulate out")
    if command is None:
        command = [find_emulator(), "-cpu", model.name, str(_python(wheel))]
    members = [
        library.path
        for library in inspect(wheel, decoded=0).libraries
        if (only is None or library.path in only)
        and library.format == "elf"
        and library.is_loadable
        and library.kind == "shared"
        and not library.interpreter
    ]
    libraries = list(map(installed_path, members))
    outcomes: dict[str, str | int] = {}
    words: dict[str, str] = {}
    with temporary_folder("farm-emulate-") as folder:
        root = folder / "site"
        _unpack(wheel, root)
        start = 0
        for _ in range(_MAX_STARTS):
            if start == len(libraries):  # the last one ended its process, or there is none
                break
            loaded, end, last_line = _load(command, root, libraries, start, folder)
            outcomes |= {members[number]: text for number, text in loaded.items()}
            if end is None:
                break
            last = max(loaded, default=start)
            outcomes[members[last]] = end
            words[members[last]] = last_line
            start = last + 1
    return _with(report, model.name, members, outcomes, words)


def _python(wheel: Path) -> Path:
    """An interpreter of this machine that the wheel is for."""
    tags = parse_wheel_name(wheel.name).tags
    if platform_machine(tags) != "x86_64":
        raise UsageError(f"{wheel.name} is not for Linux on x86-64", hint="leave --emulate out")
    rows = [tag.split("-") for tag in sorted(tags)]
    if any(row[0].startswith("py") or row[1].startswith("abi3") for row in rows):
        return Path(sys.executable)
    names = sorted({python_of(python, abi) for python, abi, _ in rows})
    interpreter = next((path for name in names if (path := find_python(name))), None)
    if interpreter is None:
        raise InfrastructureError(
            f"no Python of {' or '.join(names)} is here", hint="put one on the PATH"
        )
    return interpreter


def _unpack(wheel: Path, root: Path) -> None:
    """As installers do with what is imported; the archive's names were checked when it was
    opened.
    """
    with Archive(wheel) as archive:
        for name, entry in archive.members.items():
            if not entry.is_dir:
                target = root / installed_path(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    file.writelines(archive.chunks(name))


def _load(
    command: list[str], root: Path, libraries: list[str], start: int, folder: Path
) -> tuple[dict[int, str], str | int | None, str]:
    """Load the libraries from `start` on in one process.

    Returns:
        By number, what became of each that was begun; the signal or the reason that ended the
        process at the last of them, None where it came to its end; and the last line that it wrote
        to stderr.
    """
    output = folder / "loaded"
    output.write_bytes(b"")
    arguments = ["-I", str(_PROGRAM), str(root), str(start), str(output), *libraries]
    errors = folder / "stderr"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [*command, *arguments],
            cwd=folder,
            env=probe_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        ) as child,
    ):
        try:
            code: int | None = child.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(child.pid, signal.SIGKILL)
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    texts = {int(match[1]): match[2] for line in lines if (match := _NUMBER.fullmatch(line))}
    with errors.open("rb") as written:
        written.seek(max(0, errors.stat().st_size - _LAST_WORDS))
        last_line = (
            written.read().decode("utf-8", "replace").strip().rpartition("\n")[2][:_LAST_WORDS]
        )
    if code is None:
        return texts, f"not loaded within {_LIMIT_S} s", last_line
    # qemu ends itself by the signal that ended the program.
    return texts, -code if code < 0 else None, last_line


def _with(
    report: Report,
    model: str,
    members: list[str],
    outcomes: dict[str, str | int],
    words: dict[str, str],
) -> Report:
    level = report.policy.cpu
    died = {path: end for path, end in outcomes.items() if isinstance(end, int)}
    not_loaded = [path for path in members if path not in died and outcomes.get(path) != "loaded"]
    findings = [
        died_when_loaded(path, model, signal.Signals(number).name, words.get(path, ""), level)
        for path, number in died.items()
    ]
    summary = (
        f"emulated: {len(members) - len(died) - len(not_loaded)} of {len(members)} libraries "
        f"loaded on {model}"
    )
    if not_loaded:
        summary += f", {not_loaded[0]} not ({outcomes.get(not_loaded[0], 'not begun')})"
    check = report.check("cpu")
    new = Check(
        id="cpu",
        status="failed" if findings or check.status == "failed" else "passed",
        findings=(*check.findings, *findings),
        note=check.note,
        undecided=tuple(
            path for path in check.undecided if path in not_loaded or path not in members
        ),
        emulated=summary,
    )
    return report.replaced(new)
