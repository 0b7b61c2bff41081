"""The runs of a batch in a terminal: a table that is drawn again where something changes."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from farm.base.text import duration, plain
from farm.cli.show import console
from farm.run.run_state import Phase

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = ("run", "package", "variant", "state", "for", "why")
ORDER = (Phase.FINISHING, Phase.RUNNING, Phase.STARTING, Phase.QUEUED)
"""Runs that are nearest to their end come first: they are seen where the screen is too low."""
BESIDE_ROWS = 3  # lines of the screen for the head, the last line and the cursor
REFRESHES_A_SECOND = 2


class LiveRuns:
    """A table of open runs below the lines that are printed meanwhile; a context manager."""

    def __init__(self) -> None:
        from rich.live import Live

        self._console = console()
        self._rows: list[dict[str, Any]] = []
        # Transient: at the end the screen holds a line for each run, and no table.
        self._live = Live(
            console=self._console,
            get_renderable=self.view,
            refresh_per_second=REFRESHES_A_SECOND,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, rows: Iterable[dict[str, Any]]) -> None:
        """Take the newest summaries of the runs that have not ended."""
        self._rows = sorted(rows, key=lambda row: (_rank(row["state"]), row["id"]))
        self._live.refresh()

    def view(self) -> "RenderableType":
        """The table, no higher than the screen."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_edge=False)
        for name in COLUMNS:
            ratio = None
            if name == COLUMNS[-1]:
                ratio = 1  # it takes the room that is left
            table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=ratio)
        room = max(1, self._console.height - BESIDE_ROWS)
        for row in self._rows[:room]:
            table.add_row(*(Text(plain(cell)) for cell in cells(row)))
        hidden = len(self._rows) - room
        if hidden > 0:
            table.add_row(f"… and {hidden} more")
        return table


def cells(row: dict[str, Any]) -> Iterator[str]:
    """Give the cells of a run by its summary."""
    yield row["id"]
    yield row["package"]
    yield row["variant"]
    yield row["state"]
    took = ""
    if row["started"]:
        took = duration(row["seconds"])
    yield took
    yield (row["why"] or row["progress"] or "").partition("\n")[0]


def _rank(state: str) -> int:
    if state not in ORDER:
        return len(ORDER)
    return ORDER.index(Phase(state))
