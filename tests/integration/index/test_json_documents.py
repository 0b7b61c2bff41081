"""What commands print with `--json` is what the shipped schemas say.

What needs an engine (submit, smoke, and runs in status) is held to its schema in
tests/e2e/own_package.
"""

from pathlib import Path

import pytest

from farm.cli.main import main
from tests.faults.campaign import make_wheel
from tests.indexes.keys import write_key
from tests.schemas import valid


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Runs a command in a project of its own; its document, held to the schema."""
    assert main(["init", str(tmp_path / "own")]) == 0
    monkeypatch.chdir(tmp_path / "own")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    capsys.readouterr()

    def run(command: str, *arguments: str, codes: tuple[int, ...] = (0,)):
        code = main([*command.split(), *arguments, "--json"])
        output = capsys.readouterr()
        assert code in codes, (command, output.err)
        return valid(command, output.out)

    return run


HELLO = ("--variant", "cpu-avx-py311", "--package", "hello")


def test_plans_and_answers(ask):
    ask("init", "../other")
    ask("plan", *HELLO)
    ask("plan", "--variant", "sm35-avx-py311")
    ask("render", *HELLO, "-o", "../context")
    assert ask("status") == []
    ask("matrix", "--package", "hello")
    ask("why", "--variant", "sm35-avx-py311", "--gpu", "K40")
    assert (
        ask("why", "--variant", "sm35-avx-py311", "--torch", "2.9.1", codes=(3,))["buildable"]
        is False
    )
    ask("detect")
    ask("doctor", *HELLO[:2], codes=(0, 4))


def test_wheels_and_the_index(ask, tmp_path):
    wheel = make_wheel(tmp_path, 1)
    ask("inspect", str(wheel))
    ask(
        "inspect", str(wheel), "--explain", "ImportError: libx.so.1: cannot open shared object file"
    )
    ask("verify", str(wheel), codes=(0, 6))
    ask("repair", str(wheel), "--tools", "-o", "../repaired")
    [wheel] = Path("../repaired").iterdir()
    assert ask("publish", str(wheel), "--to", "sm35-avx")["wheels"] == [wheel.name]
    for name in ("root", "one"):
        write_key(tmp_path / f"{name}.key")
    for command, *more in (
        ("index check",),
        ("index reconcile",),
        ("index copy", "--to", "../copy"),
        ("index yank", wheel.name, "--reason", "old"),
        ("index unyank", wheel.name),
        ("index promote", wheel.name, "--to", "sm35-sse41"),
        ("index variant", str(wheel), "--variant", "sm50-avx-py311"),
        ("index keys", "../one.key.pub", "--root-key", "../root.key"),
        ("index sign", "--signing-key", "../one.key"),
        (
            "index verify",
            Path("artifacts/index").absolute().as_uri(),
            "--root",
            "artifacts/index/tuf/1.root.json",
        ),
        ("index remove", wheel.name, "--reason", "old"),
        ("site", "build"),
        ("clean", "--dry-run"),
    ):
        ask(command, *more)
    assert not (tmp_path / "home" / ".local").exists(), (
        "what was verified is kept in a folder of the tests' own"
    )
