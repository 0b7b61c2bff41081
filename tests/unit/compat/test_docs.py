"""The page on compatibility names every rule, and no other."""

import re
from pathlib import Path

from farm import catalog

PROJECT = Path(__file__).parents[3]


def test_every_rule_is_on_the_page():
    sources = "".join(path.read_text() for path in (PROJECT / "farm" / "plan" / "compat").glob("*.py"))
    rules = set(re.findall(r'Reason\(\s*"([a-z0-9-]+)"', sources))
    rules |= {f"switch-{name[4:].lower().replace('_', '-')}" for name in catalog.switches()}
    page = (PROJECT / "docs" / "compatibility.md").read_text()
    table = page.split("## The rules")[1].split("## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`([a-z0-9-]+)`", " ".join(first_cells))) == rules
    assert len(rules) > 30


def test_the_table_of_official_rows_counts_the_catalogues():
    page = (PROJECT / "docs" / "compatibility.md").read_text(encoding="utf-8").split("## Every official row")[1]
    table = re.findall(r"^\| (\S+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page.split("\n## ")[0], re.MULTILINE)
    counted: dict[str, list[int]] = {}
    for name, release in catalog.torch_releases().items():
        read = sum(wheel.torch == name and wheel.sha256 is not None for wheel in catalog.official_wheels())
        asked = [len(release.official) * len(release.pythons.on(platform)) for platform in ("linux", "windows")]
        for key in (name.rpartition(".")[0], "all"):
            before = counted.get(key, [0, 0, 0, 0])
            found = (1, 2 * len(release.official), sum(asked), read)
            counted[key] = [have + more for have, more in zip(before, found, strict=True)]
    assert {row[0]: [int(number) for number in row[1:]] for row in table} == counted
