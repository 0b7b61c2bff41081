"""A build that is killed at several points goes on where it was: nothing that was compiled is
compiled again.
"""

import contextlib
import json
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import requests

from tests.e2e.conftest import OBJECT
from tests.larger_canary import larger_canary

FILES = 16
"""Generated sources; each takes a moment, so that there is time to kill between two."""
WAIT_S = 900


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The farm with a canary that has more to compile, and compiles through ccache as PyTorch
    does.
    """
    return larger_canary(tmp_path / "code", FILES, ccache=True)


def build_container(client: Any, farm: Any, process: subprocess.Popen[str], seen: set[str]) -> Any:
    """The newest container of this project's runs that is not in `seen`."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        runs = farm.project / "artifacts" / "runs"
        for run in runs.iterdir() if runs.is_dir() else ():
            for container in client.containers.list(
                filters={"label": [f"farm.run={run.name}", "farm.kind=build"]}
            ):
                if container.id not in seen:
                    seen.add(container.id)
                    return container
        time.sleep(0.2)
    raise AssertionError("no container came")


def built(container: Any) -> list[str]:
    """The objects whose compile had ended, as ninja said."""
    return OBJECT.findall(container.logs().decode(errors="replace"))


@contextlib.contextmanager
def built_to_the_end(container: Any) -> Iterator[list[str]]:
    """The same of a container that goes away in this block, up to its last line; filled at the end
    of the block.
    """
    found: list[str] = []
    pieces: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(docker.errors.NotFound, requests.exceptions.RequestException):
            for piece in container.logs(stream=True, follow=True):
                pieces.append(piece)

    thread = threading.Thread(target=read)
    thread.start()
    yield found
    thread.join(WAIT_S)
    assert not thread.is_alive()
    found += OBJECT.findall(b"".join(pieces).decode(errors="replace"))


def wait_for(container: Any, steps: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(built(container)) < steps:
        container.reload()
        assert container.status == "running", container.logs().decode()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_killed_at_several_points(farm, client, code):
    made = type(farm)(farm.project, code)
    arguments = (
        "submit",
        "--variant",
        "cpu-avx-py311",
        "--package",
        "canary",
        "--no-publish",
        "--no-smoke",
        "--json",
    )
    seen: set[str] = set()
    compiled: list[list[str]] = []
    progress = None
    # (objects compiled in this attempt before the kill, what is killed): the machine of the build
    # together with its controller; the build alone; the controller, which may tidy up; the
    # controller alone.
    points = ((0, "both"), (2, "both"), (3, "build"), (3, "asked"), (2, "controller"))
    for steps, what in points:
        process = made.start(*arguments)
        container = build_container(client, made, process, seen)
        wait_for(container, steps)
        if what == "asked":
            progress = progress_of(made, container)
        if what in ("both", "controller"):
            process.send_signal(signal.SIGKILL)
            process.communicate()
        if what == "asked":
            with built_to_the_end(container) as objects:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=WAIT_S)
            assert process.returncode == 130
            compiled.append(objects)
        if what in ("both", "build"):
            container.kill()
            compiled.append(built(container))
        if what == "build":
            _, err = process.communicate(timeout=WAIT_S)
            assert process.returncode == 9, err
            assert "killed from outside" in err
            assert "continues with what is compiled" in err
    done = made.run(*arguments)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    # The controller that was killed alone finds its run again, and the container that went on
    # without it.
    assert document["run"] == container.labels["farm.run"]
    assert next(step["result"] for step in document["steps"] if step["step"] == "build").startswith(
        "resumed"
    )
    (job,) = [job for job in made.json("status", document["run"])["jobs"] if job["kind"] == "build"]
    assert job["attempts"][-1]["handle"] == container.id
    assert client.containers.list(all=True, filters={"label": f"farm.run={document['run']}"}) == []
    compiled.append(OBJECT.findall((made.folder(document["run"]) / "build.log").read_text()))
    count = Counter(name for attempt in compiled for name in attempt)
    heavy = [name for name in count if "heavy_" in name]
    assert len(heavy) == FILES
    # What an attempt said it had compiled, none compiled again.
    assert [name for name, times in count.items() if times > 1] == []
    assert progress is not None
    assert progress["total"] >= FILES
    assert 0 < progress["done"] <= progress["total"]

    # With the tree gone, the compiler cache has every object, and the wheel is the same.
    again = made.run(*arguments)
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout)
    assert second["run"] != document["run"]
    assert Path(second["wheel"]).read_bytes() == Path(document["wheel"]).read_bytes()
    log = (made.folder(second["run"]) / "build.log").read_text()
    hits = re.search(
        r"^\s*Hits:\s+(\d+) /", log, re.MULTILINE
    )  # the end of the log: ccache --show-stats
    assert hits is not None, log[-2000:]
    assert int(hits[1]) >= FILES


def progress_of(farm: Any, container: Any) -> dict[str, Any]:
    """What `farm status` says of the run; it notes the steps every ten seconds."""
    run = container.labels["farm.run"]
    for _ in range(100):
        reached: dict[str, Any] | None = farm.json("status", run)["progress"]
        if reached:
            return reached
        time.sleep(0.5)
    raise AssertionError("status told no progress")
