"""What becomes of a Windows plan: the job of a Windows host, what its end means, and who refuses
it.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from farm.base.errors import BuildFailedError, InfrastructureError, NoRunnerError
from farm.engines.base import Capacity, Cause, Observation
from farm.plan.settings import load_settings
from farm.run import build_job
from farm.run.backends import ENGINES, check_engine, engine_for
from farm.run.workspace import Watcher, Workspace
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path, load_settings(ROOT), Watcher())


@pytest.fixture(scope="module")
def plan():
    return plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows")


def test_the_job_runs_build_cmd_and_leaves_what_that_leaves(plan, monkeypatch):
    monkeypatch.setenv("FARM_PYTHON", r"C:\Python311\python.exe")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    job = build_job.make_job(
        plan, image="", inputs={}, capacity=Capacity(8, 16 << 30), labels={"farm.run": "1"}
    )
    out = f"/farm/out/{plan.digest[:12]}"
    assert job.command[1:] == (
        "/farm/scripts/follow_cmd.py",
        "/farm/job/build.cmd",
        f"{out}/build.log",
    )
    assert (job.output, job.platform, job.volumes, job.labels) == (
        out,
        "windows",
        {},
        {"farm.run": "1"},
    )
    jobs = str(min(8, int((16 << 30) / (plan.memory_per_job_gb * 1e9))))
    assert job.environment == {"FARM_JOBS": jobs, "FARM_PYTHON": r"C:\Python311\python.exe"}


@pytest.mark.parametrize(
    ("seen", "error"),
    [
        (Observation("done", exit_code=3), NoRunnerError),
        (Observation("done", exit_code=9), InfrastructureError),
        (Observation("done", exit_code=5), BuildFailedError),
        (Observation("done", exit_code=137, cause=Cause.OUT_OF_MEMORY), BuildFailedError),
        (Observation("lost", why="its supervisor was killed"), InfrastructureError),
    ],
)
def test_exit_codes_of_build_cmd_become_errors(plan, seen, error, tmp_path):
    log = tmp_path / "log"
    log.write_text("next: do this\n")
    with pytest.raises(error) as caught:
        build_job.judge(seen, log, plan.platform)
    assert type(caught.value) is error
    assert seen.state == "lost" or "next: do this" in str(caught.value)


def test_exit_code_0_is_a_success(plan, tmp_path):
    build_job.judge(Observation("done", exit_code=0), tmp_path / "none", plan.platform)


def on_a(platform, monkeypatch):
    """This machine is one of that platform: its host engine builds for it."""
    host = ENGINES["host"]
    traits = replace(host.traits, platforms=frozenset({platform}))
    monkeypatch.setitem(ENGINES, "host", replace(host, traits=traits))


@pytest.mark.parametrize(("on", "here"), [("host", "linux"), ("swarm", "windows")])
def test_other_engines_refuse_windows_plans_and_name_one_that_works(
    workspace, plan, monkeypatch, on, here
):
    on_a(here, monkeypatch)
    with pytest.raises(NoRunnerError, match=f"the {on} engine cannot run windows jobs") as caught:
        check_engine(workspace, on, plan)
    assert "--on host" in str(caught.value.hint)


def test_an_engine_with_containers_of_windows_is_asked_when_it_is_opened(workspace, plan):
    check_engine(workspace, "docker", plan)


def test_by_default_a_windows_machine_builds_on_its_host_engine(plan, monkeypatch):
    assert engine_for(plan) == "docker"
    on_a("windows", monkeypatch)
    assert engine_for(plan) == "host"


def test_the_host_engine_of_a_windows_machine_accepts_windows_plans(workspace, plan, monkeypatch):
    on_a("windows", monkeypatch)
    check_engine(workspace, "host", plan)
