"""`farm clean`: remove what ended runs left on this machine and at its engines.

The index and runs that have not ended are never touched.
"""

import argparse
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from farm.base.errors import UsageError
from farm.base.text import parse_age
from farm.cli import show
from farm.cli.clean_engines import (
    Leftover,
    Limits,
    engines_of,
    in_docker,
    in_slurm,
    is_due,
    remove_from_docker,
    remove_from_slurm,
)
from farm.cli.selection import journal_of, workspace_of
from farm.plan.settings import Retention
from farm.run.journal import Journal
from farm.run.journal_records import EventKind
from farm.run.workspace import Workspace

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


def limits_of(args: argparse.Namespace, retention: Retention | None) -> Limits:
    """Return what goes: by the command line, else by `retention` of ci/farm.yaml."""
    now = datetime.now(UTC)
    switches = (args.unpublished, args.logs, args.compiler_caches)
    if retention is not None and args.older_than is None and not any(switches):
        return Limits(**{name: _before(now, age) for name, age in vars(retention).items()})
    before = now - (args.older_than or timedelta(0))

    def where(switch: bool) -> datetime | None:
        return before if switch else None

    return Limits(
        runs=before,
        caches=before,
        logs=where(args.logs),
        unpublished=where(args.unpublished),
        compiler_caches=where(args.compiler_caches),
    )


def _before(now: datetime, age: str | None) -> datetime | None:
    if not age:
        return None
    return now - parse_age(age)


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
        rows += map(_row, in_engine)
    rows += map(_row, shared)
    if not args.json:
        for label, size in rows:
            show.say(f"{size / 1e6:10.1f} MB  {label}")

    removes = _may_remove(args, len(rows))
    if removes:
        for client, in_engine in engines:
            remove_from_docker(client, in_engine)
        remove_from_slurm(workspace, shared)
        for path in paths:
            _remove(path)
    if args.json:
        items = [{"what": label, "bytes": size} for label, size in rows]
        show.json_document({"removed": removes, "found": items})
    else:
        _print_summary(rows, limits, removed=removes)
    return 0


def _row(leftover: Leftover) -> tuple[str, int]:
    return str(leftover), leftover.size


def _may_remove(args: argparse.Namespace, count: int) -> bool:
    """True if the leftovers may go: in a terminal the user is asked."""
    if args.dry_run:
        return False
    if not count or args.yes or args.json or not show.in_terminal():
        return True
    return show.ask(f"remove these {count}?")


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
    names = ["the index"]
    for name, limit in kept_caches.items():
        if limit is None:
            names.append(name)
    verb = "would be removed"
    if removed:
        verb = "removed"
    total = sum(size for _, size in rows)
    show.say(f"{total / 1e6:10.1f} MB  {verb}; kept: {', '.join(names)}")


def leftovers(workspace: Workspace, journal: Journal | None, limits: Limits) -> Iterator[Path]:
    """Folders of runs that ended before, and caches and build trees that nothing changed since."""
    open_ids = set()
    if journal:
        open_ids = {run.id for run in journal.open_runs()}
    for folder in (workspace.artifacts / "runs").glob("*"):
        if folder.name not in open_ids:
            yield from _of_run(folder, journal, limits)
    if not open_ids:  # a run that is under way uses the caches
        yield from _old_caches(workspace, limits)


def _old_caches(workspace: Workspace, limits: Limits) -> Iterator[Path]:
    for cache in CACHES:
        for entry in (workspace.artifacts / cache).glob("*"):
            limit = limits.caches
            if _is_compiler_cache(entry):
                limit = limits.compiler_caches
            due = is_due(modification_time(entry), limit)
            if due and not _holds_index(entry, workspace.index_url):
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


@dataclass(frozen=True)
class _Ending:
    """How a run ended; one that is not in the journal counts as failed."""

    time: datetime
    failed: bool = True
    published: bool = False


def _ending_of(folder: Path, journal: Journal | None) -> _Ending:
    changed = modification_time(folder)
    if journal is None:
        return _Ending(changed)
    try:
        run = journal.run(folder.name)
    except UsageError:  # it is not in the journal
        return _Ending(changed)
    published = False
    for event in journal.events(run.id):
        step = event.data
        if event.kind == EventKind.STEP and step["name"] == "publish":
            published = published or step["outcome"] == "done"
    if run.finished:  # an earlier clean has changed the folder since
        changed = min(changed, datetime.fromisoformat(run.finished))
    return _Ending(changed, failed=run.result != "success", published=published)


def _of_run(folder: Path, journal: Journal | None, limits: Limits) -> Iterator[Path]:
    """The folder of an ended run, or the parts of it that can go."""
    ending = _ending_of(folder, journal)
    if not is_due(ending.time, limits.runs):
        return
    kept_paths: set[Path] = set()
    if ending.failed and not is_due(ending.time, limits.logs):
        kept_paths.update(_logs_in(folder))
    if not ending.published and not is_due(ending.time, limits.unpublished):
        wheels = list(_wheel_folders(folder))
        if not ending.failed:
            wheels = wheels[:1]
        kept_paths.update(wheels)  # `farm retry` goes on from the one that was built
    if not kept_paths:
        yield folder
        return
    yield from set(folder.glob("*")) - kept_paths


def _logs_in(folder: Path) -> Iterator[Path]:
    for path in folder.glob("*"):
        if path.suffix in LOGS and path.is_file():
            yield path


def _wheel_folders(folder: Path) -> Iterator[Path]:
    """The folders of a run that hold a wheel, the finished one first."""
    for name in ("repaired", "built"):
        if any((folder / name).rglob("*.whl")):
            yield folder / name


def _holds_index(entry: Path, index: str) -> bool:
    """An index that someone put there is not a leftover."""
    return "://" not in index and Path(index).resolve().is_relative_to(entry.resolve())


def modification_time(path: Path) -> datetime:
    return datetime.fromtimestamp(path.lstat().st_mtime, UTC)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files under a folder; links are not followed."""
    if path.is_symlink() or path.is_file():
        return path.lstat().st_size
    total = 0
    for file in path.rglob("*"):
        if file.is_file() and not file.is_symlink():
            total += file.lstat().st_size
    return total
