"""Programs that a user starts say how they are used."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("command", "code", "usage"),
    [
        (["tools/gpu-probe"], 2, "usage: tools/gpu-probe DIR"),
        (["tools/gpu-probe", "--help"], 2, "usage: tools/gpu-probe DIR"),
        ([sys.executable, "-m", "tools.sizes", "--help"], 0, "usage: sizes"),
    ],
)
def test_usage(command, code, usage):
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == code
    assert (done.stderr or done.stdout).startswith(usage)
