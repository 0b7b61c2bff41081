"""The log of a container whose engine dies: an error that names the engine, and no error of
Python's sockets.
"""

import io
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import docker
import pytest
import requests

from farm.base.errors import InfrastructureError
from farm.engines.docker import DockerEngine, guard
from tests.servers.threads import answered_by


class Stream:
    """What docker-py hands out for a followed log."""

    def __init__(self, pieces):
        self._pieces = iter(pieces)
        self._response = SimpleNamespace(close=lambda: None)

    def __iter__(self):
        return self._pieces


def gone(*_args, **_kwargs):
    raise requests.exceptions.ConnectionError("Connection aborted.")


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (SimpleNamespace(logs=lambda **_: Stream([b"[1/2] cc\n"]), wait=gone), [b"[1/2] cc\n"]),
        (SimpleNamespace(logs=gone), []),
    ],
    ids=["after the log's end", "at the beginning"],
)
def test_an_engine_that_dies_while_the_log_is_followed(container, expected):
    engine = DockerEngine.__new__(DockerEngine)  # without a client: nothing else of it is asked
    engine._find = lambda _: container
    seen = []

    def follow():
        for piece in engine.logs("1e5cc8bafcfc"):
            seen.append(piece)  # what came before the error counts

    with pytest.raises(InfrastructureError, match="the Docker engine: it does not answer any more"):
        follow()
    assert seen == expected
    following = engine.logs("1e5cc8bafcfc")
    engine._find = gone
    with pytest.raises(InfrastructureError, match="does not answer any more"):
        next(following)


def test_an_engine_that_answers_again_ends_the_log():
    lines = [b"[1/2] cc\n", b"done"]
    container = SimpleNamespace(logs=lambda **_: Stream(lines), wait=lambda: None)
    engine = DockerEngine.__new__(DockerEngine)
    engine._find = lambda _: container
    # The second look at the log skips what was seen.
    assert b"".join(engine.logs("1e5cc8bafcfc")) == b"[1/2] cc\ndone"


def removed(*_args, **_kwargs):
    raise docker.errors.NotFound("No such container: 1e5cc8bafcfc")


@pytest.mark.parametrize("where", ["logs", "wait", "logs again"])
def test_a_container_that_is_released_while_its_log_is_read_ends_it(where):
    answers = iter([Stream([b"[1/2] cc\n"])])

    def logs(follow, **_):
        return removed() if where == "logs" or not follow else next(answers)

    engine = DockerEngine.__new__(DockerEngine)
    engine._find = lambda _: SimpleNamespace(
        logs=logs, wait=removed if where == "wait" else lambda: None
    )
    assert b"".join(engine.logs("1e5cc8bafcfc")) == (b"" if where == "logs" else b"[1/2] cc\n")


class CutOff(BaseHTTPRequestHandler):
    """An engine that is killed while it makes an image: its answer stops between two pieces."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        piece = b'{"stream": "Step 1/2"}\r\n'
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.close_connection = True


def test_an_engine_that_dies_while_it_makes_an_image(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    seen = []

    def build():
        for event in client.api.build(fileobj=io.BytesIO(), custom_context=True, decode=True):
            seen.append(event)

    with answered_by(CutOff) as url:
        client = docker.DockerClient(url.replace("http:", "tcp:"), version="1.41")
        with pytest.raises(
            InfrastructureError, match="the Docker engine: it does not answer any more"
        ):
            guard(build)()
        client.close()
    assert seen == [{"stream": "Step 1/2"}]
