"""Several packages that belong together, such as torch, torchvision and torchaudio: one channel for
all of them, and the order in which they are built.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from farm.base.errors import NotBuildableError, UsageError
from farm.plan.channel_choice import channels_in_order
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.recipe import recipe
from farm.plan.request import BuildRequest
from farm.plan.resolve import check_request


def channel_of_set(project: Path, request: BuildRequest, packages: Sequence[str]) -> str:
    """Return the channel that builds all packages of a set.

    It is the best one for the package that others need, among those that build the others too.

    Args:
        project: The folder that holds `ci/`.
        request: The request without its package.
        packages: The packages of the set.

    Raises:
        NotBuildableError: No channel builds them all; the message says what each lacks.
        UsageError: A name is unknown.
    """
    if request.channel:
        return request.channel
    load_matrix(project)  # with it the project's own recipes are known
    lead = _needed_first(packages)
    faults = []
    for channel in channels_in_order(project, replace(request, package=lead)):
        lacking = _not_built(project, replace(request, channel=channel), packages)
        if not lacking:
            return channel
        faults.append(f"{channel} does not build {', '.join(lacking)}")
    if not faults:
        check_request(project, replace(request, package=lead)).require_buildable()
    raise NotBuildableError(
        f"no channel builds {', '.join(packages)} together for {request.variant}: "
        f"{'; '.join(faults)}",
        hint="name fewer packages, or add the missing ones to a channel of ci/matrix.yaml",
    )


def _not_built(project: Path, request: BuildRequest, packages: Sequence[str]) -> list[str]:
    """The packages that the channel of a request does not build."""
    lacking = []
    for package in packages:
        if not _builds(project, replace(request, package=package)):
            lacking.append(package)
    return lacking


def _builds(project: Path, request: BuildRequest) -> bool:
    try:
        return check_request(project, request).complete
    except UsageError:  # the channel does not have the package
        return False


def _needed_first(packages: Sequence[str]) -> str:
    """The first package that needs no other one of the set.

    Raises:
        UsageError: There is no recipe of that name, wherever it stands in the set.
    """
    needs = {package: recipe(package).needs for package in packages}
    for package in packages:
        if set(packages).isdisjoint(needs[package]):
            return package
    return packages[0]  # a circle, which the plan refuses


def makers_first(plans: Sequence[Plan]) -> list[Plan]:
    """Return plans in the order in which they can be built: what others need comes before them."""
    makers = {}
    for plan in plans:
        makers[f"{plan.package}=={plan.version}", plan.variant, plan.platform] = plan
    ordered: dict[str, Plan] = {}

    def add(plan: Plan) -> None:
        if plan.digest in ordered:
            return
        for need in plan.needs:
            maker = makers.get((need, plan.variant, plan.platform))
            if maker is not None:
                add(maker)
        ordered[plan.digest] = plan

    for plan in plans:
        add(plan)
    return list(ordered.values())
