"""The shape of `ci/matrix.yaml`: what may be written there, before inheritance and before the axes are expanded."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from farm import catalog
from farm.recipe import VerifyRules
from farm.variant import PYTHONS, cpus, gpus
from farm.yamlfile import Model, nearest

Platform = Literal["linux", "windows", "macos"]
Package = Literal["torch", "torchvision", "torchaudio", "canary"]
Blas = Literal["mkl", "openblas"]
AXES = ("packages", "platforms", "gpus", "cpus", "pythons", "cuda")
"""The axes in the order in which builds are listed: the last one changes fastest."""


def _word(axis: str, known: Callable[[], Sequence[str]]) -> AfterValidator:
    def check(word: str) -> str:
        names = list(known())
        if word in names:
            return word
        near = nearest(word, names)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names)}"
        raise PydanticCustomError("unknown_word", "{text}", {"text": f"unknown {axis} {word!r}; {hint}"})

    return AfterValidator(check)


def _one_or_many(value: Any) -> Any:
    """`"12.8"` stands for `["12.8"]`; YAML reads an unquoted 12.8 as a number, and 12.10 as 12.1."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int | float):
            text = f'write versions in quotes: "{item}"'
            raise PydanticCustomError("unquoted_version", "{text}", {"text": text})
    return [value] if isinstance(value, str) else value


Gpu = Annotated[str, _word("GPU", gpus), Field(json_schema_extra=lambda schema: schema.update(enum=list(gpus())))]
Cpu = Annotated[str, _word("CPU", cpus), Field(json_schema_extra=lambda schema: schema.update(enum=list(cpus())))]
Python = Annotated[str, _word("Python", lambda: PYTHONS), WithJsonSchema({"type": "string", "enum": list(PYTHONS)})]
Base = Annotated[str, _word("base image", lambda: list(catalog.debian_releases()))]
Switch = Annotated[str, _word("switch", lambda: list(catalog.switches()))]
CudaVersion = Annotated[str, Field(pattern=r"^\d{1,2}\.\d{1,2}$")]
Release = Annotated[str, Field(pattern=r"^\d{1,2}\.\d{1,2}\.\d{1,2}$")]
ChannelName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,60}$")]
_VERSION_SCHEMA = {"type": "string", "pattern": r"^\d{1,2}\.\d{1,2}$"}
_CUDA_SCHEMA = {"anyOf": [_VERSION_SCHEMA, {"type": "array", "minItems": 1, "items": _VERSION_SCHEMA}]}


class Axes(Model):
    """Words by axis. An axis that is not named is free: all that the channel has."""

    packages: Annotated[list[Package], Field(min_length=1, description="what is built")] = []
    platforms: Annotated[list[Platform], Field(min_length=1)] = []
    gpus: Annotated[list[Gpu], Field(min_length=1, description="an SM, a named set of SMs, cpu or mps")] = []
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
            raise PydanticCustomError("empty_rule", "the rule names no axis: it would take in everything")
        return self


class Deviation(Rule):
    """Where the axes match, the options named here replace the channel's; null means none."""

    cudnn: Release | None = None
    blas: Blas | None = None

    @model_validator(mode="after")
    def _sets_an_option(self) -> "Deviation":
        if not self.options:
            raise PydanticCustomError("empty_exception", "the exception sets no option: name cudnn or blas")
        return self

    @property
    def options(self) -> dict[str, str | None]:
        return {name: getattr(self, name) for name in ("cudnn", "blas") if name in self.model_fields_set}


class ChannelText(Axes):
    """A channel as it is written. A key that is absent comes from the channel that it extends."""

    extends: Annotated[str | None, Field(description="the channel whose keys stand where this one has none")] = None
    summary: Annotated[str, Field(min_length=1, max_length=200)]
    base: Annotated[Base | None, Field(description="the base image of Linux builds; without it, by their Python")] = (
        None
    )
    toolkit: Annotated[Literal["debian", "nvidia"] | None, Field(description="where CUDA comes from")] = None
    torch: Release | None = None
    cudnn: Annotated[Release | None, Field(description="null: without cuDNN")] = None
    blas: Annotated[Blas | None, Field(description="null: the platform's own")] = None
    recipes: Annotated[dict[Package, str], Field(description="packages that are built by another recipe")] = {}
    switches: Annotated[dict[Switch, bool], Field(description="switches of PyTorch that the rules do not decide")] = {}
    ptx: Annotated[bool, Field(description="PTX for the highest SM as well")] = False
    verify: Annotated[
        VerifyRules | None, Field(description="what verify holds the wheels to: each key replaces the recipe's")
    ] = None
    include: Annotated[list[Rule], Field(description="products of axes to add")] = []
    exclude: Annotated[list[Rule], Field(description="products of axes to leave out; stronger than include")] = []
    exceptions: Annotated[list[Deviation], Field(description="where the axes match, other options")] = []


class MatrixText(Model):
    """`ci/matrix.yaml`."""

    channels: Annotated[dict[ChannelName, ChannelText], Field(min_length=1)]
