"""Is this machine fit to build, to smoke-test and to use the wheels? What is missing, and how to
get it.

Visual Studio, the Windows SDK and the archives are checked by build.cmd itself, before it downloads
anything.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
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
from farm.machine.readings import Gpu, Readings, clean
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.recipe import recipe
from farm.plan.settings import Settings, load_runners, load_settings
from farm.plan.variant import dotted_python
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
    per_job = 2.2  # what the recipe of torch says of one compile
    if host.plan:
        per_job = host.plan.memory_per_job_gb
    least = per_job
    purpose = "one compiler"
    if host.large:
        least = needs_of_build.memory_gb
        purpose = "PyTorch"
    if total < least * GB:
        yield missing(
            "memory", total_text, f"{least:g} GB are the least for {purpose}: use another machine"
        )
    else:
        yield ok("memory", total_text)
    cores = host.machine.cores()
    jobs = max(1, min(cores, int(total / (per_job * GB))))
    yield ok("jobs", f"{jobs} compilers at once: {cores} cores, {per_job} GB each")
    if host.large and host.platform.limits_paths and commit < needs_of_build.commit_gb * GB:
        swap = host.platform.swap
        yield warning(
            swap,
            f"memory and {swap} together {commit / GB:.1f} GB",
            f"enlarge the {swap} until they are {needs_of_build.commit_gb} GB, else a linker "
            "may run out of memory",
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
    versions_text = ", ".join(have) or "none"
    if host.plan is not None:
        yield _python_of_plan(host, host.plan.parsed_variant.python, have)
    elif have:
        yield ok("Python", versions_text)
    else:
        yield missing("Python", versions_text, "install 64-bit Python 3.11 from python.org")


def _python_of_plan(host: HostFacts, name: str, have: Mapping[str, str]) -> Finding:
    """Is the Python of a plan, such as `py311`, among those that the machine has?"""
    if name in have:
        return ok("Python", f"{name}: {have[name]}")
    version = dotted_python(name)
    if host.platform.in_images:
        return warning(
            "Python",
            f"no {name} here: the container builds with its own, but the wheel is not tested here",
            f"have python{version} on PATH: apt-get install, or uv python install {version}",
        )
    versions_text = ", ".join(have) or "none"
    return missing(
        "Python",
        f"no {name}; there are: {versions_text}",
        f"install 64-bit Python {version} from python.org",
    )


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
        yield _long_paths(host)


def _long_paths(host: HostFacts) -> Finding:
    answer = host.machine.run("git", "config", "--get", "core.longpaths").text.strip()
    if answer == "true":
        return ok("Git long paths", "core.longpaths is true")
    return warning(
        "Git long paths",
        "core.longpaths is not set",
        "git config --global core.longpaths true (build.cmd sets it for its own calls)",
    )


def gpu(host: HostFacts) -> Iterator[Finding]:
    """Each GPU with its driver: can the one drive the other?"""
    if not host.platform.cuda:
        return
    if not host.readings.gpus:
        reasons = [item.why for item in host.readings.missing if item.what.startswith("GPUs")]
        yield warning(
            "GPU",
            "; ".join(reasons) or "none found",
            "none is needed to build; to use one, install its driver (Kepler: the 470 branch)",
        )
    for card in host.readings.gpus:
        yield _driver_of(host, card)


def _driver_of(host: HostFacts, card: Gpu) -> Finding:
    """Does the driver fit the card, and the CUDA of the plan?"""
    driver = host.readings.driver
    sm = judge_gpu(card, driver).sm
    card_text = f"{card.name} ({sm or 'no variant'}), driver {driver or 'unknown'}"
    last = None
    if sm:
        last = last_driver(sm)
    branch = driver_branch(driver)
    # First a driver that is too new for the card: it does not drive it at all, and an update
    # would not help.
    if last and branch and branch > last:
        return missing(
            "GPU driver",
            f"{card_text}: newer than {last}, the last branch for this GPU",
            f"remove it (DDU on Windows), install a driver of branch {last}, and none with "
            "a CUDA installer",
        )

    cuda = None
    if host.plan and host.plan.toolkit:
        cuda = host.plan.toolkit.cuda
    problem = driver_problem(cuda, driver, host.readings.os.system)
    if problem:
        todo = f"install a newer driver, up to branch {last or 'any'}"
        return missing("GPU driver", f"{card_text}: {problem}", todo)
    return ok("GPU driver", card_text)


def engine(host: HostFacts) -> Iterator[Finding]:
    """The engine that Linux builds run in, Docker's or Podman's: asked as builds ask it."""
    try:
        system, version, machine = host.machine.engine()
    except NoRunnerError as error:
        yield missing("Docker", str(error), error.hint or "look at the engine's own log")
        return
    if system == DEFAULT:
        yield ok("Docker", f"{system} {version} {machine}")
    else:
        system_text = f"this engine runs {system} containers"
        yield missing("Docker", system_text, "switch it to Linux containers")


def compiler(host: HostFacts) -> Iterator[Finding]:
    """A C++ compiler: torch.compile asks for one; builds have their own in the container."""
    compiler_path = host.machine.which("g++") or host.machine.which("clang++")
    name = "torch.compile: C++ compiler"
    if compiler_path:
        yield ok(name, compiler_path)
    else:
        yield warning(name, "neither g++ nor clang++", "apt-get install g++")


def torch_compile(host: HostFacts) -> Iterator[Finding]:
    """Needs of torch.compile and notebooks: cl.exe on PATH, a triton-windows that fits the torch
    here.
    """
    cl = host.machine.which("cl.exe")
    yield _msvc_prompt(host, cl)
    if cl:
        yield _english_messages(host, cl)
    yield _triton(host)


def _msvc_prompt(host: HostFacts, cl: str | None) -> Finding:
    """Was this started from a prompt of Visual Studio?"""
    check = "torch.compile: cl.exe"
    prompt = (
        "start Python, or the notebook server, from the x64 Native Tools Command Prompt, "
        "which sets all of it"
    )
    if not cl:
        return warning(check, "cl.exe is not on PATH", prompt)
    unset = [name for name in ("INCLUDE", "LIB") if not host.machine.variable(name)]
    if unset:
        return warning(check, f"{cl}, but {' and '.join(unset)} is not set", prompt)
    return ok(check, cl)


def _english_messages(host: HostFacts, cl: str) -> Finding:
    """torch.compile reads what cl.exe prints, in English."""
    check = "torch.compile: English"
    messages = rf"{cl.rpartition(chr(92))[0]}\{ENGLISH}\clui.dll"
    if host.machine.exists(messages):
        return ok(check, messages)
    return missing(
        check,
        f"{messages} is not there: torch.compile reads what cl.exe says",
        "add English under Language packs in the Visual Studio Installer",
    )


def _triton(host: HostFacts) -> Finding:
    """Does triton-windows fit the torch beside this Python, and the cards?"""
    check = "torch.compile: triton"
    torch = host.machine.package("torch")
    if torch is None:
        return ok(check, "this Python has no torch")

    needs_of_compile = needs()
    least_sm = needs_of_compile.triton_sm_min
    highest_sm = 0
    for card in host.readings.gpus:
        if card.capability:
            highest_sm = max(highest_sm, int(card.capability.replace(".", "")))
    if 0 < highest_sm < least_sm:
        return warning(
            check,
            f"Triton starts at sm_{least_sm}, this machine has sm_{highest_sm}",
            "use torch.compile on the CPU alone, or do without",
        )

    # triton-windows goes by the minor version of torch.
    release = ".".join(torch.split("+")[0].split(".")[:2])
    version_end = needs_of_compile.triton_below.get(release)
    if version_end is None:
        return warning(check, f"torch {torch}: no fitting triton-windows is known", "do without")
    todo = f'pip install "triton-windows<{version_end}"'
    triton = host.machine.package("triton-windows")
    if triton is None:
        return warning(check, f"torch {torch} without triton", todo)
    if number(triton.split(".post")[0]) >= number(version_end):
        return missing(check, f"triton-windows {triton} is too new for torch {torch}", todo)
    return ok(check, f"triton-windows {triton} fits torch {torch}")


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
                Finding(
                    check=name, state="not read", seen=clean(str(error)), todo="check it by hand"
                )
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
    keys_by_problem: dict[str, list[str]] = {}
    for key, place in places.items():
        if not place or "://" in place:
            continue
        problem = unwritable(project / place)
        if problem:
            keys_by_problem.setdefault(problem, []).append(key)
    for problem, keys in keys_by_problem.items():
        names = ", ".join(keys)
        todo = (
            f"correct its owner or mode (`ls -ld`), or name other folders in ci/farm.yaml ({names})"
        )
        yield missing("folders", f"{names}: {problem}", todo)

    artifacts = project / settings.artifacts
    if not keys_by_problem and is_noexec(artifacts):
        yield missing(
            "folders",
            f"artifacts: {artifacts} is mounted noexec, and smoke tests load what they install "
            "there",
            "mount it without noexec, or name another folder in ci/farm.yaml (artifacts)",
        )
    temporary = Path(tempfile.gettempdir())
    if problem := unwritable(temporary):
        yield missing(
            "folders", f"temporary files: {problem}", "set TMPDIR to a folder that can be written"
        )
