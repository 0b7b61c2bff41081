"""The pages of an index: the JSON page of a project (PEP 691, 700), its HTML (PEP 503, 592, 629,
714), the catalogue.

Pure functions: records and events in, pages out. An HTML page says which generation of the JSON
page it shows, so that a slow writer cannot put an older one over a newer one.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from html import escape
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote

from packaging.version import Version
from pydantic import Field, ValidationError, model_validator

from farm.base.errors import UsageError
from farm.base.yamlfile import first_fault
from farm.index.layout import CATALOGUE, WheelName, json_key, parse_wheel_name, wheel_identity
from farm.index.records import Model, Sha256, Wheel, check_schema, foreign, parse
from farm.index.stores import Store, data_of

API_VERSION = "1.1"
"""Of the simple API: sizes, versions and upload times (PEP 700)."""

HTML = "text/html; charset=utf-8"
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
JSON = "application/vnd.pypi.simple.v1+json"  # clients refuse application/json for a page
CATALOGUE_TYPE = "application/json"


class Hashes(Model):
    sha256: Sha256


class File(Model):
    """One wheel on a page, as PEP 691, 700 and 714 write it; keys with `_` are the farm's own."""

    filename: WheelName
    url: str | None = None
    hashes: Hashes
    size: int | None = Field(default=None, ge=0)
    upload_time: str | None = Field(default=None, alias="upload-time")
    requires_python: str | None = Field(default=None, alias="requires-python")
    core_metadata: Hashes | None = Field(default=None, alias="core-metadata")
    yanked: bool | str = False
    channel: str | None = Field(default=None, alias="_channel")  # the channel that it was built for
    # The sha256 of the wheel's record: what signs the page covers that, and so where the wheel
    # comes from.
    record: Sha256 | None = Field(default=None, alias="_record")
    # The number of the newest event about it that the page shows.
    event: int | None = Field(default=None, ge=1, alias="_event")


class Meta(Model):
    """`generation` grows with every change of the page."""

    api_version: str = Field(default=API_VERSION, alias="api-version")
    generation: int = Field(ge=1, alias="_generation")


class ProjectPage(Model):
    """The JSON page of one project in one group; `removed` keeps the names of wheels that were
    removed.
    """

    meta: Meta
    name: str
    versions: tuple[str, ...]
    files: tuple[File, ...]
    removed: tuple[File, ...] | None = Field(default=None, alias="_removed")

    @property
    def generation(self) -> int:
        return self.meta.generation

    @property
    def entries(self) -> dict[str, File]:
        return {file.filename: file for file in self.files}

    @property
    def ever(self) -> tuple[File, ...]:
        """Those too that were removed."""
        return (*self.files, *(self.removed or ()))

    def render(self) -> bytes:
        # In the order of the fields, as people read it.
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


class Update(NamedTuple):
    """A page after a change, and the wheels that could not be listed on it, each with the
    reason.
    """

    page: ProjectPage
    refused: Mapping[str, str]


def page_url(filename: str) -> str:
    """The wheel as seen from a project's page, JSON or HTML: both are three folders deep below
    `whl/`.
    """
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
    """Reads a JSON page; ForeignObjectError if it is not one of ours: nothing may be written over
    it then.
    """
    return parse(ProjectPage, data, key)


def updated(
    page: ProjectPage | None,
    project: str,
    wheels: Iterable[Wheel],
    *,
    drop: Collection[str] = (),
    above: int = 0,
    force: bool = False,
) -> Update:
    """The page with these wheels as their records and events say.

    Args:
        page: The page as it is; None: there is none.
        project: Its project.
        wheels: Some or all wheels of the project.
        drop: Entries that go, since nothing says that there are such wheels.
        above: A generation that somebody was shown; the new one is higher.
        force: What the page shows of later events and of removals is taken back too.

    Returns:
        The next generation, or the same page if nothing changes.
    """
    change = _Change(page, drop, force=force)
    for wheel in wheels:
        change.take(wheel)
    return Update(change.new_page(project, above), change.refused)


class _Change:
    """The wheels of a page while some of them change."""

    def __init__(self, page: ProjectPage | None, drop: Collection[str], *, force: bool) -> None:
        self.page = page
        self.force = force
        self.files: dict[str, File] = {}
        self.removed: dict[str, File] = {}
        self.refused: dict[str, str] = {}
        self.is_changed = False
        if page is not None:
            for file in page.files:
                if file.filename not in drop:
                    self.files[file.filename] = file
            for file in page.removed or ():
                self.removed[file.filename] = file
        self.spellings = {wheel_identity(name): name for name in (*self.files, *self.removed)}

    def take(self, wheel: Wheel) -> None:
        """Show a wheel as its record and events say, or note why that is refused."""
        if wheel.state.removed is not None:
            self._remove(wheel)
            return
        name = wheel.name
        reason = self._refusal(name)
        if reason:
            self.refused[name] = reason
            return
        new = entry(wheel)
        old = self.files.get(name)
        # A faster writer may have shown a newer event.
        is_late = old is not None and (old.event or 0) > (new.event or 0)
        if old != new and (self.force or not is_late):
            self.is_changed = True
            self.files[name] = new
            self.removed.pop(name, None)

    def _remove(self, wheel: Wheel) -> None:
        name = wheel.name
        if name in self.removed and name not in self.files:
            return
        self.is_changed = True
        self.files.pop(name, None)
        self.removed[name] = File(filename=name, hashes=entry(wheel).hashes)

    def _refusal(self, name: str) -> str:
        """Why a wheel cannot be listed; empty if it can."""
        if name in self.removed and not self.force:
            return f"{name} was removed; its name stays taken"
        # Installers take `canary-2.0-…` and `Canary-2.0.0-…` for one: which of them a user gets
        # would be chance.
        first = self.spellings.setdefault(wheel_identity(name), name)
        if first != name:
            return (
                f"{name} is to installers the same wheel as {first}, which is or was in this index"
            )
        return ""

    def new_page(self, project: str, above: int) -> ProjectPage:
        """The page after the change; the same one if nothing changed."""
        new = _assembled(self.page, project, self.files, self.removed, above)
        if self.page is None or self.is_changed or above > self.page.generation:
            return new
        if new.files == self.page.files and new.versions == self.page.versions:
            return self.page
        return new


def _assembled(
    page: ProjectPage | None,
    project: str,
    files: Mapping[str, File],
    removed: Mapping[str, File],
    above: int,
) -> ProjectPage:
    by_version = sorted((_version_of(file), file.filename) for file in files.values())
    generation = above
    if page is not None:
        generation = max(page.generation, above)
    removed_files = [removed[name] for name in sorted(removed)]
    return ProjectPage(
        meta=Meta(generation=generation + 1),
        name=project,
        versions=tuple(dict.fromkeys(str(version) for version, _ in by_version)),
        files=tuple(files[name] for _, name in by_version),
        removed=tuple(removed_files) or None,
    )


def _version_of(file: File) -> Version:
    return parse_wheel_name(file.filename)[1]


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


class Catalogue(Model):
    """The catalogue, for programs; small, however many wheels there are, and read by every
    publisher first.

    Only a project that is new to a group changes it.
    """

    schema_version: Literal[3] = Field(default=3, alias="schema")
    groups: dict[str, tuple[str, ...]] = {}  # the projects of each group
    meta: ListMeta = ListMeta()
    # All names, once, for clients that read PEP 691; it follows from the groups.
    projects: tuple[ProjectName, ...] = ()
    # The store whose conditional writes the first publish tried: the sha256 of its URL.
    tried: Sha256 | None = Field(default=None, alias="_tried")

    def render(self) -> bytes:
        projects = ProjectNames.of(self.names).projects
        return Model.render(self.model_copy(update={"projects": projects}))

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        # It follows from the groups: a list that differs was written by something else.
        if self.projects != ProjectNames.of(self.names).projects:
            raise ValueError("its list of projects is not that of its groups")
        return self

    @property
    def names(self) -> set[str]:
        """The projects of all groups."""
        return set().union(*self.groups.values())

    def having(self, group: str, names: Iterable[str]) -> "Catalogue":
        """The catalogue with these projects of a group; itself if it has them."""
        projects = self.groups.get(group, ())
        both = tuple(sorted({*projects, *names}))
        if both == projects:
            return self
        return self.model_copy(update={"groups": {**self.groups, group: both}})


def catalogue_schema() -> dict[str, Any]:
    """The JSON schema of `catalog.json`, for programs that read it. A change that breaks them
    raises `schema`.
    """
    return {
        **Catalogue.model_json_schema(by_alias=True),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The projects of each group; versions and files: "
        "whl/<group>/v1-json/<project>/index.json",
        "required": ["schema", "groups"],
    }


def parse_catalogue(data: bytes | None, key: str = CATALOGUE) -> Catalogue:
    """Reads a catalogue; None is an empty one. ForeignObjectError if it is not one of ours."""
    if data is None:
        return Catalogue()
    try:
        return Catalogue.model_validate_json(data)
    except ValidationError as error:
        check_schema(error, Catalogue, key)
        first = error.errors()[0]
        reason = first_fault(error)
        if first["loc"] == ("schema",):
            reason = f"schema {first['input']!r:.20}, of another version of the farm"
        raise foreign(key, reason) from error


def read_catalogue(store: Store) -> Catalogue:
    """The catalogue as it is now; an index without one has an empty one."""
    return parse_catalogue(data_of(store.get(CATALOGUE)))


def read_page(store: Store, group: str, project: str) -> ProjectPage | None:
    """A project's page as it is now."""
    key = json_key(group, project)
    stored = store.get(key)
    if stored is None:
        return None
    return parse_page(stored.data, key)


def check_there(store: Store) -> None:
    """UsageError where no index is at all: of nothing one could say that it is whole."""
    if store.get(CATALOGUE) is not None:
        return
    for folder in ("records/", "events/", "whl/"):
        for _ in store.list(folder):
            return
    hint = "correct its name, mount its disk, or publish a wheel first"
    raise UsageError(f"there is no index at {store.url('')}", hint=hint)


# --- HTML ---


def project_html(page: ProjectPage) -> bytes:
    """The HTML page that shows `page`."""
    head = [f'<meta name="farm:generation" content="{page.generation}">']
    links = [anchor(file, file.url) for file in page.files]
    return document(f"Links for {page.name}", head, links)


def generation_of(html: bytes, key: str) -> int:
    """Which generation of the JSON page a project's HTML page shows; ForeignObjectError if it is
    not one of ours.
    """
    match = re.search(
        rb'^<meta name="farm:generation" content="([1-9][0-9]{0,17})">$', html, re.MULTILINE
    )
    if match is None:
        raise foreign(key, "no generation")
    return int(match[1])


def list_html(title: str, names: Iterable[str], folder: str = "") -> bytes:
    """A list: of a group's projects (PEP 503), or of groups, whose own lists lie in `folder`."""
    anchors = []
    for name in sorted(names):
        address = f"{quote(name, safe='')}/{folder}"
        anchors.append(f'<a href="{address}">{escape(name)}</a><br>')
    return document(title, [], anchors)


def parse_list(html: bytes, key: str) -> set[str]:
    """The names on a list, as `list_html` wrote it; ForeignObjectError if it is not one of ours."""
    projects = set()
    for line in _body(html, key):
        link = re.fullmatch(r'<a href="([a-z0-9._-]+)/(?:simple/)?">\1</a><br>', line)
        if link is None:
            raise foreign(key, f"a line that is not a link to a project: {line[:80]!r}")
        projects.add(link[1])
    return projects


def anchor(file: File, href: str | None) -> str:
    """The link to a file, as a line of a page."""
    attributes = {"href": f"{href}#sha256={file.hashes.sha256}"}
    if file.requires_python is not None:
        attributes["data-requires-python"] = file.requires_python
    if file.core_metadata is not None:
        # Not PEP 658's old name as well, which PEP 714 leaves open: pip 22.3 to 23.1 (Debian 12 has
        # 23.0) read it, and refuse METADATA that spells the project in another way than the
        # requirement (Jinja2 for jinja2).
        attributes["data-core-metadata"] = f"sha256={file.core_metadata.sha256}"
    if file.yanked is True:
        attributes["data-yanked"] = ""
    elif file.yanked is not False:
        attributes["data-yanked"] = file.yanked
    texts = []
    for name, value in attributes.items():
        # A line break must stay inside its line: pages are read back by lines.
        escaped = CONTROL.sub(" ", escape(value))
        texts.append(f'{name}="{escaped}"')
    return f"<a {' '.join(texts)}>{escape(file.filename)}</a><br>"


def document(title: str, head: list[str], body: list[str]) -> bytes:
    """A page: lines of its head and body, as they are."""
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API_VERSION}">',
        *head,
        f"<title>{escape(title)}</title>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
        *body,
        "</body>",
        "</html>",
    ]
    return ("\n".join(lines) + "\n").encode()


def _body(html: bytes, key: str) -> list[str]:
    try:
        lines = html.decode().split("\n")
        start = lines.index("<body>")
        end = lines.index("</body>")
    except ValueError as error:  # UnicodeDecodeError is one too
        raise foreign(key, "no body") from error
    if not (start + 1 < end and lines[start + 1].startswith("<h1>")):
        raise foreign(key, "no heading")
    return lines[start + 2 : end]
