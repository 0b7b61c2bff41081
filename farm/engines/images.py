"""Toolchain images: made from a rendered context, tagged by the hash of what defines them, reused."""

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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import docker
import docker.errors
import requests
from docker.utils.build import create_archive

from farm.base import failures, outputs
from farm.base.errors import BuildFailedError, FarmError, InfrastructureError, NoRunnerError
from farm.base.heartbeat import Pulse, megabytes
from farm.base.interrupts import held
from farm.base.temporary import temporary_folder
from farm.base.text import duration, nearest
from farm.engines import once
from farm.engines.docker import guard
from farm.engines.package_counts import PackageCounts
from farm.platforms.facts import DEFAULT

Line = Callable[[str], None]
Progress = Callable[[int, int], object]

KEPT_LINES = 5000
"""Of the output of an image's build, for the search for its first error."""
MAX_LINE = 1 << 16
STEP_WIDTH = 100
NAMES_S = 60
UNKNOWN_PACKAGE = re.compile(r"E: (?:Unable to locate package (\S+)|Package '([^']+)' has no installation candidate)")
"""As apt 2.6 and 3.0 say it."""
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
        wheels: Gives, when there is no image yet, where the wheels are (by file name) that the context's
            `scripts/toolkit.json` names; what it takes out of them comes into the context as `root/`.
    """

    repository: str
    context: Mapping[str, str]
    digest: str
    base: str
    labels: Mapping[str, str]
    archives: str | None = None
    wheels: Callable[[], Mapping[str, Path]] = dict

    @property
    def tag(self) -> str:
        # The id of the base image, not its tag: where that is moved to a newer image, the toolchain is made anew.
        return f"{self.repository}:{hashlib.sha256(f'{self.digest} {self.base}'.encode()).hexdigest()[:16]}"

    @property
    def arguments(self) -> dict[str, str]:
        """Of the Dockerfile."""
        made = {"BASE": self.base}
        # Docker warns of an argument that no step takes.
        if self.archives and "ARG FARM_ARCHIVES\n" in self.context["Dockerfile"]:
            made["FARM_ARCHIVES"] = self.archives
        return made


@guard
def ensure_image(
    client: docker.DockerClient,
    wanted: Toolchain,
    *,
    log: Path,
    line: Line,
    note: Line | None = None,
    progress: Progress = lambda *_: None,
) -> Image:
    """The image, made where the engine does not have it yet.

    The build's output goes to `log` whole and to `line` line by line; the steps of the Dockerfile go to `note`, the
    count of apt's packages to `progress`.

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
    with once.alone(client, tag, line=line, note=note, log=log):
        if found := _here(client, tag, note):  # whoever held the lock has made it
            return found
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            once.unnamed(client) as made,
            _context_tar(wanted.context, wanted.wheels()) as archive,
            log.open("w", encoding="utf-8") as stream,
            _Doing(client, archive, line) as doing,
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
            try:
                _follow(_noting(events, made), stream, doing, note, log, progress)
            except UnknownPackagesError as error:
                raise error.with_nearest(_package_names(client, wanted.base)) from error
            first = once.name(client, made[-1], tag, note)
    return Image(tag, first, reused=first != made[-1])


def _here(client: docker.DockerClient, tag: str, note: Line) -> Image | None:
    found = once.named(client, tag)
    if found is None:
        return None
    note(f"{tag} is here")
    return Image(tag, found, reused=True)


class UnknownPackagesError(BuildFailedError):
    """The distribution of the base image has no packages of these names."""

    def __init__(self, message: str, *, hint: str | None = None, names: Iterable[str]) -> None:
        super().__init__(message, hint=hint)
        self.names = list(dict.fromkeys(names))

    def with_nearest(self, known: list[str]) -> BuildFailedError:
        """The error with the names in `known` that are most like each wrong one."""
        found = [f"nearest to {name}: {', '.join(near)}" for name in self.names if (near := nearest(name, known))]
        return BuildFailedError("\n  ".join([str(self), *found]), hint=self.hint)


def _package_names(client: docker.DockerClient, base: str) -> list[str]:
    """The packages that the base image's distribution has; none where they cannot be had in time."""
    ask = "apt-get update -qq >&2 && apt-cache pkgnames"
    with ExitStack() as stack:
        try:
            with held():
                container = client.containers.create(base, ["sh", "-c", ask], labels={"farm.kind": "package-names"})
                stack.callback(container.remove, force=True)
            container.start()
            container.wait(timeout=NAMES_S)
            return [str(name) for name in container.logs(stdout=True, stderr=False).decode("utf-8", "replace").split()]
        except (requests.exceptions.RequestException, docker.errors.APIError):  # the error itself counts more
            return []


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


class _Doing(Pulse):
    """The state of an image's build while it prints nothing: Docker is asked about the container of the step.

    Args:
        archive: The context, which is sent to the engine before the first step.
    """

    def __init__(self, client: docker.DockerClient, archive: IO[bytes], line: Line) -> None:
        super().__init__(line, self._asked)
        self._client, self._archive = client, archive
        self._size = os.fstat(archive.fileno()).st_size
        self.container: str | None = None

    def _asked(self, silent: float) -> str | None:
        if self.container is None:
            sent = self._archive.tell()
            return f"{megabytes(sent, self._size)} given to Docker" if sent < self._size else None
        try:
            state = self._client.api.inspect_container(self.container)["State"]["Status"]
            # Saving a layer of gigabytes takes long, and Docker says nothing of it.
            if state != "running":
                return f"the step has ended; Docker saves its files, for {duration(silent)} so far"
            stats = self._client.api.stats(self.container, stream=False, one_shot=True)
        except docker.errors.NotFound:
            return None
        received = sum(int(each["rx_bytes"]) for each in (stats.get("networks") or {}).values())
        cpu = stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9
        return f"no output for {duration(silent)}; received {megabytes(received)}, {duration(cpu)} of CPU so far"


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
    doing: _Doing,
    note: Line,
    log: Path,
    progress: Progress = lambda *_: None,
) -> None:
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    step = "?"
    counts = PackageCounts()
    for text, event in _lines(events, doing.passing):
        stream.write(text + "\n")
        # docker-py builds with the classic builder, which prints this line before each step; BuildKit prints others.
        # Podman's API prints `STEP 1/9: …`.
        if re.match(r"(Step \d+/\d+ |STEP \d+/\d+):", text):
            step = text
            lines.clear()
            progress(0, 0)
            note(text)
        elif text.strip():
            if started := re.fullmatch(r" ---> Running in ([0-9a-f]{12,64})", text):
                doing.container = started[1]
            if counted := counts.line(text):
                progress(*counted)
            doing.line(text)
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
    if failure.recipe:
        unknown = [a or b for a, b in UNKNOWN_PACKAGE.findall("\n".join(failure.lines))]
        return UnknownPackagesError(message, hint=failure.hint(log), names=unknown)
    return InfrastructureError(message, hint=failure.hint(log))
