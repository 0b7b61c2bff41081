"""What the loader refuses of a library that it has found: names not given, paths, stacks, copies of the system's."""

import shutil
import struct
import subprocess

import pytest

from farm.wheel.policy import Policy
from farm.wheel.verify import verify

LINUX = "cp311-cp311-manylinux_2_17_x86_64"
WINDOWS = "cp311-cp311-win_amd64"


@pytest.fixture
def found(tmp_path, make_wheel):
    def run(files, tag=LINUX, **policy):
        report = verify(make_wheel(tmp_path, files, tag=tag), Policy(**policy))
        return [(f.where, f.what) for f in report.findings if f.check == "link"]

    return run


@pytest.mark.parametrize(
    ("runpath", "text"),
    [
        ("/home/builder/lib", "a folder of the machine that built it"),
        ("$ORIGIN:/usr/local/cuda/lib64", "names /usr/local/cuda/lib64"),
        ("", None),  # glibc: "Ignore empty rpaths", as it says
        (":", "an empty entry"),
        ("$ORIGIN::$ORIGIN/lib", "an empty entry"),
        ("$ORIGIN/../..:$ORIGIN:$ORIGIN/../..", "leads out of site-packages"),
        ("lib", "relative to the folder"),
        ("$ORIGIN/../..", "leads out of site-packages"),
        ("$ORIGIN/../../../lib", "leads out of site-packages"),
        ("$ORIGINAL/lib", "relative to the folder"),
        ("$ORIGIN", None),
        ("${ORIGIN}/../canary.libs", None),
        ("$ORIGIN/..", None),
        ("$ORIGIN.libs", None),  # to glibc a name ends where no letter of it could follow
        ("$ORIGIN/$LIB:$ORIGIN/${PLATFORM}", None),
        ("$LIB", "relative to the folder"),
        ("$ORIGIN/../../canary", None),  # as jaxlib's: beside Python's own modules, where no package of the name is
        ("$ORIGIN/../../../canary", "leads out of site-packages"),
        ("$ORIGIN/../../torch/lib", "leads out of site-packages"),
        ("/opt/_internal/cpython-3.11.13/lib", None),
    ],
)
def test_runpath(found, make_elf, runpath, text):
    for kind in ("runpath", "rpath"):
        wrong = found({"canary/_C.so": make_elf(needed=["libc.so.6"], **{kind: runpath})})
        assert len(wrong) == (text is not None)
        assert all(text in what for _, what in wrong)


@pytest.mark.parametrize(
    ("needed", "entry", "fine"),
    [
        ("libc.musl-x86_64.so.1", "/usr/local/lib", True),
        ("libc.musl-x86_64.so.1", "/usr/local/lib/", True),
        ("libc.musl-x86_64.so.1", "/usr/local/lib/x", False),
        ("libc.so.6", "/usr/local/lib", False),
    ],
)
def test_folders_in_which_musl_looks_anyway(found, make_elf, needed, entry, fine):
    """h5py 3.16 and shapely 2.2 for musllinux."""
    tag = f"cp311-cp311-{'musllinux_1_2' if 'musl' in needed else 'manylinux_2_17'}_x86_64"
    assert (found({"canary/_C.so": make_elf(needed=[needed], runpath=entry)}, tag) == []) == fine


def test_an_executable_stack(found, make_elf):
    raw = bytearray(make_elf(needed=["libc.so.6"]))
    # The second program header, PT_DYNAMIC, stays: a third one takes the place of the padding behind the text.
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 7, 0, 0, 0, 0, 0, 16)
    moved = raw + raw[64:176] + stack
    struct.pack_into("<Q", moved, 32, len(raw))
    struct.pack_into("<H", moved, 56, 3)
    assert found({"canary/_C.so": bytes(moved)}) == [("canary/_C.so", "asks for an executable stack")]


@pytest.mark.parametrize(
    ("flags", "relocation", "moved"),
    [
        (5, 8, True),
        (7, 8, False),  # into what may be written
        (5, 0, False),  # RISC-V's linkers leave such entries, and the mark: official wheels of ruff have them
    ],
)
def test_text_relocations(found, make_elf, flags, relocation, moved):
    raw = bytearray(make_elf(needed=["libc.so.6", "libm.so.6"], relocations=[(176, relocation, 176)]))
    (at,), (length,) = struct.unpack_from("<Q", raw, 64 + 56 + 8), struct.unpack_from("<Q", raw, 64 + 56 + 32)
    size, tags = len(raw), raw[at : at + length - 16]
    table = raw.index(struct.pack("<QQq", 176, relocation, 176))
    tags += struct.pack("<10Q", 22, 0, 7, table, 8, 24, 9, 24, 0, 0)
    raw += bytes(-size % 8) + tags
    struct.pack_into("<QQQQQ", raw, 64 + 56 + 8, *[size + -size % 8] * 3, len(tags), len(tags))
    struct.pack_into("<I", raw, 64 + 4, flags)
    struct.pack_into("<QQ", raw, 64 + 32, len(raw), len(raw))
    assert [what for _, what in found({"canary/_C.so": bytes(raw)}) if "text relocations" in what] == (
        ["its code must be changed when it is loaded (text relocations)"] if moved else []
    )


def test_a_library_that_may_not_be_opened(found, make_elf):
    """Such a library may be linked, by a program that loads it before it runs: glibc refuses it to all of Python's."""
    raw = make_elf(needed=["libc.so.6", "libm.so.6"])
    for flag, what in ((0x40, ["no program may open it while it runs (DF_1_NOOPEN)"]), (0x80, [])):
        marked = raw.replace(struct.pack("<QQ", 1, 11), struct.pack("<QQ", 0x6FFFFFFB, flag), 1)  # for libm.so.6
        assert marked != raw
        assert [each for _, each in found({"canary/_C.so": marked})] == what


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("kernel32.dll", WINDOWS),
        ("Python39.dll", WINDOWS),
        ("nvcuda.dll", WINDOWS),
        ("libc.so.6", LINUX),
        ("ld-linux-x86-64.so.2", LINUX),
        ("ld64.so.2", LINUX),  # of POWER
        ("libcuda.so.1", LINUX),
    ],
)
def test_copies_of_the_systems_libraries(found, make_elf, make_pe, name, tag):
    raw = make_pe(needed=["user32.dll"]) if tag is WINDOWS else make_elf()
    [(_, what)] = found({f"canary/{name}": raw}, tag=tag)
    assert "is a copy of" in what


@pytest.mark.parametrize("name", ["d3dcompiler_47.dll", "ucrtbase.dll", "api-ms-win-crt-heap-l1-1-0.dll"])
def test_copies_that_microsoft_has_programs_bring(found, make_pe, name):
    assert found({f"canary/{name}": make_pe(needed=["KERNEL32.dll"])}, tag=WINDOWS) == []


def test_dlls_that_do_not_export_what_is_taken(found, make_pe):
    files = {
        "canary/_C.pyd": make_pe(needed=["one.dll"], takes={"one.dll": "wanted"}),
        "canary/one.dll": make_pe(exports=["wanted", "other"]),
    }
    assert found(files, WINDOWS) == []
    files["canary/one.dll"] = make_pe(exports=["other"])
    text = "takes wanted from one.dll, which does not export it"
    assert found(files, WINDOWS) == [("canary/_C.pyd", text)]
    files["canary/_C.pyd"] = make_pe(needed=["one.dll"])  # by its ordinal, 1
    assert found(files, WINDOWS) == []
    files["canary/one.dll"] = make_pe(exports=[])
    assert found(files, WINDOWS) == [("canary/_C.pyd", "takes #1 from one.dll, which does not export it")]


def test_what_kernel32_gives(found, make_pe):
    for name, text in [("GetTickCount", []), ("NoSuchFunction", ["takes NoSuchFunction from kernel32.dll"])]:
        taken = make_pe(needed=["kernel32.dll"], takes={"kernel32.dll": name})
        wrong = [what for _, what in found({"canary/_C.pyd": taken}, WINDOWS)]
        assert [what.partition(",")[0] for what in wrong] == text


@pytest.mark.parametrize(
    ("name", "tag", "wrong"),
    [
        ("_C.pyd", WINDOWS, True),
        ("c10.DLL", WINDOWS, True),
        ("_C.cpython-311-x86_64-linux-gnu.so", LINUX, True),
        ("_C.abi3.so", LINUX, True),
        ("libc10.so", LINUX, False),  # a linker script
        ("_C.so.txt", LINUX, False),
        ("_C.pyd", LINUX, False),
    ],
)
def test_files_with_a_librarys_name(found, name, tag, wrong):
    for content in (b"", b"GROUP ( libc10.so.1 )"):
        what = [("canary/" + name, "is named as a library, and is none")] * wrong
        assert found({f"canary/{name}": content}, tag) == what


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Libraries of a real linker: `give` defines a name, `take` uses it."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: real link errors are made with one")
    folder = tmp_path_factory.mktemp("built")
    sources = {"give": "int given(void) { return 1; }", "empty": "int unrelated;"}
    sources["take"] = (
        "#include <dlfcn.h>\nint given(void); void *run(void) { return (void *)(long)given() + (long)dlsym; }"
    )
    made = {}
    for name, text in sources.items():
        source = folder / f"{name}.c"
        source.write_text(text, encoding="utf-8")
        links = [f"-L{folder}", "-lgive", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"] if name == "take" else []
        soname = "libgive.so" if name != "take" else "take.so"
        out = folder / ("libgive.so" if name == "give" else f"{name}.so")
        command = ["cc", "-shared", "-fPIC", "-o", str(out), str(source), f"-Wl,-soname,{soname}", *links]
        subprocess.run(command, check=True)
        made[name] = out.read_bytes()
    return made


def test_symbols_that_no_library_gives(found, built):
    """The loader of this machine is the judge: what it refuses is refused, what it loads passes."""
    tag = "cp311-cp311-manylinux_2_39_x86_64"
    assert found({"canary/take.so": built["take"], "canary/libgive.so": built["give"]}, tag) == []
    wrong = found({"canary/take.so": built["take"], "canary/libgive.so": built["empty"]}, tag)
    assert wrong == [("canary/take.so", "undefined symbol: given")]


def test_names_of_the_cxx_runtime_may_lack_a_version(found, tmp_path):
    """As in libtorch.so of torch 1.12.1, which finds them in what the libraries that it needs have brought in."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler: real names are made with one")
    source = tmp_path / "take.cpp"
    source.write_text(
        "#include <string>\n#include <typeinfo>\nint ours();\n"
        "std::string run(std::string a) { if (a.empty()) throw std::bad_cast(); return a + a; }\n"
    )
    for wanted, wrong in [("", []), ("int more = ours();", ["undefined symbol: _Z4oursv"])]:
        source.write_text(source.read_text() + wanted + "\n")
        out = tmp_path / "take.so"
        links = ["-nostdlib", "-Wl,--no-as-needed", "-lc", "-D_GLIBCXX_USE_CXX11_ABI=0"]
        subprocess.run(["c++", "-shared", "-fPIC", "-o", str(out), str(source), *links], check=True)
        files = {"canary/take.so": out.read_bytes()}
        assert [what for _, what in found(files, "cp311-cp311-manylinux_2_39_x86_64")] == wrong


def test_names_that_glibc_gives_without_a_version(found, make_elf):
    assert found({"canary/_C.so": make_elf(needed=["libc.so.6"])}) == []


@pytest.mark.parametrize(
    ("machine", "tag", "refused"),
    [
        (183, "android_24_arm64_v8a", []),
        (62, "android_24_x86_64", []),
        (62, "android_24_arm64_v8a", ["platform"]),
        (183, "any", ["imports", "platform"]),
    ],
)
def test_a_wheel_for_android_holds_libraries_of_its_machine(tmp_path, make_wheel, make_elf, machine, tag, refused):
    """libpython and Android's own libraries are not looked up."""
    library = make_elf(machine=machine, needed=["libc.so", "libpython3.13.so"])
    tag = f"py3-none-{tag}" if tag == "any" else f"cp313-cp313-{tag}"
    path = make_wheel(tmp_path, {"canary/_C.so": library}, tag=tag)
    found = {f.check for f in verify(path, Policy()).findings}
    assert sorted(found & {"imports", "platform"}) == refused


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_names_of_pypy_and_graalpy_come_from_the_interpreter(tmp_path, found):
    source = tmp_path / "take.c"
    for name, wrong in [("pypy_carefully_make_gil", []), ("GraalPyList_SET_ITEM", []), ("unknown_function", [1])]:
        source.write_text(f"int {name}(void); int own(void) {{ return {name}(); }}")
        command = ["gcc", "-shared", "-fPIC", "-o", tmp_path / "take.so", source]
        subprocess.run([*command, "-Wl,--no-as-needed", "-lc"], check=True)
        assert len(found({"canary/take.so": (tmp_path / "take.so").read_bytes()})) == len(wrong), name


@pytest.mark.parametrize(
    ("interpreter", "machine", "named"),
    [
        ("/lib64/ld-linux-x86-64.so.2", 62, None),
        ("/lib/ld-musl-x86_64.so.1", 62, None),
        ("/lib/ld-linux-aarch64.so.1", 183, None),
        ("/lib64/ld-linux-x86-64.so.2", 183, "/lib64/ld-linux-x86-64.so.2"),
        ("/nix/store/0c/lib/ld-linux-x86-64.so.2", 62, "/nix/store/0c/lib/ld-linux-x86-64.so.2"),
    ],
)
def test_the_interpreter_of_a_program(found, make_elf, interpreter, machine, named):
    raw = make_elf(needed=["libc.so.6"], kind=2, machine=machine)
    # A third program header, behind copies of the two, and the name behind it.
    moved = raw + raw[64:176] + struct.pack("<IIQQQQQQ", 3, 4, len(raw) + 168, 0, 0, 99, 99, 1) + interpreter.encode()
    moved = bytearray(moved + b"\0")
    struct.pack_into("<Q", moved, 32, len(raw))
    struct.pack_into("<H", moved, 56, 3)
    tag = LINUX if machine == 62 else LINUX.replace("x86_64", "aarch64")
    wrong = [what for _, what in found({"canary/bin/tool": bytes(moved)}, tag=tag)]
    assert [what for what in wrong if "interpreter" in what] == wrong
    assert len(wrong) == (named is not None)
    assert all(repr(named) in what for what in wrong)
    assert not any("interpreter" in what for _, what in found({"canary/libtool.so": bytes(moved)}, tag=tag))
