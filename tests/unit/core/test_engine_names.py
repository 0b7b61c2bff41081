"""No module compares an engine's name: engines have traits (farm/engines/base.py)."""

import ast
from pathlib import Path
from typing import get_args

from farm.engines import NAMES
from farm.plan.settings import FOUND_BY, Runner
from farm.run.backends import ENGINES
from tools import engine_table

ROOT = Path(__file__).parents[3]
OTHERS = ("form", "args.format")
"""A format of `farm matrix`: no engine of `--on`."""


def compared(path):
    """(line, text) of comparisons with the name of an engine."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (node.lineno, ast.unparse(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and ast.unparse(node.left) not in OTHERS
        if any(
            isinstance(side, ast.Constant) and side.value in ENGINES
            for side in (node.left, *node.comparators)
        )
    ]


def test_no_module_compares_an_engines_name():
    found = {}
    for path in sorted((ROOT / "farm").rglob("*.py")):
        name = path.relative_to(ROOT / "farm").as_posix()
        hits = [] if name.startswith("recipes/") else compared(path)
        found |= {name: hits} if hits else {}
    assert found == {}, "ask the engine's traits"


def test_a_comparison_with_an_engines_name_is_found(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("if on == 'swarm' or form == 'github':\n    pass\n")
    assert compared(file) == [(1, "on == 'swarm'")]


def test_each_engine_of_the_runners_file_exists_and_says_how_its_runners_are_found():
    assert (
        set(get_args(Runner.model_fields["engine"].annotation)) == FOUND_BY.keys() <= ENGINES.keys()
    )


def test_the_words_of_on_are_the_engines_and_so_are_the_rows_of_the_page():
    assert set(NAMES) == set(ENGINES)
    page = engine_table.OUT.read_text(encoding="utf-8")
    assert engine_table.written(page) == page, "make generate"
    assert all(f"| `{name}` |" in page for name in NAMES)
