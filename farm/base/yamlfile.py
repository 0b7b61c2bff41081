"""YAML files read into checked models; an error names the file, the line and the likely intended
key.

YAML is untrusted: only plain data is built, files and their nesting are bounded, aliases (which can
blow up when copied) and duplicate keys (where the last one silently wins) are refused.
"""

import errno
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from farm.base.errors import UsageError, unreadable
from farm.base.safe_files import read_small
from farm.base.text import MAX_SHORT, nearest, short

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FOLDER = Path(__file__).parents[1]
MAX_BYTES = 4 << 20
# libyaml's composer recurses on the C stack: deep nesting would crash the process.
MAX_DEPTH = 50
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"

_NO_DIGIT = re.compile(r"\D")
_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(_TAG + name for name in ("map", "seq", "str", "int", "float", "bool", "null"))


class Model(BaseModel):
    """Base of everything that is read from a file: immutable, unknown keys refused, no silent
    conversion.
    """

    old_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier releases, each with its name of today: they are read, with a warning."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )


def pattern(expression: str, meaning: str) -> Any:
    """A field's pattern, and what an error says of a value that does not match: `'…' is not` and
    the meaning.
    """
    MEANINGS[expression] = meaning
    return Field(pattern=expression)


def word_of(
    kind: str,
    known: Callable[[], Sequence[str]],
    meant: Callable[[str], Sequence[str]] = lambda _: (),
) -> WrapValidator:
    """Refuses a word that is none of `known`; the nearest are named. An unquoted 3.5 is a word,
    too: of `sm35`.
    """

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> str:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        word = str(value) if number else handler(value)
        names = list(known())
        if word in names:
            return word
        near = list(meant(word)) or _of_same_digits(word, names) or nearest(word, names)
        if near:
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        else:
            hint = f"known: {', '.join(names)}"
        text = f"unknown {kind} {word!r}; {hint}"
        raise PydanticCustomError("unknown_word", "{text}", {"text": text})

    return WrapValidator(check)


def _of_same_digits(word: str, names: Sequence[str]) -> list[str]:
    """Return the names with the digits of a word: `sm35` for `35` and `3.5`."""
    digits = _NO_DIGIT.sub("", word)
    if not digits:
        return []
    return [name for name in names if _NO_DIGIT.sub("", name) == digits]


M = TypeVar("M", bound=BaseModel)


def load(path: Path, model: type[M]) -> M:
    """Read the YAML file `path` into `model`; UsageError: it is absent, not YAML, or not of the
    model's shape.
    """
    raw = read_bounded(path)
    if is_packaged(path):
        try:
            return model.model_validate(yaml.load(raw, Loader=Loader))  # noqa: S506 a safe loader
        except (yaml.YAMLError, ValidationError, ValueError):
            pass  # the error is raised below
    return checked(path, raw, model)


def is_packaged(path: Path) -> bool:
    """True if it is a file of the package: a test checks those, what others write is checked each
    time.
    """
    return path.is_relative_to(FOLDER)


def plain(path: Path) -> Any:
    """The plain data of a YAML file of the package, whose shape a test knows."""
    return yaml.load(path.read_bytes(), Loader=Loader)  # noqa: S506 a safe loader


def read_bounded(path: Path) -> bytes:
    """The bytes of a YAML file.

    Raises:
        UsageError: it cannot be read, is a folder, a pipe or a device, or larger than MAX_BYTES.
    """
    try:
        return read_small(path, MAX_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UsageError(f"{path}: {error.strerror}") from error
        raise unreadable(path, error) from error


def checked(path: Path, raw: bytes, model: type[M]) -> M:
    """As `load`, of text that may be written to `path` later."""
    try:
        text = raw.decode("utf-8")
        data, node = document(text, path, model)
    except yaml.YAMLError as error:
        raise UsageError(_yaml_fault(path, text, error)) from error
    except UnicodeDecodeError as error:
        line_number = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line_number}: not UTF-8 text") from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise UsageError("\n".join(explain(path, node, model, error))) from error


def _yaml_fault(path: Path, text: str, error: yaml.YAMLError) -> str:
    """Return `file:line: why it is not YAML`."""
    place = str(path)
    mark = getattr(error, "problem_mark", None)
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        place = f"{path}:{line}"
    elif mark:
        place = f"{path}:{mark.line + 1}"
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if "nesting depth" in problem:
        # The libyaml of PyYAML 6.0.4 has a limit of its own, and its scanner reads far ahead.
        return f"{place}: {TOO_DEEP}"
    if mark and text[mark.index : mark.index + 1] == "\t":
        problem = "a tab; indent with spaces"
    return f"{place}: not valid YAML: {problem}"


def document(text: str, path: Path, model: type[BaseModel] | None = None) -> tuple[Any, yaml.Node]:
    """Plain data out of YAML text, and the node that it came from, for the lines of what a model
    refuses.

    UsageError: aliases, duplicate keys, deep nesting, values that JSON does not have;
    yaml.YAMLError: it is not YAML.
    """
    _check_events(text, path)
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
            raise UsageError(f"{path}: empty")
        if model is not None:
            _rename_old_keys(node, path, [model], text.splitlines())
        _check_nodes(node, path, loader)
        return loader.construct_document(node), node
    finally:
        loader.dispose()


def where(path: Path, *loc: int | str) -> str:
    """`file:line` of what is at `loc` in a file that `load` took, for checks that a model cannot
    make.
    """
    loader = Loader(read_bounded(path).decode("utf-8"))
    try:
        return f"{path}:{find(loader.get_single_node(), loc)[0]}"
    finally:
        loader.dispose()


def _check_events(text: str, path: Path) -> None:
    """Refuse aliases and deep nesting, before anything recurses."""
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        line = event.start_mark.line + 1 if event.start_mark else "?"
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(f"{path}:{line}: YAML aliases are not supported")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise UsageError(f"{path}:{line}: {TOO_DEEP}")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_nodes(node: yaml.Node, path: Path, loader: Any) -> None:
    """Refuse duplicate keys, keys that are no words, and every kind of value that JSON does not
    have.
    """
    line = node.start_mark.line + 1
    if node.tag not in _PLAIN:
        kind = node.tag.removeprefix(_TAG)
        raise UsageError(
            f"{path}:{line}: a value of kind {kind!r} is not supported; write text in quotes"
        )
    if isinstance(node, yaml.MappingNode):
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UsageError(f"{path}:{line}: a key must be a word")
            if key.value in first_lines:
                raise UsageError(
                    f"{path}:{line}: key {key.value!r} appears twice (first on line "
                    f"{first_lines[key.value]})"
                )
            first_lines[key.value] = line
            _check_nodes(key, path, loader)
            _check_nodes(value, path, loader)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_nodes(item, path, loader)
    else:
        if "\0" in node.value:  # written as "\0": neither paths nor variables can hold it
            raise UsageError(f"{path}:{line}: a character 0 is in the text {short(node.value)!r}")
        try:
            loader.construct_object(node)
        except (
            ValueError,
            KeyError,
        ) as error:  # such as `0b_`, which looks like a number and is none
            kind = node.tag.removeprefix(_TAG)
            raise UsageError(f"{path}:{line}: {node.value[:40]!r} is not a valid {kind}") from error


def warn(text: str) -> None:
    """Tell the user something about a file that was read."""
    print(f"warning: {text}", file=sys.stderr)


def _rename_old_keys(
    node: yaml.Node, path: Path, models: list[type[BaseModel]], lines: list[str]
) -> None:
    """Give keys of earlier releases their name of today, and say how the line is written now."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _rename_old_keys(item, path, models, lines)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        for model in models:
            new = getattr(model, "old_keys", {}).get(key.value)
            if new is not None:
                number = key.start_mark.line
                line = lines[number].strip().replace(key.value, new, 1)
                warn(f"{path}:{number + 1}: key {key.value!r} is now {new!r}; write: {line}")
                key.value = new
        _rename_old_keys(value, path, _models_below(models, key.value), lines)


MEANINGS: dict[str, str] = {}  # patterns in words; `farm.base.yamlfile.pattern` adds to it


Loc = tuple[int | str, ...]
"""A place in a document, as pydantic names it: keys, and numbers of items."""


def explain(
    path: Path, root: yaml.Node, model: type[BaseModel], error: ValidationError
) -> list[str]:
    """Each mistake in the data of the node `root` as `file:line: what is wrong`, in the order of
    the lines.
    """
    texts: dict[Loc, str] = {}
    meant: set[Loc] = set()
    other_problems = []
    for problem in error.errors():
        if problem["type"] != "extra_forbidden":
            other_problems.append(problem)
            continue
        *folder, name = problem["loc"]
        field_names = sorted(_fields_at(model, tuple(folder)))
        near = nearest(str(name), field_names)
        if near:
            meant.add((*folder, near[0]))
            hint = f"did you mean {near[0]!r}?"
        else:
            hint = f"known here: {', '.join(field_names)}"
        texts[problem["loc"]] = f"unknown key {_dotted(problem['loc'])!r}; {hint}"
    for problem in other_problems:
        # A required key that was misspelt is one mistake.
        if problem["type"] == "missing" and problem["loc"] in meant:
            continue
        _, node, at = find(root, problem["loc"])
        # Of a value that may be of several types, what keeps it from being the first of them.
        texts.setdefault(at, _mistake(problem, node, at))
    placed = [(find(root, loc)[0], text) for loc, text in texts.items()]
    return [f"{path}:{line}: {text}" for line, text in sorted(placed)]


def _mistake(problem: ErrorDetails, node: yaml.Node, at: Loc) -> str:
    """What is wrong with the value of a node: `key.below: why`."""
    number = problem["input"]
    if problem["type"] != "string_type" or not isinstance(number, int | float):
        return _joined(at, _message(problem))
    # The word as it is written: 11.10 would be shown as 11.1.
    word = node.value
    if at[-1] == "[key]":
        word = at[-2]
    kind = "a number"
    if isinstance(number, bool):
        kind = "a truth value"
    return f'{_dotted(at)}: {word} is {kind} here; write it in quotes: "{word}"'


def _joined(loc: Loc, message: str) -> str:
    return ": ".join(filter(None, [_dotted(loc), message]))


def _dotted(loc: Loc) -> str:
    return ".".join(str(part) for part in loc if part != "[key]")


def first_fault(error: ValidationError) -> str:
    """The first mistake in data that is not YAML, such as a plan: `key.below: what is wrong`."""
    first = error.errors()[0]
    return _joined(first["loc"], _message(first))


def _message(problem: ErrorDetails) -> str:
    """The error of a value, in words."""
    kind = problem["type"]
    context = problem.get("ctx", {})
    texts = plain(Path(__file__).with_name("yaml_errors.yaml"))
    if kind in texts:
        return str(texts[kind]).format(**context).replace("least 1 entries", "least one entry")
    if kind == "string_pattern_mismatch":
        meaning = MEANINGS.get(context["pattern"])
        if meaning:
            expectation = f"is not {meaning}"
        else:
            expectation = f"must match {context['pattern']}"
        return f"{problem['input'][:MAX_SHORT]!r} {expectation}"
    if kind in ("literal_error", "union_tag_invalid"):
        # Both hold the words as Python writes them, in quotes.
        words = re.findall(r"'([^']*)'", context.get("expected", context.get("expected_tags", "")))
        word = short(context.get("tag", problem["input"]))
        near = nearest(word, words)
        if near:
            hint = f"did you mean {near[0]!r}?"
        else:
            hint = f"known: {', '.join(words)}"
        return f"unknown word {word!r}; {hint}"
    msg = str(problem["msg"]).removeprefix("Value error, ")
    value = problem["input"]
    if kind == "value_error" and isinstance(value, str) and value not in msg:
        return f"{short(value)!r}: {msg}"
    return msg


def find(node: yaml.Node, loc: Loc) -> tuple[int, yaml.Node, Loc]:
    """The line and node of a pydantic location, which may end in a missing key, and it without the
    tags of unions.
    """
    line = node.start_mark.line + 1
    parents = []
    for part in loc:
        inner = _inside(node, part)
        if inner:
            line, node = inner
        if inner or part == "[key]" or (part == loc[-1] and isinstance(node, yaml.MappingNode)):
            parents.append(part)
    return int(line), node, tuple(parents)


def _inside(node: yaml.Node, part: int | str) -> tuple[int, yaml.Node] | None:
    """The line and the node of one key of a mapping, or of one item of a list."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item.start_mark.line + 1, item
    return None


def _fields_at(model: type[BaseModel], loc: Loc) -> set[str]:
    """Names of the fields of the models that may be at `loc` (through lists, mappings and unions of
    models).
    """
    models = [model]
    for part in loc:
        models = _models_below(models, str(part))
    names = set()
    for candidate in models:
        for name, field in candidate.model_fields.items():
            names.add(field.alias or name)
    return names


def _models_below(models: list[type[BaseModel]], key: str) -> list[type[BaseModel]]:
    """The models that may be below a key of `models`; the same ones, where none is."""
    inner: list[type[BaseModel]] = []
    for model in models:
        field = model.model_fields.get(key)
        if field is not None:
            inner += _models_in(field.annotation)
    return inner or models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    models = []
    for inner in getattr(annotation, "__args__", ()):
        models += _models_in(inner)
    return models
