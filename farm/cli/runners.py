"""`farm runners check`: compare the machines of ci/runners.yaml with what their engines say."""

import argparse
import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from farm.base.errors import ExitCode, FarmError
from farm.base.project import find_project
from farm.cli import show
from farm.cli.selection import journal_of
from farm.plan.settings import Github, github_if_any, load_github, load_runners

if TYPE_CHECKING:
    from farm.engines.github_api import GithubApi


def run_runners(args: argparse.Namespace) -> int:
    """0: every runner is online and as written; else 4."""
    from farm.run.backends import ask, differences
    from farm.run.set_aside import set_aside

    project = find_project(args.project or Path.cwd())
    runners = load_runners(project)
    github = github_if_any(project)
    reported = ask(runners, lambda: _connect(load_github(project)))
    differing = {name: differences(runners[name], reported[name]) for name in runners}
    # Without a repository there are no settings that could be missing.
    if github and github.repository:
        unsafe = _unsafe(github)
    else:
        unsafe = []
    with journal_of(args) as journal:
        resting = set_aside(journal, datetime.now(UTC)) if journal else {}
    if args.json:
        documents = {
            name: {
                **vars(runner),
                "differences": differing[name],
                "set_aside": resting[name].text if name in resting else None,
            }
            for name, runner in reported.items()
        }
        show.json_document({"runners": documents, "settings_missing": unsafe})
    else:
        rows = []
        for name, runner in reported.items():
            if runner.online:
                if runner.busy:
                    state = "busy"
                else:
                    state = "online"
            else:
                state = "offline"
            words = [*([runner.why] if runner.why else []), *differing[name]]
            if name in resting:
                words.append(resting[name].text)
            rows.append((name, state, "; ".join(words) or "as written"))
        show.table("", ("runner", "state", "engine says"), rows)
        for line in unsafe:
            show.say(f"unsafe: {line}")
    fine = not (unsafe or resting or any(differing.values())) and all(
        runner.online for runner in reported.values()
    )
    return 0 if fine else ExitCode.NO_RUNNER


def _connect(github: Github) -> "GithubApi":
    from farm.engines.github_api import connect

    return connect(github.api_url, github.repository, os.environ)


def _unsafe(github: Github) -> list[str]:
    """The settings at GitHub that are missing; where they cannot be read, that."""
    from farm.engines.github_settings import missing_settings

    try:
        with contextlib.closing(_connect(github)) as api:
            return missing_settings(api)
    except FarmError as error:
        return [f"whether pull requests can reach the runners is not known: {error}"]
