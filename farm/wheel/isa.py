"""CPU features that the machine code of a library needs beyond a level such as `avx` or `armv8_2`.

All of the code (`scan_isa`) is decoded from end to end, restarting at every function symbol; of a
DLL, what its function table (`.pdata`) names. So what is there is found, not what runs: a library
that chooses its code at run time holds, rightly, instructions that its level lacks. Data between
the instructions (tables in hand-written assembly) are decoded too and may look like an instruction:
the result says where each find is, and `undecodable` counts the byte sequences that were no
instruction at all. Code that is unpacked or generated at run time is not seen.

What runs on import (`scan_starts`) must keep to the level before any question to the CPU: a static
initialiser that was compiled with `-mavx2` because its file holds AVX2 kernels kills the import on
an older CPU. So the code is followed from where the loader and the interpreter enter it:

- DT_INIT and the functions in `.init_array`;
- the resolvers of indirect functions, whether a relocation names them (R_X86_64_IRELATIVE) or a
  symbol of type STT_GNU_IFUNC does, which the loader calls for whoever binds to it;
- the TLS callbacks and the entry point of a DLL. For Microsoft's linker that is start-up code which
  calls `_initterm` with the two ends of a table of pointers: the static initialisers, which
  compilers put into `.CRT$XI*` and `.CRT$XC*`. The table has no name in the file, and is found by
  following the code: two addresses loaded one after the other, between which stand nothing but
  zeros and pointers to code. MinGW's table begins with -1 and ends with 0; its section `.CRT` holds
  further pointers;
- an extension module's `PyInit_NAME`, and the functions in the slots of the module definitions that
  it names; of several, the name of the file decides which one is called, and what they need is left
  open.

All jumps are followed, also those of a `switch`, and direct calls (also through the PLT, where the
library answers itself). Of calls through pointers two kinds are: those of a pointer at a fixed
place, by the value that the loader gives it; and those of a function that takes the address of a
table of pointers, or is called by an initialiser that does. All functions in the table count as
called. Tables of virtual functions are left out: their objects decide what is called. A function
whose address is taken before a call is followed as well, since the one that is called may call it
(pthread_once, qsort), but not before atexit. What else pointers reach is not seen: such ends are
counted (`InitScan.open_ends`) and leave what runs undecided; emulation decides it
(`farm.smoke.emulation`). So are calls of what calls back by an object's own table (`PyObject_Call`,
streams of C++) or goes on elsewhere (exceptions: their handlers follow no jump).

A branch is followed whether or not it asks the CPU first, so a find is a place to look at. Only
what is found within two levels of calls counts as one; and, where that code asks the CPU (CPUID),
only what no branch stands before. The rest leaves open what runs, as does code that is too much to
be followed.

Levels are data: `isa_levels.yaml`, `aarch64_levels.yaml`. Sources: System V gABI chapter 5,
"Initialization and Termination Functions"; System V psABI for AMD64, 4.4, and AAELF64, 5.7
(relocation types); the GNU gABI for STT_GNU_IFUNC; PEP 489 (multi-phase initialisation) and
`Include/moduleobject.h` of CPython for the layout of PyModuleDef; Microsoft, "PE Format" (export,
exception and TLS directories) and "CRT initialization"; Arm Architecture Reference Manual (DDI
0487), C4.1, "A64 instruction set encoding".
"""

import re
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from itertools import chain, groupby, islice, pairwise
from typing import TYPE_CHECKING, Any

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.elf import (
    Elf,
    Functions,
    Section,
    code_sections,
    function_symbols,
    section_ranges,
    symbol_name,
)
from farm.wheel.pe import Pe, imported
from farm.wheel.pe import damaged as damaged_dll
from farm.wheel.policy import Chosen, arm_table, level_names, table

if TYPE_CHECKING:
    import iced_x86

_BLOCK = 1 << 20
_LONGEST = 15  # bytes of an x86 instruction
_PLACES = 3
_CXX = re.compile(r"_Z(?!eroState$)")  # MKL has a function of C with that name
DEPTH = 2
_DEEPER = 1_000_000  # instructions below that: a second or so
_SWITCH = 1024  # cases, and
_SWITCH_BYTES = 64  # from the comparison to the jump
# Section types of the gABI; relocation types of the AMD64 psABI, section 4.4.
_SHT_RELA = 4
_SHT_DYNSYM = 11
_SHT_INIT_ARRAY = 14
# A pointer to a symbol (R_X86_64_64), two kinds of slots, a pointer of this library, and the
# resolver of a function.
_KINDS = {"x86_64": (1, 6, 7, 8, 37), "aarch64": (257, 1025, 1026, 1027, 1032)}
_RELOCATION = struct.Struct("<QQq")
_SYMBOL = struct.Struct("<IBBHQQ")
_WINDOW = 256  # bytes handed to the decoder at a time: most runs of code without a jump are shorter
_LONGEST = 15
_PAGE_BYTES = 4096
_MAX_RELOCATIONS = 5_000_000
_MAX_SLOTS = 500_000
_MAX_TABLE = 1024  # pointers of one table
_SHT_RELR = 19
_STT_GNU_IFUNC = 10
_MAX_SYMBOLS = 2_000_000
ENTRY_NAMES = (b"PyInit_", b"PyInitU_")
"""How the functions begin that an interpreter calls on import; the second is for names beyond ASCII
(PEP 489).
"""
SLOTS_AT = (72, 88)
"""Where PyModuleDef has its `m_slots`: behind a PyObject of 16 bytes, and of 32 in free-threaded
Pythons.
"""
_MAX_MODULE_SLOTS = 64
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
_ASKS = ("getauxval", "__getauxval")
_DT_INIT = 12
_ALL_ONES = (1 << 64) - 1
_MAX_STARTS = 100_000
_MAX_INSTRUCTIONS = 20_000_000
# Of DLLs: data directories, and bounds.
_EXPORTS = 0
_FUNCTIONS = 3
_TLS = 9
_FUNCTION = struct.Struct("<III")
_TO_INITTERM = 6  # levels of calls from the entry point to it
_MAX_EXPORTS = 500_000
_MAX_FUNCTIONS = 2_000_000
_MAX_INITIALISERS = 100_000
_MAX_CALLBACKS = 1000
# Of 64-bit Arm: bytes of an instruction, and so on.
_WORD = 4
_OPERANDS = 0x3FF  # Rn and Rd, on which no extension depends
_ARM_BLOCK = 1 << 22
_PAGE_WORDS = 1024


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


def scan_isa(data: Buffer, file: Elf | Pe, level: str, chosen: Chosen | None = None) -> IsaResult:
    """Find the instructions of a library that need more than `level`.

    The functions of `chosen` are called behind a choice at run time and left out: what follows
    their symbols, up to the next one. A file without symbols leaves nothing out.
    """
    if isinstance(file, Pe):
        return scan_dll(data, file, level, on_load=False).result
    if reason := _not_decoded(file, level):
        return IsaResult(not_checked=reason)
    functions = function_symbols(data, file)
    left_out = frozenset(_left_out(data, functions, chosen) if chosen else ())
    sweep = _sweep_arm if level in arm_table() else _sweep
    return sweep(data, file, level, functions, left_out).result(data, functions)


def scan_starts(data: Buffer, file: Elf | Pe, level: str, called: Collection[str] = ()) -> InitScan:
    """Find the instructions beyond `level` that loading a library may execute.

    `called`: exported functions that other libraries call then; what these reach is beyond counts
    as an open end.
    """
    if isinstance(file, Pe):
        return scan_dll(data, file, level, on_load=True, called=called)
    if reason := _not_decoded(file, level):
        return InitScan(IsaResult(not_checked=reason))
    image = LoadedImage(data, file, called)
    walk: Paths = (
        ArmWalk(image, _Words(level)) if level in arm_table() else Walk(image, Sweep(level))
    )
    starts = image.starts()
    walk.descend(starts)
    entries = [
        address for address in dict.fromkeys(image.entries) if image.offset(address) is not None
    ]
    slots = module_slots(walk.addresses_in(entries), image)
    walk.enter(entries, slots)
    walk.finds.settle(aside=walk.asks or any(image.name(slot) in _ASKS for slot in walk.outside))
    walk.deepen(image.called)
    return walk.scan(function_symbols(data, file), {*starts, *entries, *slots})


def scan_dll(
    data: Buffer, pe: Pe, level: str, *, on_load: bool, called: Collection[str] = ()
) -> InitScan:
    """Both of a DLL: with `on_load` only what runs when it is loaded."""
    if pe.machine != "amd64" or level in arm_table():
        return InitScan(IsaResult(not_checked=f"machine code for {pe.machine} is not decoded"))
    image = DllImage(data, pe)
    sweep = Sweep(level)
    starts = image.starts(level)
    entries = image.entries()
    walk = Walk(image, sweep)
    slots = module_slots(walk.addresses_in(entries), image)
    if not on_load:
        for low, high in image.functions():
            sweep.piece(data, low, high, image.address_of(low))
    # Functions that use no stack are not in the function table: of those, only what runs on loading
    # is seen.
    if on_load or not sweep.counts:
        walk.descend(starts)
        # The runtime's start-up code asks the CPU in every DLL: for itself.
        sweep.settle(aside=False)
        walk.asks = False
        walk.enter(entries, slots)
        sweep.settle(aside=walk.asks)
        walk.deepen(image.named(lambda name: symbol_name(data, name) in called) if called else ())
    return walk.scan(image.exports(), {*starts, *entries, *slots})


def _not_decoded(elf: Elf, level: str) -> str | None:
    """Why no machine code can be held to the level; None where it can."""
    known = (*arm_table(), *level_names())
    if level not in known:
        raise UsageError(
            f"CPU level {level!r} cannot be checked", hint=f"levels that can: {', '.join(known)}"
        )
    if elf.machine != ("aarch64" if level in arm_table() else "x86_64"):
        return f"machine code for {elf.machine} is not decoded" + (
            f" by {level}" if level in arm_table() else ""
        )
    if elf.sections:
        return None
    return "it has no section table to find its code by"


def _sweep(
    data: Buffer, elf: Elf, level: str, functions: Functions, left_out: frozenset[int]
) -> "Finds":
    sweep = Sweep(level)
    addresses = functions.addresses
    for section, start, end in code_sections(data, elf):
        first = bisect_right(addresses, section.address)
        last = bisect_right(addresses, section.address + section.size - 1)
        # Decoding starts again at each function, so that data between two of them spoil at most the
        # rest of one.
        within = (addresses[index] for index in range(first, last))
        for low, high in pairwise(
            chain([section.address], within, [section.address + end - start])
        ):
            if low not in left_out:
                sweep.piece(
                    data, start + low - section.address, start + high - section.address, low
                )
    return sweep


def _left_out(data: Buffer, functions: Functions, chosen: Chosen) -> Iterator[int]:
    """The addresses of the chosen functions."""
    is_chosen = _matcher(chosen.functions)
    is_archive = _matcher(chosen.archives)
    named = zip(
        functions.addresses, (symbol_name(data, name) for name in functions.names), strict=True
    )
    for is_cxx, found in groupby(named, key=lambda pair: bool(_CXX.match(pair[1]))):
        stretch = list(found)
        whole = not is_cxx and any(is_archive(name) for _, name in stretch)
        yield from (address for address, name in stretch if whole or is_chosen(name))


def _matcher(patterns: Sequence[str]) -> Callable[[str], object]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match


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
        self.behind, kept, self.kept = False, self.kept, []
        self.aside = aside
        for features, address in kept:
            self.note(features, address)
        self.aside = False

    def result(self, data: Buffer, functions: Functions) -> IsaResult:
        """The findings, with places named by their functions."""
        beyond = []
        for feature in sorted(self.counts):
            places = tuple(place_of(data, functions, address) for address in self.places[feature])
            beyond.append(Beyond(feature, self.counts[feature], places))
        return IsaResult(tuple(beyond), self.undecodable)


class Sweep(Finds):
    """Judges instructions of x86 against a level, and remembers what is beyond it."""

    def __init__(self, level: str) -> None:
        import iced_x86  # noqa: PLC0415 (half of this program's start-up time, and few commands need it)

        super().__init__()
        self.decoder = iced_x86.Decoder
        self.invalid = iced_x86.Code.INVALID
        self.mnemonics = _names(iced_x86.Mnemonic)
        self.features = _names(iced_x86.CpuidFeature)
        self.level = level
        known = table()
        self.allowed = {*known["harmless"], *_allowed(level, known["levels"])}
        self.allowed_instructions = frozenset(known["harmless_instructions"])
        self.cut = iced_x86.DecoderError.NO_MORE_BYTES
        self.harmless: set[int] = set()
        self.verdicts: dict[int, tuple[str, ...]] = {}

    def piece(self, data: Buffer, start: int, end: int, address: int) -> None:
        """Decode the bytes from `start` to `end`, which the program sees at `address`."""
        harmless = self.harmless
        see = self.see
        while start < end:
            stop = min(start + _BLOCK + _LONGEST, end)
            decoder = self.decoder(64, data[start:stop], ip=address)
            for instruction in decoder:
                # Asked once for each kind of instruction: a library has millions of instructions of
                # some thousand kinds.
                if instruction.code not in harmless:
                    see(instruction)
            done = stop - start
            # Blocks bound the memory; the few bytes beyond keep instructions whole that cross their
            # border.
            if stop < end and decoder.last_error == self.cut:
                self.undecodable -= (
                    1  # an instruction across the border: the next block begins with it
                )
                done = instruction.ip - address
            start += done
            address += done

    def see(self, instruction: "iced_x86.Instruction") -> None:
        """Judge one decoded instruction."""
        code = instruction.code
        verdict = self.verdicts.get(code)
        if verdict is None:
            verdict = self._judge(instruction)
        if verdict:
            self.note(verdict, instruction.ip)
        elif code == self.invalid:
            self.undecodable += 1

    def _judge(self, instruction: "iced_x86.Instruction") -> tuple[str, ...]:
        if (
            instruction.code == self.invalid
            or self.mnemonics[instruction.mnemonic] in self.allowed_instructions
        ):
            verdict: tuple[str, ...] = ()
        else:
            names = {self.features[number] for number in instruction.cpuid_features()}
            verdict = tuple(sorted(names - self.allowed))
        self.verdicts[instruction.code] = verdict
        if not verdict and instruction.code != self.invalid:
            self.harmless.add(instruction.code)
        return verdict


def _names(enumeration: object) -> dict[int, str]:
    return {
        value: name
        for name, value in vars(enumeration).items()
        if name.isupper() and isinstance(value, int)
    }


def place_of(data: Buffer, functions: Functions, address: int) -> str:
    """An address by the function that holds it, such as `symbol+0x12`."""
    index = bisect_right(functions.addresses, address) - 1
    if index < 0:
        return f"{address:#x}"
    return f"{symbol_name(data, functions.names[index])}+{address - functions.addresses[index]:#x}"


def _sweep_arm(
    data: Buffer, elf: Elf, level: str, functions: Functions, left_out: frozenset[int]
) -> Finds:
    """Every instruction has four bytes, so the code is read word by word."""
    words = _Words(level)
    finds = Finds()
    starts = functions.addresses
    for section, start, end in code_sections(data, elf):
        for offset in range(start, end - end % _WORD, _ARM_BLOCK):
            block = array(
                "I", bytes(data[offset : min(offset + _ARM_BLOCK, end - (end - start) % _WORD)])
            )
            if sys.byteorder == "big":
                block.byteswap()
            verdicts = words.judge(set(block))
            for index, word in enumerate(block if verdicts else ()):
                if word not in verdicts:
                    continue
                address = section.address + offset - start + _WORD * index
                function = bisect_right(starts, address) - 1
                if function < 0 or starts[function] not in left_out:
                    finds.undecodable += not verdicts[word]
                    finds.note(verdicts[word], address)
    return finds


def _allowed(level: str | None, levels: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The features of a level and of those below it."""
    while level:
        yield from levels[level]["features"] or ()
        level = levels[level]["extends"]


def module_slots(addresses: Iterable[int], image: "Image") -> list[int]:
    """The functions in the slots of the module definitions (PyModuleDef, PEP 489) among
    `addresses`.

    The interpreter calls them on import. A definition that the code fills at run time names none in
    the file.
    """
    found: dict[int, None] = {}
    for address in addresses:
        for place in SLOTS_AT:
            slots = image.pointer(address + place)
            for index in range(_MAX_MODULE_SLOTS):
                if slots is None:
                    break
                identifier = image.word(slots + 16 * index)
                value = image.pointer(slots + 16 * index + 8)
                # Slots have small numbers, and a zero ends them; anything else is no table of
                # slots.
                if not identifier or identifier > _MAX_MODULE_SLOTS:
                    break
                if value is not None and image.offset(value) is not None:
                    found[value] = None
    return list(found)


class Image:
    """A library as it is in memory.

    Attributes:
        code: (first address, address behind, file offset) of what is code.
        slots: Pointers (by address) that lead to functions of its own.
        elsewhere: Slots of other libraries' functions, or of nothing (__gmon_start__).
    """

    def __init__(self, data: Buffer, code: list[tuple[int, int, int]]) -> None:
        self.data = data
        self.code = code
        self.slots: dict[int, int] = {}
        self.elsewhere: Collection[int] = ()

    def offset(self, address: int) -> tuple[int, int] | None:
        """(file offset, end of its section in the file) of code; None for an address that is not
        code here.
        """
        for first, behind, start in self.code:
            if first <= address < behind:
                return start + address - first, start + behind - first
        return None

    def name(self, slot: int) -> str:
        """The function of another library that a slot leads to."""
        raise NotImplementedError

    def pointer(self, slot: int) -> int | None:
        """The pointer into this library that the loader writes to an address; None where there is
        none.
        """
        raise NotImplementedError

    def word(self, address: int) -> int | None:
        """The eight bytes at an address, as the file has them; None where the file has none."""
        raise NotImplementedError


class LoadedImage(Image):
    """An ELF file: where the loader enters it, and what its own PLT leads to."""

    def __init__(self, data: Buffer, elf: Elf, called: Collection[str] = ()) -> None:
        code = section_ranges(data, (part for part in elf.sections if part.is_code))
        super().__init__(
            data, [(part.address, part.address + end - start, start) for part, start, end in code]
        )
        self.kinds = _KINDS[elf.machine]
        self.sections = elf.sections
        self.arrays = [part for part in elf.sections if part.kind == _SHT_INIT_ARRAY]
        section_ranges(data, self.arrays)
        self.pointers: dict[int, int] = {}  # slot of `.init_array` -> what the loader writes there
        self.elsewhere: dict[int, int] = {}  # and where in the file the name is
        self.callees = frozenset(called)
        self.called: list[int] = []  # the functions of these names
        self.resolvers: set[int] = set()
        self.entries: list[int] = []  # functions that the interpreter calls: PyInit_NAME
        self.relocated = array(
            "Q"
        )  # addresses, in order, where the loader writes a pointer into this library
        self.values = array("Q")  # and the pointers
        self.packed = any(
            part.kind == _SHT_RELR for part in elf.sections
        )  # those are in the file as they are
        self.segments = elf.segments
        self.dynamic = elf.dynamic
        for section, start, end in section_ranges(
            data, (part for part in elf.sections if part.kind == _SHT_RELA)
        ):
            self._relocations(section, start, end)
        for section, start, end in section_ranges(
            data, (part for part in elf.sections if part.kind == _SHT_DYNSYM)
        ):
            self._exports(section, start, end)
        # Linkers order relocations by kind and symbol, not by address alone; `pointer` searches by
        # bisection.
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
                raise _damaged(
                    f"{part.size // 8} initialisers; more than {_MAX_STARTS} are refused"
                )
            for index in range(part.size // 8):
                slot = part.address + 8 * index
                # Without a relocation (or with one of the packed kind, DT_RELR) the address is in
                # the file.
                stored = int.from_bytes(
                    self.data[part.offset + 8 * index : part.offset + 8 * index + 8], "little"
                )
                found.append(self.pointers.get(slot, stored))
        return [address for address in dict.fromkeys(found) if self.offset(address) is not None]

    def pointer(self, slot: int) -> int | None:
        index = bisect_left(self.relocated, slot)
        if index < len(self.relocated) and self.relocated[index] == slot:
            return self.values[index]
        # DT_RELR lists places alone; the pointer itself is in the file there.
        if not self.packed or slot % 8:
            return None
        for segment in self.segments:
            if (
                not segment.is_code
                and segment.address <= slot <= segment.address + segment.size - 8
            ):
                at = segment.offset + slot - segment.address
                return int.from_bytes(self.data[at : at + 8], "little") or None
        return None

    def table(self, address: int, end: int | None) -> list[int]:
        """The functions in the table of pointers (or of records with pointers) that begins at an
        address.

        `end`: where it ends, if that is known. None of a class's virtual functions: the pointer
        before them is that to the type's description, which is not code.
        """
        # Itanium C++ ABI: a virtual table has the offset to the top and the pointer to the type's
        # description before it.
        before = self.pointer(address - 8)
        if (
            before is not None
            and self.offset(before) is None
            and self.pointer(address - 16) is None
        ):
            return []
        found = []
        gap = 0
        for slot in range(address, min(address + 8 * _MAX_TABLE, end or _ALL_ONES), 8):
            value = self.pointer(slot)
            gap = gap + 1 if value is None else 0
            # One slot without a pointer may be a null or a number inside a record; two end the
            # table.
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
                # The addend is the address of a resolver, which the loader calls to learn the
                # function's address.
                if kind == indirect:
                    self.resolvers.add(addend)
                elif kind in (glob_dat, jump_slot) and symbols is not None:
                    target, name = self._defined(symbols, info >> 32)
                    if target:
                        self.slots[slot] = target
                    else:
                        self.elsewhere[slot] = name
                elif kind in (relative, absolute):
                    if kind == absolute and symbols is not None:
                        base = self._defined(symbols, info >> 32)[0]
                    else:
                        base = 0
                    if kind == absolute and not base:
                        continue
                    self.relocated.append(slot)
                    self.values.append(base + addend & _ALL_ONES)
                    if any(low <= slot < high for low, high in bounds):
                        self.pointers[slot] = base + addend
                if (
                    len(self.slots) + len(self.elsewhere) > _MAX_SLOTS
                    or len(self.resolvers) > _MAX_STARTS
                ):
                    raise _damaged(f"more than {_MAX_SLOTS} slots or {_MAX_STARTS} resolvers")
        finally:
            view.release()

    def _exports(self, section: Section, start: int, end: int) -> None:
        """Note the exported resolvers and the entry points of an extension module."""
        if (end - start) // _SYMBOL.size > _MAX_SYMBOLS:
            raise _damaged(f"more than {_MAX_SYMBOLS} exported symbols are refused")
        if section.link < len(self.sections):
            names = self.sections[section.link].offset
        else:
            names = len(self.data)
        view = memoryview(self.data)[start : end - (end - start) % _SYMBOL.size]
        try:
            for name, info, _, place, address, _ in _SYMBOL.iter_unpack(view):
                if not place:
                    continue
                if info & 15 == _STT_GNU_IFUNC:
                    self.resolvers.add(address)
                elif bytes(self.data[names + name : names + name + 8]).startswith(ENTRY_NAMES):
                    self.entries.append(address)
                if self.callees and symbol_name(self.data, names + name) in self.callees:
                    self.called.append(address)
                if len(self.resolvers) > _MAX_STARTS or len(self.entries) > _MAX_STARTS:
                    raise _damaged(f"more than {_MAX_STARTS} resolvers or entry points")
        finally:
            view.release()

    def name(self, slot: int) -> str:
        return symbol_name(self.data, self.elsewhere.get(slot, len(self.data)))

    def word(self, address: int) -> int | None:
        for segment in self.segments:
            if segment.address <= address <= segment.address + segment.size - 8:
                at = segment.offset + address - segment.address
                return int.from_bytes(self.data[at : at + 8], "little")
        return None

    def _symbols(self, section: Section) -> Section | None:
        if section.link < len(self.sections):
            table = self.sections[section.link]
        else:
            table = None
        return table if table is not None and table.kind == _SHT_DYNSYM else None

    def _defined(self, table: Section, index: int) -> tuple[int, int]:
        """The address of a symbol, 0 for one that another library defines, and where its name
        is.
        """
        at = table.offset + index * _SYMBOL.size
        if index * _SYMBOL.size + _SYMBOL.size > table.size or at + _SYMBOL.size > len(self.data):
            raise _damaged("a relocation names a symbol beyond the table")
        name, _, _, section, address, _ = _SYMBOL.unpack_from(self.data, at)
        if table.link < len(self.sections):
            names = self.sections[table.link].offset
        else:
            names = len(self.data)
        return int(address) if section else 0, min(names + name, len(self.data))


class DllImage(Image):
    """A DLL where it would like to be in memory."""

    def __init__(self, data: Buffer, pe: Pe) -> None:
        self.pe = pe
        self.base = pe.image_base
        code = [
            (
                self.base + part.address,
                self.base + part.address + part.end - part.offset,
                part.offset,
            )
            for part in pe.sections
            if part.is_code and part.end > part.offset
        ]
        super().__init__(data, code)
        self.elsewhere: dict[int, str] = {
            self.base + slot: name for slot, name in imported(data, pe)
        }

    def address_of(self, offset: int) -> int:
        """The address of a file offset in a code section."""
        return next(
            first + offset - start
            for first, end, start in self.code
            if 0 <= offset - start < end - first
        )

    def starts(self, level: str) -> list[int]:
        """Addresses that run on loading, each once."""
        entries = [*self._callbacks(), *([self.base + self.pe.entry] if self.pe.entry else [])]
        loaded: list[int] = []
        # The CRT calls its tables of initialisers through _initterm(first, last): what is sought
        # are the two addresses.
        Walk(self, Sweep(level), loaded).descend(entries, _TO_INITTERM)
        found = dict.fromkeys(entries)
        for part in self.pe.sections:
            # MinGW keeps this section, all of it pointers; Microsoft's linker merges it into
            # `.rdata`.
            if part.name == ".CRT":
                found |= dict.fromkeys(
                    self._pointers(self.base + part.address, self.base + part.address + part.size)
                )
        # The two ends of a table are loaded one right after the other, in either order.
        for left, right in pairwise(loaded):
            low, high = sorted((left, right))
            if not low % 8 and not high % 8 and 0 < high - low <= 8 * _MAX_INITIALISERS:
                found |= dict.fromkeys(self._pointers(low, high))
        for address in dict.fromkeys(loaded):
            # MinGW's __CTOR_LIST__ begins with -1 and ends with 0.
            if self.word(address) == _ALL_ONES:
                found |= dict.fromkeys(self._list(address + 8))
        return [address for address in found if self.offset(address) is not None]

    def entries(self) -> list[int]:
        """The exported functions that an interpreter calls on import."""
        return self.named(lambda name: bytes(self.data[name : name + 8]).startswith(ENTRY_NAMES))

    def named(self, fits: Callable[[int], bool]) -> list[int]:
        """The exported functions whose names fit; a name is given by its place in the file."""
        exports = self.exports()
        return [
            address
            for address, name in zip(exports.addresses, exports.names, strict=True)
            if fits(name)
        ]

    def name(self, slot: int) -> str:
        return self.elsewhere.get(slot, "")

    def word(self, address: int) -> int | None:
        try:
            at, end = self.pe.place(address - self.base)
        except VerificationFailedError:
            return None
        return int.from_bytes(self.data[at : min(at + 8, end)], "little")

    def pointer(self, slot: int) -> int | None:
        return self.word(slot) or None

    def functions(self) -> Iterator[tuple[int, int]]:
        """(offset, end) of the functions in `.pdata`, each piece of code once; all code where there
        is no table.
        """
        table, size = self.pe.directories[_FUNCTIONS]
        # No table: a DLL without unwinding data. All code counts, data between it included.
        if not table or size < _FUNCTION.size:
            yield from ((start, start + behind - first) for first, behind, start in self.code)
            return
        if size // _FUNCTION.size > _MAX_FUNCTIONS:
            raise damaged_dll(
                f"{size // _FUNCTION.size} functions; more than {_MAX_FUNCTIONS} are refused"
            )
        at, end = self.pe.place(table)
        if at + size > end:
            raise damaged_dll("its table of functions reaches beyond the section")
        reached = 0
        for low, high, _ in sorted(
            _FUNCTION.iter_unpack(self.data[at : at + size - size % _FUNCTION.size])
        ):
            place = self.offset(self.base + low)
            if place is None or high <= low:
                continue
            # Entries may overlap; each byte is decoded once.
            start = max(place[0], reached)
            stop = min(place[0] + high - low, place[1])
            if start < stop:
                yield start, stop
                reached = stop

    def exports(self) -> Functions:
        """The exported functions, by address."""
        table, _ = self.pe.directories[_EXPORTS]
        if not table:
            return Functions((), ())
        # Behind the flags, time, versions, name and base of the export directory: two counts and
        # three tables.
        functions, count, addresses, names, ordinals = self._numbers(table + 20, "I", 5)
        if count > _MAX_EXPORTS or functions > _MAX_EXPORTS:
            raise damaged_dll(f"more than {_MAX_EXPORTS} exports")
        if not count or not functions:
            return Functions((), ())
        where = self._numbers(addresses, "I", functions)
        found = []
        low = high = shift = 0  # of the section that holds the names, most often all of them
        for name, ordinal in zip(
            self._numbers(names, "I", count), self._numbers(ordinals, "H", count), strict=True
        ):
            if ordinal < functions and self.offset(self.base + where[ordinal]) is not None:
                if not low <= name < high:
                    start, stop = self.pe.place(name)
                    low = name
                    high = name + stop - start
                    shift = start - name
                found.append((self.base + where[ordinal], name + shift))
        found.sort()
        return Functions(
            array("Q", (address for address, _ in found)), array("Q", (name for _, name in found))
        )

    def _numbers(self, address: int, layout: str, count: int) -> tuple[int, ...]:
        packed = struct.Struct(f"<{count}{layout}")
        return packed.unpack(self.pe.bytes_at(self.data, address, packed.size))

    def _callbacks(self) -> list[int]:
        """TLS callbacks: pointers up to a zero."""
        table, _ = self.pe.directories[_TLS]
        if not table:
            return []
        # AddressOfCallBacks is the fourth word of IMAGE_TLS_DIRECTORY64, an absolute address.
        (callbacks,) = self._numbers(table + 24, "Q", 1)
        return self._list(callbacks)[:_MAX_CALLBACKS] if callbacks else []

    def _list(self, address: int) -> list[int]:
        """Pointers to code from an address to the first word that is none."""
        found: list[int] = []
        while (
            len(found) < _MAX_INITIALISERS
            and (word := self.word(address))
            and self.offset(word) is not None
        ):
            found.append(word)
            address += 8
        return found

    def _pointers(self, low: int, high: int) -> list[int]:
        """The pointers between two addresses; none if anything else than pointers to code and zeros
        is there.
        """
        try:
            at, end = self.pe.place(low - self.base)
        except VerificationFailedError:
            return []
        size = min(high - low, 8 * _MAX_INITIALISERS, end - at)
        words = [
            word
            for (word,) in struct.iter_unpack("<Q", self.data[at : at + size - size % 8])
            if word
        ]
        if all(self.offset(word) is not None for word in words):
            return words
        return []


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
        self.tables: LoadedImage | None = None
        if isinstance(image, LoadedImage) and addresses is None:
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
            raise _damaged(f"loading it runs through more than {_MAX_INSTRUCTIONS} instructions")

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

    def _through_pointers(self, tables: LoadedImage) -> list[int]:
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


class Walk(Paths):
    """Follows code of x86 and judges it."""

    def __init__(self, image: Image, sweep: Sweep, addresses: list[int] | None = None) -> None:
        import iced_x86  # noqa: PLC0415 (as above)

        super().__init__(image, sweep, addresses)
        self.flow = iced_x86.FlowControl
        self.lea = iced_x86.Mnemonic.LEA
        self.test = iced_x86.Mnemonic.TEST
        self.cmp = iced_x86.Mnemonic.CMP
        self.questions = (iced_x86.Mnemonic.CPUID, iced_x86.Mnemonic.XGETBV)
        self.load = iced_x86.Code.MOV_R64_RM64
        self.register = iced_x86.OpKind.REGISTER
        self.sweep = sweep
        self.dull: set[int] = (
            set()
        )  # codes of instructions that are fine, go on to the next and load no address
        codes = vars(iced_x86.Code).items()
        # Comparisons of a register or memory with a number.
        self.compares = {code for name, code in codes if name.startswith("CMP_") and "_IMM" in name}
        self.compared = self.table = (
            0,
            0,
        )  # address of the last comparison with a number, and of the last `lea`
        self.held = (
            0,
            0,
            0,
        )  # address of the last load of a pointer from a fixed place, its register and that place

    def for_addresses(self, found: list[int]) -> "Walk":
        return Walk(self.image, Sweep(self.sweep.level), found)

    def _take(self, instruction: "iced_x86.Instruction") -> None:
        """Note an address that code takes (`lea`), or loads from a slot of the GOT; the place of a
        pointer it loads.
        """
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
        """The instructions of a window, as far as they are new; gives where it goes on, None at the
        run's end.

        A million instructions pass here: what is written out in the loop would take twice the time
        in functions.
        """
        place = self.image.offset(address)
        if place is None:
            return None
        offset, end = place
        page, at = divmod(address, _PAGE_BYTES)
        bits = self.seen.setdefault(page, bytearray(_PAGE_BYTES // 8))
        # Decoded before, by another path: what follows has been followed too.
        if bits[at >> 3] & 1 << (at & 7):
            return None
        window = min(offset + min(_WINDOW, _PAGE_BYTES - at), end)
        # The last instruction of a window may reach beyond it, by at most the longest one less a
        # byte.
        decoder = self.sweep.decoder(
            64, self.data[offset : min(window + _LONGEST, end)], ip=address
        )
        first = address - at
        border = address + window - offset
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

    def _goes_on(
        self, instruction: "iced_x86.Instruction", waiting: list[int], calls: dict[int, None]
    ) -> bool:
        """Judge an instruction and note where it leads; gives whether the one behind it may run
        too.
        """
        self.sweep.behind = self.behind
        self.sweep.see(instruction)
        code = instruction.code
        flow = instruction.flow_control
        if flow == self.flow.NEXT:
            if self.addresses is not None and instruction.mnemonic == self.lea:
                self.addresses.append(instruction.ip_rel_memory_address)
            elif self.addresses is not None and code == self.load:
                if (
                    instruction.is_ip_rel_memory_operand
                    and instruction.ip_rel_memory_address in self.image.slots
                ):
                    self.addresses.append(self.image.slots[instruction.ip_rel_memory_address])
            elif self.tables is not None and (
                code == self.load or instruction.mnemonic == self.lea
            ):
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
        if self.functions and flow in (
            self.flow.CALL,
            self.flow.INDIRECT_CALL,
            self.flow.INDIRECT_BRANCH,
        ):
            self.hand_on(self._slot(instruction) if target is None else self._stub(target))
        if flow in (self.flow.CALL, self.flow.INDIRECT_CALL):
            if target is not None:
                calls[target] = None
                self.certain |= set() if self.behind else {target}
        elif target is not None:
            waiting.append(target)
        elif flow == self.flow.INDIRECT_BRANCH and not self._goes_elsewhere(
            self._slot(instruction)
        ):
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
        """The slot of another library's function that a stub of the PLT jumps through; None for any
        other code.
        """
        place = self.image.offset(target)
        if place is not None:
            for each in islice(
                self.sweep.decoder(64, self.data[place[0] : place[0] + 2 * _LONGEST], ip=target), 2
            ):
                if each.flow_control == self.flow.INDIRECT_BRANCH and each.is_ip_rel_memory_operand:
                    slot = each.ip_rel_memory_address
                    return slot if slot in self.image.elsewhere else None
        return None

    def _cases(self, instruction: "iced_x86.Instruction") -> list[int]:
        """The targets of a `switch`: a comparison with the last case, then a table of distances
        from itself.
        """
        (compared, last) = self.compared
        (loaded, table) = self.table
        near = instruction.ip - _SWITCH_BYTES <= compared < loaded < instruction.ip
        if (
            self.tables is None
            or not near
            or not 0 < last < _SWITCH
            or self.image.offset(table) is not None
        ):
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
        """The fixed place of the pointer that an indirect jump or call takes: its operand, or what
        was just loaded.
        """
        if instruction.is_ip_rel_memory_operand:
            return instruction.ip_rel_memory_address
        at, register, slot = self.held
        place = self.image.offset(at)
        if (
            instruction.op0_kind != self.register
            or instruction.op0_register != register
            or place is None
        ):
            return None
        distance = instruction.ip - at
        if not 0 < distance <= _SWITCH_BYTES:
            return None
        # Between them nothing else may go into the register, as in: load; test; je; call.
        decoder = self.sweep.decoder(64, self.data[place[0] : place[0] + distance], ip=at)
        tested = (self.test, self.cmp)
        calm = (self.flow.NEXT, self.flow.CONDITIONAL_BRANCH)
        for each in islice(decoder, 1, None):
            writes = (
                each.flow_control == self.flow.NEXT
                and each.op_count
                and each.mnemonic not in tested
            )
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
            target = None
            slot = self._slot(instruction)
            if slot is not None:
                target = self.image.slots.get(slot)
                if target is None:
                    target = self.image.pointer(slot)
            if target is None and flow == self.flow.INDIRECT_CALL:
                self.through_pointer = True
                # A slot of another library's function is no open end: that library is looked at by
                # itself.
                self.open_ends += not self._goes_elsewhere(slot)
            return target
        direct = (self.flow.UNCONDITIONAL_BRANCH, self.flow.CONDITIONAL_BRANCH, self.flow.CALL)
        return instruction.near_branch_target if flow in direct else None


class ArmWalk(Paths):
    """Follows code of 64-bit Arm and judges it; registers are known where addresses are formed, in
    one run of code.

    `known`: what registers hold, where that is an address in this library; negative: the function
    of another library, by the complement of its slot.
    """

    def __init__(self, image: Image, words: "_Words", addresses: list[int] | None = None) -> None:
        super().__init__(image, Finds(), addresses)
        self.words = words
        self.known: dict[int, int] = {}

    def for_addresses(self, found: list[int]) -> "ArmWalk":
        return ArmWalk(self.image, self.words, found)

    def decode(self, address: int, waiting: list[int], calls: dict[int, None]) -> int | None:
        place = self.image.offset(address)
        if place is None or address % _WORD:
            return None
        self.known = {}
        for offset in range(place[0], place[1] - _WORD + 1, _WORD):
            page, index = divmod(address // _WORD, _PAGE_WORDS)
            seen = self.seen.setdefault(page, bytearray(_PAGE_WORDS))
            if seen[index]:
                break
            seen[index] = 1
            self.count(1)
            word = int.from_bytes(self.data[offset : offset + _WORD], "little")
            features = self.words.judge({word}).get(word)
            if features is not None:
                self.finds.behind = self.behind
                self.finds.undecodable += not features
                self.finds.note(features, address)
            # No instruction, UDF and BRK end the run.
            ends = features == () or word >> 16 == 0 or word & 0xFFE0001F == 0xD4200000
            if ends or not self._goes_on(word, address, waiting, calls):
                break
            address += _WORD
        return None

    def _goes_on(self, word: int, address: int, waiting: list[int], calls: dict[int, None]) -> bool:
        """Note where an instruction leads; gives whether the one behind it may run too."""
        top = word >> 24
        if word >> 26 & 0x1F == 0b00101:  # B, BL
            target = address + _WORD * _signed(word, 26)
            if word >> 31:
                self.hand_on(self._stub(target) if self.functions else None)
                return self._called(target, calls)
            waiting.append(target)
            return False
        if top == 0b01010100 or top & 0x7E in (
            0b0110100,
            0b0110110,
        ):  # B.cond; CBZ, CBNZ; TBZ, TBNZ
            self.behind = True
        if top == 0b01010100 or top & 0x7E == 0b0110100:
            waiting.append(address + _WORD * _signed(word >> 5, 19))
        elif top & 0x7E == 0b0110110:
            waiting.append(address + _WORD * _signed(word >> 5, 14))
        elif word >> 25 == 0b1101011:  # BR, BLR, RET, ERET, and those that authenticate
            held = self.known.get(word >> 5 & 31)
            kind = word >> 21 & 7
            self.open_ends += held is None and kind < 2  # BR or BLR to where no one knows
            slot = ~held if held is not None and held < 0 else None
            if kind < 2:
                self.hand_on(slot)
            if slot is not None:
                self.outside.add(slot)
                held = None
            if kind == 1:
                self.through_pointer |= held is None
                return self._called(held, calls)
            if kind == 0 and held is not None:
                waiting.append(held)
            return False
        else:
            self.asks |= word & 0xFFFFF000 == 0xD5380000  # MRS of an ID register
            self._follow_registers(word, address)
        return True

    def _stub(self, target: int) -> int | None:
        """The slot of another library's function that a stub of the PLT loads (ADRP, LDR); None for
        any other code.
        """
        place = self.image.offset(target)
        if place and place[0] + 8 <= place[1]:
            page, load = struct.unpack_from("<II", self.data, place[0])
        else:
            page, load = (0, 0)
        if page >> 24 & 0x9F != 0b10010000 or load >> 22 != 0b1111100101:
            return None
        slot = (target & ~0xFFF) + (_page(page) << 12) + 8 * (load >> 10 & 0xFFF)
        return slot if slot in self.image.elsewhere else None

    def _called(self, target: int | None, calls: dict[int, None]) -> bool:
        if target is not None:
            calls[target] = None
            self.certain |= set() if self.behind else {target}
        self.known = {
            register: held for register, held in self.known.items() if 19 <= register <= 29
        }
        return True

    def _follow_registers(self, word: int, address: int) -> None:
        """Keep track of the addresses that registers hold, and note those that code takes."""
        to = word & 31
        base = self.known.get(word >> 5 & 31)
        base = None if base is not None and base < 0 else base
        self.known.pop(to, None)
        if word >> 27 & 7 == 0b101:  # LDP has a second one
            self.known.pop(word >> 10 & 31, None)
        if word >> 24 & 0x9F == 0b10010000:  # ADRP
            self.known[to] = (address & ~0xFFF) + (_page(word) << 12)
        elif word >> 24 & 0x9F == 0b00010000:  # ADR
            self._take(to, address + _page(word))
        elif word >> 22 == 0b1001000100 and base is not None:  # ADD, 64 bits, immediate
            self._take(to, base + (word >> 10 & 0xFFF))
        elif word >> 22 == 0b1111100101 and base is not None:  # LDR, 64 bits, unsigned offset
            self._load(to, base + 8 * (word >> 10 & 0xFFF))

    def _take(self, to: int, value: int) -> None:
        self.known[to] = value
        if self.addresses is not None:
            self.addresses.append(value)
        else:
            self.taken.add(value)
            if self.image.offset(value) is not None:
                self.functions.append(value)

    def _load(self, to: int, slot: int) -> None:
        """A pointer out of a slot of the GOT, or from another fixed place."""
        found = self.image.slots.get(slot)
        value = found if found is not None else self.image.pointer(slot)
        if value is not None or slot in self.image.elsewhere:
            self.known[to] = ~slot if value is None else value
        if value is not None and self.image.offset(value) is not None:
            self.functions.append(value)
        if self.addresses is not None:
            if value is not None:
                self.addresses.append(value)
        elif found is None and slot not in self.image.elsewhere:
            self.taken.add(slot)
        elif found is not None and self.image.offset(found) is None:
            self.taken.add(found)


def _signed(word: int, bits: int) -> int:
    """The lowest bits as a number in two's complement."""
    return (word & (1 << bits) - 1) - ((word >> bits - 1 & 1) << bits)


def _page(word: int) -> int:
    """The offset of ADR and ADRP."""
    return _signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)


class _Words:
    """Judges words of code against a level, each kind once; classes of the base architecture are
    not decoded at all.
    """

    def __init__(self, level: str) -> None:
        import capstone  # noqa: PLC0415 (slow to import, and only wheels for Arm need it)

        self.decoder = capstone.Cs(capstone.CS_ARCH_AARCH64, capstone.CS_MODE_LITTLE_ENDIAN)
        self.decoder.detail = True
        self.allowed = frozenset(_allowed(level, arm_table()))
        self.kinds: dict[int, tuple[str, ...]] = {}

    def judge(self, words: set[int]) -> dict[int, tuple[str, ...]]:
        """The words beyond the level with the features that they need; with none where they are no
        instruction.
        """
        found: dict[int, tuple[str, ...]] = {}
        for word in words:
            if _is_base(word):
                continue
            if word >> 25 & 0xF == 0b1010 or word >> 25 & 0xF == 0b1011:
                kind = word
            else:
                kind = word & ~_OPERANDS
            features = self.kinds.get(kind)
            if features is None:
                features = self._decode(word)
                if features is None:  # another word of this kind may be one: registers can be fixed
                    found[word] = ()
                    continue
                self.kinds[kind] = features
            if features:
                found[word] = features
        return found

    def _decode(self, word: int) -> tuple[str, ...] | None:
        for instruction in self.decoder.disasm(word.to_bytes(_WORD, "little"), 0, 1):
            # Groups below 128 say what an instruction does (jump, call); those above, what it
            # needs.
            needs = {instruction.group_name(group) for group in instruction.groups if group >= 128}
            return tuple(sorted(name.removeprefix("Has") for name in needs - self.allowed))
        return None


def _is_base(word: int) -> bool:
    """An instruction of Armv8.0-A by its class alone: most of the code is of these."""
    top = word >> 24
    return (
        word >> 26 & 0x1F == 0b00101  # B, BL
        or top & 0x7E == 0b0110100  # CBZ, CBNZ
        or top & 0x7E == 0b0110110  # TBZ, TBNZ
        or (top == 0b01010100 and not word >> 4 & 1)  # B.cond, but not BC.cond
        or top & 0x1F == 0b10000  # ADR, ADRP
        or word >> 23 & 0x7F == 0b0100010  # ADD, SUB (immediate, without the shift of MTE)
        or (
            word >> 23 & 0x3F in range(0b100100, 0b101000) and word >> 29 != 0b111
        )  # logical, MOVZ, bit fields, EXTR
        or (
            word >> 27 & 7 == 0b111 and word >> 24 & 3 == 0b01
        )  # LDR, STR (unsigned offset), of NEON as well
        or (word >> 27 & 7 == 0b101 and word >> 25 & 1 == 0 and word >> 30 != 0b01)  # LDP, STP
        or (
            top & 0x1F in {0b01010, 0b01011} and not word >> 21 & 1
        )  # AND, ORR, EOR; ADD, SUB (shifted register)
    )


def _damaged(what: str) -> VerificationFailedError:
    return VerificationFailedError(f"damaged file: {what}")
