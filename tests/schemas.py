"""What `--json` prints against the schemas that the farm ships."""

import json
from functools import cache
from typing import Any

import jsonschema

from farm import shipped

FOLDER = shipped.FOLDER / "schemas"


@cache
def validator(command: str) -> jsonschema.Draft202012Validator:
    """Of `index check`, …"""
    file = FOLDER / f"{command.replace(' ', '-')}.schema.json"
    return jsonschema.Draft202012Validator(json.loads(file.read_text()))


def valid(command: str, document: str) -> Any:
    """The document that `farm COMMAND --json` printed.

    Raises:
        AssertionError: It is not what the schema says.
    """
    data = json.loads(document)
    errors = [f"{error.json_path}: {error.message}" for error in validator(command).iter_errors(data)]
    assert errors == [], (command, errors[:5])
    return data
