"""All properties over all their inputs; `make test` draws a third of them (`tests/conftest.py`)."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_all_inputs_of_the_properties():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-m",
        "hypothesis",
    ]
    command += ["tests/unit", "tests/integration"]
    environ = os.environ | {"FARM_HYPOTHESIS": "whole"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 40, done.stdout[-500:]
