"""`farm runners check`: are the machines of `ci/runners.yaml` there, and as the file says?"""

import argparse
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from farm.base.errors import FarmError
from farm.base.project import find_project
from farm.cli import show
from farm.engines.github import GithubApi, connect, missing_settings
from farm.engines.runners import Reported, ask, differences
from farm.plan.settings import Github, github_if_any, load_github, load_runners

NO_RUNNER = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["check"], help="compare the machines with the file")


def run(args: argparse.Namespace) -> int:
    """0: every runner is online and as written; else 4."""
    project = find_project(args.project or Path.cwd())
    runners, github = load_runners(project), github_if_any(project)
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
