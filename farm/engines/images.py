"""Toolchain images: made from a rendered context, tagged by the hash of what defines them, reused.

A toolchain takes many minutes and gigabytes, and on an engine without images projects begin it at the same time: the
locks of `alone` make the second wait. They are the user's own: in a folder that all users may write, anybody could hold
one for ever, and one in the engine (a container with a fixed name) would stay behind a killed run. So other users, and
other machines with the same engine, are not kept from building: `tag_first` then keeps the image that was named first.
"""

import contextlib
import fnmatch
import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any

import docker
import docker.errors
import requests
from docker.utils.build import create_archive

from farm.base import failures, outputs
from farm.base.errors import BuildFailedError, FarmError, InfrastructureError, NoRunnerError
from farm.base.heartbeat import Pulse
from farm.base.interrupts import held
from farm.base.locks import lock
from farm.base.temporary import temporary_folder
from farm.base.text import duration
from farm.engines.docker import guard
from farm.platforms.facts import DEFAULT

Line = Callable[[str], None]


def image_id(client: docker.DockerClient, tag: str) -> str | None:
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


def tag_first(client: docker.DockerClient, made: str, tag: str, note: Line) -> str:
    """Gives an image that has no name its tag, unless another one got that meanwhile; the id of the one that has it.

    The first keeps the tag: its project may use it already. Docker knows no tagging on a condition, so between two
    users' looking and tagging are some milliseconds in which the later one takes the tag, and an image without a name
    stays; both builds go on, as they use the tag.
    """
    first = image_id(client, tag)
    if first is None:
        repository, _, version = tag.rpartition(":")
        client.images.get(made).tag(repository, version)
        return made
    if first != made:
        note(f"{tag} was made by another run meanwhile; this one is removed")
    return first


KEPT_LINES = 5000
"""Of the output of an image's build, for the search for its first error."""
MAX_LINE = 1 << 16
STEP_WIDTH = 100
TOOLKIT = "scripts/toolkit.json"
PROJECT_LABEL = "farm.project"
"""On an image: the project that made it, for `farm clean`."""


@dataclass(frozen=True)
class Image:
    """A toolchain image: its tag, its id, and whether it was there already."""

    tag: str
    id: str
    reused: bool


@dataclass(frozen=True)
class Toolchain:
    """The inputs of a toolchain image.

    Args:
        repository: Of its tag.
        context: The rendered context, path -> text; its sha256 is `digest`.
        base: The id of the base image.
        archives: The URL of a folder that steps of the Dockerfile ask first for what they download.
        emulated: The engine's machine is another than the image's.
        wheels: Gives, when there is no image yet, where the wheels are (by file name) that the context's
            `scripts/toolkit.json` names; what it takes out of them comes into the context as `root/`.
    """

    repository: str
    context: Mapping[str, str]
    digest: str
    base: str
    labels: Mapping[str, str]
    archives: str | None = None
    emulated: bool = False
    wheels: Callable[[], Mapping[str, Path]] = dict

    @property
    def tag(self) -> str:
        # The id of the base image, not its tag: where that is moved to a newer image, the toolchain is made anew.
        return f"{self.repository}:{hashlib.sha256(f'{self.digest} {self.base}'.encode()).hexdigest()[:16]}"

    @property
    def arguments(self) -> dict[str, str]:
        """Of the Dockerfile."""
        values = {"FARM_ARCHIVES": self.archives, "FARM_EMULATED": "1" if self.emulated else None}
        # Docker warns of an argument that no step takes.
        named = {
            name: value for name, value in values.items() if value and f"ARG {name}\n" in self.context["Dockerfile"]
        }
        return {"BASE": self.base, **named}


@guard
def ensure_image(
    client: docker.DockerClient,
    wanted: Toolchain,
    *,
    log: Path,
    line: Line,
    note: Line | None = None,
) -> Image:
    """The image, made where the engine does not have it yet.

    The build's output goes to `log` whole and to `line` line by line; the steps of the Dockerfile go to `note`.

    Raises:
        NoRunnerError: The engine cannot run Linux images.
        InfrastructureError: A step of the image failed; the message holds its first error, and the cause where known.
        BuildFailedError: The recipe names a package that the base image's distribution does not have, or a wheel does
            not hold what the toolkit takes out of it.
    """
    note = note or line
    if client.info().get("OSType") != DEFAULT:
        raise NoRunnerError("the Docker engine does not run Linux containers", hint="switch it to Linux containers")
    tag = wanted.tag
    if found := _here(client, tag, note):
        return found
    with alone(client, tag, line=line, note=note, log=log):
        if found := _here(client, tag, note):  # whoever held the lock has made it
            return found
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            unnamed(client) as made,
            _context_tar(wanted.context, wanted.wheels()) as archive,
            log.open("w", encoding="utf-8") as stream,
            Pulse(line, lambda silent: f"no output for {duration(silent)}") as pulse,
        ):
            events = client.api.build(
                fileobj=archive,
                custom_context=True,
                buildargs=wanted.arguments,
                labels=dict(wanted.labels),
                # Containers of steps go, those of a step that failed too.
                rm=True,
                forcerm=True,
                decode=True,
            )
            _follow(_noting(events, made), stream, pulse, note, log)
            first = tag_first(client, made[-1], tag, note)
    return Image(tag, first, reused=first != made[-1])


def _here(client: docker.DockerClient, tag: str, note: Line) -> Image | None:
    found = image_id(client, tag)
    if found is None:
        return None
    note(f"{tag} is here")
    return Image(tag, found, reused=True)


def _context_tar(context: Mapping[str, str], wheels: Mapping[str, Path]) -> Any:
    with temporary_folder("farm-context-") as folder, outputs.writing(folder, outputs.ROOM):
        for name, text in context.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        files = sorted(context)
        for part in json.loads(context[TOOLKIT])["parts"] if wheels else ():
            if "wheel" in part:
                files += [f"root/{name}" for name in _take(wheels[part["wheel"]], part["members"], folder / "root")]
        # It packs into a temporary file of its own, which outlives this folder.
        return create_archive(str(folder), files=files)


def _take(wheel: Path, members: Mapping[str, str], root: Path) -> list[str]:
    """Unpacks the members that match a pattern into the pattern's folder below `root`; returns what is there then.

    Each under its own name alone; of a pattern that ends in `/**` with its folders. Programs stay executable.
    """
    taken = []
    with zipfile.ZipFile(wheel) as archive:
        for pattern, folder in members.items():
            # fnmatch's `*` matches slashes as well, unlike the shell's.
            found = [info for info in archive.infolist() if fnmatch.fnmatchcase(info.filename, pattern)]
            if not found:
                raise BuildFailedError(f"{wheel.name} holds nothing that matches {pattern}")
            top = pattern.removesuffix("**") if pattern.endswith("/**") else None
            for info in found:
                if info.is_dir():
                    continue
                inside = PurePosixPath(info.filename if top else PurePosixPath(info.filename).name)
                if ".." in inside.parts or inside.is_absolute():
                    raise BuildFailedError(f"{wheel.name} holds {info.filename!r}, which leads out of its folder")
                taken.append(str(PurePosixPath(folder) / (inside.relative_to(top) if top else inside)))
                target = root / taken[-1]
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(info) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
                # The upper 16 bits hold the Unix mode of the member.
                target.chmod(0o755 if info.external_attr >> 16 & 0o100 else 0o644)
    return taken


def _noting(events: Iterable[dict[str, Any]], made: list[str]) -> Iterator[dict[str, Any]]:
    """Notes the ids of images; the last one is that of the whole build."""
    failed = False
    for event in events:
        failed = failed or "error" in event
        if image := (event.get("aux") or {}).get("ID"):
            made.append(str(image))
        yield event
    if not made and not failed:
        raise InfrastructureError("the Docker engine does not say which image it made")


def _follow(
    events: Iterator[dict[str, Any]],
    stream: io.TextIOBase,
    pulse: Pulse,
    note: Line,
    log: Path,
) -> None:
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    step = "?"
    for text, event in _lines(events, pulse.passing):
        stream.write(text + "\n")
        # docker-py builds with the classic builder, which prints this line before each step; BuildKit prints others.
        # Podman's API prints `STEP 1/9: …`.
        if re.match(r"(Step \d+/\d+ |STEP \d+/\d+):", text):
            step = text
            lines.clear()
            note(text)
        elif text.strip():
            pulse.line(text)
        if text.strip():
            lines.append(text)
        if "error" in event:
            raise _failed(event, step, lines, log)


def _lines(events: Iterator[dict[str, Any]], passing: Line) -> Iterator[tuple[str, dict[str, Any]]]:
    """Whole lines of a build's output; an event holds a piece of it, as the daemon happened to read it.

    With the last line before an error comes the event that holds the error; with the others an empty one. Of a line
    that was overwritten, as apt draws its progress, the end is left; `passing` gets it as it grows.
    """
    rest = ""
    for event in events:
        *whole, rest = (rest + str(event.get("stream", ""))).split("\n")
        # Output without a newline is passed on in pieces: it would fill the memory.
        if len(rest) > MAX_LINE:
            whole, rest = [*whole, rest], ""
        yield from ((_shown(text), {}) for text in whole)
        if "error" in event:
            yield _shown(rest), event
            rest = ""
        if _shown(rest).strip():
            passing(_shown(rest))
    if rest:
        yield _shown(rest), {}


def _shown(line: str) -> str:
    """A line with carriage returns as a terminal shows it."""
    return line.rstrip("\r").rpartition("\r")[2]


def _failed(event: dict[str, Any], step: str, lines: Iterable[str], log: Path) -> FarmError:
    """The error of a step of a Dockerfile. Docker's own text repeats the whole command, so its exit code will do."""
    code = (event.get("errorDetail") or {}).get("code")
    short = step if len(step) <= STEP_WIDTH else step[:STEP_WIDTH] + " […]"
    if code is None:
        failure = failures.read([*lines, str(event["error"])])
        how = "failed"
    else:
        # Without the first line, which is the step's own: its command may hold the words of an error.
        failure = failures.read(list(lines)[1:])
        how = f"ended with exit code {code}"
    message = f"the toolchain image cannot be built: {short}\n  {how}:\n{failure.text}"
    kind = BuildFailedError if failure.recipe else InfrastructureError
    return kind(message, hint=failure.hint(log))
