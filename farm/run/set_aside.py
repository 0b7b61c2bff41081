"""Machines that fail to prepare builds are set aside for a while, and then tried again.

Such a machine answers and looks free, but its disk is full, its DNS is broken, or it has no right
to pull an image: without this it would fail one queued run after another while the others build.
What is known of it is in the journal, so that every command sees the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from farm.run.journal import Journal

SEVERAL = 2  # failures in a row, after which a machine is set aside
FIRST_S = 60.0  # how long it is set aside first; each failure more doubles that
LONGEST_S = 1800.0
MAX_WHY = 300  # characters of the reason


@dataclass(frozen=True)
class SetAside:
    """A machine that gets no builds until a time, after some failures in a row."""

    runner: str
    until: datetime
    failures: int
    why: str

    @property
    def text(self) -> str:
        """The sentence for people."""
        return (
            f"set aside until {self.until:%H:%M:%S} UTC after {self.failures} builds in a row "
            f"that it could not prepare: {self.why}"
        )


def set_aside(journal: Journal, now: datetime) -> Mapping[str, SetAside]:
    """Return the machines that are set aside now, by the name in ci/runners.yaml."""
    machines = {}
    for runner, failures in journal.failed_preparations().items():
        if len(failures) < SEVERAL:
            continue
        newest = failures[0]
        pause_s = min(LONGEST_S, FIRST_S * 2 ** (len(failures) - SEVERAL))
        until = datetime.fromisoformat(newest.time) + timedelta(seconds=pause_s)
        if now < until:
            why = newest.why.splitlines()[0][:MAX_WHY] if newest.why else "no reason was given"
            machines[runner] = SetAside(runner, until, len(failures), why)
    return machines
