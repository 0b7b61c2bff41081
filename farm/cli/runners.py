"""`farm runners check`: compare the machines of ci/runners.yaml with what their engines say."""

import argparse
import contextlib
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from farm.base.errors import ExitCode, FarmError
from farm.cli import show
from farm.cli.selection import folder_of, journal_of
from farm.plan.settings import Github, github_if_any, load_github, load_runners

if TYPE_CHECKING:
    from farm.engines.github_api import GithubApi
    from farm.run.backends import MachineReport


def run_runners(args: argparse.Namespace) -> int:
    """0: every runner is online and as written; else 4."""
    from farm.run.backends import ask, differences
    from farm.run.set_aside import set_aside

    project = folder_of(args)
    runners = load_runners(project)
    github = github_if_any(project)
    reports = ask(runners, lambda: _connect(load_github(project)))
    differing = {}
    for name, runner in runners.items():
        differing[name] = differences(runner, reports[name])
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
        for name, report in reports.items():
            facts = {"differences": differing[name], "set_aside": set_aside_texts.get(name)}
            documents[name] = {**vars(report), **facts}
        show.json_document({"runners": documents, "settings_missing": unsafe})
    else:
        _print_table(reports, differing, set_aside_texts)
        for line in unsafe:
            show.say(f"unsafe: {line}")
    all_online = all(report.online for report in reports.values())
    if not all_online or unsafe or set_aside_texts or any(differing.values()):
        return ExitCode.NO_RUNNER
    return 0


def _print_table(
    reports: "Mapping[str, MachineReport]",
    differing: Mapping[str, Iterable[str]],
    set_aside_texts: Mapping[str, str],
) -> None:
    rows = []
    for name, report in reports.items():
        words = [report.why, *differing[name], set_aside_texts.get(name)]
        rows.append((name, _state(report), "; ".join(filter(None, words)) or "as written"))
    show.table("", ("runner", "state", "engine says"), rows)


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
