import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import VerificationFailedError
from farm.wheel.elf import read_elf
from farm.wheel.isa.scan import scan_starts
from tests.examples import examples
from tests.unit.wheel.conftest import RET, VPADDD_YMM, call, text
from tests.unit.wheel.conftest import TEXT as CODE

JMP_RAX = b"\xff\xe0"
LEA_RDI = b"\x48\x8d\x3d"
LEA_RAX = b"\x48\x8d\x05"


def jump(at, to):
    return b"\xe9" + struct.pack("<i", to - at - 5)


@pytest.fixture
def scan(make_elf):
    def run(code, *, level="avx", symbols=None, **kwargs):
        raw = make_elf(text=code, symbols=symbols or {"ctor": 0, "kernel": 64}, **kwargs)
        return scan_starts(raw, read_elf(raw), level)

    return run


def features(found):
    return {find.feature: (find.count, find.places) for find in found.result.beyond}


def test_code_behind_dispatch_does_not_count(scan):
    found = scan(text(p0=RET, p64=VPADDD_YMM + RET), init=[0])
    assert (features(found), found.starts, found.instructions) == ({}, 1, 1)


@pytest.mark.parametrize("relocate_init", [True, False])
def test_an_initialiser_beyond_the_level(scan, relocate_init):
    """As a relocation writes it, or as it stands in the file (DT_RELR)."""
    found = scan(text(p0=b"\x90" + VPADDD_YMM + RET), init=[0], relocate_init=relocate_init)
    assert features(found) == {"AVX2": (1, ("ctor+0x1",))}
    assert features(scan(text(p0=VPADDD_YMM + RET), init=[0], level="avx2")) == {}


def test_every_initialiser_is_entered(scan):
    found = scan(text(p0=RET, p64=VPADDD_YMM + RET), init=[0, 64])
    assert (features(found), found.starts) == ({"AVX2": (1, ("kernel+0x0",))}, 2)


def test_jumps_are_followed(scan):
    both = b"\x74\x3e" + RET  # je 64
    assert features(scan(text(p0=both, p64=VPADDD_YMM + RET), init=[0])) == {
        "AVX2": (1, ("kernel+0x0",))
    }
    found = scan(text(p0=jump(0, 64), p64=VPADDD_YMM + jump(68, 0)), init=[0])
    assert (features(found)["AVX2"], found.instructions) == ((1, ("kernel+0x0",)), 3)


def test_a_branch_of_code_that_asks_the_cpu_leaves_open_what_runs(scan):
    cpuid, branch = b"\x0f\xa2", b"\x74\x3c" + RET  # je 64
    found = scan(text(p0=cpuid + branch, p64=VPADDD_YMM + RET), init=[0])
    assert (features(found), found.open_ends) == ({}, 1)
    called = text(p0=cpuid + branch, p64=call(64, 96) + RET, p96=VPADDD_YMM + RET)
    assert features(scan(called, init=[0])) == {}
    # What runs before any branch is certain, and so is what an own initialiser without one does.
    for code, init in (
        (text(p0=VPADDD_YMM + cpuid + branch), [0]),
        (text(p0=cpuid + branch, p64=RET, p96=VPADDD_YMM + RET), [0, 96]),
    ):
        assert list(features(scan(code, init=init))) == ["AVX2"]


def test_what_follows_an_end_is_not_executed(scan):
    for end in (RET, JMP_RAX, b"\x0f\x0b", jump(0, 64)):
        assert features(scan(text(p0=end + VPADDD_YMM, p64=RET), init=[0])) == {}
    assert features(scan(text(p0=call(0, 64) + VPADDD_YMM + RET, p64=RET), init=[0])) != {}


def test_calls_count_down_to_a_depth_and_leave_open_what_is_below(scan):
    def chain(*places):
        pieces = {
            f"p{at}": call(at, to) + RET for at, to in zip(places, (*places[1:], 64), strict=True)
        }
        return text(**pieces, p64=VPADDD_YMM + RET)

    found = [
        scan(chain(*places), init=[0]) for places in [(0,), (0, 16), (0, 16, 32), (0, 16, 32, 48)]
    ]
    assert [bool(features(each)) for each in found] == [True, True, False, False]
    assert [each.open_ends for each in found] == [0, 0, 1, 1]
    # the shorter way counts, whichever is met first
    assert features(scan(chain(0, 16, 32), init=[0, 32])) != {}
    harmless = text(
        p0=call(0, 16) + RET,
        p16=call(16, 32) + RET,
        p32=call(32, 48) + RET,
        p48=call(48, 64) + RET,
        p64=RET,
    )
    found = scan(harmless, init=[0])
    assert (found.open_ends, found.instructions) == (0, 9), (
        "all of it is followed, and holds nothing"
    )


def test_calls_through_the_own_plt(scan):
    """A call of an exported function goes to a stub that jumps through the GOT."""
    got = 0x5000
    stub = b"\xff\x25" + struct.pack("<i", got - (CODE + 32 + 6))
    code = text(p0=call(0, 32) + RET, p32=stub, p64=VPADDD_YMM + RET)
    slot = (got, 2 << 32 | 7, 0)  # JUMP_SLOT of symbol 2, kernel
    assert features(scan(code, init=[0], relocations=[slot])) == {"AVX2": (1, ("kernel+0x0",))}
    assert features(scan(code, init=[0], relocations=[(got, 1 << 32 | 7, 0)])) == {}
    direct = (
        b"\xff\x15" + struct.pack("<i", got - (CODE + 6)) + RET
    )  # call [rip+x], as with -fno-plt
    code = text(p0=direct, p64=VPADDD_YMM + RET)
    assert features(scan(code, init=[0], relocations=[(got, 2 << 32 | 6, 0)])) != {}


def test_a_pointer_that_another_library_gives_leads_to_no_table(scan):
    """As each library's `_init` asks for __gmon_start__: what lies behind that slot of the GOT is
    not called.
    """
    got = 0x5000
    start = (
        b"\x48\x8b\x05"
        + struct.pack("<i", got - (CODE + 7))
        + b"\x48\x85\xc0\x74\x02\xff\xd0"
        + RET
    )
    code = text(p0=start, p64=VPADDD_YMM + RET)
    ours = (got + 8, 8, CODE + 64)  # RELATIVE: the address of a function of its own
    options = {"init": [0], "takes": ["__gmon_start__"]}
    assert features(scan(code, relocations=[(got, 3 << 32 | 6, 0), ours], **options)) == {}
    assert features(scan(code, relocations=[(got, 8, CODE + 32), ours], **options)) != {}


def test_resolvers_of_indirect_functions_run_on_loading(scan):
    found = scan(text(p64=VPADDD_YMM + RET), relocations=[(0x5000, 37, CODE + 64)])
    assert (found.starts, features(found)) == (1, {"AVX2": (1, ("kernel+0x0",))})


@pytest.mark.parametrize("kind", [None, 1, 6, 7])  # none, R_X86_64_64, GLOB_DAT, JUMP_SLOT
def test_resolvers_that_a_symbol_names(scan, kind):
    """The loader calls them for whoever binds to the symbol, in this library or in another."""
    code = text(p0=VPADDD_YMM + RET, p64=RET)
    rows = [] if kind is None else [(0x5000, 1 << 32 | kind, 0)]
    assert features(scan(code, relocations=rows)) == {}
    found = scan(code, relocations=rows, indirect=["ctor"])
    assert (found.starts, features(found)) == (1, {"AVX2": (1, ("ctor+0x0",))})


@pytest.mark.parametrize("name", ["PyInit_m", "PyInitU_eckzbwbhk6jpz"])
def test_an_extension_module_runs_its_init_function(scan, name):
    code = text(p0=RET, p64=VPADDD_YMM + RET)
    assert features(scan(code, symbols={name: 0, "kernel": 64})) == {}
    found = scan(code, symbols={name: 64, "other": 0})
    assert (found.starts, features(found)) == (1, {"AVX2": (1, (f"{name}+0x0",))})
    assert features(scan(code, symbols={f"my{name}": 64})) == {}


MOV_RDI = b"\x48\x8b\x3d"


def test_of_several_init_functions_the_name_of_the_file_decides(scan):
    names = {"PyInit_m": 0, "PyInit_n": 64}
    found = scan(text(p0=RET, p64=VPADDD_YMM + RET), symbols=names)
    assert (features(found), bool(found.open_ends), found.starts) == ({}, True, 2)


def test_the_initialiser_of_the_dynamic_section(make_elf):
    """`ld -init=NAME`: any function, not that of the section `.init` alone."""
    raw = make_elf(text=text(p64=VPADDD_YMM + RET), symbols={"kernel": 64})
    elf = read_elf(raw)
    found = scan_starts(raw, replace(elf, dynamic=(*elf.dynamic, (12, CODE + 64))), "avx")
    assert features(found) == {"AVX2": (1, ("kernel+0x0",))}


def definition(at, slots_at, *, first=2):
    """The bytes of a PyModuleDef's slots, and the relocations of its `m_slots` and of their
    functions.
    """
    rows = [(CODE + at + slots_at, 8, CODE + 176), (CODE + 176 + 8, 8, CODE + 64)]
    return struct.pack("<QQQQ", first, 0, 0, 0), rows


@pytest.mark.parametrize("slots_at", [72, 88])  # with the lock of every object, and without
def test_the_slots_of_a_module_run_on_import(scan, slots_at):
    slots, rows = definition(80, slots_at)
    names = {"PyInit_m": 0, "kernel": 64}
    load = LEA_RDI + struct.pack("<i", 80 - 7) + RET
    code = text(p0=load, p64=VPADDD_YMM + RET, p176=slots)
    assert features(scan(code, symbols=names, relocations=rows)) == {"AVX2": (1, ("kernel+0x0",))}
    assert features(scan(code, symbols={"init": 0, "kernel": 64}, relocations=rows)) == {}
    ended, rows = definition(80, slots_at, first=0)
    assert (
        features(
            scan(text(p0=load, p64=VPADDD_YMM + RET, p176=ended), symbols=names, relocations=rows)
        )
        == {}
    )


def test_a_module_whose_definition_is_exported(scan):
    """Its address comes from the GOT, since another library could define it as well."""
    slots, rows = definition(80, 72)
    got = 0x5000
    code = text(
        p0=MOV_RDI + struct.pack("<i", got - (CODE + 7)) + RET, p64=VPADDD_YMM + RET, p176=slots
    )
    names = {"PyInit_m": 0, "kernel": 64, "definition": 80}
    found = scan(code, symbols=names, relocations=[*rows, (got, 3 << 32 | 6, 0)])
    assert features(found) == {"AVX2": (1, ("kernel+0x0",))}


def test_what_cannot_be_checked_is_said(make_elf):
    raw = make_elf(machine=183)
    assert "aarch64" in scan_starts(raw, read_elf(raw), "avx").result.not_checked
    raw = bytearray(make_elf())
    struct.pack_into("<Q", raw, 40, 0)
    assert "section table" in scan_starts(bytes(raw), read_elf(raw), "avx").result.not_checked


def test_a_library_without_initialisers_is_clean(scan):
    found = scan(text(p0=VPADDD_YMM))
    assert (found.starts, features(found), found.result.not_checked) == (0, {}, None)


def test_pointers_that_lead_nowhere(scan):
    assert scan(text(), init=[1 << 40, 100_000]).starts == 0
    with pytest.raises(VerificationFailedError, match="symbol beyond"):
        scan(text(), relocations=[(0x5000, 77 << 32 | 7, 0)])


@examples(200)
@given(data=st.data())
def test_mutated_libraries_give_one_error_only(make_elf, data):
    code = text(p0=call(0, 32) + RET, p32=jump(32, 64), p64=VPADDD_YMM + RET)
    raw = bytearray(
        make_elf(text=code, symbols={"f": 0}, init=[0, 32], relocations=[(0x5000, 1 << 32 | 7, 0)])
    )
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(16, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = scan_starts(bytes(raw), read_elf(raw), "sse41")
    except VerificationFailedError:
        return
    assert found.instructions <= len(raw)


def test_functions_of_other_libraries_are_named(scan):
    """By the PLT, and by a pointer in the GOT; what is called in turn is followed from its name
    on.
    """
    got = 0x5000
    stub = b"\xff\x25" + struct.pack("<i", got - (CODE + 32 + 6))
    direct = b"\xff\x15" + struct.pack("<i", got + 8 - (CODE + 64 + 6)) + RET
    code = text(p0=call(0, 32) + call(5, 64) + RET, p32=stub, p64=direct, p80=VPADDD_YMM + RET)
    rows = [(got, 3 << 32 | 7, 0), (got + 8, 4 << 32 | 6, 0)]
    found = scan(code, init=[0], takes=["one", "two"], relocations=rows)
    assert (found.calls, found.open_ends) == ({"one", "two"}, 0)


@pytest.mark.parametrize("taker", ["pthread_once", "__cxa_atexit"])
@pytest.mark.parametrize("leave", [call, jump])
def test_a_function_that_another_one_gets_may_run(scan, taker, leave):
    stub = b"\xff\x25" + struct.pack("<i", 0x5000 - (CODE + 32 + 6))
    code = text(
        p0=LEA_RDI + struct.pack("<i", 64 - 7) + leave(7, 32) + RET, p32=stub, p64=VPADDD_YMM + RET
    )
    found = scan(code, init=[0], takes=[taker], relocations=[(0x5000, 3 << 32 | 7, 0)])
    assert (features(found), found.open_ends) == ({}, 1)


def test_what_a_resolver_returns_may_run(scan):
    """An IFUNC's implementation for newer CPUs: whether it is chosen, the file does not say."""
    code = text(p0=LEA_RAX + struct.pack("<i", 64 - 7) + RET, p64=VPADDD_YMM + RET)
    found = scan(code, relocations=[(0x5000, 37, CODE)])
    assert (features(found), found.open_ends) == ({}, 1)


def test_a_finaliser_beyond_the_level(make_elf):
    """`ld -fini=NAME`, and a function of `.fini_array`: they run at exit."""
    raw = make_elf(text=text(p64=VPADDD_YMM + RET), symbols={"kernel": 64})
    elf = read_elf(raw)
    found = scan_starts(raw, replace(elf, dynamic=(*elf.dynamic, (13, CODE + 64))), "avx")
    assert features(found) == {"AVX2": (1, ("kernel+0x0",))}
    raw = make_elf(text=text(p64=VPADDD_YMM + RET), symbols={"kernel": 64}, init=[64])
    elf = read_elf(raw)
    finalisers = tuple(replace(part, kind=15) if part.kind == 14 else part for part in elf.sections)
    found = scan_starts(raw, replace(elf, sections=finalisers), "avx")
    assert features(found) == {"AVX2": (1, ("kernel+0x0",))}


@pytest.mark.parametrize(
    "name", ["PyObject_Call", "_PyObject_New", "PyEval_EvalCode", "_ZNSo3putEc", "__cxa_throw"]
)
def test_what_calls_back_or_ends_in_a_handler_leaves_open_what_runs(scan, name):
    """Types' own functions, virtual ones of a stream, `catch`: pointers alone lead there."""
    stub = b"\xff\x25" + struct.pack("<i", 0x5000 - (CODE + 32 + 6))
    code = text(p0=call(0, 32) + RET, p32=stub, p64=VPADDD_YMM + RET)
    for taken, ends in ((name, 1), ("PyType_Ready", 0), ("_ZNSt8ios_base4InitC1Ev", 0)):
        found = scan(code, init=[0], takes=[taken], relocations=[(0x5000, 3 << 32 | 7, 0)])
        assert (features(found), found.open_ends) == ({}, ends)


MOVABS = b"\x48\xb8" + bytes(8)  # ten bytes


def test_long_runs_are_decoded_whole(make_elf):
    """Across the windows that are decoded at a time and across pages, whatever instruction lies
    over their border.
    """
    for shift in range(12):
        code = b"\x90" * shift + MOVABS * 900 + VPADDD_YMM + RET
        raw = make_elf(text=code, symbols={"ctor": 0}, init=[0])
        found = scan_starts(raw, read_elf(raw), "avx")
        assert found.instructions == shift + 902
        assert features(found) == {"AVX2": (1, (f"ctor+{hex(shift + 9000)}",))}


def test_a_jump_into_a_run_stops_where_that_has_been(make_elf):
    code = (
        MOVABS * 50 + b"\xeb" + struct.pack("b", -32) + RET
    )  # back to the third movabs from the end
    raw = make_elf(text=code, symbols={"ctor": 0}, init=[0])
    assert scan_starts(raw, read_elf(raw), "avx").instructions == 51
    into = (
        MOVABS * 50 + b"\xeb" + struct.pack("b", -30) + RET
    )  # into the middle of one: other instructions
    raw = make_elf(text=into, symbols={"ctor": 0}, init=[0])
    assert scan_starts(raw, read_elf(raw), "avx").instructions > 51


@pytest.mark.parametrize("before", [0, 241, 247, 250, 255])
def test_code_that_ends_in_the_middle_of_an_instruction(make_elf, before):
    raw = make_elf(text=b"\x90" * before + MOVABS[:4], symbols={"ctor": 0}, init=[0])
    found = scan_starts(raw, read_elf(raw), "avx")
    assert (found.instructions, found.result.undecodable) == (before + 1, 1)


def test_code_that_ends_with_an_instruction_across_a_window(make_elf):
    for before in range(240, 260):
        raw = make_elf(text=b"\x90" * before + MOVABS, symbols={"ctor": 0}, init=[0])
        found = scan_starts(raw, read_elf(raw), "avx")
        assert (found.instructions, found.result.undecodable) == (before + 1, 0)


MOV_RAX = b"\x48\x8b\x05" + struct.pack("<i", 0x5000 - (CODE + 7))


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        (text(p0=b"\xff\xd0" + RET), 1),  # call rax
        (text(p0=JMP_RAX), 1),
        (text(p0=RET), 0),
        # mov rax, [rip]; test rax, rax; je; call rax: what another library gives, if it is there
        (text(p0=MOV_RAX + b"\x48\x85\xc0\x74\x02\xff\xd0" + RET), 0),
        (text(p0=MOV_RAX + b"\x31\xc0\xff\xd0" + RET), 1),  # another value in the register
    ],
)
def test_calls_that_are_not_followed_are_counted(scan, code, ends):
    found = scan(code, init=[0], takes=["__gmon_start__"], relocations=[(0x5000, 3 << 32 | 6, 0)])
    assert (features(found), found.open_ends) == ({}, ends)
