"""Many builds at once: patterns in `farm plan`, and the question before `farm submit` queues
them.
"""

import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from farm.base.hashes import sha256_of
from farm.cli import batch, builds
from farm.cli import plan as plan_command
from farm.cli import runs as runs_commands
from farm.cli.live_runs import LiveRuns
from farm.cli.main import main
from farm.index.publish import publish
from farm.index.store_urls import open_store
from farm.plan.render import render
from farm.run.build_job import cpu_seconds
from farm.run.built_here import built_here
from farm.run.built_here import rows as rows_here
from farm.run.journal_records import EventKind
from farm.run.run import request_for
from tests.indexes.wheels import build_wheel
from tests.plans import plan_of
from tests.schemas import valid
from tests.unit.dispatch.test_run_commands import journal, project, swarm, workspace

__all__ = ["journal", "project", "swarm", "workspace"]

ROOT = Path(__file__).parents[3]
PATTERN = ["--variant", "cpu-*-py311", "--package", "canary"]
SUBMIT = ["submit", *PATTERN, "--on", "swarm", "--no-smoke", "--detach"]


def farm(project, *words):
    return main(["--project", str(project), *words])


@pytest.fixture(autouse=True)
def no_dispatcher(monkeypatch):
    monkeypatch.setattr(builds, "start_dispatcher", lambda _workspace: None)


@pytest.fixture
def small_limit(project):
    """A project that asks above one build."""
    path = project / "ci/farm.yaml"
    text = path.read_text()
    changed = text.replace("ask_above: {builds: 20, cpu_hours: 50}", "ask_above: {builds: 1}")
    assert changed != text
    path.write_text(changed)


@pytest.fixture
def terminal(monkeypatch):
    """A terminal; returns the list of answers to give, and of questions that were asked."""
    answers, questions = [], []

    def ask(question):
        questions.append(question)
        return answers.pop(0)

    monkeypatch.setattr(batch, "_in_a_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", ask)
    return answers, questions


def test_plan_takes_a_pattern_and_says_what_it_costs(project, capsys):
    assert farm(project, "plan", *PATTERN) == 0
    output = capsys.readouterr().out
    assert "cpu-avx-py311" in output
    assert "cpu-avx2-py311" in output
    assert " builds, " in output.splitlines()[-1]


def test_plan_of_several_builds_as_json(project, capsys):
    assert farm(project, "plan", *PATTERN, "--json") == 0
    document = valid("plan", capsys.readouterr().out)
    variants = [build["variant"] for build in document["builds"]]
    assert len(variants) == len(set(variants)) > 1
    assert {build["state"] for build in document["builds"]} == {"to build"}


def test_plan_of_one_variant_is_the_whole_plan(project, capsys):
    assert farm(project, "plan", "--variant", "cpu-avx-py311", "--package", "canary", "--json") == 0
    assert valid("plan", capsys.readouterr().out)["variant"] == "cpu-avx-py311"


@pytest.mark.usefixtures("swarm", "small_limit")
def test_without_a_terminal_a_large_submit_needs_yes(project, journal, capsys):
    assert farm(project, *SUBMIT) == 2
    error = capsys.readouterr().err
    assert "above `ask_above` of ci/farm.yaml" in error
    assert "--yes" in error
    assert journal.runs() == ()


@pytest.mark.usefixtures("swarm", "small_limit")
def test_yes_skips_the_question(project, journal):
    assert farm(project, *SUBMIT, "--yes") == 0
    assert len(journal.runs()) > 1


@pytest.mark.usefixtures("swarm")
def test_a_small_batch_prints_its_sum_and_is_queued(project, journal, capsys):
    assert farm(project, *SUBMIT) == 0
    assert f"{len(journal.runs())} builds, " in capsys.readouterr().err


@pytest.mark.usefixtures("swarm")
@pytest.mark.parametrize("answer", ["n", ""])
def test_answering_no_queues_nothing(project, journal, capsys, terminal, answer):
    answers, questions = terminal
    answers.append(answer)
    assert farm(project, *SUBMIT) == 130
    assert len(questions) == 1
    assert "cpu-avx-py311" in capsys.readouterr().out
    assert journal.runs() == ()


@pytest.mark.usefixtures("swarm")
def test_answering_yes_queues_the_builds(project, journal, terminal):
    terminal[0].append("y")
    assert farm(project, *SUBMIT) == 0
    assert len(journal.runs()) > 1


@pytest.mark.usefixtures("swarm")
def test_one_build_is_not_asked_about(project, journal, terminal):
    words = ["--variant", "cpu-avx-py311", "--package", "canary", "--on", "swarm", "--detach"]
    assert farm(project, "submit", *words) == 0
    assert terminal[1] == []
    assert len(journal.runs()) == 1


# --- what was done here


@pytest.fixture
def built(journal):
    """A run of the canary that came to its end here."""
    plan = plan_of("cpu-avx-py311", "canary")
    request = request_for(plan, until="smoke", on="docker")
    run = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
    for name, seconds, result in (
        ("build", 27.0, "canary.whl"),
        ("publish", 1.0, "published"),
        ("smoke", 3.0, "passed"),
    ):
        journal.event(
            run.id, EventKind.STEP, name=name, seconds=seconds, outcome="done", result=result
        )
    journal.finish_run(run.id, "success", 0)
    return plan, run


def test_plan_names_what_was_built_and_tested_here(project, built, capsys):
    _, run = built
    assert farm(project, "plan", "--variant", "cpu-avx-py311", "--package", "canary") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert f"(run {run.id})" in output
    assert "27 s" in output
    assert "smoke test: passed" in output
    assert "has been run to its end" not in output


def test_the_time_of_a_build_serves_other_variants_of_the_package(journal, built):
    assert ("time here", "about 27 s a build (1 build of canary here)") in list(
        rows_here(journal, "another digest", "canary")
    )


def test_an_adopted_wheel_has_no_build_time(journal, built):
    plan, run = built
    journal.event(run.id, EventKind.RESUMED, run="earlier")
    assert built_here(journal, plan.digest).build_seconds is None


def test_a_failed_run_is_no_evidence(journal):
    plan = plan_of("cpu-avx-py311", "canary")
    request = request_for(plan, until="smoke", on="docker")
    run = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
    journal.finish_run(run.id, "failure", 5)
    assert built_here(journal, plan.digest) is None


@pytest.mark.parametrize(("minutes", "said"), [(10, True), (2880, False)])
def test_plan_says_where_a_cluster_allows_less_time_than_the_recipe(project, capsys, minutes, said):
    path = project / "ci/farm.yaml"
    slurm = f"slurm: {{folder: /shared/farm, minutes: {minutes}}}"
    path.write_text(path.read_text().replace("slurm: null", slurm))
    assert farm(project, "plan", "--variant", "cpu-avx-py311", "--package", "canary") == 0
    assert ("a job gets 10 of the recipe's 15 minutes" in capsys.readouterr().out) == said


# --- what a batch shows while it is carried out


class Screen(io.StringIO):
    """A terminal: what is drawn on it, and what is printed above."""

    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Makes standard output and error one terminal of 110 columns and 8 lines, and returns it.

    It is called in the test: pytest captures anew between the set-up and the test.
    """
    for name, value in (("COLUMNS", "110"), ("LINES", "8"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def open_screen():
        terminal = Screen()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        return terminal

    return open_screen


@pytest.fixture
def queued(project, journal):
    """Two runs of one command that wait, each for another reason, and belong to a live process."""
    assert farm(project, *SUBMIT) == 0
    runs = journal.open_runs()[:2]
    journal.note_waiting({runs[0].id: "every runner that fits is busy: big"})
    for run in runs:
        assert journal.claim(run.id)
    return runs


def end_at_the_first_look(monkeypatch, journal, runs):
    """The runs end while the command looks for the first time, after it has drawn."""

    def sleep(_seconds):
        for run in runs:
            journal.finish_run(run.id, "success", 0)

    monkeypatch.setattr(runs_commands.time, "sleep", sleep)


@pytest.mark.usefixtures("swarm")
def test_a_batch_in_a_terminal_is_a_table_that_says_why_each_run_waits(
    project, journal, queued, screen, monkeypatch
):
    end_at_the_first_look(monkeypatch, journal, queued)
    terminal = screen()
    assert farm(project, "wait", *(run.id for run in queued)) == 0
    drawn = terminal.getvalue()
    assert "every runner that fits is busy: big" in drawn
    assert "\x1b[" in drawn  # drawn over, not a line for each change
    for run in queued:
        assert f"{run.id}  canary {run.request.variant}  success" in drawn


@pytest.mark.usefixtures("swarm")
def test_without_a_terminal_each_change_is_a_line(project, journal, queued, capsys, monkeypatch):
    end_at_the_first_look(monkeypatch, journal, queued)
    capsys.readouterr()
    assert farm(project, "wait", *(run.id for run in queued)) == 0
    output = capsys.readouterr()
    assert "\x1b" not in output.err
    first = queued[0]
    text = (
        f"{first.id}  canary {first.request.variant}  queued: every runner that fits is busy: big"
    )
    assert output.err.splitlines()[0] == text
    assert len(output.err.splitlines()) == 2


def test_a_table_is_no_higher_than_the_screen_and_shows_first_what_runs(screen):
    row = {"package": "canary", "variant": "cpu-avx-py311", "seconds": 5.0, "progress": None}
    rows = [
        {**row, "id": f"run-{number:02}", "state": "queued", "started": None, "why": "busy"}
        for number in range(20)
    ]
    rows.append({**row, "id": "run-99", "state": "running", "started": "now", "why": None})
    terminal = screen()
    with LiveRuns() as table:
        table.update(rows)
        lines = terminal.getvalue().splitlines()
    assert len(lines) <= 8
    assert "run-99" in lines[1]
    assert "… and 16 more" in lines[-1]


@pytest.fixture
def cluster(project, tmp_path, monkeypatch):
    """A cluster that answers by scripts: `sinfo` and `sacctmgr` print what is given."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    path = project / "ci/farm.yaml"
    slurm = "slurm: {folder: /shared/farm, partition: gpu, qos: short}"
    path.write_text(path.read_text().replace("slurm: null", slurm))

    def answer(program, script):
        (programs / program).write_text(f"#!/bin/sh\n{script}\n")
        (programs / program).chmod(0o755)

    return answer


def test_plan_names_the_limit_of_a_partition(project, cluster, capsys):
    cluster("sinfo", "echo 'partition|gpu|5:00'")
    assert farm(project, "plan", "--variant", "cpu-avx-py311", "--package", "canary") == 0
    text = "a job gets 5 of the recipe's 15 minutes: the limit of partition gpu"
    assert text in " ".join(capsys.readouterr().out.split())


def test_plan_names_the_limit_of_a_qos(project, cluster, capsys):
    cluster("sinfo", "echo 'partition|gpu|2-00:00:00'")
    cluster("sacctmgr", 'case "$*" in *qos*) echo "short|00:07:00";; esac')
    assert farm(project, "plan", "--variant", "cpu-avx-py311", "--package", "canary") == 0
    assert "minutes: the limit of qos short" in " ".join(capsys.readouterr().out.split())


def test_plan_is_printed_though_the_cluster_does_not_answer(project, cluster, capsys, monkeypatch):
    monkeypatch.setattr(plan_command, "CLUSTER_S", 0.2)
    cluster("sinfo", "exec sleep 20")
    assert farm(project, "plan", "--variant", "cpu-avx-py311", "--package", "canary") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "the time limits there are not known: Slurm on this machine does not answer" in output


# --- CPU time, and tests of the index


@pytest.fixture
def trap(tmp_path):
    """The line of a rendered build.sh that prints the CPU time, in a script that takes some."""
    script = render(ROOT, plan_of("cpu-avx-py311", "canary")).job["build.sh"]
    (line,) = [text for text in script.splitlines() if text.startswith("trap ")]
    (tmp_path / "bin").mkdir()
    burn = "python3 -c 'import time; start = time.process_time()\nwhile time.process_time() < start + 0.3: pass'"
    return f"set -euo pipefail\nFARM_ROOT={tmp_path}\n{line}\n{burn}\n"


@pytest.mark.parametrize("code", [0, 3])
def test_a_build_prints_its_cpu_time_however_it_ends(trap, tmp_path, code):
    log = tmp_path / "build.log"
    with log.open("wb") as stream:
        script = f"{trap}exit {code}\n"
        done = subprocess.run(["bash", "-c", script], stdout=stream, check=False)
    assert done.returncode == code
    assert 0.3 <= cpu_seconds(log) < 60


def test_the_cpu_times_of_all_steps_count(tmp_path):
    """As a log of steps.py holds them: what a step prints itself has a bar before it."""
    lines = [
        "| farm: times 0m0.500s 0m0.000s 2m4.000s 0m1.000s ",
        "farm: step libraries",
        "| farm: times 0m0.000s 0m0.000s 0m0.500s 0m0.000s ",
    ]
    (tmp_path / "build.log").write_text("\n".join(lines) + "\n")
    assert cpu_seconds(tmp_path / "build.log") == 126.0


def test_a_log_without_the_line_has_no_cpu_time(tmp_path):
    (tmp_path / "build.log").write_text("farm: times none\n")
    assert cpu_seconds(tmp_path / "build.log") is None
    assert cpu_seconds(tmp_path / "absent.log") is None


@pytest.fixture
def measured(journal, built):
    """The canary took 1,800 s of CPU time here, in two attempts."""
    _, run = built
    for seconds in (600.0, 1200.0):
        journal.event(run.id, EventKind.CPU_TIME, seconds=seconds)


def test_plan_says_what_cpu_time_a_build_took_here(project, measured, capsys):
    assert farm(project, "plan", "--variant", "cpu-avx-py311", "--package", "canary") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "about 27 s a build, 30 min of CPU time (1 build of canary here)" in output


def test_several_builds_cost_what_was_measured_here_where_the_recipe_says_nothing(
    project, measured, capsys
):
    assert farm(project, "plan", *PATTERN) == 0
    output = capsys.readouterr().out
    count = int(output.splitlines()[-1].split()[0])
    assert f"about {count * 0.5:.3g} CPU hours" in output
    assert "unknown cost" not in output


def put_with_a_test(workspace, plan):
    """Publish a wheel of a plan, with one report of a smoke test elsewhere."""
    store = open_store(workspace.index_url)
    name = f"{plan.package}-{plan.version}-cp311-cp311-manylinux_2_17_x86_64.whl"
    wheel = build_wheel(workspace.project, name).path
    sha256 = sha256_of(wheel)
    publish(
        store,
        wheel,
        group=plan.parsed_variant.group,
        upload_time=datetime(2026, 11, 1, tzinfo=UTC),
        provenance={"plan": plan.digest, "verified": sha256},
    )
    report = {
        "outcome": "passed",
        "emulated": None,
        "facts": {"machine": "x86_64", "tested at": "2026-11-02T00:00:00", "tested wheel": sha256},
        "checks": [
            {"group": "cpu", "name": "matmul", "status": "passed", "seen": "", "reason": ""}
        ],
    }
    data = json.dumps(report).encode()
    store.create(f"smoke/{name}/{'a' * 16}.json", data, content_type="application/json")


def test_plan_names_the_tests_that_the_index_keeps_of_the_wheel(project, workspace, capsys):
    put_with_a_test(workspace, plan_of("cpu-avx-py311", "canary"))
    assert farm(project, "plan", "--variant", "cpu-avx-py311", "--package", "canary") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "tested on a real CPU (x86_64), 2026-11-02: CPU part passed" in output
