"""What clients read. Pure functions: files in, pages out.

The JSON page of a project (PEP 691, 700) is the truth. Its HTML page and its section of `links.html` are
derived from it and say which generation of it they show, so that a slow writer cannot put an older one over a
newer one. HTML follows PEP 503, 592, 629, 658 and 714.

Keys:
    `whl/files/<wheel>`, `whl/files/<wheel>.metadata`   each wheel once, whatever groups there are
    `whl/<group>/v1-json/<project>/index.json`          the truth
    `whl/<group>/simple/<project>/index.html`           what `pip --index-url` reads
    `whl/<group>/simple/index.html`                     the list of projects
    `whl/<group>/links.html`                            what `pip --find-links` reads
"""

import json
import re
from html import escape
from typing import Annotated, NamedTuple
from urllib.parse import quote

from packaging.utils import InvalidWheelFilename, NormalizedName, parse_wheel_filename
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from farm.errors import InfrastructureError, PublishRefusedError, UsageError

API_VERSION = "1.1"
"""Of the simple API: 1.1 has sizes, versions and upload times (PEP 700)."""

HTML = "text/html; charset=utf-8"
JSON = "application/vnd.pypi.simple.v1+json"  # clients refuse application/json for a page

_GROUP = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_RESERVED_GROUPS = frozenset({"files"})
# the longest sidecar adds 14 characters and must stay a file name of at most 255
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,235}\.whl", re.ASCII)

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def parse_wheel_name(filename: str) -> tuple[NormalizedName, Version]:
    """Project and version of a wheel's file name.

    Raises:
        ValueError: It is no wheel name, or has characters that do not belong into one.
    """
    if not _WHEEL.fullmatch(filename):
        raise ValueError(f"not the file name of a wheel: {filename[:200]!r}")
    try:
        name, version, _build, _tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise ValueError(str(error)) from error
    return name, version


def _wheel_name(filename: str) -> str:
    parse_wheel_name(filename)
    return filename


WheelName = Annotated[str, AfterValidator(_wheel_name)]


class Model(BaseModel):
    """What is read from a store is checked; a key that we do not know is refused: writing would lose it."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ForeignObjectError(InfrastructureError):
    """An object in the index was not written by this farm."""


class Hashes(Model):
    sha256: Sha256


class File(Model):
    """One wheel on a page, as PEP 691 and 700 write it."""

    filename: WheelName
    url: str
    hashes: Hashes
    size: int = Field(ge=0)
    upload_time: str = Field(alias="upload-time")
    requires_python: str | None = Field(default=None, alias="requires-python")
    core_metadata: Hashes = Field(alias="core-metadata")
    yanked: bool | str = False


class Meta(Model):
    api_version: str = Field(default=API_VERSION, alias="api-version")
    generation: int = Field(ge=1, alias="_generation")


class ProjectPage(Model):
    """The JSON page of one project in one group."""

    meta: Meta
    name: str
    versions: tuple[str, ...]
    files: tuple[File, ...]

    @property
    def generation(self) -> int:
        """Grows by one with every change of the page."""
        return self.meta.generation

    def render(self) -> bytes:
        document = self.model_dump(by_alias=True, exclude_none=True)
        return json.dumps(document, separators=(",", ":")).encode()


class Section(NamedTuple):
    """The part of `links.html` that one project owns: lines of anchors, from one generation of its page."""

    generation: int
    lines: tuple[str, ...]


def check_group(group: str) -> str:
    """Gives the name of a group back, `sm35-avx` for one.

    Raises:
        UsageError: It is not lower-case letters, digits and `._-`, or is reserved.
    """
    if not _GROUP.fullmatch(group) or group in _RESERVED_GROUPS:
        raise UsageError(f"not a group of wheels: {group[:80]!r}", hint="a group looks like sm35-avx")
    return group


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


def links_key(group: str) -> str:
    return f"whl/{group}/links.html"


def page_url(filename: str) -> str:
    """The wheel as seen from a project's page, JSON or HTML: both lie three folders deep below `whl/`."""
    return f"../../../files/{quote(filename, safe='')}"


def parse_page(data: bytes, key: str) -> ProjectPage:
    """Reads a JSON page.

    Raises:
        ForeignObjectError: It is not one of ours; nothing may be written over it then.
    """
    try:
        return ProjectPage.model_validate_json(data)
    except ValidationError as error:
        raise _foreign(key, f"{error.error_count()} errors, the first: {error.errors()[0]['msg']}") from error


def with_file(page: ProjectPage | None, project: str, file: File) -> ProjectPage:
    """The page with the file on it: the next generation, or the same page if the file is there already.

    Raises:
        PublishRefusedError: The page has other bytes under this name.
    """
    files = {} if page is None else {each.filename: each for each in page.files}
    present = files.get(file.filename)
    if page is not None and present is not None:
        if present.hashes != file.hashes:
            raise PublishRefusedError(
                f"{file.filename} is on the page of {project} with other bytes: {present.hashes.sha256}"
            )
        return page
    files[file.filename] = file
    ordered = sorted(files.values(), key=lambda each: (parse_wheel_name(each.filename)[1], each.filename))
    return ProjectPage(
        meta=Meta(generation=1 if page is None else page.generation + 1),
        name=project,
        versions=tuple(dict.fromkeys(str(parse_wheel_name(each.filename)[1]) for each in ordered)),
        files=tuple(ordered),
    )


def project_html(page: ProjectPage) -> bytes:
    """The HTML page that shows `page`."""
    anchors = [_anchor(file, page_url(file.filename)) for file in page.files]
    generation = f'<meta name="farm:generation" content="{page.generation}">'
    return _document(f"Links for {page.name}", generation, anchors)


def generation_of(html: bytes, key: str) -> int:
    """Which generation of the JSON page a project's HTML page shows.

    Raises:
        ForeignObjectError: It is not one of ours.
    """
    found = re.search(rb'^<meta name="farm:generation" content="([1-9][0-9]{0,17})">$', html, re.MULTILINE)
    if found is None:
        raise _foreign(key, "no generation")
    return int(found[1])


def links_section(page: ProjectPage) -> Section:
    """The section of `links.html` that shows `page`."""
    anchors = [_anchor(file, f"../files/{quote(file.filename, safe='')}") for file in page.files]
    return Section(page.generation, tuple(anchors))


def links_html(group: str, sections: dict[str, Section]) -> bytes:
    """The flat page of a group."""
    body = []
    for project, section in sorted(sections.items()):
        heading = escape(project)
        body.append(f'<h2 id="{heading}" data-generation="{section.generation}">{heading}</h2>')
        body.extend(section.lines)
    return _document(f"All wheels of {group}", "", body)


def parse_links(html: bytes, key: str) -> dict[str, Section]:
    """The sections of a `links.html`, as `links_html` wrote them.

    Raises:
        ForeignObjectError: It is not one of ours.
    """
    found: dict[str, tuple[int, list[str]]] = {}
    lines = None
    for line in _body(html, key):
        if heading := re.fullmatch(r'<h2 id="([a-z0-9-]+)" data-generation="([1-9][0-9]{0,17})">\1</h2>', line):
            lines = found.setdefault(heading[1], (int(heading[2]), []))[1]
        elif lines is not None and line.startswith("<a "):
            lines.append(line)
        else:
            raise _foreign(key, f"a line that is neither heading nor link: {line[:80]!r}")
    return {project: Section(generation, tuple(lines)) for project, (generation, lines) in found.items()}


def root_html(group: str, projects: set[str]) -> bytes:
    """The list of a group's projects (PEP 503)."""
    anchors = [f'<a href="{quote(name, safe="")}/">{escape(name)}</a><br>' for name in sorted(projects)]
    return _document(f"Simple index of {group}", "", anchors)


def parse_root(html: bytes, key: str) -> set[str]:
    """The projects on a root page, as `root_html` wrote it.

    Raises:
        ForeignObjectError: It is not one of ours.
    """
    projects = set()
    for line in _body(html, key):
        link = re.fullmatch(r'<a href="([a-z0-9-]+)/">\1</a><br>', line)
        if link is None:
            raise _foreign(key, f"a line that is no link to a project: {line[:80]!r}")
        projects.add(link[1])
    return projects


def _anchor(file: File, href: str) -> str:
    attributes = {"href": f"{href}#sha256={file.hashes.sha256}"}
    if file.requires_python is not None:
        attributes["data-requires-python"] = file.requires_python
    metadata = f"sha256={file.core_metadata.sha256}"
    attributes["data-core-metadata"] = metadata  # PEP 714
    attributes["data-dist-info-metadata"] = metadata  # PEP 658, for clients from before
    if file.yanked is not False:
        attributes["data-yanked"] = "" if file.yanked is True else file.yanked
    # a line break must stay inside its line: pages are read back by lines
    text = " ".join(f'{name}="{_quoted(value)}"' for name, value in attributes.items())
    return f"<a {text}>{escape(file.filename)}</a><br>"


def _quoted(value: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", escape(value))


def _document(title: str, head: str, body: list[str]) -> bytes:
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API_VERSION}">',
        *([head] if head else []),
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
        start, end = lines.index("<body>"), lines.index("</body>")
    except ValueError as error:  # UnicodeDecodeError is one too
        raise _foreign(key, "no body") from error
    if not (start + 1 < end and lines[start + 1].startswith("<h1>")):
        raise _foreign(key, "no heading")
    return lines[start + 2 : end]


def _foreign(key: str, why: str) -> ForeignObjectError:
    return ForeignObjectError(
        f"{key} in the index is not a page of this farm ({why})",
        hint="nothing was written over it; find out who did, and put the last good version back",
    )
