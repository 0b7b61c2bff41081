"""A checkout as the pipeline works in it: its settings, its folders, its journal."""

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.base.errors import UsageError
from farm.base.project import JOURNAL
from farm.plan.settings import Settings
from farm.run.journal import Journal
from farm.run.report import Watcher

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner


@dataclass(frozen=True)
class Workspace:
    """The project, its settings, where its runs leave their files, and who watches."""

    project: Path
    settings: Settings
    watcher: Watcher

    @property
    def artifacts(self) -> Path:
        return self.project / self.settings.artifacts

    @property
    def id(self) -> str:
        """Tells this project's images on a Docker engine from those of other projects, without saying where it is."""
        # Resolved: the same project by a link or another working directory is the same project.
        return hashlib.sha256(str(self.artifacts.resolve()).encode()).hexdigest()[:16]

    def run_folder(self, run_id: str) -> Path:
        return self.artifacts / "runs" / run_id

    @property
    def index_url(self) -> str:
        return self._place(self.settings.index)

    def _place(self, place: str) -> str:
        return place if "://" in place else str(self.project / place)


def configured_signer(project: Path, settings: Settings) -> "CryptoSigner | None":
    """The signer that `signing_key` of ci/farm.yaml names; None for none.

    Raises:
        UsageError: The key cannot be read, or is none.
    """
    where = settings.signing_key
    if where is None:
        return None
    from farm.index.keys import load_signer, parse_signer  # noqa: PLC0415 heavy, and needed only with a key

    if not where.startswith("env:"):
        return load_signer(project / where)
    name = where.removeprefix("env:")
    if not os.environ.get(name):
        raise UsageError(
            f"ci/farm.yaml takes the signing key from the variable {name}, and it is not set",
            hint="set it to the text of the private key, or sign where it is set: publishing needs no key",
        )
    return parse_signer(os.environ[name].encode(), f"the variable {name}")


def journal_path(project: Path, settings: Settings) -> Path:
    return project / settings.artifacts / JOURNAL


def open_journal(project: Path, settings: Settings) -> Journal:
    path = journal_path(project, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    # What runs leave is no source: of a package in whose own checkout the farm works, nor to be committed.
    with contextlib.suppress(OSError), (path.parent / ".gitignore").open("x", encoding="ascii") as file:
        file.write("*\n")
    return Journal(path)
