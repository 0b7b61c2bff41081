"""Printing: errors, tables and JSON; standard output whose reader may go away: `farm status |
head`.

Tables are laid out here: importing Rich takes longer than most answers.
"""

import argparse
import errno
import io
import json
import os
import shutil
import signal
import sys
import textwrap
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Never, TextIO, cast

from farm.base.errors import FarmError, InfrastructureError
from farm.base.interrupts import OutputClosed
from farm.base.text import plain

if TYPE_CHECKING:
    from rich.console import Console

    from farm.run.workspace import Outcomes

GAP = 2
SCREEN = 80
MIN_PROSE = 30
MAX_PROSE = 120
LOG_WIDTH = 240
"""Columns where there is no terminal: a log is read unwrapped."""
RIGHT = ("seconds", "took")
"""Columns of numbers."""


def explain(error: FarmError) -> None:
    """Print an error: what happened, where, and the next step."""
    sys.stdout.flush()  # where both go to one log, what was printed stands before
    first, *further_lines = str(error).split("\n")
    note(f"farm: {first}")
    for line in further_lines:  # indented: only the farm's own words stand where its lines begin
        note(f"    {line.removeprefix('    ')}")
    if error.hint:
        next_step(error.hint)


def json_document(data: Mapping[str, Any] | list[Any]) -> None:
    """One JSON document on stdout: what `--json` gives."""
    global document  # noqa: PLW0603 read once, at the end of the process
    document = True
    print(json.dumps(data, indent=2))


def answer(
    args: argparse.Namespace, data: Mapping[str, Any] | list[Any], lines: Iterable[object] = ()
) -> None:
    """The result of a command: with `--json` the document, else the lines."""
    if args.json:
        json_document(data)
    else:
        for line in lines:
            say(line)


def fields(source: object, *names: str) -> dict[str, Any]:
    """Return attributes of an object by name, for a JSON document."""
    return {name: getattr(source, name) for name in names}


def say(text: object) -> None:
    """One line on stdout, made safe to print."""
    print(plain(str(text)))


def prose(text: str, hang: int = 2) -> None:
    """Print a sentence, as wide as the terminal; `SCREEN` columns where there is none.

    Commands to copy are lines of their own, by `say`.
    """
    indent = " " * (len(text) - len(text.lstrip()) + hang)
    lines = textwrap.wrap(
        plain(text),
        prose_width(),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(lines))


def prose_width() -> int:
    """The columns for sentences: those of the terminal, but no more than can be read."""
    if not sys.stdout.isatty():
        return SCREEN
    return min(MAX_PROSE, max(MIN_PROSE, shutil.get_terminal_size().columns))


def note(text: str) -> None:
    """One line on stderr: what a command says beside its result."""
    print(plain(text), file=sys.stderr, flush=True)


def next_step(text: str) -> None:
    """What to do now, on stderr, below the line that it is about."""
    note(f"  next: {text}")


def console() -> "Console":
    """Rich's console on standard error; wide where it is not a terminal."""
    from rich.console import Console

    error_console = Console(stderr=True, highlight=False)
    if error_console.is_terminal:
        return error_console
    return Console(stderr=True, highlight=False, width=LOG_WIDTH)


def counted(number: int, noun: str) -> str:
    """`1 build`, `2 builds`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


def in_terminal() -> bool:
    """True if somebody can be asked: both input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(question: str) -> bool:
    """Ask a question in the terminal; anything but a yes is a no."""
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def on_terminal() -> bool:
    """True if progress may be drawn: standard error is a terminal, and no CI's."""
    return sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("CI")


@contextmanager
def bytes_read() -> Iterator[Callable[[int, int], None] | None]:
    """A counter on the terminal, such as `read 80 of 165 MiB`, for work that is not a run's.

    Yields:
        Takes how many bytes were read, and how many there are; None where nothing may be drawn.
    """
    if not on_terminal():
        yield None
        return

    def draw(read: int, total: int) -> None:
        print(f"\rread {read >> 20} of {total >> 20} MiB", end="", file=sys.stderr, flush=True)

    try:
        yield draw
    finally:
        print(f"\r{' ' * 40}\r", end="", file=sys.stderr, flush=True)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], width: int = LOG_WIDTH
) -> None:
    """A table on stdout, as wide as the terminal or `width`; cells are shown as they are, without
    markup.
    """
    if title:
        say(title)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    print("\n".join(lines(columns, rows, width)))


def lines(columns: Sequence[str], rows: Iterable[Sequence[str]], room: int) -> Iterator[str]:
    """The lines of a table of at most `room` places; the widest columns are folded where it would
    be wider.
    """
    # Made safe before it is measured: an escape sequence has no width on the screen.
    cells = [list(columns)]
    for row in rows:
        cells.append(list(map(plain, row)))
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    while sum(widths) + GAP * (len(widths) - 1) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    for row in cells:
        for parts in zip_longest(*map(_folded, row, widths), fillvalue=""):
            padded = map(_padded, columns, parts, widths)
            yield (" " * GAP).join(padded).rstrip()


def _padded(column: str, text: str, width: int) -> str:
    """The text as wide as its column; numbers stand on the right."""
    blanks = " " * (width - _width(text))
    if column in RIGHT:
        return blanks + text
    return text + blanks


def _width(text: str) -> int:
    """The places that a text takes: a Chinese character takes two."""
    if text.isascii():
        return len(text)
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _folded(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`: broken between words, and in words that are longer than
    a line.
    """
    if _width(text) <= width:
        return [text]
    return textwrap.wrap(text, max(1, width * len(text) // _width(text)), break_on_hyphens=False)


def outcomes(result: "Outcomes") -> None:
    """The table at the end of a run, and the pip line that a user would run."""
    rows: list[tuple[str, ...]] = []
    total = 0.0
    for step in result.steps:
        rows.append((step.name, f"{step.seconds:.1f}", step.outcome, step.result))
        total += step.seconds
    rows.append(("all", f"{total:.1f}", "", ""))
    title = "no new run"
    if result.run:
        title = f"run {result.run}"
    print()
    table(title, ("step", "seconds", "outcome", "result"), rows)
    if result.wheel and not result.pip_line:
        print()
        say(result.wheel)
    if result.pip_line:
        print()
        say(result.pip_line)


# --- the streams ---

CLOSED = 141
"""The exit code then: 128 + SIGPIPE, as a shell gives it for a program that the signal ends."""

# Windows says EINVAL of a pipe that no one reads.
_GONE = {errno.EPIPE, errno.EINVAL} if sys.platform == "win32" else {errno.EPIPE}

document = False
"""A JSON document was printed: a command with `--json` prints one, also where it fails."""


class OutputFailedError(InfrastructureError):
    """The output cannot be written."""


class _Outlet(io.FileIO):
    """A descriptor; after a write of the main thread that fails everything goes nowhere, so that it
    fails once.

    Another thread ends quietly: the next line of the main thread finds the same.
    """

    def write(self, data: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            if threading.current_thread() is not threading.main_thread():
                raise SystemExit(CLOSED) from error
            # First: the interpreter flushes at its end, and would fail on the same descriptor
            # again.
            _to_nowhere(self.fileno())
            if error.errno in _GONE:
                raise OutputClosed from error
            raise OutputFailedError(
                f"the output cannot be written: {error.strerror or error}"
            ) from error


def prepare() -> None:
    """Makes standard output and error end the command when their reader is gone.

    A character that the terminal cannot show is not a failure either: it is printed as its escape.
    What was closed before the start (`farm plan >&-`) goes nowhere; left closed, the next file that
    is opened would take its number, and programs that are started would write into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            _to_nowhere(descriptor)
    sys.stdout = _wrap(sys.stdout)
    sys.stderr = _wrap(sys.stderr)
    in_main = threading.current_thread() is threading.main_thread()
    # CI systems and `systemctl stop` send SIGTERM, a terminal that is closed SIGHUP. Both are like
    # Ctrl-C: containers and temporary files must not stay. `nohup` has SIGHUP ignored, which stays
    # so.
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if in_main and number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt


def _wrap(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed from the start
        return Path(os.devnull).open("w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):  # a test's
        return stream
    raw = getattr(
        stream.buffer, "raw", stream.buffer
    )  # with PYTHONUNBUFFERED there is nothing between
    if type(raw) is not io.FileIO:  # a test's, or prepared before
        stream.reconfigure(errors="backslashreplace")
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(cast(io.RawIOBase, _Outlet(raw.fileno(), "w", closefd=False))),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering
        or stream.write_through,  # with PYTHONUNBUFFERED the one is not set
        write_through=stream.write_through or stream is sys.stderr,
    )


def flush() -> None:
    """Writes out what is still held back; OutputClosed if no one reads it, OutputFailedError if it
    fails.
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
