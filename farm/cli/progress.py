"""Progress of a run on standard error: a line a step for logs, a live view for terminals, nothing,
or all output.
"""

import argparse
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from farm.base.heartbeat import Heartbeat
from farm.base.text import duration, plain
from farm.cli.show import console, note, on_terminal
from farm.run.workspace import Step, Watcher

if TYPE_CHECKING:
    from rich.console import RenderableType

ALIVE_S = 60.0
"""Seconds without a line after which a log says what goes on."""
WIDTH = 110
"""Characters of a line of a log; the run's log files have the whole."""
_NOISE = re.compile(
    r"\s*(?:[0-9]*\s*\|.*|[\^~|. ]*)|(?:\S*/)?(?:gcc|g\+\+|cc|c\+\+|nvcc|cl|ccache)(?:-[0-9]+)? "
    r".*|.*: note: .*"
)
"""Code that a compiler quotes, its carets and notes, and command lines."""
_SOURCE = re.compile(r" -c (\S+\.(?:cu|c|cc|cpp|cxx))(?: |$)")
SILENT_S = 10.0
"""Seconds without a new line after which the view says so."""


@contextmanager
def watching(args: argparse.Namespace) -> Iterator[Watcher]:
    """The watcher that the options ask for."""
    if args.quiet:
        yield Watcher()
    elif args.verbose or not on_terminal():
        with LogWatcher(verbose=args.verbose) as watcher:
            yield watcher
    else:
        drawn = TerminalWatcher()
        try:
            yield drawn
        finally:
            drawn.close()


class Position:
    """Where a step is: its newest line, steps of ninja or packages done and in all, and the rate
    that follows.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.newest = ""
        self.began = self.latest = time.monotonic()
        self._first: tuple[float, int] | None = None
        self._done = self._total = 0

    def line(self, text: str) -> None:
        self.latest = time.monotonic()
        if not _NOISE.fullmatch(text):
            self.newest = plain(text)
        elif source := _SOURCE.search(text):  # setuptools prints nothing else for minutes
            self.newest = f"compiling {plain(source[1])}"

    def progress(self, done: int, total: int) -> None:
        if total != self._total:
            self._first = None
            self._done = 0
        # The rate counts from the first step that was seen: a build that is resumed begins in the
        # middle.
        self._first = self._first or (time.monotonic(), done)
        self._done = max(done, self._done)
        self._total = total
        self.latest = time.monotonic()

    def count(self, now: float) -> str:
        """`3/7 (42 %), 12 a minute, about 3 min left`; less where less is known, empty where
        nothing is counted.
        """
        if not self._total:
            return ""
        if self._done >= self._total:
            return f"{self._total}/{self._total}, finishing"
        text = f"{self._done}/{self._total} ({self._done * 100 // self._total} %)"
        assert self._first is not None
        seconds = now - self._first[0]
        steps = self._done - self._first[1]
        # A rate of the first moments would be off by hours.
        if seconds < 1 or steps < 1:
            return text
        seconds_left = (self._total - self._done) * seconds / steps
        text += f", {steps / seconds * 60:.0f} a minute"
        if seconds_left >= 1:
            text += f", about {duration(seconds_left)} left"
        return text

    def output(self, now: float) -> str:
        """The newest line; before it, as a narrow terminal cuts off the end, how long none came."""
        silent = now - self.latest
        if silent >= SILENT_S:
            return f"(no output for {duration(silent)}) {self.newest}".rstrip()
        return self.newest


class LogWatcher(Watcher):
    """For CI: a line for each step and for what the farm does; where neither comes, one that says
    how far the step is.

    Output goes to the run's log files, with `verbose` to the screen as well. Outside of a context
    it says nothing by itself.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._at = Position()
        self._heartbeat = Heartbeat(note, lambda _: self.view(), ALIVE_S)

    def __enter__(self) -> Self:
        self._heartbeat.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._heartbeat.__exit__(*error)

    def step(self, name: str) -> None:
        self._at = Position(name)
        self._heartbeat.line(f"==> {name}")

    def ended(self, step: Step) -> None:
        self._at = Position()
        text = f"    {step.outcome} after {duration(step.seconds)}"
        if step.result:
            text += f": {step.result}"
        self._heartbeat.line(text)

    def line(self, text: str) -> None:
        self._at.line(text)
        if self._verbose:
            self._heartbeat.line(f"    {text}")

    def note(self, text: str) -> None:
        self._at.line(text)
        # Of the probe's checks those that failed: the step's result counts the others.
        if text.startswith(("not run ", "passed ")) and not self._verbose:
            return
        line = f"    {text}"
        if not self._verbose and not text.startswith("farm: "):
            line = _cut(line)
        self._heartbeat.line(line)

    def progress(self, done: int, total: int) -> None:
        self._at.progress(done, total)

    def view(self) -> str | None:
        """One line about the step under way; None between two steps."""
        at = self._at
        now = time.monotonic()
        if not at.name:
            return None
        text = ": ".join(filter(None, (at.count(now), at.output(now))))
        if not text:
            text = f"{at.name} for {duration(now - at.began)}"
        return _cut(f"    {text}")


def _cut(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    return f"{line[: WIDTH - 2]} …"


class TerminalWatcher(Watcher):
    """For terminals: steps that ended stay, each with its time; below them the step under way and
    its newest output.
    """

    def __init__(self) -> None:
        from rich.live import Live

        self._console = console()
        unicode = self._console.encoding.lower().startswith(
            "utf"
        )  # not every console has these characters
        if unicode:
            self._frames, self._done, self._failed = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "✓", "✗")
        else:
            self._frames, self._done, self._failed = ("|/-\\", "+", "x")
        self._at = Position()
        # Transient: at the end only the lines of the steps stay, which are printed above it.
        self._live = Live(
            console=self._console, get_renderable=self.view, refresh_per_second=4, transient=True
        )
        self._live.start()

    def step(self, name: str) -> None:
        self._at = Position(name)

    def ended(self, step: Step) -> None:
        from rich.text import Text

        signs = {"done": (self._done, "green"), "failed": (self._failed, "red")}
        sign, style = signs.get(step.outcome, ("-", "yellow"))
        line = Text.assemble(
            (sign, style), f" {step.name}  {duration(step.seconds)}  ", (plain(step.result), "dim")
        )
        self._console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        self._at = Position()

    def line(self, text: str) -> None:
        self._at.line(text)

    def note(self, text: str) -> None:
        self._at.line(text)

    def progress(self, done: int, total: int) -> None:
        self._at.progress(done, total)

    def view(self) -> "RenderableType":
        """The lines below the steps that ended: one about the step, one with its newest output."""
        from rich.text import Text

        at = self._at
        now = time.monotonic()
        if not at.name:
            return Text("")
        frame = self._frames[int(now * 4) % len(self._frames)]
        head = "  ".join(
            filter(None, [f"{frame} {at.name}", duration(now - at.began), at.count(now)])
        )
        return Text.assemble(
            head, "\n", (f"  {at.output(now)}", "dim"), no_wrap=True, overflow="ellipsis"
        )

    def close(self) -> None:
        self._live.stop()
