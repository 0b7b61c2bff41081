"""The page on compatibility names every rule, and no other."""

import re
from pathlib import Path

from farm import catalog
from farm.plan.compat import rules

PROJECT = Path(__file__).parents[3]


def test_every_rule_is_on_the_page():
    source = "".join(path.read_text() for path in Path(rules.__file__).parent.glob("*.py"))
    named = set(re.findall(r'because\(\s*"([a-z0-9-]+)"', source))
    named |= set(catalog.words())
    named |= {f"switch-{name[4:].lower().replace('_', '-')}" for name in catalog.switches()}
    page = (PROJECT / "docs" / "reference" / "compatibility.md").read_text()
    table = page.split("## The rules")[1].split("## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`([a-z0-9-]+)`", " ".join(first_cells))) == named
    assert len(named) > 30


def test_the_number_of_official_rows_is_the_catalogues():
    releases = catalog.torch_releases().values()
    rows = sum(
        len(one.official) * len(one.pythons.on(name))
        for one in releases
        for name in ("linux", "windows")
    )
    page = (PROJECT / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
    assert f"({len(releases)} releases, {rows} rows)" in page
