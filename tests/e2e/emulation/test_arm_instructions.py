"""AArch64 code of a real compiler: what verify says of it, and whether an emulated Arm CPU runs
it.
"""

import shutil
import subprocess

import pytest

from farm.wheel.elf import read_elf
from farm.wheel.isa.scan import scan_isa
from tests.e2e.conftest import need

SOURCE = """
void sum(float *a, const float *b, int n) {{ for (int i = 0; i < n; i++) a[i] += b[i]; }}
int add(int *p) {{ return __atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST); }}
int main(void) {{
    float a[64], b[64];
    int count = 0;
    for (int i = 0; i < 64; i++) {{ a[i] = i; b[i] = 1; }}
    sum(a, b, 64);
    {extra}
    return a[63] == 64.0f && add(&count) == 0 ? 0 : 1;
}}
"""
BFDOT = '__asm__ volatile(".arch armv8.2-a+bf16\\n bfdot v0.4s, v1.8h, v2.8h" ::: "v0");'
N1, V1 = "neoverse-n1", "max"
CASES = [
    ("-march=armv8.2-a", "", N1, True),
    ("-march=armv8-a", "", N1, True),
    ("-march=armv8.2-a+sve", "", N1, False),
    ("-march=armv9-a", "", N1, False),
    ("-march=armv9-a", "", V1, True),
    ("-march=armv8.2-a", BFDOT, N1, False),
]
"""Flags, further code, the CPU, and whether it runs there. A Neoverse N1 has no SVE and no BF16."""


@pytest.mark.parametrize(("flags", "extra", "model", "runs"), CASES)
def test_static_answer_and_emulation_agree(tmp_path, flags, extra, model, runs):
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        need(
            "a compiler or an emulator for AArch64", "Debian's gcc-aarch64-linux-gnu and qemu-user"
        )
    program = tmp_path / "program"
    (tmp_path / "program.c").write_text(SOURCE.format(extra=extra))
    words = [compiler, "-O3", flags, "-static", "-o", program, tmp_path / "program.c"]
    subprocess.run(words, check=True)
    library = (
        tmp_path / "library.so"
    )  # the code above alone: the C library of a static program asks the CPU
    subprocess.run(
        [compiler, "-O3", flags, "-shared", "-nostdlib", "-o", library, tmp_path / "program.c"],
        check=True,
    )
    done = subprocess.run([emulator, "-cpu", model, program], check=False, capture_output=True)
    raw = library.read_bytes()
    beyond = scan_isa(raw, read_elf(raw), "armv8_2" if model == N1 else "armv9").beyond
    assert (done.returncode == 0, beyond == ()) == (runs, runs), (done.returncode, beyond)
