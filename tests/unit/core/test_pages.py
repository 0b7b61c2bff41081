"""README, CHANGELOG and docs/: links lead to a file and a heading, prose is wrapped, and what
they install exists.
"""

import re
import shlex
from pathlib import Path

import pytest

from farm.cli.main import main

ROOT = Path(__file__).parents[3]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page):
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped_at_100_characters(page):
    """Tables, code, addresses and words that cannot be split are as long as they are."""
    text = re.sub(
        r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    prose = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "<"))]
    assert [line for line in prose if len(line) > 100 and " " in line[:100].strip()] == []


def test_no_page_installs_a_name_that_no_index_has():
    """Whoever registers it would run code on every reader's machine."""
    for path in [*PAGES, *(ROOT / "farm" / "cli" / "example").rglob("*.md")]:
        found = re.search(
            r"(?:uv tool|pipx?|uv pip) install (?:-\S+ )*'?torch-farm",
            path.read_text(encoding="utf-8"),
        )
        assert found is None, (path, found)


def test_the_sample_of_why_is_what_it_prints(capsys):
    [(command, lines)] = re.findall(
        r"^\$ farm (why --variant .*)\n((?:.*\n)*?)```",
        (ROOT / "README.md").read_text(),
        re.MULTILINE,
    )
    assert main(["--project", str(ROOT), *shlex.split(command)]) == 3
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in lines.splitlines() if line != "…" and line not in printed] == []
