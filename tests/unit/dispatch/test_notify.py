"""An operator hears of the end of a run, and a scraper of how many there are."""

import json
import time

import pytest

from farm.cli.main import main
from farm.plan.settings import load_settings
from farm.run.journal_records import EventKind
from farm.run.run import cancel, request_for
from farm.run.workspace import Watcher, Workspace, open_journal
from tests.plans import plan_of
from tests.schemas import valid
from tests.unit.dispatch.test_run_commands import journal, project, run, swarm

__all__ = ["journal", "project", "run", "swarm"]


@pytest.fixture
def workspace(project):
    """A project with a command that writes down what it is given."""
    path = project / "ci/farm.yaml"
    command = ["sh", "-c", f"cat >> {project}/heard; echo said"]
    path.write_text(path.read_text().replace("notify: []", f"notify: {json.dumps(command)}"))
    return Workspace(project, load_settings(project), Watcher())


def begun(journal):
    plan = plan_of("cpu-avx-py311", "canary")
    request = request_for(plan, until="publish", on="docker")
    return journal.create_run(plan.digest, request, json.loads(plan.to_json())).id


def heard(project):
    """The documents that the command was given; it is waited for."""
    path = project / "heard"
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, "the command was not started"
        time.sleep(0.05)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_command_reads_what_became_of_the_run(project, workspace):
    with open_journal(project, workspace.settings) as journal:
        run_id = begun(journal)
        journal.event(run_id, EventKind.ERROR, text="no space", hint=None)
        journal.finish_run(run_id, "infra", 9)
    (document,) = heard(project)
    assert (document["run"], document["package"]) == (run_id, "canary")
    assert (document["state"], document["exit_code"]) == ("infra", 9)
    assert document["why"] == "no space"


def test_notify_is_called_once_a_run(project, workspace):
    with open_journal(project, workspace.settings) as journal:
        run_id = begun(journal)
        journal.finish_run(run_id, "success", 0)
        journal.finish_run(run_id, "infra", 9)
        told = [e for e in journal.events(run_id) if e.kind == EventKind.NOTIFY]
    assert len(told) == 1
    assert [document["state"] for document in heard(project)] == ["success"]


def test_notify_is_called_for_a_cancel(project, workspace):
    with open_journal(project, workspace.settings) as journal:
        run_id = begun(journal)
    cancel(workspace, [run_id])
    assert [document["state"] for document in heard(project)] == ["cancelled"]


def test_a_missing_notify_command_does_not_change_the_result(project):
    path = project / "ci/farm.yaml"
    path.write_text(path.read_text().replace("notify: []", 'notify: ["/no/such/program"]'))
    with open_journal(project, load_settings(project)) as journal:
        run_id = begun(journal)
        assert journal.finish_run(run_id, "success", 0)
        told = journal.happened(run_id, EventKind.NOTIFY)
        assert journal.run(run_id).result == "success"
    assert "/no/such/program cannot be started" in told.data["error"]


@pytest.mark.usefixtures("run")
def test_counts_are_few_numbers_for_a_scraper(project, journal, capsys):
    ended = begun(journal)
    journal.finish_run(ended, "failure", 5)
    assert main(["--project", str(project), "status", "--counts", "--json"]) == 0
    document = valid("status", capsys.readouterr().out)
    assert document["open"] == {"queued": 1, "starting": 0, "running": 0, "finishing": 0}
    assert document["ended"] == {"success": 0, "failure": 1, "infra": 0}
    assert document["longest_wait_s"] >= 0


@pytest.mark.usefixtures("run")
def test_counts_are_printed_for_people(project, capsys):
    assert main(["--project", str(project), "status", "--counts"]) == 0
    assert "open: 1 queued, 0 starting" in capsys.readouterr().out
