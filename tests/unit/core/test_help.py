"""The help of each command: two examples that can be typed, a text for each option, the
terminal's width.
"""

import argparse
import shlex

import pytest

from farm.cli.examples import EXAMPLES
from farm.cli.main import COMMANDS, command_parser, main, overview, parse, parser

ANSWERED = ("plan", "why", "matrix", "detect", "completion")
"""Commands whose examples are carried out here: they only read."""


def lines(name):
    return [line for line, _ in EXAMPLES[name]]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_help_has_two_examples_that_can_be_typed(name, capsys):
    assert len(set(lines(name))) == 2
    with pytest.raises(SystemExit):
        parse([name, "--help"])
    text = capsys.readouterr().out
    for line in lines(name):
        assert f"  $ {line}\n" in text
        program, *words = shlex.split(line)
        assert program == "farm"
        assert parse(words).command == name


@pytest.mark.parametrize("name", ANSWERED)
def test_an_example_that_only_reads_is_carried_out(name, capsys):
    for line in lines(name):
        # 3: no; detect and why may say it.
        assert main(shlex.split(line)[1:]) in (0, 3), line
        assert capsys.readouterr().out


def options(command):
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from options(below)
        else:
            yield command.prog, action


def test_every_option_has_a_text():
    top = parser()
    without = [
        (prog, action.option_strings)
        for name in COMMANDS
        for prog, action in options(command_parser(top, name))
        if action.option_strings and not action.help
    ]
    assert without == []


@pytest.mark.parametrize("columns", [60, 80, 110])
def test_help_is_as_wide_as_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    widths = [len(line) for line in overview().splitlines()]
    assert columns - 20 < max(widths) <= columns
