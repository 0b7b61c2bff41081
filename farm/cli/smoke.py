"""`farm smoke`: install a wheel, run the probe, print and keep its reports."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from farm.base import zipapps
from farm.base.errors import NoRunnerError, SmokeFailedError, UsageError
from farm.cli import show
from farm.cli.progress import watching
from farm.cli.selection import project_of, selectors_of
from farm.index.layout import simple_root
from farm.index.pins import install_words, root_and_group
from farm.index.reader import open_reader
from farm.plan.file import Plan
from farm.plan.resolve import resolve
from farm.run.pip_commands import pip_request, public_url
from farm.run.published import listed
from farm.run.smoke import SmokeOptions, smoke
from farm.run.workspace import Outcomes, Watcher, Workspace
from farm.smoke.runner import PROBE, SmokeReport


def run_smoke(args: argparse.Namespace) -> int:
    """Install, run the probe and print the reports."""
    if args.write_probe:
        return _write_probe(args)
    _check_choice(args)
    project, settings = project_of(args)
    selectors = selectors_of(args, project, settings)
    plan = resolve(project, selectors)
    if args.time_limit is not None:
        settings = settings.model_copy(update={"smoke_timeout_s": args.time_limit})
    workspace = Workspace(project, settings, Watcher())
    source, filenames = _sources(args, workspace, plan, selectors.package)
    options = SmokeOptions(
        wheel=args.wheel,
        filenames=filenames,
        gpu=args.require_gpu,
        # The report of another index's wheel, or of a loose file, does not belong in the project's
        # index.
        keep=not args.index_url and args.wheel is None,
        passed=tuple(args.pass_env),
    )
    name = f"{plan.package}-{plan.version}"
    requirement = f"{plan.package}=={plan.version}"
    if args.wheel:
        name = args.wheel.stem
        requirement = str(args.wheel.resolve())
    folder = _empty_folder(workspace.artifacts / "smoke" / name)

    result = Outcomes()
    with watching(args) as watcher:
        watched_workspace = replace(workspace, watcher=watcher)
        failed = smoke(watched_workspace, plan, folder, result, requirement, source, options)
    files = sorted(_report_files(folder), key=lambda file: len(file.name))  # this machine's first
    if args.wheel is not None:
        _copy_next_to(args.wheel, files)
    _print_reports(args, result, list(map(_read_report, files)), folder)
    if failed:
        raise SmokeFailedError("\n".join(failed), hint=f"reports: {folder}/smoke*.json")
    if not files:
        raise NoRunnerError(
            f"nothing was tested: {result.steps[0].result}",
            hint="install that Python (deadsnakes, python.org, `uv python install`), test on a "
            "system that the wheel is for, or name a variant for this one",
        )
    return 0


def _check_choice(args: argparse.Namespace) -> None:
    """Refuse a test of nothing.

    Raises:
        UsageError: No variant was named, or the wheel is not there.
    """
    if args.variant is None:
        raise UsageError(
            "no variant is chosen",
            hint="--variant sm35-avx-py311; `farm detect` names this machine's",
        )
    if args.wheel is not None and not args.wheel.is_file():
        raise UsageError(f"{args.wheel}: no such file")


def _write_probe(args: argparse.Namespace) -> int:
    """Write the probe as a program of one file, and say how it is run."""
    args.write_probe.write_bytes(zipapps.pack(PROBE))
    line = f"{args.write_probe}: python3 {args.write_probe.name} --help"
    show.answer(args, {**Outcomes().to_json(), "reports": []}, [line])
    return 0


def _empty_folder(folder: Path) -> Path:
    """Make the folder of the reports, without those of an earlier test.

    They would be taken for this one's, where this one ends before it writes its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in _report_files(folder):
        old.unlink()
    return folder


def _report_files(folder: Path) -> list[Path]:
    return list(folder.glob("smoke*.json"))


def _read_report(file: Path) -> SmokeReport:
    return SmokeReport.model_validate_json(file.read_text(encoding="utf-8"))


def _copy_next_to(wheel: Path, reports: list[Path]) -> None:
    """Copy the reports to the wheel that was tested, under its name."""
    for file in reports:
        wheel.with_name(f"{wheel.name}.{file.name}").write_bytes(file.read_bytes())


def _print_reports(
    args: argparse.Namespace, result: Outcomes, reports: list[SmokeReport], folder: Path
) -> None:
    if args.json:
        documents = [json.loads(report.to_json()) for report in reports]
        show.json_document({**result.to_json(), "reports": documents})
        return
    if args.quiet:
        for step in result.steps:
            show.say(f"{step.name}: {step.outcome}; {step.result}")
        return
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
    if "--index-url" in words:
        return words[1:]  # without the requirement
    return words


def _published(workspace: Workspace, plan: Plan, package: str) -> tuple[str, ...]:
    """The wheels of the plan that the project's index lists.

    Of an index in a folder alone: pip may read a bucket without credentials where the farm cannot.
    """
    if workspace.index_url.startswith("s3://"):
        return ()
    if names := listed(open_reader(workspace.index_url).get, plan, plan.parsed_variant.group):
        return tuple(names)
    raise UsageError(
        f"{plan.package} {plan.version} is not published in {workspace.index_url}",
        hint=f"build it: farm submit --variant {plan.variant} --package {package} --platform "
        f"{plan.platform} --channel {plan.channel}; or test another wheel: --wheel FILE, "
        "--index-url URL",
    )
