"""Verification of a repaired wheel against its plan, and what is said of its report."""

import hashlib
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from farm.base.errors import (
    InfrastructureError,
    UsageError,
    VerificationFailedError,
)
from farm.plan.file import Plan
from farm.wheel.report import Report
from farm.wheel.verify import verify


def check_wheel(
    wheel: Path, plan: Plan, report_file: Path, dependencies: Sequence[Path] = ()
) -> Report:
    """Verify a wheel against its plan, with the wheels that it leaves libraries to; the report is
    in `report_file`.
    """
    report = _decided(verify(wheel, plan.verify, dependencies=dependencies), wheel)
    # Written before it is judged: a wheel that is refused needs its report most.
    report_file.write_text(report_text(report), encoding="utf-8")
    if not report.passed:
        raise refusal(report, report_file)
    return report


def _decided(report: Report, wheel: Path) -> Report:
    """The report, with what it leaves open decided by loading those libraries on an emulated
    CPU.
    """
    cpu = report.check("cpu")
    if not cpu.undecided:
        return report
    from farm.smoke.emulation import emulate  # noqa: PLC0415 (slow to import, and seldom needed)

    try:
        return emulate(report, wheel, only=cpu.undecided)
    except (UsageError, InfrastructureError) as error:
        return report.replaced(cpu.model_copy(update={"emulated": f"not emulated: {error}"}))


def report_text(report: Report) -> str:
    """The text of `verify.json`."""
    return json.dumps(report.to_json(), indent=1) + "\n"


def digest_of(report: Report) -> str:
    """The sha256 of verify.json, as it is in the folder of the run."""
    return hashlib.sha256(report_text(report).encode()).hexdigest()


def refusal(report: Report, report_file: Path | None = None) -> VerificationFailedError:
    """The error that says everything that a report found."""
    lines: list[str] = []
    open_findings = [finding for finding in report.findings if finding.waived is None]
    # Said once of findings in a row that have it in common: a CPU's extensions are ten.
    for (why, fix), findings in groupby(
        open_findings, key=lambda finding: (finding.why, finding.fix)
    ):
        lines += [f"  - {finding.text}" for finding in findings]
        lines.append(f"    why: {why}\n    fix: {fix}")
    hint = None
    if report_file:
        hint = f"the whole report: {report_file}"
    text = "\n".join(lines)
    return VerificationFailedError(
        f"{report.wheel} does not hold what its name promises:\n{text}", hint=hint
    )


def summary(report: Report) -> str:
    """`archive, names, record … passed`, what was not run, and what an emulated CPU showed."""
    by_status: dict[str, list[str]] = {}
    for check in report.checks:
        by_status.setdefault(check.status.replace("_", " "), []).append(check.id)
    parts = [f"{', '.join(ids)} {status}" for status, ids in by_status.items()]
    cpu = report.check("cpu")
    if cpu.emulated:
        parts.append(cpu.seen)
    return "; ".join(parts)
