"""Which two choices exclude each other whatever else is chosen, and why, in the words of the farm's own rules.

A pair is judged by trying it within builds that the farm offers: those that have the one value get the other. What a
rule holds against every one of them is the reason that a user is shown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any

from farm import catalog
from farm.plan.compat import Stack, check
from farm.plan.variant import Variant
from farm.platforms.facts import facts
from farm.site.offers import Offer

AXES = ("gpu", "cpu", "python", "cuda", "torch", "platform")
SAMPLES = 3  # builds tried on each side of a pair: they differ in what the pair leaves open


@dataclass(frozen=True)
class Conflict:
    """Two values that no build can join. `axis`=`value` against `other_axis`=`other_value`."""

    axis: str
    value: str
    other_axis: str
    other_value: str
    why: str


def conflicts(offers: Sequence[Offer]) -> list[Conflict]:
    """Every pair of values of two axes that is in no offer and that a rule forbids, in the order of the axes."""
    # The companions follow torch: they would only say the same again.
    torch = [offer for offer in offers if offer.package == "torch" and offer.torch]
    return list(_conflicts(torch))


def _conflicts(offers: Sequence[Offer]) -> Iterator[Conflict]:
    samples = {axis: _samples(offers, axis) for axis in AXES}
    for axis, other in combinations(AXES, 2):
        joined = {(getattr(offer, axis), getattr(offer, other)) for offer in offers}
        for value, having in samples[axis].items():
            for other_value, having_other in samples[other].items():
                # An offer has both, so nothing is to be explained.
                if (value, other_value) in joined:
                    continue
                why = _why([*having, *having_other], {axis: value, other: other_value})
                if why:
                    yield Conflict(axis, value, other, other_value, why)


def _samples(offers: Sequence[Offer], axis: str) -> dict[str, list[Offer]]:
    """A few offers of each value of an axis: one build without a reason already shows that two values can be joined."""
    having: dict[str, list[Offer]] = {}
    for offer in offers:
        if (value := getattr(offer, axis)) is not None:
            having.setdefault(value, []).append(offer)
    return {value: list(islice(_spread(those), SAMPLES)) for value, those in having.items()}


def _why(samples: Sequence[Offer], pair: dict[str, str]) -> str | None:
    """The first error that every sample has; None: no rule forbids the pair by itself."""
    reasons: dict[str, str] | None = None
    for offer in samples:
        # By rule: the texts differ from sample to sample, since they name the other choices.
        found = {r.rule: r.text for r in check(_stack(_with(offer, pair))) if r.severity == "error"}
        reasons = found if reasons is None else {rule: text for rule, text in reasons.items() if rule in found}
        if not reasons:
            return None
    return next(iter(reasons.values()), None) if reasons else None


def _with(offer: Offer, values: Mapping[str, Any]) -> Offer:
    return replace(offer, **values)


def _spread(offers: Iterable[Offer]) -> Iterator[Offer]:
    """Offers of different releases first: those of one release say the same."""
    seen: set[tuple[str | None, str | None, str]] = set()
    for offer in offers:
        mark = (offer.torch, offer.cuda, offer.platform)
        if mark not in seen:
            seen.add(mark)
            yield offer


def _stack(offer: Offer) -> Stack:
    cpu = offer.cpu
    variant = Variant.parse(f"{offer.gpu}-{cpu}-{offer.python}")
    gpu = bool(variant.sms)
    return Stack(
        package=offer.package,
        variant=variant,
        platform=offer.platform,
        base=catalog.base_of(offer.python) if facts(offer.platform).in_images else None,
        toolkit="nvidia" if gpu else None,
        cuda=offer.cuda if gpu else None,
        torch=offer.torch,
        standalone=(),  # which Python a base image has is no conflict
    )
