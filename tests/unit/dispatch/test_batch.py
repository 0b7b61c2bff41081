"""Many builds at once: patterns in `farm plan`, and the question before `farm submit` queues
them.
"""

import json

import pytest

from farm.cli import batch, builds
from farm.cli.main import main
from farm.run.built_here import built_here
from farm.run.built_here import rows as rows_here
from farm.run.journal import EventKind
from farm.run.run import request_for
from tests.plans import plan_of
from tests.schemas import valid
from tests.unit.dispatch.test_run_commands import journal, project, swarm, workspace

__all__ = ["journal", "project", "swarm", "workspace"]

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
def test_yes_is_the_answer(project, journal):
    assert farm(project, *SUBMIT, "--yes") == 0
    assert len(journal.runs()) > 1


@pytest.mark.usefixtures("swarm")
def test_below_the_limit_the_sum_is_said_and_it_goes_on(project, journal, capsys):
    assert farm(project, *SUBMIT) == 0
    assert f"{len(journal.runs())} builds, " in capsys.readouterr().err


@pytest.mark.usefixtures("swarm")
@pytest.mark.parametrize("answer", ["n", ""])
def test_no_in_a_terminal_queues_nothing(project, journal, capsys, terminal, answer):
    answers, questions = terminal
    answers.append(answer)
    assert farm(project, *SUBMIT) == 130
    assert len(questions) == 1
    assert "cpu-avx-py311" in capsys.readouterr().out
    assert journal.runs() == ()


@pytest.mark.usefixtures("swarm")
def test_yes_in_a_terminal_queues_them(project, journal, terminal):
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


def test_the_time_of_a_build_serves_other_variants_of_the_package(journal, built):
    assert ("time here", "about 27 s a build (1 build of canary here)") in list(
        rows_here(journal, "another digest", "canary")
    )


def test_a_wheel_that_was_adopted_took_no_time(journal, built):
    plan, run = built
    journal.event(run.id, EventKind.RESUMED, run="earlier")
    assert built_here(journal, plan.digest).build_seconds is None


def test_a_run_that_failed_proves_nothing(journal):
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
