"""`farm clean`: remove what runs left behind. The index and runs that have not ended are never touched.

A Docker engine serves many projects, so only this project's containers, images and build trees are removed: a container
carries its run as a label and an image the project that made it, a build tree is named after the digest of its plan.
"""

import argparse
import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

    from farm.run.workspace import Workspace

IMAGES = "farm/toolchain"

TREES = "farm-tree-"
CONTAINERS = "container "
UNITS = {"d": "days", "h": "hours", "w": "weeks"}
CACHES = ("sources", "toolchains", "smoke", "compiler-cache", "bundles")
"""Folders under `artifacts/` that are made again when they are needed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        type=age,
        default=timedelta(0),
        metavar="AGE",
        help="only what is older, such as 30d, 12h or 4w (default: all)",
    )
    parser.add_argument(
        "--all-projects", action="store_true", help="remove toolchain images and build trees of other projects as well"
    )
    parser.add_argument(
        "--journal",
        action="store_true",
        help="remove ended runs from the journal as well: `farm status`, `logs` and `retry` no longer find them",
    )
    parser.add_argument("--dry-run", action="store_true", help="only list what would be removed")


def age(text: str) -> timedelta:
    """The length of time that `30d`, `12h` or `4w` names."""
    match = re.fullmatch(r"(\d{1,5})([dhw])", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number and d, h or w, such as 30d")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def run(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.cli.project import project_of
    from farm.run.report import Silent
    from farm.run.workspace import Workspace

    workspace = Workspace(*project_of(args), Silent())
    before = datetime.now(UTC) - args.older_than
    found = [(path, size_of(path)) for path in sorted(leftovers(workspace, before))]
    in_docker = old_in_docker(before, workspace, all_projects=args.all_projects)
    if not args.dry_run:
        for path, _ in found:
            # Of a link the link itself, not what it leads to.
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        remove_from_docker(in_docker)
    forgotten = forget(workspace, before, dry_run=args.dry_run) if args.journal else 0
    rows = [(str(path), size) for path, size in found] + [(f"Docker: {name}", size) for name, size in in_docker]
    if args.json:
        entries = [{"what": what, "bytes": size} for what, size in rows]
        show.json_document({"removed": not args.dry_run, "found": entries, "runs_forgotten": forgotten})
        return 0
    for what, size in rows:
        show.say(f"{size / 1e6:10.1f} MB  {what}")
    if args.journal:
        show.say(f"{forgotten} runs {'would be removed' if args.dry_run else 'removed'} from the journal")
    total = sum(size for _, size in rows) / 1e6
    show.say(f"{total:10.1f} MB  {'would be removed' if args.dry_run else 'removed'}; the index is kept")
    return 0


def forget(workspace: "Workspace", before: datetime, *, dry_run: bool) -> int:
    """Removes runs that ended before from the journal; returns how many. `dry_run`: only counts them."""
    from farm.run.workspace import journal_path, open_journal

    if not journal_path(workspace.project, workspace.settings).is_file():
        return 0
    with open_journal(workspace.project, workspace.settings) as journal:
        return journal.forget(before, dry_run=dry_run)


def under_way(workspace: "Workspace") -> set[str]:
    """The ids of the runs that have not ended: they use the caches, images and build trees."""
    from farm.run.workspace import journal_path, open_journal

    if not journal_path(workspace.project, workspace.settings).is_file():
        return set()
    with open_journal(workspace.project, workspace.settings) as journal:
        return {run.id for run in journal.open_runs()}


def leftovers(workspace: "Workspace", before: datetime) -> Iterator[Path]:
    """Folders of runs that ended before, and of caches and build trees that nothing changed since."""
    artifacts = workspace.artifacts
    if not artifacts.is_dir():
        return
    kept = under_way(workspace)
    for folder in (artifacts / "runs").glob("*"):
        if folder.name not in kept and changed(folder) <= before:
            yield folder
    if kept:
        return  # a run that is under way uses the caches
    for cache in (*CACHES, "host"):
        for entry in (artifacts / cache).glob("*"):
            if changed(entry) <= before and not _holds_index(entry, workspace.index_url):
                yield entry


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


def old_in_docker(before: datetime, workspace: "Workspace", *, all_projects: bool) -> list[tuple[str, int]]:
    """Docker's leftovers of ended runs, made before, with their bytes; none where no engine answers.

    First containers, by `CONTAINERS` and the start of the id; then the toolchain images and build trees that no other
    container uses. A tree's name begins with `TREES`. The size of a container or tree is not known without reading it
    all.

    Args:
        before: Only what is older than this.
        workspace: Only what this project made.
        all_projects: Images and trees of other projects as well.
    """
    from farm.base.errors import FarmError
    from farm.engines.reach import connect

    try:
        client = connect()
    except FarmError:
        return []
    containers = client.containers.list(all=True, ignore_removed=True)
    ended = ended_runs(workspace)
    # A controller that was killed leaves them. One that runs is someone's: it stays.
    old = [
        container
        for container in containers
        if container.labels.get("farm.run") in ended
        and container.status not in ("running", "paused", "restarting")
        and datetime.fromisoformat(container.attrs["Created"]) <= before
    ]
    found = [(f"{CONTAINERS}{container.short_id}", 0) for container in old]
    # An image is used by name before there is a container of it, so none is touched while a run is open.
    if under_way(workspace):
        return found
    others = [container for container in containers if container not in old]
    return found + old_images(client, before, None if all_projects else workspace, others)


def old_images(
    client: "docker.DockerClient", before: datetime, workspace: "Workspace | None", containers: "Sequence[Container]"
) -> list[tuple[str, int]]:
    """Toolchain images and build trees that none of the containers uses, made before; None: of all projects."""
    from farm.engines.images import PROJECT_LABEL

    trees = None if workspace is None else trees_of(workspace)
    # Containers that have ended count too: Docker refuses to remove their image.
    used = {container.attrs["Image"] for container in containers}
    found = []
    # Not client.images.list: it asks for each image anew, and fails where someone has removed one meanwhile.
    for image in client.api.images(name=IMAGES):
        if workspace is not None and (image["Labels"] or {}).get(PROJECT_LABEL) != workspace.id:
            continue
        if image["Id"] not in used and datetime.fromtimestamp(image["Created"], UTC) <= before:
            tags = image["RepoTags"] or []
            found += [(tag, int(image["Size"])) for tag in tags if tag.startswith(f"{IMAGES}:")]
    mounted = {mount.get("Name") for container in containers for mount in container.attrs.get("Mounts", ())}
    for volume in client.volumes.list():
        if trees is not None and volume.name not in trees:
            continue
        if (
            volume.name.startswith(TREES)
            and volume.name not in mounted
            and datetime.fromisoformat(volume.attrs["CreatedAt"]) <= before
        ):
            # 0: how large a volume is the engine only says after reading all of it.
            found.append((volume.name, 0))
    return found


def ended_runs(workspace: "Workspace") -> frozenset[str]:
    """The ids of this project's runs that have ended."""
    from farm.run.workspace import journal_path, open_journal

    if not journal_path(workspace.project, workspace.settings).is_file():
        return frozenset()
    with open_journal(workspace.project, workspace.settings) as journal:
        return journal.ended()


def trees_of(workspace: "Workspace") -> set[str]:
    """The names of the build trees of this project's runs."""
    from farm.run.build import tree_volume
    from farm.run.workspace import journal_path, open_journal

    if not journal_path(workspace.project, workspace.settings).is_file():
        return set()
    with open_journal(workspace.project, workspace.settings) as journal:
        return {tree_volume(digest) for digest in journal.plan_digests()}


def remove_from_docker(found: list[tuple[str, int]]) -> None:
    """Removes containers, images and build trees by name; what someone else removed or uses by now is passed over."""
    from docker.errors import APIError

    from farm.engines.reach import connect

    if found:
        client = connect()
        for name, _ in found:
            try:
                if name.startswith(CONTAINERS):
                    client.containers.get(name.removeprefix(CONTAINERS)).remove(v=True)
                elif name.startswith(TREES):
                    client.volumes.get(name).remove()
                else:
                    client.images.remove(name)
            except APIError as error:
                if error.status_code not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                    raise
