"""The publish step: a verified wheel goes into the index with its provenance; and the pip line of its users."""

import hashlib
import shlex
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.metadata import parse_email

from farm import __version__
from farm.base.errors import PublishRefusedError
from farm.base.hashes import sha256_of
from farm.base.requirement import read_requirement
from farm.index.admission import PYPI_RULES, Admission
from farm.index.backends import open_store
from farm.index.layout import metadata_key
from farm.index.publish import NameTakenError, PublishResult, publish
from farm.index.records import PREDICATE
from farm.index.stores import Progress
from farm.plan.environment import absent_features
from farm.plan.file import Plan, SourcePlan
from farm.run.inputs import BuildInputs
from farm.run.wheel import report_text
from farm.run.workspace import Workspace
from farm.wheel.policy import Report

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
                "report": findings_of(report),
                "channel": plan.channel,
                **({"cuda-libraries": plan.cuda_libraries} if plan.cuda_libraries else {}),
                **({"without": lacking} if (lacking := absent_features(plan.without)) else {}),
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


def findings_of(report: Report) -> dict[str, Any]:
    """The digest of verify's report for the index, and the promises about code that it found kept."""
    kept, policy = {check.id for check in report.checks if check.status in ("passed", "waived")}, report.policy
    found: dict[str, Any] = {"sha256": _digest_of(report)}
    if "sass" in kept and policy.sass is not None:
        found["sass"] = [str(sm) for sm in policy.sass]
    if "ptx" in kept and policy.ptx:
        found["ptx"] = [str(sm) for sm in policy.ptx]
    if "cpu" in kept and policy.cpu:
        found["cpu"] = policy.cpu
    return found


def _digest_of(report: Report) -> str:
    """The sha256 of verify.json, as it is in the folder of the run."""
    return hashlib.sha256(report_text(report).encode()).hexdigest()


def _waived(report: Report) -> dict[str, list[dict[str, str | int]]]:
    """Accepted findings for the index: the reasons that were used, and how many findings each covers."""
    used: Counter[tuple[str, str]] = Counter((f.check, f.waived) for f in report.findings if f.waived is not None)
    if not used:
        return {}
    return {"waivers": [{"check": check, "reason": why, "findings": n} for (check, why), n in sorted(used.items())]}


def pip_source(workspace: Workspace, group: str, *, more: bool = False) -> tuple[str, ...]:
    """The options by which pip finds the wheels of one variant group.

    A folder, a bucket behind a web server that answers folders with their index.html, and one with `pages=slash` are
    an index; other buckets do not answer folders.

    Args:
        workspace: Names the index.
        group: The group.
        more: The wheels need others that pip's own index has: this index is then asked beside it.
    """
    return ("--extra-index-url" if more else "--index-url", public_url(workspace, f"whl/{group}/simple/"))


def needs_more(workspace: Workspace, filename: str) -> bool:
    """True if a published wheel requires other packages, without an extra."""
    metadata = open_store(workspace.index_url).get(metadata_key(filename))
    requires = parse_email(metadata.data)[0].get("requires_dist", []) if metadata else []
    return any("extra" not in str(read_requirement(line).marker or "") for line in requires)


def pip_request(workspace: Workspace, plan: Plan, filename: str) -> tuple[str, tuple[str, ...]]:
    """The requirement of a plan's published wheel, and the options by which pip finds it."""
    source = pip_source(workspace, plan.parsed_variant.group, more=needs_more(workspace, filename))
    return f"{plan.package}=={plan.version}", source


def public_url(workspace: Workspace, key: str) -> str:
    """Where users find a key of the index."""
    if workspace.settings.index_public_url:
        return f"{workspace.settings.index_public_url.rstrip('/')}/{key}"
    return open_store(workspace.index_url).url(key)


def pip_line(requirement: str, source: tuple[str, ...]) -> str:
    """The command of a user."""
    return shlex.join(["pip", "install", requirement, *source])


BUILD_TYPE = "urn:torch-farm:wheel:v1"


def predicate(
    plan: Plan,
    report: Report,
    given: BuildInputs,
    *,
    run: str | None = None,
) -> dict[str, Any]:
    """The predicate for the wheel of a plan.

    Args:
        plan: What was built: its digest, its source and the parts of it, the archives and wheels of its toolkit.
        report: What verify found: its digest, as `verify.json` in the folder of the run.
        given: What the build had beside its plan.
        run: The id of the run, where there was one.
    """
    dependencies: list[dict[str, Any]] = [_dependency("source", plan.source)]
    dependencies += [_dependency(part.into, part.source) for part in plan.parts]
    if given.image is not None:
        # Docker writes `sha256:…`, SLSA the algorithm as the key of a mapping.
        digest = {"sha256": given.image.removeprefix("sha256:")}
        dependencies.append({"name": "image", "uri": plan.base, "digest": digest})
    if plan.python:
        dependencies.append({"name": "python", "uri": plan.python.url, "digest": {"sha256": plan.python.sha256}})
    for archive in plan.toolkit.archives if plan.toolkit else ():
        dependencies.append({"name": archive.component, "uri": archive.url, "digest": {"sha256": archive.sha256}})
    dependencies += [_dependency(str(wheel.package), wheel) for wheel in plan.toolkit.wheels] if plan.toolkit else []
    dependencies += [_dependency(str(wheel.package), wheel) for wheel in plan.build_requires]
    dependencies += [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(given.wheels.items())]
    # Without a digest: no one knows what was in it. A verifier should see that it was there.
    if given.cache is not None:
        dependencies.append({"name": "local compiler cache", "annotations": {"volume": given.cache}})
    parameters = {
        "package": plan.package,
        "version": plan.version,
        "variant": plan.variant,
        "platform": plan.platform,
        "channel": plan.channel,
    }
    if plan.toolkit:
        parameters["toolkit"] = f"{plan.toolkit.provider} {plan.toolkit.cuda}"
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            # External is what someone asked for, internal what followed from it (SLSA v1.0, BuildDefinition).
            "externalParameters": parameters,
            "internalParameters": {"plan": {"sha256": plan.digest}},
            # In a ResourceDescriptor a field that says nothing is absent, not null.
            "resolvedDependencies": [
                {name: value for name, value in each.items() if value is not None} for each in dependencies
            ],
        },
        "runDetails": {
            "builder": {"id": "urn:torch-farm", "version": {"torch-farm": __version__}},
            "metadata": {"invocationId": run} if run else {},
            "byproducts": [{"name": "verify.json", "digest": {"sha256": _digest_of(report)}}],
        },
    }


def _dependency(name: str, source: SourcePlan) -> dict[str, Any]:
    """Fetched sources, by commit or sha256; a wheel, sdist or Debian's tarball by its package URL (purl) as well."""
    if source.kind == "git":
        uri, digest = f"git+{source.url}@{source.tag}", {"gitCommit": source.commit}
    elif source.kind == "path":
        uri, digest = None, {"sha256": source.digest}
    elif source.kind == "archive":
        uri, digest = source.url, {"sha256": source.sha256}
    else:
        kind = "deb/debian" if source.kind.startswith("debian-") else "pypi"
        uri, digest = f"pkg:{kind}/{source.package}?file_name={quote(str(source.file))}", {"sha256": source.sha256}
    return {"name": name, "uri": uri, "digest": digest}
