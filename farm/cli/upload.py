"""Progress of an upload: a bar in a terminal, lines in a log."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from farm.cli.show import console, note, on_terminal
from farm.index import stores
from farm.text import plain

QUIET = 8 * 1024**2
"""Bytes up to which an upload is over before anybody wonders."""

EVERY = 10
"""Percent between two lines in a log."""


@contextmanager
def uploading(name: str, size: int) -> Iterator[stores.Progress | None]:
    """What to give to `publish` as `progress`.

    Args:
        name: The wheel.
        size: Its bytes.
    """
    if size <= QUIET:
        yield None
    elif on_terminal():
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), DownloadColumn(binary_units=True))
        with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console(), transient=True) as bar:
            task = bar.add_task(plain(name)[:60], total=size)
            yield lambda done: bar.update(task, completed=done)
    else:
        yield _lines(name, size)


def _lines(name: str, size: int) -> stores.Progress:
    shown = 0

    def show_progress(done: int) -> None:
        nonlocal shown
        # A line for each tenth: a log of CI keeps every one.
        tenth = done * 100 // size // EVERY
        if tenth > shown:
            shown = tenth
            text = f"    {plain(name)}: {done >> 20} of {size >> 20} MiB uploaded ({tenth * EVERY} %)"
            note(text)

    return show_progress
