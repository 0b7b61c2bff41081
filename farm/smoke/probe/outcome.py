"""How a check ends: it returns what it found, or raises one of these."""

from __future__ import annotations

PASSED, FAILED, NOT_RUN = "passed", "failed", "not_run"


class NotRunError(Exception):
    """This check cannot be made here; the text is the reason."""


class FailedError(Exception):
    """The module did something else than it should."""

    def __init__(self, seen: str, expected: str) -> None:
        super().__init__(seen)
        self.seen = seen
        self.expected = expected


class Warned(str):
    """The result of a check that passed with a `warning`."""

    warning: str

    def __new__(cls, seen: str, warning: str) -> Warned:
        text = super().__new__(cls, seen)
        text.warning = warning
        return text
