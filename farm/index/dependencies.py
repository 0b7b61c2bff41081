"""Pages of links for what the wheels need, so that `--index-url` alone installs them.

The links lead to another index and are taken from its pages, with their hashes. What fits a release of torch stands in
`dependencies.yaml`, and in METADATA where it pins one version (`nvidia-cublas-cu11==11.11.3.6`). What other packages
need stands in their METADATA, and what that needs in turn in the METADATA of the other index. Nothing is downloaded but
pages and METADATA.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable
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

from farm.base.errors import UsageError
from farm.base.requirement import read_requirement
from farm.index import layout, pages
from farm.index.pages import File, Meta, ProjectPage
from farm.index.publish import Made, Pages, Written, check_store
from farm.index.records import Model
from farm.index.simple import check_source, metadata_of, project_files
from farm.index.stores import Store, swap


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


def wanted(store: Store, group: str) -> dict[str, list[SpecifierSet]]:
    """Needs of a group's wheels: project -> allowed versions, one set for each stack. Empty without torch."""
    releases = {
        Version(layout.parse_wheel_name(file.filename)[1].public)
        for file in _own_files(store, group, "torch")
        if file.yanked is False
    }
    found: dict[str, list[SpecifierSet]] = defaultdict(list)
    for stack in stacks():
        if any(SpecifierSet(stack.torch).contains(release, prereleases=True) for release in releases):
            for project, specifier in stack.needs.items():
                found[project].append(SpecifierSet(specifier))
    return dict(found)


def pinned(store: Store, group: str) -> dict[str, list[SpecifierSet]]:
    """Requirements of a group's torch wheels that pin one version: project -> these versions."""
    found: dict[str, list[SpecifierSet]] = defaultdict(list)
    for need in _own_needs(store, group, "torch"):
        if any(each.operator == "==" for each in need.specifier):
            found[canonicalize_name(need.name)].append(need.specifier)
    return dict(found)


def required(
    store: Store, group: str, own: Iterable[str], known: Container[str], read: Callable[[str], list[File]]
) -> dict[str, list[SpecifierSet]]:
    """Requirements of the group's other packages and of those in turn, beside the `known` ones.

    Args:
        store: Where the packages are.
        group: Of them.
        own: The projects of the group that are the farm's; they are not looked for elsewhere.
        known: Projects whose versions are decided otherwise.
        read: The wheels of a project in the other index.

    Raises:
        UsageError: The other index has no wheel of one, and the requirement has no marker that may rule it out.
    """
    ours = set(own)
    found: dict[str, list[SpecifierSet]] = defaultdict(list)
    waiting = [need for project in sorted(ours - {"torch"}) for need in _own_needs(store, group, project)]
    while waiting:
        need = waiting.pop()
        project = canonicalize_name(need.name)
        if project in ours or project in known or need.specifier in found.get(project, []):
            continue
        try:
            files = _fitting(read(project), [need.specifier], [])
        except UsageError:
            files = []
        if not files and need.marker is None:
            raise UsageError(f"the other index has no wheel of {project} that fits {need.specifier or 'any version'}")
        if files:
            found[project].append(need.specifier)
            # The newest speaks for the others: one METADATA is fetched for each project.
            waiting += needs_of(metadata_of(max(files, key=lambda file: layout.parse_wheel_name(file.filename)[1])))
    return dict(found)


def _own_needs(store: Store, group: str, project: str) -> list[Requirement]:
    """Requirements in the METADATA of a project's wheels, each once."""
    held = [store.get(layout.metadata_key(file.filename)) for file in _own_files(store, group, project)]
    return list({str(need): need for data in held if data for need in needs_of(data.data)}.values())


def _own_files(store: Store, group: str, project: str) -> tuple[File, ...]:
    page = pages.read_page(store, group, project)
    return page.files if page else ()


def needs_of(metadata: bytes) -> list[Requirement]:
    """The Requires-Dist that no extra asks for; what cannot be read is left to the installer to refuse."""
    raw, _ = parse_email(metadata)
    found = []
    for line in raw.get("requires_dist", []):
        try:
            need = read_requirement(line)
        except InvalidRequirement:
            continue
        if "extra" not in str(need.marker or "") and need.url is None:
            found.append(need)
    return found


def link_dependencies(store: Store, source: str, *, group: str | None = None) -> list[str]:
    """Writes the pages of what the wheels of a group, or of all groups, need.

    Args:
        store: Where.
        source: The root of the other index's simple API: http(s):// or file://.
        group: One group; None for all.

    Returns:
        The keys of the pages that were written.

    Raises:
        UsageError: The source is not a URL, or no page of the source has what is needed.
        InfrastructureError: The source or the store failed.
    """
    check_source(source)
    writer, done = Pages(store, check_store(store)), Written([], [], {}, {})
    catalogue = writer.known
    read = cache(lambda project: project_files(source, project))
    for name in [group] if group else sorted(catalogue.groups):
        sections = catalogue.groups.get(name, {})
        channels = sorted({channel for built_by in sections.values() for channel in built_by})
        fits, pins = wanted(store, name), pinned(store, name)
        more = required(store, name, sections, fits, read)
        made = {}
        for project in sorted({*fits, *pins, *more} - sections.keys()):  # those are the farm's own wheels
            specifiers, exact = fits.get(project, []) + more.get(project, []), pins.get(project, [])
            files = _fitting(read(project), specifiers, exact)
            if not files:
                text = " or ".join(dict.fromkeys(map(str, [*specifiers, *exact])))
                raise UsageError(f"{source} has no wheel of {project} that fits {text}")
            made[project] = Made(_written(store, name, _page(project, files, tuple(channels)), done))
        if made:
            writer.derive(name, made, done)
    return sorted(set(done.keys))


def _written(store: Store, group: str, page: ProjectPage, done: Written) -> ProjectPage:
    key = layout.json_key(group, page.name)

    def change(old: bytes | None) -> bytes | None:
        if old is None:
            return page.render()
        before = pages.parse_page(old, key)
        meta = page.meta.model_copy(update={"generation": before.generation})
        # The same but for its generation: nothing is written, and clients' caches hold.
        if page.model_copy(update={"meta": meta}) == before:
            return None
        return page.model_copy(update={"meta": meta.model_copy(update={"generation": before.generation + 1})}).render()

    swapped = swap(store, key, change, pages.JSON)
    if swapped.written:
        done.keys.append(key)
    return pages.parse_page(swapped.data, key)


def _page(project: str, files: list[File], channels: tuple[str, ...]) -> ProjectPage:
    """The first generation of a page of links."""
    sized = all(file.size is not None for file in files)
    ordered = sorted(files, key=lambda each: (layout.parse_wheel_name(each.filename)[1], each.filename))
    return ProjectPage(
        meta=Meta(
            api_version=pages.API_VERSION if sized else "1.0",  # sizes came with 1.1 and must be there since
            generation=1,
            links=True,
            channels=channels,
        ),
        name=project,
        versions=pages.versions_of(ordered),
        files=tuple(ordered),
    )


def _fitting(files: list[File], specifiers: list[SpecifierSet], exact: list[SpecifierSet]) -> list[File]:
    """The wheels of the newest fitting release of each minor series, and of the `exact` ones."""
    newest: dict[tuple[int, ...], Version] = {}
    by_version: dict[Version, list[File]] = defaultdict(list)
    for file in files:
        version = layout.parse_wheel_name(file.filename)[1]
        if any(specifier.contains(version) for specifier in exact):
            by_version[version].append(file)
        elif any(specifier.contains(version) for specifier in specifiers):  # leaves prereleases out
            by_version[version].append(file)
            series = (version.epoch, version.major, version.minor)
            newest[series] = max(version, newest.get(series, version))
    chosen = {version for version in by_version if any(specifier.contains(version) for specifier in exact)}
    return [file for version in sorted(chosen | set(newest.values())) for file in by_version[version]]
