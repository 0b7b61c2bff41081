"""`farm submit --platform windows --on docker`: a run from end to end on a stand-in for Docker's
engine on Windows Server, which behaves as documented. Nothing of this ran on Windows.
"""

import json
import shutil
import subprocess
import sys
import threading

import pytest
import yaml

from farm import catalog
from tests.plans import ROOT, plan_of
from tests.servers.windows_docker import windows_engine
from tests.unit.wheel.conftest import build_pe, build_wheel, fat_container, fat_entry

VARIANT = ("--variant", "sm35-avx-py311", "--platform", "windows", "--channel", "kepler-2.0.1")


@pytest.fixture
def wheel(tmp_path):
    """A wheel with machine code for sm_35, as a build would leave it."""
    plan = plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows")
    cuda = build_pe(
        needed=["KERNEL32.dll", "cudart64_110.dll"], fatbin=fat_container(fat_entry("sass", 35))
    )
    files = {"torch/__init__.py": b"", "torch/lib/torch_cuda.dll": cuda}
    head = f"Metadata-Version: 2.1\nName: torch\nVersion: {plan.version}\nRequires-Python: >=3.11\n"
    requires = "".join(f"Requires-Dist: {each}\n" for each in plan.requires)
    made = {"name": "torch", "version": plan.version, "tag": "cp311-cp311-win_amd64"}
    folder = tmp_path / "made"
    folder.mkdir()
    return build_wheel(folder, files, **made, metadata=f"{head}{requires}\n".encode())


class Build:
    """What build.cmd does in the containers of the stand-in: one try after the other."""

    def __init__(self, wheel):
        self.wheel = wheel
        self.fails = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.began = threading.Event()

    def __call__(self, container, _volumes):
        [log] = (word for word in container.config["Cmd"] if word.endswith("build.log"))
        out = log.rpartition("\\")[0]
        container.log = b"farm: step build\r\n"
        self.began.set()
        while not self.goes_on.wait(0.05):
            if container.stopped.is_set():
                return 0
        if self.fails:
            self.fails -= 1
            container.log += b"FAILED: a.obj\r\nLINK : fatal error LNK1248: image size\r\n"
            return 5
        container.files[rf"{out}\wheel\{self.wheel.name}"] = self.wheel.read_bytes()
        container.files[rf"{out}\lib\cudart64_110.dll"] = build_pe()
        container.files[log] = container.log
        return 0


@pytest.fixture
def build(wheel):
    return Build(wheel)


@pytest.fixture
def server(build):
    with windows_engine(build) as (url, engine):
        engine.registry |= {core.image for core in catalog.windows().servercore.values()}
        yield url, engine


@pytest.fixture
def farm(server, tmp_path, monkeypatch):
    """The farm's command in a project whose one runner is the stand-in."""
    monkeypatch.setenv("CI", "true")
    project = tmp_path / "project"
    for name in ("ci", "dockerfiles"):
        shutil.copytree(ROOT / name, project / name)
    runner = {
        "engine": "docker",
        "platform": "windows",
        "url": server[0],
        "cpus": 4,
        "memory_gb": 16,
        "disk_gb": 200,
    }
    (project / "ci/runners.yaml").write_text(yaml.safe_dump({"runners": {"local": runner}}))

    def run(*arguments):
        command = [sys.executable, "-m", "farm.cli.main", "--project", project, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    run.project = project
    return run


def test_a_wheel_is_built_repaired_verified_and_published(farm, server):
    code, out, err = farm("submit", *VARIANT, "--on", "docker", "--no-smoke", "--json")
    assert code == 0, err
    document = json.loads(out)
    steps = {step["step"]: step for step in document["steps"]}
    assert list(steps) == ["render", "image", "build", "repair", "verify", "publish"]
    assert {step["outcome"] for step in steps.values()} == {"done"}
    assert [path.name for path in (farm.project / "artifacts/index").rglob("*.whl")]
    assert not server[1].containers
    code, out, _ = farm("status", document["run"], "--json")
    seen = json.loads(out)
    assert (code, seen["engine"], seen["runner"], seen["result"]) == (
        0,
        "docker",
        "local",
        "success",
    )
    assert "step build" in farm("logs", document["run"])[1]


def test_a_failed_build_is_tried_again_with_the_image_and_the_cache(farm, server, build):
    build.fails = 1
    code, _, err = farm("submit", *VARIANT, "--on", "docker", "--no-smoke", "--json")
    assert code == 5, err
    assert "larger than 2 GiB" in err
    [run] = (path.name for path in (farm.project / "artifacts/runs").iterdir() if path.is_dir())
    code, _out, err = farm("retry", run, "--json")
    assert code == 0, err
    assert len(server[1].builds) == 1
    assert len(server[1].volumes) == 2


def test_a_detached_run_is_shown_and_cancelled(farm, server, build):
    build.goes_on.clear()
    code, out, err = farm("submit", *VARIANT, "--on", "docker", "--no-smoke", "--detach", "--json")
    assert code == 0, err
    run = json.loads(out)["run"]
    assert build.began.wait(120)
    assert json.loads(farm("status", run, "--json")[1])["state"] in ("starting", "running")
    assert farm("cancel", run)[0] == 0
    seen = json.loads(farm("status", run, "--json")[1])
    assert (seen["result"], seen["exit_code"]) == ("infra", 130)
    assert not server[1].containers
