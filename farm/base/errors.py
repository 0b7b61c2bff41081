"""One tree of errors, one exit code a class.

Every message says what happened and where; `hint` says what to do next. The command line prints
both and exits with `exit_code`; a traceback is shown for bugs only.
"""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import errno
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    DONE = 0
    USAGE = 2
    NOT_BUILDABLE = 3
    NO_RUNNER = 4
    BUILD_FAILED = 5
    VERIFICATION_FAILED = 6
    PUBLISH_REFUSED = 7
    SMOKE_FAILED = 8
    INFRASTRUCTURE = 9
    INTERRUPTED = 130


EXITS = {
    ExitCode.DONE: "done",
    1: "work left unfinished (`farm index check`)",
    ExitCode.USAGE: "usage or configuration",
    ExitCode.NOT_BUILDABLE: "not buildable",
    ExitCode.NO_RUNNER: "no runner or engine",
    ExitCode.BUILD_FAILED: "build failed",
    ExitCode.VERIFICATION_FAILED: "verification failed",
    ExitCode.PUBLISH_REFUSED: "publish refused",
    ExitCode.SMOKE_FAILED: "smoke failed",
    ExitCode.INFRASTRUCTURE: "infrastructure",
    ExitCode.INTERRUPTED: "interrupted",
    141: "output pipe closed (`farm status | head`)",
}
"""Every exit code of the command line, for `farm --help` and the reference."""


class FarmError(Exception):
    """A failure that the farm understands: what happened and where; `hint`: what to do next, if
    there is something.
    """

    exit_code: ClassVar[int] = ExitCode.INFRASTRUCTURE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(FarmError):
    """The command line or a configuration file is wrong (2)."""

    exit_code = ExitCode.USAGE


class NotBuildableError(FarmError):
    """The combination that was asked for cannot be built; the message gives the reason (3)."""

    exit_code = ExitCode.NOT_BUILDABLE


class NoRunnerError(FarmError):
    """No engine answers, or no runner can take the job (4)."""

    exit_code = ExitCode.NO_RUNNER


class BuildFailedError(FarmError):
    """The build itself failed: never retried by itself (5)."""

    exit_code = ExitCode.BUILD_FAILED


class VerificationFailedError(FarmError):
    """A wheel does not hold what its name promises, or is malformed (6)."""

    exit_code = ExitCode.VERIFICATION_FAILED


class PublishRefusedError(FarmError):
    """The index refused a wheel: same name with other bytes, or a promise not kept (7)."""

    exit_code = ExitCode.PUBLISH_REFUSED


class SmokeFailedError(FarmError):
    """An installed wheel did not work (8)."""

    exit_code = ExitCode.SMOKE_FAILED


class InfrastructureError(FarmError):
    """A machine, network or store failed; the same call may succeed later (9)."""

    exit_code = ExitCode.INFRASTRUCTURE


MEMORY_LIMITS = "ulimit -v, the container's, the unit's or the job's"


_NEXT = {
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        "look at its owner and mode, and those of its folder (`ls -ld`), or work in a folder of "
        "your own",
    ),
    errno.EROFS: "its file system is mounted read-only: work in a folder that can be written",
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT),
        "make room (`farm clean --dry-run` shows what can go), then run again",
    ),
}
"""Next steps by the error's number."""


def unreadable(path: object, error: OSError) -> UsageError:
    """The error for a file or folder of the user's that the system does not give."""
    return UsageError(f"{path}: cannot be read: {error.strerror}", hint=_NEXT.get(error.errno or 0))


def system_error(error: Exception) -> InfrastructureError | None:
    """The farm's error where the system refused space, permission, a folder, memory or threads;
    None: another one.
    """
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return InfrastructureError(
            f"{where}{error.strerror or error}", hint=_NEXT.get(error.errno or 0)
        )
    if isinstance(error, MemoryError):
        hint = f"free some, or raise a limit: {MEMORY_LIMITS}"
        return InfrastructureError("the system gave no more memory", hint=hint)
    if str(error) == "can't start new thread":  # a RuntimeError; memory may lack, for its stack
        return InfrastructureError(
            "the system started no more threads",
            hint=f"limits: ulimit -u, the container's pids, or of memory: {MEMORY_LIMITS}",
        )
    return None
