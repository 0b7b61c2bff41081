"""Printing: errors, tables and JSON. Rich, which takes long to import, is imported where characters
have other widths than one, and for live views.
"""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farm.base.errors import FarmError
from farm.base.text import plain
from farm.cli import columns as narrow
from farm.cli import output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from farm.run.report import Outcomes

SCREEN = 100
LOG_WIDTH = 240
"""Columns where there is no terminal: a log is read unwrapped."""
RIGHT = ("seconds", "took")
"""Columns of numbers."""


def explain(error: FarmError) -> None:
    """Print an error: what happened, where, and the next step."""
    sys.stdout.flush()  # where both go to one log, what was printed stands before
    first, *more = str(error).split("\n")
    note(f"farm: {first}")
    for line in more:  # indented: only the farm's own words stand where its lines begin
        note(line if line.startswith("    ") else f"    {line}")
    if error.hint:
        note(f"  next: {error.hint}")


def json_document(data: Mapping[str, Any] | list[Any]) -> None:
    """One JSON document on stdout: what `--json` gives."""
    output.document = True
    print(json.dumps(data, indent=2))


def say(text: object) -> None:
    """One line on stdout, made safe to print."""
    print(plain(str(text)))


def prose(text: str) -> None:
    """A sentence on stdout, wrapped to `SCREEN` columns; commands to copy are lines of their own, by `say`."""
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    lines = textwrap.wrap(plain(text), SCREEN, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    print("\n".join(lines))


def note(text: str) -> None:
    """One line on stderr: what a command says beside its result."""
    print(plain(text), file=sys.stderr, flush=True)


def console(*, stderr: bool = True) -> "Console":
    """Rich's console on standard error, or output; wide where it is not a terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=LOG_WIDTH)


def on_terminal() -> bool:
    """True if progress may be drawn: standard error is a terminal, and no CI's."""
    return sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("CI")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout; cells are shown as they are, without markup."""
    if title:
        say(title)
    # Made safe before it is measured: an escape sequence has no width on the screen.
    cells = [list(columns), *([plain(cell) for cell in row] for row in rows)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else LOG_WIDTH
    if narrow.is_narrow("".join(map("".join, cells))):
        print("\n".join(narrow.lines(cells, [name in RIGHT for name in columns], room)))
    else:
        _by_rich(columns, cells[1:])


def _by_rich(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    out = console(stderr=False)
    with out.capture() as captured:
        out.print(rich_table(columns, rows))
    print("\n".join(line.rstrip() for line in captured.get().rstrip("\n").splitlines()))


def rich_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """A table as an object of Rich, for a live view."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, overflow="fold", justify="right" if column in RIGHT else "left")
    for row in rows:
        # As `Text`: in a string Rich would take `[…]` for markup.
        made.add_row(*(Text(plain(cell)) for cell in row))
    return made


def outcomes(result: "Outcomes") -> None:
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
        print()
        say(result.wheel)
    if result.pip_line:
        print()
        say(result.pip_line)
