"""Who stops for a while, two at the same work, and a clock that jumps: nothing is lost, nothing is carried out twice.

FARM_FAULTS: as in test_disk_faults.py.
"""

import json
import subprocess
import sys

import pytest

from farm.run import run
from farm.run.dispatch import Dispatcher
from farm.run.workspace import open_journal
from tests.faults.disk import Jump, jumping
from tests.faults.engine import Engine, install, the_plan, workspace_in
from tests.integration.dispatch.test_disk_faults import ROOT, SHARE

STEP = 1 if SHARE in ("each", "all") else 11
JUMPS = 1 if STEP == 1 else 25
HOUR = 3600.0


def carried_out(*words):
    command = [sys.executable, "-m", "tests.faults.others", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    return found["count"]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGSTOP and fork: POSIX alone has them")
@pytest.mark.parametrize("case", ["controller", "dispatcher"])
def test_one_that_is_stopped_goes_on_beside_the_other_that_came(case, tmp_path):
    """Stopped at each statement of the journal, its lock held or not; then another one comes; then it goes on."""
    count = carried_out("stopped", case, tmp_path, STEP)
    print(f"{case}: stopped at {count} places")
    assert count > 40 / STEP


@pytest.mark.skipif(sys.platform == "win32", reason="a copy of a process by fork: POSIX alone has it")
@pytest.mark.parametrize("case", ["controller", "dispatcher"])
def test_two_that_start_at_the_same_time_share_the_work(case, tmp_path):
    """Controllers that both find the run of one that was killed; dispatchers on one journal, past their lock."""
    carried_out("together", case, tmp_path, 20 if STEP == 1 else 2)


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("case", ["controller", "dispatcher"])
def test_a_clock_that_jumps_at_any_statement_changes_nothing(case, hours, tmp_path, monkeypatch):
    plan, engine = the_plan(), Engine()
    install(monkeypatch.setattr, plan, engine)
    request = run.request_for(plan, until="build", on="docker")

    def once(first):
        folder = tmp_path / str(first)
        folder.mkdir()
        workspace, jump = workspace_in(folder), Jump(folder, first, hours * HOUR)
        with jumping(jump), open_journal(workspace.project, workspace.settings) as journal:
            if case == "controller":
                run.submit(workspace, plan, until="build")
                run.submit(workspace, plan, until="build")
            else:
                run.create_detached(workspace, [(plan, request)])
                dispatcher = Dispatcher(workspace, journal)
                dispatcher.tick()
                run.create_detached(workspace, [(plan, request)])  # its id may not sort before what was seen
                dispatcher.drain()
            ends = [(r.result, [a.result for j in journal.jobs(r.id) for a in j.attempts]) for r in journal.runs()]
        assert ends == [("success", ["success"])] * 2, f"{first}: {ends}"
        assert engine.containers == {}
        return jump

    last = once(None).count
    assert last > 40
    places = range(1, last + 1, JUMPS)
    assert all(once(first).failed for first in places)
    print(f"{case}: {len(places)} jumps of {hours} h")
