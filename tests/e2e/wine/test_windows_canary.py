"""The canary for Windows, compiled: build-wheels.yml as it stands there, its Windows runner a Python under Wine.

What is real and what is not says windows_toolchain.py. MSVC, NVIDIA's nvcc.exe and Windows itself are not.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from farm.plan.build import resolve
from farm.plan.selectors import Selectors
from farm.plan.variant import Variant
from farm.run.journal import EventKind, Journal
from tests.e2e.conftest import TIMEOUT_S
from tests.e2e.wine.windows_host import ROOT
from tests.e2e.wine.windows_python import site, windows_path
from tests.e2e.wine.windows_toolchain import Toolchain
from tests.e2e.workflow import carry_out, checkout, command, of_entry, outputs


@pytest.fixture(scope="module")
def plan():
    return resolve(ROOT, Selectors(Variant.parse("sm35-avx-py311"), "canary", "windows"))


@pytest.fixture(scope="module")
def toolchain(wine, windows_python, require, plan, tmp_path_factory):
    c = Path(wine["WINEPREFIX"]) / "drive_c"
    made = Toolchain(c, windows_python, tmp_path_factory.mktemp("toolchain"), require, plan)
    made.toolkit(plan)
    yield made
    made.remove("farm-jobs")


@pytest.fixture(scope="module")
def runner(toolchain, windows_python, require, tmp_path_factory):
    """The folder for PATH of a Windows runner: its `farm` runs in Windows' Python."""
    folder = tmp_path_factory.mktemp("runner")
    windows_python.install(require, "pip")
    packages = site(folder / "site", require, "-r", str(ROOT / "requirements.lock"))
    environment = {
        "PYTHONPATH": ";".join(map(windows_path, (ROOT, packages))),
        "FARM_PYTHON": windows_path(windows_python.exe),
        "PYTHONUTF8": "1",
    }
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    # From a pipe: Wine gives Python no valid handle for /dev/null.
    line = f': | {words} wine {shlex.quote(str(windows_python.exe))} -m farm.cli.main "$@"'
    return command(folder / "bin", line)


@dataclass(frozen=True)
class Released:
    """What the jobs of build-wheels.yml left, each in a checkout of its own; `smoke` is what the last one printed."""

    built: Path
    published: Path
    index: Path
    smoke: str


@pytest.fixture(scope="module")
def released(runner, plan, windows_python, tmp_path_factory):
    """build-wheels.yml, job after job: build and smoke on the Windows runner, the others on this machine."""
    folder, index = tmp_path_factory.mktemp("workflow"), tmp_path_factory.mktemp("index") / "index"
    env = {"CHANNEL": plan.channel, "PACKAGE": "canary", "VARIANT": plan.variant, "CHUNK": "0"}

    def job(name, before, path, environ):
        made = checkout(folder / name, index, before)
        return made, carry_out("build-wheels.yml", name, made, path=path, environ=environ, **env)

    here = Path(sys.executable).parent
    planned, _ = job("plan", {}, here, os.environ)
    (entry,) = (each for each in outputs(planned)["build"]["include"] if each["platform"] == "windows")
    assert "windows" in entry["runs_on"]
    env = of_entry(entry)
    built, _ = job("build", {}, runner, windows_python.wine)
    job("verify", {"wheel": built / "farm-out"}, here, os.environ)
    published, _ = job("publish", {"wheel": built / "farm-out"}, here, os.environ)
    _, said = job("smoke", {"published": published / "published"}, runner, windows_python.wine)
    return Released(built, published, index, said)


def test_the_workflow_goes_all_the_way_to_the_smoke_test(released, windows_python):
    with Journal(released.built / "artifacts/farm.db") as journal:
        (run,) = journal.runs()
        steps = {e.data["name"]: e.data for e in journal.events(run.id) if e.kind == EventKind.STEP}
    assert (run.result, run.request.on) == ("success", "host")
    done = ["render", "toolchain", "build", "repair", "verify"]
    assert [name for name, step in steps.items() if step["outcome"] == "done"] == done
    assert steps["repair"]["result"] == "added cudart64_110.dll; its tag is kept"
    told = json.loads((released.published / "published/published.json").read_text())
    assert told["changed"] is True
    assert "8 passed; cuda not run: no NVIDIA driver" in released.smoke


def test_verify_saw_machine_code_for_the_card_and_the_cpu(released):
    [report] = (released.built / "artifacts/runs").glob("*/verify.json")
    checks = {check["id"]: check for check in json.loads(report.read_text())["checks"]}
    assert {name: checks[name]["status"] for name in ("sass", "cpu", "imports", "platform")} == {
        "sass": "passed", "cpu": "passed", "imports": "passed", "platform": "passed",
    }  # fmt: skip
    assert checks["sass"]["note"] == "found: sm_35"
    assert checks["platform"]["note"] == "win_amd64"


def test_the_wheel_holds_the_compilers_own_words(released):
    """AVX in the code of the CPU, and a real cubin: an ELF file for CUDA with both kernels."""
    [wheel] = (released.index / "whl").rglob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        cpu, cuda = (archive.read(f"canary/lib/{name}.dll") for name in ("canary", "canary_cuda"))
    assert b"Clang " in cpu
    assert b"-gencode=arch=compute_35,code=sm_35" in cpu
    start = cuda.index(b"\x7fELF")
    assert int.from_bytes(cuda[start + 18 : start + 20], "little") == 190  # EM_CUDA
    assert {b".text.canary_multiply_float", b".text.canary_multiply_double"} == {
        name for name in (b".text.canary_multiply_float", b".text.canary_multiply_double") if name in cuda
    }


def test_the_first_build_by_the_letter_of_its_page(toolchain, windows_python, tmp_path):
    """docs/windows.md, steps 6 to 8: the commands that it names, and the words that should appear, in their order."""
    page = (ROOT / "docs/windows.md").read_text()
    command = re.search(r"`farm (render .*?)`", page)[1].replace("--channel kepler-2.0.1", "--package canary")
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def farm(line: str) -> str:
        done = subprocess.run(
            ["farm", "--project", str(ROOT), *shlex.split(line)],
            cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert {"kit/job/report.cmd", "kit/job/build.cmd"} <= set(farm(command).split())
    job = toolchain.c / "a folder of any name" / "job"
    shutil.copytree(tmp_path / "kit/job", job)
    try:
        report = ("wine", "cmd", "/c", "report.cmd")
        environment = {**windows_python.wine, "FARM_PYTHON": windows_path(windows_python.exe)}
        done = subprocess.run(
            report, cwd=job, env=environment, stdin=subprocess.PIPE, capture_output=True, check=False, timeout=TIMEOUT_S
        )
        said = done.stdout.decode("cp1252")
        assert done.returncode == 0, said
        first = re.search(r"The first line is `(.*?)`", page, re.DOTALL)[1].replace("torch 2.0.1+", "canary 0.1.0+")
        lines = [line for line in said.splitlines() if "farm: " in line or line.startswith("report: ")]
        assert fnmatchcase(lines[0], first.replace("\u2026", "*"))
        steps = re.findall(r"`([a-z ]+)`", re.search(r"one line\s+for each step: (.*?) \(", page, re.DOTALL)[1])
        shown = [match[1] for line in lines if (match := re.search(r"farm: step ([a-z ]+?)\s*$", line))]
        assert shown == steps
        assert "done: " in lines[-2]
        assert lines[-1].startswith("report: ")
        assert (job / "farm-report.zip").is_file()
        repair = re.search(r"next: farm (repair .*)", lines[-2])[1].strip()
        here = re.sub(r"C:([\w\\.+-]+)", lambda match: str(toolchain.c) + match[1].replace("\\", "/"), repair)
        assert "cudart64_110.dll" in farm(here)
        (wheel,) = (tmp_path / "repaired").glob("*.whl")
        checks = farm(f"verify {wheel} --variant sm35-avx-py311 --package canary --platform windows")
        named, heads, *rows = (line.split() for line in checks.splitlines() if line.strip())
        assert (named, heads[:2]) == ([wheel.name], ["check", "status"])
        assert {row[1] for row in rows} == {"passed", "not"}
    finally:
        toolchain.remove("a folder of any name")
