"""`farm runners`: the machines of `ci/runners.yaml`, and whether they are there."""

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from farm.base.errors import FarmError, UsageError
from farm.base.project import find_project
from farm.cli import show
from farm.engines.github_api import GithubApi, connect
from farm.engines.github_settings import commands, missing_settings, site_of
from farm.engines.runners import Reported, ask, differences
from farm.plan.settings import Github, Runner, github_if_any, load_github, load_runners
from farm.platforms.runner_service import SCRIPTS, Registration

NO_RUNNER = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=["list", "check", "add"],
        help="list: show the file; check: compare the machines with the file; add: print the commands that register a "
        "machine with GitHub Actions, for a shell on that machine",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="add: the runner's name in ci/runners.yaml")
    parser.add_argument(
        "--ephemeral", action="store_true", help="add: unregister after one job instead of running as a service"
    )


def run(args: argparse.Namespace) -> int:
    """0: every runner is online and as written; else 4 (`check`)."""
    project = find_project(args.project or Path.cwd())
    runners = load_runners(project)
    if args.what == "add":
        return _add(args, project, runners)
    if args.name:
        raise UsageError(f"farm runners {args.what} takes no name", hint=f"farm runners add {args.name}")
    return _check(args, project, runners) if args.what == "check" else _list(args, runners)


def _add(args: argparse.Namespace, project: Path, runners: Mapping[str, Runner]) -> int:
    """Print the commands; what is not for the machine goes to the other stream, so that both can be used."""
    runner = runners.get(args.name)
    if runner is None:
        known = ", ".join(name for name, each in runners.items() if each.by_labels)
        raise UsageError(
            f"ci/runners.yaml has no runner {args.name}" if args.name else "the runner's name is missing",
            hint=f"write it there with its labels; there now: {known or 'none'}",
        )
    if not runner.by_labels:
        raise UsageError(f"{args.name} is a Docker engine in ci/runners.yaml: it needs no registration")
    script = SCRIPTS[runner.platform]
    what = Registration(args.name, tuple(runner.labels), runner.platform, builds="build" in runner.jobs)
    github = load_github(project)
    with contextlib.closing(connect(github.api_url, github.repository, os.environ)) as api:
        text = commands(api, what, site_of(github.api_url), ephemeral=args.ephemeral)
    if args.json:
        show.json_document({"name": what.name, "labels": what.labels, "shell": script.shell, "commands": text})
        return 0
    where = f"for {script.shell} on {what.name}, where {script.folder} has GitHub's runner"
    print(f"{where}; the secret in it is good for an hour", file=sys.stderr)
    print(text, end="")
    return 0


def _list(args: argparse.Namespace, runners: Mapping[str, Runner]) -> int:
    if args.json:
        show.json_document({name: runner.model_dump(mode="json") for name, runner in runners.items()})
        return 0
    rows = [
        (
            name,
            runner.engine,
            " ".join(runner.jobs),
            f"{runner.platform}-{runner.machine}",
            " ".join(f"{card.name} ({card.sm})" for card in runner.gpus) or "-",
            " ".join(runner.cpu_levels) or "-",
            " ".join(runner.labels) or "-",
        )
        for name, runner in runners.items()
    ]
    show.table("", ("runner", "engine", "jobs", "machine", "GPU", "CPU levels", "labels"), rows)
    return 0


def _check(args: argparse.Namespace, project: Path, runners: Mapping[str, Runner]) -> int:
    github = github_if_any(project)
    reported = ask(runners, lambda: _connect(project))
    differing = {name: differences(runners[name], reported[name]) for name in runners}
    # Without a repository there are no settings that could be missing.
    unsafe = _unsafe(github) if github and github.repository else []
    if args.json:
        documents = {name: {**vars(found), "differences": differing[name]} for name, found in reported.items()}
        show.json_document({"runners": documents, "settings_missing": unsafe})
    else:
        _print(reported, differing)
        for line in unsafe:
            show.say(f"unsafe: {line}")
    fine = not (unsafe or any(differing.values())) and all(found.online for found in reported.values())
    return 0 if fine else NO_RUNNER


def _connect(project: Path) -> GithubApi:
    github = load_github(project)
    return connect(github.api_url, github.repository, os.environ)


def _unsafe(github: Github) -> list[str]:
    """The settings at GitHub that are missing; where they cannot be read, that."""
    try:
        with contextlib.closing(connect(github.api_url, github.repository, os.environ)) as api:
            return missing_settings(api)
    except FarmError as error:
        return [f"whether pull requests can reach the runners is not known: {error}"]


def _print(reported: Mapping[str, Reported], differing: Mapping[str, list[str]]) -> None:
    rows = []
    for name, found in reported.items():
        state = ("busy" if found.busy else "online") if found.online else "offline"
        rows.append((name, state, "; ".join([*([found.why] if found.why else []), *differing[name]]) or "as written"))
    show.table("", ("runner", "state", "engine says"), rows)
