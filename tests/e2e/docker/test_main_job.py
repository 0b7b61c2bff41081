"""The main job on real parts, and what must not happen when a part of it fails."""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from farm.base.errors import VerificationFailedError
from farm.plan.settings import load_settings
from farm.run.build_job import tree_volume
from farm.run.run import submit
from farm.run.workspace import Watcher, Workspace, open_journal
from farm.smoke.environment import find_python, make_environment
from farm.smoke.runner import Expectation, run_probe
from tests.larger_canary import copy_farm
from tests.plans import plan_of

HERE = Path(__file__).parent
VERSION = "0.1.0+cu118.sm35.avx"


def steps(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["step"]: step for step in document["steps"]}


def published(index: Path) -> list[str]:
    """Everything in the index that a client could see; each smoke test leaves a report of its own
    there.
    """
    found = sorted(
        str(p.relative_to(index))
        for p in index.rglob("*")
        if p.is_file() and not p.name.startswith(".")
    )
    return [key for key in found if not key.startswith("smoke/")]


def test_every_step_ran_and_the_wheel_is_what_its_name_says(finished):
    farm, document = finished
    assert list(steps(document)) == [
        "render", "image", "build", "repair", "verify", "publish", "install", "smoke", "smoke (SandyBridge)",
    ]  # fmt: skip
    inside = farm.json("inspect", document["wheel"])
    assert inside["version"] == VERSION
    kernels = {
        tuple(f["sass"]): tuple(f["ptx"]) for lib in inside["libraries"] for f in lib["fatbins"]
    }
    assert kernels == {(35,): ()}
    assert inside["tags"] == [f"cp37-abi3-{inside['manylinux']}_x86_64"]
    assert "canary/lib/libcudart.so.11.0" in [lib["path"] for lib in inside["libraries"]]


def test_a_user_installs_it_with_the_printed_line_and_multiplies(finished, tmp_path):
    _, document = finished
    python = make_environment(tmp_path / "env", Path(sys.executable))
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        *shlex.split(document["pip"])[1:],
    ]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")} | {
        "PIP_CONFIG_FILE": os.devnull
    }
    subprocess.run(command, check=True, env=environ, capture_output=True)
    program = (
        "import canary; a = canary.tensor([[1.0, 2.0], [3.0, 4.0]]); print((a @ a).tolist(), "
        "canary.__version__)"
    )
    answer = subprocess.run(
        [python, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert answer.split("] ")[0] + "]" == "[[7.0, 10.0], [15.0, 22.0]]"
    assert answer.strip().endswith(VERSION)


def test_the_gpu_part_is_never_passed_without_a_gpu(finished):
    farm, document = finished
    report = json.loads((farm.folder(document["run"]) / "smoke.json").read_text())
    gpu = [check for check in report["checks"] if check["group"] == "cuda"]
    assert gpu
    if not Path("/dev/nvidiactl").exists():
        assert {(check["status"], check["reason"]) for check in gpu} == {
            ("not_run", "no NVIDIA driver")
        }


def test_an_emulated_sandy_bridge_ran_the_wheel(finished, emulator):
    farm, document = finished
    report = json.loads((farm.folder(document["run"]) / "smoke-SandyBridge.json").read_text())
    assert report["emulated"] == "SandyBridge"
    assert report["outcome"] == "passed"
    assert any(
        "matmul" in check["name"] and check["status"] == "passed" for check in report["checks"]
    )


def test_the_reports_are_kept_in_the_index_with_the_record(finished):
    farm, document = finished
    name = Path(document["wheel"]).name
    assert (farm.index / "records" / f"{name}.json").exists()
    kept = [json.loads(file.read_text()) for file in (farm.index / "smoke" / name).glob("*.json")]
    assert {None, "SandyBridge"} >= {report["emulated"] for report in kept} >= {None}
    assert {report["facts"]["fat binaries"] for report in kept} == {
        "canary/lib/libcanary_cuda.so: sm_35"
    }
    assert {report["output_tail"] for report in kept} == {""}
    assert str(farm.project) not in "".join(json.dumps(report) for report in kept)


def test_one_wheel_serves_every_python(finished, tmp_path):
    """The stable ABI: the wheel that was built with Python 3.11 multiplies in what else there is
    here.
    """
    _, document = finished
    found = [(v, python) for v in (39, 310, 312, 313) if (python := find_python(f"py{v}"))]
    if not found:
        pytest.skip("there is no other Python here")
    for version, other in found:
        python = make_environment(tmp_path / str(version), other)
        with zipfile.ZipFile(document["wheel"]) as archive:
            archive.extractall(
                next((tmp_path / str(version) / "lib").glob("python*/site-packages"))
            )
        report = run_probe(
            python, module="canary", expect=Expectation(version=VERSION), timeout_s=300
        )
        assert report.outcome == "passed", (version, report.reason, report.output_tail)


def test_nothing_of_the_run_is_left_in_the_engine(finished, client):
    _, document = finished
    assert client.containers.list(all=True, filters={"label": f"farm.run={document['run']}"}) == []


def test_a_second_run_reuses_the_image_and_makes_the_same_bytes(finished):
    farm, document = finished
    before = published(farm.index)
    again = json.loads(farm.submit("--json", "--rebuild").stdout)
    assert again["run"] != document["run"]
    assert steps(again)["image"]["result"].endswith("reused")
    assert steps(again)["publish"]["result"].startswith("already there")
    assert Path(again["wheel"]).read_bytes() == Path(document["wheel"]).read_bytes()
    assert published(farm.index) == before


def test_a_repeated_submit_builds_nothing(finished):
    farm, document = finished
    before = len(farm.json("status"))
    again = json.loads(farm.submit("--json").stdout)
    assert again["pip"] == document["pip"]
    assert steps(again)["publish"]["result"].startswith("already there, from the same plan: ")
    assert steps(again)["smoke"]["result"].startswith("passed here before")
    assert len(farm.json("status")) == before


def test_status_and_logs_tell_what_happened(finished):
    farm, document = finished
    runs = {run["id"]: run["result"] for run in farm.json("status")}
    assert runs[document["run"]] == "success"
    whole = farm.json("status", document["run"])
    assert [job["kind"] for job in whole["jobs"]] == ["build", "smoke"]
    assert [attempt["state"] for job in whole["jobs"] for attempt in job["attempts"]] == [
        "done",
        "done",
    ]
    log = farm.run("logs", document["run"]).stdout
    assert "Building CUDA object" in log
    assert log.rstrip().endswith("farm: done")


def test_a_plan_file_is_built_as_far_as_the_wheel(farm, finished, tmp_path):
    _, document = finished
    plan = tmp_path / "plan.json"
    plan.write_text(
        farm.run("plan", "--variant", "sm35-avx-py311", "--package", "canary", "--json").stdout
    )
    built = farm.json("build", str(plan))
    assert [step["step"] for step in built["steps"]] == ["render", "image", "build"]
    with zipfile.ZipFile(built["wheel"]) as raw, zipfile.ZipFile(document["wheel"]) as repaired:
        added = set(repaired.namelist()) - set(raw.namelist())
    assert added == {"canary/lib/libcudart.so.11.0"}
    assert published(farm.index) == []


def test_ptx_is_in_the_wheel_when_it_is_asked_for(farm):
    document = json.loads(farm.submit("--ptx", "--rebuild", "1", "--json").stdout)
    inside = farm.json("inspect", document["wheel"])
    kernels = {
        (tuple(f["sass"]), tuple(f["ptx"])) for lib in inside["libraries"] for f in lib["fatbins"]
    }
    assert kernels == {((35,), (35,))}
    assert f"/canary-{quote(VERSION)}.1-" in document["pip"]


@pytest.fixture
def no_tree(farm, client):
    """A failed build leaves its tree for the next try; this one has none."""
    yield
    with open_journal(farm.project, load_settings(farm.project)) as journal:
        for digest in journal.plan_digests():
            client.volumes.get(tree_volume(digest)).remove()


@pytest.mark.usefixtures("no_tree")
def test_a_compile_error_is_exit_code_5_with_the_failing_lines_and_the_log(farm, tmp_path):
    code = tmp_path / "code"
    copy_farm(code)
    broken = code / "farm/recipes/canary/src/csrc/tensor.cpp"
    broken.write_text(broken.read_text() + "\n#error this line is wrong\n")
    result = type(farm)(farm.project, code).submit()
    assert result.returncode == 5
    assert "this line is wrong" in result.stderr
    log = result.stderr.split("the whole log: ")[1].strip()
    assert "#error this line is wrong" in Path(log).read_text()
    assert published(farm.index) == []


def avx2_plan(project: Path) -> Any:
    """The plan of the avx variant, compiled with AVX2 flags by mistake."""
    plan = plan_of("sm35-avx-py311", "canary", project=project)
    flags = "-O3 -mavx2 -mfma"
    return plan.model_copy(update={"env": plan.env | {"CFLAGS": flags, "CXXFLAGS": flags}})


def test_an_avx2_wheel_named_avx_is_caught_twice(farm, emulator, tmp_path):
    workspace = Workspace(farm.project, load_settings(farm.project), Watcher())
    with pytest.raises(VerificationFailedError, match=r"AVX2|FMA"):
        submit(workspace, avx2_plan(farm.project))
    assert published(farm.index) == []
    wheel = next(farm.project.glob("artifacts/runs/*/repaired/*.whl"))
    python = make_environment(tmp_path / "env", Path(sys.executable))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(next((tmp_path / "env/lib").glob("python*/site-packages")))
    expect = Expectation(version=VERSION)
    report = run_probe(python, module="canary", expect=expect, timeout_s=300, emulate="SandyBridge")
    assert (report.outcome, report.signal) == ("failed", "SIGILL")
    same = run_probe(python, module="canary", expect=expect, timeout_s=300, emulate="Haswell")
    assert same.outcome == "passed"


def test_without_an_engine_it_says_what_to_do(farm):
    result = farm.submit(DOCKER_HOST=f"unix://{farm.project}/nothing.sock")
    assert result.returncode == 4
    assert "apt-get install docker.io" in result.stderr


def test_the_pages_for_people_follow_a_test_and_name_what_was_built_here(finished):
    """They said "never built" and "not tested" after a whole main job."""
    farm, _ = finished
    assert farm.run("site", "build").returncode == 0
    page = farm.index / "project" / "canary.html"
    assert "published, CPU part tested; GPU part not run" in page.read_text()
    before = page.read_text()
    # The report of an earlier test, and not the page, is what says so.
    for report in (farm.index / "smoke").rglob("*.json"):
        report.unlink()
    assert farm.run("site", "build").returncode == 0
    assert "published, not tested" in page.read_text()
    result = farm.run("smoke", "--variant", "sm35-avx-py311", "--package", "canary")
    assert result.returncode == 0, result.stderr
    assert page.read_text().count("SandyBridge (emulated)") == before.count(
        "SandyBridge (emulated)"
    )
    built = (farm.index / "buildable.html").read_text()
    state = "published, CPU part tested; GPU part not run"
    assert f"in this index: canary {VERSION} for sm35-avx, cp37-abi3: {state}" in built
    assert farm.run("index", "check").returncode == 0
