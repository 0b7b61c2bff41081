"""Policies of `farm verify`, accepted findings, and the report.

A policy comes from a plan, where it is under `verify`, or from a YAML file (`farm verify WHEEL
--policy FILE`). Everything in it may be left out: a check that has nothing to hold the wheel to
says so and is not run.

It is here, and not with plans, because `farm verify` holds any wheel to one without a plan; a plan
holds a `Policy` as it holds the facts of the catalogue, and nothing here knows of plans.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    computed_field,
    field_validator,
    model_validator,
)

from farm.base import yamlfile
from farm.base.errors import UsageError
from farm.base.text import printable
from farm.base.yamlfile import load
from farm.platforms.facts import PLATFORMS


@cache
def table() -> dict[str, dict[str, dict[str, list[str]]]]:
    """The file: `levels` by name, lowest first, and what is harmless in all of them."""
    content: dict[str, dict[str, dict[str, list[str]]]] = yamlfile.plain(
        Path(__file__).with_name("isa_levels.yaml")
    )
    return content


@cache
def arm_table() -> dict[str, dict[str, list[str] | str | None]]:
    """The levels of 64-bit Arm by name, lowest first, as `aarch64_levels.yaml` has them."""
    content = yamlfile.plain(Path(__file__).with_name("aarch64_levels.yaml"))
    levels: dict[str, dict[str, list[str] | str | None]] = content["levels"]
    return levels


def arm_level_names() -> tuple[str, ...]:
    """The levels that the machine code of 64-bit Arm can be held to, lowest first."""
    return tuple(arm_table())


def level_names() -> tuple[str, ...]:
    """The levels that x86-64 machine code can be held to, lowest first."""
    return tuple(table()["levels"])


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
    return defaults(what) if value is None else value


class Policy(Rules):
    """The promises of one wheel.

    `platform`: `linux_x86_64` asks for any manylinux tag of that machine. `sass`: Architectures (35
    for sm_35, "90a" for sm_90a) whose machine code the wheel's kernels must have, and no others;
    empty: no device code at all. None asks nothing.
    """

    name: str | None = None  # distribution name
    version: str | None = None  # its version, local part included
    python: str | None = Field(
        default=None, pattern=r"^cp3\d{1,2}t?$"
    )  # interpreter tag, such as `cp311`
    platform: str | None = Field(
        default=None, pattern=rf"^({'|'.join(PLATFORMS)})_[a-z0-9_]{{1,20}}$"
    )
    sass: tuple[Arch, ...] | None = None
    ptx: tuple[Arch, ...] = ()  # architectures whose PTX they must have
    cpu: str | None = None  # CPU level that the machine code must not exceed
    numpy: str | None = None  # the versions of numpy that METADATA may allow at most, such as `<2`
    exclude: tuple[
        str, ...
    ] = ()  # library name patterns that may be missing, besides the NVIDIA driver's
    left_out: tuple[
        str, ...
    ] = ()  # patterns of names that no library may export: they belong to code for other CPUs

    @field_validator("cpu")
    @classmethod
    def _known_level(cls, value: str | None) -> str | None:
        # Other levels of Arm (macOS' arm64) can be promised, but nothing here knows what they have:
        # the check says so.
        if value is None:
            return value
        if value not in level_names() and not value.startswith("arm"):
            raise ValueError(
                f"no such CPU level; there are {', '.join((*level_names(), *arm_level_names()))}"
            )
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
    reason: Printable = Field(
        max_length=1000
    )  # why it does no harm; kept in the report and in the index

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


Status = Literal["passed", "failed", "waived", "not_run"]


class Finding(Frozen):
    """One thing that is wrong: in which check, in which member, what, why it matters, what to do
    about it.

    `waived` is the reason of the waiver that covers it. Not `waivable` is what leaves other things
    unchecked.
    """

    check: CheckId
    where: Printable
    what: Printable
    why: str
    fix: str
    waivable: bool = True
    waived: Printable | None = None

    @property
    def text(self) -> str:
        """A finding's text, with its member where it has one."""
        return f"{self.where}: {self.what}" if self.where else self.what

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.waived is not None and not self.waivable:
            raise ValueError("this finding cannot be waived")
        return self


class Check(Frozen):
    """One check. `waived`: every finding is."""

    id: CheckId
    status: Status
    findings: tuple[Finding, ...] = ()
    note: str = ""  # what was seen or, if it was not run, why
    undecided: tuple[Printable, ...] = ()  # libraries of which nothing shows whether they pass
    emulated: Printable = (
        ""  # what loading them on an emulated CPU showed, or why that was not done
    )

    @property
    def seen(self) -> str:
        """The observation in one line."""
        if self.undecided:
            undecided = f"not decided: {len(self.undecided)} of them (first {self.undecided[0]})"
        else:
            undecided = ""
        return "; ".join(filter(None, [self.note, undecided, self.emulated]))

    @model_validator(mode="after")
    def _agrees_with_findings(self) -> Self:
        open_ = any(finding.waived is None for finding in self.findings)
        if open_:
            right = "failed"
        elif self.findings:
            right = "waived"
        else:
            right = self.status
        if self.status != right or (self.status in ("failed", "waived") and not self.findings):
            raise ValueError(
                f"check {self.id}: status {self.status} with {len(self.findings)} findings"
            )
        return self


def waive(check: Check, waivers: Sequence[Waiver]) -> Check:
    """`check` with its findings marked that a waiver covers; what is left open comes first."""
    marked = []
    for finding in check.findings:
        fitting = (
            w for w in waivers if w.check == check.id and fnmatchcase(finding.where, w.member)
        )
        by = next(fitting, None) if finding.waivable else None
        marked.append(finding if by is None else finding.model_copy(update={"waived": by.reason}))
    marked.sort(key=lambda finding: finding.waived is not None)
    if not marked or marked[0].waived is None:
        return check.model_copy(update={"findings": tuple(marked)})
    return check.model_copy(update={"findings": tuple(marked), "status": "waived"})


class Dependency(Frozen):
    """A wheel that was read along with the one that requires it: what was found holds beside this
    file.
    """

    wheel: str
    sha256: str


class Report(Frozen):
    """The outcome for one wheel; `size` in bytes. A check that was not run is not a failure, but it
    is shown.
    """

    wheel: str
    sha256: str
    size: int
    policy: Policy
    dependencies: tuple[Dependency, ...] = ()
    checks: tuple[Check, ...]
    waivers: tuple[Waiver, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return not any(check.status == "failed" for check in self.checks)

    def check(self, name: CheckId) -> Check:
        """The check of this name."""
        return next(check for check in self.checks if check.id == name)

    def replaced(self, new: Check) -> "Report":
        """The report with another outcome of one check."""
        checks = tuple(new if check.id == new.id else check for check in self.checks)
        return self.model_copy(update={"checks": checks})

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for check in self.checks for finding in check.findings)

    @model_validator(mode="before")
    @classmethod
    def _recompute_passed(cls, data: Any) -> Any:
        """`passed` follows from the checks: what a file says about it is not read."""
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if key != "passed"}
        return data

    def to_json(self) -> dict[str, Any]:
        """Plain data; `Report.model_validate` reads it back."""
        return self.model_dump(mode="json")
