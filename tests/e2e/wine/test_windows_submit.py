"""`farm submit --platform windows --on host` in Windows' Python under Wine: build.cmd as a job, its
tools stand-ins.
"""

import json
import re
import shlex
import subprocess

import pytest

from tests.e2e.conftest import make_project, wait
from tests.e2e.wine.test_windows_build import Machine, plan, tools  # noqa: F401 fixtures
from tests.e2e.wine.windows_host import ROOT, SECRET
from tests.e2e.wine.windows_python import site, windows_path
from tests.e2e.workflow import carry_out, command
from tests.unit.wheel.conftest import build_pe, build_wheel, fat_container, fat_entry

TIMEOUT_S = 600
WAIT = (
    b"@echo off\r\n:again\r\nif exist C:\\tools\\go exit /b 0\r\nping -n 2 127.0.0.1 "
    b">nul\r\ngoto again\r\n"
)


@pytest.fixture(scope="module")
def packages(require, tmp_path_factory):
    """What the farm itself needs on Windows."""
    return site(tmp_path_factory.mktemp("site"), require, "-r", str(ROOT / "requirements.lock"))


@pytest.fixture
def machine(tools, wine, plan, tmp_path):  # noqa: F811
    """A Windows machine whose stand-in for `python -m build` leaves a wheel with code for sm_35."""
    machine = Machine(tools, wine, plan, tmp_path)
    machine.record, machine.rules_file = machine.c / "tools/record", machine.c / "tools/rules"
    cuda = build_pe(
        needed=["KERNEL32.dll", "cudart64_110.dll"], fatbin=fat_container(fat_entry("sass", 35))
    )
    files = {"torch/__init__.py": b"", "torch/lib/torch_cuda.dll": cuda}
    head = f"Metadata-Version: 2.1\nName: torch\nVersion: {plan.version}\nRequires-Python: >=3.11\n"
    requires = "".join(f"Requires-Dist: {each}\n" for each in plan.requires)
    made = {"name": "torch", "version": plan.version, "tag": "cp311-cp311-win_amd64"}
    wheel = build_wheel(machine.c / "tools", files, **made, metadata=f"{head}{requires}\n".encode())
    (machine.c / "tools/cudart64_110.dll").write_bytes(build_pe())
    (machine.c / "tools/wait.cmd").write_bytes(WAIT)
    folder = plan.env["CUDA_HOME"].replace("/", "\\")
    machine.rules.append(
        (
            "python.exe",
            "install_toolkit.py",
            rf"run=copy /y C:\tools\cudart64_110.dll {folder}\bin\ >nul",
        )
    )
    # By a batch file with quotes: a plus sign between two names tells copy to join them.
    out = rf"C:\farm\out\{plan.digest[:12]}\wheel"
    leave = rf'@copy /y /b "C:\tools\{wheel.name}" "{out}\{wheel.name}" >nul'
    (machine.c / "tools/leave.cmd").write_bytes(leave.encode() + b"\r\n")
    machine.change("python.exe", "-m build", "run=cl.exe /c a.cpp", r"run=C:\tools\leave.cmd")
    return machine


@pytest.fixture
def farm(machine, windows_python, packages, tmp_path):
    """The farm's command on that machine, in a project of its own."""
    project = make_project(tmp_path / "project")
    paths = ";".join(map(windows_path, (ROOT, packages)))
    environment = {
        "PYTHONPATH": paths,
        "WINEPATH": r"C:\tools",
        "CI": "true",
        "PYTHONUTF8": "1",
        **SECRET,
    }
    (tmp_path / "plan.json").write_text(machine.plan.to_json())

    class Farm:
        folder = project

        def start(self, *arguments):
            machine.rules_file.write_text("".join("\t".join(rule) + "\n" for rule in machine.rules))
            words = ("-m", "farm.cli.main", "--project", project, *arguments)
            return windows_python.start(*words, env=environment, cwd=tmp_path)

        def __call__(self, *arguments):
            process = self.start(*arguments)
            out, err = process.communicate("", timeout=TIMEOUT_S)
            assert "Traceback" not in err, err
            return subprocess.CompletedProcess(arguments, process.returncode, out, err)

        def leave(self, *arguments):
            """Not to the end of its pipes: under Wine, what it leaves running holds them."""
            with self.start(*arguments) as process:
                code = process.wait(TIMEOUT_S)
                out = (
                    "".join(iter(process.stdout.readline, "}\n")) + "}"
                    if not code
                    else process.stderr.read()
                )
            return subprocess.CompletedProcess(arguments, code, out, "")

        def json(self, *arguments):
            done = self(*arguments, "--json")
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        def submit(self, *more):
            chosen = (
                "--variant",
                "sm35-avx-py311",
                "--platform",
                "windows",
                "--channel",
                "kepler-2.0.1",
            )
            return (self.leave if "--detach" in more else self)(
                "submit", *chosen, "--on", "host", "--json", *more
            )

        def build(self):
            return self.start("build", tmp_path / "plan.json", "--on", "host", "--json")

        def workflow(self):
            """The step *Do the job*; what its `farm build` printed."""
            words = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
            exe = shlex.quote(str(windows_python.exe))
            # By pipes: Wine gives Python no valid handle for a file.
            call = f': | {words} wine {exe} -m farm.cli.main "$@"'
            line = f"{{ {call}; echo $? > code; }} | cat > farm.json; exit $(cat code)"
            path = command(tmp_path / "bin", line)
            given = {"PLAN": machine.plan.to_json(), "environ": windows_python.wine}
            carry_out("build-plan.yml", "build", project, path=path, **given)
            return json.loads((project / "farm.json").read_text())

    return Farm()


def at_the_build(machine):
    return machine.log.exists() and b"step build" in machine.log.read_bytes()


def test_a_wheel_is_built_repaired_verified_and_published(farm, machine):
    done = farm.submit("--no-smoke")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    steps = {step["step"]: step for step in document["steps"]}
    assert {step["outcome"] for step in steps.values()} == {"done"}
    assert list(steps) == ["render", "toolchain", "build", "repair", "verify", "publish"]
    assert steps["repair"]["result"].startswith("added cudart64_110.dll; ")
    [published] = (farm.folder / "artifacts/index").rglob("*.whl")
    assert published.name == f"torch-{machine.plan.version}-cp311-cp311-win_amd64.whl"
    [compiler] = machine.calls("cl.exe")
    assert not set(SECRET.values()) & set(compiler["env"].values())
    assert int(compiler["env"]["MAX_JOBS"]) >= 1
    log = farm("logs").stdout
    assert [step for step in ("step tools", "step source", "step build", "step libraries") if step in log] == [
        "step tools", "step source", "step build", "step libraries",
    ]  # fmt: skip
    assert "vcvarsall was asked for x64 -vcvars_ver=14.29" in log, (
        "what build.cmd writes into its log alone"
    )


@pytest.mark.parametrize(
    ("tool", "part", "code", "message"),
    [
        (
            "vswhere.exe",
            "installationPath",
            4,
            r"build\.cmd ended with 3(.|\n)*Visual Studio is missing",
        ),
        (
            "git.exe",
            " clone ",
            9,
            r"build\.cmd ended with 9(.|\n)*can this machine reach https://github\.com/pytorch",
        ),
        (
            "python.exe",
            "-m build",
            5,
            r"the build failed with exit code 5(.|\n)*the first line with FAILED: or error",
        ),
    ],
)
def test_a_failure_says_whose_it_is(farm, machine, tool, part, code, message):
    machine.change(tool, part, "exit=1")
    done = farm.submit("--no-smoke")
    assert done.returncode == code, done.stderr
    assert re.search(message, done.stderr)
    assert not list(farm.folder.rglob("*.whl"))


def test_a_killed_controller_is_taken_up_by_the_workflow_of_a_plan(farm, machine):
    """build-plan.yml as it stands there, on a Windows runner whose last job was killed."""
    machine.change("python.exe", "-m build", r"run=C:\tools\wait.cmd", *machine.rules[0][2:])
    with farm.build() as first:
        wait("the build", lambda: at_the_build(machine) or first.poll() is not None)
        assert first.poll() is None, first.stderr.read()
        first.kill()
    (machine.c / "tools/go").touch()
    document = farm.workflow()
    assert [step["result"][:7] for step in document["steps"] if step["step"] == "build"] == [
        "resumed"
    ]
    left = farm.folder / "farm-out"
    assert [path.parent.name for path in left.rglob("*.whl")] == ["wheel"]
    assert "cudart64_110.dll" in {path.name for path in (left / "lib").iterdir()}  # for repair
    assert len(machine.calls("cl.exe")) == 1


def test_a_detached_run_is_shown_and_cancelled(farm, machine):
    machine.change("python.exe", "-m build", r"run=C:\tools\wait.cmd")
    done = farm.submit("--no-smoke", "--detach")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run"]
    wait("the build", lambda: at_the_build(machine))
    seen = farm.json("status", run)
    assert (seen["state"], seen["engine"], seen["runner"]) == ("running", "host", "local")
    assert farm("cancel", run).returncode == 0
    seen = farm.json("status", run)
    assert (seen["result"], seen["exit_code"]) == ("infra", 130)
    (machine.c / "farm/src").rename(machine.c / "farm/src.free")  # nobody is in it any more
