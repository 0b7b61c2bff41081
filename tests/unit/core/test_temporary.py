"""Temporary folders: gone at the end, after an error, and wherever Ctrl-C comes."""

import os
import re
import subprocess
import sys
import tempfile
from io import FileIO
from pathlib import Path

import pytest

from farm.base import temporary
from farm.base.errors import InfrastructureError
from farm.base.outputs import temporary_file
from farm.base.temporary import temporary_folder

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, signal, sys
from farm.base.temporary import temporary_folder
moment, number, parent = sys.argv[1], int(sys.argv[2]), sys.argv[3]
seen = 0
def hook(event, arguments):
    global seen
    seen += event == moment
    if event == moment and seen == number:
        os.kill(os.getpid(), signal.SIGINT)
try:
    with temporary_folder("some-", parent) as folder:
        (folder / "deep").mkdir()
        for name in ("a", "deep/b"):
            (folder / name).write_text("")
        print(folder)
        sys.addaudithook(hook)
        open(folder / "a").close()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_temporary_folder_is_private_and_removed_afterwards(tmp_path):
    with temporary_folder("some-", tmp_path) as folder:
        (folder / "file").write_text("")
        assert os.name == "nt" or folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent == tmp_path
        assert folder.name.startswith("some-")
    with pytest.raises(ValueError, match="reason"), temporary_folder(parent=tmp_path):
        raise ValueError("reason")
    assert list(tmp_path.iterdir()) == []


MOMENTS = [
    ("open", 1),
    ("shutil.rmtree", 1),
    ("os.scandir", 1),
    ("os.remove", 1),
    ("os.remove", 2),
    ("os.rmdir", 1),
]


@pytest.mark.parametrize(("moment", "number"), [*MOMENTS, ("os.rmdir", 2)])
def test_a_temporary_folder_is_removed_after_ctrl_c(tmp_path, moment, number):
    command = [sys.executable, "-c", PROGRAM, moment, str(number), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    made, *rest = done.stdout.splitlines()
    assert (Path(made).parent, rest) == (tmp_path, ["interrupted"]), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_writing_a_file_without_a_name_names_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_file() as file:
        file.write(b"some")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: FileIO("/dev/full", "w"))
    with (
        pytest.raises(
            InfrastructureError, match=re.escape(f"{tmp_path}: No space left on device")
        ) as full,
        temporary_file() as file,
    ):
        file.write(b"some")
    assert "TMPDIR" in full.value.hint
    with pytest.raises(FileNotFoundError, match="absent"), temporary_file():
        (tmp_path / "absent").open()


KILLED = """
import os, signal, sys
from pathlib import Path
from farm.base.temporary import temporary_folder
with temporary_folder("clone-", Path(sys.argv[1])) as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    {end}
"""


def start(parent, end):
    """Another process that has a temporary folder below `parent`; returns it and the folder."""
    command = [sys.executable, "-c", KILLED.format(end=end), parent]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    return process, Path(process.stdout.readline().strip())


def make_old(folder):
    past = folder.stat().st_mtime - 2 * temporary.YOUNG_S
    os.utime(folder, (past, past))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks no folders")
def test_leftovers_of_a_killed_process_are_removed_by_the_next_one(tmp_path):
    killed, left = start(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    living, used = start(tmp_path, "sys.stdin.read()")
    try:
        killed.communicate()
        make_old(left)
        make_old(used)
        other = tmp_path / "mine"
        other.mkdir()
        make_old(other)
        temporary.remove_abandoned.cache_clear()
        with temporary_folder(parent=tmp_path):
            assert not left.exists()
            assert used.exists()
            assert other.exists()
    finally:
        living.communicate()
    assert not used.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks no folders")
def test_a_folder_that_was_made_just_now_stays(tmp_path):
    """Its process may not have locked it yet."""
    killed, left = start(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    killed.communicate()
    temporary.remove_abandoned.cache_clear()
    temporary.remove_abandoned(tmp_path)
    assert left.exists()
