"""`farm completion`: completion of commands, options and their choices in a shell, by argcomplete.

The script that a shell reads at its start holds no words: at each Tab it runs `farm`, which loads the command that is
being typed alone.
"""

import argparse
import os

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["farm"], shell=args.shell), end="")
    return 0


def complete(line: str) -> None:
    """Answers the shell, which has set argcomplete's variables for this command line, and ends the process."""
    import argcomplete

    from farm.cli.main import COMMANDS, command_in, parser

    name = command_in(line[: int(os.environ.get("COMP_POINT", len(line)))].split(" ")[1:-1]) or ""
    # A command that is still being typed: the names of all, without their options.
    top = parser((name,)) if name in COMMANDS else parser(load=False)
    argcomplete.autocomplete(top, always_complete_options=False)
