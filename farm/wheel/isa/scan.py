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
_ASKS = ("getauxval", "__getauxval")


def scan_isa(data: Buffer, file: Elf | Pe, level: str, chosen: Chosen | None = None) -> IsaResult:
    """Find the instructions of a library that need more than a level.

    Args:
        data: The file.
        file: Its headers.
        level: The level.
        chosen: Functions that are called behind a choice at run time and left out: what follows their
            symbols, up to the next one. A file without symbols leaves nothing out.
    """
    if isinstance(file, Pe):
        return scan_dll(data, file, level, on_load=False).result
    if reason := reason_not_decoded(file, level):
        return IsaResult(not_checked=reason)
    functions = function_symbols(data, file)
    left_out = frozenset(_left_out(data, functions, chosen) if chosen else ())
    sweep = sweep_arm if level in arm_table() else sweep_x86
    return sweep(data, file, level, functions, left_out).result(data, functions)


def scan_starts(data: Buffer, file: Elf | Pe, level: str) -> InitScan:
    """Find the instructions beyond a level that loading a library, or its exit, may execute.

    Args:
        data: The file.
        file: Its headers.
        level: The level.
    """
    if isinstance(file, Pe):
        return scan_dll(data, file, level, on_load=True)
    if reason := reason_not_decoded(file, level):
        return InitScan(IsaResult(not_checked=reason))
    image = ElfImage(data, file)
    walk: CodeWalker
    if level in arm_table():
        walk = ArmWalk(image, Words(level))
    else:
        walk = Walk(image, Sweep(level))
    starts = image.starts()
    walk.descend(starts)
    entries = [
        address for address in dict.fromkeys(image.entries) if image.offset(address) is not None
    ]
    slots = module_slots(walk.addresses_in(entries), image)
    walk.enter(entries, slots)
    walk.finds.settle(aside=walk.asks or any(image.name(slot) in _ASKS for slot in walk.outside))
    walk.walk_deeper()
    return walk.result(function_symbols(data, file), {*starts, *entries, *slots})


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
    return walk.result(image.exports(), {*starts, *entries, *slots})


def _left_out(data: Buffer, functions: Functions, chosen: Chosen) -> Iterator[int]:
    """The addresses of the chosen functions."""
    is_chosen = _matcher(chosen.functions)
    is_archive = _matcher(chosen.archives)
    symbols = zip(
        functions.addresses, (symbol_name(data, name) for name in functions.names), strict=True
    )
    for is_cxx, group in groupby(symbols, key=lambda pair: bool(_CXX.match(pair[1]))):
        stretch = list(group)
        is_archive_stretch = not is_cxx and any(is_archive(name) for _, name in stretch)
        yield from (address for address, name in stretch if is_archive_stretch or is_chosen(name))


def _matcher(patterns: Sequence[str]) -> Callable[[str], object]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match
