"""Code along its jumps and calls."""

import re
from collections.abc import Collection, Iterable
from itertools import pairwise

from farm.wheel.elf import (
    Functions,
)
from farm.wheel.isa.elf_image import ElfImage
from farm.wheel.isa.findings import Finds, InitScan
from farm.wheel.isa.image import Image
from farm.wheel.isa.levels import damaged

DEPTH = 2
_DEEPER = 1_000_000  # instructions below that: a second or so
_AT_EXIT = (
    "atexit",
    "on_exit",
    "at_quick_exit",
    "__cxa_atexit",
    "__cxa_thread_atexit",
)  # call what they get later
# Functions of Python and of C++ that may call those of an object's type; or that end in a handler
# of an exception.
_CALLS_BACK = re.compile(
    r"_?PyObject_(Call|Vectorcall|Fast|New|GC_New|Init|[GS]etAttr|[GS]etItem|IsTrue|Repr|Str|Hash|RichCompare|GetIter)"
    r"|PyType_Generic(New|Alloc)|PyNumber_|PySequence_|PyIter_|PyEval_|PyRun_"
    r"|_ZN?K?S[oid]|_ZSt(ls|rs|16__ostream)|__cxa_(re)?throw|_Unwind_RaiseException|_ZSt\d+__throw"
    r"|_CxxThrowException|\?_X\w+@std@@"
)
_MAX_INSTRUCTIONS = 20_000_000


class Paths:
    """Code along its jumps and calls; what decodes it is a subclass.

    `addresses`, if given, takes what code loads relative to itself, in order; nothing is judged
    then.
    """

    def __init__(self, image: Image, finds: Finds, addresses: list[int] | None = None) -> None:
        self.data = image.data
        self.image = image
        self.finds = finds
        self.addresses = addresses
        self.tables: ElfImage | None = None
        if isinstance(image, ElfImage) and addresses is None:
            self.tables = image
        self.instructions = 0
        self.open_ends = 0
        self.outside: set[int] = set()  # slots of other libraries' functions that are called
        self.below: dict[int, None] = {}  # what is called below the levels that count
        self.seen: dict[int, bytearray] = {}  # one bit a byte of code, by page
        self.functions: list[int] = []  # whose addresses were taken since the last call
        self.taken: set[int] = (
            set()
        )  # addresses that the function which is decoded takes, or those who call it
        self.first = True  # it is an initialiser
        self.through_pointer = False  # it calls what no address in the code names
        self.handed: dict[int, set[int]] = {}  # by function: addresses that its callers take
        self.asks = False  # what the CPU can do
        self.behind = False  # a branch stands before what is decoded
        self.certain: set[int] = set()  # functions that are called before any branch

    def for_addresses(self, found: list[int]) -> "Paths":
        """Another walk through the same code, which takes addresses."""
        raise NotImplementedError

    def decode(self, address: int, waiting: list[int], calls: dict[int, None]) -> int | None:
        """Decode a piece of code as far as it is new: the address where it goes on, None at the
        run's end.

        `waiting` and `calls` get what it leads to.
        """
        raise NotImplementedError

    def hand_on(self, slot: int | None) -> None:
        """A call of another library's function, or (None) of one here, which may call the functions
        that it gets.
        """
        if slot is None or self.image.name(slot) not in _AT_EXIT:
            self.below |= dict.fromkeys(self.functions)
        self.functions.clear()

    def count(self, instructions: int) -> None:
        self.instructions += instructions
        if self.instructions > _MAX_INSTRUCTIONS:
            raise damaged(f"loading it runs through more than {_MAX_INSTRUCTIONS} instructions")

    def descend(self, starts: list[int], depth: int = DEPTH) -> None:
        """Decode what runs from `starts`, with the levels of calls that count."""
        self.certain |= set(starts)
        for below in range(depth + 1):
            self.first = below == 0
            starts = self.follow(starts)
        self.below |= dict.fromkeys(starts)

    def enter(self, entries: list[int], slots: list[int]) -> None:
        """Decode the functions of a module: of several `PyInit_` the name of the file decides which
        one runs.
        """
        if len(entries) > 1:
            self.below |= dict.fromkeys([*entries, *slots])
        else:
            self.descend([*entries, *slots])

    def deepen(self, called: Iterable[int]) -> None:
        """Follow what is called below, and what others call, as long as that may decide what
        runs.
        """
        self.below |= dict.fromkeys(called)
        finds = self.finds
        limit = self.instructions + _DEEPER
        finds.aside = True
        waiting = list(self.below)
        while waiting and not self.open_ends and not finds.beside and self.instructions < limit:
            waiting += self.follow([waiting.pop()])
        self.open_ends += finds.beside + bool(waiting)

    def scan(self, functions: Functions, starts: Collection[int]) -> InitScan:
        """The result, once all is decoded."""
        result = self.finds.result(self.data, functions)
        calls = frozenset(map(self.image.name, self.outside))
        back = any(map(_CALLS_BACK.match, calls))
        return InitScan(result, len(starts), self.instructions, self.open_ends + back, calls)

    def addresses_in(self, starts: list[int]) -> list[int]:
        """Addresses that the code from `starts` loads relative to itself, in order; nothing is
        judged.
        """
        found: list[int] = []
        self.for_addresses(found).descend(starts)
        return found

    def follow(self, starts: list[int]) -> list[int]:
        """Decode from `starts` along every jump; gives what was called."""
        calls: dict[int, None] = {}
        for start in starts:
            self.taken = set(self.handed.pop(start, ()))
            self.through_pointer = False
            self.functions.clear()
            self.behind = start not in self.certain
            called: dict[int, None] = {}
            waiting = [start]
            while waiting:
                address: int | None = waiting.pop()
                while address is not None:
                    address = self.decode(address, waiting, called)
            if self.tables is not None and self.taken:
                if self.through_pointer:
                    called |= dict.fromkeys(self._through_pointers(self.tables))
                for each in called if self.first else ():
                    self.handed.setdefault(each, set()).update(self.taken)
            calls |= called
        return list(calls)

    def _through_pointers(self, tables: ElfImage) -> list[int]:
        """The functions in what was taken: pointers, and tables, each up to the next address, where
        a loop may end.
        """
        taken = sorted(self.taken)
        found = [
            value
            for address in taken
            if (value := tables.pointer(address)) and self.image.offset(value)
        ]
        reached = 0
        for address, end in pairwise([*taken, None]):
            if address is not None and address >= reached:
                table = tables.table(address, end)
                found += table
                if end is not None and 8 * len(table) == end - address:
                    reached = end + 8
        return found
