"""What a wheel is held to, and what was found: the words of `verify`."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Literal, Self

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field, ValidationError, computed_field, field_validator, model_validator

from farm.errors import UsageError
from farm.wheel.isa import level_names
from farm.wheel.models import Frozen, Printable

CheckId = Literal["archive", "names", "metadata", "record", "members", "platform", "imports", "sass", "ptx", "cpu"]
Status = Literal["passed", "failed", "waived", "not_run"]


@cache
def defaults(what: str) -> tuple[str, ...]:
    """A list of `verify_defaults.yaml`."""
    text = (resources.files("farm.wheel") / "verify_defaults.yaml").read_text(encoding="utf-8")
    return tuple(yaml.safe_load(text)[what])


class VerifyPolicy(Frozen):
    """What a wheel promises.

    Attributes:
        name: Distribution name.
        version: Its version, local part included.
        python: Interpreter tag, such as `cp311`.
        platform: `linux_x86_64` asks for any manylinux tag of that machine.
        sass: Architectures (35 for sm_35) whose machine code the wheel's kernels must have.
        ptx: Architectures whose PTX they must have.
        allow_other_sass: Machine code for further architectures is no finding.
        mixed: Member patterns (`fnmatch`) of libraries that link others' device code statically (cuDNN, NCCL): the
            most frequent set of architectures in them is judged, not every one.
        foreign: Member patterns of libraries that were not compiled here (vendored ones): they must hold machine code
            that runs on each promised GPU, whatever else they hold; no PTX is asked of them.
        cpu: CPU level that the machine code must not exceed.
        cpu_exempt: Member patterns of libraries whose code is not looked at.
        dispatching: Member patterns of libraries that choose their code at run time: only what runs when they are
            loaded must keep to the level (`farm.wheel.initscan`).
        numpy: The versions of numpy that METADATA may allow at most, such as `<2`; None asks nothing.
        forbidden: Member patterns of files that have no place in a wheel.
        exclude: Library name patterns that may be missing, besides the NVIDIA driver's.
    """

    name: str
    version: str
    python: str
    platform: str
    sass: tuple[int, ...] = ()
    ptx: tuple[int, ...] = ()
    allow_other_sass: bool = False
    mixed: tuple[str, ...] = ()
    foreign: tuple[str, ...] = Field(default_factory=lambda: defaults("foreign"))
    cpu: str
    cpu_exempt: tuple[str, ...] = ()
    dispatching: tuple[str, ...] = ()
    numpy: str | None = None
    forbidden: tuple[str, ...] = Field(default_factory=lambda: defaults("forbidden"))
    exclude: tuple[str, ...] = ()

    @field_validator("cpu")
    @classmethod
    def _known_level(cls, value: str) -> str:
        if value not in level_names():
            msg = f"no such CPU level; there are {', '.join(level_names())}"
            raise ValueError(msg)
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
    """A finding that somebody accepts, and why.

    What leaves other things unchecked (a damaged wheel or library) cannot be waived: nobody knows what it hides.

    Attributes:
        check: Which check.
        member: Pattern (`fnmatch`) for the member; findings about the whole wheel have an empty one.
        reason: Why it does no harm; kept in the report and in the index.
    """

    check: Literal["names", "metadata", "record", "members", "platform", "imports", "sass", "ptx", "cpu"]
    member: str = Field(min_length=1, max_length=1024)
    reason: Printable = Field(max_length=1000)

    @field_validator("reason")
    @classmethod
    def _given(cls, value: str) -> str:
        if not value.strip():
            msg = "a waiver needs a reason"
            raise ValueError(msg)
        return value.strip()


def parse_waiver(text: str) -> Waiver:
    """A waiver as it is typed: `CHECK:PATTERN=REASON`, as in `members:torch/lib/*_test*=wanted by the testers`.

    Raises:
        UsageError: It is none, or has no reason.
    """
    rule, _, reason = text.partition("=")
    check, _, member = rule.partition(":")
    try:
        return Waiver.model_validate({"check": check, "member": member, "reason": reason})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"waiver {text[:200]!r}: {first['loc'][0]}: {first['msg']}",
            hint="write CHECK:PATTERN=REASON, as in members:torch/lib/*_test*='wanted by the testers'",
        ) from error


class Finding(Frozen):
    """One thing that is wrong: in which check, in which member, what, why it matters, what to do about it.

    `waived` is the reason of the waiver that covers it. Not `waivable` is what leaves other things unchecked.
    """

    check: CheckId
    where: Printable
    what: Printable
    why: str
    fix: str
    waivable: bool = True
    waived: Printable | None = None

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.waived is not None and not self.waivable:
            msg = "this finding cannot be waived"
            raise ValueError(msg)
        return self


class Check(Frozen):
    """One check. `note` says what was seen or, if it was not run, why. `waived`: every finding is."""

    id: CheckId
    status: Status
    findings: tuple[Finding, ...] = ()
    note: str = ""

    @model_validator(mode="after")
    def _agrees_with_findings(self) -> Self:
        open_ = any(finding.waived is None for finding in self.findings)
        right = "failed" if open_ else "waived" if self.findings else self.status
        if self.status != right or (self.status in ("failed", "waived") and not self.findings):
            msg = f"check {self.id}: status {self.status} with {len(self.findings)} findings"
            raise ValueError(msg)
        return self


def waive(check: Check, waivers: Sequence[Waiver]) -> Check:
    """`check` with its findings marked that a waiver covers; what is left open comes first."""
    marked = []
    for finding in check.findings:
        fitting = (w for w in waivers if w.check == check.id and fnmatchcase(finding.where, w.member))
        by = next(fitting, None) if finding.waivable else None
        marked.append(finding if by is None else finding.model_copy(update={"waived": by.reason}))
    marked.sort(key=lambda finding: finding.waived is not None)
    if not marked or marked[0].waived is None:
        return check.model_copy(update={"findings": tuple(marked)})
    return check.model_copy(update={"findings": tuple(marked), "status": "waived"})


class Report(Frozen):
    """The outcome for one wheel; `size` in bytes. A check that was not run is no failure, but it is shown."""

    wheel: str
    sha256: str
    size: int
    policy: VerifyPolicy
    checks: tuple[Check, ...]
    waivers: tuple[Waiver, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        return not any(check.status == "failed" for check in self.checks)

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
