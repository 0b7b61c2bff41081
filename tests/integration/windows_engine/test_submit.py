"""`farm submit --platform windows --on docker`: a run from end to end on a stand-in for Docker's
engine on Windows Server, which behaves as documented. Nothing of this ran on Windows.
"""

import json
import shutil
import subprocess
import sys

import pytest
import yaml

from farm import catalog
from tests.plans import ROOT
from tests.servers.windows_build import VARIANT, Build, make_wheel
from tests.servers.windows_docker import windows_engine


@pytest.fixture
def build(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    return Build(make_wheel(folder))


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
