"""How a check ends: it returns what it found, or raises one of these.

Runs checks one after the other, prints each as it ends, and keeps the report's file up to date.
"""

from __future__ import annotations

import faulthandler
import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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


MAX_TEXT = 4000  # characters kept of a text that comes from the module


class Recorder:
    """The checks of one run, in a file that is replaced before and after every check.

    Args:
        path: The JSON file.
        document: What is in it beside the checks.
        check_limit_s: The time that one check may take, seconds; 0: no limit.
        time_limit_s: The time of all checks together, seconds; 0: no limit. A check that runs when it is over ends
            the process; one that would start after it is not run.
    """

    def __init__(self, path: str, document: dict[str, Any], check_limit_s: float = 0, time_limit_s: float = 0) -> None:
        self.path = path
        self.document = document
        self.check_limit_s = check_limit_s
        self.time_limit_s = time_limit_s
        self.started = time.perf_counter()
        self.checks: list[dict[str, Any]] = []
        document.update(
            complete=False, running=None, limit_s=check_limit_s, time_limit_s=time_limit_s, out_of_time=False,
            skipped=0, checks=self.checks,
        )  # fmt: skip

    def remaining_s(self) -> float | None:
        """Seconds until the time limit of the run, below 0 after it; None without a limit."""
        if not self.time_limit_s:
            return None
        return self.time_limit_s - (time.perf_counter() - self.started)

    def run(self, group: str, name: str, check: Callable[[], str], check_limit_s: float | None = None) -> str:
        """Runs one check, which returns what it found, and returns its status."""
        limit_s = check_limit_s if check_limit_s is not None and self.check_limit_s else self.check_limit_s
        remaining, is_cut = self.remaining_s(), False
        if remaining is not None and remaining <= 0:
            self.document["skipped"] += 1
            check, limit_s = self._no_time, 0.0
        # The run's own end comes before the check's.
        elif remaining is not None and (not limit_s or remaining < limit_s):
            limit_s, is_cut = remaining, True
        # Written before the check starts: if it takes the process with it, the file says which one it was.
        self.document.update(running=name, limit_s=round(limit_s, 3), out_of_time=is_cut)
        self.write()
        if limit_s:
            # A thread of its own without Python code: it ends the process also where the module holds the GIL.
            faulthandler.dump_traceback_later(limit_s, exit=True)
        entry = run_check(group, name, check)
        if limit_s:
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
    entry: dict[str, Any] = {
        "group": group,
        "name": name,
        "status": PASSED,
        "seen": None,
        "expected": None,
        "reason": None,
        "warning": None,
    }
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
    for key in ("seen", "expected", "reason", "warning"):
        if entry[key] is not None:
            entry[key] = entry[key][:MAX_TEXT]
    entry["seconds"] = round(time.perf_counter() - started, 6)
    return entry


def print_check(check: dict[str, Any]) -> None:
    """One line, in ASCII: the console's encoding is unknown. Flushed: a log shows it while the next check runs."""
    detail = check["reason"] or check["seen"] or ""
    status = check["status"].replace("_", " ")
    if check["status"] == FAILED:
        detail = "{} (expected: {})".format(detail, check["expected"])
    elif check.get("warning"):
        status, detail = "warning", "{} ({})".format(detail, check["warning"])
    line = "{:<8} {:<26} {:>8.2f} s  {}".format(
        status, check["name"], check.get("seconds", 0.0), " ".join(detail.split())[:300]
    )
    print(line.encode("ascii", "backslashreplace").decode(), flush=True)
