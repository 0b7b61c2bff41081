"""Another index, as its clients read it: the simple API, as JSON or HTML (PEP 503, 691). Nothing in it is trusted."""

import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from packaging.utils import canonicalize_name
from pydantic import ValidationError

from farm.base.errors import InfrastructureError, UsageError, VerificationFailedError
from farm.index import layout, pages
from farm.index.answers import as_sent, ask, bounded, parts_of
from farm.index.pages import File, Hashes
from farm.index.stores import MAX_GET

# JSON first: HTML has neither sizes nor upload times.
ACCEPT = f"{pages.JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"

_HTML = frozenset({"text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"})

MAX_READ = 64 * 1024**2
"""Bytes of a wheel that is read for its METADATA alone."""

_SCHEMES = frozenset({"http", "https", "file"})


def check_source(source: str) -> str:
    """Gives the URL of another index's simple API back; UsageError if it is none that can be read."""
    parts = parts_of(source)
    # Before all other checks: their messages quote the URL, and a password must not be shown.
    if "@" in parts.netloc:
        raise UsageError(
            "the URL of the other index holds a user name or password",
            hint="the farm reads other indexes without credentials; download the wheels and publish their folder",
        )
    if parts.scheme not in _SCHEMES:
        raise UsageError(
            f"not the URL of an index: {source[:200]!r}", hint="write https://…/simple or file:///…/simple"
        )
    return source


def project_files(source: str, project: str) -> list[File]:
    """The project's wheels on its page that are not yanked and have a sha256; their URLs are absolute.

    Wheels of other projects there are passed over, as by pip; uv refuses them.

    Args:
        source: The root of the other index's simple API.
        project: The name of the project, in any spelling.

    Raises:
        UsageError: There is no such page.
        InfrastructureError: There is no such index, or the page is none of the simple API.
    """
    # Only this spelling has a page (PEP 503).
    name = canonicalize_name(project)
    url = f"{as_sent(source).rstrip('/')}/{quote(name, safe='')}/"
    # Behind `file:` nobody answers a folder with its page.
    place = f"{url}index.html" if url.startswith("file:") else url
    answer = ask(place, {"Accept": ACCEPT}, hint="is the index right, and does it answer?")
    if answer is None:
        raise UsageError(f"{source} has no project {project[:200]!r}", hint="is it the root of a simple API?")
    data = bounded(answer.chunks, MAX_GET)
    if len(data) > MAX_GET:
        raise InfrastructureError(f"{url} is over {MAX_GET} bytes: no page of a project")
    if answer.kind not in {pages.JSON, *_HTML}:
        raise InfrastructureError(
            f"{url} is of the type {answer.kind:.60}, and no page of a simple index has that",
            hint=f"pip and uv do not read it either: its server must say text/html, or {pages.JSON} of JSON",
        )
    try:
        if answer.kind == pages.JSON:
            entries = _json_entries(data)
        else:
            entries = _html_entries(answer.url, data.decode(errors="replace"))
        own = (entry for entry in entries if layout.is_wheel_of(name, entry["filename"]))
        return [file for entry in own if (file := _file(answer.url, entry)) is not None]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InfrastructureError(f"{url} is not a page of a simple index: {error!s:.200}") from error


def metadata_of(file: File) -> bytes:
    """The METADATA of a wheel that a page links to: beside the wheel (PEP 658), else out of the wheel.

    Nothing where the index has neither, or where the wheel is larger than `MAX_READ`.

    Raises:
        InfrastructureError: The other index failed.
        VerificationFailedError: It is not what the page says.
    """
    if file.core_metadata is None:
        return b"" if (file.size or 0) > MAX_READ else _metadata_inside(file.url or "", file.hashes.sha256)
    url = f"{file.url}.metadata"
    answer = ask(url)
    if answer is None:
        raise InfrastructureError(f"{url} is not there, and its page says that it is", hint="run it again")
    data = bounded(answer.chunks, MAX_GET)
    if hashlib.sha256(data).hexdigest() != file.core_metadata.sha256:
        raise VerificationFailedError(f"{url} does not match its page")
    return data


@lru_cache(maxsize=256)
def _metadata_inside(url: str, sha256: str) -> bytes:
    """Many mirrors serve none beside the wheel. One wheel is asked for once, however many groups need it."""
    answer = ask(url)
    data = b"" if answer is None else bounded(answer.chunks, MAX_READ)
    if answer is None or len(data) > MAX_READ:
        return b""
    if hashlib.sha256(data).hexdigest() != sha256:
        raise VerificationFailedError(f"{url} has other bytes than its page says")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (name,) = (one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one))
            with archive.open(name) as member:
                return member.read(MAX_GET)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError, zlib.error):
        return b""  # an installer refuses it


def _json_entries(data: bytes) -> Iterator[dict[str, Any]]:
    document = json.loads(data)
    _check_version(document.get("meta", {}).get("api-version", "1.0"))
    for entry in document["files"]:
        # PEP 714 gave it the new name; older indexes have the other one alone.
        metadata = entry.get("core-metadata", entry.get("dist-info-metadata"))
        yield {**entry, "core-metadata": metadata.get("sha256") if isinstance(metadata, dict) else None}


def _check_version(version: str) -> None:
    """ValueError for a major version of the simple API that is not known here (PEP 629)."""
    if version.partition(".")[0] != "1":
        raise ValueError(f"version {version:.20} of the simple API")


class Anchor(NamedTuple):
    """A link on a page, as a client reads it."""

    href: str
    text: str
    attributes: dict[str, str | None]


def _parsed(text: str) -> "_Anchors":
    parser = _Anchors()
    parser.feed(text)
    parser.close()
    return parser


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Anchor] = []
        self.base: str | None = None
        self.version = "1.0"

    def handle_data(self, data: str) -> None:
        if self.found:
            last = self.found[-1]
            self.found[-1] = last._replace(text=last.text + data) if self.inside else last

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "a"

    inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(Anchor(dict(attrs).get("href") or "", "", dict(attrs)))
            self.inside = True
        elif tag == "base" and self.base is None:  # only the first counts, in browsers and in pip
            self.base = dict(attrs).get("href")
        elif tag == "meta" and (one := dict(attrs)).get("name") == "pypi:repository-version":
            self.version = one.get("content") or ""


def _html_entries(place: str, text: str) -> Iterator[dict[str, Any]]:
    parser = _parsed(text)
    _check_version(parser.version)
    base = urljoin(place, parser.base or "")
    for anchor in parser.found:
        more = anchor.attributes
        url, fragment = urldefrag(anchor.href)
        digest = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})", fragment)
        metadata = more.get("data-core-metadata") or more.get("data-dist-info-metadata") or ""
        yield {
            "filename": unquote(urlsplit(url).path.rsplit("/", 1)[-1]),
            "url": urljoin(base, url),
            "hashes": {"sha256": digest[1]} if digest else {},
            "requires-python": more.get("data-requires-python"),
            "core-metadata": metadata.removeprefix("sha256=") if metadata.startswith("sha256=") else None,
            "yanked": "data-yanked" in more,
        }


def _file(place: str, entry: dict[str, Any]) -> File | None:
    digest, metadata = entry.get("hashes", {}).get("sha256"), entry["core-metadata"]
    if entry.get("yanked") or not digest:
        return None
    # Relative to where the page was found, which may be behind a redirect.
    url = urljoin(place, entry["url"])
    schemes = _SCHEMES if urlsplit(place).scheme == "file" else _SCHEMES - {"file"}
    if urlsplit(url).scheme not in schemes:
        return None  # a page from elsewhere says nothing about files of this machine
    try:
        return File(
            filename=entry["filename"],
            url=as_sent(url),
            hashes=Hashes(sha256=digest.lower()),
            size=entry.get("size"),
            upload_time=entry.get("upload-time"),
            requires_python=entry.get("requires-python"),
            core_metadata=Hashes(sha256=metadata) if metadata else None,
        )
    except ValidationError:
        return None  # a digest, a size or a name that no wheel of ours could have
