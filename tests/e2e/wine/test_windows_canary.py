"""The canary for Windows, compiled: `farm submit --platform windows --on host` in Windows' Python under Wine.

What is real and what is not says windows_toolchain.py. MSVC, NVIDIA's nvcc.exe and Windows itself are not.
"""

import json
import zipfile
from pathlib import Path

import pytest

from farm.plan import Selectors, resolve
from farm.variant import Variant
from tests.e2e.conftest import make_project
from tests.e2e.wine.windows_host import ROOT
from tests.e2e.wine.windows_python import site, windows_path
from tests.e2e.wine.windows_toolchain import Toolchain

TIMEOUT_S = 900
CANARY = ("--variant", "sm35-avx-py311", "--package", "canary", "--platform", "windows")


@pytest.fixture(scope="module")
def plan():
    return resolve(ROOT, Selectors(Variant.parse("sm35-avx-py311"), "canary", "windows"))


@pytest.fixture(scope="module")
def toolchain(wine, windows_python, require, plan, tmp_path_factory):
    c = Path(wine["WINEPREFIX"]) / "drive_c"
    made = Toolchain(c, windows_python, tmp_path_factory.mktemp("toolchain"), require)
    made.toolkit(plan)
    yield made
    made.remove("farm-jobs")


@pytest.fixture(scope="module")
def submitted(toolchain, windows_python, require, tmp_path_factory):
    """What `farm submit` said, and its project."""
    folder = tmp_path_factory.mktemp("canary")
    project = make_project(folder / "project")
    windows_python.install(require, "pip")
    packages = site(folder / "site", require, "-r", str(ROOT / "requirements.lock"))
    environment = {
        "PYTHONPATH": ";".join(map(windows_path, (ROOT, packages))),
        "FARM_PYTHON": windows_path(windows_python.exe),
        "CI": "true",
        "PYTHONUTF8": "1",
    }
    words = ("-m", "farm.cli.main", "--project", project, "submit", *CANARY, "--on", "host", "--json")
    process = windows_python.start(*words, env=environment, cwd=folder)
    out, err = process.communicate("", timeout=TIMEOUT_S)
    log = Path(toolchain.c / "farm/out").rglob("build.log")
    assert process.returncode == 0, err + out + "".join(path.read_text(errors="replace")[-6000:] for path in log)
    return json.loads(out), project


def test_the_wheel_goes_all_the_way_to_the_smoke_test(submitted):
    told, _ = submitted
    steps = {step["step"]: step for step in told["steps"]}
    done = ["render", "toolchain", "build", "repair", "verify", "publish", "install", "smoke"]
    assert [name for name, step in steps.items() if step["outcome"] == "done"] == done
    assert {step["outcome"] for step in steps.values()} == {"done", "not run"}  # an emulated CPU is for Linux
    assert steps["repair"]["result"] == "added cudart64_110.dll; its tag is kept"
    assert steps["smoke"]["result"] == "8 passed; cuda not run: no NVIDIA driver"


def test_verify_saw_machine_code_for_the_card_and_the_cpu(submitted):
    _, project = submitted
    [report] = (project / "artifacts/runs").glob("*/verify.json")
    checks = {check["id"]: check for check in json.loads(report.read_text())["checks"]}
    assert {name: checks[name]["status"] for name in ("sass", "cpu", "imports", "platform")} == {
        "sass": "passed", "cpu": "passed", "imports": "passed", "platform": "passed",
    }  # fmt: skip
    assert checks["sass"]["note"] == "found: sm_35"
    assert checks["platform"]["note"] == "win_amd64"


def test_the_wheel_holds_the_compilers_own_words(submitted):
    """AVX in the code of the CPU, and a real cubin: an ELF file for CUDA with both kernels."""
    _, project = submitted
    [wheel] = (project / "artifacts/index/whl").rglob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        cpu, cuda = (archive.read(f"canary/lib/{name}.dll") for name in ("canary", "canary_cuda"))
    assert b"Clang " in cpu
    assert b"-gencode=arch=compute_35,code=sm_35" in cpu
    start = cuda.index(b"\x7fELF")
    assert int.from_bytes(cuda[start + 18 : start + 20], "little") == 190  # EM_CUDA
    assert {b".text.canary_multiply_float", b".text.canary_multiply_double"} == {
        name for name in (b".text.canary_multiply_float", b".text.canary_multiply_double") if name in cuda
    }
