"""Every `--json` has a schema with a version; tests/integration/index/test_json_documents.py holds
documents to it.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.cli.main import COMMANDS, command_parser, main, parser
from tests.schemas import FOLDER, valid, validator

TESTS = Path(__file__).parents[2]


def with_json(one: argparse.ArgumentParser) -> Iterator[str]:
    below = [action for action in one._actions if isinstance(action, argparse._SubParsersAction)]
    if any("--json" in action.option_strings for action in one._actions):
        yield one.prog.removeprefix("farm ")
    for action in below:
        for each in action.choices.values():
            yield from with_json(each)


def test_every_command_with_json_has_a_schema_and_no_other():
    top = parser()
    commands = {name for command in COMMANDS for name in with_json(command_parser(top, command))}
    files = {
        file.name.removesuffix(".schema.json"): json.loads(file.read_text())
        for file in FOLDER.iterdir()
    }
    assert {name.replace(" ", "-") for name in commands} == set(files)
    for name, schema in files.items():
        assert schema["$id"] == f"urn:torch-farm:json:{name}:{schema['version']}"
        validator(name).check_schema(schema)


HELD = r"(?:valid|ask)\(\s*\"([a-z ]+)\""
"""Where a test holds what a command printed to its schema: `valid("status", …)`."""
ROWS = TESTS / "integration/index/test_json_documents.py"


@pytest.mark.parametrize(
    "command", sorted(file.name.removesuffix(".schema.json") for file in FOLDER.iterdir())
)
def test_the_output_of_each_command_is_checked_against_its_schema(command):
    files = [file for file in TESTS.rglob("test_*.py") if file != Path(__file__)]
    held = {name for file in files for name in re.findall(HELD, file.read_text())}
    held |= set(re.findall(r"\(\s*\"([a-z ]+)\",", ROWS.read_text()))
    assert command in {name.replace(" ", "-") for name in held}


def test_a_key_that_the_schema_does_not_name_is_found():
    with pytest.raises(AssertionError, match="does not name 'more'"):
        valid("cancel", '{"id": "1", "result": null, "exit_code": 0, "more": 1}')


def test_commands_that_print_text_take_no_json(capsys):
    for command in ("logs", "dispatch"):
        with pytest.raises(SystemExit) as refused:
            main([command, "--json"])
        assert refused.value.code == 2
    assert "unrecognized arguments: --json" in capsys.readouterr().err
