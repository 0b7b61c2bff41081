"""docs/reference/commands.md follows from the code."""

import re
import tomllib

from farm.base.errors import EXITS, ExitCode
from farm.cli.main import COMMANDS
from farm.plan.settings import Settings
from tools.reference import OUT, written


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)\n", OUT.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_reference_is_that_of_the_code():
    text = OUT.read_text(encoding="utf-8")
    assert text == written(text), "run `make generate`"


def test_texts_are_filled_in():
    """argparse replaces `%(default)s` in what it prints; a page has to do the same."""
    assert "%(" not in OUT.read_text(encoding="utf-8")


def test_every_word_of_a_variant_is_explained():
    rows = [
        line.split(" | ") for line in sections()["Variants"].splitlines() if line.startswith("| `")
    ]
    assert len(rows) > 20
    assert [row for row in rows if row[1].strip(" |`") == ""] == []


def test_every_command_key_and_exit_code_is_there():
    found = sections()
    assert all(f"- `farm {name}`: " in found["Commands"] for name in COMMANDS)
    assert all(f"- `{key}` (" in found["Configuration"] for key in Settings.model_fields)
    assert all(f"| {int(code)} |" in found["Exit codes"] for code in EXITS)
    assert set(ExitCode) <= set(EXITS)


def test_the_extras_that_docs_name_exist():
    root = OUT.parents[2]
    there = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    texts = [
        *root.glob("farm/**/*.py"),
        *root.glob("farm/*.yaml"),
        *root.glob("docs/**/*.md"),
        root / "README.md",
    ]
    named = {
        name
        for path in texts
        for name in re.findall(
            r"(?:torch-farm|install .\.)\[(\w+)\]", path.read_text(encoding="utf-8")
        )
    }
    assert "fast" in named  # the README's, so that the search finds something
    assert named <= there.keys()
