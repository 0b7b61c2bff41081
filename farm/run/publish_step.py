"""Publishing of a verified wheel, with what its record says of report, waivers and origin."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from farm.base.errors import (
    PublishRefusedError,
)
from farm.base.hashes import sha256_of
from farm.index.admission import PYPI_RULES, Admission
from farm.index.publish import NameTakenError, PublishResult, publish
from farm.index.records import PREDICATE
from farm.index.store_urls import open_store
from farm.index.stores import Progress
from farm.plan.build_variables import absent_features
from farm.plan.file import Plan
from farm.run.build_inputs import BuildInputs
from farm.run.provenance import predicate
from farm.run.site_step import refresh_site
from farm.run.verify_step import digest_of
from farm.run.workspace import Workspace
from farm.wheel.report import Report

NO_INPUTS = BuildInputs()


def publish_wheel(
    workspace: Workspace,
    plan: Plan,
    wheel: Path,
    report: Report,
    *,
    given: BuildInputs = NO_INPUTS,
    run: str | None = None,
    policy: Admission = PYPI_RULES,
    progress: Progress | None = None,
) -> PublishResult:
    """Publish a verified wheel into the group of its variant and the root of its channel.

    `report` is verify's about this very file; `given` and `run`, for the provenance, what the build
    had beside its plan; `policy`: what the index takes beyond PyPI's rules; `progress` gets the
    bytes that are stored. PublishRefusedError: the report is of another file or of a failure, or
    the index refuses.
    """
    # Hashed here once more: the report may be of a file that was changed since.
    reason = None
    if not report.passed:
        reason = "it failed verification"
    elif report.sha256 != sha256_of(wheel):
        reason = "its report is of another file"
    if reason:
        raise PublishRefusedError(
            f"{wheel.name} is not published: {reason}", hint=f"farm verify {wheel.name}"
        )
    try:
        result = publish(
            open_store(workspace.index_url),
            wheel,
            group=plan.parsed_variant.group,
            upload_time=datetime.now(UTC),
            provenance=_provenance(plan, report, given, run),
            channel=plan.channel,
            policy=policy,
            progress=progress,
        )
    except NameTakenError as error:  # by other bytes: a rebuild number gives a new name
        error.hint = (
            f"{error.hint}: run it again with --rebuild {int(plan.options['rebuild'] or 0) + 1}"
        )
        raise
    refresh_site(workspace, {result.record.project})
    return result


def _provenance(plan: Plan, report: Report, given: BuildInputs, run: str | None) -> dict[str, Any]:
    """What the index's record says of how a wheel was made, and what verify found."""
    provenance: dict[str, Any] = {
        "plan": plan.digest,
        "verified": report.sha256,
        "report": findings_of(report),
        "channel": plan.channel,
    }
    if plan.cuda_libraries:
        provenance["cuda-libraries"] = plan.cuda_libraries
    lacking = absent_features(plan.without)
    if lacking:
        provenance["without"] = lacking
    provenance[PREDICATE] = predicate(plan, report, given, run=run)
    waivers = _waivers(report)
    if waivers:
        provenance["waivers"] = waivers
    return provenance


def findings_of(report: Report) -> dict[str, Any]:
    """The digest of verify's report for the index, and the promises about code that it found
    kept.
    """
    passed_checks = {check.id for check in report.checks if check.status in ("passed", "waived")}
    policy = report.policy
    facts: dict[str, Any] = {"sha256": digest_of(report)}
    if "sass" in passed_checks and policy.sass is not None:
        facts["sass"] = [str(sm) for sm in policy.sass]
    if "ptx" in passed_checks and policy.ptx:
        facts["ptx"] = [str(sm) for sm in policy.ptx]
    if "cpu" in passed_checks and policy.cpu:
        facts["cpu"] = policy.cpu
    return facts


def _waivers(report: Report) -> list[dict[str, object]]:
    """Accepted findings for the index: the reasons that were used, and how many findings each
    covers.
    """
    used: Counter[tuple[str, str]] = Counter()
    for finding in report.findings:
        if finding.waived is not None:
            used[finding.check, finding.waived] += 1
    waivers: list[dict[str, object]] = []
    for (check, why), count in sorted(used.items()):
        waivers.append({"check": check, "reason": why, "findings": count})
    return waivers
