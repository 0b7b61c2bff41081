"""Nothing is compiled twice: a run goes on from the wheel that is there, and its end is tried
before its build.
"""

import json
from dataclasses import replace

import pytest

from farm.base.errors import InfrastructureError, PublishRefusedError, SmokeFailedError
from farm.base.interrupts import OutputClosed
from farm.index.publish import check_store
from farm.index.store_urls import open_store
from farm.run import mainjob, run, smoke_step
from farm.run.dispatch import Dispatcher
from farm.run.journal_records import EventKind
from farm.run.preflight import check_plan
from farm.run.workspace import Watcher, Workspace, open_journal
from tests.faults.engine import Engine, install, install_smoke, the_plan, workspace_in


@pytest.fixture(scope="module")
def plan():
    return the_plan()


@pytest.fixture
def engine(plan, monkeypatch):
    made = Engine()
    install(monkeypatch.setattr, plan, made)
    install_smoke(monkeypatch.setattr)
    return made


@pytest.fixture
def workspace(tmp_path):
    made = workspace_in(tmp_path)
    check_store(open_store(made.index_url))
    return made


def steps(workspace):
    with open_journal(workspace.project, workspace.settings) as journal:
        (newest,) = journal.runs(1)
        return [e.data["name"] for e in journal.events(newest.id) if e.kind == EventKind.STEP]


def retry(workspace, **changes):
    """`farm retry` of the newest run, and the dispatcher's work."""
    with open_journal(workspace.project, workspace.settings) as journal:
        (old,) = journal.runs(1)
        plan = run.plan_of(old)
        request = run.request_for(plan, until=old.request.until, on="docker")
        request = type(request)(**{**vars(request), "retry_of": old.id, **changes})
        (new,) = run.create_detached(workspace, [(plan, request)])
        Dispatcher(workspace, journal).drain()
        return journal.run(new.id)


def test_after_a_failed_smoke_test_a_retry_only_tests(engine, workspace, plan, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(smoke_step, "smoke", lambda *_, **__: ["smoke failed: no"])
        with pytest.raises(SmokeFailedError):
            run.submit(workspace, plan)
    assert engine.numbers == 1
    assert retry(workspace).result == "success"
    assert engine.numbers == 1
    assert not {"build", "repair", "verify"} & set(steps(workspace))


@pytest.mark.parametrize("again", ["submit", "retry"])
def test_after_a_publish_that_failed_the_wheel_is_not_built_again(
    engine, workspace, plan, monkeypatch, again
):
    def refused(*_, **__):
        raise PublishRefusedError("the index is read-only")

    with monkeypatch.context() as patch:
        patch.setattr(mainjob, "publish_wheel", refused)
        with pytest.raises(PublishRefusedError):
            run.submit(workspace, plan)
    if again == "submit":
        outcomes = run.submit(workspace, plan)
        built = next(step for step in outcomes.steps if step.name == "build")
        assert built.result.startswith("not built again: the wheel of run ")
    else:
        assert retry(workspace).result == "success"
    assert engine.numbers == 1


def test_a_retry_can_build_again(engine, workspace, plan, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            mainjob, "repair_built", lambda *_: (_ for _ in ()).throw(InfrastructureError("no"))
        )
        with pytest.raises(InfrastructureError):
            run.submit(workspace, plan)
    assert retry(workspace, rebuild=True).result == "success"
    assert engine.numbers == 2


def test_submitting_a_succeeded_plan_again_builds_it(engine, workspace, plan):
    run.submit(workspace, plan, until="verify")
    run.submit(workspace, plan, until="verify")
    assert engine.numbers == 2
    run.submit(workspace, plan, until="publish")  # that wheel is taken
    assert engine.numbers == 2


def test_an_index_that_cannot_be_written_is_found_before_the_build(
    engine, workspace, plan, tmp_path
):
    (tmp_path / "file").touch()  # a file is where a folder should be, which stops root as well
    settings = workspace.settings.model_copy(update={"index": str(tmp_path / "file/below")})
    with pytest.raises(InfrastructureError, match=str(tmp_path / "file")) as caught:
        run.submit(Workspace(workspace.project, settings, workspace.watcher), plan)
    assert caught.value.hint
    assert engine.numbers == 0


def test_a_name_that_another_build_has_is_found_before_the_build(engine, workspace, plan):
    run.submit(workspace, plan)
    other = plan.model_copy(
        update={"options": {**plan.options, "ptx": not plan.options.get("ptx")}}
    )
    assert other.digest != plan.digest
    with pytest.raises(
        PublishRefusedError, match="is in the index already, from another build"
    ) as caught:
        run.submit(workspace, other)
    assert caught.value.hint == "run it again with --rebuild 1"
    assert engine.numbers == 1


def test_a_full_disk_is_found_before_the_build(workspace, plan, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 1000})())
    with pytest.raises(InfrastructureError, match=r"0\.0 GB are free"):
        check_plan(workspace, plan, run.request_for(plan, until="build", on="docker"))


class Gone(Watcher):
    """The reader of a command that ends at its first line."""

    def __init__(self, ending):
        self.ending = ending

    def step(self, _name):
        raise self.ending


@pytest.mark.parametrize("ending", [OutputClosed, KeyboardInterrupt])
def test_a_build_of_a_killed_controller_is_resumed_by_one_whose_output_is_closed(
    engine, workspace, plan, ending
):
    """A closed pipe asks for no end of a build that this command has not begun to follow; Ctrl-C
    does.
    """
    with open_journal(workspace.project, workspace.settings) as journal:
        request = run.request_for(plan, until="smoke", on="docker")
        old = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
        attempt = journal.create_attempt(journal.create_job(old.id, "build").id, "docker", "local")
        engine.containers["container"] = {}
        journal.set_handle(attempt.id, "container")
        journal.set_state(attempt.id, "running")
        with pytest.raises(ending):
            run.submit(replace(workspace, watcher=Gone(ending)), plan)
        ended = journal.run(old.id)
        closed = ending is OutputClosed
        assert (ended.exit_code, "container" in engine.containers) == (
            (None, True) if closed else (130, False)
        )
    run.submit(workspace, plan)
    assert engine.numbers == (0 if closed else 1)
