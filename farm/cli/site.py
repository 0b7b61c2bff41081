"""`farm site build`: the pages beside the index."""

import argparse
from pathlib import Path

from farm.base import outputs
from farm.base.errors import UsageError
from farm.cli import show
from farm.cli.project import project_of
from farm.index.backends import open_store
from farm.index.layout import CATALOGUE
from farm.index.publish import check_store
from farm.run.release import pip_source, public_url
from farm.run.workspace import Silent, Workspace
from farm.site import build
from farm.site.tested import kept_tests
from farm.site.wheels import wheels, with_tests


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["build"], help="write the pages from the index and the matrix")
    parser.add_argument("--index", metavar="URL", help="a folder or s3://bucket/prefix (default: ci/farm.yaml)")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="write to this folder instead of the index")


def run(args: argparse.Namespace) -> int:
    """Build the site from the index and the matrix; write what changed."""
    project, settings = project_of(args)
    if args.index:
        settings = settings.named(args.index)
    workspace = Workspace(project, settings, Silent())
    store = open_store(workspace.index_url)
    if not args.output and store.get(CATALOGUE) is None:
        raise UsageError(
            f"{workspace.index_url} is no index: it has no {CATALOGUE}",
            hint="publish a wheel first, or write to -o DIR",
        )
    found = list(wheels(store))
    tests = kept_tests(store, {wheel.filename: wheel.sha256 for wheel in found})
    made = build.files(
        with_tests(found, tests),
        project=project,
        source=lambda group: pip_source(workspace, group, more=True),
        root=public_url(workspace, ""),
    )
    if args.output:
        _to_folder(args.output, made)
        changed, where = list(made), str(args.output)
    else:
        # Pages are replaced under conditions, like those of the index.
        check_store(store)
        changed, where = list(build.write(store, made).changed), public_url(workspace, "index.html")
    if args.json:
        show.json_document({"files": len(made), "changed": changed, "where": where})
    else:
        show.say(f"{len(made)} files, {len(changed)} changed: {where}")
    return 0


def _to_folder(folder: Path, made: dict[str, bytes]) -> None:
    """Write the files; without room for all, the pages that were there stay, whole."""
    try:
        outputs.write(folder, {Path(key): data for key, data in made.items()})
    except PermissionError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from error
