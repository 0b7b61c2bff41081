"""Kills a controller or a dispatcher at every statement of its journal and every rename, and has the next one go on.

    python -m tests.faults.killed controller|dispatcher FOLDER STEP

STEP: at every place (1), or at one of so many.

Prints how many kills there were, and what was wrong. A program of its own: a process without threads can be copied.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from unittest import mock

from farm.run import run
from farm.run.dispatch import Dispatcher
from farm.run.workspace import open_journal
from tests.faults.disk import Kill, failing
from tests.faults.engine import Engine, Folder, install, the_plan, workspace_in


def carry_out(case, workspace, plan):
    if case == "controller":
        run.submit(workspace, plan, until="build")
        return
    with open_journal(workspace.project, workspace.settings) as journal:
        Dispatcher(workspace, journal).drain()


def in_a_copy(case, folder, plan, first):
    """Carries out a run in a copy of this process, which is killed at number `first`; returns its wait status."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        with failing(Kill(folder, first)):
            carry_out(case, workspace_in(folder), plan)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def judged(workspace, engine, case):
    with open_journal(workspace.project, workspace.settings) as journal:
        runs = journal.runs()
        attempts = [a for r in runs for j in journal.jobs(r.id) for a in j.attempts]
        results = [r.result for r in runs]
    found = [] if results == ["success"] else [f"runs: {results}"]
    ends = [(a.state, a.result) for a in attempts]
    if ends.count(("done", "success")) != 1 or any(state not in ("done", "lost") for state, _ in ends):
        found.append(f"attempts: {ends}")
    wheels = list(workspace.project.glob("runs/*/built/wheel/*.whl"))
    if len(wheels) != 1:
        found.append(f"wheels: {wheels}")
    if engine.containers:
        found.append(f"left over: {dict(engine.containers)}")
    if engine.at_once > 1:
        found.append(f"{engine.at_once} containers at once")
    return found


def main():
    case, folder, step = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    plan, first, kills, wrong = the_plan(), 1 - step, 0, []
    while True:
        first += step
        place = folder / str(first)
        place.mkdir()
        workspace, engine = workspace_in(place), Engine(Folder(folder / f"{first}-engine"))
        with Patches() as patch:
            install(patch, plan, engine)
            if case == "dispatcher":
                run.create_detached(workspace, [(plan, run.request_for(plan, until="build", on="docker"))])
            status = in_a_copy(case, place, plan, first)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                carry_out(case, workspace, plan)
            elif status:
                wrong.append([first, f"status {status}"])
            wrong += [[first, problem] for problem in judged(workspace, engine, case)]
        if not os.WIFSIGNALED(status):
            break
        kills += 1
    print(json.dumps({"kills": kills, "wrong": wrong}))


class Patches:
    """`mock.patch` by the signature of `monkeypatch.setattr`, undone at the end."""

    def __enter__(self):
        self._made = []
        return self._patch

    def _patch(self, target, *rest):
        made = mock.patch(target, *rest) if len(rest) == 1 else mock.patch.object(target, *rest)
        made.start()
        self._made.append(made)

    def __exit__(self, *_):
        for made in reversed(self._made):
            made.stop()


if __name__ == "__main__":
    main()
