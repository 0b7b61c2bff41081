"""What is said of a wheel's origin: a SLSA provenance predicate (slsa.dev/provenance/v1), made from plan and report."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from farm import __version__
from farm.pipeline.check import report_text
from farm.plan import Plan
from farm.wheel.report import Report

BUILD_TYPE = "urn:torch-farm:wheel:v1"


def predicate(
    plan: Plan,
    report: Report,
    *,
    image: str | None = None,
    run: str | None = None,
    packs: Iterable[str] = (),
    wheels: Mapping[str, str] | None = None,
    cache: str | None = None,
) -> dict[str, Any]:
    """The predicate for the wheel of a plan.

    Args:
        plan: What was built: its digest, its source, the archives of its toolkit.
        report: What verify found: its digest, as `verify.json` in the folder of the run.
        image: The id of the image that it was built in (`sha256:…`), where known.
        run: The id of the run, where there was one.
        packs: The sha256 of the packs of other machines that the compiler cache had.
        wheels: The published wheels that it was built against: sha256 by name.
        cache: Which compiler cache of the build's own machine it had; what was in it is not known by digest.
    """
    source = plan.source
    digest = {"gitCommit": source.commit} if source.kind == "git" else {"sha256": source.digest}
    dependencies: list[dict[str, Any]] = [
        {"name": "source", "uri": f"git+{source.url}@{source.tag}" if source.kind == "git" else None, "digest": digest}
    ]
    if image is not None:
        dependencies.append({"name": "image", "uri": plan.base, "digest": {"sha256": image.removeprefix("sha256:")}})
    for archive in plan.toolkit.archives if plan.toolkit else ():
        dependencies.append({"name": archive.component, "uri": archive.url, "digest": {"sha256": archive.sha256}})
    dependencies += [{"name": "compiler cache pack", "digest": {"sha256": pack}} for pack in packs]
    dependencies += [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted((wheels or {}).items())]
    if cache is not None:
        dependencies.append({"name": "local compiler cache", "annotations": {"volume": cache}})
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
            "externalParameters": parameters,
            "internalParameters": {"plan": {"sha256": plan.digest}},
            "resolvedDependencies": [
                {name: value for name, value in each.items() if value is not None} for each in dependencies
            ],
        },
        "runDetails": {
            "builder": {"id": "urn:torch-farm", "version": {"torch-farm": __version__}},
            "metadata": {"invocationId": run} if run else {},
            "byproducts": [
                {"name": "verify.json", "digest": {"sha256": hashlib.sha256(report_text(report).encode()).hexdigest()}}
            ],
        },
    }
