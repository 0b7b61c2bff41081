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
import subprocess
import tarfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path, PurePosixPath
from typing import Any

import docker
import docker.errors
import requests
from docker.utils.build import create_archive

from farm.base import failures, outputs
from farm.base.errors import BuildFailedError, FarmError, InfrastructureError, NoRunnerError
from farm.base.heartbeat import Heartbeat, megabytes
from farm.base.interrupts import deferred_interrupts
from farm.base.locks import lock
from farm.base.temporary import temporary_folder
from farm.base.text import duration, log_line
from farm.catalog.models import DebianRelease
from farm.engines.docker import ERRORS, guard, machine_of, system_of
from farm.platforms.facts import DEFAULT, facts

Line = Callable[[str], None]


def image_id(client: docker.DockerClient, tag: str) -> str | None:
    """The id of the image that has a name; None: there is none."""
    try:
        return str(client.images.get(tag).id)
    except docker.errors.ImageNotFound:
        return None


def _here(
    client: docker.DockerClient, tags: Iterable[str], note: Line, prefix: str = ""
) -> str | None:
    """The id of the image that has the first of these names that the engine knows."""
    for tag in tags:
        if found := image_id(client, tag):
            note(f"{prefix}{tag} is here")
            return found
    return None


@contextlib.contextmanager
def alone(
    client: docker.DockerClient, tag: str, *, line: Line, note: Line, log: Path | None = None
) -> Iterator[None]:
    """One run of this user at a time makes the image `tag` on an engine; whoever comes second
    waits.

    That it waits, and for whom (run, project and log of the other), goes to `note`; for how long to
    `line`. Where no lock can be had (a home that cannot be written, a file system without locks),
    no one waits.
    """
    try:
        folder = (
            Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
            / "torch-farm"
            / "images"
        )
        folder.mkdir(parents=True, exist_ok=True)
        # It stays: whoever opened one that was removed would hold it beside the holder of the new
        # one. "a": whoever waits must not cut what the holder wrote.
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
    """This process for another one that waits for it: `run ID (process 12, log: FILE)`; FILE names
    the project.
    """
    what = f"process {os.getpid()}" + (f", log: {log}" if log else "")
    # Logs are in the folder of their run: artifacts/runs/ID/image.log.
    if log and log.parent.parent.name == "runs":
        return f"run {log.parent.name} ({what})"
    return what


@contextlib.contextmanager
def unnamed(client: docker.DockerClient) -> Iterator[list[str]]:
    """A list for the ids of images that are made without a name; the last goes if it has none and
    is in no use.
    """
    made: list[str] = []
    try:
        yield made
    finally:
        for image in made[-1:]:
            # Gone (404), in use (409), or the engine does not answer: then its own error counts.
            with (
                deferred_interrupts(),
                contextlib.suppress(docker.errors.APIError, requests.exceptions.RequestException),
            ):
                if not client.images.get(image).tags:
                    client.images.remove(image)


def tag_first(client: docker.DockerClient, made: str, tag: str, note: Line) -> str:
    """Gives an image that has no name its tag, unless another one got that meanwhile; the id of the
    one that has it.

    The first keeps it: its project may use it already. Docker knows no tagging on a condition:
    within some milliseconds a later one may take the tag, an image without a name stays, and both
    builds go on.
    """
    first = image_id(client, tag)
    if first is None:
        repository, _, version = tag.rpartition(":")
        client.images.get(made).tag(repository, version)
        return made
    if first != made:
        note(f"{tag} was made by another run meanwhile; this one is removed")
    return first


KEPT_LINES = (
    5000  # of the output of an image's build or of debootstrap, for the search for its first error
)
MAX_LINE = 1 << 16
STEP_WIDTH = 100
TOOLKIT = "scripts/toolkit.json"
PROJECT_LABEL = "farm.project"  # on an image: the project that made it, for `farm clean`


@dataclass(frozen=True)
class Image:
    """A toolchain image: its tag, its id, and whether it was there already."""

    tag: str
    id: str
    reused: bool


@dataclass(frozen=True)
class Toolchain:
    """The inputs of a toolchain image; `context`: path -> text, whose sha256 is `digest`; `base`:
    the base image's id.

    `archives`: the URL of a folder that steps ask first for what they download; `emulated`: the
    engine's machine is another than the image's; `wheels`: gives, when there is no image yet, the
    wheels (by file name) that the context's `scripts/toolkit.json` names; what it takes out of them
    comes into the context as `root/`.
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
        return f"{self.repository}:{hashlib.sha256(f'{self.digest} {self.base}'.encode()).hexdigest()[:16]}"

    @property
    def arguments(self) -> dict[str, str]:
        """Of the Dockerfile."""
        values = {"FARM_ARCHIVES": self.archives, "FARM_EMULATED": "1" if self.emulated else None}
        # Docker warns of an argument that no step takes.
        named = {
            name: text
            for name, text in values.items()
            if text and f"ARG {name}\n" in self.context["Dockerfile"]
        }
        return {"BASE": self.base, **named}


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
def pulled_base(
    client: docker.DockerClient,
    names: Sequence[str],
    *,
    pull_timeout_s: int,
    line: Line,
    note: Line,
) -> str:
    """Return the id of a base image: the first name that the engine has, else the first that it
    can pull.

    Raises:
        InfrastructureError: None can be pulled.
    """
    with alone(client, f"farm/base:{names[0].rpartition(':')[2]}", line=line, note=note):
        if image := _here(client, names, note, "base image: "):
            return image
        problems = []
        for name in names:
            note(f"base image: pulling {name} (at most {pull_timeout_s} s of silence)")
            problem = _pull(client, name, pull_timeout_s, line, None)
            if problem is None:
                return str(client.images.get(name).id)
            problems.append(problem)
    raise InfrastructureError(
        "no base image: " + "; ".join(problems),
        hint="`docker pull` must reach the registry from that machine; or `docker load` one there",
    )


@guard
def ensure_image(
    client: docker.DockerClient,
    wanted: Toolchain,
    *,
    log: Path,
    line: Line,
    note: Line | None = None,
) -> Image:
    """The image, made where the engine does not have it; its output goes to `log` and `line`, steps
    go to `note`.

    NoRunnerError: the engine cannot run Linux images; InfrastructureError: a step failed, with its
    first error and the cause where known; BuildFailedError: the distribution lacks a package of the
    recipe, or a wheel what is taken out of it.
    """
    note = note or line
    check_system(client, wanted.system)
    tag = wanted.tag
    with alone(client, tag, line=line, note=note, log=log):
        if found := _here(client, [tag], note):
            return Image(tag, found, reused=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            unnamed(client) as made,
            _context_tar(wanted.context, wanted.wheels()) as archive,
            log.open("w", encoding="utf-8") as stream,
            Heartbeat(line, lambda silent: f"no output for {duration(silent)}") as heartbeat,
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
                **wanted.options,
            )
            _follow(_noting(events, made), stream, heartbeat, note, log)
            first = tag_first(client, made[-1], tag, note)
    return Image(tag, first, reused=first != made[-1])


def _context_tar(context: Mapping[str, str], wheels: Mapping[str, Path]) -> Any:
    with temporary_folder("farm-context-") as folder, outputs.writing(folder, outputs.ROOM):
        for name, text in context.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        files = sorted(context)
        for part in json.loads(context[TOOLKIT])["parts"] if wheels else ():
            if "wheel" in part:
                files += [
                    f"root/{name}"
                    for name in _take(wheels[part["wheel"]], part["members"], folder / "root")
                ]
        # It packs into a temporary file of its own, which outlives this folder.
        return create_archive(str(folder), files=files)


def _take(wheel: Path, members: Mapping[str, str], root: Path) -> list[str]:
    """Unpacks members that match a pattern into its folder below `root`, flat but for `…/**`; what
    is there then.
    """
    taken = []
    with zipfile.ZipFile(wheel) as archive:
        for pattern, folder in members.items():
            # fnmatch's `*` matches slashes as well, unlike the shell's.
            found = [
                info for info in archive.infolist() if fnmatch.fnmatchcase(info.filename, pattern)
            ]
            if not found:
                raise BuildFailedError(f"{wheel.name} holds nothing that matches {pattern}")
            top = pattern.removesuffix("**") if pattern.endswith("/**") else None
            for info in found:
                if info.is_dir():
                    continue
                inside = PurePosixPath(info.filename if top else PurePosixPath(info.filename).name)
                if ".." in inside.parts or inside.is_absolute():
                    raise BuildFailedError(
                        f"{wheel.name} holds {info.filename!r}, which leads out of its folder"
                    )
                taken.append(
                    str(PurePosixPath(folder) / (inside.relative_to(top) if top else inside))
                )
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
    """Whole lines of a build's output, which comes in pieces; with the last before an error the
    event that holds it.
    """
    rest = ""
    for event in events:
        *whole, rest = (rest + str(event.get("stream", ""))).split("\n")
        # Output without a newline is passed on in pieces: it would fill the memory.
        if len(rest) > MAX_LINE:
            whole = [*whole, rest]
            rest = ""
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
    """The error of a step of a Dockerfile. Docker's own text repeats the whole command, so its exit
    code will do.
    """
    code = (event.get("errorDetail") or {}).get("code")
    short = step if len(step) <= STEP_WIDTH else step[:STEP_WIDTH] + " […]"
    if code is None:
        failure = failures.read([*lines, str(event["error"])])
        how = "failed"
    else:
        # Without the first line, which is the step's own: its command may hold the words of an
        # error.
        failure = failures.read(list(lines)[1:])
        how = f"ended with exit code {code}"
    message = f"the toolchain image cannot be built: {short}\n  {how}:\n{failure.text}"
    kind = BuildFailedError if failure.recipe else InfrastructureError
    return kind(message, hint=failure.hint(log))


ARCHITECTURES = {"x86_64": ("amd64", "amd64"), "aarch64": ("arm64", "arm64v8")}
"""A machine as Debian names it, and as Docker Hub does in the names of its images."""
SCRIPTS = {"debian": "sid", "ubuntu": "gutsy"}
"""The script of debootstrap to which names of all newer releases link. It refuses a release that is
newer than itself (Debian 12's: forky, noble), unless it is told the script.
"""


@guard
def base_image(
    client: docker.DockerClient,
    name: str,
    release: DebianRelease,
    *,
    emulated: str | None = None,
    pull_timeout_s: int,
    mirror: str | None,
    line: Line,
    note: Line | None = None,
) -> str:
    """The id of a base image for `release`; what the farm does goes to `note`, output and bytes to
    `line`.

    `emulated`: the machine that it is for, where that is not the engine's; such an image has
    another name. InfrastructureError: none of the three ways works; the message says what was
    tried.
    """
    note = note or line
    own = f"farm/base:{name}"
    image = release.image
    if emulated:
        own = f"{own}-{emulated}"
        image = f"{ARCHITECTURES[emulated][1]}/{image}"
    # Of two base images of one name would come two toolchains, since those are made for the id.
    with alone(client, own, line=line, note=note):
        if found := _here(client, [image, own], note, "base image: "):
            return found
        tried = [f"no local tag {image} or {own}"]
        note(f"base image: pulling {image} (at most {pull_timeout_s} s of silence)")
        problem = _pull(client, image, pull_timeout_s, line, emulated)
        if problem is None:
            return str(client.images.get(image).id)
        note(f"base image: {problem}")
        tried.append(problem)
        problem = _cannot_debootstrap(release)
        if problem is None:
            note(
                f"base image: making {own} with debootstrap "
                f"({'minutes' if emulated else 'about 30 s'})"
            )
            with unnamed(client) as made:
                made.append(_debootstrap(client, release, emulated, mirror, line))
                return tag_first(client, made[-1], own, note)
        tried.append(problem)
    raise InfrastructureError(
        "no base image: " + "; ".join(tried),
        hint=f"`docker load` or `docker tag` an image of {release.distribution} {release.suite} "
        f"as {image}, "
        "or run as root where debootstrap is installed",
    )


def _pull(
    client: docker.DockerClient, name: str, timeout_s: int, line: Line, emulated: str | None
) -> str | None:
    """Pull an image; the reason when that fails."""
    repository, _, tag = name.rpartition(":")
    layers: dict[str, int] = {}
    patient = client.api.timeout
    machine = f"linux/{ARCHITECTURES[emulated][0]}" if emulated else None
    # docker-py has one time limit for all requests, and it is on the silence between two events,
    # not on the whole pull.
    client.api.timeout = timeout_s
    try:
        with Heartbeat(
            line, lambda silent: f"base image: the registry is silent for {duration(silent)}"
        ) as heartbeat:
            for event in client.api.pull(
                repository, tag=tag, stream=True, decode=True, platform=machine
            ):
                # A pull that fails answers with status 200 and says so in its stream.
                if "error" in event:
                    return f"pull of {name} failed: {event['error']}"
                if event.get("status") == "Downloading":
                    layers[str(event.get("id"))] = int(
                        (event.get("progressDetail") or {}).get("current") or 0
                    )
                heartbeat.overwrite(
                    f"base image: {event.get('status')}, {megabytes(sum(layers.values()))}"
                )
    except ERRORS as error:
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


def _debootstrap(
    client: docker.DockerClient,
    release: DebianRelease,
    emulated: str | None,
    mirror: str | None,
    line: Line,
) -> str:
    """The id of a base image that has no name yet."""
    with temporary_folder("farm-base-") as folder:
        root = folder / "root"
        _spare_syncs(root)
        command = ["debootstrap", "--variant=minbase", f"--keyring={release.keyring}"]
        if emulated:
            command.append(f"--arch={ARCHITECTURES[emulated][0]}")
        command += [f"--components={','.join(release.sections)}", release.suite, str(root)]
        # The setting names a mirror of Debian; empty is the script's own.
        command += [
            (mirror if release.distribution == "debian" else None) or "",
            SCRIPTS[release.distribution],
        ]

        def silence(silent: float) -> str:
            return (
                f"debootstrap: no output for {duration(silent)}; {megabytes(_size(root))} "
                "written so far"
            )

        output: deque[str] = deque(maxlen=KEPT_LINES)
        with (
            Heartbeat(line, silence) as heartbeat,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as child,
        ):
            assert child.stdout
            for text in child.stdout:
                output.append(text.rstrip("\n"))
                heartbeat.overwrite(f"debootstrap: {log_line(text)}")
        if child.returncode:
            failure = failures.read(output)
            raise InfrastructureError(
                f"debootstrap {release.suite} failed:\n{failure.text}",
                hint=failure.advice or f"is a mirror of {release.distribution} reachable?",
            )
        # The packages that debootstrap downloaded are of no use in the image; apt wants the empty
        # `partial`.
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        packed = folder / "root.tar"
        with (
            Heartbeat(line, lambda _: f"base image: packed {megabytes(packed.stat().st_size)}"),
            tarfile.open(packed, "w") as archive,
        ):
            archive.add(root, arcname=".")
        size = packed.stat().st_size
        with (
            packed.open("rb") as stream,
            Heartbeat(
                line, lambda _: f"base image: {megabytes(stream.tell(), size)} given to Docker"
            ),
        ):
            # Not import_image_from_stream: it announces chunks, and requests sends a file in one
            # piece.
            answer = client.api.import_image(stream)
    # A line of JSON for each thing that it does; the last one holds the id.
    return str(json.loads(answer.splitlines()[-1])["status"])


def _spare_syncs(root: Path) -> None:
    """Tells dpkg not to wait for the disk at each file, as Docker's own images do: a spoilt image
    is made again.
    """
    folder = root
    for part in ("", "etc", "dpkg", "dpkg.cfg.d"):
        folder /= part
        folder.mkdir()
        folder.chmod(
            0o755
        )  # whatever the umask: debootstrap leaves folders that are there as they are
    (folder / "farm").write_text("force-unsafe-io\n")
    (folder / "farm").chmod(0o644)


def _size(folder: Path) -> int:
    """Bytes of the files below a folder, in which another program makes and removes files
    meanwhile.
    """
    size = 0
    for top, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                size += Path(top, name).lstat().st_size
    return size


CODE = {
    "x86_64": (62, "31ff b83c000000 0f05"),  # xor edi, edi; mov eax, 60; syscall
    "aarch64": (183, "000080d2 a80b80d2 010000d4"),  # mov x0, #0; mov x8, #93; svc #0
}
"""ELF's number of a machine, and its code for exit(0)."""
TRY_S = 60


@guard
def emulates(client: docker.DockerClient, machine: str) -> bool:
    """True if an engine runs `machine` by emulation, False if that is its own; NoRunnerError: it
    does neither.
    """
    found = machine_of(client)
    if found == machine:
        return False
    problem = _try(client, machine)
    if problem is None:
        return True
    raise NoRunnerError(
        f"the plan is for {machine}, the Docker engine runs on {found}, which has no emulator "
        f"registered: {problem}",
        hint="register qemu on the engine's machine (Debian: apt-get install qemu-user-static; "
        "docs/how-to/runners.md), "
        f"or give a runner in ci/runners.yaml the URL of a Docker engine on {machine}",
    )


def _try(client: docker.DockerClient, machine: str) -> str | None:
    """Why the smallest program of a machine does not run in a container; None: it does."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        program = exit_program(machine)
        member = tarfile.TarInfo("run")
        member.size = len(program)
        member.mode = 0o755
        tar.addfile(member, io.BytesIO(program))
    with unnamed(client) as made, ExitStack() as stack:
        with deferred_interrupts():
            answer = client.api.import_image(archive.getvalue())
            made.append(str(json.loads(answer.splitlines()[-1])["status"]))
            container = client.containers.create(
                made[-1], ["/run"], network_mode="none", labels={"farm.kind": "emulator"}
            )
            stack.callback(container.remove, force=True)
        try:
            container.start()
            code = container.wait(timeout=TRY_S)["StatusCode"]
        except (docker.errors.APIError, requests.exceptions.RequestException) as error:
            return str(getattr(error, "explanation", None) or error)
        # The program has no other end: another code is that of runc, which could not start it.
        words = container.logs().decode("utf-8", "replace").strip().splitlines()
        if code == 0:
            return None
        return words[-1] if words else f"exit code {code}"


def exit_program(machine: str) -> bytes:
    """A Linux program of a machine that ends with exit code 0: an ELF header, one segment and three
    instructions.
    """
    number, words = CODE[machine]
    code = bytes.fromhex(words)
    start = 0x400000
    size = 64 + 56 + len(code)
    fields = (
        *((2, 2), (number, 2), (1, 4), (start + 64 + 56, 8), (64, 8), (0, 8), (0, 4)),
        *((64, 2), (56, 2), (1, 2), (0, 2), (0, 2), (0, 2)),
        *((1, 4), (5, 4), (0, 8), (start, 8), (start, 8), (size, 8), (size, 8), (0x10000, 8)),
    )
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    return (
        ident
        + b"".join(starmap(lambda value, width: value.to_bytes(width, "little"), fields))
        + code
    )
