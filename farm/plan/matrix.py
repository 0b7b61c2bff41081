"""Channels: pinned stacks and the variants that they offer (`ci/matrix.yaml`).

`MatrixText` is what may be written there; `Channel` is one after inheritance, with its builds and
their options.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, WithJsonSchema, create_model, model_validator
from pydantic_core import PydanticCustomError

from farm import catalog
from farm.base import resources
from farm.base.errors import UsageError
from farm.base.text import nearest
from farm.base.yamlfile import Model, load, pattern, read_bounded, where, word_of
from farm.catalog import gpus
from farm.plan import recipe
from farm.plan.compat.rules import CHANNEL_KEYS, check
from farm.plan.compat.stack import Stack
from farm.plan.options import OPTIONS, Option, Value
from farm.plan.recipe import BuildWheel, Recipe, VerifyRules, is_replaced
from farm.plan.variant import PYTHONS, SPECIAL_GPUS, Variant, cpu_words, gpu_words
from farm.platforms.facts import facts
from farm.platforms.shape import PlatformName

Package = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$", description="a folder with a recipe")
]
AXES = ("packages", "platforms", "gpus", "cpus", "pythons", "cuda")
"""The axes in the order in which builds are listed: the last one changes fastest."""


def _one_or_many(value: Any) -> Any:
    """`"12.8"` stands for `["12.8"]`; YAML reads an unquoted 12.8 as a number, and 12.10 as
    12.1.
    """
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int | float):
            # Not the number itself: 12.10 has become 12.1, which is another CUDA.
            text = "write versions in quotes, as they are: YAML reads 12.10 as the number 12.1"
            raise PydanticCustomError("unquoted_version", "{text}", {"text": text})
    return [value] if isinstance(value, str) else value


def _of_card(name: str) -> list[str]:
    """The words of variants for a card's name: `sm35` for a K40."""
    return sorted(
        {gpus.gpus().renamed.get(card.sm, card.sm) for card in gpus.find(name)} & set(gpu_words())
    )


Gpu = Annotated[
    str,
    word_of("GPU", gpu_words, _of_card),
    Field(json_schema_extra=lambda schema: schema.update(enum=list(gpu_words()))),
]
Cpu = Annotated[
    str,
    word_of("CPU", cpu_words),
    Field(json_schema_extra=lambda schema: schema.update(enum=list(cpu_words()))),
]
Python = Annotated[
    str,
    word_of("Python", lambda: PYTHONS),
    WithJsonSchema({"type": "string", "enum": list(PYTHONS)}),
]
Base = Annotated[str, word_of("base image", lambda: list(catalog.debian_releases()))]
Switch = Annotated[str, word_of("switch", lambda: list(catalog.switches()))]
CudaVersion = Annotated[str, pattern(r"^\d{1,2}\.\d{1,2}$", 'a version of CUDA such as "11.8"')]
ChannelName = Annotated[
    str,
    pattern(
        r"^[a-z0-9][a-z0-9._-]{0,60}$",
        "a name for a channel: lower-case letters, digits, '.', '_' and '-'",
    ),
]
_VERSION_SCHEMA = {"type": "string", "pattern": r"^\d{1,2}\.\d{1,2}$"}
_CUDA_SCHEMA = {
    "anyOf": [_VERSION_SCHEMA, {"type": "array", "minItems": 1, "items": _VERSION_SCHEMA}]
}

M = TypeVar("M", bound=Model)


def _key(option: Option) -> Any:
    """Type, description and default of an option's key. Null means none; a truth value is always
    one.
    """
    if option.kind is bool:
        return Annotated[bool, Field(description=option.in_matrix or option.help)], option.default
    words: Any = Literal[option.choices] if option.choices else option.kind
    if option.pattern:
        words = Annotated[words, Field(pattern=option.pattern)]
    return Annotated[
        words | None, Field(description=option.in_matrix or option.help)
    ], option.default


def _with_keys(options: list[Option]) -> Callable[[type[M]], type[M]]:
    """Adds a key for each of the options to a model."""

    def extend(model: type[M]) -> type[M]:
        keys: dict[str, Any] = {option.name: _key(option) for option in options}
        return create_model(
            model.__name__,
            __base__=model,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **keys,
        )

    return extend


PINNED = [option for option in OPTIONS.values() if option.pinned]
EXCEPTED = [option for option in OPTIONS.values() if option.excepted]


class Axes(Model):
    """Words by axis. An axis that is not named is free: all that the channel has."""

    packages: Annotated[list[Package], Field(min_length=1, description="what is built")] = []
    platforms: Annotated[list[PlatformName], Field(min_length=1)] = []
    gpus: Annotated[
        list[Gpu], Field(min_length=1, description="an SM, a named set of SMs, cpu or mps")
    ] = []
    cpus: Annotated[list[Cpu], Field(min_length=1, description="CPU levels")] = []
    pythons: Annotated[list[Python], Field(min_length=1)] = []
    cuda: Annotated[
        list[CudaVersion],
        Field(min_length=1, description="one quoted version, or several: the first is the default"),
        BeforeValidator(_one_or_many),
        WithJsonSchema(_CUDA_SCHEMA),
    ] = []


class Rule(Axes):
    """An `include` or `exclude` rule: the product of the axes that it names."""

    @model_validator(mode="after")
    def _names_an_axis(self) -> "Rule":
        if not any(getattr(self, axis) for axis in AXES):
            raise PydanticCustomError(
                "empty_rule", "the rule names no axis: it would take in everything"
            )
        return self


@_with_keys(EXCEPTED)
class Deviation(Rule):
    """Where the axes match, the options named here replace the channel's; null means none."""

    @model_validator(mode="after")
    def _sets_an_option(self) -> "Deviation":
        if not self.options:
            names = " or ".join(option.name for option in EXCEPTED)
            raise PydanticCustomError(
                "empty_exception", "{text}", {"text": f"the exception sets no option: name {names}"}
            )
        return self

    @property
    def options(self) -> dict[str, Value]:
        # What is written, not what differs from a default: a null that is written takes the option
        # away.
        return {
            option.name: getattr(self, option.name)
            for option in EXCEPTED
            if option.name in self.model_fields_set
        }


@_with_keys(PINNED)
class ChannelText(Axes):
    """A channel as it is written. A key that is absent comes from the channel that it extends."""

    extends: Annotated[
        str | None, Field(description="the channel whose keys are used where this one has none")
    ] = None
    summary: Annotated[str, Field(min_length=1, max_length=200)]
    base: Annotated[
        Base | None,
        Field(description="the base image of Linux builds; without it, by their Python"),
    ] = None
    official: Annotated[
        list[BuildWheel],
        Field(
            description="PyTorch's own wheels of the release `torch`, one a Python, and what they "
            "import: packages "
            "that need torch are built against them, for the CPU and for cards that they have "
            "code for"
        ),
    ] = []
    recipes: Annotated[
        dict[Package, str], Field(description="packages that are built by another recipe")
    ] = {}
    switches: Annotated[
        dict[Switch, bool], Field(description="switches of PyTorch that the rules do not decide")
    ] = {}
    verify: Annotated[
        VerifyRules | None,
        Field(description="what verify holds the wheels to: each key replaces the recipe's"),
    ] = None
    include: Annotated[list[Rule], Field(description="products of axes to add")] = []
    exclude: Annotated[
        list[Rule], Field(description="products of axes to leave out; stronger than include")
    ] = []
    exceptions: Annotated[
        list[Deviation], Field(description="where the axes match, other options")
    ] = []

    @property
    def options(self) -> dict[str, Value]:
        """Its pins of the table of options."""
        return {option.name: getattr(self, option.name) for option in PINNED}

    def recipe_of(self, package: str) -> str:
        """The folder of the recipe that builds a package in this channel."""
        return self.recipes.get(package, package)


class MatrixText(Model):
    """`ci/matrix.yaml`."""

    defaults: Annotated[
        bool, Field(description="the channels that come with the farm follow those of this file")
    ] = False
    channels: Annotated[dict[ChannelName, ChannelText], Field(min_length=1)]


Key = tuple[str, str, str, str, str, str | None]
"""One word an axis, in the order of AXES. The CUDA version is None where the GPU word is `cpu` or
`mps`.
"""

Named = tuple[tuple[int, frozenset[str | None]], ...]
"""The words of a rule, by the place of their axis in a key."""


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
        name = "pytorch" if self.package == "torch" else self.package
        python = self.variant.python.replace("py", "python")
        platform = facts(self.platform)
        cuda = f"cuda{self.cuda.replace('.', '_')}" if self.cuda else ""
        # Every Mac that is built for has the same CPU level.
        if self.variant.gpu in platform.gpus:
            cpu = ""
        else:
            cpu = self.variant.cpu
        return "-".join(
            filter(None, (name, python, platform.in_alias, cuda, self.variant.gpu, cpu))
        )


class Channel:
    """A pinned stack and what it offers: (the product of its axes + its includes) - its
    excludes.
    """

    def __init__(self, name: str, text: ChannelText) -> None:
        self.name = name
        self.text = text
        self.packages, self.platforms, self.gpus, self.cpus, _, self.cuda = (
            self._words(axis) for axis in AXES
        )
        self._blocks = (Axes(), *text.include)
        self._excludes = [_named(rule) for rule in text.exclude]
        self._check_words()
        self._check_rules()
        self._check_possible()

    @cached_property
    def builds(self) -> tuple[Build, ...]:
        """Every build: in the order of the file, the axes first, then the includes."""
        return tuple(
            Build(self.name, package, Variant(gpu, cpu, python), platform, cuda)
            for package, platform, gpu, cpu, python, cuda in self._offered
        )

    @cached_property
    def _offered(self) -> tuple[Key, ...]:
        return tuple(
            key
            for block in self._blocks
            for key in _keys(self.text, block)
            if not self._excluded(key)
        )

    def cudas(self, package: str, variant: Variant, platform: str) -> tuple[str | None, ...]:
        """The CUDA versions that it is offered for, the default first; (None,) without an SM, () if
        not offered.
        """
        versions: tuple[str | None, ...] = (None,) if variant.gpu in SPECIAL_GPUS else self.cuda
        keys = (
            (package, platform, variant.gpu, variant.cpu, variant.python, cuda) for cuda in versions
        )
        offered = (
            key for key in keys if any(_matches(self.text, block, key) for block in self._blocks)
        )
        return tuple(key[-1] for key in offered if not self._excluded(key))

    def pins(self, package: str, variant: Variant, platform: str, cuda: str | None = None) -> Pins:
        """The options of a build, also of one that is not offered, by default with the first
        CUDA.
        """
        # A build that is not offered gets the channel's first CUDA: the rules need one to judge.
        cuda = cuda or next(
            iter(self.cudas(package, variant, platform)), next(iter(self.cuda), None)
        )
        options: dict[str, Value] = {"cuda": cuda, **self.text.options}
        # In the order of the file: where two say something of one option, the later one wins.
        for exception in self.text.exceptions:
            key = (package, platform, variant.gpu, variant.cpu, variant.python, cuda)
            if _names(_named(exception), key):
                options |= exception.options
        return Pins(
            base=(self.text.base or catalog.base_of(variant.python))
            if facts(platform).in_images
            else None,
            options=options,
            switches=self.text.switches,
            recipe=self.text.recipe_of(package),
            verify=self.text.verify,
            official=self.text.official,
        )

    def _words(self, axis: str) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                word for part in (self.text, *self.text.include) for word in getattr(part, axis)
            )
        )

    def _excluded(self, key: Key) -> bool:
        return any(_names(rule, key) for rule in self._excludes)

    def _check_words(self) -> None:
        """No word twice in a list, and none in a rule that can never match. Raises RuleError: there
        is one.
        """
        lists: list[tuple[Axes, tuple[int | str, ...]]] = [(self.text, ())]
        for key in ("include", "exclude", "exceptions"):
            rules: list[Rule] = getattr(self.text, key)
            lists += [(rule, (key, index)) for index, rule in enumerate(rules)]
        for axes, loc in lists:
            for axis in AXES:
                words = getattr(axes, axis)
                axis_words = self._words(axis)
                for index, word in enumerate(words):
                    if word in words[:index]:
                        raise RuleError(
                            f"{word!r} is there twice: a duplicate variant", *loc, axis, index
                        )
                    if word not in axis_words:
                        text = (
                            f"the channel has no {word!r} to match; its {axis}: "
                            f"{', '.join(axis_words)}"
                        )
                        raise RuleError(text, *loc, axis, index)

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
            if index >= 0 and (duplicates := new & offered):
                example = min(
                    Build(self.name, k[0], Variant(k[2], k[3], k[4]), k[1], k[5]).alias
                    for k in duplicates
                )
                text = (
                    f"duplicate variant: {example} is offered without this rule ({len(duplicates)} "
                    "in all)"
                )
                raise RuleError(text, "include", index)
            if index >= 0 and not new:
                raise RuleError("the rule adds nothing: all of it is excluded", "include", index)
            before |= keys
            offered |= new
        # An exclude must hit what the axes make, an exception what is left after the excludes.
        checks: list[tuple[str, Sequence[Rule], set[Key], str]] = [
            ("exclude", self.text.exclude, before, "excludes nothing"),
            ("exceptions", self.text.exceptions, offered, "matches no build"),
        ]
        for name, rules, hit, fault in checks:
            for index, rule in enumerate(rules):
                axes = _named(rule)
                if not any(_names(axes, key) for key in hit):
                    raise RuleError(f"the rule {fault}", name, index)

    def _check_possible(self) -> None:
        """Raise a RuleError where something that is offered is impossible by the catalogue."""
        names = {
            package: self.text.recipe_of(package)
            for package in dict.fromkeys(k[0] for k in self._offered)
        }
        recipes = {
            package: recipe.recipe(name) for package, name in names.items() if not is_replaced(name)
        }
        for package, platform in dict.fromkeys(
            (key[0], key[1]) for key in self._offered if key[0] in recipes
        ):
            if platform not in (able := recipes[package].platforms):
                raise RuleError(
                    f"{package} is built for {', '.join(able)}, not for {platform}", "platforms"
                )
        # The rules whose refusal a channel shall never offer, and the key that is at fault.
        axes = CHANNEL_KEYS | {option: option for option in OPTIONS}
        for key in (key for key in _covering(self._offered) if key[0] in recipes):
            for reason in check(self._stack(key, recipes[key[0]])):
                name = axes.get(reason.rule)
                if name is None or not reason.blocks:
                    continue
                words = getattr(self.text, name)
                word = dict(zip(AXES, key, strict=True)).get(name)
                # With the word's place in its list the error names the line of the word, else that
                # of the key.
                place: tuple[str | int, ...] = (name,)
                if isinstance(words, list) and word in words:
                    place = (name, words.index(word))
                advice = "; without `base` in the channel each Python gets the image that has it"
                raise RuleError(
                    reason.text + (advice if reason.rule == "base-python" else ""), *place
                )

    def _stack(self, key: Key, built: Recipe) -> Stack:
        """The parts of a build that a channel decides, for the rules."""
        package, platform, gpu, cpu, python, cuda = key
        pins = self.pins(package, Variant(gpu, cpu, python), platform, cuda)
        value = {
            name: str(pins.options[name])
            for name, entry in OPTIONS.items()
            if pins.options.get(name) is not None
            and entry.applies(built)
            and (cuda or not entry.needs_gpu)
        }
        return Stack(
            package=built.package,
            variant=Variant(gpu, cpu, python),
            platform=platform,
            # One that follows from the Python may give way to another.
            base=pins.base if self.text.base else None,
            toolkit=value.get("toolkit"),
            cuda=cuda,
            torch=value.get("torch"),
            cudnn=value.get("cudnn"),
            words=tuple((name, value[name]) for name in catalog.words() if name in value),
            components=tuple(built.components),
            features=tuple(built.features),
            # A recipe that names the wheels that its build imports can have a Python that no base
            # image has.
            standalone=() if built.wheels else None,
        )


def _covering(keys: Iterable[Key]) -> Iterator[Key]:
    """Builds that together have every pair of words that go together: what is impossible is so by
    two words.
    """
    covered: set[tuple[tuple[int, str | None], ...]] = set()
    for key in keys:
        package, platform, gpu, cpu, python, cuda = key
        machine = catalog.cpu_levels()[
            cpu
        ].machine  # levels of one machine differ in nothing that is refused
        pairs = set(combinations(enumerate((package, platform, gpu, machine, python, cuda)), 2))
        if not pairs <= covered:
            covered |= pairs
            yield key


def _keys(text: ChannelText, block: Axes) -> Iterator[Key]:
    """The product of a block's axes, those that it does not name taken from the channel."""
    packages, platforms, gpus, cpus, pythons, cuda = (
        getattr(block, axis) or getattr(text, axis) for axis in AXES
    )
    for package, platform, gpu, cpu, python in product(packages, platforms, gpus, cpus, pythons):
        for version in (None,) if gpu in SPECIAL_GPUS else cuda:
            yield package, platform, gpu, cpu, python, version


def _matches(text: ChannelText, block: Axes, key: Key) -> bool:
    """Is the key in the block's product?"""
    words = zip(AXES, key, strict=True)
    return all(
        word is None or word in (getattr(block, axis) or getattr(text, axis))
        for axis, word in words
    )


def _named(rule: Axes) -> Named:
    return tuple(
        (index, frozenset(words))
        for index, axis in enumerate(AXES)
        if (words := getattr(rule, axis))
    )


def _names(rule: Named, key: Key) -> bool:
    """Does every axis that the rule names hold the key's word? A build without CUDA has no CUDA
    version to name.
    """
    return all(key[index] in words for index, words in rule)


SHIPPED = resources.ROOT / "ci" / "matrix.yaml"
REQUIRED = ("packages", "platforms", "gpus", "cpus", "pythons", "toolkit", "cuda")


@dataclass(frozen=True)
class Matrix:
    """The channels in the order of the file; `faults` says which packages were left out, and
    why.
    """

    channels: dict[str, Channel]
    faults: tuple[str, ...] = ()

    def channel(self, name: str) -> Channel:
        """The channel called `name`. Raises UsageError: there is none; the nearest names are
        given.
        """
        if name not in self.channels:
            near = nearest(name, list(self.channels))
            if near:
                hint = f"nearest: {', '.join(near)}"
            else:
                hint = f"channels: {', '.join(self.channels)}"
            raise UsageError(f"unknown channel {name!r}", hint=hint)
        return self.channels[name]

    def default_channel(
        self,
        package: str,
        variant: Variant,
        platform: str,
        torch: str | None = None,
        cuda: str | None = None,
    ) -> str:
        """The first channel that offers the package and variant on the platform, with the PyTorch
        and CUDA asked for.

        When none has both, the first with the PyTorch, then with the CUDA, then any. When none
        offers the variant, the first that offers the same GPU and CPU, then the first with the GPU,
        then the first with the package: its rules then say why not. Raises UsageError: no channel
        builds the package for the platform.
        """
        fitting = [
            c for c in self.channels.values() if package in c.packages and platform in c.platforms
        ]
        if not fitting:
            raise UsageError(f"no channel of ci/matrix.yaml builds {package!r} for {platform}")

        def distance(channel: Channel) -> tuple[int, bool, bool]:
            if offers := channel.cudas(package, variant, platform):
                other_torch = torch not in (None, channel.text.options.get("torch"))
                return 0, other_torch, cuda is not None and cuda not in offers
            alike = any(
                b.variant.group == variant.group for b in channel.builds if b.platform == platform
            )
            return (1 if alike else 2 if variant.gpu in channel.gpus else 3), False, False

        return min(fitting, key=distance).name  # the first of equals

    def own(self) -> list[str]:
        """The channels that do not come with the farm; none for a project without a matrix of its
        own.
        """
        farms = load(SHIPPED, MatrixText).channels
        return [name for name in self.channels if name not in farms]

    def by_alias(self, name: str, channel: str | None = None) -> Build:
        """The build of an alias, as `farm matrix --format names` prints it: `main/pytorch-…` or
        `pytorch-…`.

        The first channel that has it, where none is named. Raises UsageError: there is none; the
        nearest are given.
        """
        head, slash, alias = name.rpartition("/")
        channel_name = self.channel(head).name if slash else channel
        # Reversed, so that of equal aliases the first channel's stays.
        builds = {build.alias: build for build in reversed(list(self.builds(channel_name)))}
        if alias not in builds:
            near = nearest(alias, list(builds))
            if near:
                hint = f"nearest: {', '.join(near)}"
            else:
                hint = "farm matrix --format names lists them"
            raise UsageError(
                f"unknown build {name!r}" + (f" in {channel_name}" if channel_name else ""),
                hint=hint,
            )
        return builds[alias]

    def builds(self, channel: str | None = None) -> Iterator[Build]:
        """The builds of one channel or of all, in the order of the file. Raises UsageError: there
        is none.
        """
        for source in self.channels.values() if channel is None else [self.channel(channel)]:
            yield from source.builds


def load_matrix(project: Path) -> Matrix:
    """Read `ci/matrix.yaml`, again if it changed. Raises UsageError: it is wrong; file and line are
    given.
    """
    recipe.use_project(project)
    path = resources.path(project, "ci/matrix.yaml")
    return _load(path, read_bounded(path), recipe.names())


@lru_cache(maxsize=4)
def _load(path: Path, content: bytes, packages: tuple[str, ...]) -> Matrix:  # noqa: ARG001 the cache goes by them
    text = load(path, MatrixText)
    written = text.channels
    if text.defaults:
        # A channel of the project is in the place of the farm's of that name.
        # The project's channels come first: of two that fit, `default_channel` takes the first.
        written = {**written, **load(SHIPPED, MatrixText).channels, **written}
    channels = {}
    faults: dict[str, str] = {}
    for name in written:
        merged = _merged(path, written, name)
        if name in text.channels:
            merged = _without_faulty(path, name, merged, faults)
        try:
            _check_complete(merged)
            channels[name] = Channel(name, merged)
        except RuleError as error:
            owner = name
            # The key is written in the nearest channel of the chain that has it.
            while (
                error.loc
                and error.loc[0] not in written[owner].model_fields_set
                and written[owner].extends
            ):
                owner = str(written[owner].extends)
            heir = f", inherited by {name}" if owner != name else ""
            loc = ("channels", owner, *error.loc)
            raise UsageError(
                f"{where(path, *loc)}: {'.'.join(map(str, loc))}{heir}: {error}"
            ) from error
    return Matrix(channels, tuple(faults.values()))


def _without_faulty(
    path: Path, channel: str, text: ChannelText, faults: dict[str, str]
) -> ChannelText:
    """Leave out the packages whose recipe is gone or broken, so that the others can be built.

    `faults` gets a line for each. Where no package is left, nothing is left out: the channel is
    then refused with its fault.
    """
    packages = []
    for package in text.packages:
        name = text.recipe_of(package)
        try:
            recipe.recipe(name)
        except UsageError as error:
            fault = str(error)
            if name not in recipe.names():
                fault = f"{where(path, 'channels', channel, 'packages')}: no recipe for {package!r}"
            faults[package] = f"{package} is left out: {fault}"
        else:
            packages.append(package)
    if not packages:
        return text
    return text.model_copy(update={"packages": packages})


def _merged(
    path: Path, written: dict[str, ChannelText], name: str, heirs: tuple[str, ...] = ()
) -> ChannelText:
    """The channel with the keys of those that it extends. Raises UsageError: one does not exist, or
    extends itself.
    """
    text = written[name]
    chain = (*heirs, name)
    if text.extends is None:
        return text
    fault = None
    if text.extends in chain:
        fault = f"a cycle of inheritance: {' -> '.join((*chain, text.extends))}"
    elif text.extends not in written:
        near = nearest(text.extends, list(written))
        if near:
            hint = f"did you mean {near[0]!r}?"
        else:
            hint = f"known: {', '.join(written)}"
        fault = f"unknown channel {text.extends!r}; {hint}"
    if fault:  # only now, since `where` reads the file again
        raise UsageError(
            f"{where(path, 'channels', name, 'extends')}: channels.{name}.extends: {fault}"
        )
    # What is written, not what differs from a default: a channel may set a key back to null.
    updates = {key: getattr(text, key) for key in text.model_fields_set}
    return _merged(path, written, text.extends, chain).model_copy(update=updates)


def _check_complete(text: ChannelText) -> None:
    for package in text.packages:
        if package not in recipe.names():
            near = recipe.near(package)
            if near:
                hint = f"did you mean {near[0]!r}?"
            else:
                hint = f"known: {', '.join(recipe.names())}"
            raise RuleError(f"no recipe for package {package!r}; {hint}", "packages")
    for index, rule in enumerate(text.include):
        if unknown := [package for package in rule.packages or () if package not in recipe.names()]:
            raise RuleError(f"no recipe for package {unknown[0]!r}", "include", index, "packages")
    for package, name in text.recipes.items():
        if name not in recipe.names():
            near = recipe.near(name) or list(recipe.names())
            raise RuleError(
                f"there is no recipe {name!r}; known: {', '.join(near)}", "recipes", package
            )
    for name in (text.recipe_of(package) for package in text.packages):
        built = recipe.recipe(name)
        if not recipe.is_replaced(name) and built.torch_release not in (
            None,
            torch := text.options["torch"],
        ):
            fault = f"{name} is built from sources of torch {built.torch_release}, not {torch}"
            raise RuleError(fault, "torch")
    # A channel of packages that do not need PyTorch pins no release of it.
    with_torch = [
        p for p in text.packages if OPTIONS["torch"].applies(recipe.recipe(text.recipe_of(p)))
    ]
    needed = [*REQUIRED, "torch"] if with_torch else REQUIRED
    if missing := [key for key in needed if not getattr(text, key)]:
        also = f", nor has {text.extends}" if text.extends else ""
        if "torch" in missing:
            advice = f'; {with_torch[0]} needs PyTorch: add `torch: "2.6.0"`, or another one'
        else:
            advice = ""
        raise RuleError(f"the channel has no {' and no '.join(missing)}{also}{advice}")


CHUNK = 256
"""Jobs that one matrix may have: GitHub Actions, "Usage limits, billing, and administration"."""


def workflow_matrix(
    matrix: Matrix,
    builds: Iterable[Build],
    runs_on: Callable[[Literal["build", "smoke"], Build], list[str]],
) -> dict[str, list[list[dict[str, Any]]]]:
    """`{"build": chunks, "smoke": chunks}`: each a list of chunks of at most 256 entries, in the
    order of the builds.

    Chunk n of `smoke` tests what chunk n of `build` makes, so that a workflow can carry out a chunk
    alone; a chunk takes about 60 kB (a job's outputs may take 1 MB). `cuda` is empty where the
    channel's own default serves; else it is what `--cuda` must be given. `name` is unique in the
    whole matrix.
    """
    jobs: dict[str, list[dict[str, Any]]] = {"build": [], "smoke": []}
    for build in builds:
        default = matrix.channel(build.channel).cudas(build.package, build.variant, build.platform)[
            0
        ]
        entry = {
            "name": f"{build.channel} {build.alias}",
            "channel": build.channel,
            "package": build.package,
            "variant": str(build.variant),
            "platform": build.platform,
            "cuda": "" if build.cuda in {None, default} else build.cuda,
        }
        jobs["build"].append({**entry, "runs_on": runs_on("build", build)})
        jobs["smoke"].append({**entry, "runs_on": runs_on("smoke", build)})
    return {
        kind: [every[at : at + CHUNK] for at in range(0, len(every), CHUNK)]
        for kind, every in jobs.items()
    }
