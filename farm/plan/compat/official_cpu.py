"""PyTorch's own wheels for the CPU alone: the newest that a machine can run, and why not newer ones.

The page's `answers.js` has the same rules over `facts`.
"""

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

from farm import catalog
from farm.catalog import number
from farm.plan.compat.official import PYTORCH_INDEX, Question, faults_text


@dataclass(frozen=True)
class CpuWheel:
    """One release of PyTorch for the CPU of one platform; `glibc` None: it needs none."""

    torch: str
    platform: str
    pip: str
    pythons: tuple[str, ...]
    glibc: str | None


@dataclass(frozen=True)
class CpuAnswer:
    """The best wheel for the CPU of a machine.

    Attributes:
        wheel: The wheel; None where the catalogue has none for the platform or the release.
        problem: Why it does not run there.
        newer: Why no newer one runs there.
        but: What to know before it is used.
        unknown: Why there is no answer.
    """

    wheel: CpuWheel | None
    problem: str | None = None
    newer: str | None = None
    but: tuple[str, ...] = ()
    unknown: str | None = None

    @property
    def runs(self) -> bool:
        return self.wheel is not None and self.problem is None

    @property
    def verdict(self) -> Literal["yes", "no", "not known"]:
        if self.unknown:
            return "not known"
        return "yes" if self.runs else "no"

    def to_json(self) -> dict[str, Any]:
        """The answer with the fields that one about cards has."""
        wheel = self.wheel
        return {
            "runs": self.runs,
            "verdict": self.verdict,
            "torch": wheel.torch if wheel else None,
            "cuda": None,
            "pip": wheel.pip if wheel else None,
            "pythons": list(wheel.pythons) if wheel else [],
            "glibc": wheel.glibc if wheel else None,
            "drivers": None,
            "lost": [],
            "problem": self.problem,
            "update": None,
            "without": [],
            "but": list(self.but),
            "unknown": self.unknown,
        }


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
    candidates = [
        wheel
        for wheel in wheels()
        if wheel.platform == question.platform and question.torch in (None, wheel.torch)
    ]
    end = _end(question.platform)
    if not candidates and end:
        return CpuAnswer(None, problem=end)
    if not candidates:
        wheel_text = f"torch {question.torch}" if question.torch else "wheel for the CPU"
        return CpuAnswer(None, unknown=f"the catalogue has no {wheel_text} for {question.platform}")
    problems = [_problem(wheel, question) for wheel in candidates]
    running = problems.index(None) if None in problems else 0
    wheel = candidates[running]
    newer = problems[0] if running else end
    return CpuAnswer(wheel, problems[running], newer, _caveats(wheel, question))


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
