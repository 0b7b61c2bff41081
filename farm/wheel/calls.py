"""Calls from one library of a wheel into another while it is imported.

A library that chooses its code at run time may need more than the level in a function that another one calls when it is
loaded. So where a library calls functions of such a one, by the names that the loader binds, they are followed there;
all of them, where it asks for functions by name at run time.
What cannot be followed, or needs more, leaves the caller's import open: a question to the CPU may stand before it.
"""

from collections.abc import Collection, Mapping

from farm.wheel.archive import Archive
from farm.wheel.elf import LONGEST_NAME, Symbols
from farm.wheel.library import Instructions, Library, magics, read_library
from farm.wheel.pe import DllSymbols


def follow_calls(
    archive: Archive,
    libraries: Collection[Library],
    symbols: Mapping[str, Symbols | DllSymbols],
    dispatching: Collection[str],
) -> tuple[Library, ...]:
    """The libraries, with one open end more for each whose import is undecided in another one.

    `dispatching`: the members that choose code at run time.
    """
    walk = _Calls(archive, libraries, symbols, dispatching)
    undecided = walk.undecided()
    return tuple(
        library._replace(instructions=each._replace(open_ends=each.open_ends + 1))
        if library.path in undecided and (each := library.instructions)
        else library
        for library in libraries
    )


_BY_NAME = frozenset({"dlsym", "dlvsym", "GetProcAddress"})


class _Calls:
    """`seen`: what runs on loading, by member; `asked`: the functions that other libraries call then."""

    def __init__(
        self,
        archive: Archive,
        libraries: Collection[Library],
        symbols: Mapping[str, Symbols | DllSymbols],
        dispatching: Collection[str],
    ) -> None:
        self.archive, self.symbols = archive, symbols
        self.seen = {library.path: library.instructions for library in libraries if library.instructions}
        self.gives = {path: _given(symbols[path]) for path in dispatching if path in symbols and path in self.seen}
        self.asked: dict[str, frozenset[str]] = {}
        self.callers: dict[str, set[str]] = {}

    def undecided(self) -> set[str]:
        """The members that call, themselves or through others, what cannot be decided."""
        waiting = list(self.seen)
        while waiting:
            waiting += self._enter(waiting.pop())
        found: set[str] = set()
        open_ = [path for path in self.asked if self.seen[path].open_ends]
        while open_:
            new = self.callers.get(open_.pop(), set()) - found
            found |= new
            open_ += new
        return found

    def _enter(self, path: str) -> list[str]:
        """Follow what a library calls in the others; those that are entered at functions that are new."""
        entered = []
        for other, given in self.gives.items():
            called = given & self._called(path, given) if other != path else frozenset()
            if not called:
                continue
            self.callers.setdefault(other, set()).add(path)
            new = called - self.asked.get(other, frozenset())
            self.asked[other] = self.asked.get(other, frozenset()) | new
            # One that is open already stays so: a large library is not read again and again.
            if new and not self.seen[other].open_ends:
                self.seen[other] = self._scan(other, self.asked[other])
                entered.append(other)
        return entered

    def _called(self, path: str, given: frozenset[str]) -> frozenset[str]:
        """The functions that a library calls on loading; all that it takes where that is not known."""
        calls = self.seen[path].calls
        if calls is None and path in self.symbols and (taken := _taken(self.symbols[path])) & (given | _BY_NAME):
            if self.seen[path].starts is None:  # its whole code keeps to the level, so it was not followed
                self.seen[path] = self._scan(path, ())
            calls = self.seen[path].calls or taken
        return given if calls and calls & _BY_NAME else calls or frozenset()

    def _scan(self, path: str, called: Collection[str]) -> Instructions:
        with self.archive.content(path, magics(path)) as (_, data):
            level = self.seen[path].level
            found = read_library(path, "", data or b"", level, on_load=True, device=False, called=called).instructions
        return found or self.seen[path]


def _given(symbols: Symbols | DllSymbols) -> frozenset[str]:
    names = symbols.defined if isinstance(symbols, Symbols) else symbols.exports
    return frozenset(name[:LONGEST_NAME] for name in names)


def _taken(symbols: Symbols | DllSymbols) -> frozenset[str]:
    names = symbols.undefined if isinstance(symbols, Symbols) else frozenset().union(*symbols.imports.values())
    return frozenset(name[:LONGEST_NAME] for name in names)
