"""A disk that is full while a run is under way: nothing hangs, nothing is lost, and the reason is the true one."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import containers_of

SELECT = ["--variant", "cpu-avx-py311", "--package", "canary", "--no-publish", "--detach"]


@pytest.fixture
def small_disk(farm):
    """The artifacts of the project lie on a disk of 64 MiB of their own."""
    artifacts = farm.project / "artifacts"
    artifacts.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", artifacts], check=True)
    yield farm
    (artifacts / "filler").unlink(missing_ok=True)
    end = time.monotonic() + 30
    while subprocess.run(["umount", artifacts], check=False).returncode and time.monotonic() < end:
        time.sleep(1)  # a dispatcher is about to end


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))


def wait(what, check, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


def test_a_build_outlives_a_full_disk(small_disk, client):
    farm = small_disk
    run = farm.run("submit", *SELECT).stdout.strip()
    (container,) = wait("it builds", lambda: containers_of(client, run), 200)
    filler = farm.project / "artifacts" / "filler"
    fill(filler)
    wait("the build ends", lambda: client.containers.get(container).status == "exited", 200)
    time.sleep(12)  # the output is collected, and cannot be kept: twice at least
    begun = time.monotonic()
    assert client.containers.get(container).status == "exited"  # dockerd answers, and still has what was built
    list(client.api.inspect_container(container))
    assert time.monotonic() - begun < 5
    filler.unlink()
    wait("the run ends", lambda: farm.json("status", run)["result"], 60)
    found = farm.json("status", run)
    assert (found["state"], len([a for j in found["jobs"] for a in j["attempts"]])) == ("success", 1), found["why"]
    assert not containers_of(client, run)
    reasons = [event["data"].get("text") or event["data"].get("why") or "" for event in found["events"]]
    log = (farm.project / "artifacts" / "dispatch.log").read_text()
    full = ("No space left on device", "disk is full", "disk I/O error")
    assert any(word in text for word in full for text in [*reasons, log]), log
    assert "Traceback" not in log
    assert os.path.ismount(farm.project / "artifacts")
