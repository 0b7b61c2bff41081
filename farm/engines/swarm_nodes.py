"""Nodes and tasks of a swarm in the farm's terms. Pure: from the API's JSON to values.

The states of a task are those of the Engine API 1.41; how each is mapped was measured on Engine 20.10.24.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from farm.base.errors import UsageError
from farm.engines.base import Job, Observation
from farm.platforms.facts import named

WAITING = ("new", "allocated", "pending")
STARTING = ("assigned", "accepted", "preparing", "ready", "starting")
MAX_ERR = 2000
PIN = "node.id == "

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Node:
    """A machine of the swarm. `labels` are those set with `docker node update --label-add farm.NAME=1`, less `farm.`.

    `memory` in bytes; `gpus` counts the generic resource `gpu`; `ready`: it is up and takes new tasks.
    """

    id: str
    name: str
    os: str
    machine: str
    cpus: float
    memory: int
    gpus: int
    labels: frozenset[str]
    up: bool
    ready: bool


@dataclass(frozen=True)
class Task:
    """The one task of a service."""

    state: str
    desired: str
    node: str | None
    error: str
    exit_code: int | None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        status = data["Status"]
        code = status.get("ContainerStatus", {}).get("ExitCode")
        return cls(
            state=status["State"],
            desired=data["DesiredState"],
            node=data.get("NodeID"),
            error=str(status.get("Err", ""))[:MAX_ERR],
            exit_code=int(code) if code is not None and status["State"] in ("complete", "failed") else None,
        )


def nodes_of(data: Iterable[Mapping[str, Any]]) -> list[Node]:
    """The answer of `GET /nodes`."""
    return [_node(node) for node in data]


def _node(data: Mapping[str, Any]) -> Node:
    about, spec = data["Description"], data["Spec"]
    resources = about.get("Resources", {})
    gpus = 0
    for generic in resources.get("GenericResources") or ():
        # A daemon names generic resources one by one (a list of UUIDs) or counts them: its node-generic-resources.
        named, counted = generic.get("NamedResourceSpec"), generic.get("DiscreteResourceSpec")
        if named and named["Kind"] == "gpu":
            gpus += 1
        if counted and counted["Kind"] == "gpu":
            gpus += int(counted["Value"])
    labels = {key.removeprefix("farm.") for key, value in (spec.get("Labels") or {}).items() if value == "1"}
    up = data["Status"]["State"] == "ready"
    return Node(
        id=data["ID"],
        name=about.get("Hostname", data["ID"]),
        os=about["Platform"]["OS"],
        machine=_machine(about["Platform"]["OS"], about["Platform"]["Architecture"]),
        cpus=resources.get("NanoCPUs", 0) / 1e9,
        memory=resources.get("MemoryBytes", 0),
        gpus=gpus,
        labels=frozenset(labels),
        up=up,
        ready=up and spec["Availability"] == "active",
    )


def _machine(system: str, spelling: str) -> str:
    platform = named(system)
    return platform.machine(spelling) if platform else spelling


def plain_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Gives labels back.

    Raises:
        UsageError: One could not be filtered by.
    """
    for key, value in labels.items():
        if not _LABEL.fullmatch(key) or not _LABEL.fullmatch(value):
            raise UsageError(f"not a label: {key!r}={value!r}")
    return dict(labels)


def constraints(job: Job) -> list[str]:
    """Where a job may run. Swarm knows `==` and `!=` alone, so a capability is a label that is 1.

    Raises:
        UsageError: A label or node that would not be one word of a constraint.
    """
    words = [*job.requires, *job.excluded, *([job.runner] if job.runner else [])]
    for word in words:
        if not _LABEL.fullmatch(word):
            raise UsageError(f"not a label of a runner: {word!r}")
    found = [f"node.platform.os == {job.platform}"]
    found += [f"node.labels.farm.{label} == 1" for label in job.requires]
    found += [f"node.id != {node}" for node in job.excluded]
    return found + ([f"{PIN}{job.runner}"] if job.runner else [])


def observation(task: Task | None, nodes: Iterable[Node], *, cancelled: bool, pinned: str | None = None) -> Observation:
    """The state of an attempt, from its task. A queued one always says why.

    Args:
        task: None: the manager has not made one yet.
        nodes: The machines now.
        cancelled: Whether its end was asked for.
        pinned: The one node that may take it.
    """
    known = {node.id: node for node in nodes}
    if task is None:
        return Observation("queued", why="the manager of the swarm has made no task yet")
    node = known.get(task.node or "")
    where = node.name if node else task.node or "no node"
    if task.state in WAITING and pinned and not (pinned in known and known[pinned].ready):
        return Observation("lost", why=f"node {pinned}, which was to take it, is not there any more")
    if task.state in WAITING:
        return Observation("queued", why=task.error or "the manager of the swarm is looking for a node")
    if task.state == "complete":
        return Observation("done", exit_code=0)
    # A failed task without an exit code never ran its command.
    if task.state == "failed" and not cancelled:
        if task.exit_code is None:
            return Observation("lost", why=f"{where}: {task.error}")
        return Observation("done", why=task.error, exit_code=task.exit_code)
    if task.state in ("rejected", "orphaned"):
        return Observation("lost", why=f"{where}: {task.state}: {task.error or 'the node is gone'}")
    if task.state in ("failed", "shutdown", "remove"):
        if cancelled:
            return Observation("cancelled", why="stopped on request")
        return Observation("lost", why=f"{where}: stopped from outside {task.error}".rstrip())
    if node is None or not node.up:  # it will not tell any more; should it end there after all, no one listens
        return Observation("lost", why=f"node {where} is down")
    if task.state in STARTING:
        return Observation("starting", why=f"{where}: {task.state} {task.error}".rstrip())
    return Observation("running", why=f"{where}: it is being stopped" if task.desired == "shutdown" else None)
