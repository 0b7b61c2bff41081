"""Names that say nothing (`found`, `each`, `known`) are not given to variables of the packages that
are clean of them. A package joins `CLEAN` when its last one is gone.
"""

import ast
from pathlib import Path

import pytest

FARM = Path(__file__).parents[3] / "farm"
VAGUE = frozenset(
    [
        "found",
        "known",
        "own",
        "each",
        "one",
        "there",
        "here",
        "given",
        "wanted",
        "held",
        "seen",
        "behind",
        "below",
        "beside",
        "ours",
        "theirs",
        "left",
        "lost",
        "gone",
        "more",
        "made",
        "told",
        "said",
        "asked",
        "apart",
        "others",
        "other",
        "further",
        "chosen",
        "named",
        "listed",
        "taken",
        "handed",
        "kept",
        "noted",
        "shown",
        "settled",
        "judged",
        "it",
        "its",
        "them",
        "rest",
        "what",
        "whole",
        "again",
    ]
)
CLEAN = [
    "base",
    "catalog",
    "cli",
    "engines",
    "index",
    "machine",
    "plan",
    "platforms",
    "run",
    "site",
    "smoke",
    "wheel",
]


def vague_names(source):
    """(line, name) of each variable with such a name, parameters and fields of classes left out."""
    tree = ast.parse(source)
    fields = {
        statement.target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    return [
        (node.lineno, node.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node not in fields
        and node.id.strip("_") in VAGUE
    ]


@pytest.mark.parametrize("package", CLEAN)
def test_variables_have_names_that_say_what_they_hold(package):
    vague = {}
    for path in sorted((FARM / package).rglob("*.py")):
        names = vague_names(path.read_text(encoding="utf-8"))
        if names:
            vague[path.relative_to(FARM).as_posix()] = names
    assert vague == {}


def test_a_vague_variable_name_is_found():
    assert vague_names("wheels = 1\nfor each in wheels:\n    _found = each\n") == [
        (2, "each"),
        (3, "_found"),
    ]
