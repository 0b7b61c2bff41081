"""What Windows asks for, by its name alone: `tests/e2e/wine/windows_parts/held.py` is the same
under Wine.
"""

import sys

import pytest

from farm.base import locks as retrying
from farm.base.locks import retry_while_open
from farm.run.download import _file_of


class Held:
    """A file that is refused `times` times."""

    def __init__(self, times):
        self.left = times

    def __call__(self, *, word):
        self.left -= 1
        if self.left >= 0:
            raise PermissionError("held")
        return word


def test_windows_waits_for_readers_of_a_file(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    held = Held(3)
    assert (retry_while_open(held, word="done"), held.left) == ("done", -1)


def test_windows_gives_up_after_some_tries(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    clock = [0.0]
    monkeypatch.setattr(retrying.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        retrying.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds)
    )
    held = Held(10_000)
    with pytest.raises(PermissionError, match="held"):
        retry_while_open(held, word="")
    assert 9_000 < held.left < 9_900
    assert clock[0] >= retrying.RETRY_S


def test_other_platforms_do_not_retry():
    held = Held(1)
    with pytest.raises(PermissionError):
        retry_while_open(held, word="")
    assert held.left == 0


@pytest.mark.parametrize(
    ("address", "path"),
    [("file:///srv/a.tar", "/srv/a.tar"), ("file:///C:/srv/a.tar", "C:/srv/a.tar")],
)
def test_a_file_by_its_address(address, path):
    assert _file_of(address) == path
