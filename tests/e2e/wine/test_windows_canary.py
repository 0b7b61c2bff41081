"""The canary for Windows, compiled: build-wheels.yml as it stands there, its Windows runner a
Python under Wine.

What is real and what is not says windows_toolchain.py. MSVC, NVIDIA's nvcc.exe and Windows itself
are not.
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
from functools import partial
from pathlib import Path

import pytest
import yaml

from farm.plan.options import Choice
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant
from farm.run.journal import Journal
from farm.run.journal_records import EventKind
from tests.e2e.conftest import TIMEOUT_S
from tests.e2e.wine.windows_host import ROOT
from tests.e2e.wine.windows_python import site, windows_path
from tests.e2e.wine.windows_toolchain import Toolchain
from tests.e2e.workflow import carry_out, checkout, command, of_entry, outputs
from tests.powershell import started

WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/windows.yml").read_text())


@pytest.fixture(scope="module")
def plan():
    return resolve(ROOT, BuildRequest(Variant.parse("sm35-avx-py311"), "canary", "windows"))


@pytest.fixture(scope="module")
def toolchain(wine, windows_python, require, plan, tmp_path_factory):
    c = Path(wine["WINEPREFIX"]) / "drive_c"
    made = Toolchain(c, windows_python, tmp_path_factory.mktemp("toolchain"), require, plan)
    made.toolkit(plan)
    yield made
    made.remove("farm-jobs")


@pytest.fixture(scope="module")
def environment(toolchain, windows_python, require, tmp_path_factory):
    """Variables with which Windows' Python runs the farm and builds with itself."""
    windows_python.install(require, "pip")
    packages = site(tmp_path_factory.mktemp("site"), require, "-r", str(ROOT / "requirements.lock"))
    return {
        **windows_python.wine,
        "PYTHONPATH": ";".join(map(windows_path, (ROOT, packages))),
        "FARM_PYTHON": windows_path(windows_python.exe),
        "PYTHONUTF8": "1",
    }


@pytest.fixture(scope="module")
def runner(environment, windows_python, tmp_path_factory):
    """The folder for PATH of a Windows runner: its `farm` runs in Windows' Python."""
    own = {
        name: value for name, value in environment.items() if windows_python.wine.get(name) != value
    }
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
    # From a pipe: Wine gives Python no valid handle for /dev/null.
    line = f': | {words} wine {shlex.quote(str(windows_python.exe))} -m farm.cli.main "$@"'
    return command(tmp_path_factory.mktemp("runner") / "bin", line)


@dataclass(frozen=True)
class Released:
    """What the jobs of build-wheels.yml left, each in a checkout of its own; `smoke` is what the
    last one printed.
    """

    built: Path
    published: Path
    index: Path
    smoke: str


@pytest.fixture(scope="module")
def released(runner, plan, windows_python, tmp_path_factory):
    """build-wheels.yml, job after job: build and smoke on the Windows runner, the others on this
    machine.
    """
    folder, index = tmp_path_factory.mktemp("workflow"), tmp_path_factory.mktemp("index") / "index"
    env = {"CHANNEL": plan.channel, "PACKAGE": "canary", "VARIANT": plan.variant, "CHUNK": "0"}

    def job(name, before, path, environ):
        made = checkout(folder / name, index, before)
        return made, carry_out("build-wheels.yml", name, made, path=path, environ=environ, **env)

    here = Path(sys.executable).parent
    planned, _ = job("plan", {}, here, os.environ)
    (entry,) = (
        each for each in outputs(planned)["build"]["include"] if each["platform"] == "windows"
    )
    assert "windows" in entry["runs_on"]
    env = of_entry(entry)
    built, _ = job("build", {}, runner, windows_python.wine)
    job("verify", {"wheel": built / "farm-out"}, here, os.environ)
    published, _ = job("publish", {"wheel": built / "farm-out"}, here, os.environ)
    _, smoke = job("smoke", {"published": published / "published"}, runner, windows_python.wine)
    return Released(built, published, index, smoke)


def test_the_workflow_goes_all_the_way_to_the_smoke_test(released, windows_python):
    with Journal(released.built / "artifacts/farm.db") as journal:
        (run,) = journal.runs()
        steps = {e.data["name"]: e.data for e in journal.events(run.id) if e.kind == EventKind.STEP}
    assert (run.result, run.request.on) == ("success", "host")
    done = ["render", "toolchain", "build", "repair", "verify"]
    assert [name for name, step in steps.items() if step["outcome"] == "done"] == done
    assert steps["repair"]["result"] == "added cudart64_110.dll; its tag is kept"
    document = json.loads((released.published / "published/published.json").read_text())
    assert document["changed"] is True
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
        name
        for name in (b".text.canary_multiply_float", b".text.canary_multiply_double")
        if name in cuda
    }


def typed(page):
    """Each command line of the first steps, as somebody types it who tries the canary first."""
    for block in re.findall(r"```console\n(.*?)```", page.split("\n## ")[1], re.DOTALL):
        for line in block.strip().removeprefix("> ").split("\n   > "):
            text = line.replace("torch-", "canary-")
            yield text + " --package canary" * ("--variant" in text)


def kept_logs(c, folder):
    """The ends of all logs of builds on drive C, which are gone after the test: whole in
    `folder`.
    """
    ends = []
    for log in sorted(c.glob("farm/out/*/build.log")):
        text = log.read_text(errors="replace")
        copy = folder / f"{log.parent.name}.build.log"
        copy.write_text(text)
        ends += [f"the end of {copy}:", *text.splitlines()[-80:]]
    return "\n".join(ends)


@pytest.fixture(params=["cmd", "PowerShell"])
def prompt(request, toolchain, environment, tmp_path):
    """Types a line in Windows' cmd; or starts what PowerShell, which is not here, would start. Wine
    has no py.exe.
    """
    walk, python = toolchain.c / "walk", windows_path(toolchain.python.exe)
    toolchain.launcher("walk/farm", f"{python} -m farm.cli.main")
    toolchain.launcher("walk/py", rf"{python} C:\walk\py.py")
    (walk / "py.py").write_text(
        "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, *sys.argv[2:]]))\n"
    )
    given = environment | {"WINEPATH": f"C:\\walk;{windows_path(toolchain.python.folder)}"}
    del given["FARM_PYTHON"]

    def enter(line, folder):
        (folder / "line.cmd").write_text(f"@{line}\n")
        command = ["cmd", "/d", "/c", "line.cmd"] if request.param == "cmd" else started(line)
        start = partial(
            subprocess.run,
            ["wine", *command],
            check=False,
            cwd=folder,
            env=given,
            timeout=TIMEOUT_S,
        )
        start = partial(
            start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if b"wine: Unhandled page fault" in (done := start()).stdout:
            # CMake's own program overwrote its memory under Wine 8, once in some hundred runs:
            # typed again.
            print(done.stdout.decode("cp1252"))
            done = start()
        shown = done.stdout.decode("cp1252")
        assert done.returncode == 0, f"{line}\n{shown}\n{kept_logs(toolchain.c, tmp_path)}"
        return shown

    yield enter
    toolchain.python.run("-m", "pip", "uninstall", "-q", "-y", "canary")
    shutil.rmtree(walk)


@pytest.fixture
def drive(toolchain, tmp_path):
    """A disk D:, and afterwards C:\\farm is on C: again."""
    farm, made = toolchain.c / "farm", tmp_path / "drive"
    made.mkdir()
    (toolchain.c.parent / "dosdevices/d:").symlink_to(made)
    farm.rename(tmp_path / "farm")
    yield made
    (toolchain.c.parent / "dosdevices/d:").unlink()
    farm.unlink()
    (made / "farm").rename(farm)


def test_the_first_build_by_the_letter_of_its_page(toolchain, prompt, drive, plan, tmp_path):
    """docs/tutorials/first-windows-build.md, line after line, with C:\\farm on another drive. Wine's mklink makes
    no junction.
    """
    page, digest, farm = (
        (ROOT / "docs/tutorials/first-windows-build.md").read_text(),
        plan.digest[:12],
        toolchain.c / "farm",
    )
    user = toolchain.c / "users/Jürgen & Söhne (100% !x!)"
    job = user / "a folder of any name" / "job"
    user.mkdir(parents=True)
    transcript, lines = [], list(typed(page))
    for line in lines:
        if line == r"cmd /c mklink /J C:\farm D:\farm":
            (drive / "farm").rmdir()
            (tmp_path / "farm").rename(drive / "farm")
            farm.symlink_to(drive / "farm")
        elif line == r".\report.cmd":
            shutil.copytree(user / "kit/job", job)
        entered = line.replace("<plan>", digest)
        if "….whl" in line:
            [wheel] = (farm / "out" / digest / "wheel").iterdir()
            entered = entered.replace("canary-….whl", wheel.name)
        transcript.append(
            "" if "mklink" in line else prompt(entered, job if "report" in line else user)
        )
        assert line != r".\report.cmd" or "; next: farm repair" in transcript[-1], transcript[-1]
    shutil.rmtree(user)
    _, _, _, render, _, built, repaired, checks, smoke, _, page_of_report = transcript
    assert r"kit\job\report.cmd" in render
    first = re.search(r"The first line is\s+`(.*?)`", page)[1].replace(
        "torch 2.0.1+", "canary 0.1.0+"
    )
    shown = [
        line.strip()
        for line in built.splitlines()
        if "farm: " in line or line.startswith("report: ")
    ]
    assert fnmatchcase(shown[0], first.replace("…", "*"))
    steps = re.findall(
        r"`([a-z ]+)`", re.search(r"one line\s+for each step: (.*?) \(", page, re.DOTALL)[1]
    )
    assert [
        match[1] for line in shown if (match := re.search(r"farm: step ([a-z ]+)$", line))
    ] == steps
    assert shown[-1].startswith("report: ")
    # The page's line of repair is the one that build.cmd prints.
    [repair] = (line for line in lines if line.startswith("farm repair"))
    printed = re.search(r"done: .*; next: (farm repair .*)", shown[-2])[1].replace('"', "")
    assert fnmatchcase(printed, repair.replace("<plan>", digest).replace("…", "*"))
    assert "cudart64_110.dll" in repaired
    named, heads, *rows = (line.split() for line in checks.splitlines() if line.strip())
    assert (named, heads[:2]) == ([wheel.name], ["check", "status"])
    assert {row[1] for row in rows} == {"passed", "not"}
    assert "8 passed; cuda not run: no NVIDIA driver" in smoke
    assert toolchain.python.run("-c", "import canary; print(canary.__name__)").stdout == "canary\n"
    assert "step libraries" in page_of_report


@pytest.mark.parametrize("cuda", WORKFLOW["jobs"]["canary"]["strategy"]["matrix"]["cuda"])
def test_the_canary_job_of_the_hosted_runner(toolchain, runner, environment, tmp_path, cuda):
    """windows.yml, every script of the job. cmd and Python are Wine's; the paths of Git for Windows
    stand in.
    """
    options = {"cuda": Choice(cuda, "--cuda")}
    toolchain.toolkit(
        resolve(
            ROOT,
            BuildRequest(Variant.parse("sm35-avx-py311"), "canary", "windows", options=options),
        )
    )
    shutil.rmtree(toolchain.c / "farm/out", ignore_errors=True)
    python, starts = toolchain.python.exe, '#!/bin/sh\n: | wine "$0.exe" "$@"\n'
    programs = {
        "cmd": '[ "$1 $2" = "//d //c" ] || exit 99\nshift 2\n: | wine cmd /d /c "$@"',
        # Windows' bash opens C:/x.
        "cygpath": f"ln -s {shlex.quote(str(toolchain.c))} C:\necho C:/farm/out/*",
        "python": f': | wine {python} "$@" || exit\n[ "$2" = venv ] || exit 0\n'
        f'printf %s {shlex.quote(starts)} > "$3/Scripts/python"\nchmod +x "$3/Scripts/python"',
    }
    for name, script in programs.items():
        (runner / name).write_text(f"#!/bin/sh\n{script}\n")
        (runner / name).chmod(0o755)
    made = checkout(tmp_path / "checkout", tmp_path / "index")
    environ = environment | {"WINEPATH": windows_path(python.parent)}
    output = carry_out(
        "windows.yml", "canary", made, path=runner, environ=environ, CUDA=cuda, **WORKFLOW["env"]
    )
    assert "cudart64_110.dll" in output
    assert re.search(r"fresh\\+Lib\\+site-packages\\+canary", output)
    read = ["-m", "farm.cli.main", "report", "read", made / "kit/job/farm-report.zip"]
    page = subprocess.run(
        [sys.executable, *read], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    ).stdout
    assert f"canary 0.1.0+cu{cuda.replace('.', '')}.sm35.avx for sm35-avx-py311" in page
    assert "failures in the log: 0" in page
