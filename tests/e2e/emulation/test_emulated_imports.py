"""`farm verify --emulate`: what runs on loading, by the CPU itself where the static check cannot follow."""

import json
import os
import subprocess

import pytest

from farm.cli.main import main
from tests.unit.wheel.conftest import build_wheel

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="machine code for x86-64")
# AVX2, behind a pointer that is made at run time: no static look finds where it leads.
CODE = """
typedef void (*function)(void);
static void kernel(void) { __asm__ volatile("vpaddd %%ymm0, %%ymm0, %%ymm0" ::: "xmm0"); }
static volatile long key = 0x5a5a;
__attribute__((constructor)) static void start(void) { ((function)((long)kernel ^ key ^ 0x5a5a))(); }
"""


@pytest.mark.parametrize(
    # A library without any instruction beyond the level needs no look at what runs.
    ("level", "code", "note"),
    [("avx", 6, "not decided in 1 of them"), ("avx2", 0, "1 libraries decoded")],
)
def test_a_library_is_loaded_on_a_cpu_of_the_level(tmp_path, emulator, capsys, level, code, note):
    (tmp_path / "c.c").write_text(CODE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", "c.so", "c.c"], cwd=tmp_path, check=True)
    files = {"canary/__init__.py": b"", "canary/libplain.so": (tmp_path / "c.so").read_bytes()}
    wheel = build_wheel(tmp_path / "in", files, tag="py3-none-manylinux_2_17_x86_64")
    (tmp_path / "policy.yaml").write_text(f'cpu: {level}\ndispatching: ["*"]\n')
    command = ["verify", str(wheel), "--policy", str(tmp_path / "policy.yaml"), "--json"]
    assert main(command) == 0
    [before] = [check for check in json.loads(capsys.readouterr().out)["checks"] if check["id"] == "cpu"]
    assert note in before["note"]
    assert main([*command, "--emulate"]) == code
    [after] = [check for check in json.loads(capsys.readouterr().out)["checks"] if check["id"] == "cpu"]
    assert [finding["where"] for finding in after["findings"]] == (["canary/libplain.so"] if code else [])
    assert f"{0 if code else 1} of 1 libraries loaded on" in after["note"]
