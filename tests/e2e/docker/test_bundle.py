"""A build on a machine that is cut off: a bundle goes there, the pieces of a wheel come back, the main job goes on."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Farm, containers_of, make_project, pack_fast

CPU = ("--variant", "cpu-avx-py311", "--package", "canary")


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory, client: Any) -> tuple[Farm, Path]:
    """A project that rendered a bundle, and what its `run` gave back, without network or the farm."""
    folder = tmp_path_factory.mktemp("bundle")
    farm = Farm(make_project(folder / "project"))
    pack_fast(farm.project)
    rendered = farm.run("render", *CPU, "--bundle", str(folder / "parts"))
    assert rendered.returncode == 0, rendered.stderr
    command = ["unshare", "--net", sys.executable, "-I", str(folder / "parts" / "run")]
    command += ["--state", str(folder / "state"), "--out", str(folder / "out")]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(command, check=False, cwd="/", env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(folder / "state")
    return farm, folder / "out"


def test_the_main_job_goes_on_with_a_wheel_that_was_built_elsewhere(carried, client, tmp_path):
    farm, out = carried
    result = farm.run("submit", *CPU, "--from-bundle", str(out), "--json")
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    steps = {step["step"]: step["result"] for step in said["steps"]}
    told = json.loads((out / "result.json").read_text())
    assert steps["build"].startswith(f"from a bundle: {told['wheel']}")
    assert {"repair", "verify", "publish", "install", "smoke"} <= steps.keys()
    assert containers_of(client, said["run"]) == []
    again = Farm(make_project(tmp_path / "project"))
    here = again.run("submit", *CPU, "--no-smoke", "--json")
    assert here.returncode == 0, here.stderr
    built = Path(json.loads(here.stdout)["wheel"])
    assert (built.name, built.read_bytes()) == (Path(said["wheel"]).name, Path(said["wheel"]).read_bytes())


def test_pieces_of_another_build_are_refused_before_anything_is_made(carried, client):
    farm, out = carried
    result = farm.run("submit", "--variant", "cpu-sse41-py311", "--package", "canary", "--from-bundle", str(out))
    assert result.returncode == 2, result.stderr
    assert "holds a build of plan" in result.stderr
    assert farm.run("submit", *CPU, "--from-bundle", str(out), "--detach").returncode == 2
