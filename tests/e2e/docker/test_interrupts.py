"""Ctrl-C while Docker makes the container: its answer comes when nobody waits for it any more."""

import os
import signal
import socket
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.e2e.conftest import containers_of

CREATE = b"/containers/create"


def docker_socket() -> str:
    address = urlparse(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    assert address.scheme == "unix", address
    return address.path


@contextmanager
def relay(place: Path, seen):
    """A Docker socket that calls `seen` before it hands on a request for a container; it always hands it on."""

    def carry(source, target, look):
        with ExitStack() as stack:
            stack.callback(target.close)
            stack.callback(lambda: target.shutdown(socket.SHUT_WR))
            while piece := source.recv(1 << 16):
                if look and CREATE in piece:
                    seen()
                target.sendall(piece)

    def quiet(*arguments):
        try:
            carry(*arguments)
        except OSError:  # one of the two is gone
            return

    def serve(listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(docker_socket())
            for arguments in ((client, engine, True), (engine, client, False)):
                threading.Thread(target=quiet, args=arguments, daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_leaves_no_container(farm, client, tmp_path, number):
    select = ("--variant", "cpu-sse41-py311", "--package", "canary", "--no-publish")
    interrupted = []

    def interrupt():
        if not interrupted:
            interrupted.append(number)
            process.send_signal(number)

    with relay(tmp_path / "docker.sock", interrupt):
        process = farm.start("submit", *select, DOCKER_HOST=f"unix://{tmp_path}/docker.sock")
        _, err = process.communicate(timeout=600)
    assert (process.returncode, interrupted) == (130, [number]), err
    (run,) = farm.json("status")
    assert containers_of(client, run["id"]) == []
    (job,) = farm.json("status", run["id"])["jobs"]
    assert [(attempt["state"], attempt["why"]) for attempt in job["attempts"]] == [("cancelled", "interrupted")]
    assert farm.run("submit", *select).returncode == 0  # it uses up the tree
