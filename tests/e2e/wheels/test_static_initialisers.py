"""Static initialisers as a real compiler writes them: found if they need AVX2, and only then."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from farm.wheel.elf import read_elf
from farm.wheel.isa.scan import scan_isa, scan_starts

KERNEL = """
extern "C" float kernel(const float *a, const float *b) {
  float sum = 0;
  for (int i = 0; i < 64; i++) sum += a[i] * b[i];
  return sum;
}
extern "C" __attribute__((noinline)) void fill(int *p, int n) { for (int i = 0; i < 64; i++) p[i] = p[i] * n + i; }
int out[64];
"""
GLOBAL = "struct Table { Table() { fill(out, 3); } } table;"


@pytest.fixture
def compiled(tmp_path: Path):
    compiler = shutil.which("g++")
    if compiler is None:
        message = "g++ is missing: install the Debian package g++"
        if os.environ.get("FARM_REQUIRE") == "all":
            pytest.fail(message)
        pytest.skip(message)

    def compile_(code: str, *flags: str) -> bytes:
        (tmp_path / "a.cpp").write_text(code)
        command = [
            compiler,
            "-O3",
            "-ffast-math",
            "-shared",
            "-fPIC",
            *flags,
            "a.cpp",
            "-o",
            "a.so",
        ]
        subprocess.run(command, cwd=tmp_path, check=True)
        return (tmp_path / "a.so").read_bytes()

    return compile_


@pytest.mark.parametrize(
    "flags", [[], ["-fno-plt"], ["-Wl,-z,pack-relative-relocs"], ["-s"]], ids=str
)
def test_an_avx2_constructor(compiled, flags: list[str]) -> None:
    raw = compiled(KERNEL + GLOBAL, "-mavx2", "-mfma", *flags)
    found = scan_starts(raw, read_elf(raw), "avx")
    assert "AVX2" in {find.feature for find in found.result.beyond}
    assert scan_starts(raw, read_elf(raw), "avx2").result.beyond == ()


def test_the_same_kernels_without_the_constructor(compiled) -> None:
    raw = compiled(KERNEL, "-mavx2", "-mfma")
    assert {"AVX2", "FMA"} <= {find.feature for find in scan_isa(raw, read_elf(raw), "avx").beyond}
    found = scan_starts(raw, read_elf(raw), "avx")
    assert (found.result.beyond, found.starts >= 1) == ((), True)


POINTERS = """
typedef void (*function)(int *);
struct record { const char *name; function run; };
int out[64], many = 2;
__attribute__((target("avx2"), noinline)) static void fast(int *p) { for (int i = 0; i < 64; i++) p[i] = p[i] * 3 + i; }
static void plain(int *p) { p[0] = 1; }
"""
CALLED = {
    "table": "static const function t[] = {plain, fast};"
    "__attribute__((constructor)) static void c() { for (int i = 0; i < many; i++) t[i](out); }",
    "exported": "extern function t[]; function t[] = {plain, fast};"
    "__attribute__((constructor)) static void c() { for (int i = 0; i < many; i++) t[i](out); }",
    "records": 'static const record t[] = {{"a", plain}, {"b", fast}};'
    "__attribute__((constructor)) static void c() { for (int i = 0; i < many; i++) t[i].run(out); "
    "}",
    "helper": "static const function t[] = {plain, fast};"
    "__attribute__((noinline)) static void all(const function *a, int n) { for (int i = 0; i < n; "
    "i++) a[i](out); }"
    "__attribute__((constructor)) static void c() { all(t, many); }",
}
CHOSEN = (
    "static const function t[] = {plain, fast}; function chosen;"
    "__attribute__((constructor)) static void c() { __builtin_cpu_init(); "
    'chosen = t[!!__builtin_cpu_supports("avx2")]; }'
)


@pytest.mark.parametrize(
    "flags", [[], ["-Wl,-z,pack-relative-relocs"], ["-s", "-fno-plt"]], ids=str
)
@pytest.mark.parametrize("how", CALLED)
def test_an_initialiser_that_calls_avx2_code_through_pointers(
    compiled, how: str, flags: list[str]
) -> None:
    """Where the compiler leaves the pointers, what runs is open, and the emulated import
    decides.
    """
    raw = compiled(POINTERS + CALLED[how], *flags)
    scan = scan_starts(raw, read_elf(raw), "avx")
    features = {find.feature for find in scan.result.beyond}
    assert features == {"AVX2"} or (features == set() and scan.open_ends)


def test_an_initialiser_that_only_chooses(compiled) -> None:
    raw = compiled(POINTERS + CHOSEN)
    assert scan_starts(raw, read_elf(raw), "avx").result.beyond == ()
