"""Smoke tests as the site tells of them: from the reports that the index keeps of a wheel, untrusted and bounded."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from farm.base.text import short
from farm.index.layout import SMOKE
from farm.index.stores import Store
from farm.smoke.runner import TESTED_AT, TESTED_WHEEL

MAX_REPORT = 1 << 20
MAX_REPORTS = 200
"""Of one wheel; each is a request."""
REQUESTS = 8  # at a time


@dataclass(frozen=True)
class Smoke:
    """One smoke test of a wheel.

    Attributes:
        where: The CPU, emulated or not, and the card where the GPU part ran.
        time: When, ISO 8601; empty where the report does not say.
        outcome: What ran and how it ended: `CPU part passed; GPU part not run: no NVIDIA driver`.
        passed: Nothing failed, and something passed.
        gpu: The GPU part ran, and passed.
        failed: A part failed.
        gpu_ran: The GPU part ran, however it ended.
        python: The Python that imported it, `3.11.2`; empty where the report does not say.
    """

    where: str
    time: str
    outcome: str
    passed: bool = False
    gpu: bool = False
    failed: bool = False
    gpu_ran: bool = False
    python: str = ""

    @property
    def date(self) -> str:
        return self.time[:10] or "date not recorded"

    def with_python(self) -> "Smoke":
        return replace(self, where=f"{self.where}, Python {self.python}") if self.python else self


Tests = Mapping[str, Sequence[Smoke]]
"""Name of a wheel's file -> its smoke tests."""


def kept_tests(store: Store, wanted: Mapping[str, str]) -> dict[str, list[Smoke]]:
    """The smoke tests that the index keeps of these wheels (sha256 by file name). One request for each report.

    Raises:
        InfrastructureError: The store failed.
    """
    keys: dict[str, list[str]] = {}
    for key in store.list(SMOKE):
        name = key.removeprefix(SMOKE).partition("/")[0]
        if name in wanted and len(keys.setdefault(name, [])) < MAX_REPORTS:
            keys[name].append(key)
    pairs = [(name, key) for name, several in sorted(keys.items()) for key in sorted(several)]
    found: dict[str, list[Smoke]] = {}
    with ThreadPoolExecutor(REQUESTS) as pool:
        for (name, _), stored in zip(pairs, pool.map(store.get, [key for _, key in pairs]), strict=True):
            if stored is not None and len(stored.data) <= MAX_REPORT:
                found.setdefault(name, []).extend(_read(stored.data, wanted[name]))
    return found


def _read(data: bytes, wheel: str) -> Iterator[Smoke]:
    """The test that a report tells of; none if it is no report, or about another file than the one with this sha256."""
    try:
        report = json.loads(data)
        facts = report.get("facts") or {}
        if facts.get(TESTED_WHEEL, wheel) == wheel:
            yield _smoke(report, facts, str(facts.get(TESTED_AT) or ""))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return  # a report of another version tells nothing here


def newest(smokes: Iterable[Smoke]) -> tuple[Smoke, ...]:
    """One test for each kind of machine, the newest: a wheel that failed there and then passed works there.

    Where the GPU part, or all of it, did not run, that takes nothing back of one that ran.
    """
    rising = sorted(smokes, key=lambda smoke: (smoke.passed or smoke.failed, smoke.time))
    found = {(smoke.where, smoke.gpu_ran): smoke for smoke in rising}
    return tuple(found[kind] for kind in sorted(found))


def _smoke(report: dict[str, Any], facts: dict[str, Any], time: str) -> Smoke:
    """Summary of one report of the probe: what ran, where, and how it ended."""
    parts: dict[str, list[dict[str, Any]]] = {"CPU": [], "GPU": []}
    for check in report.get("checks") or ():
        parts["GPU" if check["group"] in ("cuda", "speed") else "CPU"].append(check)
    cards = [str(check["seen"]) for check in parts["GPU"] if check["name"] == "devices" and check["status"] == "passed"]
    machine = str(facts.get("machine") or "this machine")
    cpu = f"{report['emulated']} (emulated)" if report.get("emulated") else f"a real CPU ({machine})"
    outcomes = [f"{name} part {_ended(checks)}" for name, checks in parts.items() if checks]
    # A crash fails no check: the one that was running is not in the list.
    if report["outcome"] == "failed" and not any(c["status"] == "failed" for c in [*parts["CPU"], *parts["GPU"]]):
        outcomes.append(str(report.get("reason") or "failed"))
    return Smoke(
        where=short(", ".join([cpu, *cards])),
        time=short(time),
        outcome=short("; ".join(outcomes) or report["outcome"]),
        passed=report["outcome"] == "passed",
        failed=report["outcome"] == "failed",
        gpu=report["outcome"] == "passed" and any(check["status"] == "passed" for check in parts["GPU"]),
        gpu_ran=any(check["status"] != "not_run" for check in parts["GPU"]),
        python=short(str(facts.get("python") or "")),
    )


def _ended(checks: list[dict[str, Any]]) -> str:
    """`passed`, `failed: devices`, or `not run` with the first reason."""
    failed = [str(check["name"]) for check in checks if check["status"] == "failed"]
    if failed:
        return f"failed: {', '.join(failed)}"
    if any(check["status"] == "passed" for check in checks):
        return "passed"
    reason = next((check.get("reason") for check in checks if check.get("reason")), None)
    return f"not run: {reason}" if reason else "not run"
