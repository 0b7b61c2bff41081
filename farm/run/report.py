"""Progress of the pipeline, and its result."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

Outcome = Literal["done", "failed", "not run"]


class Watcher(Protocol):
    """Shows a run while it goes on; the command line has one for terminals and one for CI logs."""

    def step(self, name: str) -> None:
        """A step starts."""

    def ended(self, step: "Step") -> None:
        """A step has ended, with its time and its result."""

    def line(self, text: str) -> None:
        """A line of a step's output, made safe to print."""

    def note(self, text: str) -> None:
        """A line worth a place in a short log: what the farm does, and which command of a build starts."""

    def progress(self, done: int, total: int) -> None:
        """How far the step is, in steps of ninja, packages of apt, mebibytes of a wheel; 0 of 0: it is not known."""


class Silent:
    """Watches nothing."""

    def step(self, name: str) -> None: ...
    def ended(self, step: "Step") -> None: ...
    def line(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def progress(self, done: int, total: int) -> None: ...


@dataclass
class Step:
    """One step of a run: seconds taken and what came of it."""

    name: str
    seconds: float = 0.0
    outcome: Outcome = "done"
    result: str = ""


@dataclass
class Outcomes:
    """The steps of a run in order, and what a user needs to go on."""

    steps: list[Step] = field(default_factory=list)
    run: str = ""
    wheel: str | None = None
    pip_line: str | None = None

    @contextmanager
    def timed(self, name: str, watcher: Watcher) -> Iterator[Step]:
        """Times a step; its result is set by the body."""
        step = Step(name)
        self.steps.append(step)
        watcher.step(name)
        start = time.monotonic()
        try:
            yield step
        # Ctrl-C too: the table at the end says at which step it came.
        except BaseException:
            step.outcome = "failed"
            raise
        finally:
            step.seconds = time.monotonic() - start
            watcher.ended(step)

    def to_json(self) -> dict[str, object]:
        return {
            "run": self.run,
            "wheel": self.wheel,
            "pip": self.pip_line,
            "steps": [
                {"step": s.name, "seconds": round(s.seconds, 3), "outcome": s.outcome, "result": s.result}
                for s in self.steps
            ],
        }
