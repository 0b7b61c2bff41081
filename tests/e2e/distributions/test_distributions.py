"""The farm as users of other distributions have it: installed and used with their own Python, in
containers.

Debian testing, with Python 3.14, is in `test_release.py`. Ubuntu 24.04 is not among them: its
archive is not where Debian's packages come from. `make distributions` tries both, and runs the
whole of `make test` in each.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHONS = {"debian-12": "Python 3.11.", "debian-13": "Python 3.13."}


@pytest.mark.parametrize("name", PYTHONS)
def test_the_farm_installs_and_works(client, name):
    environ = {
        **os.environ,
        "FARM_DISTRIBUTION_TARGETS": "installed",
        "FARM_DISTRIBUTION_USERS": "user",
    }
    command = ["tests/distributions", name]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{name} as user: passed, {PYTHONS[name]}")
    assert "installed: passed" in line
