"""What each command does: arguments to library calls, results to text or JSON."""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.cli import show, why126
from farm.cli.project import project_of
from farm.cli.runs import detached, follow
from farm.cli.selected import plan_of, selectors_of
from farm.cli.smoke import run_smoke
from farm.cli.tree import print_tree
from farm.cli.upload import uploading
from farm.cli.verify import waivers_of
from farm.cli.why import questions
from farm.errors import UsageError
from farm.pipeline.backends import engine_kind
from farm.pipeline.bundle import bundle
from farm.pipeline.check import refusal
from farm.pipeline.release import pip_line, pip_source, publish_wheel
from farm.pipeline.report import Silent
from farm.pipeline.run import create_detached, request_for, submit
from farm.pipeline.workspace import Workspace
from farm.plan import Plan, judge
from farm.render import render
from farm.runs import Until
from farm.settings import Settings
from farm.variant import Variant
from farm.wheel.inspect import inspect
from farm.wheel.verify import verify
from farm.wheel.why126 import why_126


def _print_json(data: Mapping[str, Any] | list[Any]) -> None:
    print(json.dumps(data, indent=2))


def _watched(
    args: argparse.Namespace, project: Path, settings: Settings, plan: Plan, until: Until, pieces: Path | None = None
) -> int:
    """Run the main job up to a step and print its table."""
    terminal = show.ERR.is_terminal and not os.environ.get("CI")
    watcher = show.TerminalWatcher() if terminal else show.LogWatcher()
    try:
        workspace = Workspace(project, settings, watcher)
        result = submit(workspace, plan, until=until, on=args.on, pieces=pieces)
    finally:
        if isinstance(watcher, show.TerminalWatcher):
            watcher.close()
    if args.json:
        _print_json(result.to_json())
    else:
        show.outcomes(result)
    return 0


def cmd_submit(args: argparse.Namespace) -> int:
    project, settings, plan = plan_of(args)
    until: Until = "verify" if args.no_publish else "publish" if args.no_smoke else "smoke"
    if args.carried and (args.detach or args.on != "docker"):
        raise UsageError(
            "--carried takes the libraries out of the toolchain's image here", hint="--on docker, waited for"
        )
    if not args.detach and not engine_kind(args.on).traits.places:
        return _watched(args, project, settings, plan, until, args.carried)
    workspace = Workspace(project, settings, Silent())
    run_ = create_detached(workspace, plan, request_for(plan, until=until, on=args.on, priority=args.priority))
    return detached(args, workspace, run_) if args.detach else follow(args, workspace, run_)


def cmd_build(args: argparse.Namespace) -> int:
    project, settings = project_of(args)
    return _watched(args, project, settings, Plan.read(args.plan), "build")


def cmd_plan(args: argparse.Namespace) -> int:
    _, _, plan = plan_of(args)
    if args.json:
        print(plan.to_json(), end="")
        return 0
    data = json.loads(plan.to_json())
    env, options, origins = data.pop("env"), data.pop("options"), data.pop("origins")
    rows = [("channel", plan.channel, origins["channel"])]
    rows += [(name, "" if value is None else str(value), origins[name]) for name, value in options.items()]
    rows += [(f"env {key}", value, origins[f"env.{key}"]) for key, value in env.items()]
    show.table(f"{plan.package} {plan.version} (plan {plan.digest[:12]})", ("what", "value", "origin"), rows)
    return 0


def cmd_why(args: argparse.Namespace) -> int:
    project, settings = project_of(args)
    selectors = selectors_of(args, project, settings)
    judged = judge(project, selectors, questions(args, selectors.variant))
    found, nearest = judged.advised(), judged.nearest()
    if args.json:
        reasons = [reason.to_json() for reason in found]
        _print_json({"buildable": judged.buildable, "reasons": reasons, "nearest": nearest})
    else:
        can = "can be built" if judged.buildable else "cannot be built"
        show.say(f"{selectors.package} for {selectors.variant} on {selectors.platform} {can}")
        if found:
            rows = [(r.severity, r.text, r.fact, r.source, r.nearest or "") for r in found]
            show.table("", ("", "reason", "fact", "source", "nearest without it"), rows)
        if nearest:
            show.say(f"nearest that the rules allow: {nearest}")
    return 0 if judged.buildable else 3


def cmd_render(args: argparse.Namespace) -> int:
    if not (args.output or args.bundle):
        raise UsageError("nothing to write", hint="-o DIR for the rendered files, --bundle DIR for a bundle")
    project, settings, plan = plan_of(args)
    files = render(project, plan).write(args.output) if args.output else []
    if args.bundle:
        files += bundle(Workspace(project, settings, show.LogWatcher()), plan, args.bundle)
    if args.json:
        _print_json([str(path) for path in files])
    else:
        for path in files:
            show.say(path)
    return 0


def cmd_inspect(args: argparse.Namespace) -> int:
    if args.why_126:
        found = why_126(args.wheel)
        if args.json:
            _print_json(found.model_dump(mode="json"))
        else:
            why126.explain(found)
        return 6 if found.missing else 0
    contents = inspect(args.wheel)
    if args.json:
        _print_json(contents.to_json())
        return 0
    if args.tree:
        print_tree(contents)
    else:
        show.inspection(contents)
    return 0


def cmd_publish(args: argparse.Namespace) -> int:
    project, settings, plan = plan_of(args)
    if args.index:
        settings = settings.model_copy(update={"index": args.index})
    workspace = Workspace(project, settings, Silent())
    report = verify(args.wheel, plan.verify, waivers=waivers_of(args))
    if not report.passed:
        raise refusal(report)
    with uploading(args.wheel.name, args.wheel.stat().st_size) as progress:
        result = publish_wheel(workspace, plan, args.wheel, report, progress=progress, single_writer=args.single_writer)
    source = pip_source(workspace, Variant.parse(plan.variant).group)
    line = pip_line(f"{plan.package}=={plan.version}", source)
    if args.json:
        _print_json({"changed": result.changed, "wheel": result.wheel_url, "pip": line})
    else:
        show.say("published" if result.changed else "already there: nothing to do")
        show.say(line)
    return 0


def cmd_smoke(args: argparse.Namespace) -> int:
    return run_smoke(args, *plan_of(args))
