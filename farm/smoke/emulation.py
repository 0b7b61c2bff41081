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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from farm.base.errors import InfrastructureError, UsageError
from farm.base.requirement import python_of
from farm.base.temporary import temporary_folder
from farm.base.yamlfile import Model, load
from farm.smoke.environment import find_python, probe_environment
from farm.wheel.archive import Archive
from farm.wheel.checks.cpu import (
    died_at_exit,
    died_when_loaded,
    is_for_other_cpus,
    loaded_on_lower_cpu,
)
from farm.wheel.inspect import inspect
from farm.wheel.metadata import parse_wheel_name
from farm.wheel.needs import installed_path
from farm.wheel.report import Check, Report
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
_ABSENT = "absent:"  # before a file that must not have been loaded
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
    kept_off = [path for path in members if is_for_other_cpus(report.policy, path)]
    with temporary_folder("farm-emulate-") as folder:
        root = folder / "site"
        _unpack(wheel, root)
        loading = _Loading(command, root, folder)
        loaded = [path for path in members if path not in kept_off]
        # Last, whether one was loaded that is for other CPUs.
        absent = [_ABSENT + path for path in kept_off]
        modules = _modules_beside(root, kept_off)
        outcomes = _load_all(loading, [*loaded, *modules, *absent])
    return _with(report, model.name, members, kept_off, outcomes)


def _modules_beside(root: Path, members: Sequence[str]) -> list[str]:
    """The Python modules that may load members: their package, and what lies in their folder."""
    modules: dict[str, None] = {}
    for member in members:
        path = PurePosixPath(installed_path(member))
        package = path.parts[0] if len(path.parts) > 1 else "."
        folders = [root / package / "__init__.py", *sorted((root / path.parent).glob("*.py"))]
        for file in folders:
            if file.is_file() and file.stem.isidentifier() and file.stem != "__main__":
                modules[file.relative_to(root).as_posix()] = None
    return list(modules)


@dataclass
class _Outcomes:
    """What became of members: `loaded`, a reason, or the signal that ended the process."""

    of: dict[str, str | int]
    last_words: dict[str, str]  # the last line of a process that ended so
    at_exit: str | None = None  # the member that ended the process at its exit; empty: some member


def _load_all(loading: "_Loading", members: list[str]) -> _Outcomes:
    """Load members one after the other, in a new process behind each that ends its process."""
    outcomes = _Outcomes({}, {})
    start = 0
    for _ in range(_MAX_STARTS):
        if start == len(members):  # the last one ended its process, or there is none
            break
        loaded, end, last_line = loading.load(members[start:])
        reached_exit = loaded.pop(len(members) - start, None) is not None
        outcomes.of |= {members[start + number]: text for number, text in loaded.items()}
        # Other ends of a process that leaves are no matter of the CPU.
        if reached_exit:
            if end == signal.SIGILL:
                outcomes.at_exit = _culprit_at_exit(loading, members[start:])
            break
        if end is None:
            break
        last = start + max(loaded, default=0)
        outcomes.of[members[last]] = end
        outcomes.last_words[members[last]] = last_line
        start = last + 1
    return outcomes


def _culprit_at_exit(loading: "_Loading", members: list[str]) -> str:
    """The member whose exit ends the process, by halves; empty where no one does so alone."""
    while len(members) > 1:
        middle = len(members) // 2
        for half in (members[:middle], members[middle:]):
            if loading.load(half)[1] == signal.SIGILL:
                members = half
                break
        else:
            return ""
    return members[0]


def _python(wheel: Path) -> Path:
    """An interpreter of this machine that the wheel is for."""
    tags = parse_wheel_name(wheel.name).tags
    if platform_machine(tags) != "x86_64":
        raise UsageError(f"{wheel.name} is not for Linux on x86-64", hint="leave --emulate out")
    rows = [tag.split("-") for tag in sorted(tags)]
    if any(row[0].startswith("py") or row[1].startswith("abi3") for row in rows):
        return Path(sys.executable)
    names = sorted({python_of(python, abi) for python, abi, _ in rows})
    for name in names:
        interpreter = find_python(name)
        if interpreter is not None:
            return interpreter
    raise InfrastructureError(
        f"no Python of {' or '.join(names)} is here", hint="put one on the PATH"
    )


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


@dataclass(frozen=True)
class _Loading:
    """Processes that load members of an unpacked wheel.

    Attributes:
        command: A Python, on an emulated CPU.
        root: Where the wheel is unpacked.
        folder: For files of the processes.
    """

    command: list[str]
    root: Path
    folder: Path

    def load(self, members: list[str]) -> tuple[dict[int, str], int | str | None, str]:
        """Load members in one process, which then exits.

        Returns:
            By number, what became of each that was begun, and of the exit as the one behind the
            last; the signal or the reason that ended the process, None where it came to its end;
            and the last line that it wrote to stderr.
        """
        output = self.folder / "loaded"
        output.write_bytes(b"")
        libraries = []
        for member in members:
            absent = _ABSENT if member.startswith(_ABSENT) else ""
            libraries.append(absent + installed_path(member.removeprefix(_ABSENT)))
        arguments = ["-I", str(_PROGRAM), str(self.root), str(output), *libraries]
        errors = self.folder / "stderr"
        with (
            errors.open("wb") as stderr,
            subprocess.Popen(
                [*self.command, *arguments],
                cwd=self.folder,
                env=probe_environment(self.folder),
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
        loaded = {int(match[1]): match[2] for line in lines if (match := _NUMBER.fullmatch(line))}
        with errors.open("rb") as written:
            written.seek(max(0, errors.stat().st_size - _LAST_WORDS))
            text = written.read().decode("utf-8", "replace")
        last_line = text.strip().rpartition("\n")[2][:_LAST_WORDS]
        if code is None:
            return loaded, f"not loaded within {_LIMIT_S} s", last_line
        # qemu ends itself by the signal that ended the program.
        return loaded, -code if code < 0 else None, last_line


def _end_of(path: str, kept_off: Collection[str], outcomes: _Outcomes) -> str | int:
    """What became of a member: `loaded`, `present`, a signal, or a reason.

    One for other CPUs counts as `loaded` where the import of its package went well without it.
    """
    if path not in kept_off:
        return outcomes.of.get(path, "not begun")
    package = f"{PurePosixPath(installed_path(path)).parts[0]}/__init__.py"
    imported = outcomes.of.get(package, "loaded")  # the member may be in no package
    if imported != "loaded":
        return f"{package}: {imported}"
    end = outcomes.of.get(_ABSENT + path, "not begun")
    return "loaded" if end == "absent" else end


def _with(
    report: Report, model: str, members: list[str], kept_off: list[str], outcomes: _Outcomes
) -> Report:
    level = report.policy.cpu
    ends = {path: _end_of(path, kept_off, outcomes) for path in members}
    findings = []
    for path, end in outcomes.of.items():
        if isinstance(end, int):
            name = signal.Signals(end).name
            words = outcomes.last_words.get(path, "")
            findings.append(died_when_loaded(path, model, name, words, level))
    if outcomes.at_exit is not None:
        findings.append(died_at_exit(outcomes.at_exit, model, level))
    undecided = []
    for path, end in ends.items():
        if end == "present":
            findings.append(loaded_on_lower_cpu(path, model, report.policy))
        elif isinstance(end, str) and end != "loaded":
            undecided.append(path)
    check = report.check("cpu")
    new = Check(
        id="cpu",
        status="failed" if findings or check.status == "failed" else "passed",
        findings=(*check.findings, *findings),
        note=check.note,
        undecided=tuple(
            path for path in check.undecided if path in undecided or path not in members
        ),
        emulated=_summary(model, ends, kept_off, undecided),
    )
    return report.replaced(new)


def _summary(
    model: str,
    ends: Mapping[str, str | int],
    kept_off: Collection[str],
    undecided: Sequence[str],
) -> str:
    """What the emulated CPU showed, in one line."""
    loadable = [path for path in ends if path not in kept_off]
    loaded = sum(ends[path] == "loaded" for path in loadable)
    summary = f"emulated: {loaded} of {len(loadable)} libraries loaded on {model}"
    if kept_off:
        left_alone = sum(ends[path] == "loaded" for path in kept_off)
        summary += f", {left_alone} of {len(kept_off)} for other CPUs were left alone"
    if undecided:
        summary += f", {undecided[0]} not ({ends[undecided[0]]})"
    return summary
