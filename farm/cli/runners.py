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
    from farm.run.backends import MachineReport


def run_runners(args: argparse.Namespace) -> int:
    """0: every runner is online and as written; else 4."""
    from farm.run.backends import ask, differences
    from farm.run.set_aside import set_aside

    project = find_project(args.project or Path.cwd())
    runners = load_runners(project)
    github = github_if_any(project)
    reported = ask(runners, lambda: _connect(load_github(project)))
    differing = {}
    for name, runner in runners.items():
        differing[name] = differences(runner, reported[name])
    unsafe = []
    if github and github.repository:  # else there are no settings that could be missing
        unsafe = _unsafe(github)
    set_aside_texts = {}
    with journal_of(args) as journal:
        if journal:
            for name, machine in set_aside(journal, datetime.now(UTC)).items():
                set_aside_texts[name] = machine.text

    if args.json:
        documents = {}
        for name, runner_report in reported.items():
            documents[name] = {
                **vars(runner_report),
                "differences": differing[name],
                "set_aside": set_aside_texts.get(name),
            }
        show.json_document({"runners": documents, "settings_missing": unsafe})
    else:
        rows = []
        for name, runner_report in reported.items():
            words = [runner_report.why, *differing[name], set_aside_texts.get(name)]
            text = "; ".join(filter(None, words)) or "as written"
            rows.append((name, _state(runner_report), text))
        show.table("", ("runner", "state", "engine says"), rows)
        for line in unsafe:
            show.say(f"unsafe: {line}")
    if unsafe or set_aside_texts or any(differing.values()):
        return ExitCode.NO_RUNNER
    if not all(runner_report.online for runner_report in reported.values()):
        return ExitCode.NO_RUNNER
    return 0


def _state(report: "MachineReport") -> str:
    if not report.online:
        return "offline"
    if report.busy:
        return "busy"
    return "online"


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
