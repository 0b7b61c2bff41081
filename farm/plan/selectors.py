"""What was asked for, and the candidate that follows from it: channel, recipe and the choice of every option."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm import catalog
from farm.compat import Stack
from farm.matrix import Channel, Pins, load_matrix
from farm.options import OPTIONS, Choice, Option, Value, option
from farm.platforms.facts import DEFAULT
from farm.platforms.registry import platform
from farm.recipe import Recipe, recipe
from farm.variant import Variant


@dataclass(frozen=True)
class Selectors:
    """What was asked for. `options` has the options that somebody chose, and where; the channel chooses the others."""

    variant: Variant
    package: str = "torch"
    platform: str = DEFAULT
    channel: str | None = None
    options: Mapping[str, Choice] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A build before it is judged.

    Attributes:
        selectors: What was asked for.
        channel: Whose pins it has; `channel_origin` says who chose it.
        pins: What the channel pins for this build.
        recipe: How the package is built.
        chosen: The choice of every option of the table.
        stack: The same for the compatibility rules.
    """

    selectors: Selectors
    channel: Channel
    channel_origin: str
    pins: Pins
    recipe: Recipe
    chosen: Mapping[str, Choice]
    stack: Stack

    def value(self, name: str) -> Value:
        """What was chosen for the option `name`."""
        return self.chosen[name].value


def candidate(project: Path, selectors: Selectors, asked: Mapping[str, Any] | None = None) -> Candidate:
    """The build that the selectors mean; `asked` are further fields of the stack, such as a driver.

    Raises:
        UsageError: A package, platform, channel, option or value is unknown; the nearest are given.
    """
    variant, options = selectors.variant, {name: Choice(*given) for name, given in selectors.options.items()}
    for name, choice in options.items():
        option(name).check(choice)
    package = recipe(selectors.package).package
    system = platform(selectors.platform)
    matrix = load_matrix(project)
    channel = matrix.channel(selectors.channel or matrix.default_channel(package, variant, selectors.platform))
    pins = channel.pins(package, variant, selectors.platform, _text(options.get("cuda")))
    recipe_ = recipe(pins.recipe)
    chosen = {one.name: _choose(one, recipe_, variant, options, pins, channel.name) for one in OPTIONS.values()}
    stack = Stack(
        package=recipe_.package,
        variant=variant,
        platform=selectors.platform,
        base=pins.base,
        toolkit=_text(chosen["toolkit"]),
        cuda=_text(chosen["cuda"]),
        torch=_text(chosen["torch"]),
        cudnn=_text(chosen["cudnn"]),
        ptx=bool(chosen["ptx"].value),
        blas=_text(chosen["blas"]),
        components=tuple(recipe_.components),
        **(asked or {}),
    )
    return Candidate(
        selectors=selectors,
        channel=channel,
        channel_origin="--channel" if selectors.channel else "default",
        pins=pins,
        recipe=recipe_,
        chosen=chosen,
        stack=system.completed(stack),
    )


def _choose(
    one: Option, recipe_: Recipe, variant: Variant, given: Mapping[str, Choice], pins: Pins, channel: str
) -> Choice:
    """What was asked for, else what the channel pins, else the default; what means nothing to the build is unset."""
    if one.needs_gpu and not variant.sms:
        return Choice(one.unset, f"variant {variant}")
    if not one.applies(recipe_):
        return Choice(one.unset, f"recipe {recipe_.package}")
    if one.name in given:
        return _completed(one, given[one.name])
    if one.name in pins.options:
        return _completed(one, Choice(pins.options[one.name], f"channel {channel}"))
    return Choice(one.default, "default")


def _completed(one: Option, choice: Choice) -> Choice:
    """`--torch 2.7` means the newest 2.7 of the catalogue; a version that is not there is left to the rules."""
    if one.catalogue is None or not isinstance(choice.value, str):
        return choice
    known = getattr(catalog, one.catalogue)()
    return choice._replace(value=catalog.find(known, choice.value) or choice.value)


def _text(choice: Choice | None) -> str | None:
    return choice.value if choice and isinstance(choice.value, str) else None
