import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm.cli.main import main

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture
def project(tmp_path):
    """A project of its own with the real configuration and templates, so that artifacts land in a
    temporary folder.
    """
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "ci", folder / "ci")
    shutil.copytree(ROOT / "dockerfiles", folder / "dockerfiles")
    return folder


@pytest.fixture
def clean_environment(monkeypatch):
    """FARM_* of the caller's environment are left out, and the width of tables is known."""
    for name in [name for name in os.environ if name.startswith("FARM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def farm(clean_environment, monkeypatch, capsys):
    """Runs the farm command in this process, which is quick; an exception that it lets through
    fails the test.
    """

    def run(*args, env=None, cwd=ROOT):
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.chdir(cwd)
            command = list(map(str, args))
            try:
                code = main(command)
            except SystemExit as leave:  # argparse
                code = leave.code
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(command, code, out, err)

    return run


@pytest.fixture
def farm_process(clean_environment):
    """Runs the farm command in a process of its own."""

    def run(*args, env=None, cwd=None):
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        return subprocess.run(
            [sys.executable, "-m", "farm.cli.main", *map(str, args)],
            env=environ,
            cwd=cwd or ROOT,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Programs of the test's own first on PATH: name -> Python code."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def add(name, code):
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{code}")
        path.chmod(0o755)

    return add


@pytest.fixture
def script():
    """Runs a script of dockerfiles/scripts in a process."""

    def run(name, *args):
        return subprocess.run(
            [sys.executable, str(ROOT / "dockerfiles" / "scripts" / name), *map(str, args)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
