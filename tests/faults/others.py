"""Two at the same work: one is stopped at each statement of its journal while another one comes, or both run at once.

    python -m tests.faults.others stopped controller|dispatcher FOLDER STEP
    python -m tests.faults.others together controller|dispatcher FOLDER TIMES

STEP: stopped at every place (1), or at one of so many. TIMES: how often two processes are started at the same time.

Prints how many times, and what was wrong. A program of its own: a process without threads can be copied.
"""

import contextlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

from farm.base.errors import InfrastructureError
from farm.run import dispatch, run
from farm.run.dispatch import Dispatcher
from farm.run.journal import database
from farm.run.workspace import open_journal
from tests.faults.disk import Stop, failing
from tests.faults.engine import Engine, Folder, install, the_plan, workspace_in
from tests.faults.killed import Patches, carry_out, in_a_copy

MEANWHILE = 3
"""Rounds of the other dispatcher while the first one is stopped."""
RUNS = 4


def copied(work):
    """The number of a copy of this process that does so and ends."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def come(case, workspace, plan, there):
    """Another one, while the first is stopped; says so when it has looked, and goes on to the end."""
    database.BUSY_S = 0.05  # who is stopped may hold the journal's lock: then this one says so, and comes again
    with contextlib.suppress(InfrastructureError):
        if case == "controller":
            run.submit(workspace, plan, until="build")
        else:
            with open_journal(workspace.project, workspace.settings) as journal:
                other = Dispatcher(workspace, journal)
                for _ in range(MEANWHILE):
                    other.tick()
                os.write(there, b".")
                other.drain()
    os.write(there, b".")
    database.BUSY_S = 30.0
    if case == "dispatcher":
        carry_out(case, workspace, plan)


def judged(workspace, engine, count):
    """`count`: how many runs there may be."""
    with open_journal(workspace.project, workspace.settings) as journal:
        runs = journal.runs()
        ends = [[a.result for j in journal.jobs(r.id) for a in j.attempts] for r in runs]
    found = [] if runs and {r.result for r in runs} == {"success"} else [f"runs: {[r.result for r in runs]}"]
    if len(runs) not in count or any(each != ["success"] for each in ends):
        found.append(f"attempts: {ends}")
    if len(list(workspace.project.glob("runs/*/built/wheel/*.whl"))) != len(runs):
        found.append("wheels")
    return found + ([f"left over: {dict(engine.containers)}"] if engine.containers else [])


def stopped(case, folder, step):
    plan, first, stops, wrong = the_plan(), 1 - step, 0, []
    while True:
        first += step
        workspace, engine = project(folder, str(first))
        with Patches() as patch:
            install(patch, plan, engine)
            if case == "dispatcher":
                run.create_detached(workspace, [(plan, run.request_for(plan, until="build", on="docker"))])

            def one(workspace=workspace, first=first):
                with failing(Stop(workspace.project, first)):
                    carry_out(case, workspace, plan)

            pid = copied(one)
            _, status = os.waitpid(pid, os.WUNTRACED)
            if there := os.WIFSTOPPED(status):
                stops += 1
                looked, there_too = os.pipe()
                other = copied(lambda workspace=workspace, to=there_too: come(case, workspace, plan, to))
                os.close(there_too)
                os.read(looked, 1)
                os.close(looked)
                os.kill(pid, signal.SIGCONT)
                statuses = [os.waitpid(each, 0)[1] for each in (pid, other)]
            else:
                statuses = [status]
            wrong += [[first, f"status {status}"] for status in statuses if status]
            # Two submits of one plan are two runs; a detached run is one, whoever looks at it.
            wrong += [[first, bad] for bad in judged(workspace, engine, (1, 2) if case == "controller" else (1,))]
        if not there:
            return stops, wrong


def together(case, folder, times):
    plan, wrong = the_plan(), []
    for number in range(times):
        workspace, engine = project(folder, str(number))
        with Patches() as patch:
            install(patch, plan, engine)
            if case == "controller":  # both find the run of one that was killed
                in_a_copy(case, workspace.project, plan, 12 + number)
            for _ in range(RUNS if case == "dispatcher" else 0):
                run.create_detached(workspace, [(plan, run.request_for(plan, until="build", on="docker"))])
            two = [copied(lambda workspace=workspace: carry_out(case, workspace, plan)) for _ in range(2)]
            wrong += [[number, f"status {status}"] for status in (os.waitpid(pid, 0)[1] for pid in two) if status]
            wrong += [[number, bad] for bad in judged(workspace, engine, (RUNS,) if case == "dispatcher" else (2,))]
    return times, wrong


def project(folder, name):
    (folder / name).mkdir()
    return workspace_in(folder / name), Engine(Folder(folder / f"{name}-engine"))


def main():
    how, case, folder, number = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    dispatch.OTHERS_S = 0.0
    count, wrong = (stopped if how == "stopped" else together)(case, folder, number)
    print(json.dumps({"count": count, "wrong": wrong}))


if __name__ == "__main__":
    main()
