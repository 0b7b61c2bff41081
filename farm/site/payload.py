"""The data inside the selector's page: small, because 2,000 wheels travel with it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from farm import catalog
from farm.catalog import gpus
from farm.plan.compat import official
from farm.plan.variant import PYTHONS, Variant, cpus, sm_number
from farm.plan.variant import gpus as gpu_words
from farm.platforms.facts import PLATFORMS
from farm.site.conflicts import Conflict
from farm.site.offers import Offer, by_builds
from farm.site.state import STATES, Known

AXES = ("package", "platform", "gpu", "cpu", "python", "torch", "cuda")
OFFICIAL = ("linux-x86_64", "linux-aarch64", "windows-x86_64")
"""Where PyTorch publishes wheels with CUDA."""
GROUP = "variant-group"
"""Stands for the group of a variant in the options that the page fills in."""

Source = Callable[[str], tuple[str, ...]]
"""Group -> the options by which pip finds its wheels."""


def payload(
    offers: Sequence[Offer], conflicts: Iterable[Conflict], known: Known, source: Source, links: Source
) -> dict[str, Any]:
    """The data of selector.js. Builds are rows of numbers into the lists of words beside them."""
    words = {axis: _words(offers, axis) for axis in AXES}
    channels = list(dict.fromkeys(offer.channel for offer in offers))
    off = list(dict.fromkeys(offer.off for offer in offers))
    drivers = list(dict.fromkeys(offer.driver for offer in offers))
    rows = []
    states = {}
    proved = {}
    for number, offer in enumerate(offer for offer in offers if not offer.blocked):
        place = [_place(words[axis], getattr(offer, axis)) for axis in AXES]
        # Places in the lists of words: the words themselves, in thousands of rows, would make the page much larger.
        rows.append(
            [*place, channels.index(offer.channel), offer.version, off.index(offer.off), drivers.index(offer.driver)]
        )
        state, why = known.state(offer)
        # Most builds are open: leaving that out keeps the page small.
        if state != "open":
            states[number] = [state, why]
        if offer.proved:
            proved[number] = offer.proved
    shown = {_name(offer): (offer, wheel) for offer in offers if (wheel := known.wheel(offer))}
    return {
        "schema": 1,
        "axes": words,
        "labels": {"gpu": _gpu_labels(words["gpu"]), "cpu": _cpu_labels(words["cpu"]), **_labels(words)},
        "channels": channels,
        "off": [[name.removeprefix("USE_") for name in names] for names in off],
        "drivers": drivers,
        "builds": rows,
        "states": states,
        "words": STATES,
        "proved": proved,
        "wheels": {key: [w.filename, w.size, w.sha256, w.uploaded[:10], w.version] for key, (_, w) in shown.items()},
        "smokes": {
            key: [[smoke.where, smoke.date, smoke.outcome] for smoke in smokes]
            for key, (offer, _) in shown.items()
            if (smokes := known.smokes(offer))
        },
        "conflicts": [[c.axis, c.value, c.other_axis, c.other_value, c.why] for c in conflicts],
        "cards": [[card.name, card.sm] for card in gpus.cards()],
        "tooOld": {sm: f"{old.name} ({sm}): {old.why}" for sm, old in gpus.gpus().too_old.items()},
        "arm": _beside_arm(),
        "official": {place: _official(place) for place in OFFICIAL},
        "newestTorch": list(catalog.torch_releases())[-1],
        "machines": {name: catalog.cpu_levels()[name].machine for name in words["cpu"]},
        "lastDriver": {gpu: branch for gpu in words["gpu"] if (branch := _last_driver(gpu)) is not None},
        "group": GROUP,
        "pip": list(source(GROUP)),
        "links": list(links(GROUP)),
    }


def _name(offer: Offer) -> str:
    """As selector.js makes it out of a build's own words."""
    return "|".join((offer.package, offer.version, offer.python, offer.platform))


def _beside_arm() -> list[str]:
    """The cards and the SMs that exist beside 64-bit Arm alone, as `farm why --official` decides it."""
    known = {card.name: card.sm for card in gpus.cards()}
    known |= {name: name for name in (*catalog.architectures().architectures, *gpus.gpus().too_old)}
    return [name for name, sm in known.items() if gpus.machine(name, sm_number(sm)) == "aarch64"]


def _official(place: str) -> dict[str, list[str | None] | None]:
    """By GPU, PyTorch's own newest wheel that runs on it: release, CUDA, driver and pip line; None: none runs."""
    found: dict[str, list[str | None] | None] = {}
    for name in (*catalog.architectures().architectures, *gpus.gpus().too_old):
        answer = official.best(official.Question((sm_number(name),), place))
        wheel = answer.wheel
        found[name] = [wheel.torch, wheel.cuda, answer.drivers, wheel.pip] if wheel else None
    return found


def _words(offers: Sequence[Offer], axis: str) -> list[str]:
    """The values that are offered, in the order that a person expects."""
    there = {value for offer in offers if not offer.blocked and (value := getattr(offer, axis)) is not None}
    order: dict[str, Sequence[str]] = {
        "package": by_builds(offers),
        "platform": tuple(PLATFORMS),
        "gpu": gpu_words(),
        "cpu": cpus(),
        "python": PYTHONS,
    }
    if axis in order:
        return [value for value in order[axis] if value in there] + sorted(there - set(order[axis]))
    return sorted(there, key=lambda version: [int(part) for part in version.split(".")])


def _place(words: Sequence[str], value: str | None) -> int:
    # -1 for selector.js: the build has no value on this axis.
    return -1 if value is None else words.index(value)


def _gpu_labels(names: Iterable[str]) -> dict[str, str]:
    known = catalog.architectures().architectures
    labels = {name: f"{known[name].name}: {known[name].example}" for name in names if name in known}
    return labels | {"cpu": "no GPU", "mps": "Apple GPU", "kepler": "all Kepler", "legacy": "Kepler to Turing"}


def _cpu_labels(names: Iterable[str]) -> dict[str, str]:
    return {name: level.example for name, level in catalog.cpu_levels().items() if name in set(names)}


def _labels(words: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    return {
        "python": {python: f"{python[2]}.{python[3:]}" for python in words["python"]},
        "platform": {name: PLATFORMS[name].title for name in words["platform"]},
    }


def _last_driver(gpu: str) -> int | None:
    """The last driver branch that runs every card of the variant."""
    known = catalog.architectures().architectures
    last = [known[name].last_driver for name in Variant.parse(f"{gpu}-avx2-py311").architectures]
    # The lowest: one driver must run every card of the variant.
    return min((branch for branch in last if branch is not None), default=None)
