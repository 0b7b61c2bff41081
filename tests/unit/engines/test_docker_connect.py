"""An engine that takes connections and says nothing, as one does whose process is stopped."""

import json
import os
import socket
import subprocess
import sys
from hashlib import sha256

import pytest

from farm.base.errors import NoRunnerError
from farm.engines import docker


@pytest.fixture
def silent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_a_first_question_is_given_up_long_before_others_are(silent, monkeypatch):
    monkeypatch.setattr(docker, "FIRST_S", 0.1)
    with pytest.raises(
        NoRunnerError, match=r"no Docker engine answers at tcp://.* said nothing for"
    ) as found:
        docker.connect(silent)
    assert "apt-get" not in found.value.hint


def test_the_error_without_an_engine_says_how_to_get_one():
    with pytest.raises(NoRunnerError) as found:
        docker.connect("unix:///nonexistent")
    assert "apt-get install docker.io" in found.value.hint


BY_SSH = """
import sys
sys.modules["paramiko"] = None  # as where it is not installed
from farm.engines import docker
from farm.base.errors import NoRunnerError
try:
    docker.connect()
except NoRunnerError as error:
    print(error, error.hint)
"""


def test_an_engine_by_ssh_is_asked_by_the_command_ssh_and_needs_no_paramiko(tmp_path):
    """As docker's own command does: docker-py's way reads neither ~/.ssh/config nor an agent."""
    arguments = tmp_path / "arguments"
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$@" >> {arguments}\nexit 255\n')
    ssh.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "DOCKER_HOST": "ssh://builder",
    }
    done = subprocess.run(
        [sys.executable, "-c", BY_SSH], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("no Docker engine answers at ssh://builder (DOCKER_HOST): ")
    assert "builder" in arguments.read_text()
    assert "dial-stdio" in arguments.read_text()
    assert "-p" not in arguments.read_text().split()  # the port is ~/.ssh/config's


@pytest.mark.parametrize(
    ("address", "todo"),
    [
        ("ssh://me@box.example", "`ssh me@box.example docker info`"),
        ("ssh://box.example:2222", "`ssh -p 2222 box.example docker info`"),
        ("tcp://127.0.0.1:1", "`docker info`"),
    ],
)
def test_an_engine_elsewhere_is_not_installed_here(tmp_path, address, todo):
    """The address itself is named, and what must work there."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\necho 'me@box.example: Permission denied (publickey).' >&2\nexit 255\n"
    )
    ssh.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "DOCKER_HOST": address,
    }
    # A process of its own: docker-py leaves what it opens for ssh to the garbage collector.
    done = subprocess.run(
        [sys.executable, "-c", BY_SSH], env=environ, capture_output=True, text=True, check=True
    )
    assert f"no Docker engine answers at {address} (DOCKER_HOST): " in done.stdout
    assert todo in done.stdout
    assert "apt-get" not in done.stdout


@pytest.mark.parametrize("by", ["DOCKER_CONTEXT", "config.json"])
def test_a_context_that_is_not_there_is_named(tmp_path, monkeypatch, by):
    """As the command docker does; this machine's engine is not what was meant."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    if by == "DOCKER_CONTEXT":
        monkeypatch.setenv(by, "gone")
    else:
        (tmp_path / by).write_text(json.dumps({"currentContext": "gone"}))
    with pytest.raises(NoRunnerError, match="docker has no context 'gone'"):
        docker.connect()


def test_the_context_that_is_chosen_is_asked_where_this_machine_has_no_engine(
    silent, tmp_path, monkeypatch
):
    """Docker Desktop, Colima and a rootless engine are contexts, and /var/run/docker.sock is not
    there.
    """
    place = tmp_path / ".docker" / "contexts" / "meta" / sha256(b"own").hexdigest() / "meta.json"
    place.parent.mkdir(parents=True)
    endpoint = {"docker": {"Host": silent, "SkipTLSVerify": False}}
    place.write_text(json.dumps({"Name": "own", "Metadata": {}, "Endpoints": endpoint}))
    (tmp_path / ".docker" / "config.json").write_text(json.dumps({"currentContext": "own"}))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(docker, "DEFAULT_SOCKET", "unix:///nonexistent")
    monkeypatch.setattr(docker, "FIRST_S", 0.1)
    with pytest.raises(NoRunnerError, match="said nothing for"):
        docker.connect()
