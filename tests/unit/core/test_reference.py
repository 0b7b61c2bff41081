"""docs/reference.md follows from the code, and `farm help` prints it."""

import re
import tomllib

import pytest

from farm.base.errors import EXITS, ExitCode
from farm.cli.help import PAGES, sections
from farm.cli.main import COMMANDS, main
from farm.plan.settings import Settings
from tools.reference import OUT, written


def test_the_reference_is_that_of_the_code():
    text = OUT.read_text(encoding="utf-8")
    assert text == written(text), "run `make generate`"


def test_texts_are_filled_in():
    """argparse replaces `%(default)s` in what it prints; a page has to do the same."""
    assert "%(" not in OUT.read_text(encoding="utf-8")


def test_every_word_of_a_variant_is_explained():
    rows = [line.split(" | ") for line in sections()["variants"].splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert [row for row in rows if row[1].strip(" |`") == ""] == []


def test_every_command_key_and_exit_code_is_there():
    found = sections()
    assert all(f"- `farm {name}`: " in found["commands"] for name in COMMANDS)
    assert all(f"- `{key}` (" in found["configuration"] for key in Settings.model_fields)
    assert all(f"| {int(code)} |" in found["exit-codes"] for code in EXITS)
    assert set(ExitCode) <= set(EXITS)


def test_extras_that_users_are_told_to_install_are_there():
    root = OUT.parents[1]
    there = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    texts = [*root.glob("farm/**/*.py"), *root.glob("farm/*.yaml"), *root.glob("docs/**/*.md"), root / "README.md"]
    named = {
        name
        for path in texts
        for name in re.findall(r"(?:torch-farm|install .\.)\[(\w+)\]", path.read_text(encoding="utf-8"))
    }
    assert "fast" in named  # the README's, so that the search finds something
    assert named <= there.keys()


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("variants", "sm35 "),
        ("variant", "sm35 "),
        ("exit-codes", "verification failed"),
        ("Exit codes", "verification failed"),
        ("channels", "extends ("),
        ("environment", "FARM_CUDA"),
        ("plan", "usage: farm plan"),
        ("plan", "A plan is one build"),
        ("submit", "--no-publish"),
        ("verify", "usage: farm verify"),
        *((name, "\n") for name in PAGES),
    ],
)
def test_help_prints_a_topic_or_a_command(capsys, topic, said):
    assert main(["help", topic]) == 0
    out = capsys.readouterr().out
    assert said in out
    assert "<!--" not in out


def test_help_lists_its_topics(capsys):
    assert main(["help"]) == 0
    out = capsys.readouterr().out
    lines = [line.split(maxsplit=1) for line in out.splitlines() if line.startswith("  ")]
    assert [name for name, *text in lines if text] == [*sections(), *PAGES]


def test_help_of_a_command_of_several_words(capsys):
    assert main(["help", "index", "key", "rotate"]) == 0
    assert "usage: farm index key rotate" in capsys.readouterr().out
    assert main(["help", "exit", "codes"]) == 0
    assert "verification failed" in capsys.readouterr().out
    assert main(["help", "index", "yink"]) == 2
    assert "no topic 'index yink'" in capsys.readouterr().err
    assert main(["help", "plan", "sm35"]) == 2


def test_an_unknown_topic_is_answered_with_the_nearest(capsys):
    assert main(["help", "exit-cods"]) == 2
    assert "did you mean: exit-codes" in capsys.readouterr().err
