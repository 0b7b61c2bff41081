"""submit, status, logs, cancel and retry, the same on every engine: canaries, carried out by a real
dispatcher.

GitHub is the project's fake, whose stand-in runner runs the step *Do the job* of the project's own
workflow as it stands there. It says nothing of GitHub itself.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from farm.engines.base import FINAL
from farm.run.journal import Journal
from tests.companion import CHANNEL, add_companion
from tests.e2e.conftest import TIMEOUT_S, wait
from tests.endless import ENDLESS, add_endless
from tests.integration.github.fake import REPOSITORY, TOKEN, WORKFLOWS, Fake, serve
from tests.integration.github.runner import Ended, StandIn

ENGINES = ["docker", "host", "swarm", "github"]
PULL_PORT, PUSH_PORT, HOST = 5063, 5062, "10.99.0.1"
LABELS = ["self-hosted", "linux", "x64", "farm-build"]
SELECT = ["--variant", "cpu-avx-py311", "--package", "canary", "--no-smoke", "--detach"]
WAITING = ["--variant", "cpu-avx-py311", "--package", ENDLESS, "--no-smoke", "--detach"]
FARM = '#!/bin/sh\nexec "{python}" -m farm.cli.main "$@"\n'


def change(path: Path, edit) -> None:
    data = yaml.safe_load(path.read_text())
    edit(data)
    path.write_text(yaml.safe_dump(data))


@pytest.fixture
def docker_farm(farm):
    return farm


@pytest.fixture(scope="module")
def build_python(tmp_path_factory):
    """A Python with what a build needs."""
    made = tmp_path_factory.mktemp("host") / "python"
    subprocess.run([sys.executable, "-m", "venv", made], check=True)
    subprocess.run(
        [made / "bin" / "pip", "install", "-q", "build", "setuptools", "wheel"], check=True
    )
    return made / "bin"


@pytest.fixture
def host_farm(farm, build_python, own_machine_lock, monkeypatch):
    """That Python first in PATH."""
    monkeypatch.setenv("PATH", f"{build_python}:{os.environ['PATH']}")
    return farm


@pytest.fixture
def swarm_farm(farm, swarm, pulled):
    settings = {
        "url": swarm.url(1),
        "exchange": swarm.s3("exchange"),
        "registry": f"{HOST}:{PULL_PORT}",
    }
    settings |= {"push": f"127.0.0.1:{PUSH_PORT}", "cpus": 1, "memory_gb": 2}
    change(farm.project / "ci" / "farm.yaml", lambda data: data.update(swarm=settings))
    return farm


@pytest.fixture
def github_farm(farm, tmp_path, monkeypatch):
    fake = Fake()
    server = serve(fake)
    monkeypatch.setenv("GH_TOKEN", TOKEN)
    for name in ("FARM_GITHUB_TOKEN", "GITHUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    runners = farm.project / "ci" / "runners.yaml"
    change(runners, lambda data: data["github"].update(repository=REPOSITORY, api_url=fake.url))
    steps = yaml.safe_load((WORKFLOWS / "build-plan.yml").read_text())["jobs"]["build"]["steps"]
    script = next(step["run"] for step in steps if step.get("name") == "Do the job")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "farm").write_text(FARM.format(python=sys.executable))
    (tools / "farm").chmod(0o755)

    def work(run, inputs, stopped):
        checkout = tmp_path / f"checkout-{run}"
        shutil.copytree(farm.project, checkout, ignore=shutil.ignore_patterns("artifacts"))
        temporary = tmp_path / f"temp-{run}"
        temporary.mkdir()
        environ = {
            **os.environ,
            "PLAN": inputs["plan"],
            "RUNNER_TEMP": str(temporary),
            "CI": "true",
        }
        environ |= {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(farm.code)}
        del environ["GH_TOKEN"]
        command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script]
        with (temporary / "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=checkout, env=environ, stdout=log, stderr=log, start_new_session=True
            )
            while process.poll() is None:
                time.sleep(0.1)
                if stopped():  # as GitHub's runner asks for an end
                    os.killpg(process.pid, signal.SIGINT)
                    process.wait(TIMEOUT_S)
        out = checkout / "farm-out"
        files = {
            str(path.relative_to(out)): path.read_bytes()
            for path in out.rglob("*")
            if path.is_file()
        }
        return Ended((temporary / "log").read_bytes(), files, process.returncode)

    with StandIn(fake, "linux-build", LABELS, work):
        yield farm
    server.shutdown()
    server.server_close()
    assert fake.problems == []


@pytest.fixture(params=ENGINES)
def engine(request):
    """The engine's name, and a project whose configuration has it."""
    return request.param, request.getfixturevalue(f"{request.param}_farm")


def state(farm, run):
    return farm.json("status", run)["state"]


def test_submit_status_logs_cancel_and_retry(engine):
    name, farm = engine
    made = farm.run("submit", *SELECT, "--on", name)
    assert made.returncode == 0, made.stderr
    run = made.stdout.strip()
    followed = farm.run("logs", "-f", run)
    assert followed.returncode == 0
    assert "farm: step build" in followed.stdout, followed.stderr
    wait("it ends", lambda: state(farm, run) in ("success", "failure", "infra"))
    status = farm.json("status", run)
    assert (status["state"], status["engine"]) == ("success", name), status["why"]
    assert [attempt["result"] for job in status["jobs"] for attempt in job["attempts"]] == [
        "success"
    ]
    assert [step["data"]["name"] for step in status["events"] if step["kind"] == "step"][
        -1
    ] == "publish"

    too_late = farm.run("cancel", run)
    assert (too_late.returncode, "too late to cancel" in too_late.stderr) == (2, True)

    add_endless(farm.project)
    doomed = farm.run("submit", *WAITING, "--on", name).stdout.strip()
    cancel_while_it_builds(farm, doomed)
    again = farm.run("retry", doomed, "--detach").stdout.strip()
    assert again != doomed
    cancel_while_it_builds(farm, again)
    log = (farm.project / "artifacts" / "dispatch.log").read_text()
    assert TOKEN not in log
    assert "Traceback" not in log


def cancel_while_it_builds(farm, run):
    def attempts_at_the_engine():
        with Journal(farm.project / "artifacts" / "farm.db") as journal:
            attempts = [attempt for job in journal.jobs(run) for attempt in job.attempts]
        return [a for a in attempts if a.handle and a.state not in FINAL]

    wait("it builds", attempts_at_the_engine)
    cancelled = farm.run("cancel", run, "--json")
    assert cancelled.returncode == 0, cancelled.stderr
    assert json.loads(cancelled.stdout)["exit_code"] == 130
    assert state(farm, run) == "cancelled"


ATTACHED = [word for word in SELECT if word != "--detach"]


def test_attached_submit_and_retry_end_with_their_runs(engine):
    """No command that is documented may wait for ever: a run that is handed over belongs to the
    dispatcher.
    """
    name, farm = engine
    made = farm.run("submit", *ATTACHED, "--on", name, "--json")
    assert made.returncode == 0, made.stderr
    (first,) = farm.json("status")
    assert (first["state"], first["engine"]) == ("success", name)
    again = farm.run("retry", first["id"])
    assert again.returncode == 0, again.stderr
    assert "farm: step build" in again.stderr
    newest, _ = farm.json("status")
    assert (newest["state"], newest["engine"]) == ("success", name)


def test_ctrl_c_leaves_a_followed_run_to_the_dispatcher(engine):
    name, farm = engine
    first = farm.run("submit", *SELECT, "--on", name).stdout.strip()
    wait("the first ends", lambda: state(farm, first) in ("success", "failure", "infra"))
    followed = farm.start("retry", first)
    # As soon as it is said: a build may be over before a look at its state finds it running
    # (GitHub's is every 15 s).
    run = re.fullmatch(r"run (\S+)\n", followed.stderr.readline())[1]
    followed.send_signal(signal.SIGINT)
    _, err = followed.communicate(timeout=TIMEOUT_S)
    assert (followed.returncode, f"farm logs -f {run}" in err) == (130, True), err
    wait("it ends", lambda: state(farm, run) in ("success", "failure", "infra"))
    assert state(farm, run) == "success"


SMALL = ["--channel", CHANNEL, "--variant", "cpu-avx-py311", "--package"]
STEPS = ["build", "repair", "verify", "publish", "install", "smoke"]


def test_a_companion_is_built_published_and_smoke_tested(engine, tmp_path):
    """submit and retry, attached and detached: built against the published torch of its variant,
    installed, tested.
    """
    name, farm = engine
    add_companion(farm.project)
    change(farm.project / "ci/farm.yaml", lambda data: data.update(index=str(tmp_path / "index")))
    refused = farm.run("submit", *SMALL, "companion", "--on", name)
    assert (refused.returncode, "farm submit" in refused.stderr) == (2, True), refused.stderr

    torch = farm.run("submit", *SMALL, "torch", "--on", name, "--detach").stdout.strip()
    first = farm.run("submit", *SMALL, "companion", "--on", name, "--detach").stdout.strip()
    wait(
        "torch and its companion end",
        lambda: all(state(farm, r) in ("success", "failure", "infra") for r in (torch, first)),
    )
    for run in (torch, first):
        assert state(farm, run) == "success", farm.json("status", run)["why"]
    attached = farm.run("submit", *SMALL, "companion", "--on", name, "--rebuild", "--json")
    assert attached.returncode == 0, attached.stderr
    second = farm.json("status")[0]["id"]
    retried = farm.run("retry", second)
    assert retried.returncode == 0, retried.stderr
    third = farm.json("status")[0]["id"]
    fourth = farm.run("retry", first, "--detach").stdout.strip()
    wait("the detached retry ends", lambda: state(farm, fourth) in ("success", "failure", "infra"))

    for run in (torch, first, second, third, fourth):
        found = farm.json("status", run)
        assert (found["state"], found["engine"]) == ("success", name), found["why"]
        done = [step["data"]["name"] for step in found["events"] if step["kind"] == "step"]
        ends = [
            (job["kind"], attempt["result"]) for job in found["jobs"] for attempt in job["attempts"]
        ]
        if run in (
            third,
            fourth,
        ):  # what they retry is published: it is tested again, and not built
            assert (done[:3], ends) == (STEPS[3:], [("smoke", "success")])
        else:
            assert [step for step in done if step in STEPS] == STEPS
            assert ends == [("build", "success"), ("smoke", "success")]
    (record,) = (tmp_path / "index/records").glob("companion-*.json")
    (statement,) = re.findall(r'"resolvedDependencies":\s*\[.*?\]', record.read_text(), re.DOTALL)
    assert "torch-2.6.0+cpu.avx-" in statement  # whoever gathered it: this machine or the runner
    assert ('"image"' in statement) == (name != "host")
