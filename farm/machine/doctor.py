"""Is this machine fit to build, to smoke-test and to use the wheels? What is missing, and how to
get it.

Visual Studio, the Windows SDK and the archives are checked by build.cmd itself, before it downloads
anything.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from farm.base.errors import NoRunnerError, UsageError
from farm.base.outputs import unwritable
from farm.base.safe_files import is_noexec
from farm.base.yamlfile import Model, load
from farm.catalog import number
from farm.machine.cards import driver_branch, driver_problem, judge_gpu, last_driver
from farm.machine.host import Machine, NoReadingError
from farm.machine.readings import Readings, clean
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.recipe import recipe
from farm.plan.settings import Settings, load_runners, load_settings
from farm.platforms.facts import DEFAULT, PLATFORMS, Facts


class BuildMachine(Machine):
    """The machine that this runs on, with its container engine."""

    def engine(self) -> tuple[str, str, str]:
        """Ask the Docker engine for its system, version and machine.

        Raises:
            NoRunnerError: No engine answers.
        """
        from farm.engines.docker import describe  # noqa: PLC0415 (docker-py takes long to import)

        return describe()


GB = 10**9


class Finding(Model):
    """One finding: what was looked at, how it is, what was seen, and what to do; `todo` is empty
    where all is well.
    """

    check: str
    state: Literal["ok", "warning", "missing", "not read"]
    seen: str
    todo: str = ""


class Needs(Model):
    """`doctor.yaml`: sizes in units of 10**9 bytes."""

    disk_gb: int
    image_gb: int
    memory_gb: int
    commit_gb: int
    triton_below: dict[str, str]
    triton_source: str
    triton_sm_min: int
    triton_sm_source: str


def needs() -> Needs:
    return load(Path(__file__).with_name("doctor.yaml"), Needs)


@dataclass(frozen=True)
class HostFacts:
    """The machine, what `farm detect` read of it, and the build that it shall be fit for, if one is
    known.
    """

    machine: BuildMachine
    readings: Readings
    plan: Plan | None

    @property
    def large(self) -> bool:
        """True if it shall build PyTorch, which takes far more than other packages."""
        return self.plan is None or self.plan.package == "torch"

    @property
    def platform(self) -> Facts:
        """The machine's platform; Linux where the farm does not build for this one."""
        return self.readings.os.platform or PLATFORMS[DEFAULT]


def ok(check: str, seen: str) -> Finding:
    return Finding(check=check, state="ok", seen=clean(seen))


def missing(check: str, seen: str, todo: str) -> Finding:
    return Finding(check=check, state="missing", seen=clean(seen), todo=todo)


def warning(check: str, seen: str, todo: str) -> Finding:
    return Finding(check=check, state="warning", seen=clean(seen), todo=todo)


ENGLISH = "1033"
"""The language id of English (United States): the folder that a compiler's English messages are in.
"""
GIT = r"C:\Program Files\Git\cmd\git.exe"
"""Where Git for Windows lies, whatever it did to PATH."""


def memory(host: HostFacts) -> Iterator[Finding]:
    """Physical memory, what it and the page file allow together, and the number of compilers."""
    total, commit = host.machine.memory()
    needs_of_build = needs()
    total_text = f"{total / GB:.1f} GB"
    # 2.2: what the recipe of torch says of one compile.
    if host.plan:
        per_job = host.plan.memory_per_job_gb
    else:
        per_job = 2.2
    least = needs_of_build.memory_gb if host.large else per_job
    if total < least * GB:
        purpose = "PyTorch" if host.large else "one compiler"
        yield missing(
            "memory", total_text, f"{least:g} GB are the least for {purpose}: use another machine"
        )
    else:
        yield ok("memory", total_text)
    cores = host.machine.cores()
    jobs = max(1, min(cores, int(total / (per_job * GB))))
    yield ok("jobs", f"{jobs} compilers at once: {cores} cores, {per_job} GB each")
    if host.large and host.platform.limits_paths and commit < needs_of_build.commit_gb * GB:
        purpose = host.platform.swap
        yield warning(
            purpose,
            f"memory and {purpose} together {commit / GB:.1f} GB",
            f"enlarge the {purpose} until they are {needs_of_build.commit_gb} GB, else a linker "
            "may run out "
            "of memory",
        )
    else:
        yield ok(host.platform.swap, f"{commit / GB:.1f} GB with memory")


def disk(host: HostFacts) -> Iterator[Finding]:
    """Free space where builds are made."""
    where = host.platform.build_root
    needed_gb: float = needs().disk_gb
    package = "PyTorch"
    if host.plan is not None and not (host.large and host.platform.limits_paths):
        package = host.plan.package
        needed_gb = recipe(host.plan.recipe).disk_gb + needs().image_gb
    free = host.machine.free(where)
    free_text = f"{free / GB:.0f} GB free on {where}"
    if free >= needed_gb * GB:
        yield ok("disk", free_text)
    elif host.platform.limits_paths:
        yield missing(
            "disk",
            free_text,
            rf"{needed_gb:g} GB are needed: make room, or mkdir D:\farm, cmd /c mklink /J C:\farm "
            r"D:\farm",
        )
    else:
        yield missing(
            "disk", free_text, f"{needed_gb:g} GB are needed for a build of {package}: make room"
        )


def python(host: HostFacts) -> Iterator[Finding]:
    """The Python of the variant."""
    have = {interpreter.name: interpreter.path for interpreter in host.readings.pythons}
    if host.plan is None:
        versions_text = ", ".join(have) or "none"
        yield (
            ok("Python", versions_text)
            if have
            else missing("Python", versions_text, "install 64-bit Python 3.11 from python.org")
        )
        return
    name = host.plan.parsed_variant.python
    if name in have:
        yield ok("Python", f"{name}: {have[name]}")
    elif host.platform.in_images:
        explanation = (
            f"no {name} here: the container builds with its own, but the wheel is not tested here"
        )
        todo = (
            f"have python{name[2]}.{name[3:]} on PATH: apt-get install, or uv python install "
            f"{name[2]}.{name[3:]}"
        )
        yield warning("Python", explanation, todo)
    else:
        todo = f"install 64-bit Python {name[2]}.{name[3:]} from python.org"
        yield missing("Python", f"no {name}; there are: {', '.join(have) or 'none'}", todo)


def git(host: HostFacts) -> Iterator[Finding]:
    """Git, and on Windows long paths in it."""
    try:
        reported = host.machine.run("git", "--version")
    except NoReadingError:
        # build.cmd looks there too.
        if host.platform.limits_paths and host.machine.exists(GIT):
            yield ok("Git", GIT)
        elif host.plan is not None and host.plan.source.kind != "git":
            yield ok("Git", f"not on PATH; {host.plan.package} needs none")
        else:
            yield missing("Git", "not on PATH", "install Git (Windows: Git for Windows)")
        return
    yield ok("Git", reported.text.strip())
    if host.platform.limits_paths:
        answer = host.machine.run("git", "config", "--get", "core.longpaths").text.strip()
        todo = "git config --global core.longpaths true (build.cmd sets it for its own calls)"
        unset = warning("Git long paths", "core.longpaths is not set", todo)
        yield ok("Git long paths", "core.longpaths is true") if answer == "true" else unset


def gpu(host: HostFacts) -> Iterator[Finding]:
    """Each GPU with its driver: can the one drive the other?"""
    if not host.platform.cuda:
        return
    if not host.readings.gpus:
        why = (
            "; ".join(m.why for m in host.readings.missing if m.what.startswith("GPUs"))
            or "none found"
        )
        yield warning(
            "GPU",
            why,
            "none is needed to build; to use one, install its driver (Kepler: the 470 branch)",
        )
    if host.plan and host.plan.toolkit:
        cuda = host.plan.toolkit.cuda
    else:
        cuda = None
    for card in host.readings.gpus:
        verdict = judge_gpu(card, host.readings.driver)
        card_text = (
            f"{card.name} ({verdict.sm or 'no variant'}), driver "
            f"{host.readings.driver or 'unknown'}"
        )
        last = last_driver(verdict.sm) if verdict.sm else None
        branch = driver_branch(host.readings.driver)
        problem = driver_problem(cuda, host.readings.driver, host.readings.os.system)
        # First a driver that is too new for the card: it does not drive it at all, and an update
        # would not help.
        if last and branch and branch > last:
            todo = (
                f"remove it (DDU on Windows), install a driver of branch {last}, and none with "
                "a CUDA installer"
            )
            yield missing(
                "GPU driver", f"{card_text}: newer than {last}, the last branch for this GPU", todo
            )
        elif problem:
            yield missing(
                "GPU driver",
                f"{card_text}: {problem}",
                f"install a newer driver, up to branch {last or 'any'}",
            )
        else:
            yield ok("GPU driver", card_text)


def engine(host: HostFacts) -> Iterator[Finding]:
    """The engine that Linux builds run in, Docker's or Podman's: asked as builds ask it."""
    try:
        system, version, machine = host.machine.engine()
    except NoRunnerError as error:
        yield missing("Docker", str(error), error.hint or "look at the engine's own log")
        return
    wrong_system = missing(
        "Docker", f"this engine runs {system} containers", "switch it to Linux containers"
    )
    yield ok("Docker", f"{system} {version} {machine}") if system == DEFAULT else wrong_system


def compiler(host: HostFacts) -> Iterator[Finding]:
    """A C++ compiler: torch.compile asks for one; builds have their own in the container."""
    compiler_path = host.machine.which("g++") or host.machine.which("clang++")
    name = "torch.compile: C++ compiler"
    yield (
        ok(name, compiler_path)
        if compiler_path
        else warning(name, "neither g++ nor clang++", "apt-get install g++")
    )


def torch_compile(host: HostFacts) -> Iterator[Finding]:
    """Needs of torch.compile and notebooks: cl.exe on PATH, a triton-windows that fits the torch
    here.
    """
    cl = host.machine.which("cl.exe")
    unset = [name for name in ("INCLUDE", "LIB") if not host.machine.variable(name)]
    prompt = (
        "start Python, or the notebook server, from the x64 Native Tools Command Prompt, "
        "which sets all of it"
    )
    if not cl:
        yield warning("torch.compile: cl.exe", "cl.exe is not on PATH", prompt)
    elif unset:
        yield warning(
            "torch.compile: cl.exe", f"{cl}, but {' and '.join(unset)} is not set", prompt
        )
    else:
        yield ok("torch.compile: cl.exe", cl)
    if cl:
        messages = rf"{cl.rpartition(chr(92))[0]}\{ENGLISH}\clui.dll"
        todo = "add English under Language packs in the Visual Studio Installer"
        absent = f"{messages} is not there: torch.compile reads what cl.exe says"
        has_messages = host.machine.exists(messages)
        yield (
            ok("torch.compile: English", messages)
            if has_messages
            else missing("torch.compile: English", absent, todo)
        )
    torch = host.machine.package("torch")
    triton = host.machine.package("triton-windows")
    needs_of_compile = needs()
    if torch is None:
        yield ok("torch.compile: triton", "no torch beside this Python")
        return
    # triton-windows goes by the minor version of torch.
    release = ".".join(torch.split("+")[0].split(".")[:2])
    version_end = needs_of_compile.triton_below.get(release)
    sms = [int(card.capability.replace(".", "")) for card in host.readings.gpus if card.capability]
    if sms and max(sms) < needs_of_compile.triton_sm_min:
        state_text = (
            f"Triton starts at sm_{needs_of_compile.triton_sm_min}, this machine has sm_{max(sms)}"
        )
        yield warning(
            "torch.compile: triton", state_text, "use torch.compile on the CPU alone, or do without"
        )
    elif version_end is None:
        yield warning(
            "torch.compile: triton",
            f"torch {torch}: no fitting triton-windows is known",
            "do without",
        )
    elif triton is None:
        yield warning(
            "torch.compile: triton",
            f"torch {torch} without triton",
            f'pip install "triton-windows<{version_end}"',
        )
    elif number(triton.split(".post")[0]) >= number(version_end):
        state_text = f"triton-windows {triton} is too new for torch {torch}"
        yield missing(
            "torch.compile: triton", state_text, f'pip install "triton-windows<{version_end}"'
        )
    else:
        yield ok("torch.compile: triton", f"triton-windows {triton} fits torch {torch}")


def run_checks(
    machine: BuildMachine, readings: Readings, plan: Plan | None, *, build: bool = True
) -> list[Finding]:
    """Every finding about the machine, for a plan if one is known; without `build`, for installing
    and using wheels.
    """
    host = HostFacts(machine, readings, plan)
    checks: list[tuple[str, Callable[[HostFacts], Iterator[Finding]]]] = [
        ("Python", python),
        ("GPU", gpu),
    ]
    if build:
        checks = [("memory", memory), ("disk", disk), ("Git", git), *checks]
        if host.platform.in_images:
            checks.append(("Docker", engine))
    if compiler_check := {"msvc": torch_compile, "gcc": compiler}.get(host.platform.compiler):
        checks.append(("torch.compile", compiler_check))
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings += check(host)
        except NoReadingError as error:
            # One reading that fails must not hide what the other checks find.
            findings.append(
                Finding(check=name, state="not read", seen=clean(str(error)), todo="look yourself")
            )
    return findings


def check_project(project: Path) -> list[Finding]:
    """Every finding about the project's own files and folders."""
    wrong: list[Finding] = []
    readers: tuple[Callable[[Path], object], ...] = (load_settings, load_runners, _read_matrix)
    for read in readers:
        try:
            read(project)
        except UsageError as error:
            wrong.append(
                missing(
                    "configuration", str(error), error.hint or "correct it, then run this again"
                )
            )
    findings = wrong or [ok("configuration", str(project))]
    with contextlib.suppress(UsageError):  # which is among the wrong ones
        findings += list(_folders(project, load_settings(project))) or [
            ok("folders", "they can be written")
        ]
    return findings


def _read_matrix(project: Path) -> None:
    """The channels, and the recipes of the project's own."""
    matrix = load_matrix(project)
    for name in matrix.own():
        for package in matrix.channel(name).packages:
            recipe(package)


def _folders(project: Path, settings: Settings) -> Iterator[Finding]:
    """The fault of a folder that runs write to; an absent one will be made in the nearest above."""
    places = {"artifacts": settings.artifacts, "index": settings.index}
    problems: dict[str, list[str]] = {}
    for key, place in places.items():
        if place and "://" not in place and (problem := unwritable(project / place)):
            problems.setdefault(problem, []).append(key)
    for problem, keys in problems.items():
        todo = (
            "correct its owner or mode (`ls -ld`), or name other folders in ci/farm.yaml "
            f"({', '.join(keys)})"
        )
        yield missing("folders", f"{', '.join(keys)}: {problem}", todo)
    artifacts = project / settings.artifacts
    if not problems and is_noexec(artifacts):
        described = (
            f"artifacts: {artifacts} is mounted noexec, and smoke tests load what they install "
            "there"
        )
        yield missing(
            "folders",
            described,
            "mount it without noexec, or name another folder in ci/farm.yaml (artifacts)",
        )
    temporary = Path(tempfile.gettempdir())
    if problem := unwritable(temporary):
        yield missing(
            "folders", f"temporary files: {problem}", "set TMPDIR to a folder that can be written"
        )
