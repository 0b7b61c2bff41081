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

from farm.plan.build import resolve
from farm.plan.selectors import Selectors
from farm.plan.variant import Variant
from tests.e2e.wine.windows_host import ROOT
from tests.e2e.wine.windows_python import GCC, windows_path
from tests.e2e.wine.windows_toolchain import TOOLSETS, Toolchain

TIMEOUT_S = 900
PROGRAM = """#include <stdio.h>
int nvvmVersion(int *, int *);
int main(void) { int major = 0, minor = 0; nvvmVersion(&major, &minor); printf("nvvm %d", major); return 0; }
"""


@pytest.fixture(scope="module")
def plan():
    return resolve(
        ROOT, Selectors(Variant.parse("sm120-avx2-py311"), "canary", "windows", "cuda13-wheels")
    )


@pytest.fixture(scope="module")
def built(wine, windows_python, require, plan, tmp_path_factory):
    """What build.cmd of the rendered kit left on drive C, and what it said."""
    c = Path(wine["WINEPREFIX"]) / "drive_c"
    folder = tmp_path_factory.mktemp("cuda13")
    made = Toolchain(c, windows_python, folder, require, plan)
    made.archives()
    kit = made.kit(plan, folder / "kit")
    subprocess.run(
        ["wine", "cmd", "/d", "/c", "build.cmd"], cwd=kit, env=wine | {"FARM_PYTHON": windows_path(windows_python.exe)},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    yield c, (c / "farm/out" / plan.digest[:12] / "build.log").read_text(errors="replace")
    made.remove()


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


NVCC = r"""@set "PATH={cl};{cuda}\bin;%PATH%"
@set "INCLUDE=C:\vc\sdk"
@set "NVCC_APPEND_FLAGS={flags}"
@nvcc.exe -fatbin -gencode=arch=compute_120,code=sm_120 -o a.fatbin a.cu
"""


@pytest.mark.parametrize("planned", [False, True])
def test_nvcc_keeps_the_toolset_by_the_flags_of_the_plan(built, wine, plan, tmp_path, planned):
    """On a machine with two toolsets NVIDIA's nvcc.exe starts vcvars64.bat by itself, which sets up
    the newest, unless the plan's flags keep it from that.
    """
    c, _ = built
    started = c / "vc/vcvars64.log"
    started.unlink(missing_ok=True)
    [cl] = (c / TOOLSETS).glob(f"{plan.windows.toolset}.*/bin/Hostx64/x64")
    script = NVCC.format(
        cl="C:\\" + str(cl.relative_to(c)).replace("/", "\\"),
        cuda=plan.env["CUDA_HOME"].replace("/", "\\"),
        flags=plan.env["NVCC_APPEND_FLAGS"] if planned else "",
    )
    (tmp_path / "nvcc.cmd").write_text(script.replace("\n", "\r\n"))
    (tmp_path / "a.cu").write_text("__global__ void f() {}\n")
    done = subprocess.run(
        ["wine", "cmd", "/d", "/c", "nvcc.cmd"], cwd=tmp_path, env=wine, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert started.exists() is not planned, done


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
