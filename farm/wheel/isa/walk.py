"""Code along its jumps and calls."""

import re
from collections.abc import Collection

from farm.wheel.elf import Functions
from farm.wheel.isa.findings import Finds, InitScan
from farm.wheel.isa.image import Image
from farm.wheel.isa.levels import damaged

CALL_DEPTH = 2  # levels of calls below an entry point in which a find counts
_MAX_INSTRUCTIONS = 20_000_000
_MAX_BELOW = 1_000_000  # instructions below these levels: a second or so
# Functions of Python and of C++ that may call those of an object's type, or that end in a handler
# of an exception.
_CALLS_BACK = re.compile(
    r"_?PyObject_(Call|Vectorcall|Fast|New|GC_New|Init|[GS]etAttr|[GS]etItem|"
    r"IsTrue|Repr|Str|Hash|RichCompare|GetIter)"
    r"|PyType_Generic(New|Alloc)|PyNumber_|PySequence_|PyIter_|PyEval_|PyRun_"
    r"|_ZN?K?S[oid]|_ZSt(ls|rs|16__ostream)|__cxa_(re)?throw|_Unwind_RaiseException|_ZSt\d+__throw"
    r"|_CxxThrowException|\?_X\w+@std@@"
)


Addresses = dict[int, None]
"""Addresses in the order in which they were met, each once."""


class CodeWalker:
    """A walk through code; what decodes it is a subclass.

    Attributes:
        image: The library.
        finds: What is beyond the level.
        loaded: If given, takes the addresses that code loads relative to itself, in order; nothing
            is checked against the level then.
        instructions: How many were decoded.
        open_ends: Jumps and calls that lead to what the code does not say.
        outside: Slots of other libraries' functions that are called.
        below: Functions that may run and do not count: what is called below the levels that do,
            and functions whose address is taken, which anybody may call.
        asks: The code asks what the CPU can do.
    """

    def __init__(
        self,
        image: Image,
        finds: Finds,
        loaded: list[int] | None = None,
    ) -> None:
        self.data = image.data
        self.image = image
        self.finds = finds
        self.loaded = loaded
        self.instructions = 0
        self.open_ends = 0
        self.outside: set[int] = set()
        self.below: Addresses = {}
        self.asks = False
        self.seen: dict[int, bytearray] = {}  # one bit a byte of code, by page
        self.after_branch = False  # a branch stands before what is decoded
        self.certain: set[int] = set()  # functions that are called before any branch

    def for_addresses(self, loaded: list[int]) -> "CodeWalker":
        """Make another walk through the same code, which takes addresses."""
        raise NotImplementedError

    def decode(self, address: int, waiting: list[int], calls: Addresses) -> int | None:
        """Decode a piece of code as far as it is new.

        Args:
            address: Where it begins.
            waiting: Gets the targets of its jumps.
            calls: Gets the functions that it calls.

        Returns:
            The address where it goes on, None at its end.
        """
        raise NotImplementedError

    def take_address(self, address: int | None) -> None:
        """Note a function whose address is taken: anybody may call it."""
        if address is None or not self.image.may_call_what_is_taken:
            return
        if self.image.offset(address) is not None:
            self.below[address] = None

    def count(self, instructions: int) -> None:
        """Count decoded instructions; refuse code without end."""
        self.instructions += instructions
        if self.instructions > _MAX_INSTRUCTIONS:
            raise damaged(f"loading it runs through more than {_MAX_INSTRUCTIONS} instructions")

    def descend(self, starts: list[int], depth: int = CALL_DEPTH) -> None:
        """Decode what runs from `starts`, with the levels of calls that count."""
        self.certain |= set(starts)
        for _ in range(depth + 1):
            starts = self.follow(starts)
        self.below |= dict.fromkeys(starts)

    def enter(self, entries: list[int], slots: list[int]) -> None:
        """Decode the functions of an extension module.

        Of several `PyInit_` the name of the file decides which one runs.
        """
        functions = [*entries, *slots]
        if len(entries) > 1:
            self.below |= dict.fromkeys(functions)
        else:
            self.descend(functions)

    def walk_deeper(self) -> None:
        """Follow what may run below, as long as that may decide whether all is within the level."""
        finds = self.finds
        limit = self.instructions + _MAX_BELOW
        finds.aside = True
        waiting = list(self.below)
        followed = set(waiting)
        while waiting and self.instructions < limit:
            if self.open_ends or finds.beside:
                break
            self.below.clear()
            called = self.follow([waiting.pop()])
            for address in (*called, *self.below):
                if address not in followed:
                    followed.add(address)
                    waiting.append(address)
        self.open_ends += finds.beside + bool(waiting)

    def result(self, functions: Functions, starts: Collection[int]) -> InitScan:
        """The result, once all is decoded; `functions` name the places."""
        result = self.finds.result(self.data, functions)
        calls = frozenset(map(self.image.name, self.outside))
        open_ends = self.open_ends
        if any(map(_CALLS_BACK.match, calls)):
            open_ends += 1
        return InitScan(
            result=result,
            starts=len(starts),
            instructions=self.instructions,
            open_ends=open_ends,
            calls=calls,
        )

    def addresses_in(self, starts: list[int]) -> list[int]:
        """The addresses that the code from `starts` loads relative to itself, in order."""
        loaded: list[int] = []
        self.for_addresses(loaded).descend(starts)
        return loaded

    def follow(self, starts: list[int]) -> list[int]:
        """Decode from `starts` along every jump; gives what was called."""
        calls: Addresses = {}
        for start in starts:
            self.after_branch = start not in self.certain
            waiting = [start]
            while waiting:
                address: int | None = waiting.pop()
                while address is not None:
                    address = self.decode(address, waiting, calls)
        return list(calls)
