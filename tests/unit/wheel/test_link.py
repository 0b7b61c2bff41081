"""What the loader refuses of a library that it has found: names not given, paths, stacks, copies of
the system's.
"""

import shutil
import subprocess

import pytest

from farm.policy.rules import Policy
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
        ("$LIB", "relative to the folder"),
        (
            "$ORIGIN/../../canary",
            None,
        ),  # as jaxlib's: beside Python's own modules, where no package of the name is
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
    ("options", "text"),
    [
        ({"stack": 7}, "asks for an executable stack"),
        ({"stack": None}, "asks for an executable stack"),  # what x86-64 has without a word
        ({"stack": None, "machine": 183}, None),  # and AArch64 has not
        ({"tls": 1 << 20, "dynamic": [(30, 0x10)]}, "1048576 bytes of thread-local variables"),
        ({"tls": 1 << 20}, None),
        ({"tls": 64, "dynamic": [(30, 0x10)]}, None),
        (
            {"interpreter": "/nix/store/abc-glibc-2.40/lib/ld-linux-x86-64.so.2"},
            "a program for the loader /nix/store",
        ),
        ({"interpreter": "/lib64/ld-linux-x86-64.so.2"}, None),
        # AArch64 has kernels with pages of 64 KiB, x86 has none.
        ({"machine": 183, "pages": 4096}, "is for pages of 4 KiB at most"),
        ({"machine": 183, "pages": 16 << 10}, "of 16 KiB"),
        ({"machine": 183, "pages": 64 << 10}, None),
        ({"pages": 4096}, None),
    ],
)
def test_libraries_that_loaders_refuse_are_reported(found, make_elf, options, text):
    wrong = found({"canary/_C.so": make_elf(needed=["libc.so.6"], **options)})
    assert [what for _, what in wrong if text is None or text not in what] == []
    assert len(wrong) == (text is not None)


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


@pytest.mark.parametrize(
    "name", ["d3dcompiler_47.dll", "ucrtbase.dll", "api-ms-win-crt-heap-l1-1-0.dll"]
)
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
    assert found(files, WINDOWS) == [
        ("canary/_C.pyd", "takes #1 from one.dll, which does not export it")
    ]


def test_a_function_of_a_newer_windows_is_called_one(tmp_path, make_wheel, make_pe):
    """GetTempPath2W is of Windows 11: no rebuild from one tree brings it to Windows 10."""
    taken = make_pe(needed=["kernel32.dll"], takes={"kernel32.dll": "GetTempPath2W"})
    wheel = make_wheel(tmp_path, {"canary/_C.pyd": taken}, tag=WINDOWS)
    [finding] = [f for f in verify(wheel, Policy()).findings if f.check == "link"]
    assert "in no Windows that is known here" in finding.what
    assert "_WIN32_WINNT" in finding.fix
    assert "one tree" not in finding.fix


@pytest.mark.parametrize("name", ["MSVCP140D.dll", "vcruntime140_1d.dll", "ucrtbased.dll"])
def test_the_debug_runtime_is_named(tmp_path, make_wheel, make_pe, name):
    wheel = make_wheel(tmp_path, {"canary/_C.pyd": make_pe(needed=[name])}, tag=WINDOWS)
    [finding] = [f for f in verify(wheel, Policy()).findings if f.check == "imports"]
    assert "debug runtime" in finding.what
    assert "Release" in finding.fix


def test_what_kernel32_gives(found, make_pe):
    for name, text in [
        ("GetTickCount", []),
        ("NoSuchFunction", ["takes NoSuchFunction from kernel32.dll"]),
    ]:
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
        "#include <dlfcn.h>\nint given(void); void *run(void) { return (void *)(long)given() + "
        "(long)dlsym; }"
    )
    made = {}
    for name, text in sources.items():
        source = folder / f"{name}.c"
        source.write_text(text, encoding="utf-8")
        links = (
            [f"-L{folder}", "-lgive", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]
            if name == "take"
            else []
        )
        soname = "libgive.so" if name != "take" else "take.so"
        out = folder / ("libgive.so" if name == "give" else f"{name}.so")
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-o",
            str(out),
            str(source),
            f"-Wl,-soname,{soname}",
            *links,
        ]
        subprocess.run(command, check=True)
        made[name] = out.read_bytes()
    return made


def test_symbols_that_no_library_gives(found, built):
    """The loader of this machine is the judge: what it refuses is refused, what it loads passes."""
    tag = "cp311-cp311-manylinux_2_39_x86_64"
    assert found({"canary/take.so": built["take"], "canary/libgive.so": built["give"]}, tag) == []
    wrong = found({"canary/take.so": built["take"], "canary/libgive.so": built["empty"]}, tag)
    assert wrong == [("canary/take.so", "undefined symbol: given")]


def test_a_version_that_the_wheels_own_library_does_not_define(found, tmp_path):
    """The linker made the wheel; the library was then replaced by one of another version."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: real versions are made with one")
    source = tmp_path / "go.c"
    source.write_text("int go(void) { return 1; }\n")
    libraries = {}
    for version in ("V1", "V2"):
        script = tmp_path / version / "script"
        script.parent.mkdir()
        script.write_text(version + " { global: go; };\n")
        library = script.with_name("libgo.so")
        command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source)]
        command += [f"-Wl,--version-script={script}", "-Wl,-soname,libgo.so"]
        subprocess.run(command, check=True)
        libraries[version] = library
    source.write_text("int go(void); int run(void) { return go(); }\n")
    module = tmp_path / "take.so"
    links = [f"-L{libraries['V2'].parent}", "-lgo", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(module), str(source), *links], check=True)
    tag = "cp311-cp311-manylinux_2_39_x86_64"
    for version, wrong in [("V2", []), ("V1", ["undefined symbol: go@V2 of libgo.so"])]:
        files = {
            "canary/take.so": module.read_bytes(),
            "canary/libgo.so": libraries[version].read_bytes(),
        }
        assert [what for _, what in found(files, tag)] == wrong


def test_names_of_the_cxx_runtime_may_lack_a_version(found, tmp_path):
    """As in libtorch.so of torch 1.12.1, which finds them in what the libraries that it needs have
    brought in.
    """
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
