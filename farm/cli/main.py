"""The `farm` command: arguments in, exit codes out.

`farm.cli.arguments` declares the options of a command: `add_NAME(parser)`; its module carries it
out and returns the exit code: `run_NAME(args)`. Only that module is imported: all of them take
longer than some commands.
"""

import argparse
import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from types import ModuleType
from typing import Any, NoReturn, cast

from farm import __version__
from farm.base.errors import EXITS, FarmError, UsageError, system_error
from farm.base.interrupts import OutputClosed
from farm.base.text import nearest
from farm.cli import arguments, show
from farm.cli.examples import EXAMPLES

INTERRUPTED = 130

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Build": {
        "init": "write a small project to start from, or a workflow for one (--github)",
        "recipe": "write a recipe from an sdist of the Python index or a folder, and add it to a "
        "channel, or remove one",
        "submit": "build, repair, verify, publish, install and smoke-test wheels",
        "plan": "show what would be built, what it costs, what was tested of it, and the origin "
        "of each value",
        "render": "write Dockerfile, scripts and plan, or an offline bundle",
        "build": "build the wheel of a plan file, and stop there",
        "status": "show runs, their steps, and why a run waits",
        "logs": "print the build log of runs",
        "cancel": "stop runs",
        "retry": "run the plans of ended runs again, from the wheel that is there",
        "wait": "wait until runs have ended; the exit code is the highest of theirs",
        "dispatch": "run the scheduler for detached runs in the foreground",
    },
    "Wheels": {
        "inspect": "show what is inside a wheel: device code, imports, CPU features, tags",
        "repair": "add the libraries that a wheel needs, correct its tags and RECORD",
        "verify": "check that a wheel can be installed and imported, and that its content matches "
        "its name",
        "publish": "verify a wheel and upload it to the index",
        "smoke": "install a wheel into a fresh environment and test it there",
    },
    "Index": {
        "index": "check, rebuild, yank, remove, sign and verify the wheel index",
        "site": "write the web pages of the index",
    },
    "Machines": {
        "detect": "show this machine's GPU, driver and CPU, the wheel for it and the pip command",
        "doctor": "check whether this machine can build and use wheels, and what is missing",
        "report": "read the farm-report.zip of a build on Windows: machine, steps, failures, what "
        "CMake found",
        "runners": "check that the machines of ci/runners.yaml are online and as written",
        "clean": "remove what old runs left: folders, containers, build trees, images; never the "
        "index",
    },
    "Knowledge": {
        "why": "explain why a combination can or cannot be built, and name the nearest that can",
        "matrix": "list the builds of the channels as a table, names, JSON or a workflow's matrix",
        "completion": "print a script that completes commands and options in bash, zsh or fish",
    },
}
"""Every command with its line of help, in the groups of `farm --help`."""

COMMANDS: Mapping[str, str] = {
    name: text for group in GROUPS.values() for name, text in group.items()
}

MODULES = {
    **dict.fromkeys(("build", "render", "retry", "dispatch"), "builds"),
    **dict.fromkeys(("cancel", "wait"), "runs"),
    **dict.fromkeys(("inspect", "repair", "verify"), "wheels"),
    **dict.fromkeys(("publish", "index"), "index"),
    "completion": "main",
}
"""The module of `farm.cli` that carries out a command, where it is not called like the command."""

TEXT_ONLY = ("index", "completion", "logs", "dispatch", "recipe", "report")
"""Commands without `--json`: a log and a script are text; each subcommand of `index` has its own.
"""

MIN_WIDTH = 40
MAX_WIDTH = 120
"""Columns of help: a narrower terminal folds the lines itself, longer ones are hard to read."""


class HelpFormatter(argparse.HelpFormatter):
    """Help as wide as the terminal; a text of several lines, such as examples, stays as it is."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=help_width(), max_help_position=28)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return indent + text.replace("\n", f"\n{indent}")
        return super()._fill_text(text, width, indent)


def help_width() -> int:
    """The columns for help: those of the terminal, within bounds."""
    return min(MAX_WIDTH, max(MIN_WIDTH, shutil.get_terminal_size().columns - 2))


class Parser(argparse.ArgumentParser):
    """Errors begin with the message; the nearest word and one line of usage follow. Options are
    written in full.
    """

    def __init__(self, **given: Any) -> None:
        # Without abbreviations: else `--with magma` would be `--without magma`.
        super().__init__(**{"formatter_class": HelpFormatter, **given}, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        self.words = [word.partition("=")[0] for word in args or () if word.startswith("--")]
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:  # an error here, with the usage of the command, not with that of `farm`
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        options = {*self._option_string_actions, "--"}
        unknown = [word for word in getattr(self, "words", ()) if word not in options]
        if message.startswith("the following arguments are required") and unknown:
            # One of them may have been meant.
            message = f"unrecognized arguments: {' '.join(unknown)}"
        needed = filter(None, map(_required, self._actions))
        usage = " ".join([self.prog, *needed, "[OPTIONS]"])
        self.exit(
            2,
            f"{self.prog}: {message}\n{did_you_mean(message, self)}  usage: {usage}  "
            f"(`{self.prog} --help`)\n",
        )


def _required(action: argparse.Action) -> str | None:
    """An argument that has to be given, as usage shows it."""
    if isinstance(action.metavar, str):
        name = action.metavar
    else:
        name = action.dest.upper()
    if action.option_strings:
        if action.required:
            return f"{action.option_strings[0]} {name}"
        return None
    if action.nargs in ("*", "?"):
        return None
    return name


def did_you_mean(message: str, parser: argparse.ArgumentParser) -> str:
    """A line with the nearest known words for an error of argparse; empty where nothing is near."""
    choices: list[str] = []
    if message.startswith("unrecognized arguments: "):
        # argparse says what is wrong in its text alone.
        mistyped = [word.split("=")[0] for word in message.split()[2:] if word.startswith("-")]
        choices = [option for option in parser._option_string_actions if option.startswith("--")]
    elif "invalid choice: " in message:
        value = message.split("invalid choice: ")[1].split("(choose from", maxsplit=1)[0]
        mistyped = [value.strip().strip("'")]
        # `argument NAME: invalid choice: …`; NAME is all spellings of the option, joined by `/`.
        name = message.split(":", maxsplit=1)[0].removeprefix("argument ").split("/")[0]
        for action in parser._actions:
            if name in (*action.option_strings, action.dest, action.metavar):
                choices += map(str, action.choices or ())
    else:
        return ""
    near: list[str] = []
    for word in mistyped:
        near += nearest(word, choices, 1)
    if not near:
        return ""
    return f"  did you mean: {', '.join(near)}?\n"


def parser(
    commands: Iterable[str] = tuple(COMMANDS), *, load: bool = True
) -> argparse.ArgumentParser:
    """The command line with these commands, all of them for the reference; `load` false: their
    names alone.
    """
    top = Parser(
        prog="farm",
        usage="farm [--version] [--project DIR] [--traceback] COMMAND …",
        description="Builds, repairs, verifies, publishes and smoke-tests PyTorch wheels for old "
        "hardware.",
        epilog=overview(),
    )
    top.add_argument("--version", action="version", version=f"farm {__version__}")
    text = "project folder (default: this folder or the nearest above it with ci/)"
    top.add_argument("--project", type=Path, metavar="DIR", help=text)
    top.add_argument(
        "--traceback", action="store_true", help="show where an error was raised, for bug reports"
    )
    subparsers = top.add_subparsers(
        dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS
    )
    for name in commands:
        help_line = COMMANDS[name]
        subparser = subparsers.add_parser(
            name,
            prog=f"farm {name}",
            description=help_line[0].upper() + help_line[1:] + ".",
            epilog=examples_of(name),
        )
        if name not in TEXT_ONLY:
            subparser.add_argument(
                "--json", action="store_true", help="print one JSON document on stdout"
            )
        if load:
            getattr(arguments, f"add_{name}")(subparser)
    return top


def handler(name: str) -> Callable[[argparse.Namespace], int]:
    """The function that carries out a command."""
    module = import_module(f"farm.cli.{MODULES.get(name, name)}")
    return cast(Callable[[argparse.Namespace], int], getattr(module, f"run_{name}"))


def examples_of(name: str) -> str:
    """The examples of a command, each with what it does on the line below."""
    lines = ["examples:"]
    for line, meaning in EXAMPLES[name]:
        lines += [f"  $ {line}", f"      {meaning}"]
    return "\n".join(lines)


def overview() -> str:
    """The commands in their groups, and the exit codes."""
    width = help_width()
    lines: list[str] = []
    for group, commands in GROUPS.items():
        lines.append(f"{group}:")
        for name, text in commands.items():
            lines += wrap(text, width, initial_indent=f"  {name:<12}", subsequent_indent=" " * 14)
        lines.append("")
    codes = ", ".join(f"{int(code)} {text}" for code, text in EXITS.items())
    return "\n".join(
        [
            *lines,
            *wrap("`farm COMMAND --help` shows the options of a command, and examples.", width),
            "",
            *wrap(f"exit codes: {codes}.".replace("`", ""), width),
        ]
    )


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The arguments of one command; only its module is imported."""
    name = command_in(given)
    if name is None:
        top = parser(())
        # argparse answers these without a command, and ends the process.
        if {"-h", "--help", "--version"}.intersection(given):
            return top.parse_args(given)
        parser(()).print_help(sys.stderr)
        sys.exit(2)
    if name not in COMMANDS:
        near = nearest(name, tuple(COMMANDS), 1)
        if near:
            hint = f"  did you mean: farm {near[0]}?\n"
        else:
            hint = "  `farm --help` lists the commands\n"
        parser(()).exit(2, f"farm: no command {name!r}\n{hint}")
    # With this one command: the modules of the others are not imported.
    args = parser((name,)).parse_args(given)
    args.words = tuple(given)  # in their order: what was asked for last is kept longest
    return args


def command_in(given: Sequence[str]) -> str | None:
    """The command among the arguments: the first that is neither a global option nor its value."""
    words = iter(given)
    for word in words:
        if word == "--project":
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def command_parser(top: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    (subparsers,) = (
        action for action in top._actions if isinstance(action, argparse._SubParsersAction)
    )
    return cast(argparse.ArgumentParser, subparsers.choices[name])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        show.prepare()
        try:
            if argv is None:
                argv = sys.argv[1:]
            return _main(argv)
        finally:
            show.flush()  # here, where it may still fail
    except OutputClosed:
        return show.CLOSED
    except KeyboardInterrupt:
        print("farm: interrupted; nothing incomplete was published", file=sys.stderr)
        return INTERRUPTED
    except show.OutputFailedError as error:
        return _failed(error)


def _main(given: Sequence[str]) -> int:
    gc.disable()  # what is imported stays: searching it for garbage takes a tenth of the time
    _leave_out_plugins()
    if "_ARGCOMPLETE" in os.environ:  # Tab in a shell
        complete(os.environ.get("COMP_LINE", ""))
    args = parse(given)
    gc.freeze()
    gc.enable()
    show.document = False
    try:
        _require_folder()
        return handler(args.command)(args)
    except Exception as error:
        failure: FarmError | None
        if isinstance(error, FarmError):
            failure = error
        else:
            failure = system_error(error)
        if args.traceback or failure is None:
            raise
        return _failed(failure, json=getattr(args, "json", False))


def _require_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError(
            "the folder in which farm was started is no longer there", hint="cd into another one"
        ) from error


def _leave_out_plugins() -> None:
    """Have pydantic look for no plugins: it would read the metadata of every installed package for
    them.
    """
    name = "pydantic.plugin._loader"
    if name not in sys.modules:
        loader = ModuleType(name)
        loader.get_plugins = tuple  # type: ignore[attr-defined]
        sys.modules[name] = loader


def _failed(error: FarmError, *, json: bool = False) -> int:
    """The exit code of an error, which is explained; `json`: also as a document, where the command
    printed none.
    """
    show.explain(error)
    if json and not show.document:
        show.json_document(
            {"error": str(error), "hint": error.hint, "exit_code": int(error.exit_code)}
        )
    return error.exit_code


def run_completion(args: argparse.Namespace) -> int:
    """Print the script that a shell reads at its start; it holds no words: at each Tab it runs
    `farm`.
    """
    from argcomplete.shell_integration import shellcode

    print(shellcode(["farm"], shell=args.shell), end="")
    return 0


def complete(line: str) -> None:
    """Answers the shell, which has set argcomplete's variables for this command line, and ends the
    process.
    """
    import argcomplete

    name = command_in(line[: int(os.environ.get("COMP_POINT", len(line)))].split(" ")[1:-1]) or ""
    # A command that is still being typed: the names of all, without their options.
    if name in COMMANDS:
        top = parser((name,))
    else:
        top = parser(load=False)
    argcomplete.autocomplete(top, always_complete_options=False)


if __name__ == "__main__":
    sys.exit(main())
