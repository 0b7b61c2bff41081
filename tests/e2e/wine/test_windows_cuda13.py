"""CUDA 13 out of NVIDIA's wheels on Windows: the canary by NVIDIA's own nvcc.exe, from build.cmd to a verified wheel.

Real: pip of Windows' CPython, which fetches the wheels; nvcc.exe, cicc.exe, ptxas.exe and fatbinary.exe 13.0. Not real:
MSVC (windows_toolchain.py). Headers of MSVC are not read by nvcc here, so code of the host goes past it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from farm.plan import Selectors, resolve
from farm.variant import Variant
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
    return resolve(ROOT, Selectors(Variant.parse("sm120-avx2-py311"), "canary", "windows", "cuda13-wheels"))


@pytest.fixture(scope="module")
def built(wine, windows_python, require, plan, tmp_path_factory):
    """What build.cmd of the rendered kit left on drive C, and what it said."""
    c = Path(wine["WINEPREFIX"]) / "drive_c"
    folder = tmp_path_factory.mktemp("cuda13")
    made = Toolchain(c, windows_python, folder, require, plan)
    made.archives()
    kit = made.kit(plan, folder / "kit")
    done = subprocess.run(
        ["wine", "cmd", "/d", "/c", "build.cmd"], cwd=kit, env=wine | {"FARM_PYTHON": windows_path(windows_python.exe)},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    out = c / "farm/out" / plan.digest[:12]
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said + (out / "build.log").read_text(errors="replace")
    yield c, out, said
    made.remove()


def farm(*words):
    """The farm on Linux."""
    command = [str(Path(sys.executable).with_name("farm")), *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nvidias_compiler_made_code_for_the_card(built, plan, tmp_path):
    c, out, said = built
    home = c / plan.env["CUDA_HOME"].removeprefix("C:/")
    assert [(home / name).is_file() for name in ("bin/nvcc.exe", "nvvm/bin/cicc.exe", "include/crt/host_config.h")]
    assert "step toolkit" in said
    [wheel] = (out / "wheel").glob("*.whl")
    farm("repair", wheel, "--lib-dir", out / "lib", "--into", plan.vendor_into, "--output", tmp_path)
    [repaired] = tmp_path.glob("*.whl")
    words = ["--variant", plan.variant, "--package", "canary", "--platform", "windows", "--channel", plan.channel]
    told = farm("verify", repaired, *words)
    assert "sm_120" in told


def test_a_library_that_the_wheels_lack_links_and_loads(built, wine, plan, tmp_path):
    """nvvm.lib, of a DLL that answers without a driver."""
    c, _, _ = built
    home = c / plan.env["CUDA_HOME"].removeprefix("C:/")
    (tmp_path / "a.c").write_text(PROGRAM)
    exe = home / "bin/x86_64/a.exe"
    command = [GCC, "-o", exe, tmp_path / "a.c", home / "lib/x64/nvvm.lib"]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    done = subprocess.run(["wine", exe], env=wine, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.stdout == "nvvm 2", done
