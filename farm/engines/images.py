"""Toolchain images: made from a rendered context, tagged by the hash of what defines them, reused.

The base image is a local tag if there is one, else a registry pull with a short time limit, else made with
debootstrap: farms are often cut off from registries.
"""

import fnmatch
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import docker
import docker.errors
import requests
from docker.utils.build import create_archive

from farm import failures
from farm.catalog import DebianRelease
from farm.errors import BuildFailedError, InfrastructureError, NoRunnerError
from farm.platforms.facts import DEFAULT, facts

Line = Callable[[str], None]

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


def machine_of(client: docker.DockerClient) -> str:
    """The machine that an engine's containers run on, by the farm's name."""
    return facts(DEFAULT).machine(str(client.info().get("Architecture")))


def check_machine(client: docker.DockerClient, machine: str) -> None:
    """Refuse to build for a machine that the engine's is not: an emulated build of PyTorch takes days.

    Raises:
        NoRunnerError: The engine runs on another architecture than `machine` (`x86_64`, `aarch64`).
    """
    found = machine_of(client)
    if found != machine:
        raise NoRunnerError(
            f"the plan is for {machine}, the Docker engine runs on {found}",
            hint=f"give the runner in ci/runners.yaml the URL of a Docker engine on {machine}",
        )


def base_image(
    client: docker.DockerClient,
    name: str,
    release: DebianRelease,
    *,
    pull_timeout_s: int,
    mirror: str | None,
    line: Line,
) -> str:
    """The id of a base image for `release`; `line` gets a line for each thing that happens.

    Raises:
        InfrastructureError: None of the three ways works; the message says what was tried.
    """
    own = f"farm/base:{name}"
    for tag in (release.image, own):
        try:
            image = client.images.get(tag)
        except docker.errors.ImageNotFound:
            continue
        line(f"base image: {tag} is here")
        return str(image.id)
    tried = [f"no local tag {release.image} or {own}"]
    line(f"base image: pulling {release.image} (at most {pull_timeout_s} s of silence)")
    problem = _pull(client, release.image, pull_timeout_s)
    if problem is None:
        return str(client.images.get(release.image).id)
    line(f"base image: {problem}")
    tried.append(problem)
    problem = _cannot_debootstrap(release)
    if problem is None:
        line(f"base image: making {own} with debootstrap (about 30 s)")
        return _debootstrap(client, own, release, mirror)
    tried.append(problem)
    raise InfrastructureError(
        "no base image: " + "; ".join(tried),
        hint=f"`docker load` or `docker tag` an image of {release.distribution} {release.suite} as {release.image}, "
        "or run as root where debootstrap is installed",
    )


def _pull(client: docker.DockerClient, name: str, timeout_s: int) -> str | None:
    """Pull an image; the reason when that fails."""
    repository, _, tag = name.partition(":")
    patient = client.api.timeout
    # docker-py has one time limit for all requests, and it is on the silence between two events, not on the whole pull.
    client.api.timeout = timeout_s
    try:
        for event in client.api.pull(repository, tag=tag, stream=True, decode=True):
            # A pull that fails answers with status 200 and says so in its stream.
            if "error" in event:
                return f"pull of {name} failed: {event['error']}"
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        return f"pull of {name} failed: {error}"
    finally:
        client.api.timeout = patient
    return None


def _cannot_debootstrap(release: DebianRelease) -> str | None:
    if os.geteuid() != 0:
        return "debootstrap needs root"
    if not shutil.which("debootstrap"):
        return "debootstrap is not installed (Debian package debootstrap)"
    if not Path(release.keyring).exists():
        return f"{release.keyring} is absent (its package: {release.keyring_package})"
    return None


def _debootstrap(client: docker.DockerClient, tag: str, release: DebianRelease, mirror: str | None) -> str:
    with tempfile.TemporaryDirectory(prefix="farm-base-") as folder:
        root = Path(folder, "root")
        command = ["debootstrap", "--variant=minbase", f"--keyring={release.keyring}"]
        command += [f"--components={','.join(release.sections)}", release.suite, str(root)]
        if mirror and release.distribution == "debian":  # the setting names a mirror of Debian
            command.append(mirror)
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if result.returncode:
            failure = failures.read([*result.stdout.splitlines(), *result.stderr.splitlines()])
            raise InfrastructureError(
                f"debootstrap {release.suite} failed:\n{failure.text}",
                hint=failure.advice or f"is a mirror of {release.distribution} reachable?",
            )
        # The packages that debootstrap downloaded are of no use in the image; apt wants the empty `partial`.
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        packed = Path(folder, "root.tar")
        with tarfile.open(packed, "w") as archive:
            archive.add(root, arcname=".")
        repository, _, name = tag.partition(":")
        client.api.import_image(src=str(packed), repository=repository, tag=name)
    return str(client.images.get(tag).id)


def ensure_image(
    client: docker.DockerClient,
    *,
    repository: str,
    context: Mapping[str, str],
    context_digest: str,
    base: str,
    labels: dict[str, str],
    log: Path,
    line: Line,
    note: Line | None = None,
    wheels: Callable[[], Mapping[str, Path]] = dict,
) -> Image:
    """The toolchain image of a rendered context (path -> text) on the base image id `base`.

    The build's output goes to `log` whole and to `line` line by line; the steps of the Dockerfile go to `note`.
    `wheels` gives, when there is no image yet, where the wheels are (by file name) that the context's
    `scripts/toolkit.json` names; what it takes out of them comes into the context as `root/`.

    Raises:
        NoRunnerError: The engine cannot run Linux images.
        InfrastructureError: A step of the image failed; the message holds its first error, and the cause where known.
        BuildFailedError: A wheel does not hold what the toolkit takes out of it.
    """
    note = note or line
    if client.info().get("OSType") != DEFAULT:
        raise NoRunnerError("the Docker engine does not run Linux containers", hint="switch it to Linux containers")
    # The id of the base image, not its tag: where that is moved to a newer image, the toolchain is made anew.
    digest = hashlib.sha256(f"{context_digest} {base}".encode()).hexdigest()
    tag = f"{repository}:{digest[:16]}"
    try:
        image = client.images.get(tag)
        note(f"{tag} is here")
        return Image(tag, str(image.id), reused=True)
    except docker.errors.ImageNotFound:
        pass
    log.parent.mkdir(parents=True, exist_ok=True)
    with _context_tar(context, wheels()) as archive, log.open("w", encoding="utf-8") as stream:
        events = client.api.build(
            fileobj=archive,
            custom_context=True,
            buildargs={"BASE": base},
            tag=tag,
            labels=labels,
            # Containers of steps go, those of a step that failed too.
            rm=True,
            forcerm=True,
            decode=True,
        )
        _follow(events, stream, line, note, log)
    return Image(tag, str(client.images.get(tag).id), reused=False)


def _context_tar(context: Mapping[str, str], wheels: Mapping[str, Path]) -> Any:
    with tempfile.TemporaryDirectory(prefix="farm-context-") as folder:
        for name, text in context.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        files = sorted(context)
        for part in json.loads(context[TOOLKIT])["parts"] if wheels else ():
            if "wheel" in part:
                files += [
                    f"root/{name}" for name in _take(wheels[part["wheel"]], part["members"], Path(folder, "root"))
                ]
        # It packs into a temporary file of its own, which outlives this folder.
        return create_archive(folder, files=files)


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


def _follow(events: Iterator[dict[str, Any]], stream: io.TextIOBase, line: Line, note: Line, log: Path) -> None:
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    step = "?"
    for text, event in _lines(events):
        stream.write(text + "\n")
        # docker-py builds with the classic builder, which prints this line before each step; BuildKit prints others.
        if re.match(r"Step \d+/\d+ :", text):
            step = text
            lines.clear()
            note(text)
        elif text.strip():
            line(text)
        if text.strip():
            lines.append(text)
        if "error" in event:
            raise _failed(event, step, lines, log)


def _lines(events: Iterator[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Whole lines of a build's output; an event holds a piece of it, as the daemon happened to read it.

    With the last line before an error comes the event that holds the error; with the others an empty one.
    """
    rest = ""
    for event in events:
        *whole, rest = re.split(r"\r\n|\n|\r", rest + str(event.get("stream", "")))
        # Output without a newline is passed on in pieces: it would fill the memory.
        if len(rest) > MAX_LINE:
            whole, rest = [*whole, rest], ""
        yield from ((text, {}) for text in whole)
        if "error" in event:
            yield rest, event
            rest = ""
    if rest:
        yield rest, {}


def _failed(event: dict[str, Any], step: str, lines: Iterable[str], log: Path) -> InfrastructureError:
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
    return InfrastructureError(
        f"the toolchain image cannot be built: {short}\n  {how}:\n{failure.text}", hint=failure.hint(log)
    )
