"""`catalog.json`: which wheels there are, for people and for the selector; small, however many rebuilds there are.

One section for each project of each group, a pure function of the project's JSON page.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from farm import catalog
from farm.index.pages import Model, ProjectPage, foreign

CATALOGUE_KEY = "catalog.json"

Versions = dict[str, dict[str, tuple[str, ...]]]


class CatalogueSection(Model):
    """What a group offers of a project: version (without the number of a rebuild) -> tags -> channels.

    `generation` is that of the JSON page which last changed it.
    """

    generation: int = Field(ge=1, alias="_generation")
    versions: Versions


class Catalogue(Model):
    """`groups`: group -> project -> section."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    generation: int = Field(default=0, ge=0, alias="_generation")
    groups: dict[str, dict[str, CatalogueSection]] = {}

    def render(self) -> bytes:
        return json.dumps(self.model_dump(by_alias=True), sort_keys=True, separators=(",", ":")).encode()

    def section(self, group: str, project: str) -> CatalogueSection | None:
        return self.groups.get(group, {}).get(project)

    def with_section(self, group: str, project: str, section: CatalogueSection) -> "Catalogue":
        """The catalogue with the section; itself if it shows the same, or a later one."""
        present = self.section(group, project)
        if present and (present.generation >= section.generation or present.versions == section.versions):
            return self
        groups: dict[str, Mapping[str, CatalogueSection]] = {
            **self.groups,
            group: {**self.groups.get(group, {}), project: section},
        }
        return self.model_copy(update={"generation": self.generation + 1, "groups": groups})

    def without(self, group: str, project: str) -> "Catalogue":
        """The catalogue without a section whose page is not there."""
        kept = {name: section for name, section in self.groups.get(group, {}).items() if name != project}
        groups = {name: sections for name, sections in {**self.groups, group: kept}.items() if sections}
        return self.model_copy(update={"generation": self.generation + 1, "groups": groups})


def catalogue_schema() -> dict[str, Any]:
    """The JSON schema of `catalog.json`, for programs that read it. A change that breaks them raises `schema`."""
    return {
        **Catalogue.model_json_schema(by_alias=True, mode="serialization"),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The wheels that an index of the farm offers",
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
