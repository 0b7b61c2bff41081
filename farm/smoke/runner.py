"""Runs the probe in a child process and survives whatever the module under test does to it; the
report of that.
"""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationError

from farm.base import outputs, processes, zipapps
from farm.base.errors import InfrastructureError, UsageError
from farm.base.temporary import temporary_folder
from farm.base.text import plain, plain_lines, short
from farm.base.yamlfile import Model, first_fault
from farm.smoke.emulation import find_emulator
from farm.smoke.environment import probe_environment
from farm.smoke.probe.package import EMULATOR, signal_name
from farm.wheel.explain.tables import matching_rows, placeholders

MAX_DOCUMENT = 1 << 20  # bytes of the probe's JSON file
# Windows has neither links nor pipes in a folder of the user's own, and translates line ends unless
# told not to.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
TESTED_AT = "tested at"
TESTED_WHEEL = "sha256 of the wheel"
"""Facts of a kept report: when the test ended (ISO 8601), and which file it was, since names say
less.
"""
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
    """The file that the probe writes, schema 1; `running` names the check in progress.

    `skipped`: how many checks were not run since the time of all of them, `time_limit_s`, was over.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")]
    module: Name
    facts: Facts
    complete: bool
    running: Name | None
    time_limit_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    skipped: Annotated[int, Field(ge=0)] = 0
    checks: Annotated[tuple[Check, ...], Field(max_length=500)]


class Row(NamedTuple):
    """A line of a table."""

    name: str
    status: str
    detail: str


class Cause(Model):
    """Why something did not work, and what to do about it. `id` is that of
    `farm/wheel/explain/messages.yaml`.
    """

    id: Name
    what: Text
    fix: Text


class SmokeReport(Model):
    """The result of one run of the probe.

    Attributes:
        module: The module under test.
        emulated: The emulated CPU model; None on the real one.
        outcome: `passed` only if the probe ended by itself, no check failed and at least one
            passed.
        reason: Why the outcome is not `passed`.
        hint: What to do about it.
        causes: What is known of the reasons, each with its fix.
        facts: What the probe learned of wheel and machine.
        checks: Those that it made, or has a reason not to.
        exit_code: The probe's; None if a signal ended it, or it never ran.
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
        if self.emulated:
            return f"{self.emulated} (emulated)"
        return "this machine"

    def rows(self) -> tuple[Row, ...]:
        """Every check, and at the end the outcome, as plain data for a table."""
        rows = [Row(check.name, _status(check), _detail(check)) for check in self.checks]
        return (
            *rows,
            Row(
                f"{self.module} on {self.where}", self.outcome.replace("_", " "), self.reason or ""
            ),
        )


def _status(check: Check) -> str:
    if check.status == "passed" and check.warning:
        return "warning"
    return check.status.replace("_", " ")


def _detail(check: Check) -> str:
    text = check.reason or check.seen or ""
    if check.status == "failed":
        text += f"; expected: {check.expected}"
    elif check.warning:
        text += f"; {check.warning}"
    return " ".join(text.split())


def read_document(path: Path) -> ProbeDocument | str:
    """Reads the probe's file, or says what is wrong with it.

    The module under test runs beside the probe and can have put anything there: a pipe, a link,
    gigabytes.
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
        return short(f"the probe's report is not valid: {first_fault(error)}")


PROBE = "farm.smoke.probe.main:main"
TAIL_BYTES = 16 << 10
GRACE_S = 15.0  # the probe ends itself at its limit; if it has not by then, it cannot
KILL_WAIT_S = 10.0  # a process inside a hung driver does not die, even of SIGKILL
# What Windows gives as the exit code of a crash (NTSTATUS, [MS-ERREF] 2.3), in the words of the
# others.
_NTSTATUS = {
    0xC000001D: "SIGILL",
    0xC0000005: "SIGSEGV",
    0xC0000094: "SIGFPE",
    0xC0000409: "SIGABRT",
}
_LAST_WORDS = 4000  # characters of the output that are looked at for a cause
_CHECK_LINES = (b"passed ", b"failed ", b"not run ", b"warning ")
_LATE = "did not finish in"
_MEANING = {
    "SIGILL": "the CPU lacks an instruction that the wheel uses",
    "SIGSEGV": "it used memory that is not its own",
    "SIGBUS": "it used memory that is not there",
    "SIGFPE": "it divided by zero, or the like",
    "SIGABRT": "it gave up by itself; its last words are in the output",
    "SIGKILL": "something killed it; when memory runs out, that is the system",
}


@dataclass(frozen=True)
class Expectation:
    """Expectations of the installed wheel's own account.

    Attributes:
        version: The exact version; None takes any.
        cuda: The CUDA version (`11.8`), `none` for a build without CUDA; None takes any.
        archs: Architectures that it must hold: `sm_35` is SASS, `compute_35` PTX.
        quantized: The quantized engine that it must have (`fbgemm`); None takes any, or none.
        features: The features of PyTorch that it must have, which are tried.
        gpu: The GPU part must run: without a driver or a card the outcome is `failed`. An emulated
            CPU has none.
        imports: Modules to import, for a package without torch's interface: the rest of the probe
            is left out.
        script: A Python file to run, for such a package.
    """

    version: str | None = None
    cuda: str | None = None
    archs: tuple[str, ...] = ()
    quantized: str | None = None
    features: tuple[str, ...] = ()
    gpu: bool = False
    imports: tuple[str, ...] = ()
    script: Path | None = None


@dataclass(frozen=True)
class Ended:
    """The end of a probe: `returncode` is negative for a signal, None where it could not even be
    killed.
    """

    returncode: int | None
    late: str | None  # what did not end in its time
    tail: str
    seconds: float


def run_probe(
    python: Path,
    *,
    module: str,
    expect: Expectation,
    timeout_s: float,
    emulate: str | None = None,
    line: Callable[[str], None] | None = None,
    passed: tuple[str, ...] = (),
) -> SmokeReport:
    """Runs the probe with another interpreter, in an environment of its own, and reports what
    happened.

    A crash, a hang, rubbish on stdout or in the report file are outcomes, not exceptions; an
    emulator that is missing makes the outcome `not_run`.

    `timeout_s` limits the whole run: checks that would start later are not run. `emulate`, a CPU
    model of qemu (`SandyBridge`): the CPU part runs under emulation. `line` gets the line of each
    check when it ends. `passed`: names of this environment's variables that the probe gets as well.
    """
    prefix: list[str] = []
    if emulate is not None:
        try:
            prefix = [find_emulator(), "-cpu", emulate]
        except InfrastructureError as error:
            return SmokeReport(
                module=module,
                emulated=emulate,
                outcome="not_run",
                reason=str(error),
                hint=error.hint,
            )
    # In a folder of its own: nothing to import by accident, and core files go away with it.
    with temporary_folder("farm-smoke-") as folder:
        file = folder / "report.json"
        program = folder / "probe.pyz"
        with outputs.writing(program, outputs.ROOM):
            program.write_bytes(zipapps.pack(PROBE))
        # -I: neither PYTHONPATH nor the current folder may stand in for the installed wheel.
        command = [*prefix, str(python), "-I", "-X", "faulthandler", str(program)]
        command += arguments(
            module, expect, file, timeout_s=timeout_s, cpu_only=emulate is not None
        )
        environment = probe_environment(folder, passed)
        if prefix:
            environment[EMULATOR] = " ".join(prefix)
        ended = _run(command, environment, folder, timeout_s, line)
        document = read_document(file)
    return judge(module, emulate, ended, document, expect)


def arguments(
    module: str, expect: Expectation, file: Path, *, timeout_s: float, cpu_only: bool = False
) -> list[str]:
    """The options of the probe, which writes its report into `file`."""
    values = {
        "module": module,
        "json": file,
        "time-limit": f"{timeout_s:g}",
        "expect-version": expect.version,
    }
    values |= {
        "expect-cuda": expect.cuda,
        "expect-quantized": expect.quantized,
        "script": expect.script,
    }
    options = [f"--{name}={value}" for name, value in values.items() if value is not None]
    options += [f"--expect-feature={name}" for name in expect.features]
    options += [f"--import={name}" for name in expect.imports]
    if cpu_only:
        options.append("--cpu-only")
    if expect.archs:
        return [*options, "--expect-arch", *expect.archs]
    return options


def _run(
    command: list[str],
    environment: Mapping[str, str],
    folder: Path,
    timeout_s: float,
    line: Callable[[str], None] | None,
) -> Ended:
    started = time.monotonic()
    mark = uuid.uuid4().hex
    try:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, processes.MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own, so that all that it starts can be ended together.
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be started: {error.strerror}") from error
    assert child.stdout is not None
    tail = bytearray()
    reader = threading.Thread(target=_keep_tail, args=(child.stdout, tail, line), daemon=True)
    reader.start()
    try:
        # The probe keeps the time itself; this is for one that cannot.
        child.wait(timeout_s + GRACE_S)
        late = None
    except subprocess.TimeoutExpired:
        late = f"{_LATE} {timeout_s:g} s"
    finally:
        # Also after a normal end: what it started and left behind dies with it.
        _kill_group(child.pid)
        child.kill()
        # What left the group is known by its environment, where this system shows that.
        processes.end_marked(mark, processes.KILL, KILL_WAIT_S)
    try:
        returncode: int | None = child.wait(KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        returncode = None
    # A grandchild that could not be ended may hold the pipe open for ever: the reader is not waited
    # for then.
    reader.join(KILL_WAIT_S)
    text = bytes(tail[-TAIL_BYTES:]).decode("utf-8", "replace")
    return Ended(returncode, late, plain_lines(text), time.monotonic() - started)


def _kill_group(group: int) -> None:
    """Ends the child and all that it started, as far as that is still its group (Windows: its
    tree).
    """
    if sys.platform == "win32":
        command = ["taskkill", "/F", "/T", "/PID", str(group)]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _keep_tail(stream: IO[bytes], tail: bytearray, line: Callable[[str], None] | None) -> None:
    """Reads to the end, keeps the last bytes and passes on whole lines; of a line without end no
    more than the tail.
    """
    begun = bytearray()
    with stream:
        while chunk := os.read(stream.fileno(), 1 << 16):
            tail += chunk
            del tail[:-TAIL_BYTES]
            if line is None:
                continue
            *full_lines, partial_line = bytes(begun + chunk).split(b"\n")
            begun = bytearray(partial_line[-TAIL_BYTES:])
            for text_line in full_lines:
                if text_line.startswith(_CHECK_LINES):  # not what the module, or qemu, has to say
                    line(plain_lines(text_line.decode("utf-8", "replace")))


def judge(
    module: str,
    emulate: str | None,
    ended: Ended,
    document: ProbeDocument | str,
    expect: Expectation,
) -> SmokeReport:
    """The report of a probe that has ended, here or elsewhere; `document` is its file, or what is
    wrong with that.
    """
    name = None
    code = ended.returncode
    # The same code may come as a signed or an unsigned number.
    if code is not None and code & 0xFFFFFFFF in _NTSTATUS:
        name = _NTSTATUS[code & 0xFFFFFFFF]
    elif code is not None and code < 0:
        name = signal_name(-code)
        code = None
    facts: Facts = {}
    checks: tuple[Check, ...] = ()
    if isinstance(document, ProbeDocument):
        facts = document.facts
        checks = document.checks
    outcome, reason = _outcome(module, emulate, ended, name, document, expect)
    hint = None
    if name == "SIGILL" and not ended.late:
        hint = "build or choose a wheel for this CPU level"
        if emulate is not None:
            hint = (
                f"the wheel needs more than {emulate} has: look for instruction-set flags in "
                "its build"
            )
    report = SmokeReport(
        module=module,
        emulated=emulate,
        outcome=outcome,
        reason=reason,
        hint=hint,
        facts=facts,
        checks=checks,
        exit_code=code,
        signal=name,
        output_tail=ended.tail,
        seconds=round(ended.seconds, 3),
    )
    hung = (reason or "").startswith(_LATE)
    causes = find_causes(report, hung=hung, gpu=_may_use_gpu(report, expect))
    if causes and not hint:
        hint = causes[0].fix
    return report.model_copy(update={"causes": causes, "hint": hint})


def find_causes(report: SmokeReport, *, hung: bool, gpu: bool = True) -> tuple[Cause, ...]:
    """The causes that the texts of a report show (`farm/wheel/explain/messages.yaml`); empty where
    nothing is known.

    `hung`: the run, or a check of it, did not end in its time; `gpu`: it could use a card.
    """
    texts: list[str] = []
    for check in report.checks:
        if check.status != "passed":
            texts += filter(None, (check.seen, check.reason))
    # A signal says enough: last words before a crash are often about something else.
    if report.outcome == "failed" and report.signal is None:
        texts += [report.reason or "", report.output_tail[-_LAST_WORDS:]]
    filled = placeholders(
        texts,
        report.module,
        {check.name: check.seen or "" for check in report.checks},
        report.emulated,
    )
    causes = []
    for row, _ in matching_rows(texts, report.module, signal=report.signal, hung=hung, gpu=gpu):
        meaning = row.what.format(**filled)
        causes.append(Cause(id=row.id, what=meaning, fix=row.fix.format(**filled)))
    return tuple(causes)


def _may_use_gpu(report: SmokeReport, expect: Expectation) -> bool:
    """Not under emulation, and not with a build that has no CUDA."""
    cudas = {check.seen for check in report.checks if check.name == "CUDA version"}
    return report.emulated is None and "none" not in {expect.cuda, *cudas}


def _outcome(
    module: str,
    emulate: str | None,
    ended: Ended,
    signal_name: str | None,
    document: ProbeDocument | str,
    expect: Expectation,
) -> tuple[Status, str | None]:
    during = ""
    if isinstance(document, ProbeDocument) and document.running:
        during = f" in the check {document.running!r}"
    # The order counts: how the process ended says more than the file that it left behind.
    killed = _why_killed(ended, signal_name, during)
    if killed is not None:
        return "failed", killed
    if isinstance(document, str):
        return "failed", f"{document}; exit code {ended.returncode}"
    if document.module != module:
        return "failed", f"the probe's report is about {document.module!r}, not {module!r}"
    cut_short = _why_cut_short(document, ended, during)
    if cut_short is not None:
        return "failed", cut_short
    failed = [check for check in document.checks if check.status == "failed"]
    if failed:
        return "failed", f"failed: {', '.join(check.name for check in failed)}{_why(failed[0])}"
    if ended.returncode != 0:
        return (
            "failed",
            f"no check failed, yet the exit code is {ended.returncode}: it went wrong at the end",
        )
    if all(check.status != "passed" for check in document.checks):
        return "not_run", "no check could be made"
    if expect.gpu and emulate is None:
        return _outcome_with_gpu(document.checks)
    return "passed", None


def _outcome_with_gpu(checks: Iterable[Check]) -> tuple[Status, str | None]:
    why = _why_no_gpu(checks)
    if why is None:
        return "passed", None
    return "failed", f"a GPU was asked for, and the GPU part did not run: {why}"


def _why_cut_short(document: ProbeDocument, ended: Ended, during: str) -> str | None:
    """Why the probe did not make all checks; None where it did."""
    if document.skipped:
        return f"{_LATE} {document.time_limit_s:g} s: {document.skipped} checks were not run"
    if document.complete:
        return None
    # faulthandler's own first word when its timer ends the probe.
    if "Timeout (" in ended.tail:
        return f"{_LATE} {document.time_limit_s:g} s{during}"
    return f"ended before the last check{during}; exit code {ended.returncode}"


def _why_killed(ended: Ended, signal_name: str | None, during: str) -> str | None:
    """What ended the probe's process from outside; None where it ended itself."""
    if ended.late and ended.returncode is None:
        return f"{ended.late}{during} and could not be killed: the driver hangs"
    if ended.late:
        return f"{ended.late}{during}"
    if signal_name in _MEANING:
        return f"ended by {signal_name}{during}: {_MEANING[signal_name]}"
    if signal_name is not None:
        return f"ended by {signal_name}{during}"
    return None


def _why_no_gpu(checks: Iterable[Check]) -> str | None:
    """Why no check of the GPU was made; None where one passed."""
    reason = None
    for check in checks:
        if check.group != "cuda":
            continue
        if check.status == "passed":
            return None
        reason = reason or check.reason
    return reason or "there is no GPU part"


def _why(failed: Check) -> str:
    """Finding and expectation of the first failed check; of a traceback the last line, which names
    the error.
    """
    lines = (failed.seen or "").strip().splitlines()
    if lines:
        return f": {short(lines[-1])}; expected: {short(failed.expected)}"
    return ""
