"""Which runner can take which job, and why not."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from farm import catalog
from farm.base.errors import FarmError
from farm.engines.base import Traits
from farm.engines.docker import DockerEngine, connect
from farm.engines.github import GithubEngine
from farm.engines.github_api import GithubApi, Listed
from farm.plan.compat.gpu import driver_knows_gpu, driver_runs_cuda
from farm.plan.compat.stack import Stack
from farm.plan.matrix import Build
from farm.plan.recipe import recipe
from farm.plan.settings import Card, Github, JobKind, Runner
from farm.platforms.facts import named

TRAITS: Mapping[str, Traits] = {engine.name: engine.traits for engine in (DockerEngine, GithubEngine)}
"""Of the engines that reach the machines of ci/runners.yaml."""


@dataclass(frozen=True)
class Needs:
    """Requirements of a job on its runner.

    Args:
        kind: A build asks for memory, disk and the right system; a smoke test for the CPU and GPU of the wheel.
        stack: Package, variant, platform and CUDA.
        memory_gb: The least that one compile must have.
        disk_gb: Free disk.
        labels: What the job's `runs-on` asks of a runner of GitHub Actions.
        os_version: The beginning of the system's version: under process isolation a Windows container runs on its
            own build only.
    """

    kind: JobKind
    stack: Stack
    memory_gb: float = 0
    disk_gb: float = 0
    labels: tuple[str, ...] = ()
    os_version: str | None = None


def needs_of(kind: JobKind, build: Build, github: Github | None) -> Needs:
    """Requirements of the build or smoke test of an entry of the matrix; without `github` no labels."""
    stack = Stack(build.package, build.variant, build.platform, cuda=catalog.find(catalog.toolkits(), build.cuda or ""))
    labels = tuple(github.runs_on(kind, build.variant, build.platform)) if github else ()
    if kind == "smoke":
        return Needs(kind, stack, labels=labels)
    made = recipe(build.package)
    return Needs(kind, stack, made.memory_per_job_gb, made.disk_gb, labels)


def fits(job: Needs, runner: Runner) -> list[str]:
    """The reasons why the runner cannot take the job; empty: it can."""
    stack, variant = job.stack, job.stack.variant
    found = []
    if job.kind not in runner.jobs:
        found.append(f"takes {' and '.join(runner.jobs)} jobs, not {job.kind}")
    if job.kind == "build" and stack.platform not in TRAITS[runner.engine].platforms:
        found.append(f"the {runner.engine} engine builds nothing for {stack.platform}")
    if runner.platform != stack.platform:
        found.append(f"is a {runner.platform} machine, the job is for {stack.platform}")
    if runner.machine != variant.machine:
        found.append(f"is {runner.machine}, the job is for {variant.machine}")
    if job.os_version and runner.os_version and not _same_version(runner.os_version, job.os_version):
        found.append(f"has system version {runner.os_version}, the job needs {job.os_version}")
    for what, needed, has in (
        ("memory", job.memory_gb, runner.memory_gb),
        ("disk", job.disk_gb, runner.disk_gb),
    ):
        if has is not None and has < needed:
            found.append(f"gives a job {has:g} GB of {what}, it needs {needed:g}")
    if job.kind == "smoke":
        found += _cannot_run(stack, runner)
    if runner.by_labels:
        carried = {label.lower() for label in runner.labels}
        missing = [label for label in job.labels if label.lower() not in carried]
        if missing:
            found.append(f"has no label {', '.join(missing)}")
    return found


def _same_version(has: str, needed: str) -> bool:
    return f"{has}.".startswith(f"{needed}.")


def _cannot_run(stack: Stack, runner: Runner) -> list[str]:
    variant = stack.variant
    found = []
    if variant.cpu not in runner.cpu_levels:
        levels = ", ".join(runner.cpu_levels) or "none that are written down"
        found.append(f"its CPU levels are {levels}, the wheel is for {variant.cpu}")
    if variant.sms:
        cards = [card for card in runner.gpus if card.sm in variant.architectures]
        if not cards:
            has = ", ".join(f"{card.name} ({card.sm})" for card in runner.gpus) or "none"
            found.append(f"its GPUs are {has}, the wheel is for {variant.gpu}")
        else:
            against = [_driver_against(stack, card) for card in cards]
            if all(against):
                found += against[0]
    return found


def _driver_against(stack: Stack, card: Card) -> list[str]:
    asked = Stack(
        stack.package,
        stack.variant,
        stack.platform,
        cuda=stack.cuda,
        gpu=int(card.sm.removeprefix("sm")),
        driver=card.driver,
    )
    rules = (*driver_knows_gpu(asked), *driver_runs_cuda(asked))
    return [f"{reason.text}: {reason.fact}" for reason in rules if reason.severity == "error"]


@dataclass(frozen=True)
class Untaken:
    """Jobs that no runner can take, by name.

    `nearest` is the runner for such jobs with the fewest reasons against them, `reasons` are those.
    """

    kind: JobKind
    names: tuple[str, ...]
    nearest: str | None
    reasons: tuple[str, ...]


def untaken(jobs: Iterable[tuple[str, Needs]], runners: Mapping[str, Runner]) -> list[Untaken]:
    """The named jobs that none of the runners can take, those with the same reasons together."""
    groups: dict[tuple[JobKind, str | None, tuple[str, ...]], list[str]] = {}
    for name, job in jobs:
        against = {runner: fits(job, what) for runner, what in runners.items()}
        if all(against.values()):
            nearest = min(
                runners, key=lambda name: (job.kind not in runners[name].jobs, len(against[name])), default=None
            )
            reasons = tuple(against[nearest]) if nearest else ("there is no runner",)
            groups.setdefault((job.kind, nearest, reasons), []).append(name)
    return [Untaken(kind, tuple(names), nearest, why) for (kind, nearest, why), names in groups.items()]


@dataclass(frozen=True)
class Stranded:
    """Jobs that only these runners can take, and all of them are offline."""

    kind: JobKind
    names: tuple[str, ...]
    runners: tuple[str, ...]


def stranded(
    jobs: Iterable[tuple[str, Needs]], runners: Mapping[str, Runner], online: Collection[str]
) -> list[Stranded]:
    """The named jobs that runners can take, but none that is online."""
    groups: dict[tuple[JobKind, tuple[str, ...]], list[str]] = {}
    for name, job in jobs:
        takers = tuple(runner for runner, what in runners.items() if not fits(job, what))
        if takers and not set(takers) & set(online):
            groups.setdefault((job.kind, takers), []).append(name)
    return [Stranded(kind, tuple(names), takers) for (kind, takers), names in groups.items()]


SLACK = 0.95
"""A machine reports a little less memory than it was sold with: the kernel keeps some."""


@dataclass(frozen=True)
class Reported:
    """An engine's account of a runner; None: unknown. `why` explains what is not online."""

    online: bool
    why: str | None = None
    busy: bool = False
    platform: str | None = None
    machine: str | None = None
    os_version: str | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    labels: tuple[str, ...] | None = None


def ask(runners: Mapping[str, Runner], github: Callable[[], GithubApi]) -> dict[str, Reported]:
    """Ask the engine of every runner; one that does not answer is offline, and `why` holds its error.

    GitHub is asked once for all its runners.
    """
    listed: dict[str, Listed] | str = {}
    if any(runner.by_labels for runner in runners.values()):
        try:
            with contextlib.closing(github()) as api:
                listed = {found.name.lower(): found for found in api.runners()}
        except FarmError as error:
            listed = f"{error}" + (f" ({error.hint})" if error.hint else "")
    reported = {}
    for name, runner in runners.items():
        if not runner.by_labels:
            reported[name] = _docker(runner)
        elif isinstance(listed, str):
            reported[name] = Reported(online=False, why=listed)
        else:
            reported[name] = listed_as(name, listed.get(name.lower()))
    return reported


def _docker(runner: Runner) -> Reported:
    try:
        client = connect(runner.url)
    except FarmError as error:
        return Reported(online=False, why=str(error))
    try:
        info = client.info()
    finally:
        client.close()
    system, spelling = str(info.get("OSType", "")), str(info.get("Architecture", ""))
    platform = named(system)
    return Reported(
        online=True,
        platform=system or None,
        machine=(platform.machine(spelling) if platform else spelling) or None,
        os_version=str(info.get("OSVersion", "")) or None,
        cpus=float(info["NCPU"]),
        memory_gb=int(info["MemTotal"]) / 1e9,
    )


def listed_as(name: str, found: Listed | None) -> Reported:
    """The entry called `name` in GitHub's list of runners; None: there is none."""
    if found is None:
        return Reported(online=False, why=f"the repository has no runner called {name}")
    labels = tuple(label.name for label in found.labels)
    # GitHub sets `read-only` labels itself, from the machine; custom ones say what someone typed.
    own = {label.name.lower() for label in found.labels if label.type != "custom"}
    platform = named(found.os)
    spelling = next((word for word in ("x64", "arm64") if word in own), None)  # GitHub's own labels
    return Reported(
        online=found.status == "online",
        why=None if found.status == "online" else f"GitHub says that it is {found.status}",
        busy=found.busy,
        platform=platform.name if platform else None,
        machine=platform.machine(spelling) if platform and spelling else None,
        labels=labels,
    )


def differences(runner: Runner, reported: Reported) -> list[str]:
    """Where `ci/runners.yaml` promises what the engine does not confirm; empty: nothing."""
    found = []
    for what in ("platform", "machine"):
        written, has = getattr(runner, what), getattr(reported, what)
        if has is not None and has != written:
            found.append(f"{what} is {has}, the file says {written}")
    # With a dot at the end, so that 10.0.1 does not pass for 10.0.17763.
    if runner.os_version and reported.os_version and not f"{reported.os_version}.".startswith(f"{runner.os_version}."):
        found.append(f"os_version is {reported.os_version}, the file says {runner.os_version}")
    if runner.cpus and reported.cpus and runner.cpus * runner.slots > reported.cpus:
        found.append(f"has {reported.cpus:g} CPUs, the file promises {runner.slots} x {runner.cpus:g}")
    if runner.memory_gb and reported.memory_gb and runner.memory_gb * runner.slots * SLACK > reported.memory_gb:
        found.append(
            f"has {reported.memory_gb:.1f} GB of memory, the file promises {runner.slots} x {runner.memory_gb:g}"
        )
    if reported.labels is not None:
        carried = {label.lower() for label in reported.labels}
        missing = [label for label in runner.labels if label.lower() not in carried]
        further = sorted(carried - {label.lower() for label in runner.labels})
        if missing:
            found.append(f"does not carry the label {', '.join(missing)}")
        if further:
            found.append(f"carries {', '.join(further)}, which the file does not say")
    return found
