"""Errors in YAML files with their lines, in the words of YAML: pydantic's errors speak of Python."""

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from farm.base.text import nearest, short

MEANINGS: dict[str, str] = {}
"""Patterns in words; `farm.base.yamlfile.pattern` adds to it."""


def explain(path: Path, root: yaml.Node, model: type[BaseModel], error: ValidationError) -> list[str]:
    """Each mistake as `file:line: what is wrong`, in the order of the lines.

    `root` is the node of the whole file, `error` what `model` said of its data.
    """
    lines: dict[tuple[int | str, ...], str] = {}
    meant: set[tuple[int | str, ...]] = set()
    problems = error.errors()
    for problem in problems:
        if problem["type"] == "extra_forbidden":
            *folder, name = problem["loc"]
            known = sorted(_fields_at(model, tuple(folder)))
            near = nearest(str(name), known)
            meant.update((*folder, other) for other in near[:1])
            hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
            lines[problem["loc"]] = f"unknown key {_dotted(problem['loc'])!r}; {hint}"
    for problem in problems:
        # A required key that was misspelt is one mistake.
        if problem["type"] == "extra_forbidden" or (problem["type"] == "missing" and problem["loc"] in meant):
            continue
        _, node, at = find(root, problem["loc"])
        text = ": ".join(part for part in (_dotted(at), _said(problem)) if part)
        if problem["type"] == "string_type" and isinstance(problem["input"], int | float):
            # the word as it is written: 11.10 would be shown as 11.1
            word = str(at[-2]) if at[-1] == "[key]" else node.value
            kind = "a truth value" if isinstance(problem["input"], bool) else "a number"
            text = f'{_dotted(at)}: {word} is {kind} here; write it in quotes: "{word}"'
        # Of a value that may be of several types, what keeps it from being the first of them.
        lines.setdefault(at, text)
    placed = sorted((find(root, loc)[0], text) for loc, text in lines.items())
    return [f"{path}:{line}: {text}" for line, text in placed]


def _dotted(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc if part != "[key]")


_NEEDED = {
    "dict_type": "keys and values are needed here, such as {key: value}",
    "model_type": "keys and values are needed here, such as {key: value}",
    "model_attributes_type": "keys and values are needed here, such as {key: value}",
    "list_type": "a list is needed here, such as [one, two]",
    "string_type": "text is needed here",
    "int_type": "a whole number is needed here",
    "float_type": "a number is needed here",
    "finite_number": "a number is needed here",
    "bool_type": "true or false is needed here",
    "missing": "this key is missing",
}
"""By kind of error, what to write, in the words of YAML and not of Python."""


def _said(problem: ErrorDetails) -> str:
    """The error of a value, in words."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in _NEEDED:
        return _NEEDED[kind]
    if kind == "union_tag_not_found":
        return f"the key {context['discriminator']} is missing"
    if kind == "string_pattern_mismatch" and (meaning := MEANINGS.get(context["pattern"])):
        return f"{short(problem['input'])!r} is not {meaning}"
    if kind in ("literal_error", "union_tag_invalid"):
        # Both hold the words as Python writes them, in quotes.
        words = re.findall(r"'([^']*)'", context.get("expected", context.get("expected_tags", "")))
        word = short(context.get("tag", problem["input"]))
        near = nearest(word, words)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(words)}"
        return f"unknown word {word!r}; {hint}"
    return str(problem["msg"]).removeprefix("Value error, ")


def find(node: yaml.Node, loc: tuple[int | str, ...]) -> tuple[int, yaml.Node, tuple[int | str, ...]]:
    """The line and the node of a pydantic location, and the location without the parts that name no key: unions' tags.

    The last part may name a key that is missing.
    """
    line, found = node.start_mark.line + 1, []
    for part in loc:
        inner = _inside(node, part)
        if inner:
            line, node = inner
        if inner or part == "[key]" or (part == loc[-1] and isinstance(node, yaml.MappingNode)):
            found.append(part)
    return int(line), node, tuple(found)


def _inside(node: yaml.Node, part: int | str) -> tuple[int, yaml.Node] | None:
    """The line and the node of one key of a mapping, or of one item of a list."""
    if isinstance(node, yaml.MappingNode):
        return next(((key.start_mark.line + 1, value) for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    return None


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> set[str]:
    """Names of the fields of the models that may be at `loc` (through lists, mappings and unions of models)."""
    models = [model]
    for part in loc:
        fields = [m.model_fields[str(part)] for m in models if str(part) in m.model_fields]
        models = [found for field in fields for found in _models_in(field.annotation)] or models
    return {field.alias or name for m in models for name, field in m.model_fields.items()}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in getattr(annotation, "__args__", ()) for found in _models_in(inner)]
