"""`farm inspect`: what is said of Windows wheels, and the tree."""

from pathlib import Path

import pytest

from farm.base.errors import VerificationFailedError
from farm.cli.main import main
from farm.wheel import library
from farm.wheel.inspect import inspect
from tests.indexes.wheels import build_wheel

ROOT = Path(__file__).parents[3]
MINGW = bytes.fromhex("4d5a")  # what a PE file begins with


def wheel_of(folder, files, tag):
    return build_wheel(folder, f"canary-1.0-{tag}.whl", more=files).path


def test_a_broken_library_is_named(tmp_path, capsys):
    path = wheel_of(
        tmp_path,
        {"canary/a.dll": MINGW + b"\0" * 100, "canary/b.so": b"\x7fELF"},
        "cp311-cp311-win_amd64",
    )
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "not read: damaged PE file" in out
    assert "not read: damaged ELF file" in out


def test_windows_wheels_have_no_manylinux_level(tmp_path):
    path = wheel_of(tmp_path, {"canary/a.dll": MINGW}, "cp311-cp311-win_amd64")
    found = inspect(path)
    assert (found.manylinux, "Windows" in (found.manylinux_problem or "")) == (None, True)


def test_a_wheel_without_libraries_is_not_said_to_allow_no_system(tmp_path, capsys):
    path = wheel_of(tmp_path, {"canary.py": b""}, "py3-none-any")
    assert main(["inspect", str(path)]) == 0
    assert "tags: py3-none-any; no libraries that are read" in capsys.readouterr().out
    assert "any system" in (inspect(path).manylinux_problem or "")


def test_the_number_of_libraries_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "_MAX_LIBRARIES", 2)
    files = {f"canary/{index}.so": b"\x7fELF" for index in range(3)}
    path = wheel_of(tmp_path, files, "cp311-cp311-linux_x86_64")
    with pytest.raises(VerificationFailedError, match="more than 2 libraries"):
        inspect(path)
