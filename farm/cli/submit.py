"""`farm submit`: from its options to builds that are carried out here or queued."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.base.errors import ExitCode, UsageError
from farm.base.text import first_of
from farm.cli import show
from farm.cli.advice import Advice, advice_for
from farm.cli.arguments import AGAIN
from farm.cli.batch import PUBLISHED, TO_BUILD, Batch, Build, confirm, hours_here
from farm.cli.builds import carry_out, hand_over, print_install_lines, print_outcomes
from farm.cli.selection import plans_of
from farm.index.records import Record
from farm.plan.file import Plan
from farm.run import run as runs
from farm.run.backends import EngineKind, check_engine, engine_for, engine_kind
from farm.run.journal_records import Request, Until
from farm.run.published import use_published
from farm.run.resume import find_published
from farm.run.workspace import Watcher, Workspace

MAX_VARIANTS = 4
"""Variants that a sentence names; the table names all."""


@dataclass(frozen=True)
class Submission:
    """What the command is to build, and how.

    Attributes:
        workspace: The project.
        plans: The builds; one at least.
        until: The last step.
        rebuild: True to build what is published already.
        several: True if the options can select several builds, so that the JSON is a list.
        kind: The engine of the first build.
    """

    workspace: Workspace
    plans: Sequence[Plan]
    until: Until
    rebuild: bool
    several: bool
    kind: EngineKind


def run_submit(args: argparse.Namespace) -> int:
    submission = read_submission(args)
    plan = submission.plans[0]
    queued = is_queued(args, submission)
    check_bundle(args, submission, queued=queued)
    if not (submission.rebuild or args.from_bundle):
        ask_if_needless(args, submission.plans)

    published = published_wheels(args, submission)
    if published and not submission.several:
        outcomes = use_published(
            submission.workspace, plan, published[plan.digest], test=submission.until == "smoke"
        )
        return print_outcomes(args, outcomes)
    if queued:
        return queue(args, submission, published)
    return carry_out(
        args,
        submission.workspace,
        plan,
        submission.until,
        pieces=args.from_bundle,
        rebuild=submission.rebuild,
    )


def read_submission(args: argparse.Namespace) -> Submission:
    """Resolve the options of the command."""
    rebuild = args.rebuild == AGAIN
    if rebuild:
        args.rebuild = None  # the option of a build with this name is a number
    project, settings, plans = plans_of(args)
    until: Until = "smoke"
    if args.no_publish:
        until = "verify"
    elif args.no_smoke:
        until = "publish"
    return Submission(
        workspace=Workspace(project, settings, Watcher()),
        plans=plans,
        until=until,
        rebuild=rebuild,
        several=len(plans) > 1 or args.all,
        kind=engine_kind(engine_for(plans[0], args.on)),
    )


def is_queued(args: argparse.Namespace, submission: Submission) -> bool:
    """True if a dispatcher carries the builds out.

    An engine with several runners always builds through the dispatcher, which chooses among them.
    """
    if submission.several or args.detach:
        return True
    return submission.kind.queued(submission.workspace)


def check_bundle(args: argparse.Namespace, submission: Submission, *, queued: bool) -> None:
    """Refuse `--from-bundle` where there is nothing to take from it.

    Raises:
        UsageError: The builds are queued, or their engine is not one of containers.
    """
    if args.from_bundle and (queued or not submission.kind.traits.in_container):
        raise UsageError(
            "--from-bundle takes the wheel of one variant: with no other engine, and not into the "
            "background",
            hint="name one --variant, and leave out --on and --detach",
        )


def published_wheels(args: argparse.Namespace, submission: Submission) -> dict[str, Record]:
    """Find the builds whose wheel is published already, by the digests of their plans.

    Only where something is to be published: with `--no-publish` the wheel itself is wanted.
    """
    if submission.until == "verify" or submission.rebuild or args.from_bundle:
        return {}
    records = {}
    for plan in submission.plans:
        check_engine(submission.workspace, engine_for(plan, args.on), plan)
        record = find_published(submission.workspace, plan)
        if record is not None:
            records[plan.digest] = record
    return records


def queue(args: argparse.Namespace, submission: Submission, published: Mapping[str, Record]) -> int:
    """Ask whether the builds shall be queued, queue what is not published, and report.

    Returns:
        The exit code of the command.
    """
    requests = requests_for(args, submission, published)
    machines = ", ".join(submission.kind.machines(submission.workspace))
    engine = engine_for(submission.plans[0], args.on)
    batch = batch_of(submission, published)
    settings = submission.workspace.settings
    if not confirm(args, batch, settings.ask_above, f"{machines} ({engine})"):
        show.note("farm: nothing was queued")
        return ExitCode.INTERRUPTED

    code = hand_over(args, submission.workspace, requests, several=submission.several)
    if submission.until != "verify":
        print_install_lines(args, submission.workspace, submission.plans, code)
    return code


def requests_for(
    args: argparse.Namespace, submission: Submission, published: Mapping[str, Record]
) -> list[tuple[Plan, Request]]:
    """The plans that are to be built, with what the journal keeps of each request."""
    requests = []
    for plan in submission.plans:
        if plan.digest not in published:
            request = runs.request_for(
                plan,
                until=submission.until,
                on=engine_for(plan, args.on),
                priority=args.priority,
                rebuild=submission.rebuild,
            )
            requests.append((plan, request))
    return requests


def batch_of(submission: Submission, published: Mapping[str, Record]) -> Batch:
    """The table of the builds, with what they cost as far as it was measured."""
    hours: dict[str, float] = {}
    if submission.several:
        packages = [plan.package for plan in submission.plans]
        hours = hours_here(submission.workspace.project, submission.workspace.settings, packages)
    builds = []
    for plan in submission.plans:
        state = TO_BUILD
        if plan.digest in published:
            state = PUBLISHED
        builds.append(Build(plan, state, hours.get(plan.package)))
    return Batch(builds)


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

    print_advice(needless, name_variants=len(plans) > 1)
    subject = f"{plans[0].package} {plans[0].version}"
    reason = "nothing was built: upstream's wheel is enough"
    hint = "--anyway builds it"
    if len(plans) > 1:
        subject = f"all {len(plans)}"
        reason += f" for {sum(map(len, needless.values()))} of {len(plans)} builds"
        hint = "--anyway builds them all"
    if show.in_terminal() and not args.json and show.ask(f"build {subject} anyway?"):
        return
    raise UsageError(reason, hint=hint)


def print_advice(needless: Mapping[Advice, Sequence[Plan]], *, name_variants: bool) -> None:
    """Print the wheels of upstream that would do, and the lines that install them."""
    for upstream, plans in needless.items():
        text = upstream.text
        if name_variants:
            text += f" ({first_of([plan.variant for plan in plans], MAX_VARIANTS)})"
        show.note(f"{text}:")
        show.note(f"  {upstream.pip}")
