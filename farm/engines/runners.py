"""The machines of `ci/runners.yaml`: what their engines say of them, and which job each can take."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farm.base.errors import FarmError
from farm.engines.docker import connect
from farm.engines.github import GithubApi, Listed
from farm.plan.compat.rules import driver_knows_gpu, driver_runs_cuda
from farm.plan.compat.stack import Stack
from farm.plan.settings import Card, Runner
from farm.platforms.facts import named


def cannot_test(stack: Stack, runner: Runner) -> list[str]:
    """The reasons why a machine cannot smoke-test a wheel; empty: it can."""
    variant, found = stack.variant, []
    if "smoke" not in runner.jobs:
        found.append(f"takes {' and '.join(runner.jobs)} jobs, not smoke")
    if (runner.platform, runner.machine) != (stack.platform, variant.machine):
        found.append(
            f"is {runner.platform} on {runner.machine}, the wheel is for {stack.platform} on {variant.machine}"
        )
    if variant.cpu not in runner.cpu_levels:
        levels = ", ".join(runner.cpu_levels) or "none that are written down"
        found.append(f"its CPU levels are {levels}, the wheel is for {variant.cpu}")
    cards = [card for card in runner.gpus if card.sm in variant.architectures]
    if variant.sms and not cards:
        has = ", ".join(f"{card.name} ({card.sm})" for card in runner.gpus) or "none"
        found.append(f"its GPUs are {has}, the wheel is for {variant.gpu}")
    against = [_driver_against(stack, card) for card in cards]
    return found + (against[0] if against and all(against) else [])


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


SLACK = 0.95  # a machine reports a little less memory than it was sold with: the kernel keeps some


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
    """Ask the engine of every runner, GitHub once for all; where one does not answer, `why` holds its error."""
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
