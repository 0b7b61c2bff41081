"""The smoke tests that an index keeps of its wheels, summed up for pages.

Reports come from runners: they are untrusted and bounded.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from farm.base.text import short
from farm.index.layout import SMOKE
from farm.index.stores import Store, get_many
from farm.smoke.runner import TESTED_AT, TESTED_WHEEL

MAX_REPORT = 1 << 20
MAX_REPORTS = 200
"""Of one wheel; each is a request."""
REQUESTS = 8  # at a time
GPU_GROUPS = frozenset({"cuda", "speed"})
"""Groups of the probe's checks that need a card."""


@dataclass(frozen=True)
class Smoke:
    """One smoke test of a wheel.

    Attributes:
        where: The CPU, emulated or not, and the card where the GPU part ran.
        time: When, ISO 8601; empty where the report does not say.
        outcome: What ran and how it ended:
            `CPU part passed; GPU part not run: no NVIDIA driver`.
        passed: Nothing failed, and something passed.
        gpu: The GPU part passed too.
        failed: Something failed.
        gpu_ran: The GPU part ran, however it ended.
        python: The Python that imported the wheel, `3.11.2`; empty where the report does not say.
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
        """The same test, its Python named with the machine."""
        if self.python:
            return replace(self, where=f"{self.where}, Python {self.python}")
        return self


Tests = Mapping[str, Sequence[Smoke]]
"""Name of a wheel's file -> its smoke tests."""


class _Check(BaseModel):
    group: str
    name: str
    status: str
    seen: Any = None
    reason: str | None = None

    @property
    def is_gpu(self) -> bool:
        return self.group in GPU_GROUPS


class _Report(BaseModel):
    """What pages use of a report of the probe, of any version of the farm."""

    outcome: str
    reason: str | None = None
    emulated: str | None = None
    facts: dict[str, Any] = {}
    checks: tuple[_Check, ...] = ()

    @property
    def cpu_checks(self) -> list[_Check]:
        """The checks that need no card."""
        return [check for check in self.checks if not check.is_gpu]

    @property
    def gpu_checks(self) -> list[_Check]:
        """The checks that need a card."""
        return [check for check in self.checks if check.is_gpu]

    def fact(self, name: str) -> str:
        """A fact as text; empty where the report does not say."""
        value = self.facts.get(name) or ""
        return short(str(value))


def kept_tests(
    store: Store,
    sha256_by_name: Mapping[str, str],
    *,
    by_wheel: bool = False,
) -> dict[str, list[Smoke]]:
    """The smoke tests that the index keeps of some wheels.

    Args:
        store: The index. It gets one request for each report.
        sha256_by_name: The wheels.
        by_wheel: List the reports of each of these wheels, and not those of the whole index.
    """
    folders = [SMOKE]
    if by_wheel:
        folders = [f"{SMOKE}{name}/" for name in sha256_by_name]
    keys_by_name = _report_keys(store, folders)
    keys: list[str] = []
    for name in sha256_by_name:
        keys_of_wheel = sorted(keys_by_name.get(name, ()))
        keys += keys_of_wheel[:MAX_REPORTS]
    tests_by_name: dict[str, list[Smoke]] = {}
    for key, stored in get_many(store, keys, REQUESTS).items():
        if stored is None or len(stored.data) > MAX_REPORT:
            continue
        name = _wheel_of(key)
        test = _test_in(stored.data, sha256_by_name[name])
        if test is not None:
            tests_by_name.setdefault(name, []).append(test)
    return tests_by_name


def _report_keys(store: Store, folders: Iterable[str]) -> dict[str, list[str]]:
    """The keys of the reports in some folders, by the names of their wheels."""

    def keys_in(folder: str) -> list[str]:
        return list(store.list(folder))

    keys_by_name: dict[str, list[str]] = {}
    with ThreadPoolExecutor(REQUESTS) as pool:
        for keys in pool.map(keys_in, folders):
            for key in keys:
                name = _wheel_of(key)
                keys_by_name.setdefault(name, []).append(key)
    return keys_by_name


def _wheel_of(key: str) -> str:
    """The name of the wheel that a report's key is for."""
    name, _, _ = key.removeprefix(SMOKE).partition("/")
    return name


def newest(tests: Iterable[Smoke]) -> tuple[Smoke, ...]:
    """One test for each kind of machine, the newest: a wheel that failed there and then passed
    works there.

    A test whose GPU part did not run takes nothing back of one whose GPU part ran.
    """
    latest: dict[tuple[str, bool], Smoke] = {}
    for test in sorted(tests, key=_newest_last):
        latest[test.where, test.gpu_ran] = test
    return tuple(latest[kind] for kind in sorted(latest))


def _newest_last(test: Smoke) -> tuple[bool, str]:
    """A key to sort tests by: those that neither passed nor failed come first."""
    return test.passed or test.failed, test.time


def _test_in(data: bytes, sha256: str) -> Smoke | None:
    """The test that a report tells of.

    Returns:
        None if it is no report, or one of another file than the wheel with this sha256.
    """
    try:
        report = _Report.model_validate_json(data)
    except ValidationError:  # of another version of the farm, or damaged
        return None
    if report.facts.get(TESTED_WHEEL, sha256) != sha256:
        return None
    gpu_states = {check.status for check in report.gpu_checks}
    passed = report.outcome == "passed"
    return Smoke(
        where=short(_machine(report)),
        time=report.fact(TESTED_AT),
        outcome=short(_outcome(report)),
        passed=passed,
        failed=report.outcome == "failed",
        gpu=passed and "passed" in gpu_states,
        gpu_ran=bool(gpu_states - {"not_run"}),
        python=report.fact("python"),
    )


def _machine(report: _Report) -> str:
    """`a real CPU (x86_64), 0: Tesla K40m (sm_35)`: the CPU, and the cards that were used."""
    if report.emulated:
        machine = f"{report.emulated} (emulated)"
    else:
        machine = f"a real CPU ({report.facts.get('machine') or 'this machine'})"
    for check in report.gpu_checks:
        if check.name == "devices" and check.status == "passed":
            machine += f", {check.seen}"
    return machine


def _outcome(report: _Report) -> str:
    """What ran and how it ended."""
    outcomes = []
    if report.cpu_checks:
        outcomes.append(f"CPU part {_outcome_of(report.cpu_checks)}")
    if report.gpu_checks:
        outcomes.append(f"GPU part {_outcome_of(report.gpu_checks)}")
    # A crash fails no check: the one that was running is not in the list.
    states = {check.status for check in report.checks}
    if report.outcome == "failed" and "failed" not in states:
        outcomes.append(report.reason or "failed")
    return "; ".join(outcomes) or report.outcome


def _outcome_of(checks: Sequence[_Check]) -> str:
    """`passed`, `failed: devices`, or `not run` with the first reason."""
    failed = []
    passed = False
    reason = None
    for check in checks:
        if check.status == "failed":
            failed.append(check.name)
        elif check.status == "passed":
            passed = True
        reason = reason or check.reason
    if failed:
        return f"failed: {', '.join(failed)}"
    if passed:
        return "passed"
    if reason:
        return f"not run: {reason}"
    return "not run"
