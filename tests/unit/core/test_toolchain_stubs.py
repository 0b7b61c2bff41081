"""Stand-ins for big libraries in a carried toolchain: needs a C compiler and readelf."""

import importlib.util
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from farm.run.offline_bundle import stand_ins

ROOT = Path(__file__).parents[3]
CC = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(
    CC is None or shutil.which("readelf") is None, reason="there is no C compiler, or no readelf"
)


@pytest.fixture
def packer(monkeypatch):
    spec = importlib.util.spec_from_file_location(
        "pack_toolchain", ROOT / "dockerfiles/scripts/pack_toolchain.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "compiler", lambda: CC)
    return module


def compile_(folder, source, *options):
    return subprocess.run(
        [CC, "-nostdlib", "-x", "c", "-", "-x", "none", *options],
        input=source, text=True, cwd=folder, check=False, capture_output=True,
    )  # fmt: skip


def needed(library):
    text = subprocess.run(
        ["readelf", "-dW", str(library)], capture_output=True, text=True, check=True
    ).stdout
    return [line.partition("[")[2].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]


@pytest.fixture
def real(tmp_path):
    """A toolkit in which libcublas needs libcublasLt, and a library of the system."""
    folder = tmp_path / "real"
    folder.mkdir()
    for name, source, more in (
        ("libsystem.so.1", "int system_(void) { return 1; }", []),
        ("libcublasLt.so.11", "int cublasLtCreate(void) { return 2; }", []),
        (
            "libcublas.so.11",
            "int cublasCreate(void) { return 3; }",
            ["libcublasLt.so.11", "libsystem.so.1"],
        ),
    ):
        made = compile_(
            folder,
            source,
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{name}",
            "-Wl,--no-as-needed",
            *more,
            "-o",
            name,
        )
        assert made.returncode == 0, made.stderr
    assert needed(folder / "libcublas.so.11") == ["libcublasLt.so.11", "libsystem.so.1"]
    return folder


def test_stubs_and_libraries_are_distinguished(tmp_path, packer, real):
    found = tmp_path / "lib"
    found.mkdir()
    packer.stub(str(real / "libcublasLt.so.11"), str(found))
    shutil.copy(real / "libsystem.so.1", found)
    assert [name for name in stand_ins(found) if name.endswith((".so.1", ".so.11"))] == [
        "libcublasLt.so.11"
    ]


def test_what_links_with_a_stub_finds_the_names_of_the_libraries_behind_it(tmp_path, packer, real):
    """As with the real one: an extension uses libcublasLt and is linked with libcublas alone."""
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name in ("libcublas.so.11", "libcublasLt.so.11"):
        assert packer.stub(str(real / name), str(stubs)) == str(stubs / name)
    assert needed(stubs / "libcublas.so.11") == ["libcublasLt.so.11"]  # of the toolkit alone
    assert needed(stubs / "libcublasLt.so.11") == []
    uses = (
        "int cublasCreate(void); int cublasLtCreate(void); int f(void) { return cublasCreate() "
        "+ cublasLtCreate(); }"
    )
    program = "int f(void); void _start(void) { f(); }"
    for folder in (real, stubs):
        extension = tmp_path / f"libf-{folder.name}.so"
        made = compile_(
            tmp_path,
            uses,
            "-shared",
            "-fPIC",
            str(folder / "libcublas.so.11"),
            "-o",
            str(extension),
        )
        assert made.returncode == 0, made.stderr
        assert needed(extension) == ["libcublas.so.11"]
        linked = compile_(
            tmp_path,
            program,
            str(extension),
            f"-Wl,-rpath-link,{folder}",
            "-o",
            str(tmp_path / "x"),
        )
        assert linked.returncode == 0, linked.stderr


def test_a_version_that_a_linker_script_cannot_name_is_left_out(tmp_path, packer):
    """NVRTC's builtins have their soname as version, with a dash in it: `ld --default-symver`."""
    name, stubs = "libnvrtc-builtins.so.11.8", tmp_path / "stubs"
    stubs.mkdir()
    options = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-Wl,--default-symver", "-o", name]
    made = compile_(tmp_path, "int getBuiltins(void) { return 1; }", *options)
    assert made.returncode == 0, made.stderr
    stub = packer.stub(str(tmp_path / name), str(stubs))
    symbols = [
        subprocess.run(
            ["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True
        ).stdout
        for path in (str(tmp_path / name), stub)
    ]
    assert f"getBuiltins@@{name}" in symbols[0]
    assert "getBuiltins\n" in symbols[1]


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("length", [0, 1, 999, 1000, 1001, 25_000])
def test_what_several_cores_pack_is_one_file(packer, tmp_path, monkeypatch, cores, length):
    monkeypatch.setattr(packer, "BLOCK", 1000)
    monkeypatch.setattr(packer.os, "sched_getaffinity", lambda _: set(range(cores)))
    content = bytes(number * number % 251 for number in range(length))
    with packer.compressed(tmp_path / "x.xz") as stream:
        for at in range(0, length, 700):
            assert stream.write(content[at : at + 700]) == len(content[at : at + 700])
    packed = (tmp_path / "x.xz").read_bytes()
    with lzma.open(tmp_path / "x.xz") as plain:
        assert plain.read() == content
    blocks = [content[at : at + 1000] for at in range(0, length, 1000)]
    streams = b"".join(lzma.compress(block, preset=packer.PRESET) for block in blocks)
    assert packed.removesuffix(lzma.compress(b"", preset=packer.PRESET)) == streams, (
        "whatever the number of cores"
    )
