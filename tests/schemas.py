"""What `--json` prints against the schemas that the farm ships."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema

from farm.base import resources

FOLDER = resources.FOLDER / "cli" / "schemas"


@cache
def validator(command: str) -> jsonschema.Draft202012Validator:
    """Of `index check`, …"""
    file = FOLDER / f"{command.replace(' ', '-')}.schema.json"
    return jsonschema.Draft202012Validator(json.loads(file.read_text()))


def valid(command: str, document: str) -> Any:
    """The document that `farm COMMAND --json` printed, which must be what the schema says."""
    data = json.loads(document)
    errors = [
        f"{error.json_path}: {error.message}" for error in validator(command).iter_errors(data)
    ]
    errors = errors or list(_unknown(validator(command).schema, data, "$"))
    assert errors == [], (command, errors[:5])
    return data


def _unknown(schema: Any, data: Any, where: str) -> Iterator[str]:
    """Keys that the schema does not name: a reader may meet them, so that it does not refuse
    them.
    """
    if not isinstance(schema, dict):
        return
    for kind in ("oneOf", "anyOf"):
        if kind in schema:
            found = [list(_unknown(one, data, where)) for one in schema[kind] if _fits(one, data)]
            yield from min(found, key=len, default=[])
    if isinstance(data, dict) and "properties" in schema:
        more = schema.get("additionalProperties")
        for key, value in data.items():
            below = schema["properties"].get(key, more)
            if below is None:
                yield f"{where}: the schema does not name {key!r}"
            yield from _unknown(below, value, f"{where}.{key}")
    if isinstance(data, list):
        for number, value in enumerate(data):
            yield from _unknown(schema.get("items"), value, f"{where}[{number}]")


def _fits(schema: Any, data: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(data)
