"""What may be written of channels in `ci/matrix.yaml`, as models."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, WithJsonSchema, create_model, model_validator
from pydantic_core import PydanticCustomError

from farm import catalog
from farm.base.yamlfile import Model, pattern, word_of
from farm.catalog import gpus
from farm.plan.options import OPTIONS, Option, Value
from farm.plan.recipe import BuildWheel, VerifyRules
from farm.plan.variant import PYTHONS, cpu_words, gpu_words
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
    if isinstance(value, str):
        return [value]
    items = value
    if not isinstance(value, list):
        items = [value]
    for item in items:
        if isinstance(item, int | float):
            # Not the number itself: 12.10 has become 12.1, which is another CUDA.
            text = "write versions in quotes, as they are: YAML reads 12.10 as the number 12.1"
            raise PydanticCustomError("unquoted_version", "{text}", {"text": text})
    return value


def _of_card(name: str) -> list[str]:
    """The words of variants for a card's name: `sm35` for a K40."""
    return sorted(gpus.variant_sms(gpus.find(name)) & set(gpu_words()))


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
    described = Field(description=option.in_matrix or option.help)
    if option.kind is bool:
        return Annotated[bool, described], option.default
    words: Any = option.kind
    if option.choices:
        words = Literal[option.choices]
    if option.pattern:
        words = Annotated[words, Field(pattern=option.pattern)]
    return Annotated[words | None, described], option.default


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
        if self.model_fields_set.isdisjoint(AXES):
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
        options = {}
        for option in EXCEPTED:
            if option.name in self.model_fields_set:
                options[option.name] = getattr(self, option.name)
        return options


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


REQUIRED = ("packages", "platforms", "gpus", "cpus", "pythons", "toolkit", "cuda")
"""What a channel must have, its own or inherited."""
