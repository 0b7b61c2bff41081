"""`farm smoke`: a wheel from an index or a file, in a fresh environment, on this machine."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from farm.base import zipapps as pack
from farm.base.errors import NoRunnerError, SmokeFailedError, UsageError
from farm.cli import show
from farm.cli.options import add_selectors, add_verbosity
from farm.cli.progress import watching
from farm.cli.project import project_of
from farm.cli.selection import selectors_of
from farm.index.backends import open_store
from farm.plan.build import resolve
from farm.plan.file import Plan
from farm.run.release import listed, needs_more, pip_source
from farm.run.smoke import SmokeOptions, smoke
from farm.run.workspace import Outcomes, Watcher, Workspace
from farm.smoke.runner import PROBE, SmokeReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selectors(parser, required=False, of_wheel=True)
    parser.add_argument(
        "--index-url",
        metavar="URL",
        help="index to install from: a URL as for pip, a folder or s3://… (default: the project's own)",
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help="install this file; the report is also written beside it"
    )
    parser.add_argument(
        "--write-probe",
        type=Path,
        metavar="FILE",
        help="write the test as one file for any Python 3.7 or newer that has the package, and test nothing here",
    )
    parser.add_argument("--require-gpu", action="store_true", help="fail where the GPU checks cannot run")
    parser.add_argument(
        "--pass-env",
        action="append",
        default=[],
        metavar="NAME",
        help="pass this variable to the test, such as CUDA_VISIBLE_DEVICES (default: none)",
    )
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        metavar="SECONDS",
        help="time limit for all checks (default: smoke_timeout_s in ci/farm.yaml)",
    )
    add_verbosity(parser)


def _sources(
    args: argparse.Namespace, workspace: Workspace, plan: Plan, package: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The installer's options that name the index, and the wheels of the plan that it lists, where that is known."""
    group = plan.parsed_variant.group
    if args.index_url and not args.index_url.startswith(("http://", "https://")):
        # An index as the farm names it; pip reads neither folders nor buckets, and gets what `farm publish` prints.
        workspace = replace(workspace, settings=workspace.settings.with_index(args.index_url))
    elif args.index_url:
        return ("--extra-index-url", args.index_url), ()
    elif args.wheel is not None:
        return (), ()  # what it depends on comes from the installer's own default index
    names = _published(workspace, plan, package)
    return pip_source(workspace, group, more=not names or any(needs_more(workspace, name) for name in names)), names


def _published(workspace: Workspace, plan: Plan, package: str) -> tuple[str, ...]:
    """Of an index in a folder alone: a bucket may be read without credentials by pip, and not by us."""
    if workspace.index_url.startswith("s3://"):
        return ()
    if names := listed(open_store(workspace.index_url), plan):
        return tuple(names)
    raise UsageError(
        f"{plan.package} {plan.version} is not published in {workspace.index_url}",
        hint=f"build it: farm submit --variant {plan.variant} --package {package} --platform {plan.platform} "
        f"--channel {plan.channel}; "
        "or test another wheel: --wheel FILE, --index-url URL",
    )


def run(args: argparse.Namespace) -> int:
    """Install, run the probe and print the reports.

    Raises:
        SmokeFailedError: A check failed, with the causes and their fixes.
        NoRunnerError: This machine has no Python for the variant, or too old a glibc for the wheel.
        UsageError: There is no such wheel.
    """
    if args.write_probe:
        return _write_probe(args)
    if args.variant is None:
        raise UsageError("no variant is chosen", hint="--variant sm35-avx-py311; `farm detect` names this machine's")
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
    requirement = str(wheel.resolve()) if wheel else f"{plan.package}=={plan.version}"
    folder = workspace.artifacts / "smoke" / (wheel.stem if wheel else f"{plan.package}-{plan.version}")
    folder.mkdir(parents=True, exist_ok=True)
    options = SmokeOptions(
        wheel=wheel,
        filenames=filenames,
        gpu=args.require_gpu,
        # The report of another index's wheel, or of a loose file, does not belong in the project's index.
        keep=not args.index_url and wheel is None,
        passed=tuple(args.pass_env),
    )
    # A report of an earlier test would be taken for this one's, where this one ends before it writes its own.
    for old in folder.glob("smoke*.json"):
        old.unlink()
    result = Outcomes()
    with watching(args) as watcher:
        failed = smoke(replace(workspace, watcher=watcher), plan, folder, result, requirement, source, options)
    files = sorted(folder.glob("smoke*.json"), key=lambda file: len(file.name))  # this machine's own first
    if wheel is not None:
        for file in files:
            wheel.with_name(f"{wheel.name}.{file.name}").write_bytes(file.read_bytes())
    _show(args, result, [SmokeReport.model_validate_json(file.read_text(encoding="utf-8")) for file in files], folder)
    if failed:
        raise SmokeFailedError("\n".join(failed), hint=f"reports: {folder}/smoke*.json")
    if not files:
        raise NoRunnerError(
            f"nothing was tested: {result.steps[0].result}",
            hint="install that Python (deadsnakes, python.org, `uv python install`), test on a system that the wheel "
            "is for, or name a variant for this one",
        )
    return 0


def _write_probe(args: argparse.Namespace) -> int:
    args.write_probe.write_bytes(pack.pack(PROBE))
    if args.json:
        show.json_document({**Outcomes().to_json(), "reports": []})
    else:
        show.say(f"{args.write_probe}: python3 {args.write_probe.name} --help")
    return 0


def _show(args: argparse.Namespace, result: Outcomes, reports: list[SmokeReport], folder: Path) -> None:
    if args.json:
        show.json_document({**result.to_json(), "reports": [json.loads(each.to_json()) for each in reports]})
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


def _seconds(text: str) -> int:
    number = int(text)
    if not 0 < number <= 86400:
        raise ValueError
    return number
