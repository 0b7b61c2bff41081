"""The question of which finished wheel runs on a machine, and what every answer to it has."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Question:
    """The cards that one wheel must run on, and what is known of the machine; None: not asked."""

    sms: tuple[int, ...]
    platform: str
    driver: str | None = None
    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    glibc: str | None = None
    cpu: str | None = None


class OfferedWheel(Protocol):
    """What an answer says of a wheel, whoever made it and whatever it is for."""

    @property
    def torch(self) -> str: ...

    @property
    def pip(self) -> str: ...

    @property
    def pythons(self) -> tuple[str, ...]: ...

    @property
    def glibc(self) -> str | None: ...


@dataclass(frozen=True)
class Answer:
    """The best wheel for a question.

    Attributes:
        wheel: The wheel; None where there is none.
        problem: Why it does not run on the machine.
        but: What to know before it is used.
        unknown: Why the catalogue has no answer.
    """

    wheel: OfferedWheel | None
    problem: str | None = None
    but: tuple[str, ...] = ()
    unknown: str | None = None

    @property
    def runs(self) -> bool:
        return self.wheel is not None and self.problem is None

    @property
    def verdict(self) -> Literal["yes", "no", "not known"]:
        if self.unknown:
            return "not known"
        if self.runs:
            return "yes"
        return "no"

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON; every kind has the same keys, in this order."""
        document: dict[str, Any] = {
            "runs": self.runs,
            "verdict": self.verdict,
            "torch": None,
            "cuda": None,
            "pip": None,
            "pythons": [],
            "glibc": None,
            "drivers": None,
            "lost": [],
            "problem": self.problem,
            "update": None,
            "without": [],
            "but": list(self.but),
            "unknown": self.unknown,
        }
        if self.wheel is not None:
            document["torch"] = self.wheel.torch
            document["pip"] = self.wheel.pip
            document["pythons"] = list(self.wheel.pythons)
            document["glibc"] = self.wheel.glibc
        return document
