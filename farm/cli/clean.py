"""`farm clean`: remove what runs left behind. The index and runs that have not ended are never touched; wheels that are
in no index, the logs of failures and compiler caches only when told.

A Docker engine serves many projects, so only this project's containers, images and volumes are removed: a container
carries its run as a label and an image the project that made it, a build tree is named after the digest of its plan, a
compiler cache after the project.
"""

import argparse
import contextlib
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from farm.base.text import parse_age

if TYPE_CHECKING:
    import docker

    from farm.engines.slurm import SlurmEngine
    from farm.run.journal import Journal
    from farm.run.workspace import Workspace

IMAGES = "farm/toolchain"
LOGS = (".log", ".json", ".xml")
"""Endings of the logs and reports of a run."""
CACHES = ("sources", "toolchains", "smoke", "bundles", "host/farm", "host/farm-jobs", "host/farm-volumes")
"""Folders under `artifacts/` whose entries are made again when they are needed."""


@dataclass(frozen=True)
class Leftover:
    """Something of ended runs at an engine. `size` in bytes; 0: not known without reading it all."""

    engine: str
    kind: Literal["container", "image", "volume", "folder"]
    name: str
    size: int = 0

    def __str__(self) -> str:
        from farm.base.project import LOCAL

        if self.kind == "folder":
            return f"Slurm: {self.name}"
        return f"Docker{'' if self.engine == LOCAL else f' ({self.engine})'}: {self.kind} {self.name}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        type=age,
        default=timedelta(0),
        metavar="AGE",
        help="only what is older, such as 30d, 12h or 4w (default: all)",
    )
    for option, text in {
        "--all-projects": "remove toolchain images, build trees and caches of other projects as well",
        "--journal": "remove ended runs from the journal as well: `status`, `logs` and `retry` no longer find them",
        "--unpublished": "remove wheels as well that are in no index",
        "--logs": "remove logs and reports of runs that failed as well",
        "--compiler-caches": "remove the compiler caches of packages as well: their next builds take longer",
        "--dry-run": "only list what would be removed",
    }.items():
        parser.add_argument(option, action="store_true", help=text)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask in a terminal")


def age(text: str) -> timedelta:
    """The length of time that `30d`, `12h` or `4w` names."""
    try:
        return parse_age(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.cli.project import workspace_of

    workspace, before = workspace_of(args), datetime.now(UTC) - args.older_than
    with _journal(workspace) as journal:
        paths = sorted(leftovers(workspace, journal, before, args))
        found = [(path, size_of(path)) for path in paths]
        docker: list[Leftover] = []
        for name, client in engines_of(workspace):
            docker += in_docker(name, client, before, workspace, journal, args)
        shared = in_slurm(before, workspace, journal, args)
        rows = [*((str(path), size) for path, size in found), *((str(each), each.size) for each in (*docker, *shared))]
        lines = [f"{size / 1e6:10.1f} MB  {what}" for what, size in rows]
        asks = rows and not (args.dry_run or args.yes or args.json) and sys.stdin.isatty() and sys.stdout.isatty()
        if not args.json:
            for line in lines:
                show.say(line)
        removes = not args.dry_run and (not asks or _agreed(len(rows)))
        if removes:
            for path in paths:
                # Of a link the link itself, not what it leads to.
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            for name, client in engines_of(workspace) if docker else ():
                remove_from_docker(client, [each for each in docker if each.engine == name])
            if shared:
                _slurm(workspace).remove(each.name for each in shared)
        forgotten = journal.forget(before, dry_run=not removes) if args.journal and journal else 0
    if args.json:
        entries = [{"what": what, "bytes": size} for what, size in rows]
        show.json_document({"removed": removes, "found": entries, "runs_forgotten": forgotten})
        return 0
    verb = "removed" if removes else "would be removed"
    if args.journal:
        show.say(f"{forgotten} runs {verb} from the journal")
    kept = {
        "the index": False,
        "unpublished wheels (--unpublished)": args.unpublished,
        "logs of failures (--logs)": args.logs,
        "compiler caches (--compiler-caches)": args.compiler_caches,
    }
    names = ", ".join(name for name, goes in kept.items() if not goes)
    show.say(f"{sum(size for _, size in rows) / 1e6:10.1f} MB  {verb}; kept: {names}")
    return 0


def _agreed(count: int) -> bool:
    """The answer of whoever sits at the terminal."""
    return input(f"remove these {count}? [y/N] ").strip().lower() in ("y", "yes")


def leftovers(
    workspace: "Workspace", journal: "Journal | None", before: datetime, args: argparse.Namespace
) -> Iterator[Path]:
    """What runs that ended before left, and caches and build trees that nothing changed since."""
    artifacts = workspace.artifacts
    kept = {run.id for run in journal.open_runs()} if journal else set()
    for folder in (artifacts / "runs").glob("*"):
        if folder.name not in kept and changed(folder) <= before:
            yield from _of_run(folder, journal, unpublished=args.unpublished, logs=args.logs)
    # A run that is under way uses the caches.
    for entry in (entry for cache in CACHES for entry in (artifacts / cache).glob("*")) if not kept else ():
        stays = _is_compiler_cache(entry) and not args.compiler_caches
        if not stays and changed(entry) <= before and not _holds_index(entry, workspace.index_url):
            yield entry


def _is_compiler_cache(entry: Path) -> bool:
    """True for a compiler cache of the host engine, in its place or put away, and for the file that names it."""
    from farm.run.build import CACHE
    from farm.run.build import CACHES as COMPILER_CACHES

    return entry.name.startswith(COMPILER_CACHES) or entry.name.removesuffix(".volume") == Path(CACHE).name


def _of_run(folder: Path, journal: "Journal | None", *, unpublished: bool, logs: bool) -> Iterator[Path]:
    """The folder of an ended run, or the parts of it that can go."""
    from farm.base.errors import UsageError
    from farm.run.journal import EventKind

    failed, published = True, False
    with contextlib.suppress(UsageError):  # a run that the journal has forgotten
        if journal is not None:
            run = journal.run(folder.name)
            steps = [event.data for event in journal.events(run.id) if event.kind == EventKind.STEP]
            failed = run.result != "success"
            published = any(step["name"] == "publish" and step["outcome"] == "done" for step in steps)
    kept = set()
    if not published and not unpublished:
        wheels = ("repaired", "built") if any((folder / "repaired").glob("*.whl")) else ("built",)
        kept = {folder / name for name in wheels[:1] if any((folder / name).rglob("*.whl"))}
        kept |= {folder / "built"} if kept and failed else set()  # `farm retry` goes on from there
    if failed and not logs:
        kept |= {path for path in folder.glob("*") if path.suffix in LOGS and path.is_file()}
    if not kept:
        yield folder
        return
    yield from (path for path in folder.glob("*") if path not in kept)


def _holds_index(entry: Path, index: str) -> bool:
    """An index that someone put there is not a leftover."""
    return "://" not in index and Path(index).resolve().is_relative_to(entry.resolve())


def changed(path: Path) -> datetime:
    return datetime.fromtimestamp(path.lstat().st_mtime, UTC)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files under a folder; links are not followed."""
    if path.is_symlink() or path.is_file():
        return path.lstat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def engines_of(workspace: "Workspace") -> "Iterator[tuple[str, docker.DockerClient]]":
    """This machine's Docker engine and those of ci/runners.yaml, as far as they answer."""
    from farm.base.errors import FarmError
    from farm.base.project import LOCAL
    from farm.cli import show
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
    workspace: "Workspace",
    journal: "Journal | None",
    args: argparse.Namespace,
) -> list[Leftover]:
    """Leftovers of ended runs on one engine: containers, then images and volumes that nothing else uses."""
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
    found = [Leftover(name, "container", str(container.short_id)) for container in old]
    # An image is used by name before there is a container of it, so none is touched while a run is open.
    if journal and journal.open_runs():
        return found
    others = [container for container in containers if container not in old]
    # Containers that have ended count too: Docker refuses to remove their image.
    used = {container.attrs["Image"] for container in others}
    # Not client.images.list: it asks for each image anew, and fails where someone has removed one meanwhile.
    for image in client.api.images(name=IMAGES):
        ours = args.all_projects or (image["Labels"] or {}).get(PROJECT_LABEL) == workspace.id
        if ours and image["Id"] not in used and datetime.fromtimestamp(image["Created"], UTC) <= before:
            tags = image["RepoTags"] or []
            found += [Leftover(name, "image", t, int(image["Size"])) for t in tags if t.startswith(f"{IMAGES}:")]
    mounted = {mount.get("Name") for container in others for mount in container.attrs.get("Mounts", ())}
    wanted = volumes_of(workspace, journal, all_projects=args.all_projects, caches=args.compiler_caches)
    for volume in client.volumes.list():
        free = re.fullmatch(wanted, volume.name) and volume.name not in mounted
        if free and datetime.fromisoformat(volume.attrs["CreatedAt"]) <= before:
            found.append(Leftover(name, "volume", volume.name))
    return found


def in_slurm(
    before: datetime, workspace: "Workspace", journal: "Journal | None", args: argparse.Namespace
) -> list[Leftover]:
    """Leftovers in the folder that a cluster shares: jobs of ended runs; the rest where no run is open."""
    from farm.base.errors import FarmError
    from farm.cli import show

    if workspace.settings.slurm is None or journal is None:
        return []
    try:
        folders = _slurm(workspace).folders()
    except FarmError as error:
        show.note(f"the folder of the cluster is left as it is: {error}")
        return []
    ended, free = journal.handles(), not journal.open_runs()
    volumes = volumes_of(workspace, journal, all_projects=args.all_projects, caches=args.compiler_caches)
    found = []
    for folder in folders:
        kind, _, name = folder.path.partition("/")
        own = args.all_projects or folder.project == workspace.id
        goes = (
            name in ended if kind == "jobs" else free and (own if kind == "toolchains" else re.fullmatch(volumes, name))
        )
        if goes and folder.changed <= before:
            found.append(Leftover("slurm", "folder", folder.path, folder.size))
    return found


def _slurm(workspace: "Workspace") -> "SlurmEngine":
    from farm.engines.slurm import SlurmEngine
    from farm.run.backends import open_backend

    engine = open_backend(workspace, "slurm").engine
    assert isinstance(engine, SlurmEngine)
    return engine


def volumes_of(workspace: "Workspace", journal: "Journal | None", *, all_projects: bool, caches: bool) -> str:
    """A pattern for the names of build trees, with `caches` for compiler caches as well."""
    from farm.run.build import CACHES as COMPILER_CACHES
    from farm.run.build import TREES, tree_volume

    if all_projects:
        names = [f"{TREES}.*"]
    else:
        names = [tree_volume(digest) for digest in journal.plan_digests()] if journal else []
    if caches:
        names.append(f"{COMPILER_CACHES}.*" if all_projects else f"{COMPILER_CACHES}{workspace.id}-.*")
    return "|".join(names)


@contextlib.contextmanager
def _journal(workspace: "Workspace") -> "Iterator[Journal | None]":
    """The project's journal, if it has one: looking makes none."""
    from farm.run.workspace import journal_path, open_journal

    if not journal_path(workspace.project, workspace.settings).is_file():
        yield None
        return
    with open_journal(workspace.project, workspace.settings) as journal:
        yield journal


def remove_from_docker(client: "docker.DockerClient", found: Sequence[Leftover]) -> None:
    """Removes leftovers of one engine; what someone else removed or uses by now is passed over."""
    from docker.errors import APIError

    for each in found:
        try:
            if each.kind == "container":
                client.containers.get(each.name).remove(v=True)
            elif each.kind == "volume":
                client.volumes.get(each.name).remove()
            else:
                client.images.remove(each.name)
        except APIError as error:
            if error.status_code not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise
