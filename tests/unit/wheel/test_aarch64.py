"""CPU features of AArch64 code. The words are what GNU as 2.40 makes of the instruction beside
them.
"""

import random
import struct

import capstone
import pytest

from farm.policy.levels import arm_level_names, arm_table
from farm.policy.rules import Chosen
from farm.wheel.elf import read_elf
from farm.wheel.isa.arm import _is_base
from farm.wheel.isa.levels import allowed_features
from farm.wheel.isa.scan import scan_isa, scan_starts

CODE = 352  # where build_elf puts the text
BASE = {
    "add x0, x1, x2": 0x8B020020,
    "fadd v0.4s, v1.4s, v2.4s": 0x4E22D420,
    "ldp x0, x1, [x2]": 0xA9400440,
    "paciasp": 0xD503233F,  # a hint: older CPUs take it for NOP
    "bti c": 0xD503245F,
    "mrs x0, fpcr": 0xD53B4400,
    "crc32b w0, w1, w2": 0x1AC24020,
    "ldadd x0, x1, [x2]": 0xF8200041,
    "sqrdmlah v0.4s, v1.4s, v2.4s": 0x6E828420,
}
"""What Armv8.2-A has."""
OF_ARMV9 = {
    "sdot v0.4s, v1.16b, v2.16b": (0x4E829420, "DotProd"),
    "fadd h0, h1, h2": (0x1EE22820, "FullFP16"),
    "fcmla v0.4s, v1.4s, v2.4s, #90": (0x6E82CC20, "ComplxNum"),
    "ldapr x0, [x1]": (0xF8BFC020, "RCPC"),
    "retaa": (0xD65F0BFF, "PAuth"),
    "setf8 w0": (0x3A00080D, "FlagM"),
    "add z0.s, z1.s, z2.s": (0x04A20020, "SVEorSME"),
    "whilege p0.s, x0, x1": (0x25A11000, "SVE2orSME"),
}
"""What Armv9.0-A has and Armv8.2-A does not demand."""
BEYOND = {
    "bfdot v0.4s, v1.8h, v2.8h": (0x6E42FC20, "BF16"),
    "smmla v0.4s, v1.16b, v2.16b": (0x4E82A420, "MatMulInt8"),
    "aese v0.16b, v1.16b": (0x4E284820, "AES"),
    "addg x0, x1, #16, #1": (0x91810420, "MTE"),
    "bext z0.b, z1.b, z2.b": (0x4502B020, "SVE2BitPerm"),
}
"""What neither demands."""
RET = 0xD65F03C0


@pytest.fixture
def scan(make_elf):
    def run(words, level):
        raw = make_elf(
            machine=183,
            text=struct.pack(f"<{len(words)}I", *words),
            symbols={"first": 0, "second": 8},
        )
        return scan_isa(raw, read_elf(raw), level)

    return run


def test_levels_are_ordered():
    assert arm_level_names() == ("armv8_2", "armv9")
    assert set(allowed_features("armv8_2", arm_table())) < set(
        allowed_features("armv9", arm_table())
    )


@pytest.mark.parametrize("level", ["armv8_2", "armv9"])
def test_what_every_level_has(scan, level):
    found = scan([*BASE.values(), RET], level)
    assert (found.beyond, found.undecodable, found.not_checked) == ((), 0, None)


@pytest.mark.parametrize("name", OF_ARMV9)
def test_what_comes_with_armv9(scan, name):
    word, feature = OF_ARMV9[name]
    assert [find.feature for find in scan([word, RET], "armv8_2").beyond] == [feature]
    assert scan([word, RET], "armv9").beyond == ()


@pytest.mark.parametrize("name", BEYOND)
def test_instructions_of_no_level_are_ignored(scan, name):
    word, feature = BEYOND[name]
    for level in arm_level_names():
        assert [find.feature for find in scan([word, RET], level).beyond] == [feature]


def test_counts_and_places(scan):
    """Words that differ in their registers alone are of one kind."""
    sdot, other = OF_ARMV9["sdot v0.4s, v1.16b, v2.16b"][0], 0x4E829483  # v3.4s, v4.16b
    (found,) = scan([RET, sdot, RET, other, sdot], "armv8_2").beyond
    assert (found.count, found.places) == (3, ("first+0x4", "second+0x4", "second+0x8"))


def test_data_between_functions_are_counted(scan):
    found = scan([RET, 0x02345678, 0xFFFFFFFF], "armv8_2")
    assert (found.beyond, found.undecodable) == ((), 2)


def test_functions_that_are_chosen_at_run_time_are_left_out_and_no_others(make_elf):
    sdot, _ = OF_ARMV9["sdot v0.4s, v1.16b, v2.16b"]
    raw = make_elf(
        machine=183, text=struct.pack("<2I", sdot, sdot), symbols={"xnn_dot": 0, "at_dot": 4}
    )
    [find] = scan_isa(raw, read_elf(raw), "armv8_2", Chosen(functions=("xnn_*",))).beyond
    assert find.places == ("at_dot+0x0",)


def test_a_size_that_is_no_multiple_of_four(make_elf):
    raw = make_elf(
        machine=183, text=struct.pack("<I", BEYOND["bfdot v0.4s, v1.8h, v2.8h"][0]) + b"\x01"
    )
    assert [find.feature for find in scan_isa(raw, read_elf(raw), "armv9").beyond] == ["BF16"]


def test_what_is_not_decoded_needs_no_extension():
    """The classes that are skipped, against the decoder: 200,000 words, the same in each run."""
    decoder = capstone.Cs(capstone.CS_ARCH_AARCH64, capstone.CS_MODE_LITTLE_ENDIAN)
    decoder.detail = True
    allowed, words = set(allowed_features("armv8_2", arm_table())), random.Random(47)
    skipped = [word for word in (words.getrandbits(32) for _ in range(200_000)) if _is_base(word)]
    assert len(skipped) > 40_000
    for word in skipped:
        for instruction in decoder.disasm(word.to_bytes(4, "little"), 0, 1):
            needs = {instruction.group_name(group) for group in instruction.groups if group >= 128}
            assert needs <= allowed, (hex(word), instruction.mnemonic)


# --- code that runs on import, at these offsets of the text: `start`, `next`, `kernel`

START, NEXT, KERNEL, DATA = 0, 32, 64, 96
SVE = 0x04A20020
NOP, BRK, BLR_X1, BR_X1 = 0xD503201F, 0xD4200000, 0xD63F0020, 0xD61F0020


def branch(at, to, *, link=False):
    return (0x94000000 if link else 0x14000000) | (to - at) // 4 & 0x3FFFFFF


def cbz(at, to):
    return 0xB4000000 | ((to - at) // 4 & 0x7FFFF) << 5


def adrp(at, to, register=1):
    pages = ((CODE + to) >> 12) - ((CODE + at) >> 12)
    return 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register


def add_low(to, register=1):
    return 0x91000000 | ((CODE + to) & 0xFFF) << 10 | register << 5 | register


def load_low(address, register=1):
    return 0xF9400000 | (address & 0xFFF) // 8 << 10 | register << 5 | register


@pytest.fixture
def on_import(make_elf):
    """The places of SVE instructions that run on import, of code at given offsets."""

    def run(pieces, *, init=(START,), names=None, data=b"", relocations=()):
        code = bytearray(DATA + len(data))
        for at, words in ({KERNEL: [SVE, RET]} | pieces).items():
            code[at : at + 4 * len(words)] = struct.pack(f"<{len(words)}I", *words)
        code[DATA:] = data
        symbols = names or {"start": START, "next": NEXT, "kernel": KERNEL}
        raw = make_elf(
            machine=183,
            text=bytes(code),
            symbols=symbols,
            init=init,
            relocate_init=False,
            relocations=relocations,
        )
        return [
            place
            for find in scan_starts(raw, read_elf(raw), "armv8_2").result.beyond
            for place in find.places
        ]

    return run


GOT = 0x1008
SLOT_OF_KERNEL = (GOT, 3 << 32 | 1026, 0)
THROUGH_GOT = [adrp(START, GOT - CODE), load_low(GOT)]


@pytest.mark.parametrize(
    ("start", "rows", "runs"),
    [
        ([RET], [], False),
        ([NOP, branch(4, KERNEL)], [], True),
        ([branch(0, KERNEL, link=True), RET], [], True),
        ([cbz(0, KERNEL), RET], [], True),
        ([adrp(0, KERNEL), add_low(KERNEL), BLR_X1, RET], [], True),
        ([adrp(0, KERNEL), add_low(KERNEL), BR_X1], [], True),
        ([*THROUGH_GOT, BR_X1], [SLOT_OF_KERNEL], True),
        ([*THROUGH_GOT, BR_X1], [(GOT, 1027, CODE + KERNEL)], True),
        ([BRK, branch(4, KERNEL)], [], False),
        ([RET, branch(4, KERNEL)], [], False),
        ([0, branch(4, KERNEL)], [], False),
        # The call may change x1: what it holds afterwards is not known.
        ([adrp(0, KERNEL), add_low(KERNEL), branch(8, NEXT, link=True), BR_X1], [], False),
    ],
)
def test_jumps_and_calls_of_an_initialiser_are_followed(on_import, start, rows, runs):
    assert on_import({START: start, NEXT: [RET]}, relocations=rows) == (
        ["kernel+0x0"] if runs else []
    )


def test_the_functions_in_the_slots_of_a_module_run_on_import(on_import):
    definition = bytes(72) + struct.pack("<Q", 0)
    slots = struct.pack("<QQQQ", 2, 0, 0, 0)
    at = DATA + len(definition)
    rows = [(CODE + DATA + 72, 1027, CODE + at), (CODE + at + 8, 1027, CODE + KERNEL)]
    start = {START: [adrp(START, DATA), add_low(DATA), RET]}
    found = {"PyInit_m": START, "kernel": KERNEL}
    assert on_import(start, init=(), names=found, data=definition + slots, relocations=rows) == [
        "kernel+0x0"
    ]
    assert (
        on_import(start, init=(), names={"f": START}, data=definition + slots, relocations=rows)
        == []
    )


def test_resolvers_run_on_loading(on_import):
    assert on_import({START: [RET]}, relocations=[(GOT, 1032, CODE + KERNEL)]) == ["kernel+0x0"]
    assert on_import({START: [RET]}, relocations=[(GOT, 37, CODE + KERNEL)]) == [], "a kind of x86"
