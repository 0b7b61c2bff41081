"""Where a run happens."""

from dataclasses import dataclass
from pathlib import Path

from farm.pipeline.report import Watcher
from farm.runs import Journal
from farm.settings import Settings


@dataclass(frozen=True)
class Setting:
    """Where a run happens: the project, its settings, the folder of the run, and who watches."""

    project: Path
    settings: Settings
    watcher: Watcher

    @property
    def artifacts(self) -> Path:
        return self.project / self.settings.artifacts

    def run_folder(self, run_id: str) -> Path:
        return self.artifacts / "runs" / run_id

    @property
    def index_url(self) -> str:
        index = self.settings.index
        return index if "://" in index else str(self.project / index)


def open_journal(project: Path, settings: Settings) -> Journal:
    folder = project / settings.artifacts
    folder.mkdir(parents=True, exist_ok=True)
    return Journal(folder / "farm.db")
