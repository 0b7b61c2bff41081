"""Base images: a local tag if there is one, else a registry pull with a short limit, else made with debootstrap.

Farms are often cut off from registries.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import docker
import docker.errors

from farm.base import failures
from farm.base.errors import InfrastructureError
from farm.base.heartbeat import Pulse, megabytes
from farm.base.temporary import temporary_folder
from farm.base.text import duration, log_line
from farm.catalog.models import DebianRelease
from farm.engines import images
from farm.engines.docker import ERRORS, guard

Line = Callable[[str], None]

KEPT_LINES = 5000
"""Of debootstrap's output, for the search for its first error."""

ARCHITECTURES = {"x86_64": ("amd64", "amd64"), "aarch64": ("arm64", "arm64v8")}
"""A machine as Debian names it, and as Docker Hub does in the names of its images."""
SCRIPTS = {"debian": "sid", "ubuntu": "gutsy"}
"""The script of debootstrap to which names of all newer releases link. It refuses a release that is newer than itself
(Debian 12's: forky, noble), unless it is told the script."""


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
    """The id of a base image for `release`.

    What the farm does goes to `note`, output and bytes to `line`.
    `emulated`: the machine that the image is for, where that is not the engine's; such an image has another name.

    Raises:
        InfrastructureError: None of the three ways works; the message says what was tried.
    """
    note = note or line
    own, image = f"farm/base:{name}", release.image
    if emulated:
        own, image = f"{own}-{emulated}", f"{ARCHITECTURES[emulated][1]}/{image}"
    if found := _here(client, (image, own), note):
        return found
    # Of two base images of one name would come two toolchains, since those are made for the id.
    with images.alone(client, own, line=line, note=note):
        if found := _here(client, (image, own), note):  # whoever held the lock has made it
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
            note(f"base image: making {own} with debootstrap ({'minutes' if emulated else 'about 30 s'})")
            with images.unnamed(client) as made:
                made.append(_debootstrap(client, release, emulated, mirror, line))
                return images.tag_first(client, made[-1], own, note)
        tried.append(problem)
    raise InfrastructureError(
        "no base image: " + "; ".join(tried),
        hint=f"`docker load` or `docker tag` an image of {release.distribution} {release.suite} as {image}, "
        "or run as root where debootstrap is installed",
    )


def _here(client: docker.DockerClient, tags: Iterable[str], note: Line) -> str | None:
    for tag in tags:
        if found := images.image_id(client, tag):
            note(f"base image: {tag} is here")
            return found
    return None


def _pull(client: docker.DockerClient, name: str, timeout_s: int, line: Line, emulated: str | None) -> str | None:
    """Pull an image; the reason when that fails."""
    repository, _, tag = name.partition(":")
    layers: dict[str, int] = {}
    patient = client.api.timeout
    machine = f"linux/{ARCHITECTURES[emulated][0]}" if emulated else None
    # docker-py has one time limit for all requests, and it is on the silence between two events, not on the whole pull.
    client.api.timeout = timeout_s
    try:
        with Pulse(line, lambda silent: f"base image: the registry is silent for {duration(silent)}") as pulse:
            for event in client.api.pull(repository, tag=tag, stream=True, decode=True, platform=machine):
                # A pull that fails answers with status 200 and says so in its stream.
                if "error" in event:
                    return f"pull of {name} failed: {event['error']}"
                if event.get("status") == "Downloading":
                    layers[str(event.get("id"))] = int((event.get("progressDetail") or {}).get("current") or 0)
                pulse.passing(f"base image: {event.get('status')}, {megabytes(sum(layers.values()))}")
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
    client: docker.DockerClient, release: DebianRelease, emulated: str | None, mirror: str | None, line: Line
) -> str:
    """The id of a base image that has no name yet."""
    with temporary_folder("farm-base-") as folder:
        root = folder / "root"
        _spare_syncs(root)
        command = ["debootstrap", "--variant=minbase", f"--keyring={release.keyring}"]
        command += [f"--arch={ARCHITECTURES[emulated][0]}"] if emulated else []
        command += [f"--components={','.join(release.sections)}", release.suite, str(root)]
        # The setting names a mirror of Debian; empty is the script's own.
        command += [(mirror if release.distribution == "debian" else None) or "", SCRIPTS[release.distribution]]

        def silence(silent: float) -> str:
            return f"debootstrap: no output for {duration(silent)}; {megabytes(_size(root))} written so far"

        with Pulse(line, silence) as pulse:
            code, output = _said(command, pulse)
        if code:
            failure = failures.read(output)
            raise InfrastructureError(
                f"debootstrap {release.suite} failed:\n{failure.text}",
                hint=failure.advice or f"is a mirror of {release.distribution} reachable?",
            )
        # The packages that debootstrap downloaded are of no use in the image; apt wants the empty `partial`.
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        packed = folder / "root.tar"
        with (
            Pulse(line, lambda _: f"base image: packed {megabytes(packed.stat().st_size)}"),
            tarfile.open(packed, "w") as archive,
        ):
            archive.add(root, arcname=".")
        size = packed.stat().st_size
        with (
            packed.open("rb") as stream,
            Pulse(line, lambda _: f"base image: {megabytes(stream.tell(), size)} given to Docker"),
        ):
            # Not import_image_from_stream: it announces chunks, and requests sends a file in one piece.
            answer = client.api.import_image(stream)
    # A line of JSON for each thing that it does; the last one holds the id.
    return str(json.loads(answer.splitlines()[-1])["status"])


def _spare_syncs(root: Path) -> None:
    """Tells dpkg not to wait for the disk at each file, as Docker's own images of Debian and Ubuntu do.

    An image that a power cut spoils is made again.
    """
    folder = root
    for part in ("", "etc", "dpkg", "dpkg.cfg.d"):
        folder /= part
        folder.mkdir()
        folder.chmod(0o755)  # whatever the umask: debootstrap leaves folders that are there as they are
    (folder / "farm").write_text("force-unsafe-io\n")
    (folder / "farm").chmod(0o644)


def _size(folder: Path) -> int:
    """Bytes of the files below a folder, in which another program makes and removes files meanwhile."""
    size = 0
    for top, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                size += Path(top, name).lstat().st_size
    return size


def _said(command: list[str], pulse: Pulse) -> tuple[int, deque[str]]:
    """Runs debootstrap: its exit code and the newest lines of its output, which go to `pulse`."""
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as child:
        assert child.stdout
        for text in child.stdout:
            kept.append(text.rstrip("\n"))
            pulse.passing(f"debootstrap: {log_line(text)}")
    return child.returncode, kept
