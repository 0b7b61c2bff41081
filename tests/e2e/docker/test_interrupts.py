"""A submit that is interrupted while Docker makes the container, or while it finds the build of a
killed one.
"""

import json
import os
import signal
import socket
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.e2e.conftest import containers_of, wait
from tests.larger_canary import larger_canary

CREATE = b"/containers/create"


def docker_socket() -> str:
    address = urlparse(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    assert address.scheme == "unix", address
    return address.path


@contextmanager
def relay(place: Path, seen):
    """A Docker socket that calls `seen` before it hands on a request for a container; it always
    hands it on.
    """

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
    assert [(attempt["state"], attempt["why"]) for attempt in job["attempts"]] == [
        ("cancelled", "interrupted")
    ]
    assert farm.run("submit", *select).returncode == 0  # it uses up the tree


@pytest.mark.parametrize(("lines", "number"), [(0, None), (1, None), (1, signal.SIGINT)])
def test_the_next_submit_of_a_killed_ones_build_ends_early(farm, client, tmp_path, lines, number):
    """Its output is closed before its first line or after it, or Ctrl-C comes: no container without
    an open run.
    """
    made = type(farm)(farm.project, larger_canary(tmp_path / "code", 30, ccache=False))
    select = (
        "submit",
        "--variant",
        "cpu-avx-py311",
        "--package",
        "canary",
        "--no-publish",
        "--json",
    )
    first = made.start(*select)
    (run,) = wait("its run", lambda: [each.name for each in made.folder("").glob("*")])
    wait("its container", lambda: client.containers.list(filters={"label": f"farm.run={run}"}))
    first.kill()
    first.communicate()
    second = made.start(*select)
    for _ in range(lines):
        assert second.stderr.readline().startswith("==> build")
    if number is None:
        second.stdout.close()
        second.stderr.close()
    else:
        second.send_signal(number)
    assert second.wait(600) == (130 if number else 141)
    ended, left = made.json("status", run)["exit_code"], containers_of(client, run)
    # A closed pipe asks for no end of a build that is not followed yet.
    assert (ended, len(left)) == ((130, 0) if lines else (None, 1))
    third = made.run(*select)
    assert third.returncode == 0, third.stderr
    document = json.loads(third.stdout)
    assert (document["run"] == run) == (ended is None)
    assert containers_of(client, run) == containers_of(client, document["run"]) == []
