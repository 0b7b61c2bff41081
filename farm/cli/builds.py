"""Commands that build, here with progress or by the dispatcher: `farm build`, `render`, `retry`,
`dispatch`; and what `farm submit` shares with them.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from farm.base import processes
from farm.base.errors import (
    ExitCode,
    InfrastructureError,
    UsageError,
)
from farm.base.interrupts import OutputClosed, deferred_interrupts
from farm.base.text import plain
from farm.cli import show
from farm.cli.logs import explain_end, lines
from farm.cli.progress import watching
from farm.cli.runs import POLL_S, ids_of, say_what_goes_on, wait_for_ends
from farm.cli.selection import (
    journal_with_a_run,
    plan_of,
    project_of,
    runs_of,
    workspace_of,
)
from farm.cli.status import summary
from farm.plan.file import Plan
from farm.plan.render import render
from farm.run import run as runs
from farm.run.backends import engine_for
from farm.run.dispatch import AlreadyDispatchingError, Dispatcher, exclusive
from farm.run.journal import Journal
from farm.run.journal_records import Request, Run, Until
from farm.run.offline_bundle import bundle
from farm.run.published import install_lines
from farm.run.run_state import state_of
from farm.run.workspace import Outcomes, Watcher, Workspace, open_journal

NAMED = 4
"""Variants that a sentence names; the table names all."""
PATIENCE_S = 3.0
"""How long a new dispatcher waits for the lock, which a submit holds for a moment to see whether it
is held.
"""


def run_build(args: argparse.Namespace) -> int:
    return carry_out(args, Workspace(*project_of(args), Watcher()), Plan.read(args.plan), "build")


def run_render(args: argparse.Namespace) -> int:
    if not (args.output or args.bundle):
        raise UsageError(
            "no output is chosen", hint="-o DIR for the rendered files, --bundle DIR for a bundle"
        )
    project, settings, plan = plan_of(args)
    files: list[Path] = []
    if args.output:
        files += render(project, plan).write(args.output)
    if args.bundle:
        with watching(args) as watcher:
            files += bundle(Workspace(project, settings, watcher), plan, args.bundle)
    show.answer(args, list(map(str, files)), files)
    return 0


def run_retry(args: argparse.Namespace) -> int:
    workspace = workspace_of(args)
    with journal_with_a_run(args) as journal:
        old_runs = runs_of(args, journal)
        for old in old_runs:
            if old.finished is None:
                raise _not_ended(journal, old)
    # The plans as they were, not resolved anew: the matrix may have changed since.
    requests = []
    for old in old_runs:
        request = replace(old.request, retry_of=old.id, rebuild=args.rebuild)
        requests.append((runs.plan_of(old), request))
    several = len(args.run) != 1 or args.failed
    code = hand_over(args, workspace, requests, several=several)
    published = [plan for plan, request in requests if request.publishes]
    print_install_lines(args, workspace, published, code)
    return code


def _not_ended(journal: Journal, run: Run) -> UsageError:
    """Why an open run cannot be repeated, and what ends it or goes on with it."""
    state = state_of(journal, run)
    text = f"run {run.id} has not ended"
    if state.abandoned:
        return UsageError(text, hint=state.text)
    return UsageError(text, hint=f"farm cancel {run.id}")


def print_install_lines(
    args: argparse.Namespace, workspace: Workspace, plans: Sequence[Plan], code: int
) -> None:
    """Print what installs the wheels of builds that were waited for, if all went well."""
    if code or args.detach or args.json:
        return
    for line in install_lines(workspace, plans):
        show.say(line)


def run_dispatch(args: argparse.Namespace) -> int:
    workspace = workspace_of(args)
    workspace.artifacts.mkdir(parents=True, exist_ok=True)
    try:
        while True:
            with (
                exclusive(workspace.artifacts, PATIENCE_S),
                open_journal(workspace.project, workspace.settings) as journal,
            ):
                Dispatcher(workspace, journal, warn=_warn).drain()
            # A command that saw the lock held left its run to this dispatcher: look once more
            # now that it is free.
            if not _detached_runs(workspace):
                return 0
    except AlreadyDispatchingError as error:
        show.say(str(error))
    except OutputClosed:
        raise
    except KeyboardInterrupt:
        count = show.counted(len(_detached_runs(workspace)), "run")
        show.note(f"farm: interrupted; {count} not carried out any more, builds under way go on")
        show.next_step("`farm dispatch` continues them, `farm cancel RUN` ends one")
        return ExitCode.INTERRUPTED
    return 0


def _detached_runs(workspace: Workspace) -> list[Run]:
    """The open runs that a dispatcher carries out."""
    with open_journal(workspace.project, workspace.settings) as journal:
        return [run for run in journal.open_runs() if run.request.detached]


def _warn(text: str) -> None:
    """Write to the dispatcher's own log where the journal cannot be written; on a full disk the
    runs go on without.
    """
    with contextlib.suppress(show.OutputFailedError):
        show.note(f"farm: {text}")


def carry_out(
    args: argparse.Namespace,
    workspace: Workspace,
    plan: Plan,
    until: Until,
    *,
    pieces: Path | None = None,
    rebuild: bool = False,
) -> int:
    """Runs the main job here up to a step and prints its table."""
    with watching(args) as watcher:
        watched_workspace = replace(workspace, watcher=watcher)
        on = engine_for(plan, args.on)
        result = runs.submit(
            watched_workspace, plan, until=until, on=on, pieces=pieces, rebuild=rebuild
        )
    return print_outcomes(args, result)


def print_outcomes(args: argparse.Namespace, result: Outcomes) -> int:
    """The table at the end, JSON, or with --quiet the one line that matters."""
    if args.json:
        show.json_document(result.to_json())
    elif args.quiet:
        show.say(result.pip_line or result.wheel or "")
    else:
        show.outcomes(result)
    return 0


def hand_over(
    args: argparse.Namespace,
    workspace: Workspace,
    wanted: Sequence[tuple[Plan, Request]],
    *,
    several: bool = False,
) -> int:
    """Queue builds and leave them to a dispatcher, which is started if none is at work.

    Then print the ids of their runs, or follow them. From the moment that they are queued, Ctrl-C
    ends only this command, and says so.

    `several`: the command may make several runs, so that its JSON is a list.
    """
    runs.check_detached(workspace, wanted)
    created: list[Run] = []
    try:
        with deferred_interrupts():
            created += runs.create_detached(workspace, wanted)
            dispatcher = start_dispatcher(workspace)
        return _follow_or_print(args, workspace, created, dispatcher, several=several)
    except OutputClosed:
        raise
    except KeyboardInterrupt:
        with open_journal(workspace.project, workspace.settings) as journal:
            return say_what_goes_on(journal, ids_of(created))


def _follow_or_print(
    args: argparse.Namespace,
    workspace: Workspace,
    named: Sequence[Run],
    dispatcher: subprocess.Popen[bytes] | None,
    *,
    several: bool,
) -> int:
    if args.detach:
        _print_ids(args, named, several=several)
        return 0
    if not several:
        return follow(args, workspace, named[0], dispatcher)
    for run in named:
        show.note(f"run {run.id}  {run.request.package} {run.request.variant}")
    with open_journal(workspace.project, workspace.settings) as journal:
        return wait_for_ends(args, journal, ids_of(named))


def _print_ids(args: argparse.Namespace, created: Sequence[Run], *, several: bool) -> None:
    """The runs of a command that does not wait for them."""
    if not several:
        show.answer(args, {"run": created[0].id}, ids_of(created))
        return
    documents = []
    for run in created:
        request = run.request
        documents.append({"run": run.id, "package": request.package, "variant": request.variant})
    show.answer(args, documents, ids_of(created))


def follow(
    args: argparse.Namespace,
    workspace: Workspace,
    run: Run,
    dispatcher: subprocess.Popen[bytes] | None = None,
) -> int:
    """Show why a run waits and then its log, and end as it ends."""
    log = workspace.run_folder(run.id) / "build.log"
    with open_journal(workspace.project, workspace.settings) as journal:
        show.note(f"run {run.id}")
        _wait_for_log(journal, run, log, dispatcher)
        for line in lines(journal, run, log, follow=True):
            if not args.quiet:
                show.note(f"    {line}")
        ended = journal.run(run.id)
        if args.json:
            show.json_document(summary(journal, ended))
        elif not ended.exit_code:
            show.say(f"run {run.id}: {ended.result}")
        explain_end(journal, ended)
    return int(ended.exit_code or 0)


def _wait_for_log(
    journal: Journal, run: Run, log: Path, dispatcher: subprocess.Popen[bytes] | None
) -> None:
    """Until the log begins or the run has ended; shows each new reason for the wait."""
    shown_text = None
    while not log.exists() and journal.run(run.id).finished is None:
        state = state_of(journal, journal.run(run.id))
        text = str(state.phase)
        if state.text:
            text += f": {state.text}"
        if text != shown_text:
            shown_text = text
            show.note(f"    {plain(text)}")
        # Exit code 0 is no failure: it ends so where another dispatcher is at work.
        if dispatcher is not None and dispatcher.poll():
            where = journal.path.with_name("dispatch.log")
            raise InfrastructureError(
                f"run {run.id} is queued, but the dispatcher ended with exit code "
                f"{dispatcher.returncode}",
                hint=f"{where} says why; then `farm dispatch` and `farm logs -f {run.id}`",
            )
        time.sleep(POLL_S)


def start_dispatcher(workspace: Workspace) -> subprocess.Popen[bytes] | None:
    """Starts a dispatcher, unless one is at work."""
    workspace.artifacts.mkdir(parents=True, exist_ok=True)
    try:
        # Held for a moment, to see whether it is held. A dispatcher that starts just now waits for
        # it: `PATIENCE_S`.
        with exclusive(workspace.artifacts, 0.0):
            pass
    except AlreadyDispatchingError:
        return None
    command = [
        sys.executable,
        "-m",
        "farm.cli.main",
        "--project",
        str(workspace.project),
        "dispatch",
    ]
    with (workspace.artifacts / "dispatch.log").open("ab") as log:
        return subprocess.Popen(  # it outlives this command: a session of its own, no terminal
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(os.environ),
            **processes.APART,  # on Windows it would end with the console window, or by its Ctrl-C
        )
