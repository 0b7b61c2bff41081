"""What the groups and the longest tests take: `FARM_E2E_TIMES=FILE tests/e2e/run ...` writes FILE,
in Markdown.

CPU seconds are those of the test's process and of what it waited for, so of servers when they end,
but not of containers and of what runs under Wine's server; the last line has the whole machine.
"""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import group_of

LONGEST = 40


def machine() -> tuple[int, int]:
    """(busy, all) ticks of this machine's CPUs since it started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]  # waiting for the disk is idle too
    return sum(ticks) - idle, sum(ticks)


class Measured:
    """In each process that runs tests: what each phase of a test took is said in its report."""

    def __init__(self) -> None:
        self.last = sum(os.times()[:4])
        self.wall: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        report = yield
        now = sum(os.times()[:4])
        report.user_properties.append(("cpu", now - self.last))
        self.last = now
        return report


class Table:
    """In the process to which all reports come."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.before, self.started = machine(), time.monotonic()
        self.wall: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.wall[report.nodeid] += report.duration
        self.cpu[report.nodeid] += dict(report.user_properties)["cpu"]

    def pytest_sessionfinish(self) -> None:
        lines = ["| group | tests | s | CPU s |", "| --- | ---: | ---: | ---: |"]
        groups: dict[str, list[str]] = {}
        for test in self.wall:
            groups.setdefault(group_of(test), []).append(test)
        rows = [
            (name, len(tests), self._sum(self.wall, tests), self._sum(self.cpu, tests))
            for name, tests in groups.items()
        ]
        rows.sort(key=lambda row: -row[2])
        lines += [
            f"| {name} | {count:,} | {wall:,.0f} | {cpu:,.0f} |" for name, count, wall, cpu in rows
        ]
        lines += ["", "| test | s | CPU s |", "| --- | ---: | ---: |"]
        lines += [
            f"| {test} | {wall:.0f} | {self.cpu[test]:.0f} |"
            for test, wall in self.wall.most_common(LONGEST)
        ]
        busy, whole = (after - before for after, before in zip(machine(), self.before, strict=True))
        lines += [
            "",
            (
                f"{time.monotonic() - self.started:,.0f} s, of which the CPUs were busy "
                f"{busy / whole:.0%}"
            ),
        ]
        self.target.write_text("\n".join(lines) + "\n")

    @staticmethod
    def _sum(of: Counter[str], tests: list[str]) -> float:
        return sum(of[test] for test in tests)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Measured())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(Path(os.environ["FARM_E2E_TIMES"])))
