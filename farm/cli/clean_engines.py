"""What ended runs left at engines: containers, images, volumes, folders of a cluster.

A Docker engine serves many projects, so only this project's containers, images and volumes are
removed: a container carries its run as a label and an image the project that made it, a build
tree is named after the digest of its plan, a compiler cache after the project.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from farm.base.errors import FarmError
from farm.base.project import LOCAL
from farm.cli import show
from farm.run.journal import Journal
from farm.run.workspace import Workspace

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

    from farm.engines.slurm import SlurmEngine

IMAGES = "farm/toolchain"


@dataclass(frozen=True)
class Leftover:
    """Something of ended runs at an engine. `size` in bytes; 0: not known without reading it
    all.
    """

    engine: str
    kind: Literal["container", "image", "volume", "folder"]
    name: str
    size: int = 0

    def __str__(self) -> str:
        if self.kind == "folder":
            return f"Slurm: {self.name}"
        if self.engine == LOCAL:
            return f"Docker: {self.kind} {self.name}"
        return f"Docker ({self.engine}): {self.kind} {self.name}"


@dataclass(frozen=True)
class Limits:
    """The moments before which things of each kind go; None: they stay. See `Retention`."""

    runs: datetime | None
    caches: datetime | None
    logs: datetime | None
    unpublished: datetime | None
    compiler_caches: datetime | None


def is_due(moment: datetime, limit: datetime | None) -> bool:
    """True if something that ended or changed at a moment goes."""
    return limit is not None and moment <= limit


def engines_of(workspace: Workspace) -> "Iterator[tuple[str, docker.DockerClient]]":
    """This machine's Docker engine and those of ci/runners.yaml, as far as they answer."""
    from farm.engines.docker import connect
    from farm.run.backends import docker_runners

    urls: dict[str, str | None] = {LOCAL: None}
    for name, runner in docker_runners(workspace).items():
        urls[name] = runner.url
    for name, url in urls.items():
        try:
            client = connect(url)
        except FarmError as error:
            if url is not None or name != LOCAL:
                show.note(f"runner {name} is left as it is: {error}")
            continue
        with contextlib.closing(client):
            yield name, client


def in_docker(
    name: str,
    client: "docker.DockerClient",
    limits: Limits,
    workspace: Workspace,
    journal: Journal | None,
) -> list[Leftover]:
    """Leftovers of ended runs on one engine: containers, then images and volumes that nothing else
    uses.
    """
    ended = frozenset[str]()
    if journal:
        ended = journal.ended()
    unused = []
    other_containers = []
    for container in client.containers.list(all=True, ignore_removed=True):
        if _is_ended_container(container, ended, limits):
            unused.append(Leftover(name, "container", str(container.short_id)))
        else:
            other_containers.append(container)
    # An image is used by name before there is a container of it, so none is touched while a run is
    # open.
    if journal and journal.open_runs():
        return unused
    unused += _unused_images(name, client, limits, workspace, other_containers)
    volumes = volumes_of(workspace, journal, limits)
    unused += _unused_volumes(name, client, volumes, other_containers)
    return unused


def _is_ended_container(container: "Container", ended: Collection[str], limits: Limits) -> bool:
    """True for one that a run left that has ended, as a controller that was killed does.

    One that runs is somebody's: it stays.
    """
    if container.labels.get("farm.run") not in ended:
        return False
    if container.status in ("running", "paused", "restarting"):
        return False
    return is_due(datetime.fromisoformat(container.attrs["Created"]), limits.runs)


def _unused_images(
    name: str,
    client: "docker.DockerClient",
    limits: Limits,
    workspace: Workspace,
    containers: "Sequence[Container]",
) -> Iterator[Leftover]:
    """This project's images that no container uses.

    Containers that have ended count too: Docker refuses to remove their image.
    """
    from farm.engines.images import PROJECT_LABEL

    used = {container.attrs["Image"] for container in containers}
    # Not client.images.list: it asks for each image anew, and fails where someone has removed one
    # meanwhile.
    for image in client.api.images(name=IMAGES):
        is_ours = (image["Labels"] or {}).get(PROJECT_LABEL) == workspace.id
        if not is_ours or image["Id"] in used:
            continue
        if is_due(datetime.fromtimestamp(image["Created"], UTC), limits.caches):
            yield from _tags_of(name, image)


def _tags_of(name: str, image: Mapping[str, Any]) -> Iterator[Leftover]:
    for tag in image["RepoTags"] or []:
        if tag.startswith(f"{IMAGES}:"):
            yield Leftover(name, "image", tag, int(image["Size"]))


def _unused_volumes(
    name: str,
    client: "docker.DockerClient",
    volumes: Mapping[str, datetime | None],
    containers: "Sequence[Container]",
) -> Iterator[Leftover]:
    """This project's build trees and compiler caches that no container has mounted."""
    mounted = set()
    for container in containers:
        for mount in container.attrs.get("Mounts", ()):
            mounted.add(mount.get("Name"))
    for volume in client.volumes.list():
        if volume.name in mounted:
            continue
        limit = volume_limit(volumes, volume.name)
        if is_due(datetime.fromisoformat(volume.attrs["CreatedAt"]), limit):
            yield Leftover(name, "volume", volume.name)


def in_slurm(limits: Limits, workspace: Workspace, journal: Journal | None) -> list[Leftover]:
    """Leftovers in the folder that a cluster shares: jobs of ended runs; the rest where no run is
    open.
    """
    if workspace.settings.slurm is None or journal is None:
        return []
    try:
        folders = _slurm(workspace).folders()
    except FarmError as error:
        show.note(f"the folder of the cluster is left as it is: {error}")
        return []
    ended = journal.handles()
    free = not journal.open_runs()
    volumes = volumes_of(workspace, journal, limits)
    unused = []
    for folder in folders:
        kind, _, name = folder.path.partition("/")
        limit = None
        if kind == "jobs":
            if name in ended:
                limit = limits.runs
        elif not free:
            continue
        elif kind != "toolchains":
            limit = volume_limit(volumes, name)
        elif folder.project == workspace.id:
            limit = limits.caches
        if is_due(folder.changed, limit):
            unused.append(Leftover("slurm", "folder", folder.path, folder.size))
    return unused


def _slurm(workspace: Workspace) -> "SlurmEngine":
    from farm.engines.slurm import SlurmEngine
    from farm.run.backends import open_backend

    engine = open_backend(workspace, "slurm").engine
    assert isinstance(engine, SlurmEngine)
    return engine


def volumes_of(
    workspace: Workspace, journal: Journal | None, limits: Limits
) -> dict[str, datetime | None]:
    """Patterns for the names of this project's build trees and compiler caches, with the limit of
    each.
    """
    from farm.run.build_job import CACHES as COMPILER_CACHES
    from farm.run.build_job import tree_volume

    volumes = {f"{COMPILER_CACHES}{workspace.id}-.*": limits.compiler_caches}
    if journal:
        trees = "|".join(map(tree_volume, journal.plan_digests()))
        if trees:
            volumes[trees] = limits.caches
    return volumes


def volume_limit(volumes: Mapping[str, datetime | None], name: str) -> datetime | None:
    """Return the limit of a volume; None: it is not this project's, or stays."""
    for pattern, limit in volumes.items():
        if re.fullmatch(pattern, name):
            return limit
    return None


def remove_from_docker(client: "docker.DockerClient", found: Sequence[Leftover]) -> None:
    """Remove leftovers of one engine; what someone else removed or uses by now is passed over."""
    from docker.errors import APIError

    for leftover in found:
        try:
            if leftover.kind == "container":
                client.containers.get(leftover.name).remove(v=True)
            elif leftover.kind == "volume":
                client.volumes.get(leftover.name).remove()
            else:
                client.images.remove(leftover.name)
        except APIError as error:
            if error.status_code not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise


def remove_from_slurm(workspace: Workspace, found: Sequence[Leftover]) -> None:
    """Remove leftovers of the folder that a cluster shares."""
    if found:
        _slurm(workspace).remove([leftover.name for leftover in found])
