"""`farm completion`: completion of commands, options and words in a shell, by argcomplete.

The script that a shell reads at its start holds no words: at each Tab it runs `farm`, which loads the command that is
being typed alone.
"""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
LISTED = {"--variant": "variants", "--channel": "channels", "--package": "packages", "run": "runs"}
"""Options and positional arguments whose words are looked up."""
RUNS = 50
"""The newest runs, whose ids are offered."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["farm"], shell=args.shell), end="")
    return 0


def complete(line: str) -> None:
    """Answers the shell, which has set argcomplete's variables for this command line, and ends the process."""
    import argcomplete

    from farm.cli.main import COMMANDS, named, parser

    words = line[: int(os.environ.get("COMP_POINT", len(line)))].split(" ")[1:-1]
    name = named(words) or ""
    # A command that is still being typed: the names of all, without their options.
    top = parser((name,)) if name in COMMANDS else parser(load=False)
    _add_completers(top, Path(_after(words, "--project") or "."))
    argcomplete.autocomplete(top, always_complete_options=False)


def _after(words: list[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words[:-1] else None


def _add_completers(parser: argparse.ArgumentParser, folder: Path) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _add_completers(below, folder)
        for name in (*action.option_strings, action.dest):
            if name in LISTED and action.nargs != 0:
                kind = LISTED[name]
                action.completer = lambda kind=kind, **_: words_of(kind, folder)  # type: ignore[attr-defined]


def words_of(kind: str, folder: Path) -> Iterable[str]:
    """The variants, channels, packages or newest runs of a project."""
    from farm.base.project import JOURNAL, find_project, journal_path
    from farm.plan.matrix import load_matrix

    project = find_project(folder)
    if kind == "runs":
        from farm.run.journal import Journal

        path = journal_path(project) or project / "artifacts" / JOURNAL
        if not path.is_file():
            return []
        with Journal(path) as journal:
            return [run.id for run in journal.runs(RUNS)]
    matrix = load_matrix(project)
    if kind == "channels":
        return sorted(matrix.channels)
    builds = matrix.builds(None)
    return sorted({str(build.variant) if kind == "variants" else build.package for build in builds})
