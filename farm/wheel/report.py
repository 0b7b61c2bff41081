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
