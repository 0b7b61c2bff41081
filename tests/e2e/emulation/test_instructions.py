"""An emulated CPU runs the instructions of its level and stops at newer ones."""

import pytest

from farm.smoke.runner import Expectation, run_probe
from tests import fakemod

# vaddps ymm0, ymm0, ymm0 is AVX; vpaddd ymm0, ymm0, ymm0 is AVX2 (Intel SDM, volume 2).
RUNS_BYTES = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("{code} c5f877 c3"))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""
AVX, AVX2 = "c5fc58c0", "c5fdfec0"


@pytest.mark.parametrize(
    ("model", "code", "outcome"),
    [
        ("Penryn", AVX, "failed"),
        ("SandyBridge", AVX, "passed"),
        ("SandyBridge", AVX2, "failed"),
        ("Haswell", AVX2, "passed"),
    ],
)
def test_an_emulated_cpu_has_its_instructions_and_no_newer_ones(
    tmp_path, emulator, model, code, outcome
):
    python = fakemod.install(tmp_path / "env", RUNS_BYTES.format(code=code))
    report = run_probe(python, module="fakemod", expect=Expectation(), timeout_s=120, emulate=model)
    assert (report.outcome, report.emulated) == (outcome, model)
    if outcome == "failed":
        assert report.signal == "SIGILL"
        assert report.reason.endswith("the CPU lacks an instruction that the wheel uses")
        assert model in report.hint
    else:
        assert {c.reason for c in report.checks if c.group == "cuda"} == {
            "only the CPU part was asked for"
        }
