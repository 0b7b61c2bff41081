"""docs/explanation/security.md names a test for each row that says what holds somebody."""

import ast
import re

import pytest

ROW = re.compile(r"^\| .* \| `(tests/[\w/]+\.py)(?:::(\w+))?` \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def page(request):
    return (request.config.rootpath / "docs/explanation/security.md").read_text(encoding="utf-8")


def test_every_row_names_a_test_that_is_there(page, root):
    tables = re.findall(
        r"^\| (?:it tries to|path) \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE
    )
    rows = [row for table in tables for row in table.splitlines()]
    assert len(tables) == 6
    for row in rows:
        if row.endswith("| — |"):
            assert "**not held**" in row, row
            continue
        named = ROW.fullmatch(row)
        assert named, row
        names = {
            node.name
            for node in ast.walk(ast.parse((root / named[1]).read_text()))
            if hasattr(node, "name")
        }
        assert named[2] is None or named[2] in names, row


def test_every_party_names_its_limits(page):
    parties = [part for part in page.split("\n## ")[1:] if "| it tries to |" in part]
    assert all("**Not held" in part for part in parties)
