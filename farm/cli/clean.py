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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from farm.base.errors import FarmError, UsageError
from farm.base.project import LOCAL
from farm.cli import show
from farm.cli.selection import journal_of, workspace_of
from farm.run.journal import EventKind, Journal
from farm.run.workspace import Workspace

if TYPE_CHECKING:
    import docker

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


def run_clean(args: argparse.Namespace) -> int:
    workspace = workspace_of(args)
    before = datetime.now(UTC) - args.older_than
    with journal_of(args) as journal:
        paths = sorted(leftovers(workspace, journal, before, args))
        engines = [
            (
                client,
                in_docker(name, client, before, workspace, journal, caches=args.compiler_caches),
            )
            for name, client in engines_of(workspace)
        ]
        shared = in_slurm(before, workspace, journal, caches=args.compiler_caches)
    rows = [(str(path), size_of(path)) for path in paths]
    rows += [
        (str(leftover), leftover.size)
        for leftovers_found in (*(leftovers_found for _, leftovers_found in engines), shared)
        for leftover in leftovers_found
    ]
    if not args.json:
        for label, size in rows:
            show.say(f"{size / 1e6:10.1f} MB  {label}")
    asks = (
        rows
        and not (args.dry_run or args.yes or args.json)
        and sys.stdin.isatty()
        and sys.stdout.isatty()
    )
    answer = input(f"remove these {len(rows)}? [y/N] ") if asks else "yes"
    removes = not args.dry_run and answer.strip().lower() in ("y", "yes")
    if removes:
        for client, leftovers_found in engines:
            remove_from_docker(client, leftovers_found)
        if shared:
            _slurm(workspace).remove(leftover.name for leftover in shared)
        for path in paths:
            # Of a link the link itself, not what it leads to.
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if args.json:
        show.json_document(
            {"removed": removes, "found": [{"what": label, "bytes": size} for label, size in rows]}
        )
        return 0
    kept_caches = {
        "unpublished wheels (--unpublished)": args.unpublished,
        "logs of failures (--logs)": args.logs,
        "compiler caches (--compiler-caches)": args.compiler_caches,
    }
    names = ", ".join(["the index", *(name for name, goes in kept_caches.items() if not goes)])
    verb = "removed" if removes else "would be removed"
    show.say(f"{sum(size for _, size in rows) / 1e6:10.1f} MB  {verb}; kept: {names}")
    return 0


def leftovers(
    workspace: Workspace, journal: Journal | None, before: datetime, args: argparse.Namespace
) -> Iterator[Path]:
    """Folders of runs that ended before, and caches and build trees that nothing changed since."""
    artifacts = workspace.artifacts
    open_ids = {run.id for run in journal.open_runs()} if journal else set()
    for folder in (artifacts / "runs").glob("*"):
        if folder.name not in open_ids and modification_time(folder) <= before:
            yield from _of_run(folder, journal, unpublished=args.unpublished, logs=args.logs)
    # A run that is under way uses the caches.
    for entry in (
        (entry for cache in CACHES for entry in (artifacts / cache).glob("*"))
        if not open_ids
        else ()
    ):
        stays = _is_compiler_cache(entry) and not args.compiler_caches
        if (
            not stays
            and modification_time(entry) <= before
            and not _holds_index(entry, workspace.index_url)
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


def _of_run(
    folder: Path, journal: Journal | None, *, unpublished: bool, logs: bool
) -> Iterator[Path]:
    """The folder of an ended run, or the parts of it that can go."""
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
    kept_files = {
        path
        for path in folder.glob("*")
        if failed and not logs and path.suffix in LOGS and path.is_file()
    }
    if not (published or unpublished):
        wheels = [
            folder / name for name in ("repaired", "built") if any((folder / name).rglob("*.whl"))
        ]
        kept_files |= (
            {*wheels} if failed else {*wheels[:1]}
        )  # `farm retry` goes on from the one that was built
    yield from (
        (path for path in folder.glob("*") if path not in kept_files) if kept_files else (folder,)
    )


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
    before: datetime,
    workspace: Workspace,
    journal: Journal | None,
    *,
    caches: bool,
) -> list[Leftover]:
    """Leftovers of ended runs on one engine: containers, then images and volumes that nothing else
    uses.
    """
    from farm.engines.images import PROJECT_LABEL

    containers = client.containers.list(all=True, ignore_removed=True)
    ended = journal.ended() if journal else frozenset()
    # A controller that was killed leaves them. One that runs is someone's: it stays.
    old = [
        container
        for container in containers
        if container.labels.get("farm.run") in ended
        and container.status not in ("running", "paused", "restarting")
        and datetime.fromisoformat(container.attrs["Created"]) <= before
    ]
    unused = [Leftover(name, "container", str(container.short_id)) for container in old]
    # An image is used by name before there is a container of it, so none is touched while a run is
    # open.
    if journal and journal.open_runs():
        return unused
    other_containers = [container for container in containers if container not in old]
    # Containers that have ended count too: Docker refuses to remove their image.
    used = {container.attrs["Image"] for container in other_containers}
    # Not client.images.list: it asks for each image anew, and fails where someone has removed one
    # meanwhile.
    for image in client.api.images(name=IMAGES):
        is_ours = (image["Labels"] or {}).get(PROJECT_LABEL) == workspace.id
        if (
            is_ours
            and image["Id"] not in used
            and datetime.fromtimestamp(image["Created"], UTC) <= before
        ):
            tags = image["RepoTags"] or []
            unused += [
                Leftover(name, "image", t, int(image["Size"]))
                for t in tags
                if t.startswith(f"{IMAGES}:")
            ]
    mounted = {
        mount.get("Name")
        for container in other_containers
        for mount in container.attrs.get("Mounts", ())
    }
    volume_pattern = volumes_of(workspace, journal, caches=caches)
    for volume in client.volumes.list():
        free = re.fullmatch(volume_pattern, volume.name) and volume.name not in mounted
        if free and datetime.fromisoformat(volume.attrs["CreatedAt"]) <= before:
            unused.append(Leftover(name, "volume", volume.name))
    return unused


def in_slurm(
    before: datetime, workspace: Workspace, journal: Journal | None, *, caches: bool
) -> list[Leftover]:
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
    volumes = volumes_of(workspace, journal, caches=caches)
    unused = []
    for folder in folders:
        kind, _, name = folder.path.partition("/")
        if kind == "toolchains":
            is_ours = folder.project == workspace.id
        else:
            is_ours = re.fullmatch(volumes, name) is not None
        if (name in ended if kind == "jobs" else free and is_ours) and folder.changed <= before:
            unused.append(Leftover("slurm", "folder", folder.path, folder.size))
    return unused


def _slurm(workspace: Workspace) -> "SlurmEngine":
    from farm.engines.slurm import SlurmEngine
    from farm.run.backends import open_backend

    engine = open_backend(workspace, "slurm").engine
    assert isinstance(engine, SlurmEngine)
    return engine


def volumes_of(workspace: Workspace, journal: Journal | None, *, caches: bool) -> str:
    """A pattern for the names of build trees, with `caches` for compiler caches as well."""
    from farm.run.build_job import CACHES as COMPILER_CACHES
    from farm.run.build_job import tree_volume

    if journal:
        names = [tree_volume(digest) for digest in journal.plan_digests()]
    else:
        names = []
    return "|".join([*names, *([f"{COMPILER_CACHES}{workspace.id}-.*"] if caches else [])])


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
