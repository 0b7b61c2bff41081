"""Scans of a library: all of its code, or what runs when it is loaded."""

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import translate
from itertools import groupby

from farm.policy.levels import arm_table
from farm.policy.rules import Chosen
from farm.wheel.archive import Buffer
from farm.wheel.elf import (
    Elf,
    Functions,
    function_symbols,
    symbol_name,
)
from farm.wheel.isa.arm import Words, sweep_arm
from farm.wheel.isa.elf_image import ElfImage
from farm.wheel.isa.findings import InitScan, IsaResult
from farm.wheel.isa.image import module_slots
from farm.wheel.isa.levels import reason_not_decoded
from farm.wheel.isa.pe_image import DllImage
from farm.wheel.isa.walk import CodeWalker
from farm.wheel.isa.walk_arm import ArmWalk
from farm.wheel.isa.walk_x86 import Walk
from farm.wheel.isa.x86 import Sweep, sweep_x86
from farm.wheel.pe import Pe

_CXX = re.compile(r"_Z(?!eroState$)")  # MKL has a function of C with that name
_ASKS = frozenset({"getauxval", "__getauxval"})


def scan_isa(
    data: Buffer,
    file: Elf | Pe,
    level: str,
    chosen: Chosen | None = None,
) -> IsaResult:
    """Find the instructions of a library that need more than a level.

    Args:
        data: The file.
        file: Its headers.
        level: The level.
        chosen: Functions that are called behind a choice at run time and left out: what follows
            their symbols, up to the next one. A file without symbols leaves nothing out.
    """
    if isinstance(file, Pe):
        return scan_dll(data, file, level, on_load=False).result
    reason = reason_not_decoded(file, level)
    if reason:
        return IsaResult(not_checked=reason)
    functions = function_symbols(data, file)
    left_out: frozenset[int] = frozenset()
    if chosen:
        left_out = frozenset(_left_out(data, functions, chosen))
    if level in arm_table():
        finds = sweep_arm(data, file, level, functions, left_out)
    else:
        finds = sweep_x86(data, file, level, functions, left_out)
    return finds.result(data, functions)


def scan_starts(data: Buffer, file: Elf | Pe, level: str) -> InitScan:
    """Find the instructions beyond a level that loading a library, or its exit, may execute.

    Args:
        data: The file.
        file: Its headers.
        level: The level.
    """
    if isinstance(file, Pe):
        return scan_dll(data, file, level, on_load=True)
    reason = reason_not_decoded(file, level)
    if reason:
        return InitScan(IsaResult(not_checked=reason))
    image = ElfImage(data, file)
    walk: CodeWalker
    if level in arm_table():
        walk = ArmWalk(image, Words(level))
    else:
        walk = Walk(image, Sweep(level))

    starts = image.starts()
    walk.descend(starts)
    entries = image.of_code(image.entries)
    slots = module_slots(walk.addresses_in(entries), image)
    walk.enter(entries, slots)

    calls_that_ask = _ASKS.intersection(map(image.name, walk.outside))
    walk.finds.settle(aside=walk.asks or bool(calls_that_ask))
    walk.walk_deeper()
    functions = function_symbols(data, file)
    return walk.result(functions, {*starts, *entries, *slots})


def scan_dll(data: Buffer, pe: Pe, level: str, *, on_load: bool) -> InitScan:
    """Find the instructions of a DLL that need more than a level.

    Args:
        data: The file.
        pe: Its headers.
        level: The level.
        on_load: Only what runs when it is loaded counts.
    """
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
        walk.walk_deeper()
    functions = image.exports()
    return walk.result(functions, {*starts, *entries, *slots})


def _left_out(data: Buffer, functions: Functions, chosen: Chosen) -> Iterator[int]:
    """The addresses of the chosen functions."""
    is_chosen = _matcher(chosen.functions)
    is_of_archive = _matcher(chosen.archives)
    symbols = _named(data, functions)
    for is_cxx, group in groupby(symbols, key=_is_cxx):
        stretch = list(group)
        is_archive = not is_cxx and any(is_of_archive(name) for _, name in stretch)
        for address, name in stretch:
            if is_archive or is_chosen(name):
                yield address


def _named(data: Buffer, functions: Functions) -> Iterator[tuple[int, str]]:
    """The functions by address, each with its name."""
    pairs = zip(functions.addresses, functions.names, strict=True)
    for address, name_at in pairs:
        yield address, symbol_name(data, name_at)


def _is_cxx(function: tuple[int, str]) -> bool:
    """True if a function, given with its address, has a name of C++."""
    return _CXX.match(function[1]) is not None


def _matcher(patterns: Sequence[str]) -> Callable[[str], object]:
    """A function that says whether a name fits one of the patterns (`fnmatch`)."""
    expressions = map(translate, patterns)
    return re.compile("|".join(expressions) or "(?!)").match
