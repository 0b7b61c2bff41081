"""PyTorch's own wheels for the CPU alone: the newest that a machine can run, and why no newer.

The page's `answers.js` has the same rules over `facts`.
"""

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from farm import catalog
from farm.catalog import number
from farm.plan.compat.answer import Answer, Question
from farm.plan.compat.official_wheels import PYTORCH_INDEX, faults_text


@dataclass(frozen=True)
class CpuWheel:
    """One release of PyTorch for the CPU of one platform; `glibc` None: it needs none."""

    torch: str
    platform: str
    pip: str
    pythons: tuple[str, ...]
    glibc: str | None


@dataclass(frozen=True)
class CpuAnswer(Answer):
    """The best wheel for the CPU of a machine; `newer`: why no newer one runs there."""

    wheel: CpuWheel | None
    newer: str | None = None


@cache
def wheels() -> tuple[CpuWheel, ...]:
    """Every wheel for the CPU, the newest release first."""
    all_wheels = []
    for place in catalog.official().cpu_wheels:
        system = place.platform.partition("-")[0]
        for torch, release in catalog.torch_releases().items():
            if place.last and number(torch) > number(place.last):
                continue
            line = f"pip install torch=={torch}"
            if place.index == "cpu":
                line += f" --index-url {PYTORCH_INDEX}/cpu"
            pythons = tuple(release.pythons.on(system))
            all_wheels.append(
                CpuWheel(torch, place.platform, line, pythons, _glibc(place.platform, torch))
            )
    all_wheels.sort(key=lambda wheel: number(wheel.torch), reverse=True)
    return tuple(all_wheels)


def _glibc(platform: str, torch: str) -> str | None:
    version = None
    for row in catalog.official().cpu_glibc:
        if platform in row.platforms and number(row.since) <= number(torch):
            version = row.glibc
    return version


@cache
def facts() -> dict[str, Any]:
    """Everything that `best` reads, as JSON."""
    return {
        "wheels": [asdict(wheel) for wheel in wheels()],
        "places": {
            place.platform: {"last": place.last, "source": place.source, "instead": place.instead}
            for place in catalog.official().cpu_wheels
        },
        "machines": {name: level.machine for name, level in catalog.cpu_levels().items()},
    }


def best(question: Question) -> CpuAnswer:
    """The newest wheel that the machine of a question runs without a card.

    Args:
        question: The platform, and what is known of the machine; its cards do not count.

    Returns:
        The newest wheel that runs; where none does, the newest one and what is against it.
    """
    candidates = []
    for wheel in wheels():
        if wheel.platform == question.platform and question.torch in (None, wheel.torch):
            candidates.append(wheel)
    end = _end(question.platform)
    if not candidates:
        return _no_wheel(question, end)
    # The newest first: what is against it is why the one that runs is no newer.
    newer = end
    for wheel in candidates:
        problem = _problem(wheel, question)
        if problem is None:
            return CpuAnswer(wheel, but=_caveats(wheel, question), newer=newer)
        if wheel is candidates[0]:
            newer = problem
    newest = candidates[0]
    return CpuAnswer(newest, problem=newer, but=_caveats(newest, question), newer=end)


def _no_wheel(question: Question, end: str | None) -> CpuAnswer:
    """The answer where the catalogue has no wheel for the platform, or not of the release."""
    if end:
        return CpuAnswer(None, problem=end)
    subject = "wheel for the CPU"
    if question.torch:
        subject = f"torch {question.torch}"
    return CpuAnswer(None, unknown=f"the catalogue has no {subject} for {question.platform}")


def _end(platform: str) -> str | None:
    """The end of the wheels for a platform; None: the newest release has one."""
    for place in catalog.official().cpu_wheels:
        if place.platform == platform and place.last:
            return f"torch {place.last} is the last for {platform} ({place.source})"
    return None


def _problem(wheel: CpuWheel, question: Question) -> str | None:
    """What keeps a wheel from running on a machine."""
    if question.python is not None and question.python not in wheel.pythons:
        pythons = ", ".join(wheel.pythons)
        return f"there is no wheel of torch {wheel.torch} for {question.python}: {pythons}"
    if question.glibc and wheel.glibc and number(question.glibc) < number(wheel.glibc):
        return f"torch {wheel.torch} needs glibc {wheel.glibc} or newer, not {question.glibc}"
    return None


def _caveats(wheel: CpuWheel, question: Question) -> tuple[str, ...]:
    """What to know of a wheel before it is used."""
    places = {place.platform: place for place in catalog.official().cpu_wheels}
    texts = [
        catalog.official().old_cpus.get(question.cpu or ""),
        faults_text(wheel.torch),
        places[wheel.platform].instead,
    ]
    return tuple(text for text in texts if text)
