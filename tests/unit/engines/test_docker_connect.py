"""An engine that takes connections and says nothing, as one does whose process is stopped."""

import socket

import pytest

from farm.engines import docker
from farm.errors import NoRunnerError


@pytest.fixture
def silent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_a_first_question_is_given_up_long_before_others_are(silent, monkeypatch):
    monkeypatch.setattr(docker, "FIRST_S", 0.1)
    with pytest.raises(NoRunnerError, match=r"no Docker engine answers at tcp://.* said nothing for") as found:
        docker.connect(silent)
    assert "apt-get" not in found.value.hint


def test_a_machine_without_an_engine_is_told_how_to_get_one():
    with pytest.raises(NoRunnerError) as found:
        docker.connect("unix:///nonexistent")
    assert "apt-get install docker.io" in found.value.hint
