"""A Python that is too old gets one line, before anything is imported, downloaded or compiled."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["3.6", "3.8", "3.9", "3.10"])
def old_python(request):
    """An old interpreter of this machine: one of the PATH, or of pyenv."""
    program = shutil.which(f"python{request.param}")
    versions = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{request.param}.*/bin/python"))
    for candidate in (*versions, program):
        if candidate and subprocess.run([candidate, "-V"], check=False).returncode == 0:
            return candidate
    pytest.skip(f"no Python {request.param} on this machine")


@pytest.mark.parametrize(
    "words", [["-m", "farm", "plan"], ["setup.py", "--version"]], ids=["farm", "setup"]
)
def test_one_line_says_which_python_is_needed(old_python, words):
    done = subprocess.run(
        [old_python, *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode in (1, 2)
    first, *others = (done.stdout + done.stderr).splitlines()
    assert first.startswith("farm: needs Python 3.11 or newer, and ")
    assert all(line.startswith("next: ") for line in others)


def test_make_checks_the_python_before_it_installs_anything(old_python, tmp_path):
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-build.lock"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        ["make", f"PYTHON={old_python}", ".venv/.installed"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "farm: needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()
