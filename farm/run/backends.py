"""The engines by name: how each is opened, which runners it has now, and how a toolchain image gets to them."""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from platform import machine

import docker
import docker.errors

from farm.base.errors import NoRunnerError, UsageError
from farm.base.project import LOCAL
from farm.engines.base import Capacity, Engine, Traits
from farm.engines.docker import DockerEngine, connect, machine_of
from farm.engines.github import GithubApi, GithubEngine
from farm.engines.github import connect as connect_github
from farm.engines.host import HostEngine
from farm.engines.runners import cannot_test, listed_as
from farm.engines.slurm import SlurmEngine
from farm.engines.swarm import Exchange, SwarmEngine
from farm.plan.compat.stack import Stack
from farm.plan.file import Plan
from farm.plan.settings import Runner, Slurm, Swarm, load_github, load_runners
from farm.plan.variant import Variant
from farm.platforms.base import Platform, platform
from farm.platforms.facts import DEFAULT, PLATFORMS, facts, here
from farm.run.queue import Worker
from farm.run.workspace import Workspace

# A manager answers in milliseconds; one that does not in this time is away, and `farm status` should say so.
MANAGER_TIMEOUT_S = 60
MAX_OUTPUT = 16 << 30  # bytes that a job may leave where ci/runners.yaml does not say what its runner has (disk_gb)
HERE = Runner(engine="docker")  # this machine, where ci/runners.yaml has no entry `local`


@dataclass(frozen=True)
class Backend:
    """An open engine.

    Attributes:
        builder: The Docker engine that makes toolchain images; None: the runner sees to its compilers itself.
        workers: The runners now, for the queue.
        swarm: Where images are pushed, if they are.
        tests: Smoke tests run there as jobs; else on this machine.
        max_output: Bytes that a job may leave.
        lock: Held while an image is made and pushed, so that runs that start together do it once.
    """

    engine: Engine
    builder: docker.DockerClient | None
    workers: Callable[[], list[Worker]]
    swarm: Swarm | None = None
    tests: bool = False
    max_output: int = MAX_OUTPUT
    close: Callable[[], object] = lambda: None
    lock: threading.Lock = field(default_factory=threading.Lock)


def open_backend(workspace: Workspace, name: str, runner: str | None = None) -> Backend:
    """The engine called `name`: of the machine `runner` where each has one of its own; else this machine's.

    UsageError: there is no such engine, or its configuration is missing. NoRunnerError: it does not answer.
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
    """The name of the engine that was asked for, else of Docker's where that can build the plan, else the host's."""
    if name is not None:
        return name
    able = (name for name in ("docker", "host") if plan.platform in ENGINES[name].traits.platforms)
    return next(able, "docker")


def check_engine(workspace: Workspace, name: str, plan: Plan) -> None:
    """Refuses a plan that the engine called `name` cannot carry out. Asks no one, writes nothing.

    UsageError: there is no such engine, or its configuration is missing. NoRunnerError: it runs no jobs of the
    platform.
    """
    kind = engine_kind(name)
    if plan.platform not in kind.traits.platforms:
        able = [f"--on {other}" for other, each in ENGINES.items() if plan.platform in each.traits.platforms]
        raise NoRunnerError(
            f"the {name} engine runs no {plan.platform} jobs, and {plan.variant} is one",
            hint="; or ".join([*able, f"run the same on a {facts(plan.platform).title} machine with --on host"]),
        )
    kind.check(workspace)


def _docker(_setting: Workspace, name: str, runner: Runner) -> Backend:
    client = connect(runner.url)
    engine = DockerEngine(client, cpus=runner.cpus, memory=_bytes(runner.memory_gb))

    def workers() -> list[Worker]:
        return [
            Worker(name, machine=machine_of(client), emulates=True, memory=engine.capacity().memory, slots=runner.slots)
        ]

    return Backend(engine, client, workers, max_output=_bytes(runner.disk_gb) or MAX_OUTPUT, close=client.close)


def _swarm(workspace: Workspace, name: str, runner: Runner) -> Backend:
    swarm = _check_swarm(workspace)
    client = connect(swarm.url, MANAGER_TIMEOUT_S)
    engine = SwarmEngine(client, Exchange(swarm.exchange), cpus=swarm.cpus, memory=_bytes(swarm.memory_gb))

    def workers() -> list[Worker]:
        # Its manager chooses the node.
        return [Worker(name, memory=engine.capacity().memory, slots=engine.slots(), emulates=True)]

    builder = connect(runner.url)

    def close() -> None:
        client.close()
        builder.close()

    return Backend(engine, builder, workers, swarm, close=close)


def _host(workspace: Workspace, name: str, runner: Runner) -> Backend:
    system, machine = this_machine()
    engine = HostEngine(system.host_root(workspace.artifacts), cpus=runner.cpus, memory=_bytes(runner.memory_gb))

    def workers() -> list[Worker]:
        memory, busy = engine.capacity().memory, engine.busy() or ""
        return [Worker(name, platform=system.facts.name, machine=machine, memory=memory, busy=busy)]

    return Backend(engine, None, workers, max_output=_bytes(runner.disk_gb) or MAX_OUTPUT)


def _slurm(workspace: Workspace, name: str, _runner: Runner) -> Backend:
    slurm = _check_slurm(workspace)
    engine = SlurmEngine(slurm)

    def workers() -> list[Worker]:
        return [Worker(name, memory=engine.capacity().memory, slots=slurm.jobs)]  # its own queue chooses the node

    return Backend(engine, None, workers, tests=slurm.smoke is not None)


def _github_api(workspace: Workspace) -> GithubApi:
    github = load_github(workspace.project)
    return connect_github(github.api_url, github.repository, os.environ)


def _github(workspace: Workspace, _name: str, _runner: Runner) -> Backend:
    # Names of runners are compared without case.
    described = {name.lower(): runner for name, runner in load_runners(workspace.project).items()}
    builders = [runner for runner in described.values() if runner.by_labels and "build" in runner.jobs]
    # GitHub does not know what a runner has: what ci/runners.yaml says, and where it says nothing, the least.
    capacity = Capacity(
        max((runner.cpus or 1.0 for runner in builders), default=1.0),
        max((_bytes(runner.memory_gb) or 1 << 30 for runner in builders), default=1 << 30),
    )
    api = _github_api(workspace)

    def workers() -> list[Worker]:
        found = []
        for runner in api.runners():
            listed, known = listed_as(runner.name, runner), described.get(runner.name.lower())
            found.append(
                Worker(
                    runner.name,
                    platform=listed.platform or DEFAULT,
                    machine=listed.machine or "x86_64",
                    labels=frozenset(label.lower() for label in listed.labels or ()),
                    # GitHub does not say what a machine has: without an entry in ci/runners.yaml it takes any job.
                    memory=(_bytes(known.memory_gb) if known else None) or 1 << 62,
                    online=listed.online,
                )
            )
        return found

    return Backend(GithubEngine(api, load_github(workspace.project), capacity), None, workers, close=api.close)


@dataclass(frozen=True)
class EngineKind:
    """An engine by its name, before it is opened.

    Attributes:
        check: Raises UsageError where its configuration is missing; asks no one.
        labels: Gives a function from variant and platform of a build to what its runner must carry.
        machines: The entries of ci/runners.yaml with an engine of their own.
    """

    traits: Traits
    open: Callable[[Workspace, str, Runner], Backend]
    check: Callable[[Workspace], object] = lambda _workspace: None
    labels: "Callable[[Workspace], Labels]" = lambda _workspace: lambda _variant, _platform: frozenset()
    machines: "Callable[[Workspace], list[str]]" = lambda _workspace: [LOCAL]

    def machine_of(self, workspace: Workspace, runner: str | None) -> str:
        """The machine whose engine serves a runner."""
        names = self.machines(workspace)
        return runner if runner in names else LOCAL if LOCAL in names else names[0]

    def queued(self, workspace: Workspace) -> bool:
        """True if a build always goes through the queue, which chooses among several runners."""
        return self.traits.queues or self.machines(workspace) != [LOCAL]


def docker_runners(workspace: Workspace) -> dict[str, Runner]:
    """The Docker engines that `ci/runners.yaml` names: the machines that are reached by a URL."""
    return {name: runner for name, runner in load_runners(workspace.project).items() if not runner.by_labels}


def card_machine(workspace: Workspace, plan: Plan) -> str | None:
    """The Docker machine of `ci/runners.yaml` that has a card for the plan's wheel; None: this machine tests it."""
    cuda = str(plan.options["cuda"]) if plan.options.get("cuda") else None
    stack = Stack(plan.recipe, plan.parsed_variant, plan.platform, cuda=cuda)
    able = (n for n, r in docker_runners(workspace).items() if r.url and r.gpus and not cannot_test(stack, r))
    return next(able, None) if plan.parsed_variant.sms else None


def open_card_machine(workspace: Workspace, name: str) -> Backend:
    """The engine of a machine that `card_machine` names; NoRunnerError: it does not answer."""
    return _docker(workspace, name, docker_runners(workspace)[name])


def _docker_builders(workspace: Workspace) -> list[str]:
    """The names of those that build."""
    found = [name for name, runner in docker_runners(workspace).items() if "build" in runner.jobs]
    if not found:
        raise UsageError(
            "ci/runners.yaml names no Docker engine that builds",
            hint="add `local: {engine: docker}` for this machine's; for another one also its url: ssh://USER@HOST",
        )
    return found


def _check_slurm(workspace: Workspace) -> Slurm:
    if workspace.settings.slurm is None:
        raise UsageError(
            "ci/farm.yaml does not say how Slurm is reached",
            hint="slurm: {folder: /a/folder/that/login/node/and/nodes/share, cpus: 8, memory_gb: 32}",
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
    return lambda variant, platform: frozenset(
        label.lower() for label in github.runs_on("build", Variant.parse(variant), platform)
    )


ENGINES: dict[str, EngineKind] = {
    "docker": EngineKind(DockerEngine.traits, _docker, check=_docker_builders, machines=_docker_builders),
    "host": EngineKind(HostEngine.traits, _host),
    "slurm": EngineKind(SlurmEngine.traits, _slurm, check=_check_slurm),
    "swarm": EngineKind(SwarmEngine.traits, _swarm, check=_check_swarm),
    # `check`: opening a client looks at repository and token, and sends no request.
    "github": EngineKind(
        GithubEngine.traits, _github, check=lambda workspace: _github_api(workspace).close(), labels=_github_labels
    ),
}
"""Values of `--on`. CONTRIBUTING, "Adding an engine", names what a new one needs beside a line here."""


def _bytes(gigabytes: float | None) -> int | None:
    return int(gigabytes * 1e9) if gigabytes else None


def this_machine() -> tuple[Platform, str]:
    """The platform that this Python runs on, and the machine by the farm's name; NoRunnerError: the farm has none."""
    found = here()
    if found is None:
        known = ", ".join(each.title for each in PLATFORMS.values())
        raise NoRunnerError(f"the farm does not build on {sys.platform}", hint=f"it builds on {known}")
    return platform(found.name), found.machine(machine())
