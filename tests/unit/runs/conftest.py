import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.run.journal import Journal

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "artifacts" / "journal.sqlite"


@pytest.fixture
def journal(path):
    with Journal(path) as opened:
        yield opened


@pytest.fixture
def python(path):
    """Starts a Python process that has the journal open as `journal`; what is left of them is
    killed at the end.
    """
    started = []

    def start(code):
        head = "from pathlib import Path; from farm.run.journal import Journal, Request\n"
        head += f"journal = Journal(Path({str(path)!r}))\n"
        process = subprocess.Popen(
            [sys.executable, "-c", head + code],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
