"""Where the journal lies: SQLite's write-ahead log does not work on a network file system."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.base.file_systems import network_file_system
from farm.plan.settings import load_settings
from farm.run import workspace
from farm.run.workspace import Workspace, warn_of_place

MOUNTS = """/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/me/local ext4 rw 0 0
server:/a /with\\040space nfs rw 0 0
scratch /scratch lustre rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/farm.db", None),
        ("/home/me/artifacts/farm.db", "nfs4"),
        ("/home/me/local/farm.db", None),
        ("/with space/farm.db", "nfs"),
        ("/scratch/farm.db", "lustre"),
        ("/homes/farm.db", None),
    ],
)
def test_a_network_file_system_is_known_by_its_mount(tmp_path, path, kind):
    (tmp_path / "mounts").write_text(MOUNTS)
    assert network_file_system(Path(path), tmp_path / "mounts") == kind


def test_a_system_that_does_not_say_is_taken_for_a_local_one(tmp_path):
    assert network_file_system(tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize(("kind", "count"), [("nfs4", 1), (None, 0)])
def test_submit_warns_of_a_journal_on_a_network_file_system(tmp_path, monkeypatch, kind, count):
    monkeypatch.setattr(workspace, "network_file_system", lambda _path: kind)
    notes = []
    watcher = SimpleNamespace(note=notes.append)
    warn_of_place(Workspace(tmp_path, load_settings(tmp_path), watcher))
    assert len([note for note in notes if "network file system (nfs4)" in note]) == count
