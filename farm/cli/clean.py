"""`farm clean`: remove what ended runs left on this machine and at its engines.

A Docker engine serves many projects, so only this project's containers, images and volumes are
removed: a container carries its run as a label and an image the project that made it, a build
tree is named after the digest of its plan, a compiler cache after the project. The index and runs
that have not ended are never touched.
"""

import argparse
import contextlib
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from farm.base.errors import FarmError, UsageError
from farm.base.project import LOCAL
from farm.base.text import parse_age
from farm.cli import show
from farm.cli.selection import journal_of, workspace_of
from farm.plan.settings import Retention
from farm.run.journal import Journal
from farm.run.journal_records import EventKind
from farm.run.workspace import Workspace

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

    from farm.engines.slurm import SlurmEngine

IMAGES = "farm/toolchain"
LOGS = (".log", ".json", ".xml")
"""Endings of the logs and reports of a run."""
CACHES = (
    "sources",
    "toolchains",
    "smoke",
    "bundles",
    "host/farm",
    "host/farm-jobs",
    "host/farm-volumes",
)
"""Folders under `artifacts/` whose entries are made again when they are needed."""


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
        return (
            f"Docker{'' if self.engine == LOCAL else f' ({self.engine})'}: {self.kind} {self.name}"
        )


@dataclass(frozen=True)
class Limits:
    """The moments before which things of each kind go; None: they stay. See `Retention`."""

    runs: datetime | None
    caches: datetime | None
    logs: datetime | None
    unpublished: datetime | None
    compiler_caches: datetime | None


def limits_of(args: argparse.Namespace, retention: Retention | None) -> Limits:
    """Return what goes: by the command line, else by `retention` of ci/farm.yaml."""
    now = datetime.now(UTC)
    switches = (args.unpublished, args.logs, args.compiler_caches)
    if retention is not None and args.older_than is None and not any(switches):
        return Limits(**{name: _before(now, age) for name, age in vars(retention).items()})
    before = now - (args.older_than or timedelta(0))
    return Limits(
        runs=before,
        caches=before,
        logs=before if args.logs else None,
        unpublished=before if args.unpublished else None,
        compiler_caches=before if args.compiler_caches else None,
    )


def _before(now: datetime, age: str | None) -> datetime | None:
    return now - parse_age(age) if age else None


def is_due(moment: datetime, limit: datetime | None) -> bool:
    """True if something that ended or changed at a moment goes."""
    return limit is not None and moment <= limit


def run_clean(args: argparse.Namespace) -> int:
    """Show what can go, ask in a terminal, and remove it."""
    workspace = workspace_of(args)
    limits = limits_of(args, workspace.settings.retention)
    with journal_of(args) as journal:
        paths = sorted(leftovers(workspace, journal, limits))
        engines = []
        for name, client in engines_of(workspace):
            engines.append((client, in_docker(name, client, limits, workspace, journal)))
        shared = in_slurm(limits, workspace, journal)
    rows = [(str(path), size_of(path)) for path in paths]
    for _, in_engine in engines:
        rows += [(str(leftover), leftover.size) for leftover in in_engine]
    rows += [(str(leftover), leftover.size) for leftover in shared]
    if not args.json:
        for label, size in rows:
            show.say(f"{size / 1e6:10.1f} MB  {label}")
    removes = _may_remove(args, len(rows))
    if removes:
        for client, in_engine in engines:
            remove_from_docker(client, in_engine)
        if shared:
            _slurm(workspace).remove(leftover.name for leftover in shared)
        for path in paths:
            _remove(path)
    if args.json:
        items = [{"what": label, "bytes": size} for label, size in rows]
        show.json_document({"removed": removes, "found": items})
    else:
        _print_summary(rows, limits, removed=removes)
    return 0


def _may_remove(args: argparse.Namespace, count: int) -> bool:
    """True if the leftovers may go: in a terminal the user is asked."""
    if args.dry_run:
        return False
    in_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not count or args.yes or args.json or not in_terminal:
        return True
    return input(f"remove these {count}? [y/N] ").strip().lower() in ("y", "yes")


def _remove(path: Path) -> None:
    """Remove a file or folder; of a link the link itself, not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _print_summary(rows: list[tuple[str, int]], limits: Limits, *, removed: bool) -> None:
    kept_caches = {
        "unpublished wheels (--unpublished)": limits.unpublished,
        "logs of failures (--logs)": limits.logs,
        "compiler caches (--compiler-caches)": limits.compiler_caches,
    }
    names = ", ".join(["the index", *(name for name, goes in kept_caches.items() if not goes)])
    verb = "removed" if removed else "would be removed"
    show.say(f"{sum(size for _, size in rows) / 1e6:10.1f} MB  {verb}; kept: {names}")


def leftovers(workspace: Workspace, journal: Journal | None, limits: Limits) -> Iterator[Path]:
    """Folders of runs that ended before, and caches and build trees that nothing changed since."""
    artifacts = workspace.artifacts
    open_ids = {run.id for run in journal.open_runs()} if journal else set()
    for folder in (artifacts / "runs").glob("*"):
        if folder.name not in open_ids:
            yield from _of_run(folder, journal, limits)
    if open_ids:  # a run that is under way uses the caches
        return
    for cache in CACHES:
        for entry in (artifacts / cache).glob("*"):
            limit = limits.compiler_caches if _is_compiler_cache(entry) else limits.caches
            if is_due(modification_time(entry), limit) and not _holds_index(
                entry, workspace.index_url
            ):
                yield entry


def _is_compiler_cache(entry: Path) -> bool:
    """True for a compiler cache of the host engine, in its place or put away, and for the file that
    names it.
    """
    from farm.run.build_job import CACHE
    from farm.run.build_job import CACHES as COMPILER_CACHES

    return (
        entry.name.startswith(COMPILER_CACHES)
        or entry.name.removesuffix(".volume") == Path(CACHE).name
    )


def _of_run(folder: Path, journal: Journal | None, limits: Limits) -> Iterator[Path]:
    """The folder of an ended run, or the parts of it that can go."""
    ended = modification_time(folder)
    failed = True
    published = False
    with contextlib.suppress(UsageError):  # a run that is not in the journal
        if journal is not None:
            run = journal.run(folder.name)
            steps = [event.data for event in journal.events(run.id) if event.kind == EventKind.STEP]
            failed = run.result != "success"
            published = any(
                step["name"] == "publish" and step["outcome"] == "done" for step in steps
            )
            if run.finished:  # an earlier clean has changed the folder since
                ended = min(ended, datetime.fromisoformat(run.finished))
    if not is_due(ended, limits.runs):
        return
    kept_paths = set()
    if failed and not is_due(ended, limits.logs):
        kept_paths |= {path for path in folder.glob("*") if path.suffix in LOGS and path.is_file()}
    if not published and not is_due(ended, limits.unpublished):
        wheels = [
            folder / name for name in ("repaired", "built") if any((folder / name).rglob("*.whl"))
        ]
        # `farm retry` goes on from the one that was built.
        kept_paths |= set(wheels if failed else wheels[:1])
    if not kept_paths:
        yield folder
        return
    yield from (path for path in folder.glob("*") if path not in kept_paths)


def _holds_index(entry: Path, index: str) -> bool:
    """An index that someone put there is not a leftover."""
    return "://" not in index and Path(index).resolve().is_relative_to(entry.resolve())


def modification_time(path: Path) -> datetime:
    return datetime.fromtimestamp(path.lstat().st_mtime, UTC)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files under a folder; links are not followed."""
    if path.is_symlink() or path.is_file():
        return path.lstat().st_size
    return sum(
        file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink()
    )


def engines_of(workspace: Workspace) -> "Iterator[tuple[str, docker.DockerClient]]":
    """This machine's Docker engine and those of ci/runners.yaml, as far as they answer."""
    from farm.engines.docker import connect
    from farm.run.backends import docker_runners

    urls = {LOCAL: None, **{name: runner.url for name, runner in docker_runners(workspace).items()}}
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
    """A controller that was killed leaves them. One that runs is someone's: it stays."""
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
    """Yield this project's toolchain images that none of the containers uses."""
    from farm.engines.images import PROJECT_LABEL

    # Containers that have ended count too: Docker refuses to remove their image.
    used = {container.attrs["Image"] for container in containers}
    # Not client.images.list: it asks for each image anew, and fails where someone has removed one
    # meanwhile.
    for image in client.api.images(name=IMAGES):
        is_ours = (image["Labels"] or {}).get(PROJECT_LABEL) == workspace.id
        if not is_ours or image["Id"] in used:
            continue
        if not is_due(datetime.fromtimestamp(image["Created"], UTC), limits.caches):
            continue
        for tag in image["RepoTags"] or []:
            if tag.startswith(f"{IMAGES}:"):
                yield Leftover(name, "image", tag, int(image["Size"]))


def _unused_volumes(
    name: str,
    client: "docker.DockerClient",
    volumes: Mapping[str, datetime | None],
    containers: "Sequence[Container]",
) -> Iterator[Leftover]:
    """Yield this project's build trees and caches that none of the containers has mounted.

    Args:
        name: The engine.
        client: The engine's own interface.
        volumes: See `volumes_of`.
        containers: Those that stay.
    """
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
            limit = limits.runs if name in ended else None
        elif free and kind == "toolchains":
            limit = limits.caches if folder.project == workspace.id else None
        elif free:
            limit = volume_limit(volumes, name)
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
        trees = [tree_volume(digest) for digest in journal.plan_digests()]
        if trees:
            volumes["|".join(trees)] = limits.caches
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
