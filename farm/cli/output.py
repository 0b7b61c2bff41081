"""Standard output and standard error of a command whose reader may go away: `farm status | head`."""

import errno
import io
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Never, TextIO, cast

from farm.base.errors import InfrastructureError
from farm.base.interrupts import OutputClosed

CLOSED = 141
"""The exit code then: 128 + SIGPIPE, as a shell gives it for a program that the signal ends."""

# Windows says EINVAL of a pipe that no one reads.
_GONE = {errno.EPIPE, errno.EINVAL} if sys.platform == "win32" else {errno.EPIPE}


document = False
"""A JSON document was printed: a command with `--json` prints one, also where it fails."""


class OutputFailedError(InfrastructureError):
    """The output cannot be written."""


class _Outlet(io.FileIO):
    """A descriptor; after a write of the main thread that fails everything goes nowhere, so that it fails once.

    Raises `OutputClosed` where its reader is gone, `OutputFailedError` else. Another thread ends quietly: the next
    line of the main thread finds the same.
    """

    def write(self, data: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            if threading.current_thread() is not threading.main_thread():
                raise SystemExit(CLOSED) from error
            # First: the interpreter flushes at its end, and would fail on the same descriptor again.
            _to_nowhere(self.fileno())
            if error.errno in _GONE:
                raise OutputClosed from error
            raise OutputFailedError(f"the output cannot be written: {error.strerror or error}") from error


def prepare() -> None:
    """Makes standard output and error end the command when their reader is gone.

    A character that the terminal cannot show is not a failure either: it is printed as its escape. What was closed
    before the start (`farm plan >&-`) goes nowhere; left closed, the next file that is opened would take its number,
    and programs that are started would write into that file.
    """
    _open_closed()
    sys.stdout = _wrap(sys.stdout)
    sys.stderr = _wrap(sys.stderr)
    in_main = threading.current_thread() is threading.main_thread()
    # CI systems and `systemctl stop` send SIGTERM, a terminal that is closed SIGHUP. Both are like Ctrl-C: containers
    # and temporary files must not stay. `nohup` has SIGHUP ignored, which stays so.
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if in_main and number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _open_closed() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            _to_nowhere(descriptor)


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt


def _wrap(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed from the start
        return Path(os.devnull).open("w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):  # a test's
        return stream
    raw = getattr(stream.buffer, "raw", stream.buffer)  # with PYTHONUNBUFFERED there is nothing between
    if type(raw) is not io.FileIO:  # a test's, or prepared before
        stream.reconfigure(errors="backslashreplace")
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(cast(io.RawIOBase, _Outlet(raw.fileno(), "w", closefd=False))),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering or stream.write_through,  # with PYTHONUNBUFFERED the one is not set
        write_through=stream.write_through or stream is sys.stderr,
    )


def flush() -> None:
    """Writes out what is still held back.

    Raises:
        OutputClosed: No one reads it.
        OutputFailedError: It cannot be written.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere == descriptor:  # it was the lowest that is free
        os.set_inheritable(nowhere, True)
        return
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
