"""The engines by name: how each is opened, which runners it has now, and what those of
`ci/runners.yaml` can do.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from platform import machine

import docker
import docker.errors

from farm.base.errors import FarmError, NoRunnerError, UsageError
from farm.base.project import LOCAL
from farm.engines.base import Capacity, Engine, Traits
from farm.engines.docker import DockerEngine, connect, machine_of, system_of
from farm.engines.github import GithubEngine
from farm.engines.github_api import GithubApi, RepositoryRunner
from farm.engines.github_api import connect as connect_github
from farm.engines.host import HostEngine
from farm.engines.slurm import SlurmEngine
from farm.engines.swarm import Exchange, SwarmEngine
from farm.plan.compat.rules.gpus import driver_knows_gpu, driver_runs_cuda
from farm.plan.compat.stack import Stack
from farm.plan.file import Plan
from farm.plan.platforms.base import Platform, platform
from farm.plan.settings import Card, Runner, Slurm, Swarm, load_github, load_runners
from farm.plan.variant import Variant
from farm.platforms.facts import DEFAULT, PLATFORMS, facts, here, named
from farm.run.queue import QueueRunner
from farm.run.workspace import Workspace


def cannot_test(stack: Stack, runner: Runner) -> list[str]:
    """The reasons why a machine cannot smoke-test a wheel; empty: it can."""
    variant = stack.variant
    reasons = []
    if "smoke" not in runner.jobs:
        reasons.append(f"takes {' and '.join(runner.jobs)} jobs, not smoke")
    if (runner.platform, runner.machine) != (stack.platform, variant.machine):
        reasons.append(
            f"is {runner.platform} on {runner.machine}, the wheel is for {stack.platform} on "
            f"{variant.machine}"
        )
    if variant.cpu not in runner.cpu_levels:
        levels = ", ".join(runner.cpu_levels) or "none that are written down"
        reasons.append(f"its CPU levels are {levels}, the wheel is for {variant.cpu}")
    cards = [card for card in runner.gpus if card.sm in variant.architectures]
    if variant.sms and not cards:
        has = ", ".join(f"{card.name} ({card.sm})" for card in runner.gpus) or "none"
        reasons.append(f"its GPUs are {has}, the wheel is for {variant.gpu}")
    against = [_driver_against(stack, card) for card in cards]
    if against and all(against):
        reasons += against[0]
    return reasons


def _driver_against(stack: Stack, card: Card) -> list[str]:
    stack = Stack(
        stack.package,
        stack.variant,
        stack.platform,
        cuda=stack.cuda,
        gpu=int(card.sm.removeprefix("sm")),
        driver=card.driver,
    )
    rules = (*driver_knows_gpu(stack), *driver_runs_cuda(stack))
    return [f"{reason.text}: {reason.fact}" for reason in rules if reason.severity == "error"]


ASKED_AT_ONCE = 32
"""Docker machines that are asked at a time."""
SLACK = 0.95  # a machine reports a little less memory than it was sold with: the kernel keeps some


@dataclass(frozen=True)
class MachineReport:
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


def ask(runners: Mapping[str, Runner], github: Callable[[], GithubApi]) -> dict[str, MachineReport]:
    """Ask the engine of every runner, GitHub once for all; where one does not answer, `why` holds
    its error.
    """
    by_docker = {}
    by_github = []
    for name, runner in runners.items():
        if runner.by_labels:
            by_github.append(name)
        else:
            by_docker[name] = runner
    reported = {}
    if by_github:
        reported = _reported_by_github(by_github, github)
    # At once: a machine that takes connections and answers nothing costs half a minute.
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        reports = pool.map(_reported_by_docker, by_docker.values())
        reported.update(zip(by_docker, reports, strict=True))
    return {name: reported[name] for name in runners}


def _reported_by_github(
    names: list[str], github: Callable[[], GithubApi]
) -> dict[str, MachineReport]:
    try:
        with contextlib.closing(github()) as api:
            github_runners = {runner.name.lower(): runner for runner in api.runners()}
    except FarmError as error:
        why = str(error)
        if error.hint:
            why = f"{error} ({error.hint})"
        return dict.fromkeys(names, MachineReport(online=False, why=why))
    return {name: listed_as(name, github_runners.get(name.lower())) for name in names}


def _reported_by_docker(runner: Runner) -> MachineReport:
    try:
        client = connect(runner.url)
    except FarmError as error:
        return MachineReport(online=False, why=str(error))
    try:
        info = client.info()
    finally:
        client.close()
    system = str(info.get("OSType", ""))
    spelling = str(info.get("Architecture", ""))
    platform = named(system)
    if platform:
        spelling = platform.machine(spelling)
    return MachineReport(
        online=True,
        platform=system or None,
        machine=spelling or None,
        os_version=str(info.get("OSVersion", "")) or None,
        cpus=float(info["NCPU"]),
        memory_gb=int(info["MemTotal"]) / 1e9,
    )


def listed_as(name: str, entry: RepositoryRunner | None) -> MachineReport:
    """The runner called `name` by its entry in GitHub's list; None: there is none."""
    if entry is None:
        return MachineReport(online=False, why=f"the repository has no runner called {name}")
    why = None
    if entry.status != "online":
        why = f"GitHub says that it is {entry.status}"
    platform = named(entry.os)
    machine = None
    if platform:
        # GitHub sets `read-only` labels itself, from the machine; custom ones say what someone
        # typed.
        github_labels = {label.name.lower() for label in entry.labels if label.type != "custom"}
        for spelling in ("x64", "arm64"):
            if spelling in github_labels:
                machine = platform.machine(spelling)
                break
    return MachineReport(
        online=entry.status == "online",
        why=why,
        busy=entry.busy,
        platform=platform and platform.name,
        machine=machine,
        labels=tuple(label.name for label in entry.labels),
    )


def differences(runner: Runner, reported: MachineReport) -> list[str]:
    """Where `ci/runners.yaml` promises what the engine does not confirm; empty: nothing."""
    return [
        *_system_differences(runner, reported),
        *_size_differences(runner, reported),
        *_label_differences(runner, reported),
    ]


def _system_differences(runner: Runner, reported: MachineReport) -> Iterator[str]:
    for field_name in ("platform", "machine"):
        written = getattr(runner, field_name)
        has = getattr(reported, field_name)
        if has is not None and has != written:
            yield f"{field_name} is {has}, the file says {written}"
    if runner.os_version and reported.os_version:
        # With a dot at the end, so that 10.0.1 does not pass for 10.0.17763.
        is_same = f"{reported.os_version}.".startswith(f"{runner.os_version}.")
        if not is_same:
            yield f"os_version is {reported.os_version}, the file says {runner.os_version}"


def _size_differences(runner: Runner, reported: MachineReport) -> Iterator[str]:
    if runner.cpus and reported.cpus and runner.cpus * runner.slots > reported.cpus:
        yield f"has {reported.cpus:g} CPUs, the file promises {runner.slots} x {runner.cpus:g}"
    if runner.memory_gb and reported.memory_gb:
        promised = f"{runner.slots} x {runner.memory_gb:g}"
        if runner.memory_gb * runner.slots * SLACK > reported.memory_gb:
            yield f"has {reported.memory_gb:.1f} GB of memory, the file promises {promised}"


def _label_differences(runner: Runner, reported: MachineReport) -> Iterator[str]:
    if reported.labels is None:
        return
    carried = set(map(str.lower, reported.labels))
    missing = [label for label in runner.labels if label.lower() not in carried]
    if missing:
        yield f"does not carry the label {', '.join(missing)}"
    unwritten = sorted(carried - set(map(str.lower, runner.labels)))
    if unwritten:
        yield f"carries {', '.join(unwritten)}, which the file does not say"


# A manager answers in milliseconds; one that does not in this time is away, and `farm status`
# should say so.
MANAGER_TIMEOUT_S = 60
MAX_OUTPUT = 16 << 30
"""Bytes that a job may leave where ci/runners.yaml does not say what its runner has (disk_gb)."""
HERE = Runner(engine="docker")  # this machine, where ci/runners.yaml has no entry `local`


@dataclass(frozen=True)
class Backend:
    """An open engine.

    `builder`: the Docker engine that makes toolchain images (None: the runner sees to its compilers
    itself); `workers`: the runners now, for the queue; `swarm`: where images are pushed; `tests`:
    smoke tests run there as jobs; `max_output`: bytes that a job may leave; `lock`: held while an
    image is made and pushed, so that runs that start together do it once.
    """

    engine: Engine
    builder: docker.DockerClient | None
    workers: Callable[[], list[QueueRunner]]
    swarm: Swarm | None = None
    tests: bool = False
    max_output: int = MAX_OUTPUT
    close: Callable[[], object] = lambda: None
    lock: threading.Lock = field(default_factory=threading.Lock)


def open_backend(workspace: Workspace, name: str, runner: str | None = None) -> Backend:
    """The engine called `name`, of `runner` where each has its own; UsageError, NoRunnerError:
    none, or no answer.
    """
    kind = engine_kind(name)
    kind.check(workspace)
    machine = kind.machine_of(workspace, runner)
    return kind.open(workspace, machine, load_runners(workspace.project).get(machine, HERE))


def engine_kind(name: str) -> "EngineKind":
    """The kind of engine called `name`; nothing is opened; UsageError: there is none."""
    if name not in ENGINES:
        raise UsageError(f"unknown engine {name!r}", hint=f"known engines: {', '.join(ENGINES)}")
    return ENGINES[name]


def engine_for(plan: Plan, name: str | None = None) -> str:
    """The name of the engine that was asked for, else of Docker's where that can build the plan,
    else the host's.
    """
    if name is not None:
        return name
    # In containers where those are the rule; else on a machine of that platform itself.
    order = ("host", "docker")
    if facts(plan.platform).in_images:
        order = ("docker", "host")
    for engine in order:
        if plan.platform in ENGINES[engine].traits.platforms:
            return engine
    return "docker"


def check_engine(workspace: Workspace, name: str, plan: Plan) -> None:
    """Refuses a plan that the engine called `name` cannot carry out, or whose configuration is
    missing; asks no one.
    """
    kind = engine_kind(name)
    if plan.platform not in kind.traits.platforms:
        ways = []
        for engine, other_kind in ENGINES.items():
            if plan.platform in other_kind.traits.platforms:
                ways.append(f"--on {engine}")
        title = facts(plan.platform).title
        ways.append(f"run the same on a {title} machine with --on host")
        raise NoRunnerError(
            f"the {name} engine cannot run {plan.platform} jobs, and {plan.variant} needs one",
            hint="; or ".join(ways),
        )
    kind.check(workspace)


def _docker(_setting: Workspace, name: str, runner: Runner) -> Backend:
    client = connect(runner.url)
    engine = DockerEngine(
        client,
        cpus=runner.cpus,
        memory=_bytes(runner.memory_gb),
        disk=_bytes(runner.disk_gb),
    )

    def workers() -> list[QueueRunner]:
        return [
            QueueRunner(
                name,
                platform=system_of(client),
                machine=machine_of(client),
                emulates=True,
                memory=engine.capacity().memory,
                slots=runner.slots,
            )
        ]

    return Backend(
        engine, client, workers, max_output=_bytes(runner.disk_gb) or MAX_OUTPUT, close=client.close
    )


def _swarm(workspace: Workspace, name: str, runner: Runner) -> Backend:
    swarm = _check_swarm(workspace)
    client = connect(swarm.url, MANAGER_TIMEOUT_S)
    engine = SwarmEngine(
        client, Exchange(swarm.exchange), cpus=swarm.cpus, memory=_bytes(swarm.memory_gb)
    )

    def workers() -> list[QueueRunner]:
        # Its manager chooses the node.
        return [
            QueueRunner(name, memory=engine.capacity().memory, slots=engine.slots(), emulates=True)
        ]

    builder = connect(runner.url)

    def close() -> None:
        client.close()
        builder.close()

    return Backend(engine, builder, workers, swarm, close=close)


def _host(workspace: Workspace, name: str, runner: Runner) -> Backend:
    system, machine = this_machine()
    engine = HostEngine(
        system.host_root(workspace.artifacts), cpus=runner.cpus, memory=_bytes(runner.memory_gb)
    )

    def workers() -> list[QueueRunner]:
        memory = engine.capacity().memory
        busy = engine.busy() or ""
        return [
            QueueRunner(name, platform=system.facts.name, machine=machine, memory=memory, busy=busy)
        ]

    return Backend(engine, None, workers, max_output=_bytes(runner.disk_gb) or MAX_OUTPUT)


def _slurm(workspace: Workspace, name: str, _runner: Runner) -> Backend:
    slurm = _check_slurm(workspace)
    engine = SlurmEngine(slurm)

    def workers() -> list[QueueRunner]:
        # Its own queue chooses the node.
        return [QueueRunner(name, memory=engine.capacity().memory, slots=slurm.jobs)]

    return Backend(engine, None, workers, tests=slurm.smoke is not None)


def _github_api(workspace: Workspace) -> GithubApi:
    github = load_github(workspace.project)
    return connect_github(github.api_url, github.repository, os.environ)


def _github(workspace: Workspace, _name: str, _runner: Runner) -> Backend:
    # Names of runners are compared without case.
    described = {name.lower(): runner for name, runner in load_runners(workspace.project).items()}
    api = _github_api(workspace)

    def workers() -> list[QueueRunner]:
        return [
            _github_worker(runner, described.get(runner.name.lower())) for runner in api.runners()
        ]

    engine = GithubEngine(api, load_github(workspace.project), _github_capacity(described.values()))
    return Backend(engine, None, workers, close=api.close)


def _github_capacity(described: Iterable[Runner]) -> Capacity:
    """GitHub does not know what a runner has: what ci/runners.yaml says, and where it says nothing,
    the least.
    """
    cpus = []
    memory = []
    for runner in described:
        if runner.by_labels and "build" in runner.jobs:
            cpus.append(runner.cpus or 1.0)
            memory.append(_bytes(runner.memory_gb) or 1 << 30)
    return Capacity(max(cpus, default=1.0), max(memory, default=1 << 30))


def _github_worker(runner: RepositoryRunner, described: Runner | None) -> QueueRunner:
    """A runner of GitHub's list for the queue; `described`: its entry in ci/runners.yaml."""
    reported = listed_as(runner.name, runner)
    # GitHub does not say what a machine has: without an entry it takes any job.
    memory = None
    if described:
        memory = _bytes(described.memory_gb)
    return QueueRunner(
        runner.name,
        platform=reported.platform or DEFAULT,
        machine=reported.machine or "x86_64",
        labels=frozenset(map(str.lower, reported.labels or ())),
        memory=memory or 1 << 62,
        online=reported.online,
    )


@dataclass(frozen=True)
class EngineKind:
    """An engine by its name, before it is opened.

    `check` raises UsageError where its configuration is missing, and asks no one; `labels` gives a
    function from variant and platform of a build to what its runner must carry; `machines`: the
    entries of ci/runners.yaml with an engine of their own.
    """

    traits: Traits
    open: Callable[[Workspace, str, Runner], Backend]
    check: Callable[[Workspace], object] = lambda _workspace: None
    labels: "Callable[[Workspace], Labels]" = lambda _workspace: (
        lambda _variant, _platform: frozenset()
    )
    machines: "Callable[[Workspace], list[str]]" = lambda _workspace: [LOCAL]

    def machine_of(self, workspace: Workspace, runner: str | None) -> str:
        """The machine whose engine serves a runner."""
        names = self.machines(workspace)
        if runner in names:
            return runner
        if LOCAL in names:
            return LOCAL
        return names[0]

    def queued(self, workspace: Workspace) -> bool:
        """True if a build always goes through the queue, which chooses among several runners."""
        return self.traits.queues or self.machines(workspace) != [LOCAL]


def docker_runners(workspace: Workspace) -> dict[str, Runner]:
    """The Docker engines that `ci/runners.yaml` names: the machines that are reached by a URL."""
    return {
        name: runner
        for name, runner in load_runners(workspace.project).items()
        if not runner.by_labels
    }


def card_machines(workspace: Workspace, plan: Plan) -> dict[str, int]:
    """Return the Docker machines of `ci/runners.yaml` that have a card for the plan's wheel.

    Returns:
        The number of cards by the machine's name; empty where this machine tests the wheel.
    """
    if not plan.parsed_variant.sms:
        return {}
    cuda = None
    if plan.options.get("cuda"):
        cuda = str(plan.options["cuda"])
    stack = Stack(plan.recipe, plan.parsed_variant, plan.platform, cuda=cuda)
    machines = {}
    for name, runner in docker_runners(workspace).items():
        if runner.url and runner.gpus and not cannot_test(stack, runner):
            machines[name] = len(runner.gpus)
    return machines


def open_card_machine(workspace: Workspace, name: str) -> Backend:
    """The engine of a machine that `card_machines` names; NoRunnerError: it does not answer."""
    return _docker(workspace, name, docker_runners(workspace)[name])


def _docker_builders(workspace: Workspace) -> list[str]:
    """The names of those that build."""
    names = [name for name, runner in docker_runners(workspace).items() if "build" in runner.jobs]
    if not names:
        raise UsageError(
            "ci/runners.yaml names no Docker engine that builds",
            hint="add `local: {engine: docker}` for this machine's; for another one also its url: "
            "ssh://USER@HOST",
        )
    return names


def _check_slurm(workspace: Workspace) -> Slurm:
    if workspace.settings.slurm is None:
        raise UsageError(
            "ci/farm.yaml does not say how Slurm is reached",
            hint="slurm: {folder: /a/folder/that/login/node/and/nodes/share, cpus: 8, memory_gb: "
            "32}",
        )
    return workspace.settings.slurm


def _check_swarm(workspace: Workspace) -> Swarm:
    if workspace.settings.swarm is None:
        raise UsageError(
            "ci/farm.yaml does not say how the swarm is reached",
            hint="swarm: {url: ssh://manager, exchange: s3://bucket/prefix, registry: host:5000}",
        )
    return workspace.settings.swarm


Labels = Callable[[str, str], frozenset[str]]


def _github_labels(workspace: Workspace) -> Labels:
    github = load_github(workspace.project)

    def labels(variant: str, platform: str) -> frozenset[str]:
        needed = github.runs_on("build", Variant.parse(variant), platform)
        return frozenset(map(str.lower, needed))

    return labels


ENGINES: dict[str, EngineKind] = {
    "docker": EngineKind(
        DockerEngine.traits, _docker, check=_docker_builders, machines=_docker_builders
    ),
    "host": EngineKind(HostEngine.traits, _host),
    "slurm": EngineKind(SlurmEngine.traits, _slurm, check=_check_slurm),
    "swarm": EngineKind(SwarmEngine.traits, _swarm, check=_check_swarm),
    # `check`: opening a client looks at repository and token, and sends no request.
    "github": EngineKind(
        GithubEngine.traits,
        _github,
        check=lambda workspace: _github_api(workspace).close(),
        labels=_github_labels,
    ),
}
"""Values of `--on`. CONTRIBUTING ("Adding …", an engine) names what a new one needs beside a line
here.
"""


def _bytes(gigabytes: float | None) -> int | None:
    if not gigabytes:
        return None
    return int(gigabytes * 1e9)


def this_machine() -> tuple[Platform, str]:
    """The platform that this Python runs on, and the machine by the farm's name; NoRunnerError: the
    farm has none.
    """
    system = here()
    if system is None:
        titles = ", ".join(supported.title for supported in PLATFORMS.values())
        raise NoRunnerError(
            f"the farm does not build on {sys.platform}", hint=f"it builds on {titles}"
        )
    return platform(system.name), system.machine(machine())
