"""Interpreters and environments; installing into them is in tests/integration/smoke."""

import os
import socketserver
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging import tags

from farm.base.errors import InfrastructureError, SmokeFailedError, UsageError
from farm.smoke.environment import find_python, install, make_environment, other_platform


def program(folder: Path, name: str, script: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def test_this_python_is_found():
    assert find_python("py{}{}".format(*sys.version_info[:2])) == Path(sys.executable)


def test_another_python_is_found_on_the_path(tmp_path, monkeypatch):
    other = program(tmp_path, "python3.99", "echo cpython 3 99 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("py399") == other


@pytest.mark.parametrize(
    "script",
    [
        "echo cpython 3 98 0",
        "echo pypy 3 99 0",
        "echo cpython 3 99 1",
        "echo cpython 3 99 0; exit 127",
        "exit 1",
    ],
)
def test_a_program_that_only_has_the_name_is_no_python(tmp_path, monkeypatch, script):
    program(tmp_path, "python3.99", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("py399") is None


def test_a_free_threaded_python_has_its_own_name(tmp_path, monkeypatch):
    program(tmp_path, "python3.99", "echo cpython 3 99 0")
    free = program(tmp_path, "python3.99t", "echo cpython 3 99 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("py399t") == free


def test_a_folder_of_the_path_that_cannot_be_looked_into_is_passed_over(tmp_path, monkeypatch):
    """As /root/.pyenv/shims, which `su` leaves on the PATH; a name too long fails for root too."""
    other = program(tmp_path, "python3.99", "echo cpython 3 99 0")
    monkeypatch.setenv("PATH", f"{tmp_path / ('a' * 300) / 'shims'}:{tmp_path}")
    assert find_python("py399") == other


def test_pyenvs_shims_are_not_run_and_stand_for_its_newest_version(tmp_path, monkeypatch):
    shims = tmp_path / "shims"
    shims.mkdir()
    program(shims, "python3.99", f"touch {tmp_path}/ran; exit 127")
    for version in ("3.99.9", "3.99.10", "3.9.99"):
        folder = tmp_path / "versions" / version / "bin"
        folder.mkdir(parents=True)
        program(folder, "python" + ".".join(version.split(".")[:2]), "echo cpython 3 99 0")
    monkeypatch.setenv("PATH", str(shims))
    assert find_python("py399") == tmp_path / "versions/3.99.10/bin/python3.99"
    assert find_python("py398") is None
    assert not (tmp_path / "ran").exists()


def test_a_missing_python_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("py399") is None


@pytest.mark.parametrize("name", ["311", "python3.11", "py", "py3", "py3.11", "py3111", "../py311"])
def test_a_name_that_is_no_python(name):
    with pytest.raises(UsageError, match="not the name of a Python"):
        find_python(name)


def test_an_environment_is_separate(tmp_path):
    python = make_environment(tmp_path / "env", Path(sys.executable))
    answer = subprocess.run(
        [python, "-I", "-c", "import sys; print(sys.prefix); import pytest"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout.strip() == str(tmp_path / "env")
    assert "No module named 'pytest'" in answer.stderr


def test_an_interpreter_that_cannot_make_one(tmp_path):
    broken = program(tmp_path, "python", "echo No module named venv >&2; exit 1")
    with pytest.raises(InfrastructureError, match="No module named venv"):
        make_environment(tmp_path / "env", broken)
    with pytest.raises(InfrastructureError, match="cannot make a virtual environment"):
        make_environment(tmp_path / "env", tmp_path / "absent")


def test_a_disk_that_runs_nothing_is_no_failure_of_the_wheel(tmp_path, monkeypatch):
    """glibc says of each library there only "failed to map segment from shared object"."""
    ordinary = os.statvfs
    flags = lambda path: SimpleNamespace(f_flag=ordinary(path).f_flag | os.ST_NOEXEC)  # noqa: E731
    monkeypatch.setattr(os, "statvfs", flags)
    with pytest.raises(InfrastructureError, match="mounted noexec") as caught:
        make_environment(tmp_path / "new/env", Path(sys.executable))
    assert str(tmp_path / "new/env") in str(caught.value)
    assert "artifacts" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_the_installer_sees_no_credentials(tmp_path, monkeypatch):
    """A wheel's `.pth` file runs whenever the environment's Python starts, also for pip."""
    python = make_environment(tmp_path / "env", Path(sys.executable))
    (site,) = (tmp_path / "env").rglob("site-packages")
    seen = tmp_path / "seen"
    (site / "a.pth").write_text(
        f"import os; open({str(seen)!r}, 'a').write(' '.join(os.environ))\n"
    )
    secret = (
        "FARM_SIGNING_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "ACTIONS_ID_TOKEN_REQUEST_URL",
    )
    secret += (
        "SOME_API_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "SSH_AUTH_SOCK",
        "PGPASSFILE",
        "npm_config__auth",
    )
    secret += ("GITHUB_ENV", "GITHUB_PATH")  # files by which later steps get variables and programs
    for name in (*secret, "HARMLESS"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(SmokeFailedError):
        install(python, "nothing==1", source=("--no-index",), log=tmp_path / "log", timeout_s=60)
    found = seen.read_text().split()
    assert "HARMLESS" in found
    assert not {*secret} & {*found}


def test_a_wheel_of_another_platform_is_known_before_it_is_installed():
    here = next(tags.platform_tags())
    assert other_platform([f"x-1-cp311-cp311-{here}.whl"]) is None
    assert other_platform(["x-1-py3-none-any.whl"]) is None
    assert other_platform([]) is None
    assert (
        other_platform(["x-1-cp311-cp311-manylinux_2_99_ppc64.whl", f"x-1-cp311-cp311-{here}.whl"])
        is None
    )
    why = other_platform(["x-1-cp311-cp311-manylinux_2_98_ppc64.manylinux_2_99_ppc64.whl"])
    assert why.startswith(
        "the wheel is for manylinux_2_98_ppc64 or manylinux_2_99_ppc64, this machine for "
    )


def test_a_disk_that_is_full_says_nothing_of_the_wheel(tmp_path, monkeypatch):
    message = (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    )
    full = program(tmp_path, "pip", f"echo '{message}'; exit 1")
    monkeypatch.setattr(sys, "executable", str(full))
    monkeypatch.setattr(tempfile, "tempdir", "/some/tmp")
    with pytest.raises(InfrastructureError, match="No space left on device") as error:
        install(
            Path("python3"), "hello", source=(), log=tmp_path / "logs/install.log", timeout_s=60
        )
    assert str(tmp_path / "logs") in error.value.hint
    assert "/some/tmp" in error.value.hint


@pytest.mark.parametrize(
    "banner", [b"SSH-2.0-OpenSSH_9.2p1\r\n", b""], ids=["ssh", "closed at once"]
)
def test_a_port_without_a_web_server_is_reported(tmp_path, monkeypatch, banner):
    """pip retries and says that it found no version."""

    class Other(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.sendall(banner)

    monkeypatch.setattr(sys, "executable", str(program(tmp_path, "pip", "exit 1")))
    with socketserver.TCPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        source = ("--index-url", f"http://127.0.0.1:{server.server_address[1]}/simple/")
        try:
            with pytest.raises(InfrastructureError, match="does not answer"):
                install(
                    Path("python3"), "hello==1", source=source, log=tmp_path / "log", timeout_s=60
                )
        finally:
            server.shutdown()
            thread.join()
