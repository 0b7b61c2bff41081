"""The smoke test runs on the Docker machine that has the card, and a machine without a fitting one
builds only.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.run import run, run_context, smoke
from farm.run.backends import card_machines
from farm.run.mainjob import MainJob
from farm.run.smoke_step import SmokeStep
from farm.run.workspace import Outcomes, open_journal
from tests.faults.engine import REPORT, Engine, install_smoke, workspace_in
from tests.plans import plan_of

RUNNERS = """
runners:
  local: {engine: docker}
  builder: {engine: docker, url: "tcp://one", jobs: [build, smoke], cpu_levels: [avx]}
  other: {engine: docker, url: "tcp://two", jobs: [smoke], cpu_levels: [avx], gpus: [{name: GTX 1080 Ti, sm: sm61}]}
  k40: {engine: docker, url: "tcp://3", jobs: [smoke], cpu_levels: [sse41, avx], gpus: [{name: Tesla K40, sm: sm35}]}
"""


class WithCard(Engine):
    """The engine of the machine with the card: leaves a report in the place of the probe."""

    def submit(self, job):
        self.job = job
        return super().submit(
            SimpleNamespace(inputs={}, labels={**job.labels, "farm.attempt": "0"})
        )

    def collect(self, _handle, dest, _limit):
        dest.mkdir()
        checks = [*REPORT["checks"], REPORT["checks"][0] | {"group": "cuda"}]
        (dest / "report.json").write_text(json.dumps(REPORT | {"checks": checks}))
        return [dest / "report.json"]


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "runners.yaml").write_text(RUNNERS)
    return workspace_in(tmp_path)


@pytest.mark.parametrize(
    ("variant", "machines"),
    [
        ("sm35-avx-py311", ["k40"]),
        ("sm61-avx-py311", ["other"]),
        ("sm35-avx2-py311", []),  # its CPU does not run that
        ("cpu-avx-py311", []),
    ],
)
def test_a_card_machine_is_chosen_by_what_it_can_run(workspace, variant, machines):
    assert list(card_machines(workspace, plan_of(variant, "canary"))) == machines


def test_the_smoke_test_runs_as_a_job_on_the_card_machine(workspace, monkeypatch):
    plan, engine, opened, closed = plan_of("sm35-avx-py311", "canary"), WithCard(), [], []
    install_smoke(monkeypatch.setattr)

    def make_environment(dest, *_, **__):
        (dest / "lib/python3.11/site-packages").mkdir(parents=True)
        return dest / "bin" / "python"

    def open_card_machine(_workspace, name):
        opened.append(name)
        return SimpleNamespace(engine=engine, close=lambda: closed.append(name))

    monkeypatch.setattr(smoke, "make_environment", make_environment)
    monkeypatch.setattr("farm.run.card_machines.open_card_machine", open_card_machine)
    monkeypatch.setattr(run_context, "toolchain", lambda *_: "toolchain:1")
    with open_journal(workspace.project, workspace.settings) as journal:
        request = run.request_for(plan, until="smoke", on="docker")
        found = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
        workspace.run_folder(found.id).mkdir(parents=True)
        job = MainJob(
            workspace,
            plan,
            journal,
            found,
            Outcomes(run=found.id),
            lambda _: pytest.fail("the builder"),
        )
        SmokeStep(job).carry_out("canary", ())
        (attempt,) = journal.jobs(found.id)[0].attempts
    assert (attempt.engine, attempt.runner, attempt.result) == ("docker", "k40", "success")
    assert (engine.job.gpus, engine.job.image, engine.containers) == (1, "toolchain:1", {})
    assert opened == closed == ["k40"]


def test_a_probe_elsewhere_and_what_it_starts_take_the_wheels_packages_before_the_images(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/yaml.py").write_text("OF_THE_WHEEL = True\n")
    look = "import yaml; assert yaml.OF_THE_WHEEL"
    (tmp_path / "probe.py").write_text(
        f"{look}\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', {look!r}], "
        "check=True)\n"
    )
    environ = {
        name: value.replace("/farm", str(tmp_path)) for name, value in smoke.PACKAGES.items()
    }
    environ["PATH"] = (
        # this Python has another yaml, as an image has
        f"{Path(sys.executable).parent}:/usr/bin:/bin"
    )
    command = ["sh", "-c", smoke.START.replace("/farm", str(tmp_path)), tmp_path / "probe.py"]
    subprocess.run(command, env=environ, check=True)
