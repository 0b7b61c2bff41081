"""Base images: there, pulled from a registry, or made of a distribution by debootstrap."""

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import docker

from farm.base import failures
from farm.base.errors import InfrastructureError
from farm.base.heartbeat import Heartbeat, megabytes
from farm.base.temporary import temporary_folder
from farm.base.text import duration, log_line
from farm.catalog.models import DebianRelease
from farm.engines.docker import ERRORS, guard
from farm.engines.images import KEPT_LINES, Line, alone, first_present, tag_first, unnamed

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
    """Return the id of a base image for a release of a distribution.

    It is one that the engine has, else one of a registry, else one that debootstrap makes.

    Args:
        client: The engine.
        name: The farm's name of the base.
        release: The release.
        emulated: The machine that the image is for, where it is not the engine's own.
        pull_timeout_s: How long a registry may be silent, in seconds.
        mirror: The mirror of Debian; None for the default.
        line: Receives output and counts of bytes.
        note: Receives what the farm does; `line` if not given.

    Raises:
        InfrastructureError: None of the ways works; the message says what was tried.
    """
    note = note or line
    tag = f"farm/base:{name}"
    image = release.image
    if emulated:
        tag = f"{tag}-{emulated}"
        image = f"{ARCHITECTURES[emulated][1]}/{image}"
    # Of two base images of one name would come two toolchains, since those are made for the id.
    with alone(client, tag, line=line, note=note):
        if existing := first_present(client, [image, tag], note, "base image: "):
            return existing
        tried = [f"no local tag {image} or {tag}"]
        note(f"base image: pulling {image} (at most {pull_timeout_s} s of silence)")
        problem = _pull(client, image, pull_timeout_s, line, emulated)
        if problem is None:
            return str(client.images.get(image).id)
        note(f"base image: {problem}")
        tried.append(problem)
        problem = _cannot_debootstrap(release)
        if problem is None:
            note(
                f"base image: making {tag} with debootstrap "
                f"({'minutes' if emulated else 'about 30 s'})"
            )
            with unnamed(client) as images:
                images.append(_debootstrap(client, release, emulated, mirror, line))
                return tag_first(client, images[-1], tag, note)
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
    """Make a base image without a name.

    Returns:
        Its id.
    """
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
    """Tell dpkg not to wait for the disk at each file, as Docker's own images do."""
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
    """Return the bytes of the files below a folder that another program is writing."""
    size = 0
    for top, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                size += Path(top, name).lstat().st_size
    return size


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
        if image := first_present(client, names, note, "base image: "):
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
