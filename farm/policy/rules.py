"""Policies of `farm verify` and accepted findings.

A policy comes from a plan, where it is under `verify`, or from a YAML file (`farm verify WHEEL
--policy FILE`). Everything in it may be left out: a check that has nothing to hold the wheel to
says so and is not run.
"""

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from farm.base import yamlfile
from farm.base.errors import UsageError
from farm.base.text import printable
from farm.base.yamlfile import load
from farm.platforms.facts import PLATFORMS
from farm.policy.levels import arm_level_names, level_names

Printable = Annotated[str, AfterValidator(printable)]
"""Text out of a wheel, made safe for a terminal."""


class Frozen(BaseModel):
    """Immutable, and strict about what it is read from. Validators are made when a model is first
    used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


CheckId = Literal[
    "archive",
    "names",
    "abi",
    "install",
    "metadata",
    "record",
    "members",
    "platform",
    "imports",
    "link",
    "sass",
    "ptx",
    "cpu",
]
"""The checks, in their order. Adding one: CONTRIBUTING.md."""


@cache
def defaults(what: str) -> tuple[str, ...]:
    """A list of `verify_defaults.yaml`."""
    return tuple(yamlfile.plain(Path(__file__).with_name("verify_defaults.yaml"))[what])


_OR_NULL: dict[str, Any] = {"type": ["array", "null"]}  # what the validator below makes of null


_SPECIFIC = "[0-9]{1,4}[af]"


def _checked(value: int | str) -> int | str:
    if isinstance(value, str) and not re.fullmatch(_SPECIFIC, value, re.ASCII):
        raise ValueError(f"{value!r} is not an architecture: write 90, '90a' or '100f'")
    return value


Arch = Annotated[int | str, AfterValidator(_checked)]
"""See `farm.wheel.fatbin`."""


class Forbidden(Frozen):
    """Files that have no place in a wheel, and why."""

    pattern: str
    reason: Printable


class Chosen(Frozen):
    """Functions of a library that are called behind a choice at run time.

    Attributes:
        functions: Patterns of their symbols.
        archives: Static libraries of C whose functions have names of all kinds, each by a pattern
            that some of them have. The linker puts the objects of an archive together: a stretch of
            functions without one of C++ that holds such a name is the archive.
    """

    functions: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()


class Rules(Frozen):
    """Rules for a package's wheels of any variant. A recipe states it, a channel may replace it by
    key.

    All lists are patterns (`fnmatch`) of member names.

    Attributes:
        allow_other_sass: Machine code for further architectures is not a finding.
        mixed: Libraries that link others' device code statically (cuDNN, NCCL): the most frequent
            set of architectures in them is judged, not every one.
        foreign: Libraries that were not compiled here (vendored ones): they must hold machine code
            that runs on each promised GPU, whatever else they hold; no PTX is asked of them. Null:
            `verify_defaults.yaml`.
        cpu_exempt: Libraries whose code is not looked at.
        dispatching: Libraries that choose their code at run time: only what runs when they are
            loaded must keep to the level (`farm.wheel.isa`).
        chosen: By pattern, the functions of a library that static libraries in it choose at run
            time: they may need more than the level, the rest of it must keep to it.
        only_on: By CPU level, the members that the package loads on CPUs of that level alone,
            as a package does that has a module for each level. They must keep to that level; that
            no lower CPU loads them is shown by importing the package on an emulated one.
        direct_urls: METADATA may require packages by URL.
        forbidden: Files that have no place in a wheel, each a pattern or `{pattern, reason}`. Null:
            `verify_defaults.yaml`.
    """

    allow_other_sass: bool = False
    mixed: tuple[str, ...] = ()
    foreign: Annotated[
        tuple[str, ...], BeforeValidator(lambda value: _or_default(value, "foreign"))
    ] = Field(default_factory=lambda: defaults("foreign"), json_schema_extra=_OR_NULL)
    cpu_exempt: tuple[str, ...] = ()
    dispatching: tuple[str, ...] = ()
    chosen: dict[str, Chosen] = {}
    only_on: dict[str, tuple[str, ...]] = {}
    direct_urls: bool = False
    forbidden: Annotated[
        tuple[str | Forbidden, ...], BeforeValidator(lambda value: _or_default(value, "forbidden"))
    ] = Field(default_factory=lambda: defaults("forbidden"), json_schema_extra=_OR_NULL)

    @field_validator("only_on")
    @classmethod
    def _known_levels(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        levels = (*level_names(), *arm_level_names())
        for level in value:
            if level not in levels:
                raise ValueError(
                    f"{level!r} is no CPU level that can be checked: {', '.join(levels)}"
                )
        return value


def _or_default(value: object, what: str) -> object:
    """A value, or the list of the defaults in place of null."""
    if value is None:
        return defaults(what)
    return value


class Policy(Rules):
    """The promises of one wheel.

    `platform`: `linux_x86_64` asks for any manylinux tag of that machine. `sass`: Architectures (35
    for sm_35, "90a" for sm_90a) whose machine code the wheel's kernels must have, and no others;
    empty: no device code at all. None asks nothing.
    """

    name: str | None = None  # distribution name
    version: str | None = None  # its version, local part included
    # Interpreter tag, such as `cp311`.
    python: str | None = Field(default=None, pattern=r"^cp3\d{1,2}t?$")
    platform: str | None = Field(
        default=None, pattern=rf"^({'|'.join(PLATFORMS)})_[a-z0-9_]{{1,20}}$"
    )
    sass: tuple[Arch, ...] | None = None
    ptx: tuple[Arch, ...] = ()  # architectures whose PTX they must have
    cpu: str | None = None  # CPU level that the machine code must not exceed
    numpy: str | None = None  # the versions of numpy that METADATA may allow at most, such as `<2`
    # Library name patterns that may be missing, besides the NVIDIA driver's.
    exclude: tuple[str, ...] = ()
    # Patterns of names that no library may export: they belong to code for other CPUs.
    left_out: tuple[str, ...] = ()

    @field_validator("cpu")
    @classmethod
    def _known_level(cls, value: str | None) -> str | None:
        # Other levels of Arm (macOS' arm64) can be promised, but nothing here knows what they have:
        # the check says so.
        if value is None:
            return value
        if value not in level_names() and not value.startswith("arm"):
            levels = (*level_names(), *arm_level_names())
            raise ValueError(f"no such CPU level; there are {', '.join(levels)}")
        return value

    @field_validator("numpy")
    @classmethod
    def _specifier(cls, value: str | None) -> str | None:
        try:
            SpecifierSet(value or "")
        except InvalidSpecifier as error:
            raise ValueError(str(error)) from error
        return value


class Waiver(Frozen):
    """A finding that someone accepts, and why.

    What leaves other things unchecked (a damaged wheel or library) cannot be waived: no one knows
    what it hides.

    `member`: Pattern (`fnmatch`) for the member; findings about the whole wheel have an empty one.
    """

    check: CheckId  # which check
    member: str = Field(min_length=1, max_length=1024)
    # Why it does no harm; kept in the report and in the index.
    reason: Printable = Field(max_length=1000)

    @field_validator("check")
    @classmethod
    def _not_of_damage(cls, value: CheckId) -> CheckId:
        if value == "archive":  # where that fails the others are not run
            raise ValueError("a damaged wheel cannot be waived")
        return value

    @field_validator("reason")
    @classmethod
    def _given(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("a waiver needs a reason")
        return value.strip()


def parse_waiver(text: str) -> Waiver:
    """A waiver as it is typed: `CHECK:PATTERN=REASON`, as in `members:torch/lib/*_test*=wanted by
    the testers`.
    """
    rule, _, reason = text.partition("=")
    check, _, member = rule.partition(":")
    try:
        return Waiver.model_validate({"check": check, "member": member, "reason": reason})
    except ValidationError as error:
        raise UsageError(
            f"waiver {text[:200]!r}: {yamlfile.first_fault(error)}",
            hint="write CHECK:PATTERN=REASON, as in members:torch/lib/*_test*='wanted by the "
            "testers'",
        ) from error


class PolicyFile(Policy):
    """A policy file: the promises, and the findings that are accepted."""

    waivers: tuple[Waiver, ...] = ()  # findings that are accepted, each with its reason

    def policy(self) -> Policy:
        """Without the waivers."""
        return Policy.model_validate(self.model_dump(exclude={"waivers"}))


def load_policy(path: Path) -> PolicyFile:
    """Read a policy file; an error names the line."""
    return load(path, PolicyFile)
