"""How far a build is: steps of ninja done, how fast, how long to go, from the events that a run leaves."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from farm.run.journal.model import Event, EventKind

EVERY_S = 10.0
"""A build notes its progress at most this often."""
WINDOW = 30
"""Events that the rate is taken from: five minutes."""


@dataclass(frozen=True)
class Progress:
    """`done` of `total` steps; steps a minute and minutes left, None while they are unknown."""

    done: int
    total: int
    rate: float | None
    minutes_left: float | None

    def __str__(self) -> str:
        text = f"{self.done}/{self.total} steps"
        if self.rate is None:
            return text
        left = "" if self.minutes_left is None else f", about {self.minutes_left:.0f} min left"
        return f"{text}, {self.rate:.1f} a minute{left}"


def progress(events: Iterable[Event]) -> Progress | None:
    """The progress of the newest attempt that noted any; a total that changes begins a new count."""
    noted = [event for event in events if event.kind == EventKind.PROGRESS]
    if not noted:
        return None
    last = noted[-1]
    total = int(last.data["total"])
    same = [e for e in noted if e.attempt_id == last.attempt_id and e.data["total"] == total][-WINDOW:]
    seconds = (datetime.fromisoformat(last.time) - datetime.fromisoformat(same[0].time)).total_seconds()
    steps = int(last.data["done"]) - int(same[0].data["done"])
    # No rate from two events of one moment, from a clock that was set back, or where nothing went on.
    rate = steps / seconds * 60 if seconds > 0 and steps > 0 else None
    left = (total - int(last.data["done"])) / rate if rate else None
    return Progress(int(last.data["done"]), total, rate, left)
