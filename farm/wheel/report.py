"""What a wheel is held to, and what was found: the words of `verify`."""

from typing import Any, Literal

from pydantic import computed_field, field_validator, model_validator

from farm.wheel.contents import Frozen, Printable
from farm.wheel.isa import level_names

CheckId = Literal["archive", "names", "record", "platform", "imports", "sass", "ptx", "cpu"]


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
        foreign: Member patterns of libraries that were not compiled here (vendored ones): the promised
            architectures must occur somewhere in them.
        cpu: CPU level that the machine code must not exceed.
        cpu_exempt: Member patterns of libraries that choose their code at run time.
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
    foreign: tuple[str, ...] = ()
    cpu: str
    cpu_exempt: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @field_validator("cpu")
    @classmethod
    def _known_level(cls, value: str) -> str:
        if value not in level_names():
            msg = f"no such CPU level; there are {', '.join(level_names())}"
            raise ValueError(msg)
        return value


class Finding(Frozen):
    """One thing that is wrong: in which check, in which member, what, why it matters, what to do about it."""

    check: CheckId
    where: Printable
    what: Printable
    why: str
    fix: str


class Check(Frozen):
    """One check. `note` says what was seen or, if it was not run, why."""

    id: CheckId
    status: Literal["passed", "failed", "not_run"]
    findings: tuple[Finding, ...] = ()
    note: str = ""


class Report(Frozen):
    """The outcome for one wheel; `size` in bytes. A check that was not run is no failure, but it is shown."""

    wheel: str
    sha256: str
    size: int
    policy: VerifyPolicy
    checks: tuple[Check, ...]

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
