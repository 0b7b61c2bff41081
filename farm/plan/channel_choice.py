"""The channel of a build for which none was asked: the right stack by default.

Of the channels that can build it, in this order: those that the project wrote itself; those whose
stack the rules do not warn of; those that offer the variant; those with the CUDA that was asked
for; the newest PyTorch; those that pin the PyTorch that was asked for; those with a proved build of
the variant; and last the order of `ci/matrix.yaml`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from farm.base.errors import UsageError
from farm.catalog import number
from farm.plan.evidence import load_evidence
from farm.plan.matrix import Channel, load_matrix
from farm.plan.selectors import Candidate, Judgement, Selectors, candidate, changed, judgement


@dataclass(frozen=True)
class Verdict:
    """A request with the options that one channel gives it, and what stands against it."""

    candidate: Candidate
    judgement: Judgement

    @property
    def channel(self) -> Channel:
        return self.candidate.channel

    @property
    def warnings(self) -> frozenset[str]:
        """The rules that warn of it."""
        rules = self.judgement.rules
        return frozenset(reason.rule for reason in rules if reason.severity == "warning")

    @property
    def offered(self) -> bool:
        """True if the channel lists the variant; else it can build it all the same."""
        selectors = self.candidate.selectors
        package = self.candidate.package
        return bool(self.channel.cudas(package, selectors.variant, selectors.platform))


def best_channel(
    project: Path, selectors: Selectors, fields: Mapping[str, Any] | None = None
) -> Verdict:
    """Resolve a request in the channel that was asked for, else in the best one.

    Where no channel can build it, the one with the least against it stands for the answer: what a
    channel does not have must not be the reason against a build that asked for none.

    Args:
        project: The folder that holds `ci/`.
        selectors: The request.
        fields: Further fields of the stack, such as a driver.

    Raises:
        UsageError: A name or value is unknown, or a configuration file is wrong.
    """
    first = _verdict(project, selectors, fields)
    if selectors.channel:
        return _with_alternatives(project, selectors, fields, first)
    alternatives = _others(project, selectors, fields, first)
    able = [verdict for verdict in (first, *alternatives) if verdict.judgement.complete]
    if not able:
        # A stable order: of equals the first stays.
        least = min((first, *alternatives), key=lambda verdict: verdict.judgement.obstacles)
        return _with_alternatives(project, selectors, fields, least)
    preferred = _preferred(project, selectors, able)
    origin = "default" if preferred.offered else "it fits"
    return replace(preferred, candidate=replace(preferred.candidate, channel_origin=origin))


def _verdict(
    project: Path,
    selectors: Selectors,
    fields: Mapping[str, Any] | None,
    channel: str | None = None,
) -> Verdict:
    resolved = candidate(project, selectors, fields, channel)
    return Verdict(resolved, judgement(resolved))


def _others(
    project: Path, selectors: Selectors, fields: Mapping[str, Any] | None, first: Verdict
) -> list[Verdict]:
    """The request in every other channel that builds the package, in the order of the file."""
    cuda = selectors.options.get("cuda", (None,))[0]
    channels = [
        channel
        for channel in load_matrix(project).channels.values()
        if channel.name != first.channel.name
        and first.candidate.package in channel.packages
        and selectors.platform in channel.platforms
    ]
    channels.sort(key=lambda channel: cuda not in channel.cuda)
    verdicts = []
    for channel in channels:
        try:
            verdicts.append(_verdict(project, selectors, fields, channel.name))
        except UsageError:  # an option that was asked for means nothing to its recipe
            continue
    return verdicts


def _with_alternatives(
    project: Path, selectors: Selectors, fields: Mapping[str, Any] | None, verdict: Verdict
) -> Verdict:
    """Name what can be planned instead of a build that cannot be."""
    if verdict.judgement.complete:
        return verdict
    if not verdict.judgement.offer:
        # The rules know what goes together, not what the channels have sources of.
        follows = partial(_is_followed_by_a_plan, project, selectors, fields)
        return replace(verdict, judgement=replace(verdict.judgement, can_be_planned=follows))
    free = replace(selectors, channel=None)
    able = [
        alternative
        for alternative in _others(project, free, fields, verdict)
        if alternative.judgement.complete
    ]
    texts = [f"--channel {_preferred(project, free, able).channel.name}"] if able else []
    texts += [reason.nearest for reason in verdict.judgement.offer if reason.nearest]
    plannable = [text for text in texts if _can_be_planned(project, selectors, fields, text)]
    if not plannable and selectors.channel:
        nearest = best_channel(project, free, fields)
        texts = [
            f"--channel {nearest.channel.name} {text}" for text in nearest.judgement.alternatives()
        ]
        plannable = [text for text in texts if _can_be_planned(project, selectors, fields, text)]
    # What a reason alone would propose may be refused for another reason.
    offer = [
        reason if reason.nearest in plannable else replace(reason, nearest=None)
        for reason in verdict.judgement.offer
    ]
    revised = replace(verdict.judgement, offer=offer, instead=tuple(plannable))
    return replace(verdict, judgement=revised)


def _can_be_planned(
    project: Path, selectors: Selectors, fields: Mapping[str, Any] | None, text: str
) -> bool:
    try:
        return _verdict(project, changed(selectors, text), fields).judgement.complete
    except UsageError:
        return False


def _is_followed_by_a_plan(
    project: Path, selectors: Selectors, fields: Mapping[str, Any] | None, text: str
) -> bool:
    """True if some channel plans the request with the options of a text.

    A text that changes more than options, such as the driver, is about a question, not a plan.
    """
    if "," in text or not text.startswith("--"):
        return True
    try:
        followed = best_channel(project, changed(selectors, text), fields)
    except UsageError:
        return False
    return followed.judgement.complete


def _preferred(project: Path, selectors: Selectors, able: list[Verdict]) -> Verdict:
    """The first of the channels that can build a request, in the order of this module's text."""
    matrix = load_matrix(project)
    places = {name: place for place, name in enumerate(matrix.channels)}
    project_channels = set(matrix.own())
    proved = {
        (wheel.channel, wheel.package)
        for wheel in load_evidence(project).wheels
        if wheel.variant == str(selectors.variant) and wheel.platform == selectors.platform
    }
    # What the rules say of every one of them says nothing for or against one.
    common = frozenset.intersection(*(verdict.warnings for verdict in able))
    asked_cuda = selectors.options.get("cuda", (None,))[0]

    def rank(verdict: Verdict) -> tuple[Any, ...]:
        channel = verdict.channel
        stack = verdict.candidate.stack
        release = number(stack.torch) if stack.torch else (0,)
        return (
            channel.name not in project_channels,
            bool(verdict.warnings - common),
            not verdict.offered,
            asked_cuda is not None and asked_cuda not in channel.cuda,
            tuple(-part for part in release),
            stack.torch != channel.text.options.get("torch"),
            (channel.name, verdict.candidate.package) not in proved,
            places[channel.name],
        )

    return min(able, key=rank)
