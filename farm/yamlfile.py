"""YAML files read into checked models; an error names the file, the line and the likely intended key.

YAML is untrusted: only plain data is built, files are bounded, aliases (which can blow up when copied) and
duplicate keys (where the last one silently wins) are refused.
"""

import difflib
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from farm.errors import UsageError

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_BYTES = 4 << 20


class Model(BaseModel):
    """Base of everything that is read from a file: immutable, unknown keys refused, no silent conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


M = TypeVar("M", bound=BaseModel)


def nearest(name: str, known: list[str] | tuple[str, ...], count: int = 3) -> list[str]:
    """The known names most like `name`, best first; empty when nothing is near."""
    return difflib.get_close_matches(name, known, n=count, cutoff=0.6)


def load(path: Path, model: type[M]) -> M:
    """Read the YAML file `path` into `model`.

    Raises:
        UsageError: The file is absent, not YAML, or does not have the model's shape.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
    try:
        text = raw.decode("utf-8")
        _refuse_aliases(text, path)
        loader = Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise UsageError(f"{path}: empty")
            _refuse_duplicate_keys(node, path)
            data = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UsageError(f"{path}{line}: not valid YAML: {problem}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text") from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise UsageError("\n".join(_explain(path, node, model, error))) from error


def where(path: Path, *loc: int | str) -> str:
    """`file:line` of what stands at `loc` in a file that `load` took, for checks that a model cannot make."""
    loader = Loader(path.read_bytes().decode("utf-8"))
    try:
        return f"{path}:{_line_of(loader.get_single_node(), loc)}"
    finally:
        loader.dispose()


def _refuse_aliases(text: str, path: Path) -> None:
    if "*" not in text:
        return
    for event in yaml.parse(text, Loader=Loader):
        if isinstance(event, yaml.AliasEvent):
            line = event.start_mark.line + 1 if event.start_mark else "?"
            raise UsageError(f"{path}:{line}: YAML aliases are not supported")


def _refuse_duplicate_keys(node: yaml.Node, path: Path) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise UsageError(f"{path}:{line}: key {key.value!r} appears twice (first on line {seen[key.value]})")
            seen[str(key.value)] = line
            _refuse_duplicate_keys(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicate_keys(item, path)


def _explain(path: Path, root: yaml.Node, model: type[BaseModel], error: ValidationError) -> list[str]:
    lines = []
    for problem in error.errors():
        loc = problem["loc"]
        where = ".".join(str(part) for part in loc)
        text = f"{path}:{_line_of(root, loc)}: {where}: {problem['msg']}"
        if problem["type"] == "extra_forbidden":
            known = sorted(_fields_at(model, loc[:-1]))
            near = nearest(str(loc[-1]), known)
            text = f"{path}:{_line_of(root, loc)}: unknown key {where!r}"
            text += f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(known)}"
        lines.append(text)
    return lines


def _line_of(node: yaml.Node, loc: tuple[int | str, ...]) -> int:
    line = node.start_mark.line + 1
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, node = key.start_mark.line + 1, value
                    break
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return int(line)


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> set[str]:
    """Names of the fields of the model that stands at `loc` (through lists and mappings of models)."""
    for part in loc:
        field = model.model_fields.get(str(part))
        found = _model_in(field.annotation) if field else None
        if found:
            model = found
    return {field.alias or name for name, field in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found:
            return found
    return None
