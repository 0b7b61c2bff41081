"""Temporary folders: gone at the end, after an error, and wherever Ctrl-C comes."""

import os
import re
import subprocess
import sys
import tempfile
from io import FileIO
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError
from farm.base.outputs import temporary_file
from farm.base.temporary import temporary_folder

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
