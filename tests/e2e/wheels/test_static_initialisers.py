"""Static initialisers as a real compiler writes them: found if they need AVX2, and only then."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from farm.wheel.elf import read_elf
from farm.wheel.initscan import scan_starts
from farm.wheel.isa import scan_isa

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
        command = [compiler, "-O3", "-ffast-math", "-shared", "-fPIC", *flags, "a.cpp", "-o", "a.so"]
        subprocess.run(command, cwd=tmp_path, check=True)
        return (tmp_path / "a.so").read_bytes()

    return compile_


@pytest.mark.parametrize("flags", [[], ["-fno-plt"], ["-Wl,-z,pack-relative-relocs"], ["-s"]], ids=str)
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
