"""Requirements from outside: one reader, which fails in one way."""

import ast
import inspect
import sys
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement

import farm
from farm.base.requirement import MAX_LENGTH, read_requirement

FARM = Path(farm.__file__).parent
OWN_TEXT = {
    "base/requirement.py",
    "run/needs.py",
}  # the latter reads what a recipe's model has checked


def test_a_requirement_is_read():
    assert (
        str(read_requirement('Foo >=1; python_version < "3.12"'))
        == 'Foo>=1; python_version < "3.12"'
    )


@pytest.mark.parametrize(
    "line", ["", "foo bar", "foo==" + "1" * MAX_LENGTH], ids=["empty", "words", "long"]
)
def test_other_text_is_not_a_requirement(line):
    with pytest.raises(InvalidRequirement):
        read_requirement(line)


def test_deeply_nested_text_is_not_a_requirement():
    line = "foo; " + "(" * 400 + "os_name == 'nt'" + ")" * 400
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 200)  # as for a caller that is deep in the stack
    try:
        with pytest.raises(InvalidRequirement, match="nested too deeply"):
            read_requirement(line)
    finally:
        sys.setrecursionlimit(limit)


def test_only_one_module_parses_requirements():
    """A second reader would have to know about the length and the recursion as well."""
    callers = {
        path.relative_to(FARM).as_posix()
        for path in FARM.rglob("*.py")
        if b"Requirement" in (text := path.read_bytes())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Requirement"
    }
    assert callers == OWN_TEXT
