"""Commands that build or test, here with progress or by the dispatcher: `farm submit`, `build`,
`retry`, `smoke`, …
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from farm.base import processes, zipapps
from farm.base.errors import (
    ExitCode,
    InfrastructureError,
    NoRunnerError,
    SmokeFailedError,
    UsageError,
)
from farm.base.interrupts import OutputClosed, deferred_interrupts
from farm.base.text import first_of, plain
from farm.cli import show
from farm.cli.advice import Advice, advice_for
from farm.cli.arguments import AGAIN
from farm.cli.batch import PUBLISHED, TO_BUILD, Batch, Build, confirm, hours_here
from farm.cli.progress import watching
from farm.cli.runs import POLL_S, explain_end, lines, say_what_goes_on, summary, wait_for_ends
from farm.cli.selection import (
    journal_with_a_run,
    plan_of,
    plans_of,
    project_of,
    runs_of,
    selectors_of,
    workspace_of,
)
from farm.index.layout import simple_root
from farm.index.pins import install_words, root_and_group
from farm.index.reader import open_reader
from farm.plan.file import Plan
from farm.plan.render import render
from farm.plan.resolve import resolve
from farm.run import run as runs
from farm.run.backends import check_engine, engine_for, engine_kind
from farm.run.dispatch import AlreadyDispatchingError, Dispatcher, exclusive
from farm.run.journal import Journal
from farm.run.journal_records import Request, Run, Until
from farm.run.offline_bundle import bundle
from farm.run.pip_commands import pip_request, public_url
from farm.run.published import install_lines, listed, use_published
from farm.run.resume import find_published
from farm.run.run_state import state_of
from farm.run.smoke import SmokeOptions, smoke
from farm.run.workspace import Outcomes, Watcher, Workspace, open_journal
from farm.smoke.runner import PROBE, SmokeReport

NAMED = 4
"""Variants that a sentence names; the table names all."""
PATIENCE_S = 3.0
"""How long a new dispatcher waits for the lock, which a submit holds for a moment to see whether it
is held.
"""


def run_submit(args: argparse.Namespace) -> int:
    rebuild, args.rebuild = args.rebuild == AGAIN, None if args.rebuild == AGAIN else args.rebuild
    project, settings, plans = plans_of(args)
    workspace = Workspace(project, settings, Watcher())
    until: Until = "verify" if args.no_publish else "publish" if args.no_smoke else "smoke"
    several = len(plans) > 1 or args.all
    kind = engine_kind(engine_for(plans[0], args.on))
    # An engine with several runners always builds through the dispatcher, which chooses among them.
    queued = several or args.detach or kind.queued(workspace)
    if args.from_bundle and (queued or not kind.traits.in_container):
        raise UsageError(
            "--from-bundle takes the wheel of one variant: with no other engine, and not into the "
            "background",
            hint="name one --variant, and leave out --on and --detach",
        )
    if not (rebuild or args.from_bundle):
        ask_if_needless(args, plans)
    requests = []
    builds = []
    hours = hours_here(project, settings, [plan.package for plan in plans]) if several else {}
    for plan in plans:
        on = engine_for(plan, args.on)
        # Only where something is to be published: with --no-publish the wheel itself is wanted.
        if until != "verify" and not rebuild and not args.from_bundle:
            check_engine(workspace, on, plan)
            record = find_published(workspace, plan)
            if record is not None and not several:
                return print_outcomes(
                    args, use_published(workspace, plan, record, test=until == "smoke")
                )
            if record is not None:
                builds.append(Build(plan, PUBLISHED, hours.get(plan.package)))
                continue
        builds.append(Build(plan, TO_BUILD, hours.get(plan.package)))
        requests.append(
            (
                plan,
                runs.request_for(plan, until=until, on=on, priority=args.priority, rebuild=rebuild),
            )
        )
    if not queued:
        return carry_out(args, workspace, plans[0], until, pieces=args.from_bundle, rebuild=rebuild)
    machines = ", ".join(kind.machines(workspace))
    on = engine_for(plans[0], args.on)
    if not confirm(args, Batch(builds), settings.ask_above, f"{machines} ({on})"):
        show.note("farm: nothing was queued")
        return ExitCode.INTERRUPTED
    code = hand_over(args, workspace, requests, several=several)
    if not (code or args.detach or args.json or until == "verify"):
        for line in install_lines(workspace, plans):
            show.say(line)
    return code


def ask_if_needless(args: argparse.Namespace, plans: Sequence[Plan]) -> None:
    """Ask before PyTorch is built for a machine that upstream's own wheel runs on.

    A channel that was named is an answer already.

    Raises:
        UsageError: The answer is no, or nobody can be asked.
    """
    if args.anyway or args.channel:
        return
    needless: dict[Advice, list[Plan]] = {}
    for plan in plans:
        upstream = advice_for(plan)
        if upstream is not None:
            needless.setdefault(upstream, []).append(plan)
    if not needless:
        return
    for upstream, its_plans in needless.items():
        variants = first_of([plan.variant for plan in its_plans], NAMED)
        show.note(f"{upstream.text} ({variants}):" if len(plans) > 1 else f"{upstream.text}:")
        show.note(f"  {upstream.pip}")
    if len(plans) == 1:
        subject = f"{plans[0].package} {plans[0].version}"
        count = ""
    else:
        subject = f"all {len(plans)}"
        count = f" for {sum(map(len, needless.values()))} of {len(plans)} builds"
    if sys.stdin.isatty() and sys.stdout.isatty() and not args.json:
        answer = input(f"build {subject} all the same? [y/N] ")
        if answer.strip().lower() in ("y", "yes"):
            return
    raise UsageError(
        f"nothing was built: upstream's wheel will do{count}",
        hint="--anyway builds it" if len(plans) == 1 else "--anyway builds them all",
    )


def run_build(args: argparse.Namespace) -> int:
    return carry_out(args, Workspace(*project_of(args), Watcher()), Plan.read(args.plan), "build")


def run_render(args: argparse.Namespace) -> int:
    if not (args.output or args.bundle):
        raise UsageError(
            "no output is chosen", hint="-o DIR for the rendered files, --bundle DIR for a bundle"
        )
    project, settings, plan = plan_of(args)
    files = render(project, plan).write(args.output) if args.output else []
    if args.bundle:
        with watching(args) as watcher:
            files += bundle(Workspace(project, settings, watcher), plan, args.bundle)
    show.answer(args, [str(path) for path in files], files)
    return 0


def run_retry(args: argparse.Namespace) -> int:
    workspace = workspace_of(args)
    with journal_with_a_run(args) as journal:
        old_runs = runs_of(args, journal)
        for old in old_runs:
            if old.finished is None:
                state = state_of(journal, old)
                hint = state.text if state.abandoned else f"farm cancel {old.id}"
                raise UsageError(f"run {old.id} has not ended", hint=hint)
    # The plans as they were, not resolved anew: the matrix may have changed since.
    requests = [
        (runs.plan_of(old), replace(old.request, retry_of=old.id, rebuild=args.rebuild))
        for old in old_runs
    ]
    several = len(args.run) != 1 or args.failed
    code = hand_over(args, workspace, requests, several=several)
    if not (code or args.detach or args.json):
        published = [plan for plan, request in requests if request.publishes]
        for line in install_lines(workspace, published):
            show.say(line)
    return code


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
            # Whoever saw the lock held has left its run to us, so look once more now that it is
            # not.
            with open_journal(workspace.project, workspace.settings) as journal:
                if not any(run.request.detached for run in journal.open_runs()):
                    return 0
    except AlreadyDispatchingError as error:
        show.say(str(error))
    except OutputClosed:
        raise
    except KeyboardInterrupt:
        with open_journal(workspace.project, workspace.settings) as journal:
            open_runs = [run for run in journal.open_runs() if run.request.detached]
        count = f"{len(open_runs)} run{'s' * (len(open_runs) != 1)}"
        show.note(f"farm: interrupted; {count} not carried out any more, builds under way go on")
        show.note("  next: `farm dispatch` continues them, `farm cancel RUN` ends one")
        return ExitCode.INTERRUPTED
    return 0


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
            return say_what_goes_on(journal, [run.id for run in created])


def _follow_or_print(
    args: argparse.Namespace,
    workspace: Workspace,
    named: Sequence[Run],
    dispatcher: subprocess.Popen[bytes] | None,
    *,
    several: bool,
) -> int:
    if args.detach:
        documents = [
            {"run": r.id, "package": r.request.package, "variant": r.request.variant} for r in named
        ]
        show.answer(args, documents if several else {"run": named[0].id}, [run.id for run in named])
        return 0
    if not several:
        return follow(args, workspace, named[0], dispatcher)
    for run in named:
        show.note(f"run {run.id}  {run.request.package} {run.request.variant}")
    with open_journal(workspace.project, workspace.settings) as journal:
        return wait_for_ends(args, journal, [run.id for run in named])


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
        text = f"{state.phase}: {state.text}" if state.text else str(state.phase)
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


def run_smoke(args: argparse.Namespace) -> int:
    """Install, run the probe and print the reports."""
    if args.write_probe:
        args.write_probe.write_bytes(zipapps.pack(PROBE))
        line = f"{args.write_probe}: python3 {args.write_probe.name} --help"
        show.answer(args, {**Outcomes().to_json(), "reports": []}, [line])
        return 0
    if args.variant is None:
        raise UsageError(
            "no variant is chosen",
            hint="--variant sm35-avx-py311; `farm detect` names this machine's",
        )
    project, settings = project_of(args)
    selectors = selectors_of(args, project, settings)
    plan = resolve(project, selectors)
    if args.time_limit is not None:
        settings = settings.model_copy(update={"smoke_timeout_s": args.time_limit})
    workspace = Workspace(project, settings, Watcher())
    wheel: Path | None = args.wheel
    if wheel is not None and not wheel.is_file():
        raise UsageError(f"{wheel}: no such file")
    source, filenames = _sources(args, workspace, plan, selectors.package)
    if wheel:
        requirement = str(wheel.resolve())
    else:
        requirement = f"{plan.package}=={plan.version}"
    folder = (
        workspace.artifacts / "smoke" / (wheel.stem if wheel else f"{plan.package}-{plan.version}")
    )
    folder.mkdir(parents=True, exist_ok=True)
    options = SmokeOptions(
        wheel=wheel,
        filenames=filenames,
        gpu=args.require_gpu,
        # The report of another index's wheel, or of a loose file, does not belong in the project's
        # index.
        keep=not args.index_url and wheel is None,
        passed=tuple(args.pass_env),
    )
    # A report of an earlier test would be taken for this one's, where this one ends before it
    # writes its own.
    for old in folder.glob("smoke*.json"):
        old.unlink()
    result = Outcomes()
    with watching(args) as watcher:
        failed = smoke(
            replace(workspace, watcher=watcher), plan, folder, result, requirement, source, options
        )
    files = sorted(
        folder.glob("smoke*.json"), key=lambda file: len(file.name)
    )  # this machine's own first
    if wheel is not None:
        for file in files:
            wheel.with_name(f"{wheel.name}.{file.name}").write_bytes(file.read_bytes())
    _show(
        args,
        result,
        [SmokeReport.model_validate_json(file.read_text(encoding="utf-8")) for file in files],
        folder,
    )
    if failed:
        raise SmokeFailedError("\n".join(failed), hint=f"reports: {folder}/smoke*.json")
    if not files:
        raise NoRunnerError(
            f"nothing was tested: {result.steps[0].result}",
            hint="install that Python (deadsnakes, python.org, `uv python install`), test on a "
            "system that the wheel "
            "is for, or name a variant for this one",
        )
    return 0


def _show(
    args: argparse.Namespace, result: Outcomes, reports: list[SmokeReport], folder: Path
) -> None:
    if args.json:
        show.json_document(
            {
                **result.to_json(),
                "reports": [json.loads(probe_report.to_json()) for probe_report in reports],
            }
        )
    elif args.quiet:
        for step in result.steps:
            show.say(f"{step.name}: {step.outcome}; {step.result}")
    else:
        for report in reports:
            show.table(f"on {report.where}", ("check", "status", "seen"), report.rows())
            for cause in report.causes:
                show.say(f"why: {cause.what}")
                show.say(f"fix: {cause.fix}")
        show.outcomes(replace(result, run=f"of the smoke test in {folder}"))


def _sources(
    args: argparse.Namespace, workspace: Workspace, plan: Plan, package: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The installer's options that name the index, and the wheels of the plan that it lists, where
    that is known.
    """
    if args.index_url and not args.index_url.startswith(("http://", "https://")):
        # An index as the farm names it; pip reads neither folders nor buckets, and gets what `farm
        # publish` prints.
        workspace = replace(workspace, settings=workspace.settings.with_index(args.index_url))
    elif args.index_url:
        return _words_of_address(args.index_url, plan), ()
    elif args.wheel is not None:
        return (), ()  # what it depends on comes from the installer's own default index
    group = plan.parsed_variant.group
    names = _published(workspace, plan, package)
    if names:
        _, source = pip_request(workspace, plan, names[0])
        return source, names
    return _words_of_address(public_url(workspace, simple_root(group)), plan), ()


def _words_of_address(index_url: str, plan: Plan) -> tuple[str, ...]:
    """The installer's options for an index at an address, which may be one of the farm."""
    only_index = ("--index-url", index_url)
    parts = root_and_group(index_url)
    if parts is None:
        return only_index
    root, group = parts
    reader = open_reader(root)
    names = listed(reader.get, plan, group)
    if not names:
        return only_index
    words = install_words(reader.get, root, group, names[0])
    return words[1:] if "--index-url" in words else words


def _published(workspace: Workspace, plan: Plan, package: str) -> tuple[str, ...]:
    """Of an index in a folder alone: a bucket may be read without credentials by pip, and not by
    us.
    """
    if workspace.index_url.startswith("s3://"):
        return ()
    if names := listed(open_reader(workspace.index_url).get, plan, plan.parsed_variant.group):
        return tuple(names)
    raise UsageError(
        f"{plan.package} {plan.version} is not published in {workspace.index_url}",
        hint=f"build it: farm submit --variant {plan.variant} --package {package} --platform "
        f"{plan.platform} "
        f"--channel {plan.channel}; or test another wheel: --wheel FILE, --index-url URL",
    )
