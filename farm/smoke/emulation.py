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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from packaging.version import Version

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
from farm.wheel.report import Check, Report, Status
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
    version = Version(f"{match[1]}.{match[2]}")
    if version < Version(data.minimum):
        raise InfrastructureError(f"{program} is {version}: too old", hint=hint)
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
    loaded = []
    kept_off = []
    for path in _loadable_members(wheel):
        if only is not None and path not in only:
            continue
        if is_for_other_cpus(report.policy, path):
            kept_off.append(path)
        else:
            loaded.append(path)
    with temporary_folder("farm-emulate-") as folder:
        root = folder / "site"
        _unpack(wheel, root)
        loading = _Loading(command, root, folder)
        # Last, whether one was loaded that is for other CPUs.
        absent = [_ABSENT + path for path in kept_off]
        modules = _modules_beside(root, kept_off)
        outcomes = _load_all(loading, [*loaded, *modules, *absent])
    return _with(report, model.name, loaded, kept_off, outcomes)


def _loadable_members(wheel: Path) -> Iterator[str]:
    """The libraries of a wheel that ctypes can load on Linux."""
    for library in inspect(wheel, decoded=0).libraries:
        is_library = library.format == "elf" and library.kind == "shared"
        if is_library and library.is_loadable and not library.interpreter:
            yield library.path


def _modules_beside(root: Path, members: Sequence[str]) -> list[str]:
    """The Python modules that may load members: their package, and what lies in their folder."""
    modules: dict[str, None] = {}
    for member in members:
        path = PurePosixPath(installed_path(member))
        package = root
        if len(path.parts) > 1:
            package = root / path.parts[0]
        files = [package / "__init__.py", *sorted((root / path.parent).glob("*.py"))]
        for file in files:
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
        for number, text in loaded.items():
            outcomes.of[members[start + number]] = text
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
    pythons = set()
    for tag in tags:
        interpreter, abi, _ = tag.split("-")
        if interpreter.startswith("py") or abi.startswith("abi3"):
            return Path(sys.executable)
        pythons.add(python_of(interpreter, abi))
    names = sorted(pythons)
    for name in names:
        program = find_python(name)
        if program is not None:
            return program
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
            if member.startswith(_ABSENT):
                libraries.append(_ABSENT + installed_path(member.removeprefix(_ABSENT)))
            else:
                libraries.append(installed_path(member))
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
        loaded = {}
        for line in output.read_text(encoding="utf-8", errors="replace").splitlines():
            match = _NUMBER.fullmatch(line)
            if match:
                loaded[int(match[1])] = match[2]
        end: int | str | None = None
        if code is None:
            end = f"not loaded within {_LIMIT_S} s"
        elif code < 0:  # qemu ends itself by the signal that ended the program
            end = -code
        return loaded, end, _last_line(errors)


def _last_line(file: Path) -> str:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _LAST_WORDS))
        text = stream.read().decode("utf-8", "replace")
    return text.strip().rpartition("\n")[2][:_LAST_WORDS]


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
    if end == "absent":
        return "loaded"
    return end


def _with(
    report: Report, model: str, loaded: list[str], kept_off: list[str], outcomes: _Outcomes
) -> Report:
    level = report.policy.cpu
    ends = {path: _end_of(path, kept_off, outcomes) for path in (*loaded, *kept_off)}
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
    status: Status = "passed"
    if findings or check.status == "failed":
        status = "failed"
    still_undecided = [path for path in check.undecided if path in undecided or path not in ends]
    new = Check(
        id="cpu",
        status=status,
        findings=(*check.findings, *findings),
        note=check.note,
        undecided=tuple(still_undecided),
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
    loaded = 0
    left_alone = 0
    for path, end in ends.items():
        if end != "loaded":
            continue
        if path in kept_off:
            left_alone += 1
        else:
            loaded += 1
    loadable = len(ends) - len(kept_off)
    summary = f"emulated: {loaded} of {loadable} libraries loaded on {model}"
    if kept_off:
        summary += f", {left_alone} of {len(kept_off)} for other CPUs were left alone"
    if undecided:
        summary += f", {undecided[0]} not ({ends[undecided[0]]})"
    return summary
