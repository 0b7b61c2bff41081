"""The pages for people: `farm site build`, and what other commands of the index do about them."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from farm.base.errors import FarmError, UsageError
from farm.cli import show
from farm.cli.selection import project_of
from farm.index.backends import open_store
from farm.index.check import Problem
from farm.index.layout import CATALOGUE
from farm.index.pages import parse_catalogue
from farm.index.publish import check_store
from farm.index.stores import Store
from farm.plan.settings import Settings
from farm.run.pip_commands import public_url, words_of
from farm.run.workspace import Watcher, Workspace
from farm.site import pages
from farm.site.wheels import Wheel, kept_tests, wheels, with_tests


class _Site(NamedTuple):
    """What the pages follow from."""

    workspace: Workspace
    store: Store
    wheels: Sequence[Wheel]
    projects: Sequence[str]

    def words(self, group: str, filename: str) -> tuple[str, ...]:
        return words_of(self.workspace, group, filename)

    def files(self, project: Path) -> dict[str, bytes]:
        return pages.files(
            self.wheels,
            project=project,
            words=self.words,
            root=public_url(self.workspace, ""),
            projects=self.projects,
        )

    def project_files(self) -> dict[str, bytes]:
        return pages.project_files(self.wheels, words=self.words, projects=self.projects)


def run_site(args: argparse.Namespace) -> int:
    """Build the site from the index and the matrix; write what changed."""
    project, settings = _settings(args)
    site = _read(project, settings)
    contents = site.files(project)
    changed = _write(site.store, contents)
    where = public_url(site.workspace, "index.html")
    line = f"{len(contents)} files, {len(changed)} changed: {where}"
    show.answer(args, {"files": len(contents), "changed": changed, "where": where}, [line])
    return 0


def refresh_site(args: argparse.Namespace, store: Store) -> list[str]:
    """Write the pages for people after a change of the index.

    Returns:
        The keys of those that changed.
    """
    try:
        if _is_own(args, store):
            project, settings = project_of(args)
            site = _read(project, settings)
            return _write(site.store, site.files(project))
        reason = "this is not the index of ci/farm.yaml, which has the addresses on them"
    except FarmError as error:
        # The change itself is done: nobody should run it again for the pages.
        reason = str(error)
    show.note(f"the pages for people are as before: {reason}; farm site build writes them")
    return []


def site_problems(args: argparse.Namespace, store: Store) -> list[Problem]:
    """What the pages for people show that is not so.

    Of a copy, or outside of the index's project, they have addresses that are not known here: only
    wheels that were withdrawn are looked for.
    """
    try:
        is_own = _is_own(args, store)
        project, settings = _settings(args)
        site = _read(project, settings)
    except FarmError:  # no project, or a catalogue or page that the check of the index names
        return []
    available = {wheel.filename for wheel in site.wheels if wheel.withdrawn is None}
    problems = []
    for key, data in site.project_files().items():
        stored = store.get(key)
        if stored is not None and stored.data == data:
            continue
        withdrawn = set[str]()
        if stored is not None:
            withdrawn = pages.installable_files(stored.data) - available
        if withdrawn:
            problem = f"offers {min(withdrawn)}, which was withdrawn: farm site build"
            problems.append(Problem(key, problem, broken=True))
        elif is_own:
            problems.append(Problem(key, "is older than the index: farm site build", broken=False))
    return problems


def _is_own(args: argparse.Namespace, store: Store) -> bool:
    """Is this the index of the project's ci/farm.yaml?"""
    project, settings = project_of(args)
    return open_store(settings.index_at(project)).url("") == store.url("")


def _settings(args: argparse.Namespace) -> tuple[Path, Settings]:
    project, settings = project_of(args)
    if args.index:
        settings = settings.with_index(args.index)
    return project, settings


def _read(project: Path, settings: Settings) -> _Site:
    workspace = Workspace(project, settings, Watcher())
    store = open_store(workspace.index_url)
    stored = store.get(CATALOGUE)
    if stored is None:
        raise UsageError(
            f"{workspace.index_url} is no index: it has no {CATALOGUE}",
            hint="publish a wheel first",
        )
    projects = sorted(parse_catalogue(stored.data).names)
    index_wheels = list(wheels(store))
    tests = kept_tests(store, {wheel.filename: wheel.sha256 for wheel in index_wheels})
    return _Site(workspace, store, with_tests(index_wheels, tests), projects)


def _write(store: Store, made: Mapping[str, bytes]) -> list[str]:
    # Pages are replaced under conditions, like those of the index.
    check_store(store)
    return pages.write(store, made)
