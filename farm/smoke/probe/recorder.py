"""How a check ends, and the recorder: it runs checks, prints each as it ends, and keeps the
report's file.
"""

from __future__ import annotations

import faulthandler
import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


PASSED = "passed"
FAILED = "failed"
NOT_RUN = "not_run"


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


TEXTS = ("seen", "expected", "reason", "warning")
MAX_TEXT = 4000  # characters kept of a text that comes from the module


class Recorder:
    """The checks of one run, in a file that is replaced before and after every check.

    Args:
        path: The JSON file; None: the lines that are printed are all.
        document: What is in it beside the checks.
        time_limit_s: The time of all checks together, seconds; 0: no limit. A check that runs when
            it is over ends the process; one that would start after it is not run.
    """

    def __init__(self, path: str | None, document: dict[str, Any], time_limit_s: float = 0) -> None:
        self.path = path
        self.document = document
        self.time_limit_s = time_limit_s
        self.started = time.perf_counter()
        self.checks: list[dict[str, Any]] = []
        document.update(
            complete=False, running=None, time_limit_s=time_limit_s, skipped=0, checks=self.checks
        )

    def run(self, group: str, name: str, check: Callable[[], str]) -> str:
        """Runs one check, which returns what it found, and returns its status."""
        remaining = self.time_limit_s - (time.perf_counter() - self.started)
        if self.time_limit_s and remaining <= 0:
            self.document["skipped"] += 1
            check = self._no_time
        # Written before the check starts: if it takes the process with it, the file says which one
        # it was.
        self.document["running"] = name
        self.write()
        if self.time_limit_s and remaining > 0:
            # A thread of its own without Python code: it ends the process also where the module
            # holds the GIL.
            faulthandler.dump_traceback_later(remaining, exit=True)
        entry = run_check(group, name, check)
        faulthandler.cancel_dump_traceback_later()
        self.checks.append(entry)
        self.document["running"] = None
        self.write()
        print_check(entry)
        return str(entry["status"])

    def _no_time(self) -> str:
        raise NotRunError(f"the time limit of {self.time_limit_s:g} s was over")

    def write(self) -> None:
        """Replaces the file in one step: a reader never finds half of it."""
        if self.path is None:
            return
        temporary = self.path + ".tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(self.document, file, indent=1)
        for attempt in range(250):
            try:
                os.replace(temporary, self.path)
            except PermissionError:  # Windows: for as long as someone reads it
                if os.name != "nt" or attempt == 249:
                    raise
                time.sleep(0.02)
            else:
                return


def run_check(group: str, name: str, check: Callable[[], str]) -> dict[str, Any]:
    """The entry of one check in the report, whatever the check did."""
    entry: dict[str, Any] = {"group": group, "name": name, "status": PASSED}
    entry.update(dict.fromkeys(TEXTS))
    started = time.perf_counter()
    try:
        entry["seen"] = check()
        entry["warning"] = getattr(entry["seen"], "warning", None)
    except NotRunError as error:
        entry.update(status=NOT_RUN, reason=str(error))
    except FailedError as error:
        entry.update(status=FAILED, seen=error.seen, expected=error.expected)
    # A module under test may call `sys.exit`; the other checks are to be run all the same.
    except (Exception, SystemExit) as error:
        entry.update(status=FAILED, seen=f"{type(error).__name__}: {error}", expected="no error")
    for key in TEXTS:
        if entry[key] is not None:
            entry[key] = entry[key][:MAX_TEXT]
    entry["seconds"] = round(time.perf_counter() - started, 6)
    return entry


def print_check(check: dict[str, Any]) -> None:
    """One line, in ASCII: the console's encoding is unknown. Flushed: a log shows it while the next
    check runs.
    """
    detail = check["reason"] or check["seen"] or ""
    status = check["status"].replace("_", " ")
    if check["status"] == FAILED:
        detail = "{} (expected: {})".format(detail, check["expected"])
    elif check.get("warning"):
        status = "warning"
        detail = "{} ({})".format(detail, check["warning"])
    detail = " ".join(detail.split())[:300]
    line = "{:<8} {:<26} {:>8.2f} s  {}".format(
        status, check["name"], check.get("seconds", 0.0), detail
    )
    print(line.encode("ascii", "backslashreplace").decode(), flush=True)
