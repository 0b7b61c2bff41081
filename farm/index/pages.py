"""The JSON page of a project (PEP 691, 700, 792): the truth from which every other page is derived.

Pure functions: pages and files in, pages out. `farm.index.html` shows them.

Keys:
    `whl/files/<wheel>`, `whl/files/<wheel>.metadata`          each wheel once, whatever roots there are
    `whl/attestations/<wheel>/<key>.intoto.json`               who built it from what, signed by a later key
    `whl/<group>/v1-json/<project>/index.json`                 the truth
    `whl/<group>/simple/<project>/index.html`                  what `pip --index-url` reads
    `whl/<group>/simple/index.html`, `v1-json/index.json`      the list of projects
    `whl/<group>/links.html`                                   what `pip --find-links` reads; signs the group's pages
    `whl/<channel>/<group>/simple/…`                           the same wheels, of one channel alone
    `whl/variant/…`                                            a group too, of labelled copies (`farm.index.variants`)
    `whl/variant/simple/<project>/…-<version>-variants.json`   what the labels of a version stand for
    `whl/index.html`, `whl/keys/<n>.root.json`                 the list of groups; whose keys count
    `catalog.json`                                             what there is, for programs
"""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from farm.base.errors import InfrastructureError, PublishRefusedError
from farm.index.naming import WheelName, parse_wheel_name, wheel_identity

API_VERSION = "1.4"
"""Of the simple API: sizes, versions and upload times (PEP 700, 1.1), project status markers (PEP 792, 1.4)."""

HTML = "text/html; charset=utf-8"
JSON = "application/vnd.pypi.simple.v1+json"  # clients refuse application/json for a page

GZIP = b"\x1f\x8b"  # how it begins, and no page does

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Model(BaseModel):
    """What is read from a store is checked; a key that we do not know is refused: writing would lose it."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ForeignObjectError(InfrastructureError):
    """An object in the index was not written by this farm."""


class Hashes(Model):
    sha256: Sha256


Properties = dict[str, dict[str, list[str]]]
"""Namespace -> feature -> values, as the drafts of PEP 825 have them."""


class Named(Model):
    """What has the name of a wheel: a label is in it if, and only if, this is a labelled copy."""

    filename: WheelName
    source: WheelName | None = Field(default=None, alias="_source")
    properties: Properties | None = Field(default=None, alias="_properties")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if len({each is None for each in (wheel_identity(self.filename)[4], self.source, self.properties)}) > 1:
            raise ValueError(f"{self.filename} has a label, a source or properties without the others")
        return self


class File(Named):
    """One wheel on a page, as PEP 691, 700 and 714 write it; keys with `_` are the farm's own.

    Attributes:
        url: None while the link is withheld.
        channel: The channel that it was built for.
        record: The sha256 of the wheel's record, which says where it comes from: what signs the page covers it.
        quarantined: Why its link is withheld.
        event: The number of the newest event about it that the page shows (`farm.index.events`).
        generation: Of the page, when this entry last changed.
        source: The wheel that it is a labelled copy of.
        properties: What the label of a copy stands for.
    """

    url: str | None = None
    hashes: Hashes
    size: int | None = Field(default=None, ge=0)
    upload_time: str | None = Field(default=None, alias="upload-time")
    requires_python: str | None = Field(default=None, alias="requires-python")
    core_metadata: Hashes | None = Field(default=None, alias="core-metadata")
    yanked: bool | str = False
    channel: str | None = Field(default=None, alias="_channel")
    record: Sha256 | None = Field(default=None, alias="_record")
    quarantined: str | None = Field(default=None, alias="_quarantined")
    event: int | None = Field(default=None, ge=1, alias="_event")
    generation: int | None = Field(default=None, ge=1, alias="_generation")


LATER: Mapping[str, bool | None] = {"yanked": False, "quarantined": None, "event": None, "generation": None}
"""What of a `File` comes later than its record."""


class Meta(Model):
    """`event` is the newest event about the project.

    `links`: a page of links to another index (a dependency's); the roots of `channels` have it too. `tracks`: the pages
    of that index which it follows (PEP 708), so that an installer may take both for the same project.
    """

    api_version: str = Field(default=API_VERSION, alias="api-version")
    generation: int = Field(ge=1, alias="_generation")
    event: int | None = Field(default=None, ge=1, alias="_event")
    links: Literal[True] | None = Field(default=None, alias="_links")
    channels: tuple[str, ...] | None = Field(default=None, alias="_channels")
    tracks: tuple[str, ...] | None = None


class Status(Model):
    """PEP 792. A quarantined project has no links."""

    status: Literal["active", "quarantined"]
    reason: str | None = None


class ProjectPage(Model):
    """The JSON page of one project in one group.

    Attributes:
        files: The wheels that are offered.
        withheld: Those that are not: quarantined themselves, or with the whole project. Clients skip the key.
        removed: What is left of wheels that were removed: their names stay taken.
        alternate_locations: The pages of the same project in its owner's other indexes (PEP 708).
    """

    meta: Meta
    name: str
    project_status: Status = Field(default=Status(status="active"), alias="project-status")
    versions: tuple[str, ...]
    files: tuple[File, ...]
    withheld: tuple[File, ...] | None = Field(default=None, alias="_withheld")
    removed: tuple[File, ...] | None = Field(default=None, alias="_removed")
    alternate_locations: tuple[str, ...] | None = Field(default=None, alias="alternate-locations")

    @property
    def generation(self) -> int:
        """Grows by one with every change of the page."""
        return self.meta.generation

    @property
    def entries(self) -> dict[str, File]:
        """Every wheel that the page knows, offered or not."""
        return {file.filename: file for file in (*self.files, *(self.withheld or ()))}

    @property
    def ever(self) -> Iterable[File]:
        """Those too that were removed."""
        return (*self.files, *(self.withheld or ()), *(self.removed or ()))

    def labels(self, version: str) -> dict[str, Properties]:
        """What the labels of a version's copies stand for. They only ever get more: a removed copy's stay."""
        known = [(wheel_identity(file.filename), file.properties) for file in self.ever if file.properties is not None]
        return {label: its for (_, found, _, _, label), its in known if label is not None and str(found) == version}

    @property
    def labelled(self) -> dict[str, str]:
        """The versions with copies that are offered, each with the file name of the page of its labels."""
        found = {str(parse_wheel_name(file.filename)[1]) for file in self.files if file.properties is not None}
        # As the file names of its wheels spell the project.
        return {each: f"{self.name.replace('-', '_')}-{each}-variants.json" for each in sorted(found)}

    @model_validator(mode="before")
    @classmethod
    def _without_labels(cls, data: object) -> object:
        """`render` lists the pages of labels among the files, for clients; they follow from the other files."""
        if not isinstance(data, dict) or not isinstance(files := data.get("files"), list):
            return data
        return {**data, "files": [each for each in files if not _leads_to_labels(data.get("name"), each)]}

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
        document = self.model_dump(by_alias=True, exclude_none=True)
        labels = [_labels_entry(self.name, filename) for filename in self.labelled.values()]
        document["files"] = [*document["files"], *labels]
        return json.dumps(document, separators=(",", ":")).encode()


def _labels_entry(project: str, filename: str) -> dict[str, object]:
    # Below `simple`, from wherever the page is read; without a hash, since it grows without the page.
    return {"filename": filename, "url": f"../../simple/{project}/{quote(filename)}", "hashes": {}}


def _leads_to_labels(project: object, entry: object) -> bool:
    name = entry.get("filename") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not isinstance(project, str) or not name.endswith("-variants.json"):
        return False
    return entry == _labels_entry(project, name)


def wheel_key(filename: str) -> str:
    return f"whl/files/{filename}"


def metadata_key(filename: str) -> str:
    return f"whl/files/{filename}.metadata"


def json_key(group: str, project: str) -> str:
    return f"whl/{group}/v1-json/{project}/index.json"


def html_key(group: str, project: str) -> str:
    return f"whl/{group}/simple/{project}/index.html"


def root_key(group: str) -> str:
    return f"whl/{group}/simple/index.html"


def json_root_key(group: str) -> str:
    return f"whl/{group}/v1-json/index.json"


def labels_key(group: str, project: str, filename: str) -> str:
    """Where the labels of a version lie."""
    return f"whl/{group}/simple/{project}/{filename}"


def links_key(group: str) -> str:
    return f"whl/{group}/links.html"


def channel_root(channel: str, group: str) -> str:
    """The folder of the wheels of a group that one channel built; HTML pages alone."""
    return f"whl/{channel}/{group}/simple/"


def page_url(filename: str) -> str:
    """The wheel as seen from a project's page, JSON or HTML: both lie three folders deep below `whl/`."""
    # Relative, so that pages stay true in a copy, behind another name and in a folder.
    return f"../../../files/{quote(filename, safe='')}"


def parse_page(data: bytes, key: str) -> ProjectPage:
    """Reads a JSON page.

    Raises:
        ForeignObjectError: It is not one of ours; nothing may be written over it then.
    """
    try:
        return ProjectPage.model_validate_json(data)
    except ValidationError as error:
        raise foreign(key, f"{error.error_count()} errors, the first: {error.errors()[0]['msg']}", data) from error


def with_files(page: ProjectPage | None, project: str, *files: File) -> ProjectPage:
    """The page with the files on it: the next generation, or the same page if all are there already.

    A file on a quarantined page is withheld like the others; one that was quarantined stays so.

    Raises:
        PublishRefusedError: The page has other bytes under such a name, or the wheel was removed.
    """
    removed = frozenset(each.filename for each in page.removed or ()) if page else frozenset[str]()
    entries = {} if page is None else page.entries
    new = {}
    for file in files:
        if file.filename in removed:
            raise PublishRefusedError(
                f"{file.filename} was removed; its name stays taken",
                hint="append .1 (.2 ...) to the local version: --rebuild 1",
            )
        present = entries.get(file.filename)
        if present is None:
            new[file.filename] = file
        elif present.hashes != file.hashes:
            was = present.hashes.sha256
            raise PublishRefusedError(f"{file.filename} is on the page of {project} with other bytes: {was}")
    return page if page and not new else _assembled(page, project, entries, new)


def rebuilt(project: str, files: Mapping[str, File], *, after: int) -> ProjectPage:
    """The page from the files alone, by name; of a generation after all that clients may have seen.

    Events are to be applied again.
    """
    base = empty(project)
    # `_assembled` adds one: the result is above everything that was shown.
    meta = base.meta.model_copy(update={"generation": max(after, 1)})
    return _assembled(base.model_copy(update={"meta": meta}), project, files, files)


def is_sound(page: ProjectPage, project: str) -> bool:
    """Does the page follow from its own entries: order, versions, what is withheld?"""
    again = _assembled(page, project, page.entries, {})
    return again.model_copy(update={"meta": page.meta}) == page


def empty(project: str) -> ProjectPage:
    """The page of a project that has no wheels, not yet stored anywhere."""
    return ProjectPage(meta=Meta(generation=1), name=project, versions=(), files=())


def without(page: ProjectPage, gone: Mapping[str, File]) -> ProjectPage:
    """The next generation of the page without these wheels, whose names stay taken; the same page if it is so."""
    there = {file.filename for file in page.removed or ()}
    if gone.keys() <= there and not gone.keys() & page.entries.keys():
        return page
    generation = page.generation + 1
    left = [
        File(
            filename=name,
            hashes=file.hashes,
            channel=file.channel,
            generation=generation,
            source=file.source,
            properties=file.properties,
        )
        for name, file in sorted(gone.items())
        if name not in there
    ]
    kept = {name: file for name, file in page.entries.items() if name not in gone}
    removed = (*(page.removed or ()), *left)
    return _assembled(page.model_copy(update={"removed": removed}), page.name, kept, {})


def with_changes(
    page: ProjectPage,
    changed: Mapping[str, File],
    *,
    status: Status | None = None,
    event: int | None = None,
    alternate_locations: tuple[str, ...] | None = None,
) -> ProjectPage:
    """The next generation of the page with these entries, and what event `event` of the project came to.

    The same page if there is neither.
    """
    if not changed and status is None:
        return page
    if status is not None:
        meta = page.meta.model_copy(update={"event": event})
        own = {"project_status": status, "meta": meta, "alternate_locations": alternate_locations}
        page = page.model_copy(update=own)
    return _assembled(page, page.name, page.entries, page.entries if status is not None else changed)


def _assembled(
    page: ProjectPage | None, project: str, entries: Mapping[str, File], changed: Mapping[str, File]
) -> ProjectPage:
    """The next generation of a page, with its files in the order of their versions."""
    generation = 1 if page is None else page.generation + 1
    status = Status(status="active") if page is None else page.project_status
    meta = Meta(generation=1) if page is None else page.meta.model_copy(update={"generation": generation})
    touched = {name: file.model_copy(update={"generation": generation}) for name, file in changed.items()}
    ordered = sorted(
        {**entries, **touched}.values(), key=lambda each: (parse_wheel_name(each.filename)[1], each.filename)
    )
    offered, withheld = [], []
    for file in ordered:
        if status.status == "quarantined" or file.quarantined is not None:
            withheld.append(file.model_copy(update={"url": None}))
        else:
            offered.append(file if file.url else file.model_copy(update={"url": page_url(file.filename)}))
    return ProjectPage(
        meta=meta,
        name=project,
        project_status=status,
        versions=tuple(dict.fromkeys(str(parse_wheel_name(each.filename)[1]) for each in offered)),
        files=tuple(offered),
        withheld=tuple(withheld) or None,
        removed=page.removed if page else None,
        alternate_locations=page.alternate_locations if page else None,
    )


def foreign(key: str, why: str, data: bytes = b"") -> ForeignObjectError:
    """The error for an object that is not of our making; or that is, and lost the header that says how it is packed."""
    if data.startswith(GZIP):
        return ForeignObjectError(
            f"{key} in the index is gzip-encoded, and nothing says so",
            hint="a copy that something else than farm index copy made of a bucket? farm index reconcile mends it",
        )
    return ForeignObjectError(
        f"{key} in the index is not a page of this farm ({why})",
        hint="nothing was written over it; if an older farm made it: farm index reconcile; else find out who did",
    )
