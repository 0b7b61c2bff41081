"""The pages for people: `farm site build`, and what `farm index check` says about them."""

import argparse
from dataclasses import replace

from farm.base.errors import FarmError, UsageError
from farm.cli import show
from farm.cli.selection import project_of
from farm.index.check import Problem
from farm.index.layout import CATALOGUE
from farm.index.publish import check_store
from farm.index.reader import KEY
from farm.index.store_urls import open_store
from farm.index.stores import Store
from farm.run.pip_commands import public_url
from farm.run.site_step import configured, site_source
from farm.run.workspace import Watcher, Workspace
from farm.site.files import INDEX, build, installable_files, read_all, site_files
from farm.site.overview import overview_in


class NoteWatcher(Watcher):
    """Prints notes alone."""

    def note(self, text: str) -> None:
        show.note(text)


def run_site(args: argparse.Namespace) -> int:
    """Build the site from the index and the matrix; write what changed."""
    workspace = index_workspace(args)
    store = open_store(workspace.index_url)
    if store.get(CATALOGUE) is None:
        raise UsageError(
            f"{workspace.index_url} is no index: it has no {CATALOGUE}",
            hint="publish a wheel first",
        )
    # Pages are replaced under conditions, like those of the index.
    check_store(store)
    addressed = configured(workspace) or workspace
    files, changed = build(store, site_source(addressed))
    where = public_url(addressed, INDEX)
    line = f"{len(files)} files, {len(changed)} changed: {where}"
    show.answer(args, {"files": len(files), "changed": changed, "where": where}, [line])
    return 0


def index_workspace(args: argparse.Namespace) -> Workspace:
    """The project, with the index that `--index` names in the place of its own."""
    project, settings = project_of(args)
    if args.index:
        settings = settings.with_index(args.index)
    return Workspace(project, settings, NoteWatcher())


def site_problems(args: argparse.Namespace, store: Store) -> list[Problem]:
    """What the pages for people show that is not so.

    Of a copy, or outside of the index's project, they have addresses that are not known here: only
    wheels that were withdrawn are looked for.
    """
    try:
        workspace = index_workspace(args)
        addressed = configured(workspace)
        # Without what could be built, which takes long and is not compared.
        source = replace(site_source(addressed or workspace), project=None)
        contents = read_all(store, source.root)
        files = site_files(contents, source)
    except FarmError:  # no project, or a catalogue or page that the check of the index names
        return []
    available = {wheel.filename for wheel in contents.wheels if wheel.withdrawn is None}
    problems = []
    for key, data in files.items():
        stored = store.get(key)
        is_same = stored is not None and _content(key, stored.data) == _content(key, data)
        if is_same:
            continue
        withdrawn = set[str]()
        if stored is not None:
            withdrawn = installable_files(stored.data) - available
        if withdrawn:
            problem = f"offers {min(withdrawn)}, which was withdrawn: farm site build"
            problems.append(Problem(key, problem, broken=True))
        elif addressed is not None and _follows_from_wheels(key):
            problems.append(Problem(key, "is older than the index: farm site build", broken=False))
    return problems


def _follows_from_wheels(key: str) -> bool:
    """Does the file change with the index alone?

    The others show channels and facts too, which an upgrade of the farm changes.
    """
    return key in {INDEX, KEY} or key.startswith("project/")


def _content(key: str, data: bytes) -> object:
    """What of a file must be as the index says: of the first page, its wheels."""
    return overview_in(data) if key == INDEX else data
