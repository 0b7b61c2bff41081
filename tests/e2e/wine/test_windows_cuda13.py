"""CUDA 13 out of NVIDIA's wheels on Windows: NVIDIA's own nvcc.exe makes the canary's kernels,
called by build.cmd.

Real: pip of Windows' CPython, which fetches the wheels; nvcc.exe, cicc.exe, ptxas.exe and
fatbinary.exe 13.0. Not real: MSVC (windows_toolchain.py). Headers of MSVC are not read by nvcc
here, so code of the host goes past it. The build ends where cudart.lib is linked: from CUDA 13 on
it holds code that needs Microsoft's C runtime (__security_cookie).
"""

import subprocess
from pathlib import Path

import pytest

from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant
from tests.e2e.wine.windows_host import ROOT
from tests.e2e.wine.windows_python import GCC, windows_path
from tests.e2e.wine.windows_toolchain import Toolchain

TIMEOUT_S = 900
PROGRAM = """#include <stdio.h>
int nvvmVersion(int *, int *);
int main(void) { int major = 0, minor = 0; nvvmVersion(&major, &minor); printf("nvvm %d", major); return 0; }
"""


@pytest.fixture(scope="module")
def plan():
    return resolve(
        ROOT, BuildRequest(Variant.parse("sm120-avx2-py311"), "canary", "windows", "cuda13-wheels")
    )


@pytest.fixture(scope="module")
def toolchain(wine, windows_python, require, plan, tmp_path_factory):
    c = Path(wine["WINEPREFIX"]) / "drive_c"
    made = Toolchain(c, windows_python, tmp_path_factory.mktemp("cuda13"), require, plan)
    made.archives()
    yield made
    made.remove()


def build(toolchain, plan, kit):
    """Start build.cmd of a kit to its end; the text of its log."""
    wine = toolchain.python.wine
    subprocess.run(
        ["wine", "cmd", "/d", "/c", "build.cmd"],
        cwd=kit,
        env={**wine, "FARM_PYTHON": windows_path(toolchain.python.exe)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    log = toolchain.c / "farm/out" / plan.digest[:12] / "build.log"
    return log.read_text(errors="replace")


@pytest.fixture(scope="module")
def built(toolchain, plan):
    """What build.cmd of the rendered kit left on drive C, and what it said."""
    return toolchain.c, build(toolchain, plan, toolchain.kit(plan, toolchain.folder / "kit"))


def test_nvidias_compiler_makes_code_for_the_card(built):
    c, log = built
    assert "step toolkit" in log
    assert 'found version "13.0.88"' in log, log
    made = list((c / "farm/src").rglob("cuda_kernels.fatbin"))
    assert len(made) == 1, log
    code = made[0].read_bytes()
    start = code.index(b"\x7fELF")
    assert int.from_bytes(code[start + 18 : start + 20], "little") == 190, log  # EM_CUDA
    assert b".text.canary_multiply_float" in code
    assert "step build FAILED" not in log or "__security_cookie" in log, log


def test_nvcc_keeps_the_toolset_that_build_cmd_set_up(built, toolchain, plan):
    """NVIDIA's nvcc.exe on a machine with a newer toolset beside the plan's: by default it sets up
    the newer one for each call, as the same kit without the plan's flag shows.
    """
    c, log = built
    set_up = c / "vc/vcvars64.log"
    assert not set_up.exists(), log
    kit = toolchain.kit(plan, toolchain.folder / "without")
    script = kit / "build.cmd"
    flag = 'set "NVCC_APPEND_FLAGS=--use-local-env'
    lines = script.read_text().splitlines()
    left_out = [line for line in lines if not line.startswith(flag)]
    assert len(left_out) == len(lines) - 1
    script.write_bytes("\r\n".join(left_out).encode() + b"\r\n")
    log = build(toolchain, plan, kit)
    assert "set up 14.44" in set_up.read_text(), log


def test_a_library_that_the_wheels_lack_links_and_loads(built, wine, plan, tmp_path):
    """nvvm.lib, of a DLL that answers without a driver."""
    c, _ = built
    home = c / plan.env["CUDA_HOME"].removeprefix("C:/")
    (tmp_path / "a.c").write_text(PROGRAM)
    exe = home / "bin/x86_64/a.exe"
    command = [GCC, "-o", exe, tmp_path / "a.c", home / "lib/x64/nvvm.lib"]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    done = subprocess.run(
        ["wine", exe], env=wine, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout == "nvvm 2", done
