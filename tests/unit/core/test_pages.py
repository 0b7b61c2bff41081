"""README, CHANGELOG and docs/: links lead somewhere, pages stay short, and what they install is
there.
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


@pytest.mark.parametrize(
    ("pages", "most"),
    [
        ([ROOT / "README.md"], 1_160),
        ([ROOT / "docs" / "k40-in-ten-minutes.md"], 860),
        ([ROOT / "CHANGELOG.md"], 400),
        (DOCS, 23_500),
    ],
    ids=["README", "K40", "CHANGELOG", "docs"],
)
def test_pages_stay_short(pages, most):
    # The bars and rules of tables are no words: a table is to be no dearer than a paragraph of
    # figures.
    words = [
        word
        for page in pages
        for word in page.read_text(encoding="utf-8").split()
        if word.strip("|-:")
    ]
    assert len(words) <= most


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
