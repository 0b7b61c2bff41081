"""The provenance of a wheel: an SLSA predicate with everything that its build was made from."""

from typing import Any
from urllib.parse import quote

from farm import __version__
from farm.plan.file import Plan, SourcePlan
from farm.run.build_inputs import BuildInputs
from farm.run.verify_step import digest_of
from farm.wheel.report import Report

BUILD_TYPE = "urn:torch-farm:wheel:v1"


def predicate(
    plan: Plan, report: Report, given: BuildInputs, *, run: str | None = None
) -> dict[str, Any]:
    """The predicate of the provenance for the wheel of a plan; `run`: the id of its run, where
    there was one.
    """
    dependencies: list[dict[str, Any]] = [_dependency("source", plan.source)]
    dependencies += [_dependency(part.into, part.source) for part in plan.parts]
    if given.image is not None:
        # Docker writes `sha256:…`, SLSA the algorithm as the key of a mapping.
        digest = {"sha256": given.image.removeprefix("sha256:")}
        dependencies.append({"name": "image", "uri": plan.base, "digest": digest})
    if plan.python:
        dependencies.append(
            {"name": "python", "uri": plan.python.url, "digest": {"sha256": plan.python.sha256}}
        )
    for archive in plan.toolkit.archives if plan.toolkit else ():
        dependencies.append(
            {"name": archive.component, "uri": archive.url, "digest": {"sha256": archive.sha256}}
        )
    if plan.toolkit:
        dependencies += [_dependency(str(wheel.package), wheel) for wheel in plan.toolkit.wheels]
    dependencies += [_dependency(str(wheel.package), wheel) for wheel in plan.build_requires]
    dependencies += [
        {"name": name, "digest": {"sha256": digest}}
        for name, digest in sorted(given.wheels.items())
    ]
    # Without a digest: no one knows what was in it. A verifier should see that it was there.
    if given.cache is not None:
        dependencies.append(
            {"name": "local compiler cache", "annotations": {"volume": given.cache}}
        )
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
            # External is what someone asked for, internal what followed from it (SLSA v1.0,
            # BuildDefinition).
            "externalParameters": parameters,
            "internalParameters": {"plan": {"sha256": plan.digest}},
            # In a ResourceDescriptor a field that says nothing is absent, not null.
            "resolvedDependencies": [
                {name: value for name, value in dependency.items() if value is not None}
                for dependency in dependencies
            ],
        },
        "runDetails": {
            "builder": {"id": "urn:torch-farm", "version": {"torch-farm": __version__}},
            "metadata": {"invocationId": run} if run else {},
            "byproducts": [{"name": "verify.json", "digest": {"sha256": digest_of(report)}}],
        },
    }


def _dependency(name: str, source: SourcePlan) -> dict[str, Any]:
    """Fetched sources, by commit or sha256; a wheel, sdist or Debian's tarball by its package URL
    (purl) as well.
    """
    if source.kind == "git":
        uri = f"git+{source.url}@{source.tag}"
        digest = {"gitCommit": source.commit}
    elif source.kind == "path":
        uri = None
        digest = {"sha256": source.digest}
    elif source.kind == "archive":
        uri = source.url
        digest = {"sha256": source.sha256}
    else:
        kind = "deb/debian" if source.kind.startswith("debian-") else "pypi"
        uri = f"pkg:{kind}/{source.package}?file_name={quote(str(source.file))}"
        digest = {"sha256": source.sha256}
    return {"name": name, "uri": uri, "digest": digest}
