"""`farm site build`: the pages beside the index."""

import argparse

from farm.base.errors import UsageError
from farm.cli import show
from farm.cli.index import add_index
from farm.cli.project import project_of
from farm.index.backends import open_store
from farm.index.layout import CATALOGUE
from farm.index.publish import check_store
from farm.run.release import pip_source, public_url
from farm.run.workspace import Watcher, Workspace
from farm.site import build
from farm.site.tested import kept_tests
from farm.site.wheels import wheels, with_tests


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["build"], help="write the pages from the index and the matrix")
    add_index(parser)


def run(args: argparse.Namespace) -> int:
    """Build the site from the index and the matrix; write what changed."""
    project, settings = project_of(args)
    if args.index:
        settings = settings.with_index(args.index)
    workspace = Workspace(project, settings, Watcher())
    store = open_store(workspace.index_url)
    if store.get(CATALOGUE) is None:
        raise UsageError(f"{workspace.index_url} is no index: it has no {CATALOGUE}", hint="publish a wheel first")
    found = list(wheels(store))
    tests = kept_tests(store, {wheel.filename: wheel.sha256 for wheel in found})
    made = build.files(
        with_tests(found, tests),
        project=project,
        source=lambda group: pip_source(workspace, group, more=True),
        root=public_url(workspace, ""),
    )
    # Pages are replaced under conditions, like those of the index.
    check_store(store)
    changed, where = list(build.write(store, made).changed), public_url(workspace, "index.html")
    if args.json:
        show.json_document({"files": len(made), "changed": changed, "where": where})
    else:
        show.say(f"{len(made)} files, {len(changed)} changed: {where}")
    return 0
