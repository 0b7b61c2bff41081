"""Instructions beyond a level: what a scan returns, and the counter that a scan fills."""

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass

from farm.wheel.archive import Buffer
from farm.wheel.elf import (
    Functions,
    symbol_name,
)

_PLACES = 3


@dataclass(frozen=True)
class Beyond:
    """One feature beyond the level: how many instructions need it, and the first of them
    (`symbol+0x12`).
    """

    feature: str
    count: int
    places: tuple[str, ...]


@dataclass(frozen=True)
class IsaResult:
    """CPU features of a library's code. `not_checked` gives the reason where nothing was decoded,
    else None.
    """

    beyond: tuple[Beyond, ...] = ()
    undecodable: int = 0
    not_checked: str | None = None


@dataclass(frozen=True)
class InitScan:
    """Needs of the code that runs on loading.

    `starts` functions were entered, `instructions` decoded; `open_ends` calls were not followed.
    `calls`: the functions of other libraries that are called; not all of them where there are open
    ends.
    """

    result: IsaResult
    starts: int = 0
    instructions: int = 0
    open_ends: int = 0
    calls: frozenset[str] = frozenset()


class Finds:
    """Instructions beyond a level: how often, and the first places."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.places: dict[str, list[int]] = {}
        self.undecodable = 0
        self.aside = False  # what is noted counts in `beside` alone
        self.beside = 0
        self.behind = False  # what is noted stands behind a branch
        self.kept: list[tuple[Collection[str], int]] = []  # what does, until it is settled

    def note(self, features: Collection[str], address: int) -> None:
        if self.aside:
            self.beside += bool(features)
            return
        if self.behind:
            self.kept.append((features, address))
            return
        for feature in features:
            self.counts[feature] = self.counts.get(feature, 0) + 1
            places = self.places.setdefault(feature, [])
            if len(places) < _PLACES:
                places.append(address)

    def settle(self, *, aside: bool) -> None:
        """Count what stands behind branches: aside, if the code asks the CPU which way to go."""
        waiting = self.kept
        self.kept = []
        self.behind = False
        self.aside = aside
        for features, address in waiting:
            self.note(features, address)
        self.aside = False

    def result(self, data: Buffer, functions: Functions) -> IsaResult:
        """The findings, with places named by their functions."""
        beyond = []
        for feature, count in sorted(self.counts.items()):
            places = []
            for address in self.places[feature]:
                place = place_of(data, functions, address)
                places.append(place)
            beyond.append(Beyond(feature, count, tuple(places)))
        return IsaResult(tuple(beyond), self.undecodable)


def place_of(data: Buffer, functions: Functions, address: int) -> str:
    """An address by the function that holds it, such as `symbol+0x12`."""
    index = bisect_right(functions.addresses, address) - 1
    if index < 0:
        return f"{address:#x}"
    name = symbol_name(data, functions.names[index])
    distance = address - functions.addresses[index]
    return f"{name}+{distance:#x}"
