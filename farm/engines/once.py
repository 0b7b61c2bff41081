"""An image that several projects need is made once.

A toolchain takes many minutes and gigabytes, and on an engine without images projects begin it at the same time. The
locks of `alone` make the second wait. They are the user's own: in a folder that all users may write, anybody could hold
one for ever, and one in the engine (a container with a fixed name) would stay behind a killed run. So other users, and
other machines with the same engine, are not kept from building: `name` then keeps the image that was named first.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import docker
import docker.errors
import requests

from farm.base.heartbeat import Pulse
from farm.base.interrupts import held
from farm.base.locks import lock
from farm.base.text import duration

Line = Callable[[str], None]


def named(client: docker.DockerClient, tag: str) -> str | None:
    """The id of the image that has a name; None: there is none."""
    try:
        return str(client.images.get(tag).id)
    except docker.errors.ImageNotFound:
        return None


@contextlib.contextmanager
def alone(client: docker.DockerClient, tag: str, *, line: Line, note: Line, log: Path | None = None) -> Iterator[None]:
    """One run of this user at a time makes the image `tag` on an engine; whoever comes second waits.

    That it waits, and for whom (run, project and log of the other), goes to `note`; for how long to `line`.
    Where no lock can be had (a home that cannot be written, a file system without locks), no one waits.
    """
    file = _opened(client, tag)
    with file or contextlib.nullcontext():
        if file and _held_by_another(file.fileno()):
            file.seek(0)
            holder = file.read().decode(errors="replace") or "another run"
            note(f"{tag} is being made by {holder}: waiting for it")
            with Pulse(line, lambda silent: f"waited {duration(silent)} for {tag}, made by {holder}"):
                lock(file.fileno(), wait=True)
        if file:
            with contextlib.suppress(OSError):  # a full disk: only the words are lost
                file.truncate(0)
                file.write(os.fsencode(holder_text(log)))
        yield


def holder_text(log: Path | None) -> str:
    """This process for another one that waits for it: `run ID (process 12, log: FILE)`; FILE names the project."""
    what = f"process {os.getpid()}" + (f", log: {log}" if log else "")
    # Logs lie in the folder of their run: artifacts/runs/ID/image.log.
    return f"run {log.parent.name} ({what})" if log and log.parent.parent.name == "runs" else what


def _opened(client: docker.DockerClient, tag: str) -> FileIO | None:
    """The lock's file. It stays: whoever opened one that was removed would hold it beside the holder of the new one."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torch-farm" / "images"
        folder.mkdir(parents=True, exist_ok=True)
        # "a": whoever waits must not cut what the holder wrote.
        return (folder / re.sub(r"[^\w.-]", "-", f"{client.info().get('ID')}-{tag}")).open("ab+", buffering=0)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return None


def _held_by_another(descriptor: int) -> bool:
    """Takes the lock if it can be had; where there are no locks, no one holds one."""
    try:
        lock(descriptor, wait=False)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def unnamed(client: docker.DockerClient) -> Iterator[list[str]]:
    """A list for the ids of images that are made without a name; the last one goes if it has none at the end.

    So neither Ctrl-C nor another project's image of the same name leaves gigabytes behind. An image that a container
    uses stays, and one that someone else has named: what an engine built before from the same files has the same id.
    """
    made: list[str] = []
    try:
        yield made
    finally:
        for image in made[-1:]:
            # Gone (404), in use (409), or the engine does not answer: then its own error counts.
            with held(), contextlib.suppress(docker.errors.APIError, requests.exceptions.RequestException):
                if not client.images.get(image).tags:
                    client.images.remove(image)


def name(client: docker.DockerClient, made: str, tag: str, note: Line) -> str:
    """Gives an image that has no name its tag, unless another one got that meanwhile; the id of the one that has it.

    The first keeps the tag: its project may use it already. Docker knows no tagging on a condition, so between two
    users' looking and tagging are some milliseconds in which the later one takes the tag, and an image without a name
    stays; both builds go on, as they use the tag.
    """
    first = named(client, tag)
    if first is None:
        repository, _, version = tag.rpartition(":")
        client.images.get(made).tag(repository, version)
        return made
    if first != made:
        note(f"{tag} was made by another run meanwhile; this one is removed")
    return first
