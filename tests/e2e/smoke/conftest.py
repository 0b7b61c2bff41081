"""Stand-in torch wheels that really misbehave, and `farm smoke` on them in a project of its own."""

import json
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.indexes.wheels import build_wheel

ROOT = Path(__file__).parents[3]
VERSION = "2.8.0+cpu.avx2"
VARIANT = "cpu-avx2-py311"


@dataclass(frozen=True)
class Answer:
    """What `farm smoke` said: exit code, stderr, and the reports by where they ran (None: this
    machine).
    """

    code: int
    err: str
    reports: dict[str | None, dict[str, Any]]
    beside: list[str]

    @property
    def here(self) -> dict[str, Any]:
        return self.reports[None]

    @property
    def causes(self) -> list[str]:
        return [cause["id"] for cause in self.here["causes"]]


def make_wheel(folder: Path, files: dict[str, str]) -> Path:
    """A wheel of `torch` with these files."""
    return build_wheel(folder, f"torch-{VERSION}-py3-none-any.whl", more=files).path


@pytest.fixture
def smoke(tmp_path, monkeypatch):
    """Gives a function: source of the stand-in's `__init__.py` -> what `farm smoke --wheel`
    says.
    """
    project = tmp_path / "project"
    for name in ("ci", "dockerfiles"):
        shutil.copytree(ROOT / name, project / name)
    # Without the emulator on the PATH: what happens here is the same there, and takes long.
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(source: str, *arguments: str, files: dict[str, str] | None = None) -> Answer:
        wheel = make_wheel(
            tmp_path, {"torch/__init__.py": textwrap.dedent(source), **(files or {})}
        )
        command = [
            sys.executable,
            "-m",
            "farm.cli.main",
            "--project",
            str(project),
            "smoke",
            "--json",
        ]
        command += ["--variant", VARIANT, "--wheel", str(wheel), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, check=False, cwd=project
        )
        assert "Traceback" not in done.stderr, done.stderr
        document = json.loads(done.stdout) if done.stdout else {}
        reports = {
            each["emulated"]: each for each in document.get("reports", [])
        }  # none in that of an error
        beside = sorted(path.name for path in tmp_path.glob("*.json"))
        return Answer(done.returncode, done.stderr, reports, beside)

    return run
