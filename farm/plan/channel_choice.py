"""The channel of a build for which none was asked: the right stack by default.

Of the channels that can build it, in this order: those that the project wrote itself; those whose
stack the rules do not warn of; those that offer the variant; those with the CUDA that was asked
for; the newest PyTorch; those that pin the PyTorch that was asked for; those with a proved build of
the variant; and last the order of `ci/matrix.yaml`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from farm.base.errors import UsageError
from farm.catalog import number
from farm.plan.channel import Channel
from farm.plan.evidence import load_evidence
from farm.plan.matrix import load_matrix
from farm.plan.options import Value
from farm.plan.request import (
    BuildRequest,
    ResolvedRequest,
    Verdict,
    changed,
    resolve_options,
    verdict_on,
)

Fields = Mapping[str, Any] | None
"""Further fields of the stack, such as a driver; None: none."""


@dataclass(frozen=True)
class ChannelResult:
    """A request with the options that one channel gives it, and what stands against it."""

    resolved: ResolvedRequest
    verdict: Verdict

    @property
    def channel(self) -> Channel:
        return self.resolved.channel

    @property
    def warnings(self) -> frozenset[str]:
        """The rules that warn of it."""
        rules = self.verdict.rules
        return frozenset(reason.rule for reason in rules if reason.severity == "warning")

    @property
    def offered(self) -> bool:
        """True if the channel lists the variant; else it can build it all the same."""
        request = self.resolved.request
        package = self.resolved.package
        return bool(self.channel.cudas(package, request.variant, request.platform))


def best_channel(project: Path, request: BuildRequest, fields: Fields = None) -> ChannelResult:
    """Resolve a request in the channel that was asked for, else in the best one.

    Where no channel can build it, the one with the least against it stands for the answer: what a
    channel does not have must not be the reason against a build that asked for none.

    Args:
        project: The folder that holds `ci/`.
        request: The request.
        fields: Further fields of the stack, such as a driver.

    Raises:
        UsageError: A name or value is unknown, or a configuration file is wrong.
    """
    first = _try(project, request, fields)
    if request.channel:
        return _with_alternatives(project, request, fields, first)
    results = [first, *_others(project, request, fields, first)]
    able = _complete(results)
    if not able:
        # A stable order: of equals the first stays.
        least = min(results, key=lambda result: result.verdict.obstacles)
        return _with_alternatives(project, request, fields, least)
    preferred = _preferred(project, request, able)
    origin = "default" if preferred.offered else "it fits"
    return replace(preferred, resolved=replace(preferred.resolved, channel_origin=origin))


def _try(
    project: Path,
    request: BuildRequest,
    fields: Fields,
    channel: str | None = None,
) -> ChannelResult:
    resolved = resolve_options(project, request, fields, channel)
    return ChannelResult(resolved, verdict_on(resolved))


def _others(
    project: Path, request: BuildRequest, fields: Fields, first: ChannelResult
) -> list[ChannelResult]:
    """The request in every other channel that builds the package, those with the CUDA that was
    asked for first, else in the order of the file.
    """
    channels = []
    for channel in load_matrix(project).channels.values():
        if channel.name == first.channel.name or request.platform not in channel.platforms:
            continue
        if first.resolved.package in channel.packages:
            channels.append(channel)
    cuda = _asked_cuda(request)
    channels.sort(key=lambda channel: cuda not in channel.cuda)
    results = []
    for channel in channels:
        try:
            results.append(_try(project, request, fields, channel.name))
        except UsageError:  # an option that was asked for means nothing to its recipe
            continue
    return results


def _asked_cuda(request: BuildRequest) -> Value:
    """The CUDA version that was asked for; None: none was."""
    if "cuda" not in request.options:
        return None
    return request.options["cuda"][0]


def _with_alternatives(
    project: Path, request: BuildRequest, fields: Fields, result: ChannelResult
) -> ChannelResult:
    """Name what can be planned instead of a build that cannot be."""
    if result.verdict.complete:
        return result
    if not result.verdict.offer:
        # The rules know what goes together, not what the channels have sources of.
        follows = partial(_is_followed_by_a_plan, project, request, fields)
        return replace(result, verdict=replace(result.verdict, can_be_planned=follows))
    plannable = _plannable(project, request, fields, result)
    offer = []
    for reason in result.verdict.offer:
        if reason.nearest in plannable:
            offer.append(reason)
        else:  # what a reason alone would propose may be refused for another reason
            offer.append(replace(reason, nearest=None))
    revised = replace(result.verdict, offer=offer, instead=tuple(plannable))
    return replace(result, verdict=revised)


def _plannable(
    project: Path, request: BuildRequest, fields: Fields, result: ChannelResult
) -> list[str]:
    """What can be planned where a channel lacks what was asked for, each as it is typed."""
    free = replace(request, channel=None)
    able = _complete(_others(project, free, fields, result))
    texts = []
    if able:
        texts.append(f"--channel {_preferred(project, free, able).channel.name}")
    for reason in result.verdict.offer:
        if reason.nearest:
            texts.append(reason.nearest)
    plannable = [text for text in texts if _can_be_planned(project, request, fields, text)]
    if plannable or not request.channel:
        return plannable
    nearest = best_channel(project, free, fields)
    for alternative in nearest.verdict.alternatives():
        text = f"--channel {nearest.channel.name} {alternative}"
        if _can_be_planned(project, request, fields, text):
            plannable.append(text)
    return plannable


def _complete(results: Iterable[ChannelResult]) -> list[ChannelResult]:
    """The channels that can build a request."""
    return [result for result in results if result.verdict.complete]


def _can_be_planned(project: Path, request: BuildRequest, fields: Fields, text: str) -> bool:
    try:
        return _try(project, changed(request, text), fields).verdict.complete
    except UsageError:
        return False


def channels_in_order(project: Path, request: BuildRequest) -> list[str]:
    """Return the channels that can build a request, the best one first."""
    first = _try(project, request, None)
    able = _complete((first, *_others(project, request, None, first)))
    return [result.channel.name for result in _in_order(project, request, able)]


def _is_followed_by_a_plan(project: Path, request: BuildRequest, fields: Fields, text: str) -> bool:
    """True if some channel plans the request with the options of a text.

    A text that changes more than options, such as the driver, is about a question, not a plan.
    """
    if "," in text or not text.startswith("--"):
        return True
    try:
        followed = best_channel(project, changed(request, text), fields)
    except UsageError:
        return False
    return followed.verdict.complete


def _preferred(project: Path, request: BuildRequest, able: list[ChannelResult]) -> ChannelResult:
    """The first of the channels that can build a request."""
    return _in_order(project, request, able)[0]


def _in_order(
    project: Path, request: BuildRequest, able: list[ChannelResult]
) -> list[ChannelResult]:
    """The channels that can build a request, in the order of this module's text."""
    if not able:
        return []
    matrix = load_matrix(project)
    places = list(matrix.channels)
    project_channels = set(matrix.own())
    proved = _proved_channels(project, request)
    # What the rules say of every one of them says nothing for or against one.
    common = frozenset.intersection(*(result.warnings for result in able))
    asked_cuda = _asked_cuda(request)

    def rank(result: ChannelResult) -> tuple[Any, ...]:
        channel = result.channel
        torch = result.resolved.stack.torch
        return (
            channel.name not in project_channels,
            bool(result.warnings - common),
            not result.offered,
            asked_cuda is not None and asked_cuda not in channel.cuda,
            _newest_first(torch),
            torch != channel.text.options.get("torch"),
            (channel.name, result.resolved.package) not in proved,
            places.index(channel.name),
        )

    return sorted(able, key=rank)


def _newest_first(release: str | None) -> tuple[int, ...]:
    """A key that sorts the newest release first, and none last."""
    if release is None:
        return (0,)
    return tuple(-part for part in number(release))


def _proved_channels(project: Path, request: BuildRequest) -> set[tuple[str, str]]:
    """The channels and packages with a proved build of a request's variant."""
    proved = set()
    for wheel in load_evidence(project).wheels:
        if wheel.variant == str(request.variant) and wheel.platform == request.platform:
            proved.add((wheel.channel, wheel.package))
    return proved
