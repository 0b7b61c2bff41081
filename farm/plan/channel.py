"""Channels after inheritance: pinned stacks, the builds that they offer, and the pins of each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import NamedTuple

from farm import catalog
from farm.plan import recipe
from farm.plan.channel_text import AXES, Axes, ChannelText, Rule
from farm.plan.compat.reason import Reason
from farm.plan.compat.rules import CHANNEL_KEYS, check
from farm.plan.compat.stack import Stack
from farm.plan.options import OPTIONS, Value
from farm.plan.recipe import BuildWheel, Recipe, VerifyRules, is_replaced
from farm.plan.variant import SPECIAL_GPUS, Variant
from farm.platforms.facts import facts


class Key(NamedTuple):
    """One word an axis, in the order of AXES. The CUDA version is None where the GPU word is `cpu`
    or `mps`.
    """

    package: str
    platform: str
    gpu: str
    cpu: str
    python: str
    cuda: str | None

    @property
    def variant(self) -> Variant:
        return Variant(self.gpu, self.cpu, self.python)


Place = tuple[int | str, ...]
"""Where in a channel something is written: keys, and numbers of rules and words."""

Named = tuple[tuple[int, frozenset[str | None]], ...]
"""The words of a rule, by the place of their axis in a key."""

_KEY_AT_FAULT = CHANNEL_KEYS | {option: option for option in OPTIONS}
"""The rules whose refusal a channel shall never offer, and the key of the channel at fault."""


class RuleError(Exception):
    """A channel contradicts itself. `loc` is where: a key of the channel, and what follows below
    it.
    """

    def __init__(self, text: str, *loc: int | str) -> None:
        super().__init__(text)
        self.loc = loc


@dataclass(frozen=True)
class Pins:
    """The pins of a channel for one build.

    `base` is the image of Linux builds, by their Python where it pins none. `options` has what the
    channel says of each option of the table that it has a key for, and `cuda`.
    """

    base: str | None
    options: dict[str, Value]
    switches: dict[str, bool]
    recipe: str
    verify: VerifyRules | None
    official: Sequence[BuildWheel] = ()


@dataclass(frozen=True)
class Build:
    """One entry of the matrix."""

    channel: str
    package: str
    variant: Variant
    platform: str
    cuda: str | None

    @property
    def alias(self) -> str:
        """Its name in the style of `pytorch-python313-cuda12_8-sm80-avx512`; unique in a
        channel.
        """
        platform = facts(self.platform)
        words = [self.package, self.variant.python.replace("py", "python")]
        if self.package == "torch":
            words[0] = "pytorch"
        if platform.in_alias:
            words.append(platform.in_alias)
        if self.cuda:
            words.append(f"cuda{self.cuda.replace('.', '_')}")
        words.append(self.variant.gpu)
        # Every Mac that is built for has the same CPU level.
        if self.variant.gpu not in platform.gpus:
            words.append(self.variant.cpu)
        return "-".join(words)


class Channel:
    """A pinned stack and what it offers: (the product of its axes + its includes) - its
    excludes.
    """

    def __init__(self, name: str, text: ChannelText) -> None:
        self.name = name
        self.text = text
        self.packages = self._words("packages")
        self.platforms = self._words("platforms")
        self.gpus = self._words("gpus")
        self.cpus = self._words("cpus")
        self.cuda = self._words("cuda")
        self._blocks = (Axes(), *text.include)
        self._excludes = [_named(rule) for rule in text.exclude]
        self._check_words()
        self._check_rules()
        self._check_possible()

    @cached_property
    def builds(self) -> tuple[Build, ...]:
        """Every build: in the order of the file, the axes first, then the includes."""
        return tuple(_build(self.name, key) for key in self._offered)

    @cached_property
    def _offered(self) -> tuple[Key, ...]:
        offered = []
        for block in self._blocks:
            for key in _keys(self.text, block):
                if not self._excluded(key):
                    offered.append(key)
        return tuple(offered)

    def cudas(self, package: str, variant: Variant, platform: str) -> tuple[str | None, ...]:
        """The CUDA versions that it is offered for, the default first; (None,) without an SM, () if
        not offered.
        """
        versions: tuple[str | None, ...] = self.cuda
        if variant.gpu in SPECIAL_GPUS:
            versions = (None,)
        offered = []
        for cuda in versions:
            key = _key(package, variant, platform, cuda)
            if self._is_listed(key) and not self._excluded(key):
                offered.append(cuda)
        return tuple(offered)

    def pins(self, package: str, variant: Variant, platform: str, cuda: str | None = None) -> Pins:
        """The options of a build, also of one that is not offered, by default with the first
        CUDA.
        """
        # A build that is not offered gets the channel's first CUDA: the rules need one to judge.
        if not cuda:
            cuda = next(iter((*self.cudas(package, variant, platform), *self.cuda)), None)
        options: dict[str, Value] = {"cuda": cuda, **self.text.options}
        # In the order of the file: where two say something of one option, the later one wins.
        for exception in self.text.exceptions:
            if _names(_named(exception), _key(package, variant, platform, cuda)):
                options |= exception.options
        base = None
        if facts(platform).in_images:
            base = self.text.base or catalog.base_of(variant.python)
        return Pins(
            base=base,
            options=options,
            switches=self.text.switches,
            recipe=self.text.recipe_of(package),
            verify=self.text.verify,
            official=self.text.official,
        )

    def _words(self, axis: str) -> tuple[str, ...]:
        words: list[str] = []
        for part in (self.text, *self.text.include):
            words += getattr(part, axis)
        return tuple(dict.fromkeys(words))

    def _is_listed(self, key: Key) -> bool:
        return any(_matches(self.text, block, key) for block in self._blocks)

    def _excluded(self, key: Key) -> bool:
        return any(_names(rule, key) for rule in self._excludes)

    def _check_words(self) -> None:
        """No word twice in a list, and none in a rule that can never match. Raises RuleError: there
        is one.
        """
        for axis in AXES:
            self._check_axis(axis, getattr(self.text, axis), (axis,))
        for key in ("include", "exclude", "exceptions"):
            for index, rule in enumerate(getattr(self.text, key)):
                for axis in AXES:
                    self._check_axis(axis, getattr(rule, axis), (key, index, axis))

    def _check_axis(self, axis: str, words: list[str], loc: Place) -> None:
        axis_words = self._words(axis)
        for index, word in enumerate(words):
            if word in words[:index]:
                raise RuleError(f"{word!r} is there twice: a duplicate variant", *loc, index)
            if word not in axis_words:
                words_text = ", ".join(axis_words)
                text = f"the channel has no {word!r} to match; its {axis}: {words_text}"
                raise RuleError(text, *loc, index)

    def _check_rules(self) -> None:
        """Raise a RuleError where an include adds nothing new, or an exclude or exception takes
        hold of nothing.
        """
        before: set[Key] = set()
        offered: set[Key] = set()
        # From -1: block -1 is the channel's own axes, so that an include has its number in the
        # file.
        for index, block in enumerate(self._blocks, start=-1):
            keys = set(_keys(self.text, block))
            new = {key for key in keys if not self._excluded(key)}
            if index >= 0:
                self._check_include(index, new, offered)
            before |= keys
            offered |= new
        # An exclude must hit what the axes make, an exception what is left after the excludes.
        _check_hits("exclude", self.text.exclude, before, "excludes nothing")
        _check_hits("exceptions", self.text.exceptions, offered, "matches no build")

    def _check_include(self, index: int, new: set[Key], offered: set[Key]) -> None:
        duplicates = new & offered
        if duplicates:
            example = min(_build(self.name, key).alias for key in duplicates)
            text = (
                f"duplicate variant: {example} is offered without this rule ({len(duplicates)} "
                "in all)"
            )
            raise RuleError(text, "include", index)
        if not new:
            raise RuleError("the rule adds nothing: all of it is excluded", "include", index)

    def _check_possible(self) -> None:
        """Raise a RuleError where something that is offered is impossible by the catalogue."""
        recipes = self._recipes()
        for key in self._offered:
            if key.package not in recipes:
                continue
            platforms = recipes[key.package].platforms
            if key.platform not in platforms:
                able = ", ".join(platforms)
                fault = f"{key.package} is built for {able}, not for {key.platform}"
                raise RuleError(fault, "platforms")
        for key in _covering(self._offered):
            if key.package in recipes:
                for reason in check(self._stack(key, recipes[key.package])):
                    self._check_reason(key, reason)

    def _recipes(self) -> dict[str, Recipe]:
        """The recipe of each package that is offered, of those that the channel was written for."""
        recipes = {}
        for package in dict.fromkeys(key.package for key in self._offered):
            name = self.text.recipe_of(package)
            if not is_replaced(name):
                recipes[package] = recipe.recipe(name)
        return recipes

    def _check_reason(self, key: Key, reason: Reason) -> None:
        """Raise a RuleError for a reason against a build that no channel shall offer."""
        name = _KEY_AT_FAULT.get(reason.rule)
        if name is None or not reason.blocks:
            return
        words = getattr(self.text, name)
        word = dict(zip(AXES, key, strict=True)).get(name)
        # With the word's place in its list the error names the line of the word, else that
        # of the key.
        place: Place = (name,)
        if isinstance(words, list) and word in words:
            place = (name, words.index(word))
        text = reason.text
        if reason.rule == "base-python":
            text += "; without `base` in the channel each Python gets the image that has it"
        raise RuleError(text, *place)

    def _stack(self, key: Key, built: Recipe) -> Stack:
        """The parts of a build that a channel decides, for the rules."""
        pins = self.pins(key.package, key.variant, key.platform, key.cuda)
        value = {}
        for name, entry in OPTIONS.items():
            is_used = entry.applies(built) and (key.cuda or not entry.needs_gpu)
            if is_used and pins.options.get(name) is not None:
                value[name] = str(pins.options[name])
        words = []
        for name in catalog.words():
            if name in value:
                words.append((name, value[name]))
        # A base image that follows from the Python may give way to another.
        base = None
        if self.text.base:
            base = pins.base
        # A recipe that names the wheels that its build imports can have a Python that no base image
        # has.
        standalone: tuple[str, ...] | None = None
        if built.wheels:
            standalone = ()
        return Stack(
            package=built.package,
            variant=key.variant,
            platform=key.platform,
            base=base,
            toolkit=value.get("toolkit"),
            cuda=key.cuda,
            torch=value.get("torch"),
            cudnn=value.get("cudnn"),
            words=tuple(words),
            components=tuple(built.components),
            features=tuple(built.features),
            standalone=standalone,
        )


def _covering(keys: Iterable[Key]) -> Iterator[Key]:
    """Builds that together have every pair of words that go together: what is impossible is so by
    two words.
    """
    covered: set[tuple[tuple[int, str | None], ...]] = set()
    for key in keys:
        # Levels of one machine differ in nothing that is refused.
        machine = catalog.cpu_levels()[key.cpu].machine
        words = key._replace(cpu=machine)
        pairs = set(combinations(enumerate(words), 2))
        if not pairs <= covered:
            covered |= pairs
            yield key


def _keys(text: ChannelText, block: Axes) -> Iterator[Key]:
    """The product of a block's axes, those that it does not name taken from the channel."""
    axes = [_axis(text, block, axis) for axis in AXES]
    versions = axes.pop()
    for package, platform, gpu, cpu, python in product(*axes):
        if gpu in SPECIAL_GPUS:
            yield Key(package, platform, gpu, cpu, python, None)
            continue
        for cuda in versions:
            yield Key(package, platform, gpu, cpu, python, cuda)


def _axis(text: ChannelText, block: Axes, axis: str) -> list[str]:
    """The words of an axis of a block, the channel's where the block names none."""
    words: list[str] = getattr(block, axis) or getattr(text, axis)
    return words


def _matches(text: ChannelText, block: Axes, key: Key) -> bool:
    """Is the key in the block's product?"""
    for axis, word in zip(AXES, key, strict=True):
        if word is not None and word not in _axis(text, block, axis):
            return False
    return True


def _named(rule: Axes) -> Named:
    axes = []
    for index, axis in enumerate(AXES):
        words = getattr(rule, axis)
        if words:
            axes.append((index, frozenset(words)))
    return tuple(axes)


def _names(rule: Named, key: Key) -> bool:
    """Does every axis that the rule names hold the key's word? A build without CUDA has no CUDA
    version to name.
    """
    return all(key[index] in words for index, words in rule)


def _key(package: str, variant: Variant, platform: str, cuda: str | None) -> Key:
    return Key(package, platform, variant.gpu, variant.cpu, variant.python, cuda)


def _build(channel: str, key: Key) -> Build:
    return Build(channel, key.package, key.variant, key.platform, key.cuda)


def _check_hits(name: str, rules: Sequence[Rule], keys: set[Key], fault: str) -> None:
    """Raise a RuleError for a rule that names none of the keys."""
    for index, rule in enumerate(rules):
        axes = _named(rule)
        if not any(_names(axes, key) for key in keys):
            raise RuleError(f"the rule {fault}", name, index)
