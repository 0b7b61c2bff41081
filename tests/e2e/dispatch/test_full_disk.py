"""A disk that is full while a run is under way: nothing hangs, nothing is lost, and the reason is
the true one.
"""

import contextlib
import json
import mmap
import os
import subprocess
from pathlib import Path

import docker
import pytest

from tests.e2e.conftest import containers_of, wait

SELECT = ["--variant", "cpu-avx-py311", "--package", "canary", "--no-publish", "--detach"]


@pytest.fixture
def small_disk(farm):
    """The artifacts of the project are on a disk of their own, with the room that a run asks for
    before it begins.
    """
    artifacts = farm.project / "artifacts"
    artifacts.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", artifacts], check=True)
    yield farm
    (artifacts / "filler").unlink(missing_ok=True)
    # A dispatcher holds the disk until its run has ended: after a test that failed, a cancelled
    # one.
    for run in json.loads(farm.run("status", "--json").stdout or "[]"):
        if run["result"] is None:
            farm.run("cancel", run["id"])
    wait(
        "the disk is free",
        lambda: not subprocess.run(["umount", artifacts], check=False).returncode,
    )


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))


def dispatchers(farm):
    """The process ids of the project's dispatchers."""
    words = [b"farm.cli.main", b"--project", bytes(farm.project), b"dispatch"]
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if set(words) <= set(line.read_bytes().split(b"\0")):
                found.append(int(line.parent.name))
    return found


def output_of(process):
    return str(Path(f"/proc/{process}/fd/2").readlink())


def paused(client, container):
    with contextlib.suppress(
        docker.errors.APIError
    ):  # a busy machine was "unable to freeze" it, or it has not started
        client.api.pause(container)
    with contextlib.suppress(docker.errors.NotFound):
        return client.containers.get(container).status == "paused"
    return False


def standing_still(client, run):
    return next(
        (container for container in containers_of(client, run) if paused(client, container)), None
    )


def test_a_build_outlives_a_full_disk(small_disk, client):
    farm = small_disk
    run = farm.run("submit", *SELECT).stdout.strip()
    # It stands still until the journal has its handle: one that could not be written down is
    # removed, and made again.
    container = wait("a container stands still", lambda: standing_still(client, run))
    wait(
        "the handle",
        lambda: [a for j in farm.json("status", run)["jobs"] for a in j["attempts"] if a["handle"]],
    )
    (dispatcher,) = wait("the dispatcher", lambda: dispatchers(farm))
    log = farm.project / "artifacts" / "dispatch.log"
    assert output_of(dispatcher) == str(log)
    with log.open("ab") as stream:  # no room in its last page either
        stream.write(b"\n" * (-log.stat().st_size % mmap.PAGESIZE))
    subprocess.run(
        ["mount", "-o", "remount,size=64m", farm.project / "artifacts"], check=True
    )  # soon full
    filler = farm.project / "artifacts" / "filler"
    fill(filler)
    client.api.unpause(container)
    wait("the build ends", lambda: client.containers.get(container).status == "exited")
    wait(
        "it is tried, and not even the log takes the warning",
        lambda: output_of(dispatcher) == os.devnull,
    )
    assert (
        client.containers.get(container).status == "exited"
    )  # dockerd answers, and still has what was built
    filler.unlink()
    wait("the run ends", lambda: farm.json("status", run)["result"])
    found = farm.json("status", run)
    assert (found["state"], len([a for j in found["jobs"] for a in j["attempts"]])) == (
        "success",
        1,
    ), found["why"]
    assert not containers_of(client, run)
    reasons = [
        event["data"].get("text") or event["data"].get("why") or "" for event in found["events"]
    ]
    full = ("No space left on device", "disk is full", "disk I/O error")
    assert any(word in text for word in full for text in reasons), reasons
    assert not log.read_text().strip()
    assert os.path.ismount(farm.project / "artifacts")
