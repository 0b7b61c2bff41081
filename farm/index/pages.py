"""The pages of an index as data: the JSON page of a project (PEP 691, 700), and the catalogue.

Pure functions: records and events in, pages out. `farm.index.html` shows them to clients that read HTML.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote

from pydantic import Field, ValidationError, model_validator

from farm.base.errors import UsageError
from farm.index.layout import CATALOGUE, WheelName, json_key, parse_wheel_name, wheel_identity
from farm.index.records import Model, Sha256, Wheel, compact, foreign, parse
from farm.index.stores import Prediction, Store

API_VERSION = "1.1"
"""Of the simple API: sizes, versions and upload times (PEP 700)."""

HTML = "text/html; charset=utf-8"
JSON = "application/vnd.pypi.simple.v1+json"  # clients refuse application/json for a page
CATALOGUE_TYPE = "application/json"


class Hashes(Model):
    sha256: Sha256


class File(Model):
    """One wheel on a page, as PEP 691, 700 and 714 write it; keys with `_` are the farm's own.

    Attributes:
        channel: The channel that it was built for.
        record: The sha256 of the wheel's record: what signs the page covers that, and so where the wheel comes from.
        event: The number of the newest event about it that the page shows.
        generation: Of the page, when this entry last changed.
    """

    filename: WheelName
    url: str | None = None
    hashes: Hashes
    size: int | None = Field(default=None, ge=0)
    upload_time: str | None = Field(default=None, alias="upload-time")
    requires_python: str | None = Field(default=None, alias="requires-python")
    core_metadata: Hashes | None = Field(default=None, alias="core-metadata")
    yanked: bool | str = False
    channel: str | None = Field(default=None, alias="_channel")
    record: Sha256 | None = Field(default=None, alias="_record")
    event: int | None = Field(default=None, ge=1, alias="_event")
    generation: int | None = Field(default=None, ge=1, alias="_generation")


class Meta(Model):
    """`links`: a page of links to another index (a dependency's); the roots of `channels` have it too."""

    api_version: str = Field(default=API_VERSION, alias="api-version")
    generation: int = Field(ge=1, alias="_generation")
    links: Literal[True] | None = Field(default=None, alias="_links")
    channels: tuple[str, ...] | None = Field(default=None, alias="_channels")


class ProjectPage(Model):
    """The JSON page of one project in one group; `removed` keeps the names of wheels that were removed."""

    meta: Meta
    name: str
    versions: tuple[str, ...]
    files: tuple[File, ...]
    removed: tuple[File, ...] | None = Field(default=None, alias="_removed")

    @property
    def generation(self) -> int:
        """Grows with every change of the page."""
        return self.meta.generation

    @property
    def entries(self) -> dict[str, File]:
        return {file.filename: file for file in self.files}

    @property
    def ever(self) -> tuple[File, ...]:
        """Those too that were removed."""
        return (*self.files, *(self.removed or ()))

    @property
    def channels(self) -> frozenset[str]:
        """Whose roots have the page."""
        if self.meta.channels is not None:
            return frozenset(self.meta.channels)
        return frozenset(file.channel for file in self.ever if file.channel is not None)

    def generation_in(self, channel: str | None) -> int:
        """The generation of the last change that one channel's wheels saw; of the page, for no channel."""
        # A channel's page changes only with its own wheels, or each publish would write the pages of all channels.
        changes = [file.generation or 1 for file in self.ever if file.channel == channel]
        return max(changes, default=self.generation) if channel else self.generation

    def render(self) -> bytes:
        # In the order of the fields, as people read it.
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


class Update(NamedTuple):
    """A page after a change, and the wheels that could not be listed on it, each with the reason."""

    page: ProjectPage
    refused: Mapping[str, str]


def page_url(filename: str) -> str:
    """The wheel as seen from a project's page, JSON or HTML: both are three folders deep below `whl/`."""
    # Relative, so that pages stay true in a copy, behind another name and in a folder.
    return f"../../../files/{quote(filename, safe='')}"


def entry(wheel: Wheel) -> File:
    """A wheel on pages."""
    record, state = wheel
    return File(
        filename=record.filename,
        url=page_url(record.filename),
        hashes=Hashes(sha256=record.sha256),
        size=record.size,
        upload_time=record.upload_time,
        requires_python=record.requires_python,
        core_metadata=Hashes(sha256=record.metadata_sha256),
        yanked=state.yanked,
        channel=record.channel,
        record=record.digest,
        event=state.number or None,
    )


def parse_page(data: bytes, key: str) -> ProjectPage:
    """Reads a JSON page; ForeignObjectError if it is not one of ours: nothing may be written over it then."""
    return parse(ProjectPage, data, key)


def empty(project: str) -> ProjectPage:
    """The page of a project that has no wheels, not yet stored anywhere."""
    return ProjectPage(meta=Meta(generation=1), name=project, versions=(), files=())


def updated(
    page: ProjectPage | None,
    project: str,
    wheels: Iterable[Wheel],
    *,
    drop: Collection[str] = (),
    above: int = 0,
    force: bool = False,
) -> Update:
    """The page with these wheels as their records and events say: the next generation, or the same page if it is so.

    Args:
        page: As it is; None where there is none.
        project: Its name.
        wheels: Some or all of the project's wheels.
        drop: Entries that go, since nothing says that there are such wheels.
        above: The new generation is above this one: it was shown to somebody.
        force: Also what the page shows of later events, and of removals, is taken back.
    """
    files = {} if page is None else {name: file for name, file in page.entries.items() if name not in drop}
    removed = {file.filename: file for file in (page.removed or () if page else ())}
    spelled = {wheel_identity(name): name for name in (*files, *removed)}
    refused: dict[str, str] = {}
    changed = set()
    for wheel in wheels:
        name, new, old = wheel.name, entry(wheel), files.get(wheel.name)
        if wheel.state.removed is not None:
            if name not in removed or old is not None:
                changed.add(name)
                files.pop(name, None)
                removed[name] = File(filename=name, hashes=new.hashes, channel=new.channel)
        elif name in removed and not force:
            refused[name] = f"{name} was removed; its name stays taken"
        # Installers take `canary-2.0-…` and `Canary-2.0.0-…` for one: which of them a user gets would be chance.
        elif (before := spelled.setdefault(wheel_identity(name), name)) != name:
            refused[name] = f"{name} is to installers the same wheel as {before}, which is or was in this index"
        elif old is not None and (old.event or 0) > (new.event or 0) and not force:
            pass  # a faster writer has shown a newer event
        elif old is None or old.model_copy(update={"generation": None}) != new:
            changed.add(name)
            files[name] = new
            removed.pop(name, None)
    made = _assembled(page, project, files, removed, changed, above)
    same = page is not None and not changed and above <= page.generation and made.files == page.files
    return Update(page if page is not None and same and made.versions == page.versions else made, refused)


def _assembled(
    page: ProjectPage | None,
    project: str,
    files: Mapping[str, File],
    removed: Mapping[str, File],
    changed: Collection[str],
    above: int,
) -> ProjectPage:
    generation = max(0 if page is None else page.generation, above) + 1

    def touched(file: File) -> File:
        return file.model_copy(update={"generation": generation}) if file.filename in changed or above else file

    ordered = sorted(files.values(), key=lambda each: (parse_wheel_name(each.filename)[1], each.filename))
    return ProjectPage(
        meta=Meta(generation=generation),
        name=project,
        versions=versions_of(ordered),
        files=tuple(map(touched, ordered)),
        removed=tuple(touched(removed[name]) for name in sorted(removed)) or None,
    )


def versions_of(files: Iterable[File]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(parse_wheel_name(each.filename)[1]) for each in files))


def is_sound(page: ProjectPage, project: str) -> bool:
    """Does the page follow from its own entries?"""
    removed = {file.filename: file for file in page.removed or ()}
    again = _assembled(page, project, page.entries, removed, (), 0)
    return len(page.entries) == len(page.files) and again.model_copy(update={"meta": page.meta}) == page


class ListMeta(Model):
    api_version: str = Field(default=API_VERSION, alias="api-version")


class ProjectName(Model):
    name: str


class ProjectNames(Model):
    """The list of a group's projects (PEP 691)."""

    meta: ListMeta = ListMeta()
    projects: tuple[ProjectName, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> "ProjectNames":
        return cls(projects=tuple(ProjectName(name=name) for name in sorted(names)))

    def render(self) -> bytes:
        return compact(self.model_dump(by_alias=True))


Channels = dict[str, dict[str, tuple[str, ...]]]
"""Group -> project -> channels."""


class TriedStore(Model):
    """That conditional writes were tried on a store (the sha256 of its URL), and whether it needs plain pages."""

    store: Sha256
    plain: bool = False


class Catalogue(Model):
    """The catalogue, for programs; small, however many wheels there are, and read by every publisher first.

    Only what is new to a group changes it: a project, or a channel's first wheel of it.

    Attributes:
        groups: The projects of each group, and the channels that built a wheel of them.
        links: The projects that are pages of links to another index, and the channels whose roots have them.
        projects: All names, once, for clients that read PEP 691; follows from the two above.
        tried: What the first publish found out about the store.
    """

    schema_version: Literal[2] = Field(default=2, alias="schema")
    groups: Channels = {}
    links: Channels = Field(default={}, alias="_links")
    meta: ListMeta = ListMeta()
    projects: tuple[ProjectName, ...] = ()
    tried: TriedStore | None = Field(default=None, alias="_tried")

    def render(self) -> bytes:
        document = self.model_copy(update={"projects": self._all()})
        return compact(document.model_dump(by_alias=True, exclude_none=True))

    def _all(self) -> tuple[ProjectName, ...]:
        names = {name for group in (*self.groups, *self.links) for name in self.names(group)}
        return ProjectNames.of(names).projects

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        # It follows from the groups: a list that differs was written by something else.
        if self.projects != self._all():
            raise ValueError("its list of projects is not that of its groups")
        return self

    def names(self, group: str, channel: str | None = None) -> set[str]:
        """The projects of a group, or of a channel in it."""
        known = {**self.groups.get(group, {}), **self.links.get(group, {})}
        return {name for name, channels in known.items() if channel is None or channel in channels}

    @property
    def own_names(self) -> set[str]:
        """The projects of all groups that have wheels of their own."""
        return {name for group in self.groups for name in self.names(group)}

    def has(self, group: str) -> bool:
        return group in self.groups or group in self.links

    def having(self, group: str, pages: Iterable[ProjectPage]) -> "Catalogue":
        """The catalogue with these projects of a group, and their channels; itself if it has them."""
        both: dict[bool, Channels] = {True: dict(self.links), False: dict(self.groups)}
        for page in pages:
            known = both[page.meta.links is True].get(group, {})
            # Channels are only added: a slower publisher must not undo what a faster one has shown.
            channels = tuple(sorted({*known.get(page.name, ()), *page.channels}))
            if known.get(page.name) != channels:
                both[page.meta.links is True][group] = {**known, page.name: channels}
        if (both[True], both[False]) == (self.links, self.groups):
            return self
        return self.model_copy(update={"groups": both[False], "links": both[True]})


def catalogue_schema() -> dict[str, Any]:
    """The JSON schema of `catalog.json`, for programs that read it. A change that breaks them raises `schema`."""
    return {
        **Catalogue.model_json_schema(by_alias=True),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The projects of each group; versions and files: whl/<group>/v1-json/<project>/index.json",
        "required": ["schema", "groups"],
    }


def parse_catalogue(data: bytes | None, key: str = CATALOGUE) -> Catalogue:
    """Reads a catalogue; None is an empty one. ForeignObjectError if it is not one of ours."""
    if data is None:
        return Catalogue()
    try:
        return Catalogue.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        other = first["loc"] == ("schema",)
        why = f"schema {first['input']!r:.20}, of another version of the farm" if other else str(first["msg"])
        raise foreign(key, why, data) from error


def read_catalogue(store: Store) -> tuple[Catalogue, Prediction]:
    """The catalogue, and what is stored of it."""
    found = store.get(CATALOGUE)
    return parse_catalogue(found.data if found else None), Prediction(found)


def read_page(store: Store, group: str, project: str) -> ProjectPage | None:
    """A project's page as it is now."""
    key = json_key(group, project)
    found = store.get(key)
    return None if found is None else parse_page(found.data, key)


def check_there(store: Store) -> None:
    """UsageError where no index is at all: of nothing one could say that it is whole."""
    if store.get(CATALOGUE) is None and not any(
        True for top in ("records/", "events/", "whl/") for _key in store.list(top)
    ):
        raise UsageError(
            f"there is no index at {store.url('')}",
            hint="correct its name, mount its disk, or publish a wheel first",
        )
