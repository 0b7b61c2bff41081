"""Writes the tables of docs/reference/commands.md from the code: commands, keys of YAML files, exit
codes, variables.

    python -m tools.reference [--out FILE]

For maintainers: `make generate` runs it. A test says so when it was forgotten.
"""

import argparse
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base import resources
from farm.base.errors import EXITS
from farm.base.yamlfile import Model
from farm.cli.main import COMMANDS, command_parser, parser
from farm.plan.channel_text import ChannelText
from farm.plan.options import OPTIONS
from farm.plan.settings import Settings

OUT = Path(__file__).parent.parent / "docs" / "reference" / "commands.md"
_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

VARIABLES = {
    "NO_COLOR": "no colours",
    "CI": "no live view: progress as lines, as where there is no terminal",
    "DOCKER_HOST": "the Docker engine, also `ssh://…`",
    "PIP_INDEX_URL": "the Python index that sdists and wheels of a build come from, as for pip",
    "AWS_…": "credentials of an index in a bucket: the usual chain of AWS",
    "FARM_GITHUB_TOKEN": "a token, for `--on github` and `farm runners`",
}


MAX_DEFAULT = 60
"""Characters of a default value that is printed."""


def item(text: str) -> str:
    """A list item, wrapped as the prose of the docs is."""
    return textwrap.fill(
        f"- {text}", 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    lines = [head, re.sub(r"[^|]+", "---", head)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def keys(model: type[Model], comments: Path | None = None) -> str:
    """The keys of a YAML file, from the model that reads it; comments of an example file may
    explain them.
    """
    if comments:
        comment = dict(
            re.findall(r"^(\w+): .*?# (.*)$", comments.read_text(encoding="utf-8"), re.MULTILINE)
        )
    else:
        comment = {}
    schema = model.model_json_schema()
    rows = []
    for name, field in schema["properties"].items():
        if name in schema.get("required", []):
            default = ""
        else:
            default = f"default `{_yaml(field.get('default'))}`"
        if not (len(default) < MAX_DEFAULT):
            default = "default in `farm/policy/verify_defaults.yaml`"
        rows.append(
            (
                f"`{name}`",
                _type(field, schema),
                default or "needed",
                field.get("description", comment.get(name, "")),
            )
        )
    return "".join(
        item(f"{key} ({kind}, {default})" + (f": {what}" if what else "")) + "\n"
        for key, kind, default, what in rows
    )


def _yaml(value: Any) -> str:
    # Not by a dictionary: 1 is equal to True there.
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)


def _type(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """`text`, `list of text`, `text or null`, a list of words, or the name of a model."""
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        other = schema["$defs"][name]
        if "enum" in other:
            return " or ".join(f"`{word}`" for word in other["enum"])
        return name
    if "enum" in field:
        words = field["enum"]
        if len(words) <= 8:
            return " or ".join(f"`{word}`" for word in words)
        return f"one of {len(words)} words"
    if "const" in field:
        return f"`{field['const']}`"
    for union in ("anyOf", "oneOf"):
        if union in field:
            return " or ".join(dict.fromkeys(_type(one, schema) for one in field[union]))
    kind = field.get("type")
    if kind == "array":
        return f"list of {_type(field.get('items', {}), schema)}"
    if kind == "object":
        # With a pattern for its keys, a mapping has `patternProperties`.
        more = field.get("additionalProperties") or next(
            iter(field.get("patternProperties", {}).values()), None
        )
        return f"mapping to {_type(more, schema)}" if more else "mapping"
    return {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
    }.get(str(kind), "null" if kind == "null" else "value")


def commands() -> str:
    """Every command and subcommand with its line of help."""
    top = parser()
    found = [
        row for name in COMMANDS for row in _commands(command_parser(top, name), COMMANDS[name])
    ]
    return "".join(item(f"{name}: {what}") + "\n" for name, what in found)


def _commands(one: argparse.ArgumentParser, text: str) -> Iterator[tuple[str, str]]:
    yield f"`{one.prog}`", text
    for action in one._actions:  # argparse has no public way to list its subcommands
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, each in action.choices.items():
                yield from _commands(each, helps[name] or name)


def _gpus() -> str:
    known = catalog.architectures()
    rows = [
        (f"`{sm}`", f"{one.name}, such as {one.example}") for sm, one in known.architectures.items()
    ]
    rows += [
        (f"`{word}`", f"all of {' '.join(f'`{sm}`' for sm in sms)}")
        for word, sms in known.sets.items()
    ]
    return table("| word | GPUs |", rows)


def _cpus() -> str:
    levels = catalog.cpu_levels()
    return table(
        "| word | flags of gcc |",
        [
            (f"`{name}`", f"`{' '.join(level.gcc)}`" if level.gcc else "none")
            for name, level in levels.items()
        ],
    )


def _environment() -> str:
    rows = [
        (
            "`FARM_OPTION`",
            f"the option of that name: {', '.join(one.variable for one in OPTIONS.values())}",
        )
    ]
    return table(
        "| variable | what |", [*rows, *((f"`{name}`", text) for name, text in VARIABLES.items())]
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "gpus": _gpus,
    "cpus": _cpus,
    "channel": lambda: keys(ChannelText),
    "settings": lambda: keys(Settings, resources.EXAMPLE / "ci" / "farm.yaml"),
    "environment": _environment,
    "exit-codes": lambda: table(
        "| code | what |", [(str(int(code)), text) for code, text in EXITS.items()]
    ),
    "commands": commands,
}


def written(text: str) -> str:
    """The page's `text` with the current tables."""
    return _BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}{found[3]}", text)


def main() -> None:
    options = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").partition("\n")[0]
    )
    options.add_argument("--out", type=Path, default=OUT)
    options.parse_args().out.write_text(written(OUT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
