"""ENOSPC, EIO and EMFILE at every write of a run: nothing hangs, nothing is left over, and the reason is a true one.

The controller (`farm submit`) and the dispatcher carry out a canary up to the wheel as built: real journal, templates,
sources and tar streams. The engine stands in for Docker: it keeps containers in
memory, and knows which of them are left and which streams were never closed. A third case has a working disk up to
there: repair, verify, publish, install and smoke follow, with a real index; pip and the probe are stand-ins. Then the
disk works again, and the same command finishes the run.

FARM_FAULTS: unset for every eighth place, `each` for every place with one of the errors in turn, `all` for every place
with each error.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest

from farm.base.errors import FarmError
from farm.index.backends import open_store
from farm.index.check import check
from farm.index.publish import check_store
from farm.run import run
from farm.run.dispatch import Dispatcher
from farm.run.workspace import open_journal
from tests.faults.disk import Disk, below, failing, texts
from tests.faults.engine import Engine, from_publish_on, install, install_smoke, the_plan, workspace_in

ROOT = Path(__file__).parents[3]
HANG_S = 300
TRIES = 40
SHARE = os.environ.get("FARM_FAULTS", "sample")
NUMBERS = [errno.ENOSPC, errno.EIO, errno.EMFILE]


@pytest.fixture(scope="module")
def plan():
    return the_plan()


@pytest.fixture
def parts(plan, monkeypatch):
    engine = Engine()
    install(monkeypatch.setattr, plan, engine)
    return engine


class Hung(BaseException):
    """The case took longer than HANG_S."""


@pytest.fixture
def no_hang():
    def late(*_):
        raise Hung

    before = signal.signal(signal.SIGALRM, late)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, HANG_S)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def controller(workspace, plan, disk, until="build"):
    """`farm submit`, as often as a user types it again; returns the reasons that it gave."""
    reasons = []
    for _ in range(TRIES):
        try:
            run.submit(workspace, plan, until=until)
        except (FarmError, OSError) as error:  # the command line prints an OSError as it does a FarmError
            reasons.append(error)
            disk.abandoned += abandoned(workspace, disk)
        else:
            return reasons
    raise AssertionError(f"does not get through: {reasons}")


def abandoned(workspace, disk):
    """Runs without an end of which no engine has anything, though the journal could be written."""
    if any(kind == "sqlite" for kind, _ in disk.failed) or disk.last != disk.first:
        return []
    disk.at_work = False
    with open_journal(workspace.project, workspace.settings) as journal:
        found = [each.id for each in journal.open_runs() if not run.under_way(journal, each.id)]
    disk.at_work = True
    return found


def dispatcher(workspace, plan, disk):
    """`farm submit --detach` before the fault, then `farm dispatch`; returns the reasons that it gave."""
    reasons = []
    disk.at_work = False
    run.create_detached(workspace, [(plan, run.request_for(plan, until="build", on="docker"))])
    disk.at_work = True
    for _ in range(TRIES):
        try:
            with open_journal(workspace.project, workspace.settings) as journal:
                Dispatcher(workspace, journal, warn=lambda text: reasons.append(FarmError(text))).drain()
            break
        except (FarmError, OSError) as error:
            reasons.append(error)
    return reasons


def publisher(workspace, plan, disk):
    """`farm submit` up to the smoke test, on a disk that works until there is a wheel."""
    with pytest.MonkeyPatch.context() as patch:
        install_smoke(patch.setattr)
        from_publish_on(patch.setattr, disk)
        (workspace.project / "tmp").mkdir()
        patch.setattr(tempfile, "tempdir", str(workspace.project / "tmp"))
        check_store(open_store(workspace.index_url))  # as after the first publish: the proof has threads that race
        return controller(workspace, plan, disk, "smoke")


def index_of(workspace):
    """What is wrong with the index, and its wheels."""
    store = open_store(workspace.index_url)
    found = [f"index: {problem.key} {problem.what}" for problem in check(store)]
    wheels = [key for key in store.list("whl/") if key.endswith(".whl")]
    return found + ([] if len(wheels) == 1 else [f"wheels in the index: {wheels}"])


def judged(case, engine, workspace, disk, reasons):
    """Faults of one case, as lines; empty: all is well."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("2")]
    for thread in threads:  # a run's thread says that the run has ended, and ends a moment later itself
        thread.join(HANG_S)
    found = [f"a thread: {thread.name}" for thread in threads if thread.is_alive()]
    with open_journal(workspace.project, workspace.settings) as journal:
        runs = journal.runs()
        if any(each.finished is None for each in runs):
            found.append(f"runs: {[(r.result, r.finished) for r in runs]}")
        if disk.abandoned:
            found.append(f"runs that nobody carries out, without an end: {disk.abandoned}")
        why = [str(error) for error in reasons]
        why += [e.data.get("text") or e.data.get("why") or "" for r in runs for e in journal.events(r.id)]
        if not runs or runs[0].result == "failure" or (runs[0].result != "success" and not why):
            found.append(f"ended as {[r.result for r in runs]}")
        if [r.result for r in runs].count("success") != 1 and case is not dispatcher:
            found.append(f"results: {[r.result for r in runs]}")
        lost = [a.why for r in runs for j in journal.jobs(r.id) for a in j.attempts if a.state not in ("done", "lost")]
        if lost:
            found.append(f"attempts without an end: {lost}")
    true = any(text in each for text in texts(disk.number) for each in why)
    if not true and (reasons or runs[0].result != "success"):
        found.append(f"no true reason in {why}")
    found += [f"left over: {name}" for name in (engine.containers, engine.streams, below(workspace.project)) if name]
    found += [f"a file: {path}" for path in workspace.project.rglob("*.part*") if path.name != "built.part"]
    found += index_of(workspace) if case is publisher else []
    return found


def chosen(counts):
    """(place, error, how many requests in a row fail) of the share that is asked for."""
    places = [(first, number) for number in NUMBERS for first in range(1, counts[number] + 1)]
    if SHARE == "all":
        return [(first, number, times) for first, number in places for times in (1, 25)]
    every, rarely = (1, 20) if SHARE == "each" else (8, 60)
    turn = lambda first, by: NUMBERS[first // by % 3]  # noqa: E731
    faults = [(first, n, 1) for first, n in places if first % every == 0 and turn(first, every) == n]
    return faults + [(first, n, 25) for first, n in places if first % rarely == 1 and turn(first, rarely) == n]


@pytest.mark.parametrize("case", [controller, dispatcher, publisher])
def test_a_fault_at_every_write(case, plan, parts, no_hang, tmp_path):
    """Each place fails once, some for a while, and the run gets through all the same."""

    def once(first, number, times):
        folder = tmp_path / f"{first}-{number}-{times}"
        folder.mkdir()
        workspace, disk = workspace_in(folder), Disk(folder, number, first, times)
        parts.containers.clear()
        parts.streams = 0
        no_hang()
        try:
            with failing(disk):
                reasons = case(workspace, plan, disk)
        except Hung:
            return disk, ["hangs"]
        return disk, judged(case, parts, workspace, disk, reasons)

    counts = {}
    for number in NUMBERS:
        clean, problems = once(None, number, 0)
        assert problems == []
        counts[number] = clean.count
    assert min(counts.values()) > 20
    faults = chosen(counts)
    wrong, kinds = {}, Counter()
    for first, number, times in faults:
        disk, problems = once(first, number, times)
        assert disk.failed, first
        kinds[errno.errorcode[number], times, disk.failed[0][0]] += 1
        if problems:
            wrong[first, errno.errorcode[number], times, *disk.failed[0]] = problems
    table = "".join(
        f"\n  {error:6} x{times:<3} {kind:6} {count}" for (error, times, kind), count in sorted(kinds.items())
    )
    print(f"{case.__name__}: {len(faults)} faults, {len(wrong)} with a problem{table}")
    assert not wrong, "\n".join(f"{place}: {problems}" for place, problems in wrong.items())


@pytest.mark.skipif(sys.platform == "win32", reason="a copy of a process by fork: POSIX alone has it")
@pytest.mark.parametrize("case", ["controller", "dispatcher"])
def test_a_kill_at_every_statement_of_the_journal(case, tmp_path):
    """The process ends there; the next one finds the run, nothing is lost and nothing is carried out twice."""
    step = 1 if SHARE in ("each", "all") else 11
    command = [sys.executable, "-m", "tests.faults.killed", case, str(tmp_path), str(step)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["kills"] > 40 / step
    assert found["wrong"] == []
