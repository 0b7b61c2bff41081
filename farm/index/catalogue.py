"""`catalog.json`: which projects there are in which group, for programs; small, however many wheels there are.

The versions and files of a project are on its JSON page, whose key follows from group and project. Only what is new to
a group changes the catalogue: a project, or a channel's first wheel of it. It also carries what every publisher must
know first, so that one request reads all of that: that the store was proved, and which keys may sign. It is a list of
projects as PEP 691 has it, too: of all groups together.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import AwareDatetime, Field, ValidationError, model_validator

from farm import catalog
from farm.base.errors import UsageError
from farm.index.pages import API_VERSION, Model, Sha256, foreign
from farm.index.stores import Store

CATALOGUE_KEY = "catalog.json"
CATALOGUE_TYPE = "application/json"

Listed = dict[str, dict[str, tuple[str, ...]]]
"""Group -> project -> channels."""


class ListMeta(Model):
    api_version: str = Field(default=API_VERSION, alias="api-version")


class ListedProject(Model):
    name: str


class Projects(Model):
    """The list of a group's projects (PEP 691)."""

    meta: ListMeta = ListMeta()
    projects: tuple[ListedProject, ...]


class Proof(Model):
    """What a probe of the store found (`farm.index.probe`). `store`: the sha256 of its URL, which tells nobody more."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    store: Sha256
    time: AwareDatetime
    bare_etags: bool


class Catalogue(Model):
    """What there is.

    Attributes:
        groups: The projects of each group, and the channels that built a wheel of them.
        links: The projects that are pages of links to another index, and the channels whose roots have them.
        projects: All names, once, for clients that read PEP 691; follows from the two above.
        proof: That the store keeps its promises; None when nobody tried, or the proof is of another version.
        keys: The keyids that may sign pages, where they are signed. A hint for publishers: `farm.index.keys` decides.
    """

    schema_version: Literal[2] = Field(default=2, alias="schema")
    groups: Listed = {}
    links: Listed = Field(default={}, alias="_links")
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
        known = {**self.groups.get(group, {}), **self.links.get(group, {})}
        return {name for name, channels in known.items() if channel is None or channel in channels}

    @property
    def names(self) -> set[str]:
        """The names on the lists of all groups that have wheels of their own."""
        return {name for group in self.groups for name in self.listed(group)}

    def with_project(self, group: str, project: str, channels: Collection[str]) -> "Catalogue":
        """The catalogue with the project and these channels of it; itself if it has them."""
        present = self.groups.get(group, {}).get(project)
        # Channels are only added: a slower publisher must not undo what a faster one has shown.
        if present is not None and set(present) >= set(channels):
            return self
        named = tuple(sorted({*(present or ()), *channels}))
        return self.model_copy(
            update={"groups": {**self.groups, group: {**self.groups.get(group, {}), project: named}}}
        )

    def with_links(self, links: Mapping[str, Mapping[str, tuple[str, ...]]]) -> "Catalogue":
        """The catalogue with these pages of links, in the groups that are named; itself if it has them."""
        merged = {**self.links, **{group: dict(sorted(has.items())) for group, has in links.items()}}
        merged = {group: has for group, has in merged.items() if has}
        return self if merged == self.links else self.model_copy(update={"links": merged})


def catalogue_schema() -> dict[str, Any]:
    """The JSON schema of `catalog.json`, for programs that read it. A change that breaks them raises `schema`."""
    return {
        **Catalogue.model_json_schema(by_alias=True),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The projects of each group; versions and files: whl/<group>/v1-json/<project>/index.json",
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
        first = error.errors()[0]
        other = first["loc"] == ("schema",)
        why = f"schema {first['input']!r:.20}, of another version of the farm" if other else str(first["msg"])
        raise foreign(key, why, data) from error


def projects_json(names: Iterable[str]) -> bytes:
    """The list of a group's projects (PEP 691)."""
    made = Projects(projects=tuple(ListedProject(name=name) for name in sorted(names)))
    return json.dumps(made.model_dump(by_alias=True), separators=(",", ":")).encode()


def parse_projects(data: bytes, key: str) -> set[str]:
    """The names on a list of projects; ForeignObjectError if it is not one of ours."""
    try:
        return {project.name for project in Projects.model_validate_json(data).projects}
    except ValidationError as error:
        raise foreign(key, str(error.errors()[0]["msg"]), data) from error


def without_rebuild(version: str) -> str:
    """`2.0.1+cu118.sm35.avx` for `2.0.1+cu118.sm35.avx.1`: a number at the end of a local version counts rebuilds.

    The number at the end of `2.8.0+cu128.sm120.armv8.2` is the CPU's: a local version knows no underscore.
    """
    if version.endswith(tuple(f".{cpu}".replace("_", ".") for cpu in catalog.cpu_levels())):
        return version
    return re.sub(r"(\+.*[^.])\.[0-9]+$", r"\1", version)


def check_there(store: Store) -> None:
    """UsageError where no index is at all: of nothing one could say that it is whole, and that all of it was copied."""
    if store.get(CATALOGUE_KEY) is None and not any(
        True for top in ("records/", "events/", "whl/") for _key in store.list(top)
    ):
        raise UsageError(
            f"there is no index at {store.url('')}",
            hint="correct its name, mount its disk, or publish a wheel first",
        )
