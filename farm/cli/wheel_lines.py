"""What several answers say of finished wheels, and of builds of one's own."""

from collections.abc import Iterable, Sequence
from typing import Any

from farm import catalog
from farm.cli import show
from farm.plan.compat.official_cpu import CpuWheel
from farm.plan.compat.official_wheels import Wheel
from farm.plan.recommend import FarmBuild
from farm.plan.variant import dotted_python


def wheel_facts(wheel: CpuWheel | Wheel) -> str:
    """The platform, C library and Pythons of a wheel."""
    text = wheel.platform
    if wheel.glibc:
        text += f", glibc {wheel.glibc} or newer"
    return f"{text}; Python {' '.join(map(dotted_python, wheel.pythons))}"


def underscored(sms: Iterable[int]) -> str:
    """`sm_35, sm_50`."""
    return ", ".join(f"sm_{sm}" for sm in sms)


def driver_range(floor: str, sms: Iterable[int]) -> str:
    """The drivers from a lowest one up to the last branch for the cards."""
    architectures = catalog.architectures().architectures
    last_branches = []
    for sm in sms:
        architecture = architectures.get(f"sm{sm}")
        if architecture and architecture.last_driver:
            last_branches.append(architecture.last_driver)
    text = f"{floor} or newer"
    if last_branches:
        text += f", up to branch {min(last_branches)}"
    return text


def build_document(build: FarmBuild) -> dict[str, Any]:
    """A build of one's own in a JSON document."""
    document = show.fields(build, "words", "torch", "cuda", "cost")
    return {**document, "proved": build.proved or None}


def print_builds(builds: Sequence[FarmBuild], no_build: str | None) -> None:
    """Print builds of one's own, each with the command that makes it."""
    if no_build:
        show.prose(f"no wheel of your own either: {no_build}")
    for build in builds:
        cost = build.cost
        for sm in build.lost:
            cost += f"; no code for sm_{sm}"
        show.prose(f"of your own: {build.release} ({build.standing}; {cost})")
        show.say(f"  farm submit {build.words}")
