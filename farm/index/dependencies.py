"""Pages of links for what the wheels need, so that `--index-url` alone installs them.

The links lead to another index and are taken from its pages, with their hashes; which versions fit stands in
`dependencies.yaml`, and in the METADATA of the wheels where these pin one (`nvidia-cublas-cu11==11.11.3.6`). Nothing is
downloaded but pages.
"""

from collections import defaultdict
from functools import cache
from importlib import resources
from typing import Annotated

import yaml
from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import AfterValidator

from farm.errors import UsageError
from farm.index import pages
from farm.index.catalogue import CATALOGUE_KEY, CATALOGUE_TYPE, Catalogue, parse_catalogue
from farm.index.listing import derive_links
from farm.index.pages import File, Meta, Model, ProjectPage
from farm.index.simple import check_source, project_files
from farm.index.stores import Store
from farm.index.swap import swap


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from error
    return text


Specifier = Annotated[str, AfterValidator(_specifier)]


class Stack(Model):
    """For wheels of these releases of torch, what else is needed and fits."""

    torch: Specifier
    needs: dict[str, Specifier]


class _Dependencies(Model):
    sources: dict[str, str]
    stacks: tuple[Stack, ...]


@cache
def stacks() -> tuple[Stack, ...]:
    """The content of `dependencies.yaml`."""
    text = (resources.files("farm.index") / "dependencies.yaml").read_text(encoding="utf-8")
    return _Dependencies.model_validate(yaml.safe_load(text)).stacks


def wanted(catalogue: Catalogue, group: str) -> dict[str, list[SpecifierSet]]:
    """What a group's wheels need: project -> what may be taken, one set for each stack. Empty without torch."""
    section = catalogue.section(group, "torch")
    releases = {Version(Version(version).public) for version in section.versions} if section else set()
    found: dict[str, list[SpecifierSet]] = defaultdict(list)
    for stack in stacks():
        if any(SpecifierSet(stack.torch).contains(release, prereleases=True) for release in releases):
            for project, specifier in stack.needs.items():
                found[project].append(SpecifierSet(specifier))
    return dict(found)


def pinned(store: Store, group: str) -> dict[str, list[SpecifierSet]]:
    """What METADATA of a group's torch wheels requires in one version: project -> these versions."""
    page = store.get(pages.json_key(group, "torch"))
    found: dict[str, list[SpecifierSet]] = defaultdict(list)
    for file in pages.parse_page(page.data, group).files if page else ():
        metadata = store.get(pages.metadata_key(file.filename))
        raw, _ = parse_email(metadata.data if metadata else b"")
        for line in raw.get("requires_dist", []):
            try:
                need = Requirement(line)
            except (InvalidRequirement, RecursionError):
                continue
            exact = any(each.operator == "==" for each in need.specifier)
            if exact and "extra" not in str(need.marker or ""):
                found[canonicalize_name(need.name)].append(need.specifier)
    return dict(found)


def link_dependencies(store: Store, source: str, *, group: str | None = None) -> dict[str, bytes]:
    """Writes the pages of what the wheels of a group, or of all groups, need.

    Args:
        store: Where.
        source: The root of the other index's simple API: http(s):// or file://.
        group: One group; None for all.

    Returns:
        The pages, by key, as they are now.

    Raises:
        UsageError: The source is no URL, or no page of the source has what is needed.
        InfrastructureError: The source or the store failed.
    """
    check_source(source)
    found = store.get(CATALOGUE_KEY)
    catalogue = parse_catalogue(found.data if found else None)
    read = cache(lambda project: project_files(source, project))
    written: dict[str, bytes] = {}
    linked: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for name in [group] if group else sorted(catalogue.groups):
        section = catalogue.section(name, "torch")
        channels = sorted(section.channels if section else ())
        fits, pins = wanted(catalogue, name), pinned(store, name)
        for project in sorted({*fits, *pins}):
            if project in catalogue.groups[name]:
                continue  # the farm's own wheels of it
            specifiers, exact = fits.get(project, []), pins.get(project, [])
            files = _fitting(read(project), specifiers, exact)
            if not files:
                text = " or ".join(dict.fromkeys(map(str, [*specifiers, *exact])))
                raise UsageError(f"{source} has no wheel of {project} that fits {text}")
            written |= _written(store, name, project, files, tuple(channels))
            linked[name][project] = tuple(channels)
    return written | _catalogued(store, linked)


def _catalogued(store: Store, linked: dict[str, dict[str, tuple[str, ...]]]) -> dict[str, bytes]:
    """Lists the pages in the catalogue, so that a publisher knows without a look what the lists of projects hold."""
    if not linked:
        return {}

    def new(old: bytes | None) -> bytes | None:
        before = parse_catalogue(old)
        after = before.with_links({group: {**before.links.get(group, {}), **has} for group, has in linked.items()})
        return None if after is before else after.render()

    return {CATALOGUE_KEY: swap(store, CATALOGUE_KEY, new, CATALOGUE_TYPE).data}


def _written(store: Store, group: str, project: str, files: list[File], channels: tuple[str, ...]) -> dict[str, bytes]:
    key = pages.json_key(group, project)

    def change(old: bytes | None) -> bytes | None:
        before = None if old is None else pages.parse_page(old, key)
        page = _page(project, files, channels, 1 if before is None else before.generation + 1)
        if (
            before is not None
            and page.model_copy(update={"meta": before.meta}) == before
            and before.meta.channels == channels
        ):
            return None
        return page.render()

    done = swap(store, key, change, pages.JSON)
    return {key: done.data} | derive_links(store, group, pages.parse_page(done.data, key))


def _page(project: str, files: list[File], channels: tuple[str, ...], generation: int) -> ProjectPage:
    sized = all(file.size is not None for file in files)
    ordered = sorted(files, key=lambda each: (pages.parse_wheel_name(each.filename)[1], each.filename))
    return ProjectPage(
        # sizes came with 1.1 and must be there since
        meta=Meta(
            api_version=pages.API_VERSION if sized else "1.0", generation=generation, links=True, channels=channels
        ),
        name=project,
        versions=tuple(dict.fromkeys(str(pages.parse_wheel_name(each.filename)[1]) for each in ordered)),
        files=tuple(ordered),
    )


def _fitting(files: list[File], specifiers: list[SpecifierSet], exact: list[SpecifierSet]) -> list[File]:
    """The wheels of the newest fitting release of each minor series, and of the `exact` ones."""
    newest: dict[tuple[int, ...], Version] = {}
    by_version: dict[Version, list[File]] = defaultdict(list)
    for file in files:
        version = pages.parse_wheel_name(file.filename)[1]
        if any(specifier.contains(version) for specifier in exact):
            by_version[version].append(file)
        elif any(specifier.contains(version) for specifier in specifiers):  # leaves prereleases out
            by_version[version].append(file)
            series = (version.epoch, version.major, version.minor)
            newest[series] = max(version, newest.get(series, version))
    chosen = {version for version in by_version if any(specifier.contains(version) for specifier in exact)}
    return [file for version in sorted(chosen | set(newest.values())) for file in by_version[version]]
