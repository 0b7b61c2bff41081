"""The verify step: does a built wheel keep what its plan promises?"""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from farm.base.errors import VerificationFailedError
from farm.wheel.report import Report
from farm.wheel.verify import verify

if TYPE_CHECKING:
    from farm.plan.file import Plan


def check_wheel(wheel: Path, plan: "Plan", report_file: Path, dependencies: Sequence[Path] = ()) -> Report:
    """Verify a wheel against its plan and leave the report in `report_file`.

    `dependencies`: wheels, or folders of wheels, that it leaves libraries to.

    Raises:
        VerificationFailedError: It does not hold what it promises; every finding is in the text.
    """
    report = verify(wheel, plan.verify, dependencies=dependencies)
    # Written before it is judged: a wheel that is refused needs its report most.
    report_file.write_text(report_text(report), encoding="utf-8")
    if not report.passed:
        raise refusal(report, report_file)
    return report


def report_text(report: Report) -> str:
    """The text of `verify.json`."""
    return json.dumps(report.to_json(), indent=1) + "\n"


def refusal(report: Report, report_file: Path | None = None) -> VerificationFailedError:
    """The error that says everything that a report found."""
    lines: list[str] = []
    held = [finding for finding in report.findings if finding.waived is None]
    # Said once of findings in a row that have it in common: a CPU's extensions are ten.
    for (why, fix), findings in groupby(held, key=lambda finding: (finding.why, finding.fix)):
        lines += [f"  - {finding.text}" for finding in findings]
        lines.append(f"    why: {why}\n    fix: {fix}")
    return VerificationFailedError(
        f"{report.wheel} does not hold what its name promises:\n" + "\n".join(lines),
        hint=f"the whole report: {report_file}" if report_file else None,
    )


def summary(report: Report) -> str:
    """`archive, names, record … passed`, and what was not run."""
    by_status: dict[str, list[str]] = {}
    for check in report.checks:
        by_status.setdefault(check.status.replace("_", " "), []).append(check.id)
    return "; ".join(f"{', '.join(ids)} {status}" for status, ids in by_status.items())
