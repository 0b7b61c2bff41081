"""Printing: tables and errors for people, progress for terminals and for CI logs."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from farm.errors import FarmError
from farm.pipeline.report import Outcomes
from farm.text import plain

if TYPE_CHECKING:
    from farm.wheel.inspect import WheelContents

ERR = Console(stderr=True, highlight=False)
OUT = Console(highlight=False)
if not OUT.is_terminal:
    OUT = Console(highlight=False, width=240)  # a log is read unwrapped
EVERY = 10
"""Percent of a build between two lines of progress in a log."""


def explain(error: FarmError) -> None:
    """What happened, where, and what to do next."""
    for line in f"farm: {error}".splitlines():
        print(plain(line), file=sys.stderr)
    if error.hint:
        print(f"  next: {plain(error.hint)}", file=sys.stderr)


def json_document(data: Mapping[str, Any] | list[Any]) -> None:
    """One JSON document on stdout: what `--json` gives."""
    print(json.dumps(data, indent=2))


def say(text: object) -> None:
    """A line on stdout, made safe to print."""
    print(plain(str(text)))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout; cells are shown as they are, without markup."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    if title:
        say(title)
    for column in columns:
        made.add_column(column, overflow="fold", justify="right" if column == "seconds" else "left")
    for row in rows:
        made.add_row(*(Text(plain(cell)) for cell in row))
    with OUT.capture() as captured:
        OUT.print(made)
    print("\n".join(line.rstrip() for line in captured.get().rstrip("\n").splitlines()))


def outcomes(result: Outcomes) -> None:
    """The table at the end of a run, and the pip line that a user would run."""
    rows = [(s.name, f"{s.seconds:.1f}", s.outcome, s.result) for s in result.steps]
    total = sum(step.seconds for step in result.steps)
    print()
    table(
        f"run {result.run}" if result.run else "no new run",
        ("step", "seconds", "outcome", "result"),
        [*rows, ("all", f"{total:.1f}", "", "")],
    )
    if result.wheel and not result.pip_line:
        print(f"\n{result.wheel}")
    if result.pip_line:
        print()
        say(result.pip_line)


class LogWatcher:
    """For CI: a line for each step, and one for every tenth of a build; output goes to the run's log files."""

    def __init__(self) -> None:
        self._shown = -1

    def step(self, name: str) -> None:
        self._shown = -1
        print(f"==> {name}", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        """Nothing: the log files of the run have it."""

    def note(self, text: str) -> None:
        print(f"    {plain(text)}", file=sys.stderr, flush=True)

    def progress(self, done: int, total: int) -> None:
        tenth = done * 100 // max(total, 1) // EVERY
        if tenth != self._shown:
            self._shown = tenth
            print(f"    [{done}/{total}]", file=sys.stderr, flush=True)


class TerminalWatcher:
    """For terminals: a spinner with the newest line of output, and ninja's progress as a bar."""

    def __init__(self) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[line]}", table_column=None),
            console=ERR,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, line="")
        self._progress.start()

    def step(self, name: str) -> None:
        self._progress.remove_task(self._task)  # a reset would keep the total of the step before
        self._task = self._progress.add_task(name, total=None, line="")

    def line(self, text: str) -> None:
        width = max(ERR.width - 70, 10)
        self._progress.update(self._task, line=escape(plain(text)[:width]))

    def note(self, text: str) -> None:
        self.line(text)

    def progress(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def close(self) -> None:
        self._progress.stop()


def inspection(contents: "WheelContents") -> None:
    """What is inside a wheel, a table for each question."""
    say(f"{contents.file}: {contents.size / 1e6:.1f} MB, {contents.unpacked / 1e6:.1f} MB unpacked")
    say(f"tags: {', '.join(contents.tags)}; {_floor(contents)}")
    rows = []
    for library in contents.libraries:
        for found in library.fatbins:
            sass = " ".join(f"sm_{sm}" for sm in found.sass) or "-"
            ptx = " ".join(f"compute_{sm}" for sm in found.ptx) or "-"
            rows.append((library.path, sass, ptx, str(found.containers), f"{found.bytes / 1e6:.2f}"))
    if rows:
        table("device code", ("library", "SASS", "PTX", "fat binaries", "MB"), rows)
    else:
        say("device code: none")
    for line in components(contents):
        say(line)
    libraries = []
    for library in contents.libraries:
        code = library.instructions
        beyond = "not read: " + library.error if library.error else ""
        if code:
            counts = [f"{feature} {count}" for feature, (count, _) in code.beyond.items()]
            beyond = code.not_checked or ", ".join(counts) or f"nothing beyond {code.level}"
        linker = f"MSVC linker {library.linker}" if library.linker else ""
        libraries.append((library.path, f"{library.size / 1e6:.2f}", linker or "-", beyond))
    table("libraries", ("library", "MB", "made by", "CPU features (instructions)"), libraries)
    needs = [(need.who, need.name, need.when, need.answer, need.by or "") for need in contents.needs]
    table("imports", ("library", "needs", "on", "answered by", "member"), needs)


def components(contents: "WheelContents") -> Iterator[str]:
    """A line for each of NVIDIA's components inside a wheel."""
    for part in contents.components:
        sass = " ".join(f"sm_{sm}" for sm in part.sass) or "no machine code"
        ptx = "".join(f" compute_{sm}" for sm in part.ptx)
        which = f"{sass}, PTX{ptx}" if ptx else sass
        yield f"{part.name} inside ({len(part.libraries)} libraries), which supports {which}"


def _floor(contents: "WheelContents") -> str:
    """The oldest system that the libraries allow, as far as it follows from them."""
    linkers = sorted({library.linker for library in contents.libraries if library.linker and library.is_loadable})
    if linkers:
        return f"made by MSVC linker {', '.join(linkers)}: needs a Visual C++ runtime that is not older"
    return f"its libraries allow: {contents.manylinux or f'none: {contents.manylinux_problem}'}"
