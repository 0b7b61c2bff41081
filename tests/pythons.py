"""Pythons that tests of shipped programs and of the release run on."""

import os
from pathlib import Path

import pytest

from farm.smoke.environment import find_python


def python(minor: int) -> Path:
    """An interpreter of Python 3.`minor`: on the PATH or pyenv's. Without one the test is skipped,
    or fails in CI.
    """
    found = find_python(f"py3{minor}") or next(
        Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"), None
    )
    if found is None:
        missing = f"no Python 3.{minor} on this machine"
        if os.environ.get("FARM_REQUIRE") == "all":
            pytest.fail(missing)
        pytest.skip(missing)
    return found
