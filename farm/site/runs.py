"""The newest runs of the journal, for the page about the farm. All of it is untrusted text, and bounded."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.base.text import short
from farm.run.journal import EventKind, Journal, Phase, Run, state_of
from farm.site.tested import Smoke, smokes_in

MAX_RUNS = 200
_SHOWN = ("build.log", "image.log", "install.log", "verify.json", "smoke*.json")


@dataclass(frozen=True)
class RunView:
    """One run. `why` explains a wait or a failure; `files` can be linked."""

    id: str
    created: str
    phase: Phase
    package: str
    variant: str
    version: str
    seconds: float = 0.0
    why: str = ""
    smokes: tuple[Smoke, ...] = ()
    files: tuple[Path, ...] = field(default=())

    @property
    def python(self) -> str:
        return self.variant.rpartition("-")[2]


def runs(journal: Journal, folder: Path, limit: int = MAX_RUNS) -> Iterator[RunView]:
    """The newest runs, newest first; `folder` holds one folder a run.

    Raises:
        InfrastructureError: The journal cannot be read.
    """
    for run in journal.runs(limit):
        yield _run(journal, run, folder / run.id)


def _run(journal: Journal, run: Run, folder: Path) -> RunView:
    steps = [event.data for event in journal.events(run.id) if event.kind == EventKind.STEP]
    state = state_of(journal, run)
    files = tuple(sorted(path for pattern in _SHOWN for path in folder.glob(pattern) if path.is_file()))
    return RunView(
        id=run.id,
        created=run.created,
        phase=state.phase,
        package=short(run.plan.get("package", "")),
        variant=short(run.plan.get("variant", "")),
        version=short(run.plan.get("version", "")),
        seconds=sum(_seconds(data.get("seconds")) for data in steps),
        why=short(state.text or ""),
        smokes=tuple(smokes_in(files, run.created)),
        files=files,
    )


def _seconds(value: Any) -> float:
    # The journal's own numbers, but of any version of the farm that wrote them.
    return min(max(float(value), 0.0), 1e7) if isinstance(value, int | float) else 0.0
