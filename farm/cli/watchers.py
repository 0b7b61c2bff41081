"""Progress of a run on standard error: a line a step for logs, a live view for terminals, nothing, or all output."""

import argparse
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from farm.cli.show import console, note, on_terminal
from farm.pipeline.report import Silent, Step, Watcher
from farm.text import duration, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY = 10
"""Percent of a build between two lines of progress in a log."""
ALIVE_S = 60.0
"""Seconds after which a log gets the newest line of output, where nothing else was printed."""
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ASCII_FRAMES = "|/-\\"
SILENT_S = 10.0
"""Seconds without a new line after which the view says so."""


@contextmanager
def watching(args: argparse.Namespace, usual: Mapping[str, float] | None = None) -> Iterator[Watcher]:
    """The watcher that the options ask for; `usual`: seconds that each step took the last time."""
    if args.quiet:
        yield Silent()
    elif args.verbose or not on_terminal():
        yield LogWatcher(verbose=args.verbose)
    else:
        watcher = TerminalWatcher(usual or {})
        try:
            yield watcher
        finally:
            watcher.close()


class LogWatcher:
    """For CI: a line for each step, and one for every tenth of a build; output goes to the run's log files.

    Args:
        verbose: Print the output as well.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._shown = -1
        self._printed = time.monotonic()

    def step(self, name: str) -> None:
        self._shown = -1
        self._print(f"==> {name}")

    def ended(self, step: Step) -> None:
        self._print(f"    {step.outcome} after {duration(step.seconds)}" + (f": {step.result}" if step.result else ""))

    def line(self, text: str) -> None:
        # CI systems end a job that prints nothing for long.
        if self._verbose or time.monotonic() - self._printed > ALIVE_S:
            self._print(f"    {text}")

    def note(self, text: str) -> None:
        self._print(f"    {text}")

    def progress(self, done: int, total: int) -> None:
        tenth = done * 100 // max(total, 1) // EVERY
        if tenth != self._shown and not self._verbose:
            self._shown = tenth
            self._print(f"    [{done}/{total}]")

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        note(text)


class TerminalWatcher:
    """For terminals: steps that ended stay, each with its time; below them the step under way and its newest output.

    Args:
        usual: Seconds that each step took the last time, by its name.
    """

    def __init__(self, usual: Mapping[str, float]) -> None:
        from rich.live import Live

        self._usual = usual
        self._console = console()
        self._unicode = self._console.encoding.lower().startswith("utf")
        self._name = self._newest = ""
        self._began = self._heard = time.monotonic()
        self._first: tuple[float, int] | None = None
        self._done = self._total = 0
        # Transient: at the end only the lines of the steps stay, which are printed above it.
        self._live = Live(console=self._console, get_renderable=self.view, refresh_per_second=4, transient=True)
        self._live.start()

    def step(self, name: str) -> None:
        self._name, self._newest, self._began = name, "", time.monotonic()
        self._heard = self._began
        self._first, self._done, self._total = None, 0, 0

    def ended(self, step: Step) -> None:
        from rich.text import Text

        sign, style = {"done": ("✓", "green"), "failed": ("✗", "red")}.get(step.outcome, ("-", "yellow"))
        if not self._unicode:
            # Not every console's encoding has these characters.
            sign = {"✓": "+", "✗": "x"}.get(sign, sign)
        line = Text.assemble((sign, style), f" {step.name}  {duration(step.seconds)}  ", (plain(step.result), "dim"))
        self._console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        self._name = ""

    def line(self, text: str) -> None:
        self._newest, self._heard = plain(text), time.monotonic()

    def note(self, text: str) -> None:
        self.line(text)

    def progress(self, done: int, total: int) -> None:
        if total != self._total:  # another phase counts anew
            self._first = None
        # The rate counts from the first step that was seen: a build that is taken up again begins in the middle.
        self._first = self._first or (time.monotonic(), done)
        self._done, self._total = done, total
        self._heard = time.monotonic()

    def view(self) -> "RenderableType":
        """What stands below the steps that ended: one line about the step, one with its newest output."""
        from rich.console import Group
        from rich.text import Text

        if not self._name:
            return Text("")
        frames = FRAMES if self._unicode else ASCII_FRAMES
        now = time.monotonic()
        words = [f"{frames[int(now * 4) % len(frames)]} {self._name}", duration(now - self._began)]
        if self._total:
            words.append(f"{self._done}/{self._total} ({self._done * 100 // self._total} %){self._rate(now)}")
        elif self._name in self._usual:
            words.append(f"of about {duration(self._usual[self._name])} as the last time")
        head = Text("  ".join(words), no_wrap=True, overflow="ellipsis")
        newest = f"  {self._newest}"
        if now - self._heard >= SILENT_S:
            # Before the line, whose end a narrow terminal cuts off.
            newest = f"  (no output for {duration(now - self._heard)}) {self._newest}"
        return Group(head, Text(newest, style="dim", no_wrap=True, overflow="ellipsis"))

    def _rate(self, now: float) -> str:
        """`, 12 a minute, about 3 min left`; empty while it is unknown."""
        assert self._first is not None
        seconds, steps = now - self._first[0], self._done - self._first[1]
        # A rate of the first moments would be off by hours.
        if seconds < 1 or steps < 1:
            return ""
        left = (self._total - self._done) * seconds / steps
        return f", {steps / seconds * 60:.0f} a minute, about {duration(left)} left"

    def close(self) -> None:
        self._live.stop()
