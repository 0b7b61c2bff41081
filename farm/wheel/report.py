"""What `farm verify` reports of a wheel: findings, checks, and those that a waiver accepts."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, Self

from pydantic import computed_field, model_validator

from farm.policy.rules import CheckId, Frozen, Policy, Printable, Waiver

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
        if not self.where:
            return self.what
        return f"{self.where}: {self.what}"

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
    # What loading them on an emulated CPU showed, or why that was not done.
    emulated: Printable = ""

    @property
    def seen(self) -> str:
        """The observation in one line."""
        undecided = ""
        if self.undecided:
            undecided = f"not decided: {len(self.undecided)} of them (first {self.undecided[0]})"
        return "; ".join(filter(None, [self.note, undecided, self.emulated]))

    @model_validator(mode="after")
    def _agrees_with_findings(self) -> Self:
        if any(finding.waived is None for finding in self.findings):
            agrees = self.status == "failed"
        elif self.findings:
            agrees = self.status == "waived"
        else:
            agrees = self.status in ("passed", "not_run")
        if not agrees:
            raise ValueError(
                f"check {self.id}: status {self.status} with {len(self.findings)} findings"
            )
        return self


def waive(check: Check, waivers: Sequence[Waiver]) -> Check:
    """`check` with its findings marked that a waiver covers; what is left open comes first."""
    uncovered = []
    waived = []
    for finding in check.findings:
        waiver = _waiver_of(finding, waivers)
        if waiver is not None:
            waived.append(finding.model_copy(update={"waived": waiver.reason}))
        elif finding.waived is not None:
            waived.append(finding)
        else:
            uncovered.append(finding)
    update: dict[str, Any] = {"findings": (*uncovered, *waived)}
    if waived and not uncovered:
        update["status"] = "waived"
    return check.model_copy(update=update)


def _waiver_of(finding: Finding, waivers: Sequence[Waiver]) -> Waiver | None:
    """The waiver that covers a finding."""
    if not finding.waivable:
        return None
    for waiver in waivers:
        if waiver.check == finding.check and fnmatchcase(finding.where, waiver.member):
            return waiver
    return None


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
        checks = list(self.checks)
        for index, check in enumerate(checks):
            if check.id == new.id:
                checks[index] = new
        return self.model_copy(update={"checks": tuple(checks)})

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all checks."""
        findings: list[Finding] = []
        for check in self.checks:
            findings += check.findings
        return tuple(findings)

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
