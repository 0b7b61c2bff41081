"""A build where there is no Docker and no root: a bundle goes there, its result comes back, the
main job goes on.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Farm, make_project, pack_fast

CPU = ("--variant", "cpu-avx-py311", "--package", "canary")


NOBODY = 65534
AS_NOBODY = [
    "setpriv",
    f"--reuid={NOBODY}",
    f"--regid={NOBODY}",
    "--clear-groups",
    "--no-new-privs",
]
ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
NO_DOCKER = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


def execute(*command: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        check=False,
        cwd="/",
        env=ENVIRON,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory, client: Any) -> Iterator[tuple[Farm, Path]]:
    """A project that rendered a bundle, and the bundle in a folder of an ordinary user."""
    farm = Farm(make_project(tmp_path_factory.mktemp("bundle") / "project"))
    pack_fast(farm.project)
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    done = farm.run("render", *CPU, "--bundle", str(folder / "parts"))
    assert done.returncode == 0, done.stderr
    assert "==> pack\n" in done.stderr, "minutes without a word"
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    yield farm, folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def carried(rendered: tuple[Farm, Path]) -> tuple[Farm, Path]:
    """What `run` gave back to an ordinary user, without the farm."""
    farm, folder = rendered
    run = [*AS_NOBODY, "/usr/bin/python3", "-I", folder / "parts/run", "--out", folder / "out"]
    checked = execute(*run, "--check")
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    done = execute(*run)
    assert done.returncode == 0, done.stdout + done.stderr
    return farm, folder / "out"


def test_the_main_job_continues_with_a_wheel_built_elsewhere(carried, tmp_path):
    farm, out = carried
    result = farm.run("submit", *CPU, "--from-bundle", str(out), "--json", **NO_DOCKER)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    steps = {step["step"]: step["result"] for step in document["steps"]}
    assert steps["build"].startswith("from a bundle: canary-")
    assert {"repair", "verify", "publish", "install", "smoke"} <= steps.keys()
    assert "image" not in steps
    again = Farm(make_project(tmp_path / "project"))
    here = again.run("submit", *CPU, "--no-smoke", "--json")
    assert here.returncode == 0, here.stderr
    built = Path(json.loads(here.stdout)["wheel"])
    assert (built.name, built.read_bytes()) == (
        Path(document["wheel"]).name,
        Path(document["wheel"]).read_bytes(),
    )


def test_the_log_that_a_failed_image_names_is_there(client, tmp_path):
    farm = Farm(tmp_path / "project")
    farm.project.mkdir()
    assert farm.run("init", ".").returncode == 0
    recipe = farm.project / "recipes/hello/recipe.yaml"
    recipe.write_text(recipe.read_text().replace("python3-dev", "python3-dve"))
    words = ("--variant", "cpu-avx-py311", "--package", "hello", "--bundle", str(tmp_path / "out"))
    done = farm.run("render", *words)
    assert done.returncode == 5, done.stderr
    log = Path(done.stderr.rpartition("the whole log: ")[2].strip())
    assert "Unable to locate package python3-dve" in log.read_text()
    assert not (tmp_path / "out").exists()


def test_nothing_of_another_user_is_executed_by_root(rendered, tmp_path):
    """As `/var/tmp/farm-<plan>` was, whoever had made it."""
    _, folder = rendered
    plan = json.loads((folder / "parts/manifest.json").read_text())["plan"]
    planted, mark = Path("/var/tmp") / f"farm-{plan[:12]}", folder / "executed"
    script = f"mkdir -p {planted}/root/usr/bin && cd {planted} && touch unpacked && "
    script += (
        f"printf '#!/bin/sh\\ntouch {mark}\\n' > root/usr/bin/python3 && chmod 755 "
        "root/usr/bin/python3"
    )
    assert execute(*AS_NOBODY, "sh", "-c", script).returncode == 0
    try:
        parts = shutil.copytree(
            folder / "parts", tmp_path / "parts", ignore=shutil.ignore_patterns("work-*")
        )
        assert execute("/usr/bin/python3", "-I", parts / "run", "--check").returncode == 0
        done = execute("/usr/bin/python3", "-I", parts / "run", "--wait-s", "0", "--state", planted)
        assert done.returncode == 9
        assert f"{planted} belongs to user {NOBODY}: nothing in it is used" in done.stdout
        assert execute("/usr/bin/python3", "-I", parts / "run").returncode == 0
    finally:
        shutil.rmtree(planted)
    assert not mark.exists()


def test_pieces_of_another_build_are_refused_before_anything_is_made(carried):
    farm, out = carried
    result = farm.run(
        "submit", "--variant", "cpu-sse41-py311", "--package", "canary", "--from-bundle", str(out)
    )
    assert result.returncode == 2, result.stderr
    assert "holds a build of plan" in result.stderr
    assert farm.run("submit", *CPU, "--from-bundle", str(out), "--detach").returncode == 2
