"""Every name and text from outside is one line of printable text where it is shown; a test for each
place.
"""

import ast
from types import SimpleNamespace

import pytest

from farm.base.errors import UsageError
from farm.cli import show
from farm.cli.logs import lines
from farm.cli.progress import LogWatcher, Position, TerminalWatcher
from farm.engines.transfer import RefusedOutputError, unpack, unpack_zip
from farm.run.workspace import Outcomes, Step
from tests.unit.core.test_transfer import tar

FORGED = "farm: PUBLISHED torch==9"
NAME = f"x\n{FORGED}\r{FORGED}\u2028{FORGED}\x1b]0;t\x07\x1b[2J\u202e\u2066\x9b31mend"


def logged(*calls):
    watcher = LogWatcher(verbose=True)
    with watcher:
        for call in calls:
            call(watcher)


def viewed():
    """Drawn by Rich on a file: the same lines as on a terminal."""
    watcher = TerminalWatcher()
    try:
        watcher.step("build")
        watcher.line(NAME)
        watcher.ended(Step("build", 1.0, "done", NAME))
        show.note(Position().output(0) or "")
    finally:
        watcher.close()


PLACES = {
    "say": lambda: show.say(NAME),
    "note": lambda: show.note(NAME),
    "an error": lambda: show.explain(
        UsageError(f"the wheel {NAME} is wrong", hint=f"remove {NAME}")
    ),
    "an error that is its name": lambda: show.explain(UsageError(NAME)),
    "a table": lambda: show.table(NAME, ("name", "text"), [(NAME, NAME)]),
    "a table that Rich draws": lambda: show.table(
        NAME, ("name", "text"), [(f"\u4e2d{NAME}", NAME)]
    ),
    "the end of a run": lambda: show.outcomes(
        Outcomes([Step(NAME, 1.0, "done", NAME)], run=NAME, wheel=NAME, pip_line=NAME)
    ),
    "the end of a run without pip": lambda: show.outcomes(Outcomes([], run=NAME, wheel=NAME)),
    "a log for CI": lambda: logged(
        lambda w: w.step(NAME),
        lambda w: w.line(NAME),
        lambda w: w.note(NAME),
        lambda w: w.ended(Step(NAME, 1, "done", NAME)),
    ),
    "a live view": viewed,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_name_forges_no_line(place, capsys):
    PLACES[place]()
    out, err = capsys.readouterr()
    assert "x" in out + err
    for line in (out + err).splitlines():  # splits where any program would
        assert not line.startswith(FORGED), line
        assert line.isprintable(), line


def test_control_characters_of_a_build_log_are_removed(tmp_path, capsys):
    log = tmp_path / "build.log"
    log.write_text(f"{NAME}\n")
    ended = SimpleNamespace(id="r", finished="now")
    for line in lines(SimpleNamespace(run=lambda _: ended), ended, log, follow=False):
        show.say(line)
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_output_with_control_characters_in_its_name_is_refused(tmp_path):
    with pytest.raises(RefusedOutputError, match="cannot be printed"):
        unpack([tar((f"out/{NAME}.whl", b"1"))], tmp_path / "tar", 1 << 20)
    archive = tmp_path / "x.zip"
    import zipfile

    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("x\ny.whl", "1")
    with pytest.raises(RefusedOutputError, match="cannot be printed"):
        unpack_zip(archive, tmp_path / "zip", 1 << 20)
    assert not list(tmp_path.rglob("*.whl"))


SAFE_CALLS = {"dumps", "to_json", "shellcode"}
"""What prints data as JSON, and argcomplete's script; `show.py` has the one function for all else.
"""


def test_every_command_prints_through_one_function(root):
    """A text in `print(f"…{name}…")` would be shown as it is."""
    found = []
    for path in (root / "farm/cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print" and node.args:
                (text, *_) = node.args
                own = isinstance(text, ast.Constant) or (
                    isinstance(text, ast.Call)
                    and getattr(text.func, "attr", getattr(text.func, "id", "")) in SAFE_CALLS
                )
                if not own and path.name != "show.py":
                    found.append(f"{path.name}:{node.lineno}")
    assert found == []
