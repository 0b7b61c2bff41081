"""The files of the site: a page of each project, a first page, what could be built, and what was
tested as JSON.

All of them follow from the index, the project's channels and the farm's version. After a publish
the files of the changed projects are written, and the rows of these projects on the others.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import compress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from farm.base.errors import FarmError, InfrastructureError
from farm.index.layout import parse_wheel_name
from farm.index.pages import catalogue_schema, read_catalogue
from farm.index.pins import install_words
from farm.index.reader import KEY as STANDINGS
from farm.index.reader import Standing, Test, parse_standings, render
from farm.index.stores import Store, Stored, data_of, etag_of, get_many
from farm.plan.channel import Channel
from farm.plan.evidence import Evidence, load_evidence
from farm.plan.matrix import load_matrix
from farm.site import pages
from farm.site.overview import Overview, Words, by_project, overview_in
from farm.site.smoke_reports import REQUESTS, kept_tests
from farm.site.wheels import STATES, Wheel, wheels, with_tests

INDEX = "index.html"
BUILDABLE = "buildable.html"
SCHEMA = "catalog.schema.json"
TYPES = {".html": "text/html; charset=utf-8", ".json": "application/json"}
TRIES = 30
"""A page of which all publishers write a part may be overtaken often."""


@dataclass(frozen=True)
class SiteSource:
    """What the site follows from besides the index.

    Attributes:
        project: The project whose channels could be built; None: what could be built is not shown.
        root: The address of the index's root, ending in a slash.
    """

    project: Path | None
    root: str


Files = dict[str, bytes]
"""Files of the site by their keys below the index's root."""
StoredFiles = Mapping[str, Stored | None]
"""Files as the index has them; None for those that it has not."""


class Contents(NamedTuple):
    """The wheels of some or all projects, read at once.

    Attributes:
        projects: The projects that were read; one without wheels has an empty page.
        wheels: Their wheels, newest first.
        words: What `pip install` is given for each of them.
    """

    projects: tuple[str, ...]
    wheels: Sequence[Wheel]
    words: Words


def project_key(name: str) -> str:
    """The page of a project."""
    return f"project/{name}.html"


def project_names(store: Store) -> list[str]:
    """All projects that the index ever had."""
    return sorted(read_catalogue(store).names)


def read_all(store: Store, root: str) -> Contents:
    """Read the wheels of the whole index; `root`: its address."""
    index_wheels = list(wheels(store))
    tests = kept_tests(store, _sha256_by_name(index_wheels))
    words = _install_words(store, root, index_wheels)
    return Contents(
        projects=tuple(project_names(store)),
        wheels=with_tests(index_wheels, tests),
        words=words,
    )


def read_projects(store: Store, root: str, names: Collection[str]) -> Contents:
    """Read the wheels of some projects; the others cost nothing."""
    project_wheels = list(wheels(store, names))
    tests = kept_tests(store, _sha256_by_name(project_wheels), by_wheel=True)
    words = _install_words(store, root, project_wheels)
    return Contents(
        projects=tuple(sorted(names)),
        wheels=with_tests(project_wheels, tests),
        words=words,
    )


def _sha256_by_name(index_wheels: Iterable[Wheel]) -> dict[str, str]:
    """The digests of wheels by the names of their files."""
    return {wheel.filename: wheel.sha256 for wheel in index_wheels}


def _install_words(store: Store, root: str, index_wheels: Iterable[Wheel]) -> Words:
    """What `pip install` is given for each of some wheels; each object is read once."""

    @cache
    def read(key: str) -> bytes | None:
        return data_of(store.get(key))

    def words_of(place: tuple[str, str]) -> tuple[str, ...]:
        group, filename = place
        return install_words(read, root, group, filename)

    places = []
    for wheel in index_wheels:
        if wheel.withdrawn is None:
            for group in wheel.groups:
                places.append((group, wheel.filename))
    with ThreadPoolExecutor(REQUESTS) as pool:
        words = pool.map(words_of, places)
        words_by_place = dict(zip(places, words, strict=True))
    return lambda group, filename: words_by_place[group, filename]


# --- what the files hold


def site_files(contents: Contents, source: SiteSource) -> Files:
    """Every file of the site by its key below the index's root. The same data give the same
    bytes.
    """
    overview = Overview.of(contents.wheels, contents.words)
    files = _project_pages(contents)
    files |= _common_pages(overview, source)
    files[STANDINGS] = render(_standings(contents.wheels))
    schema = json.dumps(catalogue_schema(), indent=2)
    files[SCHEMA] = schema.encode()
    return files


def changed_files(
    contents: Contents,
    source: SiteSource,
    overview: Overview,
    standings: Mapping[str, Standing],
) -> Files:
    """The files that a change of some projects changes.

    Args:
        contents: The projects as they are now.
        source: What the site follows from besides the index.
        overview: The rows of all projects as they were.
        standings: What was tested as it was.
    """
    changed = Overview.of(contents.wheels, contents.words)
    new_overview = overview.with_projects(contents.projects, changed)
    new_standings = _standings(contents.wheels)
    for name, standing in standings.items():
        project, *_ = parse_wheel_name(name)
        if project not in contents.projects:
            new_standings[name] = standing
    files = _project_pages(contents)
    files |= _common_pages(new_overview, source)
    files[STANDINGS] = render(new_standings)
    return files


def _project_pages(contents: Contents) -> Files:
    """The pages of the projects that were read."""
    wheels_by_project = by_project(contents.wheels)
    files = {}
    for name in sorted({*contents.projects, *wheels_by_project}):
        project_wheels = wheels_by_project.get(name, [])
        page = pages.project_page(name, project_wheels, contents.words)
        files[project_key(name)] = page.encode()
    return files


def _common_pages(overview: Overview, source: SiteSource) -> Files:
    """The first page, and that of what could be built."""
    search_data = pages.data(overview, source.project)
    first_page = pages.index_page(search_data, overview, source.root)
    channels, evidence = _offered(source.project)
    buildable_page = pages.buildable_page(channels, evidence, overview)
    return {
        INDEX: first_page.encode(),
        BUILDABLE: buildable_page.encode(),
    }


def _offered(project: Path | None) -> tuple[list[Channel], Evidence]:
    """The channels of a project and what was tested of them; none where there is no project."""
    if project is None:
        return [], Evidence(())
    try:
        matrix = load_matrix(project)
        evidence = load_evidence(project)
    except FarmError:  # what is in the index is shown without them
        return [], Evidence(())
    return list(matrix.channels.values()), evidence


def _standings(index_wheels: Iterable[Wheel]) -> dict[str, Standing]:
    """What was tested of each wheel that installers get."""
    standings = {}
    for wheel in index_wheels:
        if wheel.withdrawn is not None:
            continue
        tests = []
        for smoke in wheel.tests:
            test = Test(
                where=smoke.where,
                date=smoke.date,
                outcome=smoke.outcome,
            )
            tests.append(test)
        standings[wheel.filename] = Standing(
            state=STATES[wheel.state],
            tests=tuple(tests),
        )
    return standings


def installable_files(page: bytes) -> set[str]:
    """The wheels to which a project's page leads."""
    links = re.findall(rb'href="\.\./whl/files/([^"#]+)"', page)
    return {unquote(link.decode("utf-8", "replace")) for link in links}


# --- writing


def build(store: Store, source: SiteSource) -> tuple[Files, list[str]]:
    """Write the whole site.

    Returns:
        All files, and the keys of those that changed.

    Raises:
        InfrastructureError: Another process writes the site all the time.
    """

    def content(_stored: StoredFiles) -> Files:
        contents = read_all(store, source.root)
        return site_files(contents, source)

    return write(store, lambda: _all_keys(store), content)


def update(store: Store, source: SiteSource, projects: Collection[str]) -> list[str]:
    """Write what a change of some projects changes.

    The work follows from the wheels of these projects; the others are not read. The whole site is
    written if another version of the farm wrote it.

    Returns:
        The keys of the files that changed.

    Raises:
        InfrastructureError: Another process writes the site all the time.
    """
    keys = [INDEX, BUILDABLE, STANDINGS, *map(project_key, projects)]
    outdated = False

    def content(stored: StoredFiles) -> Files:
        nonlocal outdated
        overview = _stored_overview(stored[INDEX])
        standings = _stored_standings(stored[STANDINGS])
        outdated = overview is None or standings is None
        if overview is None or standings is None:
            return {}
        contents = read_projects(store, source.root, projects)
        return changed_files(contents, source, overview, standings)

    _files, changed = write(store, lambda: keys, content)
    if outdated:
        _files, changed = build(store, source)
    return changed


def _stored_overview(page: Stored | None) -> Overview | None:
    """The overview inside the first page; None if there is none of this version of the farm."""
    if page is None:
        return None
    return overview_in(page.data)


def _stored_standings(document: Stored | None) -> Mapping[str, Standing] | None:
    """What was tested, as the index has it; None if it has nothing of this version of the farm."""
    if document is None:
        return None
    return parse_standings(document.data)


def _all_keys(store: Store) -> list[str]:
    """The keys of all files of the site."""
    keys = [INDEX, BUILDABLE, STANDINGS, SCHEMA]
    keys += map(project_key, project_names(store))
    return keys


class _OvertakenError(InfrastructureError):
    """Another process wrote a page meanwhile."""


def write(
    store: Store,
    keys: Callable[[], Sequence[str]],
    content: Callable[[StoredFiles], Files],
) -> tuple[Files, list[str]]:
    """Write files that follow from the index, so that an older state never replaces a newer one.

    The files are read before the index is, and replaced only where they are still as they were
    read: of two writers the later one has seen what the other wrote about, or begins again.
    """
    changed: dict[str, None] = {}

    def attempt() -> Files:
        stored = get_many(store, keys(), REQUESTS)
        files = content(stored)

        def replace(key: str) -> bool:
            return _replace(store, key, files[key], stored.get(key))

        differing = []
        for key, data in files.items():
            if _differs(stored.get(key), data):
                differing.append(key)
        with ThreadPoolExecutor(REQUESTS) as pool:
            replaced = pool.map(replace, differing)
            written = list(compress(differing, replaced))
        changed.update(dict.fromkeys(written))
        if len(written) < len(differing):
            raise _OvertakenError(
                f"{store.url(INDEX)}: other processes keep writing the pages for people",
                hint="run `farm site build` again",
            )
        return files

    retrying = Retrying(
        stop=stop_after_attempt(TRIES),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        retry=retry_if_exception_type(_OvertakenError),
        reraise=True,
    )
    return retrying(attempt), list(changed)


def _differs(stored: Stored | None, data: bytes) -> bool:
    """True if a stored file does not hold these bytes."""
    return stored is None or stored.data != data


def _replace(store: Store, key: str, data: bytes, stored: Stored | None) -> bool:
    """Write a file; False if it is not as it was read any more."""
    content_type = TYPES[Path(key).suffix]
    return store.replace(key, data, etag_of(stored), content_type=content_type)
