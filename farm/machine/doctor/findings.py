"""Findings of the doctor and helpers for its checks: every finding names its remedy."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from farm.base.yamlfile import Model, load
from farm.machine.detect.machine import NoReadingError
from farm.machine.detect.readings import Readings, clean
from farm.machine.doctor.site import Site
from farm.plan.file import Plan
from farm.platforms.facts import DEFAULT, PLATFORMS, Facts

State = Literal["ok", "warning", "missing", "not read"]
GB = 10**9


class Finding(Model):
    """One finding: what was looked at, how it is, what was seen, and what to do; `todo` is empty where all is well."""

    check: str
    state: State
    seen: str
    todo: str = ""


class Needs(Model):
    """`doctor.yaml`: sizes in units of 10**9 bytes."""

    disk_gb: int
    image_gb: int
    memory_gb: int
    commit_gb: int
    triton_below: dict[str, str]
    triton_source: str
    triton_sm_min: int
    triton_sm_source: str


def needs() -> Needs:
    return load(Path(__file__).parent / "doctor.yaml", Needs)


@dataclass(frozen=True)
class Patient:
    """The machine, what `farm detect` read of it, and the build that it shall be fit for, if one is known."""

    site: Site
    readings: Readings
    plan: Plan | None

    @property
    def large(self) -> bool:
        """True if it shall build PyTorch, which takes far more than other packages."""
        return self.plan is None or self.plan.package == "torch"

    @property
    def platform(self) -> Facts:
        """The machine's platform; Linux where the farm does not build for this one."""
        return self.readings.os.platform or PLATFORMS[DEFAULT]


Check = Callable[[Patient], Iterator[Finding]]


def run_checks(patient: Patient, checks: Iterable[tuple[str, Check]]) -> list[Finding]:
    """Every finding; a check that cannot read says so."""
    found: list[Finding] = []
    for name, check in checks:
        try:
            found += check(patient)
        except NoReadingError as error:
            # One reading that fails must not hide what the other checks find.
            found.append(Finding(check=name, state="not read", seen=clean(str(error)), todo="look yourself"))
    return found


def ok(check: str, seen: str) -> Finding:
    return Finding(check=check, state="ok", seen=clean(seen))


def missing(check: str, seen: str, todo: str) -> Finding:
    return Finding(check=check, state="missing", seen=clean(seen), todo=todo)


def warning(check: str, seen: str, todo: str) -> Finding:
    return Finding(check=check, state="warning", seen=clean(seen), todo=todo)
