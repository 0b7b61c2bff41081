"""Every `--json` has a schema with a version; tests/integration/index/test_json_documents.py holds documents to it."""

import argparse
import json
from collections.abc import Iterator

import pytest

from farm.cli.main import COMMANDS, command_parser, main, parser
from tests.schemas import FOLDER, validator


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
    files = {file.name.removesuffix(".schema.json"): json.loads(file.read_text()) for file in FOLDER.iterdir()}
    assert {name.replace(" ", "-") for name in commands} == set(files)
    for name, schema in files.items():
        assert schema["$id"] == f"urn:torch-farm:json:{name}:{schema['version']}"
        validator(name).check_schema(schema)


def test_commands_that_print_text_take_no_json(capsys):
    for command in ("logs", "dispatch"):
        with pytest.raises(SystemExit) as refused:
            main([command, "--json"])
        assert refused.value.code == 2
    assert "unrecognized arguments: --json" in capsys.readouterr().err
