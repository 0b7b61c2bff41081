"""Several processes, killed processes, and who owns a run."""

import os
import sqlite3
from dataclasses import replace

import pytest

from farm.run.journal import Journal
from farm.run.journal_records import Request
from farm.run.run_owner import Process, is_dead, this_process

WRITER = """
run = journal.create_run("d", Request(), {})
for n in range(100):
    journal.event(run.id, "n", n=n)
print(run.id)
"""


def test_concurrent_writers_lose_nothing(path, python):
    writers = [python(WRITER) for _ in range(4)]  # all of them create the file, too
    ids = [writer.communicate(timeout=60)[0].strip() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 4
    with Journal(path) as journal:
        assert sorted(ids) == sorted(run.id for run in journal.runs())
        for run_id in ids:
            assert [event.data["n"] for event in journal.events(run_id)[1:]] == list(range(100))


def test_a_writer_killed_in_the_middle_leaves_a_readable_journal(path, python):
    writer = python(
        'run = journal.create_run("d", Request(), {})\nn = 0\nwhile True:\n'
        '    journal.event(run.id, "n", n=n); n += 1\n    print(n, flush=True)\n'
    )
    for line in writer.stdout:
        if int(line) >= 20:
            break
    writer.kill()
    numbers = [int(line) for line in writer.stdout.read().split()]
    writer.wait(timeout=120)
    with Journal(path) as journal:
        [run] = journal.runs()
        seen = [event.data["n"] for event in journal.events(run.id)[1:]]
        assert seen == list(range(len(seen)))  # no hole, no half
        assert len(seen) >= max([20, *numbers])  # what was reported as written is there
        journal.event(run.id, "after")  # no lock is left behind
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    raw.close()


def test_a_writer_killed_inside_a_transaction_leaves_nothing_of_it(path, python):
    writer = python(
        'run = journal.create_run("d", Request(), {})\n'
        "with journal._writing():\n"
        "    journal._db.execute(\"UPDATE runs SET plan_digest = 'half'\")\n"
        "    print('in', flush=True)\n"
        "    import time; time.sleep(60)\n"
    )
    assert writer.stdout.readline() == "in\n"
    writer.kill()
    writer.wait(timeout=120)
    with Journal(path) as journal:
        assert [run.plan_digest for run in journal.runs()] == ["d"]


CONTROLLER = """
run = journal.create_run("digest", Request(), {})
attempt = journal.create_attempt(journal.create_job(run.id, "build").id, "docker", "local")
journal.set_handle(attempt.id, "container-7")
print(run.id, flush=True)
import sys; sys.stdin.read()
"""


def test_a_killed_controller_finds_its_run_again_and_a_live_one_keeps_it(path, python):
    controller = python(CONTROLLER)
    run_id = controller.stdout.readline().strip()
    with Journal(path) as journal:
        assert journal.unfinished("digest").id == run_id
        assert not journal.claim(run_id)  # it lives
        controller.kill()
        # not waited for: a zombie is dead, too
        while controller.stdout.read():
            pass
        os.waitid(os.P_PID, controller.pid, os.WEXITED | os.WNOWAIT)
        found = journal.unfinished("digest")
        assert found.id == run_id
        assert journal.claim(run_id)
        assert journal.claim(run_id)  # and it is ours from now on
        assert journal.run(run_id).owner == this_process()
        assert journal.jobs(run_id)[0].attempts[0].handle == "container-7"
        claimed = [event.data for event in journal.events(run_id) if event.kind == "claimed"]
        assert claimed == [{"pid": os.getpid(), "from_pid": controller.pid}]
        late = python(f"print(journal.claim({run_id!r}))")
        assert late.communicate(timeout=60)[0] == "False\n"
        journal.finish_run(run_id, "success", 0)
        assert journal.unfinished("digest") is None
        assert journal.unfinished("another") is None


def test_a_run_that_ended_meanwhile_is_not_taken(path, python):
    """Its owner ends it, and itself, between another controller's look and claim: that one makes a
    run of its own.
    """
    owner = python(CONTROLLER + "journal.finish_run(run.id, 'success', 0)\n")
    run_id = owner.stdout.readline().strip()
    with Journal(path) as journal:
        found = journal.unfinished("digest")
        owner.communicate(timeout=60)  # the end of its input, then its own
        assert found.id == run_id
        assert not journal.claim(run_id)
        assert journal.claim_all([run_id]) == set()
        assert [event.kind for event in journal.events(run_id)].count("claimed") == 0


def test_only_one_of_many_takes_a_dead_controllers_run(path, python):
    dead = python(CONTROLLER)
    run_id = dead.stdout.readline().strip()
    dead.kill()
    dead.wait(timeout=120)
    # alive until all have tried
    code = f"import sys; print(journal.claim({run_id!r}), flush=True); sys.stdin.read()"
    heirs = [python(code) for _ in range(4)]
    assert sorted(heir.stdout.readline().strip() for heir in heirs) == [
        "False",
        "False",
        "False",
        "True",
    ]


def test_a_dead_run_is_found_behind_a_live_one(path, python):
    dead = python(CONTROLLER)
    old = dead.stdout.readline().strip()
    live = python(CONTROLLER)
    new = live.stdout.readline().strip()
    with Journal(path) as journal:
        assert journal.unfinished("digest").id == new > old
        dead.kill()
        dead.wait(timeout=120)
        assert journal.unfinished("digest").id == old


def test_dead_processes_are_recognized():
    me = this_process()
    assert me.pid == os.getpid()
    assert me.start
    assert me.boot
    assert not is_dead(me)
    assert is_dead(replace(me, start="1"))  # the pid was given out again
    assert is_dead(replace(me, boot="another"))  # the machine was restarted
    assert is_dead(replace(me, pid=2**22 + 1))  # above Linux's highest pid
    assert not is_dead(
        replace(me, pid=2**22 + 1, space="pid:[1]")
    )  # in another container: nobody can tell
    assert not is_dead(replace(me, start=""))  # written where a start cannot be told


def test_an_owner_survives_being_written_down():
    process = Process(7, "12", "boot", "pid:[4]")
    assert Process.from_json(process.to_json()) == process
    with pytest.raises(TypeError):
        Process.from_json('{"pid": 7}')


def test_a_run_that_was_handed_over_is_anybodys_while_its_submitter_lives(path, python):
    """The submitting process waits for the end: if the run were its own, no dispatcher could ever
    take it.
    """
    with Journal(path) as journal:
        run = journal.create_run("d", Request(detached=True), {})
        kept = journal.create_run("d", Request(), {})
        dispatcher = python(f"print(journal.claim_all([{run.id!r}, {kept.id!r}]))")
        assert dispatcher.communicate(timeout=60)[0].strip() == str({run.id})
