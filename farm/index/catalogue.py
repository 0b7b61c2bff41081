"""`catalog.json`: which wheels there are, for people and for the selector; small, however many rebuilds there are.

One section for each project of each group, a pure function of the project's JSON page. It also carries what every
publisher must know first, so that one request reads all of that: that the store was proved, and which keys may sign.
It is a list of projects as PEP 691 has it, too: of all groups together.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import AwareDatetime, Field, ValidationError, model_validator

from farm import catalog
from farm.index.pages import ListedProject, ListMeta, Model, ProjectPage, Sha256, foreign

CATALOGUE_KEY = "catalog.json"
CATALOGUE_TYPE = "application/json"

Versions = dict[str, dict[str, tuple[str, ...]]]


class CatalogueSection(Model):
    """What a group offers of a project: version (without the number of a rebuild) -> tags -> channels.

    `generation` is that of the JSON page which last changed it.
    """

    generation: int = Field(ge=1, alias="_generation")
    versions: Versions

    @property
    def channels(self) -> set[str]:
        """Those that built something of it."""
        return {channel for tags in self.versions.values() for channels in tags.values() for channel in channels}


class Proof(Model):
    """What a probe of the store found (`farm.index.probe`). `store`: the sha256 of its URL, which tells nobody more."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    store: Sha256
    time: AwareDatetime
    bare_etags: bool


class Catalogue(Model):
    """What there is.

    Attributes:
        groups: Group -> project -> section.
        links: Group -> project that is a page of links to another index -> channels whose roots have it.
        projects: All names, once, for clients that read PEP 691; follows from the two above.
        proof: That the store keeps its promises; None when nobody tried, or the proof is of another version.
        keys: The keyids that may sign pages, where they are signed. A hint for publishers: `farm.index.keys` decides.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    generation: int = Field(default=0, ge=0, alias="_generation")
    groups: dict[str, dict[str, CatalogueSection]] = {}
    links: dict[str, dict[str, tuple[str, ...]]] = Field(default={}, alias="_links")
    meta: ListMeta = ListMeta()
    projects: tuple[ListedProject, ...] = ()
    proof: dict[str, Any] | None = Field(default=None, alias="_proof")
    keys: tuple[str, ...] | None = Field(default=None, alias="_keys")

    def render(self) -> bytes:
        document = self.model_copy(update={"projects": self._named()}).model_dump(by_alias=True, exclude_none=True)
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    def _named(self) -> tuple[ListedProject, ...]:
        names = {name for group in (*self.groups, *self.links) for name in self.listed(group)}
        return tuple(ListedProject(name=name) for name in sorted(names))

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        # It follows from the groups: a list that differs was written by something else.
        if self.projects != self._named():
            raise ValueError("its list of projects is not that of its groups")
        return self

    def proved(self) -> Proof | None:
        """What the last probe found; None when there is nothing that this version of the farm can read."""
        try:
            return None if self.proof is None else Proof.model_validate(self.proof)
        except ValidationError:
            return None

    def listed(self, group: str, channel: str | None = None) -> set[str]:
        """The names on a list of projects: of a group, or of a channel in it."""
        sections, links = self.groups.get(group, {}), self.links.get(group, {})
        if channel is None:
            return {*sections, *links}
        found = {name for name, each in sections.items() if channel in each.channels}
        return found | {name for name, has in links.items() if channel in has}

    def section(self, group: str, project: str) -> CatalogueSection | None:
        return self.groups.get(group, {}).get(project)

    def with_section(self, group: str, project: str, section: CatalogueSection) -> "Catalogue":
        """The catalogue with the section; itself if it shows the same, or a later one."""
        present = self.section(group, project)
        # A slower publisher brings an older page: it must not undo what a faster one has shown.
        if present and (present.generation >= section.generation or present.versions == section.versions):
            return self
        groups: dict[str, Mapping[str, CatalogueSection]] = {
            **self.groups,
            group: {**self.groups.get(group, {}), project: section},
        }
        return self.model_copy(update={"generation": self.generation + 1, "groups": groups})

    def with_links(self, links: Mapping[str, Mapping[str, tuple[str, ...]]]) -> "Catalogue":
        """The catalogue with these pages of links, in the groups that are named; itself if it has them."""
        merged = {**self.links, **{group: dict(sorted(has.items())) for group, has in links.items()}}
        merged = {group: has for group, has in merged.items() if has}
        if merged == self.links:
            return self
        return self.model_copy(update={"generation": self.generation + 1, "links": merged})

    def with_groups(self, groups: Mapping[str, Mapping[str, CatalogueSection]]) -> "Catalogue":
        """The catalogue with exactly these groups; itself if it has them."""
        kept = {group: dict(sections) for group, sections in groups.items() if sections}
        if kept == self.groups:
            return self
        return self.model_copy(update={"generation": self.generation + 1, "groups": kept})


def catalogue_schema() -> dict[str, Any]:
    """The JSON schema of `catalog.json`, for programs that read it. A change that breaks them raises `schema`."""
    return {
        **Catalogue.model_json_schema(by_alias=True),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The wheels that an index of the farm offers",
        "required": ["schema", "groups"],
    }


def parse_catalogue(data: bytes | None, key: str = CATALOGUE_KEY) -> Catalogue:
    """Reads a catalogue; None is an empty one.

    Raises:
        ForeignObjectError: It is not one of ours.
    """
    if data is None:
        return Catalogue()
    try:
        return Catalogue.model_validate_json(data)
    except ValidationError as error:
        raise foreign(key, str(error.errors()[0]["msg"])) from error


def section_of(page: ProjectPage) -> CatalogueSection:
    """What a page offers; yanked and withheld wheels are left out."""
    found: dict[str, dict[str, set[str]]] = {}
    for file in page.files:
        if file.yanked is False:
            _name, version, tags = file.filename.removesuffix(".whl").split("-", 2)
            channels = found.setdefault(without_rebuild(version), {}).setdefault(tags, set())
            channels.update([file.channel] if file.channel else [])
    versions = {
        version: {tags: tuple(sorted(channels)) for tags, channels in sorted(by_tags.items())}
        for version, by_tags in sorted(found.items())
    }
    return CatalogueSection(generation=page.generation, versions=versions)


def without_rebuild(version: str) -> str:
    """`2.0.1+cu118.sm35.avx` for `2.0.1+cu118.sm35.avx.1`: a number at the end of a local version counts rebuilds.

    The number at the end of `2.8.0+cu128.sm120.armv8.2` is the CPU's: a local version knows no underscore.
    """
    if version.endswith(tuple(f".{cpu}".replace("_", ".") for cpu in catalog.cpu_levels())):
        return version
    return re.sub(r"(\+.*[^.])\.[0-9]+$", r"\1", version)
