"""The publish step: a verified wheel goes into the index; and the pip options by which users install from there."""

import shlex
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from farm.base.errors import PublishRefusedError
from farm.base.hashes import sha256_of
from farm.index.admission import PYPI_RULES, Admission
from farm.index.backends import open_store
from farm.index.publish import NameTakenError, PublishResult, publish
from farm.index.records import PREDICATE
from farm.index.stores import Progress
from farm.plan.file import Plan
from farm.run.build_inputs import BuildInputs
from farm.run.provenance import predicate
from farm.run.workspace import Workspace
from farm.wheel.report import Report

NOTHING = BuildInputs()


def publish_wheel(
    workspace: Workspace,
    plan: Plan,
    wheel: Path,
    report: Report,
    *,
    given: BuildInputs = NOTHING,
    run: str | None = None,
    policy: Admission = PYPI_RULES,
    progress: Progress | None = None,
) -> PublishResult:
    """Publish a verified wheel into the group of its variant and the root of its channel.

    Args:
        workspace: Names the index.
        plan: Names the group.
        wheel: The file.
        report: Verify's report about this very file.
        given: What the build had beside its plan, for the provenance.
        run: The run that built it, likewise.
        policy: What the index takes beyond PyPI's rules.
        progress: Gets how many bytes of the wheel are stored.

    Raises:
        PublishRefusedError: The report is of another file or says that the wheel failed, or the index refuses.
    """
    # Hashed here once more: the report may be of a file that was changed since.
    if not report.passed or report.sha256 != sha256_of(wheel):
        reason = "its report is of another file" if report.passed else "it failed verification"
        raise PublishRefusedError(f"{wheel.name} is not published: {reason}", hint=f"farm verify {wheel.name}")
    try:
        return publish(
            open_store(workspace.index_url),
            wheel,
            group=plan.parsed_variant.group,
            upload_time=datetime.now(UTC),
            provenance={
                "plan": plan.digest,
                "verified": report.sha256,
                "channel": plan.channel,
                **({"cuda-libraries": plan.cuda_libraries} if plan.cuda_libraries else {}),
                PREDICATE: predicate(plan, report, given, run=run),
                **_waived(report),
            },
            channel=plan.channel,
            policy=policy,
            progress=progress,
        )
    except NameTakenError as error:
        # The name is taken by other bytes: a rebuild number gives a new name.
        following = int(plan.options["rebuild"] or 0) + 1
        error.hint = f"{error.hint}: run it again with --rebuild {following}"
        raise


def _waived(report: Report) -> dict[str, list[dict[str, str | int]]]:
    """Accepted findings for the index: the reasons that were used, and how many findings each covers."""
    used: Counter[tuple[str, str]] = Counter((f.check, f.waived) for f in report.findings if f.waived is not None)
    if not used:
        return {}
    return {"waivers": [{"check": check, "reason": why, "findings": n} for (check, why), n in sorted(used.items())]}


def pip_source(workspace: Workspace, group: str) -> tuple[str, ...]:
    """The options by which pip finds the wheels of one variant group.

    A folder, a bucket behind a web server that answers folders with their index.html, and one with `pages=slash` are
    an index. Otherwise plain S3 does not answer folders: there the page of links is used.
    """
    plain = workspace.index_url.startswith("s3://") and not workspace.settings.index_public_url
    if plain and not getattr(open_store(workspace.index_url), "slash", False):
        return pip_links(workspace, group)
    return ("--index-url", public_url(workspace, f"whl/{group}/simple/"))


def pip_links(workspace: Workspace, group: str) -> tuple[str, ...]:
    """The options for the page of links of one variant group, which any static host can serve."""
    return ("--no-index", "--find-links", public_url(workspace, f"whl/{group}/links.html"))


def public_url(workspace: Workspace, key: str) -> str:
    """Where users find a key of the index."""
    if workspace.settings.index_public_url:
        return f"{workspace.settings.index_public_url.rstrip('/')}/{key}"
    return open_store(workspace.index_url).url(key)


def pip_line(requirement: str, source: tuple[str, ...]) -> str:
    """The command of a user."""
    return shlex.join(["pip", "install", requirement, *source])
