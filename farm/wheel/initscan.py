"""CPU features that a library's code needs when it is imported.

A library that chooses its code at run time holds instructions beyond its level, rightly, behind a question to the
CPU. What runs on import before any such question must not. A static initialiser that was compiled with `-mavx2`
because its file holds AVX2 kernels kills the import on an older CPU. So the code is followed from where the loader
and the interpreter enter it:

- DT_INIT and the functions in `.init_array`;
- the resolvers of indirect functions, whether a relocation names them (R_X86_64_IRELATIVE) or a symbol of type
  STT_GNU_IFUNC does, which the loader calls for whoever binds to it;
- an extension module's `PyInit_NAME`, and the functions in the slots of the module definitions that it names; of
  several, the name of the file decides which one is called, and what they need is left open.

All jumps are followed, also those of a `switch`, and direct calls (also through the PLT, where the library answers
itself). Of calls through pointers two kinds are: those of a pointer at a fixed place, by the value that the loader
gives it; and those of a function that takes the address of a table of pointers, or is called by an initialiser that
does. All functions in the table count as called. Tables of virtual functions are left out: their objects decide what
is called. A function whose address is taken before a call
is followed as well, since the one that is called may call it (pthread_once, qsort), but not before atexit. What else
pointers reach is not seen: such ends are counted (`InitScan.open_ends`) and leave what runs
undecided; emulation decides it (`farm.smoke.imports`). So are calls of what calls back by an object's own table
(`PyObject_Call`, streams of C++) or goes on elsewhere (exceptions: their handlers follow no jump).

A branch is followed whether or not it asks the CPU first, so a find is a place to look at. Only what is found within
two levels of calls counts as one; and, where that code asks the CPU (CPUID), only what no branch stands before. The
rest leaves open what runs, as does code that is too much to be followed.

Sources: System V gABI chapter 5, "Initialization and Termination Functions"; System V psABI for AMD64, 4.4, and
AAELF64, 5.7 (relocation types); the GNU gABI for STT_GNU_IFUNC; PEP 489 (multi-phase initialisation) and
`Include/moduleobject.h` of CPython for the layout of PyModuleDef.
"""

import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Protocol

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.elf import Elf, Section, function_symbols, section_ranges, symbol_name
from farm.wheel.isa import NO_SECTIONS, Finds, IsaResult, Sweep

if TYPE_CHECKING:
    import iced_x86

DEPTH = 2
_DEEPER = 1_000_000  # instructions below that: a second or so
_SWITCH = 1024  # cases, and
_SWITCH_BYTES = 64  # from the comparison to the jump
# Section types of the gABI; relocation types of the AMD64 psABI, section 4.4.
_SHT_RELA, _SHT_DYNSYM, _SHT_INIT_ARRAY = 4, 11, 14
# A pointer to a symbol (R_X86_64_64), two kinds of slots, a pointer of this library, and the resolver of a function.
_KINDS = {"x86_64": (1, 6, 7, 8, 37), "aarch64": (257, 1025, 1026, 1027, 1032)}
_RELOCATION = struct.Struct("<QQq")
_SYMBOL = struct.Struct("<IBBHQQ")
_WINDOW = 256  # bytes handed to the decoder at a time: most runs of code without a jump are shorter
_LONGEST = 15
_PAGE = 4096
_MAX_RELOCATIONS = 5_000_000
_MAX_SLOTS = 500_000
_MAX_TABLE = 1024  # pointers of one table
_SHT_RELR = 19
_STT_GNU_IFUNC = 10
_MAX_SYMBOLS = 2_000_000
ENTRY_NAMES = (b"PyInit_", b"PyInitU_")
"""How the functions begin that an interpreter calls on import; the second is for names beyond ASCII (PEP 489)."""
SLOTS_AT = (72, 88)
"""Where PyModuleDef has its `m_slots`: behind a PyObject of 16 bytes, and of 32 in free-threaded Pythons."""
_MAX_MODULE_SLOTS = 64
_AT_EXIT = ("atexit", "on_exit", "at_quick_exit", "__cxa_atexit", "__cxa_thread_atexit")  # call what they get later
# Functions of Python and of C++ that may call those of an object's type; or that end in a handler of an exception.
_CALLS_BACK = re.compile(
    r"_?PyObject_(Call|Vectorcall|Fast|New|GC_New|Init|[GS]etAttr|[GS]etItem|IsTrue|Repr|Str|Hash|RichCompare|GetIter)"
    r"|PyType_Generic(New|Alloc)|PyNumber_|PySequence_|PyIter_|PyEval_|PyRun_"
    r"|_ZN?K?S[oid]|_ZSt(ls|rs|16__ostream)|__cxa_(re)?throw|_Unwind_RaiseException|_ZSt\d+__throw"
    r"|_CxxThrowException|\?_X\w+@std@@"
)
_ASKS = ("getauxval", "__getauxval")
_DT_INIT = 12
_ALL_ONES = (1 << 64) - 1
_MAX_STARTS = 100_000
_MAX_INSTRUCTIONS = 20_000_000


@dataclass(frozen=True)
class InitScan:
    """Needs of the code that runs on loading.

    `starts` functions were entered, `instructions` decoded; `open_ends` calls were not followed. `calls`: the functions
    of other libraries that are called; not all of them where there are open ends.
    """

    result: IsaResult
    starts: int = 0
    instructions: int = 0
    open_ends: int = 0
    calls: frozenset[str] = frozenset()


def scan_starts(data: Buffer, elf: Elf, level: str, called: Collection[str] = ()) -> InitScan:
    """Find the instructions beyond `level` (as for `scan_isa`) that loading a library may execute.

    `called`: exported functions that other libraries call then; what these reach is beyond counts as an open end.
    """
    sweep = Sweep(level)
    if elf.machine != "x86_64":
        return InitScan(IsaResult(not_checked=f"machine code for {elf.machine} is not decoded"))
    return follow_starts(data, elf, sweep, lambda image: Walk(data, image, sweep, tables=image), called)


def follow_starts(
    data: Buffer, elf: Elf, finds: Finds, walk_of: "Callable[[LoadedImage], Paths]", called: Collection[str]
) -> InitScan:
    """Walk the code that loading a library may execute; `finds` gets what is beyond the level."""
    if not elf.sections:
        return InitScan(IsaResult(not_checked=NO_SECTIONS))
    image = LoadedImage(data, elf, called)
    starts = image.starts()
    walk = walk_of(image)
    walk.descend(starts)
    entries = [address for address in dict.fromkeys(image.entries) if image.offset(address) is not None]
    slots = module_slots(walk.addresses_in(entries), image)
    walk.enter(entries, slots)
    finds.settle(asked=walk.asks or any(image.name(slot) in _ASKS for slot in walk.outside))
    walk.below |= dict.fromkeys(image.called)
    walk.deepen(finds)
    return walk.scan(finds.result(data, function_symbols(data, elf)), {*starts, *entries, *slots})


def module_slots(addresses: Iterable[int], image: "ModuleImage") -> list[int]:
    """The functions in the slots of the module definitions (PyModuleDef, PEP 489) among `addresses`.

    The interpreter calls them on import. A definition that the code fills at run time names none in the file.
    """
    found: dict[int, None] = {}
    for address in addresses:
        for place in SLOTS_AT:
            slots = image.pointer(address + place)
            for index in range(_MAX_MODULE_SLOTS):
                if slots is None:
                    break
                identifier, value = image.word(slots + 16 * index), image.pointer(slots + 16 * index + 8)
                # Slots have small numbers, and a zero ends them; anything else is no table of slots.
                if not identifier or identifier > _MAX_MODULE_SLOTS:
                    break
                if value is not None and image.offset(value) is not None:
                    found[value] = None
    return list(found)


class LoadedImage:
    """Where code lies, where the loader enters it, and what the library's own PLT leads to."""

    def __init__(self, data: Buffer, elf: Elf, called: Collection[str] = ()) -> None:
        self.data = data
        self.kinds = _KINDS[elf.machine]
        self.sections = elf.sections
        self.code = [
            (section.address, section.address + end - start, start)
            for section, start, end in section_ranges(data, (part for part in elf.sections if part.is_code))
        ]
        self.arrays = [part for part in elf.sections if part.kind == _SHT_INIT_ARRAY]
        section_ranges(data, self.arrays)
        self.pointers: dict[int, int] = {}  # slot of `.init_array` -> what the loader writes there
        self.slots: dict[int, int] = {}  # slot of the GOT -> function of this library
        # Slots that lead into other libraries, or nowhere (__gmon_start__), and where in the file the name is.
        self.elsewhere: dict[int, int] = {}
        self.asked = frozenset(called)
        self.called: list[int] = []  # the functions of these names
        self.resolvers: set[int] = set()
        self.entries: list[int] = []  # functions that the interpreter calls: PyInit_NAME
        self.relocated = array("Q")  # addresses, in order, where the loader writes a pointer into this library
        self.values = array("Q")  # and the pointers
        self.packed = any(part.kind == _SHT_RELR for part in elf.sections)  # those are in the file as they are
        self.segments, self.dynamic = elf.segments, elf.dynamic
        for section, start, end in section_ranges(data, (part for part in elf.sections if part.kind == _SHT_RELA)):
            self._relocations(section, start, end)
        for section, start, end in section_ranges(data, (part for part in elf.sections if part.kind == _SHT_DYNSYM)):
            self._exports(section, start, end)
        # Linkers order relocations by kind and symbol, not by address alone; `pointer` searches by bisection.
        if any(left > right for left, right in pairwise(self.relocated)):
            rows = sorted(zip(self.relocated, self.values, strict=True))
            self.relocated = array("Q", (slot for slot, _ in rows))
            self.values = array("Q", (value for _, value in rows))

    def starts(self) -> list[int]:
        """Addresses that the loader calls, in its order, each once."""
        found = [value for tag, value in self.dynamic if tag == _DT_INIT]
        found += sorted(self.resolvers)
        for part in self.arrays:
            if part.size // 8 > _MAX_STARTS:
                raise _damaged(f"{part.size // 8} initialisers; more than {_MAX_STARTS} are refused")
            for index in range(part.size // 8):
                slot = part.address + 8 * index
                # Without a relocation (or with one of the packed kind, DT_RELR) the address is in the file.
                stored = int.from_bytes(self.data[part.offset + 8 * index : part.offset + 8 * index + 8], "little")
                found.append(self.pointers.get(slot, stored))
        return [address for address in dict.fromkeys(found) if self.offset(address) is not None]

    def offset(self, address: int) -> tuple[int, int] | None:
        """(file offset, end of its section in the file) of code; None for an address that is not code here."""
        for first, behind, start in self.code:
            if first <= address < behind:
                return start + address - first, start + behind - first
        return None

    def pointer(self, slot: int) -> int | None:
        """The pointer into this library that the loader writes to an address; None where it writes none."""
        index = bisect_left(self.relocated, slot)
        if index < len(self.relocated) and self.relocated[index] == slot:
            return self.values[index]
        # DT_RELR lists places alone; the pointer itself is in the file there.
        if not self.packed or slot % 8:
            return None
        for segment in self.segments:
            if not segment.is_code and segment.address <= slot <= segment.address + segment.size - 8:
                at = segment.offset + slot - segment.address
                return int.from_bytes(self.data[at : at + 8], "little") or None
        return None

    def table(self, address: int, end: int | None) -> list[int]:
        """The functions in the table of pointers (or of records with pointers) that begins at an address.

        `end`: where it ends, if that is known. None of a class's virtual functions: the pointer before them is that
        to the type's description, which is not code.
        """
        # Itanium C++ ABI: a virtual table has the offset to the top and the pointer to the type's description before
        # it.
        before = self.pointer(address - 8)
        if before is not None and self.offset(before) is None and self.pointer(address - 16) is None:
            return []
        found, gap = [], 0
        for slot in range(address, min(address + 8 * _MAX_TABLE, end or _ALL_ONES), 8):
            value = self.pointer(slot)
            gap = gap + 1 if value is None else 0
            # One slot without a pointer may be a null or a number inside a record; two end the table.
            if gap > 1:
                break
            if value is not None and self.offset(value) is not None:
                found.append(value)
        return found

    def _relocations(self, section: Section, start: int, end: int) -> None:
        count = (end - start) // _RELOCATION.size
        if count > _MAX_RELOCATIONS:
            raise _damaged(f"{count} relocations; more than {_MAX_RELOCATIONS} are refused")
        bounds = [(array.address, array.address + array.size) for array in self.arrays]
        symbols = self._symbols(section)
        absolute, glob_dat, jump_slot, relative, indirect = self.kinds
        view = memoryview(self.data)[start : start + count * _RELOCATION.size]
        try:
            for slot, info, addend in _RELOCATION.iter_unpack(view):
                kind = info & 0xFFFFFFFF
                # The addend is the address of a resolver, which the loader calls to learn the function's address.
                if kind == indirect:
                    self.resolvers.add(addend)
                elif kind in (glob_dat, jump_slot) and symbols is not None:
                    target, name = self._defined(symbols, info >> 32)
                    if target:
                        self.slots[slot] = target
                    else:
                        self.elsewhere[slot] = name
                elif kind in (relative, absolute):
                    base = self._defined(symbols, info >> 32)[0] if kind == absolute and symbols is not None else 0
                    if kind == absolute and not base:
                        continue
                    self.relocated.append(slot)
                    self.values.append(base + addend & _ALL_ONES)
                    if any(low <= slot < high for low, high in bounds):
                        self.pointers[slot] = base + addend
                if len(self.slots) + len(self.elsewhere) > _MAX_SLOTS or len(self.resolvers) > _MAX_STARTS:
                    raise _damaged(f"more than {_MAX_SLOTS} slots or {_MAX_STARTS} resolvers")
        finally:
            view.release()

    def _exports(self, section: Section, start: int, end: int) -> None:
        """Note the exported resolvers and the entry points of an extension module."""
        if (end - start) // _SYMBOL.size > _MAX_SYMBOLS:
            raise _damaged(f"more than {_MAX_SYMBOLS} exported symbols are refused")
        names = self.sections[section.link].offset if section.link < len(self.sections) else len(self.data)
        view = memoryview(self.data)[start : end - (end - start) % _SYMBOL.size]
        try:
            for name, info, _, place, address, _ in _SYMBOL.iter_unpack(view):
                if not place:
                    continue
                if info & 15 == _STT_GNU_IFUNC:
                    self.resolvers.add(address)
                elif bytes(self.data[names + name : names + name + 8]).startswith(ENTRY_NAMES):
                    self.entries.append(address)
                if self.asked and symbol_name(self.data, names + name) in self.asked:
                    self.called.append(address)
                if len(self.resolvers) > _MAX_STARTS or len(self.entries) > _MAX_STARTS:
                    raise _damaged(f"more than {_MAX_STARTS} resolvers or entry points")
        finally:
            view.release()

    def name(self, slot: int) -> str:
        """The interface of `Image`."""
        return symbol_name(self.data, self.elsewhere.get(slot, len(self.data)))

    def word(self, address: int) -> int | None:
        """The eight bytes at an address, as the file has them; None where the file has none."""
        for segment in self.segments:
            if segment.address <= address <= segment.address + segment.size - 8:
                at = segment.offset + address - segment.address
                return int.from_bytes(self.data[at : at + 8], "little")
        return None

    def _symbols(self, section: Section) -> Section | None:
        table = self.sections[section.link] if section.link < len(self.sections) else None
        return table if table is not None and table.kind == _SHT_DYNSYM else None

    def _defined(self, table: Section, index: int) -> tuple[int, int]:
        """The address of a symbol, 0 for one that another library defines, and where its name is."""
        at = table.offset + index * _SYMBOL.size
        if index * _SYMBOL.size + _SYMBOL.size > table.size or at + _SYMBOL.size > len(self.data):
            raise _damaged("a relocation names a symbol beyond the table")
        name, _, _, section, address, _ = _SYMBOL.unpack_from(self.data, at)
        names = self.sections[table.link].offset if table.link < len(self.sections) else len(self.data)
        return int(address) if section else 0, min(names + name, len(self.data))


class Image(Protocol):
    """A library as it is in memory: `slots` are pointers (by address) that lead to functions of its own."""

    @property
    def slots(self) -> Mapping[int, int]: ...
    @property
    def elsewhere(self) -> Collection[int]:
        """Slots of other libraries' functions."""
        ...

    def offset(self, address: int) -> tuple[int, int] | None:
        """(file offset, end of its section in the file) of code; None for an address that is not code here."""
        ...

    def name(self, slot: int) -> str:
        """The function of another library that a slot leads to."""
        ...

    def pointer(self, slot: int) -> int | None:
        """The pointer into this library that the loader writes to an address; None where there is none."""
        ...


class ModuleImage(Image, Protocol):
    """A library whose data can be read."""

    def word(self, address: int) -> int | None:
        """The eight bytes at an address; None where the file has none."""
        ...


class Tables(ModuleImage, Protocol):
    """Tables of pointers to functions of a library's own."""

    def table(self, address: int, end: int | None) -> list[int]:
        """The functions in the table of pointers that begins at an address."""
        ...


class Paths:
    """Code along its jumps and calls; what decodes it is a subclass.

    `addresses`, if given, takes what code loads relative to itself, in order; nothing is judged then.
    """

    def __init__(
        self, data: Buffer, image: Image, addresses: list[int] | None = None, tables: Tables | None = None
    ) -> None:
        self.data, self.image, self.addresses, self.tables = data, image, addresses, tables
        self.instructions = 0
        self.open_ends = 0
        self.outside: set[int] = set()  # slots of other libraries' functions that are called
        self.below: dict[int, None] = {}  # what is called below the levels that count
        self.seen: dict[int, bytearray] = {}  # one bit a byte of code, by page
        self.functions: list[int] = []  # whose addresses were taken since the last call
        self.taken: set[int] = set()  # addresses that the function which is decoded takes, or those who call it
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
        """Decode a piece of code as far as it is new: the address where it goes on, None at the run's end.

        `waiting` and `calls` get what it leads to.
        """
        raise NotImplementedError

    def hand_on(self, slot: int | None) -> None:
        """A call of another library's function, or (None) of one here, which may call the functions that it gets."""
        if slot is None or self.image.name(slot) not in _AT_EXIT:
            self.below |= dict.fromkeys(self.functions)
        self.functions.clear()

    def count(self, instructions: int) -> None:
        self.instructions += instructions
        if self.instructions > _MAX_INSTRUCTIONS:
            raise _damaged(f"loading it runs through more than {_MAX_INSTRUCTIONS} instructions")

    def descend(self, starts: list[int], depth: int = DEPTH) -> None:
        """Decode what runs from `starts`, with the levels of calls that count."""
        self.certain |= set(starts)
        for below in range(depth + 1):
            self.first = below == 0
            starts = self.follow(starts)
        self.below |= dict.fromkeys(starts)

    def enter(self, entries: list[int], slots: list[int]) -> None:
        """Decode the functions of a module: of several `PyInit_` the name of the file decides which one runs."""
        if len(entries) > 1:
            self.below |= dict.fromkeys([*entries, *slots])
        else:
            self.descend([*entries, *slots])

    def deepen(self, finds: Finds) -> None:
        """Follow what is called below, as long as that may decide what runs."""
        finds.aside, limit = True, self.instructions + _DEEPER
        waiting = list(self.below)
        while waiting and not self.open_ends and not finds.beside and self.instructions < limit:
            waiting += self.follow([waiting.pop()])
        self.open_ends += finds.beside + bool(waiting)

    def scan(self, result: IsaResult, starts: Collection[int]) -> InitScan:
        """What was found, once all is decoded."""
        calls = frozenset(map(self.image.name, self.outside))
        back = any(map(_CALLS_BACK.match, calls))
        return InitScan(result, len(starts), self.instructions, self.open_ends + back, calls)

    def addresses_in(self, starts: list[int]) -> list[int]:
        """Addresses that the code from `starts` loads relative to itself, in order; nothing is judged."""
        found: list[int] = []
        self.for_addresses(found).descend(starts)
        return found

    def follow(self, starts: list[int]) -> list[int]:
        """Decode from `starts` along every jump; gives what was called."""
        calls: dict[int, None] = {}
        for start in starts:
            self.taken, self.through_pointer = set(self.handed.pop(start, ())), False
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

    def _through_pointers(self, tables: Tables) -> list[int]:
        """The functions in what was taken: pointers, and tables, each up to the next address, where a loop may end."""
        taken = sorted(self.taken)
        found = [value for address in taken if (value := tables.pointer(address)) and self.image.offset(value)]
        reached = 0
        for address, end in pairwise([*taken, None]):
            if address is not None and address >= reached:
                table = tables.table(address, end)
                found += table
                reached = end + 8 if end is not None and 8 * len(table) == end - address else reached
        return found


class Walk(Paths):
    """Follows code of x86 and judges it."""

    def __init__(
        self,
        data: Buffer,
        image: Image,
        sweep: Sweep,
        addresses: list[int] | None = None,
        tables: Tables | None = None,
    ) -> None:
        import iced_x86  # noqa: PLC0415 (see farm.wheel.isa)

        super().__init__(data, image, addresses, tables)
        self.flow = iced_x86.FlowControl
        self.lea, self.test, self.cmp = iced_x86.Mnemonic.LEA, iced_x86.Mnemonic.TEST, iced_x86.Mnemonic.CMP
        self.questions = (iced_x86.Mnemonic.CPUID, iced_x86.Mnemonic.XGETBV)
        self.load, self.register = iced_x86.Code.MOV_R64_RM64, iced_x86.OpKind.REGISTER
        self.sweep = sweep
        self.dull: set[int] = set()  # codes of instructions that are fine, go on to the next and load no address
        self.compares = _compares(vars(iced_x86.Code))
        self.compared = self.table = (0, 0)  # address of the last comparison with a number, and of the last `lea`
        self.held = (0, 0, 0)  # address of the last load of a pointer from a fixed place, its register and that place

    def for_addresses(self, found: list[int]) -> "Walk":
        return Walk(self.data, self.image, Sweep(self.sweep.level), found)

    def _take(self, instruction: "iced_x86.Instruction") -> None:
        """Note an address that code takes (`lea`), or loads from a slot of the GOT; the place of a pointer it loads."""
        address = instruction.ip_rel_memory_address
        if instruction.mnemonic == self.lea:
            self.taken.add(address)
            if self.image.offset(address) is not None:
                self.functions.append(address)
            self.table = instruction.ip, address
        elif instruction.op0_kind == self.register:
            self.held = instruction.ip, instruction.op0_register, address
            found = self.image.slots.get(address)
            value = self.image.pointer(address) if found is None else found
            if value is not None and self.image.offset(value) is not None:
                self.functions.append(value)
            if found is None and address not in self.image.elsewhere:
                self.taken.add(address)
            elif found is not None and self.image.offset(found) is None:
                self.taken.add(found)

    def decode(self, address: int, waiting: list[int], calls: dict[int, None]) -> int | None:
        """The instructions of a window, as far as they are new; gives where it goes on, None at the run's end.

        A million instructions pass here: what is written out in the loop would take twice the time in functions.
        """
        place = self.image.offset(address)
        if place is None:
            return None
        offset, end = place
        page, at = divmod(address, _PAGE)
        bits = self.seen.setdefault(page, bytearray(_PAGE // 8))
        # Decoded before, by another path: what follows has been followed too.
        if bits[at >> 3] & 1 << (at & 7):
            return None
        window = min(offset + min(_WINDOW, _PAGE - at), end)
        # The last instruction of a window may reach beyond it, by at most the longest one less a byte.
        decoder = self.sweep.decoder(64, self.data[offset : min(window + _LONGEST, end)], ip=address)
        first, border = address - at, address + window - offset
        dull = self.dull
        count = 0
        following: int | None = None
        for instruction in decoder:
            ip = instruction.ip
            if ip >= border:
                following = ip
                break
            at = ip - first
            bit = 1 << (at & 7)
            if bits[at >> 3] & bit:
                break
            bits[at >> 3] |= bit
            count += 1
            if instruction.code not in dull and not self._goes_on(instruction, waiting, calls):
                break
        else:
            following = decoder.ip
        self.count(count)
        return following

    def _goes_on(self, instruction: "iced_x86.Instruction", waiting: list[int], calls: dict[int, None]) -> bool:
        """Judge an instruction and note where it leads; gives whether the one behind it may run too."""
        self.sweep.behind = self.behind
        self.sweep.see(instruction)
        code, flow = instruction.code, instruction.flow_control
        if flow == self.flow.NEXT:
            if self.addresses is not None and instruction.mnemonic == self.lea:
                self.addresses.append(instruction.ip_rel_memory_address)
            elif self.addresses is not None and code == self.load:
                if instruction.is_ip_rel_memory_operand and instruction.ip_rel_memory_address in self.image.slots:
                    self.addresses.append(self.image.slots[instruction.ip_rel_memory_address])
            elif self.tables is not None and (code == self.load or instruction.mnemonic == self.lea):
                if instruction.is_ip_rel_memory_operand:
                    self._take(instruction)
            elif code in self.compares:
                self.compared = instruction.ip, instruction.immediate(1)
            elif instruction.mnemonic in self.questions:
                self.asks = True
            elif code in self.sweep.harmless:
                self.dull.add(code)
            return code != self.sweep.invalid
        target = self._target(instruction)
        self.behind |= flow == self.flow.CONDITIONAL_BRANCH
        if self.functions and flow in (self.flow.CALL, self.flow.INDIRECT_CALL, self.flow.INDIRECT_BRANCH):
            self.hand_on(self._slot(instruction) if target is None else self._stub(target))
        if flow in (self.flow.CALL, self.flow.INDIRECT_CALL):
            if target is not None:
                calls[target] = None
                self.certain |= set() if self.behind else {target}
        elif target is not None:
            waiting.append(target)
        elif flow == self.flow.INDIRECT_BRANCH and not self._goes_elsewhere(self._slot(instruction)):
            cases = self._cases(instruction)
            waiting += cases
            self.open_ends += not cases
        return code != self.sweep.invalid and flow not in (
            self.flow.UNCONDITIONAL_BRANCH,
            self.flow.INDIRECT_BRANCH,
            self.flow.RETURN,
            self.flow.EXCEPTION,
        )

    def _stub(self, target: int) -> int | None:
        """The slot of another library's function that a stub of the PLT jumps through; None for any other code."""
        place = self.image.offset(target)
        if place is not None:
            for each in islice(self.sweep.decoder(64, self.data[place[0] : place[0] + 2 * _LONGEST], ip=target), 2):
                if each.flow_control == self.flow.INDIRECT_BRANCH and each.is_ip_rel_memory_operand:
                    slot = each.ip_rel_memory_address
                    return slot if slot in self.image.elsewhere else None
        return None

    def _cases(self, instruction: "iced_x86.Instruction") -> list[int]:
        """The targets of a `switch`: a comparison with the last case, then a table of distances from itself."""
        (compared, last), (loaded, table) = self.compared, self.table
        near = instruction.ip - _SWITCH_BYTES <= compared < loaded < instruction.ip
        if self.tables is None or not near or not 0 < last < _SWITCH or self.image.offset(table) is not None:
            return []
        found = []
        for place in range(table, table + 4 * (last + 1), 4):
            word = self.tables.word(place)
            target = table + ((word or 0) & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
            if word is None or self.image.offset(target) is None:
                return []
            found.append(target)
        return found

    def _slot(self, instruction: "iced_x86.Instruction") -> int | None:
        """The fixed place of the pointer that an indirect jump or call takes: its operand, or what was just loaded."""
        if instruction.is_ip_rel_memory_operand:
            return instruction.ip_rel_memory_address
        at, register, slot = self.held
        place = self.image.offset(at)
        if instruction.op0_kind != self.register or instruction.op0_register != register or place is None:
            return None
        distance = instruction.ip - at
        if not 0 < distance <= _SWITCH_BYTES:
            return None
        # Between them nothing else may go into the register, as in: load; test; je; call.
        decoder = self.sweep.decoder(64, self.data[place[0] : place[0] + distance], ip=at)
        tested = (self.test, self.cmp)
        calm = (self.flow.NEXT, self.flow.CONDITIONAL_BRANCH)
        for each in islice(decoder, 1, None):
            writes = each.flow_control == self.flow.NEXT and each.op_count and each.mnemonic not in tested
            if each.flow_control not in calm or (writes and each.op0_kind == self.register):
                return None
        return slot

    def _goes_elsewhere(self, slot: int | None) -> bool:
        """True if a call through a slot leads into another library; it is noted."""
        if slot is None or slot not in self.image.elsewhere:
            return False
        self.outside.add(slot)
        return True

    def _target(self, instruction: "iced_x86.Instruction") -> int | None:
        flow = instruction.flow_control
        if flow in (self.flow.INDIRECT_BRANCH, self.flow.INDIRECT_CALL):
            target, slot = None, self._slot(instruction)
            if slot is not None:
                target = self.image.slots.get(slot)
                if target is None:
                    target = self.image.pointer(slot)
            if target is None and flow == self.flow.INDIRECT_CALL:
                self.through_pointer = True
                # A slot of another library's function is no open end: that library is looked at by itself.
                self.open_ends += not self._goes_elsewhere(slot)
            return target
        direct = (self.flow.UNCONDITIONAL_BRANCH, self.flow.CONDITIONAL_BRANCH, self.flow.CALL)
        return instruction.near_branch_target if flow in direct else None


def _compares(codes: Mapping[str, object]) -> frozenset[object]:
    """The codes of comparisons of a register or memory with a number."""
    return frozenset(code for name, code in codes.items() if name.startswith("CMP_") and "_IMM" in name)


def _damaged(what: str) -> VerificationFailedError:
    return VerificationFailedError(f"damaged file: {what}")
