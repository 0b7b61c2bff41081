"""The screenshots of the docs: small, shown, and left alone where there is no Chromium."""

import re

import pytest

from tools import screenshots
from tools.screenshots import OUT, ROOT, SHOTS

NAMES = [shot.name for shot in SHOTS]


@pytest.mark.parametrize("name", NAMES)
def test_a_screenshot_is_small_and_shown(name):
    file = OUT / f"{name}.png"
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size < 150_000
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(file.name in page.read_text(encoding="utf-8") for page in pages)


def test_no_other_screenshot_is_left():
    assert sorted(file.stem for file in OUT.glob("picker-*.png")) == sorted(NAMES)


def test_without_chromium_it_says_so_and_changes_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["screenshots", "--out", str(tmp_path)])
    screenshots.main()
    assert re.search("left as they are, since Chromium is missing", capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []
