"""Fake modules for the probe to test, each in a fresh environment."""

from pathlib import Path

import pytest

from tests import fakemod


@pytest.fixture
def good_source():
    return fakemod.SOURCE


@pytest.fixture
def environment(tmp_path):
    """Gives a function: source of `fakemod` (appended to a good one) -> the environment's
    interpreter.
    """

    def make(addition: str = "", *, base: str = fakemod.SOURCE) -> Path:
        return fakemod.install(tmp_path / "env", addition, base=base)

    return make
