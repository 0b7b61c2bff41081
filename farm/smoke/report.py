"""Results of a smoke test: the probe's file, read as untrusted input, and the report made from it."""

import os
import stat
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationError

from farm.base.text import plain, plain_lines, short
from farm.base.yamlfile import Model

MAX_DOCUMENT = 1 << 20  # bytes of the probe's JSON file
# Windows has neither links nor pipes in a folder of the user's own, and translates line ends unless told not to.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
TESTED_AT = "tested at"
TESTED_WHEEL = "sha256 of the wheel"
"""Facts of a kept report: when the test ended (ISO 8601), and which file it was, since names say less."""
Status = Literal["passed", "failed", "not_run"]


Text = Annotated[str, Field(max_length=8000), AfterValidator(plain_lines)]
Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(plain)]
Facts = Annotated[dict[Name, Text], Field(max_length=50)]


class Check(Model):
    """One check of the probe. `expected` is beside `seen` in a failed one, `reason` in one not run.

    `warning` is what needs a word although the check passed.
    """

    group: Name
    name: Name
    status: Status
    seen: Text | None
    expected: Text | None
    reason: Text | None
    warning: Text | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ProbeDocument(Model):
    """The file that the probe writes, schema 1; `running` names the check in progress, `limit_s` its time.

    `out_of_time`: `limit_s` is what was left of the time of all checks, `time_limit_s`. `skipped`: how many checks
    were not run since that time was over.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")]
    module: Name
    facts: Facts
    complete: bool
    running: Name | None
    limit_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    time_limit_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    out_of_time: bool = False
    skipped: Annotated[int, Field(ge=0)] = 0
    checks: Annotated[tuple[Check, ...], Field(max_length=500)]


class Row(NamedTuple):
    """A line of a table."""

    name: str
    status: str
    detail: str


class Cause(Model):
    """Why something did not work, and what to do about it. `id` is that of `farm/wheel/messages.yaml`."""

    id: Name
    what: Text
    fix: Text


class SmokeReport(Model):
    """The result of one run of the probe.

    Attributes:
        emulated: The emulated CPU model, None on the real one.
        outcome: `passed` only if the probe ended by itself, no check failed and at least one passed.
        reason: Why the outcome is not `passed`.
        hint: What to do about it.
        causes: What is known of the reasons, each with its fix.
        exit_code: The probe's exit code, None if it was ended by a signal or never ran.
        signal: The signal that ended it (`SIGILL`).
        output_tail: The end of what it printed, control characters removed.
        seconds: Wall-clock time of the child.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    module: Name
    emulated: Name | None
    outcome: Status
    reason: Text | None = None
    hint: Text | None = None
    causes: Annotated[tuple[Cause, ...], Field(max_length=50)] = ()
    facts: Facts = Field(default_factory=dict)
    checks: Annotated[tuple[Check, ...], Field(max_length=500)] = ()
    exit_code: int | None = None
    signal: Name | None = None
    output_tail: Annotated[str, Field(max_length=1 << 16), AfterValidator(plain_lines)] = ""
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    def to_json(self) -> str:
        """The report as JSON text; `SmokeReport.model_validate_json` reads it back."""
        return self.model_dump_json(by_alias=True, indent=1)

    @property
    def where(self) -> str:
        """The CPU: `this machine`, or `SandyBridge (emulated)`."""
        return f"{self.emulated} (emulated)" if self.emulated else "this machine"

    def rows(self) -> tuple[Row, ...]:
        """Every check, and at the end the outcome, as plain data for a table."""
        rows = [Row(check.name, _status(check), _detail(check)) for check in self.checks]
        return (*rows, Row(f"{self.module} on {self.where}", self.outcome.replace("_", " "), self.reason or ""))


def _status(check: Check) -> str:
    return "warning" if check.status == "passed" and check.warning else check.status.replace("_", " ")


def _detail(check: Check) -> str:
    text = check.reason or check.seen or ""
    if check.status == "failed":
        text += f"; expected: {check.expected}"
    elif check.warning:
        text += f"; {check.warning}"
    return " ".join(text.split())


def read_document(path: Path) -> ProbeDocument | str:
    """Reads the probe's file, or says what is wrong with it.

    The module under test runs beside the probe and can have put anything there: a pipe, a link, gigabytes.
    """
    try:
        # Opened first, looked at then: between a look and an opening it could be replaced.
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except OSError as error:
        return f"the probe left no report ({error.strerror})"
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return "the probe's report is not a regular file"
    with os.fdopen(descriptor, "rb") as file:
        # One byte more than allowed shows that there is more.
        raw = file.read(MAX_DOCUMENT + 1)
    if len(raw) > MAX_DOCUMENT:
        return f"the probe's report is larger than {MAX_DOCUMENT >> 20} MiB"
    try:
        return ProbeDocument.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return short(f"the probe's report is not valid: {where}: {first['msg']}")
