"""Machines with a card: in turn, the least busy first, one test a card, waited for."""

import json
from types import SimpleNamespace

import pytest

from farm.base.errors import NoRunnerError
from farm.run import card_machines, run
from farm.run.card_machines import take_card
from farm.run.journal_records import EventKind
from farm.run.mainjob import MainJob
from farm.run.workspace import Outcomes, Workspace, open_journal
from tests.faults.engine import workspace_in
from tests.plans import plan_of


@pytest.fixture
def workspace(tmp_path):
    made = workspace_in(tmp_path)
    return Workspace(made.project, made.settings.model_copy(update={"grace_s": 0}), made.watcher)


@pytest.fixture
def journal(workspace):
    with open_journal(workspace.project, workspace.settings) as opened:
        yield opened


class Machines:
    """The machines that answer, those that were opened and closed, and what happens at a wait."""

    def __init__(self):
        self.answering = {"c1", "c2"}
        self.opened = []
        self.closed = []
        self.waits = []

    def open(self, _workspace, name):
        self.opened.append(name)
        if name not in self.answering:
            raise NoRunnerError(f"no Docker engine answers at tcp://{name}")
        return SimpleNamespace(name=name, close=lambda: self.closed.append(name))


@pytest.fixture
def machines(monkeypatch):
    made = Machines()
    monkeypatch.setattr(card_machines, "open_card_machine", made.open)

    def sleep(_seconds):
        assert made.waits, "it waits, and nothing will happen any more"
        made.waits.pop(0)()

    monkeypatch.setattr(card_machines.time, "sleep", sleep)
    return made


@pytest.fixture
def take(workspace, journal):
    """Takes a card for a run of its own; returns the machine's name and the attempt."""

    def go(cards):
        plan = plan_of("sm35-avx-py311", "canary")
        request = run.request_for(plan, until="smoke", on="docker")
        made = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
        job = MainJob(workspace, plan, journal, made, Outcomes(), lambda _runner: None)
        attempt, backend = take_card(job, journal.create_job(made.id, "smoke"), cards)
        return backend.name, attempt

    return go


def test_a_dead_machine_is_passed_over(machines, take):
    machines.answering = {"c2"}
    assert take({"c1": 1, "c2": 1})[0] == "c2"


def test_two_tests_go_to_two_machines(machines, take):
    assert [take({"c1": 1, "c2": 1})[0] for _ in range(2)] == ["c1", "c2"]


def test_a_machine_takes_as_many_tests_as_it_has_cards(machines, take):
    assert [take({"c1": 1, "c2": 2})[0] for _ in range(3)] == ["c1", "c2", "c2"]


def test_a_busy_card_is_waited_for(machines, take, journal):
    _, first = take({"c1": 1})
    machines.waits.append(lambda: journal.set_state(first.id, "done", "success"))
    name, second = take({"c1": 1})
    assert (name, second.runner) == ("c1", "c1")
    assert machines.waits == []
    why = [e.data["why"] for r in journal.runs() for e in journal.events(r.id) if "why" in e.data]
    assert "the smoke test waits for a card: c1: another test runs on its card" in why


def test_a_machine_that_comes_back_within_the_grace_is_used(machines, take, workspace, monkeypatch):
    monkeypatch.setitem(workspace.settings.__dict__, "grace_s", 3600)
    machines.answering = set()
    machines.waits.append(lambda: machines.answering.add("c2"))
    assert take({"c1": 1, "c2": 1})[0] == "c2"


def test_machines_that_stay_away_are_named(machines, take):
    machines.answering = set()
    with pytest.raises(NoRunnerError, match=r"c1: no Docker engine .*; c2: no Docker") as caught:
        take({"c1": 1, "c2": 1})
    assert "farm retry" in caught.value.hint


def test_a_run_that_ended_holds_no_card(machines, take, journal):
    take({"c1": 1})
    (made,) = journal.runs()
    journal.finish_run(made.id, "infra", 9)
    assert take({"c1": 1})[0] == "c1"


def test_a_card_of_a_controller_that_died_is_free(machines, take, journal):
    take({"c1": 1})
    with journal._writing():
        owner = json.loads(journal._db.execute("SELECT owner FROM runs").fetchone()[0])
        owner |= {"boot": "another"}
        journal._db.execute("UPDATE runs SET owner = ?", (json.dumps(owner, sort_keys=True),))
    assert take({"c1": 1})[0] == "c1"
    assert not journal.happened(journal.runs()[0].id, EventKind.WAITING)
