"""Toolchain images: made from a rendered context, tagged by the hash of what defines them, reused.

A toolchain takes many minutes and gigabytes, and on an engine without images projects begin it at
the same time: the locks of `alone` make the second wait. They are the user's own: in a folder that
all users may write, anybody could hold one for ever, and one in the engine (a container with a
fixed name) would stay behind a killed run. So other users, and other machines with the same engine,
are not kept from building: `tag_first` then keeps the image that was named first.
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
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import docker
import docker.errors
import requests
from docker.utils.build import create_archive

from farm.base import failures, outputs
from farm.base.errors import BuildFailedError, FarmError, InfrastructureError, NoRunnerError
from farm.base.heartbeat import Heartbeat
from farm.base.interrupts import deferred_interrupts
from farm.base.locks import lock
from farm.base.temporary import temporary_folder
from farm.base.text import duration
from farm.engines.docker import guard, system_of
from farm.platforms.facts import DEFAULT, facts

Line = Callable[[str], None]


def image_id(client: docker.DockerClient, tag: str) -> str | None:
    """Return the id of the image that has a name, or None."""
    try:
        return str(client.images.get(tag).id)
    except docker.errors.ImageNotFound:
        return None


def first_present(
    client: docker.DockerClient, tags: Iterable[str], note: Line, prefix: str = ""
) -> str | None:
    """Return the id of the image with the first of these names that the engine knows, or None."""
    for tag in tags:
        if image := image_id(client, tag):
            note(f"{prefix}{tag} is here")
            return image
    return None


@contextlib.contextmanager
def alone(
    client: docker.DockerClient, tag: str, *, line: Line, note: Line, log: Path | None = None
) -> Iterator[None]:
    """Let one run of this user at a time make the image `tag` on an engine; a second one waits.

    Without a lock (a home that cannot be written, a file system without locks) nothing waits.

    Args:
        client: The engine.
        tag: The image's name.
        line: Receives how long this run has waited.
        note: Receives that it waits, and for which run, project and log.
        log: The log of this run, by which others find it.
    """
    try:
        folder = (
            Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
            / "torch-farm"
            / "images"
        )
        folder.mkdir(parents=True, exist_ok=True)
        # The file stays: two runs could lock a removed file and its successor at the same time.
        # "a": a run that waits must not truncate what the holder wrote.
        file = (folder / re.sub(r"[^\w.-]", "-", f"{client.info().get('ID')}-{tag}")).open(
            "ab+", buffering=0
        )
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        yield
        return
    with file:
        try:
            lock(file.fileno(), wait=False)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().decode(errors="replace") or "another run"
            note(f"{tag} is being made by {holder}: waiting for it")
            with Heartbeat(
                line, lambda silent: f"waited {duration(silent)} for {tag}, made by {holder}"
            ):
                lock(file.fileno(), wait=True)
        except OSError:  # there are no locks here
            pass
        with contextlib.suppress(OSError):  # a full disk: only the words are lost
            file.truncate(0)
            file.write(os.fsencode(_holder(log)))
        yield


def _holder(log: Path | None) -> str:
    """Describe this process to one that waits for it: `run ID (process 12, log: FILE)`."""
    process = f"process {os.getpid()}"
    if log is None:
        return process
    process += f", log: {log}"
    # Logs are in the folder of their run: artifacts/runs/ID/image.log.
    if log.parent.parent.name == "runs":
        return f"run {log.parent.name} ({process})"
    return process


@contextlib.contextmanager
def unnamed(client: docker.DockerClient) -> Iterator[list[str]]:
    """Give a list for the ids of images that are made without a name.

    The last one is removed at the end, unless it has a name by then or is in use.
    """
    images: list[str] = []
    try:
        yield images
    finally:
        for image in images[-1:]:
            # Gone (404), in use (409), or the engine does not answer: then its own error counts.
            with (
                deferred_interrupts(),
                contextlib.suppress(docker.errors.APIError, requests.exceptions.RequestException),
            ):
                if not client.images.get(image).tags:
                    client.images.remove(image)


def tag_first(client: docker.DockerClient, made: str, tag: str, note: Line) -> str:
    """Tag an image that has no name, unless another image got the tag meanwhile.

    The first one keeps the tag, since its project may use it already. Docker cannot tag on a
    condition: within some milliseconds a later image may take the tag; an image without a name is
    left then, and both builds go on.

    Returns:
        The id of the image that has the tag.
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
"""Lines of the output of an image's build or of debootstrap that are kept, for the search for its
first error.
"""
MAX_LINE = 1 << 16
STEP_WIDTH = 100
TOOLKIT = "scripts/toolkit.json"
PROJECT_LABEL = "farm.project"  # on an image: the project that made it, for `farm clean`


@dataclass(frozen=True)
class Image:
    """A toolchain image.

    Attributes:
        tag: Its name.
        id: Its id.
        reused: Whether the engine had it already.
    """

    tag: str
    id: str
    reused: bool


@dataclass(frozen=True)
class Toolchain:
    """The inputs of a toolchain image.

    Attributes:
        repository: The name without its tag.
        context: The files of the build, by path.
        digest: The sha256 of the context.
        base: The id of the base image.
        labels: Labels of the image.
        archives: The URL of a folder that steps ask first for what they download.
        emulated: Whether the engine's machine is another than the image's.
        system: The platform whose containers the engine must run.
        options: Further options of the build, such as its isolation.
        wheels: Called where there is no image yet: the wheels (by file name) that the context's
            `scripts/toolkit.json` names. What is taken out of them comes into the context as
            `root/`.
    """

    repository: str
    context: Mapping[str, str]
    digest: str
    base: str
    labels: Mapping[str, str]
    archives: str | None = None
    emulated: bool = False
    system: str = DEFAULT
    options: Mapping[str, Any] = field(default_factory=dict)
    wheels: Callable[[], Mapping[str, Path]] = dict

    @property
    def tag(self) -> str:
        # The id of the base image, not its tag: where that is moved to a newer image, the toolchain
        # is made anew.
        key = hashlib.sha256(f"{self.digest} {self.base}".encode())
        return f"{self.repository}:{key.hexdigest()[:16]}"

    @property
    def arguments(self) -> dict[str, str]:
        """Of the Dockerfile."""
        values = {}
        if self.archives:
            values["FARM_ARCHIVES"] = self.archives
        if self.emulated:
            values["FARM_EMULATED"] = "1"
        arguments = {"BASE": self.base}
        for name, text in values.items():
            # Docker warns of an argument that no step takes.
            if f"ARG {name}\n" in self.context["Dockerfile"]:
                arguments[name] = text
        return arguments


def check_system(client: docker.DockerClient, system: str) -> None:
    """Raise NoRunnerError where an engine does not run containers of the platform `system`."""
    if system_of(client) != system:
        title = facts(system).title
        raise NoRunnerError(
            f"the Docker engine does not run {title} containers",
            hint=f"switch it to {title} containers, or name a machine in ci/runners.yaml whose "
            f"engine runs them: {{engine: docker, platform: {system}, url: ssh://USER@HOST}}",
        )


@guard
def ensure_image(
    client: docker.DockerClient,
    toolchain: Toolchain,
    *,
    log: Path,
    line: Line,
    note: Line | None = None,
) -> Image:
    """Make a toolchain image, unless the engine has it.

    Args:
        client: The engine.
        toolchain: The image.
        log: The file for the output of the steps.
        line: Receives the output.
        note: Receives the steps; `line` if not given.

    Raises:
        NoRunnerError: The engine runs containers of another platform.
        InfrastructureError: A step failed; with its first error, and the cause if known.
        BuildFailedError: The distribution lacks a package of the recipe, or a wheel lacks a file.
    """
    note = note or line
    check_system(client, toolchain.system)
    tag = toolchain.tag
    with alone(client, tag, line=line, note=note, log=log):
        if existing := first_present(client, [tag], note):
            return Image(tag, existing, reused=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            unnamed(client) as images,
            _context_tar(toolchain.context, toolchain.wheels()) as archive,
            log.open("w", encoding="utf-8") as stream,
            Heartbeat(line, lambda silent: f"no output for {duration(silent)}") as heartbeat,
        ):
            events = client.api.build(
                fileobj=archive,
                custom_context=True,
                buildargs=toolchain.arguments,
                labels=dict(toolchain.labels),
                # Containers of steps go, those of a step that failed too.
                rm=True,
                forcerm=True,
                decode=True,
                **toolchain.options,
            )
            _follow(_noting(events, images), stream, heartbeat, note, log)
            first = tag_first(client, images[-1], tag, note)
    return Image(tag, first, reused=first != images[-1])


def _context_tar(context: Mapping[str, str], wheels: Mapping[str, Path]) -> Any:
    with temporary_folder("farm-context-") as folder, outputs.writing(folder, outputs.ROOM):
        for name, text in context.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        files = sorted(context)
        if wheels:
            for part in json.loads(context[TOOLKIT])["parts"]:
                if "wheel" in part:
                    members = _take(wheels[part["wheel"]], part["members"], folder / "root")
                    files += [f"root/{name}" for name in members]
        # It packs into a temporary file of its own, which outlives this folder.
        return create_archive(str(folder), files=files)


def _take(wheel: Path, members: Mapping[str, str], root: Path) -> list[str]:
    """Unpack the members of a wheel that match a pattern into the pattern's folder below `root`.

    Members go in without their folders, except by a pattern `…/**`.

    Returns:
        The paths of the files below `root`.

    Raises:
        BuildFailedError: No member matches, or one leads out of its folder.
    """
    members_taken = []
    with zipfile.ZipFile(wheel) as archive:
        for pattern, folder in members.items():
            # fnmatch's `*` matches slashes as well, unlike the shell's.
            matches = [
                info for info in archive.infolist() if fnmatch.fnmatchcase(info.filename, pattern)
            ]
            if not matches:
                raise BuildFailedError(f"{wheel.name} holds nothing that matches {pattern}")
            for info in matches:
                if info.is_dir():
                    continue
                inside = PurePosixPath(info.filename)
                keeps_folders = pattern.endswith("/**")
                if not keeps_folders:
                    inside = PurePosixPath(inside.name)
                if ".." in inside.parts or inside.is_absolute():
                    raise BuildFailedError(
                        f"{wheel.name} holds {info.filename!r}, which leads out of its folder"
                    )
                if keeps_folders:
                    inside = inside.relative_to(pattern.removesuffix("**"))
                member = str(PurePosixPath(folder) / inside)
                members_taken.append(member)
                _write_member(archive, info, root / member)
    return members_taken


def _write_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    # The upper 16 bits hold the Unix mode of the member.
    is_program = info.external_attr >> 16 & 0o100
    if is_program:
        target.chmod(0o755)
    else:
        target.chmod(0o644)


def _noting(events: Iterable[dict[str, Any]], made: list[str]) -> Iterator[dict[str, Any]]:
    """Pass events on, and append the ids of images to `made`; the last is that of the whole
    build.
    """
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
    heartbeat: Heartbeat,
    note: Line,
    log: Path,
) -> None:
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    step = "?"
    for text, event in _lines(events, heartbeat.overwrite):
        stream.write(text + "\n")
        # docker-py builds with the classic builder, which prints this line before each step;
        # BuildKit prints others. Podman's API prints `STEP 1/9: …`.
        if re.match(r"(Step \d+/\d+ |STEP \d+/\d+):", text):
            step = text
            lines.clear()
            note(text)
        elif text.strip():
            heartbeat.line(text)
        if text.strip():
            lines.append(text)
        if "error" in event:
            raise _failed(event, step, lines, log)


def _lines(events: Iterator[dict[str, Any]], passing: Line) -> Iterator[tuple[str, dict[str, Any]]]:
    """Join the pieces of a build's output to lines, each with an event that holds an error, or
    {}.
    """
    pending = ""
    for event in events:
        *complete, pending = (pending + str(event.get("stream", ""))).split("\n")
        # Output without a newline is passed on in pieces: it would fill the memory.
        if len(pending) > MAX_LINE:
            complete = [*complete, pending]
            pending = ""
        yield from ((_shown(text), {}) for text in complete)
        if "error" in event:
            yield _shown(pending), event
            pending = ""
        if _shown(pending).strip():
            passing(_shown(pending))
    if pending:
        yield _shown(pending), {}


def _shown(line: str) -> str:
    """Return a line with carriage returns as a terminal shows it."""
    return line.rstrip("\r").rpartition("\r")[2]


def _failed(event: dict[str, Any], step: str, lines: Iterable[str], log: Path) -> FarmError:
    """Return the error for a failed step of a Dockerfile.

    Docker's own text repeats the whole command: the exit code says enough.
    """
    code = (event.get("errorDetail") or {}).get("code")
    if len(step) > STEP_WIDTH:
        step = step[:STEP_WIDTH] + " […]"
    if code is None:
        failure = failures.read([*lines, str(event["error"])])
        how = "failed"
    else:
        # Without the first line, which is the step's own: its command may hold the words of an
        # error.
        failure = failures.read(list(lines)[1:])
        how = f"ended with exit code {code}"
    message = f"the toolchain image cannot be built: {step}\n  {how}:\n{failure.text}"
    hint = failure.hint(log)
    if failure.recipe:
        return BuildFailedError(message, hint=hint)
    return InfrastructureError(message, hint=hint)
