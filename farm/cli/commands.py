"""What each command does: arguments to library calls, results to text or JSON."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from farm.cli import show, why126
from farm.cli.detect import cmd_detect
from farm.cli.index import cmd_index
from farm.cli.matrix import cmd_matrix
from farm.cli.upload import uploading
from farm.cli.why import questions
from farm.errors import SmokeFailedError, UsageError
from farm.matrix import load_matrix
from farm.matrix.shape import Platform
from farm.pipeline.check import policy_of, refusal
from farm.pipeline.release import pip_line, pip_source, publish_wheel
from farm.pipeline.report import Outcomes, Silent
from farm.pipeline.run import Until, submit
from farm.pipeline.setting import Setting, open_journal
from farm.pipeline.smoke import smoke
from farm.plan import OPTIONS, Plan, Selectors, environment_options, judge, resolve
from farm.render import render
from farm.runs import Run
from farm.settings import Settings, find_project, load_settings
from farm.text import plain
from farm.variant import Variant
from farm.wheel.inspect import inspect
from farm.wheel.repair import repair
from farm.wheel.report import Waiver, parse_waiver
from farm.wheel.verify import verify
from farm.wheel.why126 import why_126


def run(args: argparse.Namespace) -> int:
    """Carry out the command that was parsed; returns the exit code."""
    return COMMANDS[args.command](args)


def _project(args: argparse.Namespace) -> tuple[Path, Settings]:
    project = find_project(args.project or Path.cwd())
    return project, load_settings(project)


def _selectors(args: argparse.Namespace, project: Path, settings: Settings) -> Selectors:
    """Overrides by rank: the file, then the environment, then the command line.

    In the place of a variant may stand an alias of the matrix: it names the package, channel and CUDA as well.
    """
    unknown = set(settings.options) - set(OPTIONS)
    if unknown:
        raise UsageError(f"ci/farm.yaml: unknown option {sorted(unknown)[0]!r}", hint=f"known: {', '.join(OPTIONS)}")
    options: dict[str, tuple[Any, str]] = {name: (value, "ci/farm.yaml") for name, value in settings.options.items()}
    options |= environment_options(os.environ)
    options |= {name: (value, f"--{name}") for name in OPTIONS if (value := getattr(args, name)) is not None}
    if "python" in args.variant:
        build = load_matrix(project).named(args.variant, args.channel)
        if build.cuda and args.cuda is None:
            options["cuda"] = (build.cuda, f"alias {args.variant}")
        return Selectors(build.variant, build.package, cast("Platform", build.platform), build.channel, options)
    return Selectors(
        variant=Variant.parse(args.variant),
        package=args.package,
        platform=args.platform,
        channel=args.channel,
        options=options,
    )


def _print_json(data: Mapping[str, Any] | list[Any]) -> None:
    print(json.dumps(data, indent=2))


def _plan_of(args: argparse.Namespace) -> tuple[Path, Settings, Plan]:
    project, settings = _project(args)
    return project, settings, resolve(project, _selectors(args, project, settings))


def _watched(args: argparse.Namespace, project: Path, settings: Settings, plan: Plan, until: Until) -> int:
    """Run the main job up to a step and print its table."""
    terminal = show.ERR.is_terminal and not os.environ.get("CI")
    watcher = show.TerminalWatcher() if terminal else show.LogWatcher()
    selectors = {"variant": plan.variant, "package": plan.package, "platform": plan.platform}
    try:
        result = submit(Setting(project, settings, watcher), plan, selectors=selectors, until=until)
    finally:
        if isinstance(watcher, show.TerminalWatcher):
            watcher.close()
    if args.json:
        _print_json(result.to_json())
    else:
        show.outcomes(result)
    return 0


def cmd_submit(args: argparse.Namespace) -> int:
    project, settings, plan = _plan_of(args)
    until: Until = "verify" if args.no_publish else "publish" if args.no_smoke else "smoke"
    return _watched(args, project, settings, plan, until)


def cmd_build(args: argparse.Namespace) -> int:
    project, settings = _project(args)
    return _watched(args, project, settings, Plan.read(args.plan), "build")


def cmd_plan(args: argparse.Namespace) -> int:
    _, _, plan = _plan_of(args)
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
    project, settings = _project(args)
    selectors = _selectors(args, project, settings)
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
    project, _, plan = _plan_of(args)
    files = render(project, plan).write(args.output)
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
    show.inspection(contents)
    return 0


def cmd_repair(args: argparse.Namespace) -> int:
    args.output.mkdir(parents=True, exist_ok=True)
    result = repair(
        args.wheel,
        args.output,
        lib_dirs=args.lib_dir,
        vendor_into=args.into,
        exclude=args.exclude,
        version=args.new_version,
    )
    if args.json:
        _print_json(result.model_dump(mode="json"))
        return 0
    for item in result.vendored:
        show.say(f"added {item.path} from {item.source}")
    for path in result.record_corrected:
        show.say(f"corrected the hash of {path} in RECORD")
    show.say(result.wheel)
    return 0


def _waivers(args: argparse.Namespace) -> list[Waiver]:
    return [parse_waiver(text) for text in args.waive]


def cmd_verify(args: argparse.Namespace) -> int:
    _, _, plan = _plan_of(args)
    report = verify(args.wheel, policy_of(plan), waivers=_waivers(args))
    if args.json:
        _print_json(report.to_json())
    else:
        rows = [(c.id, c.status.replace("_", " "), c.note) for c in report.checks]
        show.table(report.wheel, ("check", "status", "seen"), rows)
        for finding in report.findings:
            if finding.waived is not None:
                show.say(f"waived: {finding.where}: {finding.what} ({finding.waived})")
        if not report.passed:
            raise refusal(report)
    return 0 if report.passed else 6


def cmd_publish(args: argparse.Namespace) -> int:
    project, settings, plan = _plan_of(args)
    if args.index:
        settings = settings.model_copy(update={"index": args.index})
    setting = Setting(project, settings, Silent())
    report = verify(args.wheel, policy_of(plan), waivers=_waivers(args))
    if not report.passed:
        raise refusal(report)
    with uploading(args.wheel.name, args.wheel.stat().st_size) as progress:
        result = publish_wheel(setting, plan, args.wheel, report, progress=progress, single_writer=args.single_writer)
    source = pip_source(setting, Variant.parse(plan.variant).group)
    line = pip_line(f"{plan.package}=={plan.version}", source)
    if args.json:
        _print_json({"changed": result.changed, "wheel": result.wheel_url, "pip": line})
    else:
        show.say("published" if result.changed else "already there: nothing to do")
        show.say(line)
    return 0


def cmd_smoke(args: argparse.Namespace) -> int:
    project, settings, plan = _plan_of(args)
    setting = Setting(project, settings, Silent())
    group = Variant.parse(plan.variant).group
    source = ("--index-url", args.index_url) if args.index_url else pip_source(setting, group)
    folder = setting.artifacts / "smoke" / f"{plan.package}-{plan.version}"
    folder.mkdir(parents=True, exist_ok=True)
    result = Outcomes()
    failed = smoke(setting, plan, folder, result, f"{plan.package}=={plan.version}", source)
    if args.json:
        _print_json(result.to_json())
    else:
        show.outcomes(replace(result, run=f"of the smoke test in {folder}"))
    if failed:
        raise SmokeFailedError("\n".join(failed), hint=f"reports: {folder}/smoke*.json")
    return 0


def _state(run_: Run) -> str:
    return run_.result or "unfinished"


def cmd_status(args: argparse.Namespace) -> int:
    project, settings = _project(args)
    with open_journal(project, settings) as journal:
        if not args.run:
            runs = journal.runs(args.limit)
            if args.json:
                _print_json([{"id": r.id, "created": r.created, "result": r.result, **r.selectors} for r in runs])
            else:
                rows = [
                    (r.id, _state(r), str(r.selectors.get("package")), str(r.selectors.get("variant"))) for r in runs
                ]
                show.table("", ("run", "result", "package", "variant"), rows)
            return 0
        found = journal.run(args.run)
        jobs, events = journal.jobs(found.id), journal.events(found.id)
    if args.json:
        _print_json(
            {
                "id": found.id,
                "created": found.created,
                "finished": found.finished,
                "result": found.result,
                "exit_code": found.exit_code,
                "jobs": [{"kind": j.kind, "attempts": [vars(a) for a in j.attempts]} for j in jobs],
                "events": [vars(event) for event in events],
            }
        )
        return 0
    show.say(f"run {found.id}: {_state(found)}, {found.plan['package']} {found.plan['version']}")
    attempts = [(j.kind, a.engine, a.state, a.result or "", a.why or "") for j in jobs for a in j.attempts]
    show.table("", ("job", "engine", "state", "result", "why"), attempts)
    steps = [e.data for e in events if e.kind == "step"]
    rows = [(s["name"], f"{s['seconds']:.1f}", s["outcome"], s["result"]) for s in steps]
    show.table("", ("step", "seconds", "outcome", "result"), rows)
    return 0


def cmd_logs(args: argparse.Namespace) -> int:
    project, settings = _project(args)
    with open_journal(project, settings) as journal:
        newest = journal.runs(1)
        if not args.run and not newest:
            raise UsageError("there is no run yet", hint="farm submit --variant sm35-avx-py311 --package canary")
        found = journal.run(args.run) if args.run else newest[0]
    log = Setting(project, settings, Silent()).run_folder(found.id) / "build.log"
    if not log.exists():
        raise UsageError(f"run {found.id} has no build log yet: it did not come to the build")
    with log.open("r", encoding="utf-8", errors="replace", newline="\n") as stream:
        for line in stream:
            sys.stdout.write(plain(line) + "\n")
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "submit": cmd_submit,
    "build": cmd_build,
    "plan": cmd_plan,
    "why": cmd_why,
    "matrix": cmd_matrix,
    "detect": cmd_detect,
    "render": cmd_render,
    "inspect": cmd_inspect,
    "repair": cmd_repair,
    "verify": cmd_verify,
    "publish": cmd_publish,
    "index": cmd_index,
    "smoke": cmd_smoke,
    "status": cmd_status,
    "logs": cmd_logs,
}
