"""Checking the public address of an index: what pip, uv and browsers get from it.

Between the store and its users are web servers, CDNs and caches, which drop files, show old pages,
redirect, or refuse a `+` in a name. Everything is asked for as the clients ask, and compared with
the store. Nothing of it needs signatures.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import quote, urlsplit

from farm.base.errors import InfrastructureError
from farm.index.check import Problem
from farm.index.layout import json_page_of, metadata_key, wheel_key
from farm.index.mirror import is_mutable
from farm.index.pages import JSON, File, parse_page
from farm.index.reader import ACCEPT_BROWSER, ACCEPT_PIP, Answer, HttpReader
from farm.index.records import READERS
from farm.index.signatures import TIMESTAMP, installer_pages
from farm.index.stores import Store, each_answer

_Item = TypeVar("_Item", str, File)
ORIGIN = "https://example.org"
"""A page elsewhere whose program reads the index, as a browser would say it."""
MAX_RANGE = 1 << 20
"""Bytes that are read of the answer to a range of one byte: some servers send more."""
ABSENT = "no-such-project-of-the-farm"
STALE = "shows something else than the store: purge it at the cache or CDN, or mend its server"


def check_public(store: Store, reader: HttpReader, *, wheels: bool = False) -> list[Problem]:
    """Ask the public address of an index for everything as its clients do.

    Args:
        store: The index, which says what must be there.
        reader: Its public address.
        wheels: Download and hash all wheels; else a few bytes of each are read.

    Returns:
        What is wrong. `broken` are the problems by which an installer fails or gets something else;
        the others cost time, or programs in browsers.
    """
    return list(_PublicCheck(store, reader, wheels=wheels).problems())


class _PublicCheck:
    def __init__(self, store: Store, reader: HttpReader, *, wheels: bool) -> None:
        self.store = store
        self.reader = reader
        self.wheels = wheels
        keys = sorted(filter(is_mutable, store.list("")))
        self.pages: dict[str, bytes] = {}
        for key, page in each_answer(store.get, keys, READERS):
            if page is not None and key != TIMESTAMP:
                self.pages[key] = page.data

    def problems(self) -> Iterator[Problem]:
        keys = [key for key in self.pages if not key.startswith("whl/variant/")]
        folders = installer_pages(keys)
        yield from self._each(folders, self._folder)
        other_pages = [key for key in keys if "/simple/" not in key]
        yield from self._each(other_pages, self._page)
        for project in folders:
            if project.count("/") == 4:  # one stands for all
                yield from self._guarded(project, self._slash(project))
                yield from self._guarded(project, self._absent(project))
                break
        yield from self._each(self._files(), self._file)

    def _each(
        self, items: Iterable[_Item], ask: Callable[[_Item], Iterator[Problem]]
    ) -> Iterator[Problem]:
        """The problems of many items, asked for side by side."""

        def problems(item: _Item) -> list[Problem]:
            name = str(item)
            if isinstance(item, File):
                name = item.filename
            return list(self._guarded(name, ask(item)))

        with ThreadPoolExecutor(READERS) as pool:
            for lines in pool.map(problems, items):
                yield from lines

    def _guarded(self, key: str, problems: Iterator[Problem]) -> Iterator[Problem]:
        try:
            yield from problems
        except InfrastructureError as error:
            yield Problem(key, str(error), broken=True)

    def _files(self) -> list[File]:
        """Each wheel on the pages, once."""
        files: dict[str, File] = {}
        for key, data in self.pages.items():
            if json_page_of(key):
                for file in parse_page(data, key).files:
                    files[file.filename] = file
        return [files[name] for name in sorted(files)]

    def _folder(self, key: str) -> Iterator[Problem]:
        """A page of installers at its folder, as pip and as a browser ask for it."""
        folder = key.removesuffix("index.html")
        _, group, _, *project, _ = key.split("/")
        json_key = "/".join(["whl", group, "v1-json", *project, "index.json"])
        expected = {
            JSON: self.pages.get(json_key),
            "text/html": self.pages.get(key),
        }
        types = set[str]()
        varies = True
        for client, accept in (("pip", ACCEPT_PIP), ("a browser", ACCEPT_BROWSER)):
            headers = {"Accept": accept, "Origin": ORIGIN}
            answer = self.reader.ask(quote(folder), headers)
            media_type = answer.media_type
            types.add(media_type)
            if "accept" not in answer.headers.get("Vary", "").lower():
                varies = False
            if answer.status != 200:
                yield Problem(folder, f"HTTP {answer.status} for {client}", broken=True)
            elif media_type not in expected:
                problem = f"has the type {media_type!r:.60} for {client}, which it refuses"
                yield Problem(folder, problem, broken=True)
            else:
                if answer.data != expected[media_type]:
                    yield Problem(folder, f"{STALE} (as {client} asks)", broken=True)
                yield from _header_problems(folder, answer)
        if len(types) > 1 and not varies:
            problem = "is HTML or JSON without Vary: Accept: a cache gives one client the other's"
            yield Problem(folder, problem, broken=True)

    def _page(self, key: str) -> Iterator[Problem]:
        """A page for people, or for programs."""
        headers = {"Accept": ACCEPT_BROWSER, "Origin": ORIGIN}
        answer = self.reader.ask(quote(key), headers)
        if answer.status != 200:
            yield Problem(key, f"HTTP {answer.status}", broken=True)
        elif answer.data != self.pages[key]:
            yield Problem(key, STALE, broken=True)
        else:
            yield from _header_problems(key, answer)

    def _slash(self, key: str) -> Iterator[Problem]:
        """PEP 503: an address without its last slash redirects to the one with it."""
        folder = key.removesuffix("/index.html")
        answer = self.reader.ask(quote(folder), {"Accept": ACCEPT_PIP}, redirect=False)
        if answer.status == 200:
            return
        target = urlsplit(answer.headers.get("Location", "")).path
        is_redirect = answer.status in {301, 302, 307, 308}
        if not is_redirect or not target.endswith(f"{folder}/"):
            problem = f"HTTP {answer.status} without the last slash, and no redirect (PEP 503)"
            yield Problem(folder, problem, broken=False)

    def _absent(self, key: str) -> Iterator[Problem]:
        folder = f"{key.rsplit('/', 2)[0]}/{ABSENT}/"
        answer = self.reader.ask(folder, {"Accept": ACCEPT_PIP, "Origin": ORIGIN})
        if answer.status != 404:
            problem = (
                f"HTTP {answer.status} for a project that is not there: uv stops unless it is 404"
            )
            yield Problem(folder, problem, broken=True)
        yield from _cors_problems(folder, answer)

    def _file(self, file: File) -> Iterator[Problem]:
        """A wheel and its metadata, with `+` written both ways."""
        key = wheel_key(file.filename)
        encoded = f"whl/files/{quote(file.filename, safe='')}"
        is_there = True
        headers = {"Range": "bytes=0-0", "Origin": ORIGIN}
        for path in dict.fromkeys([encoded, key]):
            answer = self.reader.ask(path, headers, limit=MAX_RANGE)
            if answer.status not in {200, 206}:
                yield Problem(path, f"HTTP {answer.status}", broken=True)
                is_there = False
                continue
            if answer.status == 200:
                yield Problem(path, "ranges are ignored: installers load all of it", broken=False)
            size = _stated_size(answer)
            if size is not None and size != file.size:
                yield Problem(path, f"has {size} bytes instead of {file.size}", broken=True)
            yield from _cors_problems(path, answer)
        if self.wheels and is_there:
            digest = self.reader.digest(key, file.size)
            if digest != file.hashes.sha256:
                yield Problem(key, "has other bytes than its page says", broken=True)
        if file.core_metadata is not None:
            yield from self._metadata(file, f"{encoded}.metadata", file.core_metadata.sha256)

    def _metadata(self, file: File, path: str, sha256: str) -> Iterator[Problem]:
        key = metadata_key(file.filename)
        answer = self.reader.ask(path)
        if answer.status != 200:
            yield Problem(key, f"HTTP {answer.status}", broken=True)
        elif hashlib.sha256(answer.data).hexdigest() != sha256:
            yield Problem(key, STALE, broken=True)


def _stated_size(answer: Answer) -> int | None:
    """The size of the whole object, as an answer to a range states it."""
    match = re.fullmatch(r"bytes 0-0/([0-9]{1,18})", answer.headers.get("Content-Range", ""))
    if match is None:
        return None
    return int(match[1])


def _header_problems(path: str, answer: Answer) -> Iterator[Problem]:
    """Headers of a page: caches must ask again, and programs in browsers may read it."""
    control = answer.headers.get("Cache-Control", "").lower()
    age = re.search(r"(?:s-maxage|max-age)=([0-9]{1,9})", control)
    seconds = 0
    if age:
        seconds = int(age[1])
    must_ask = re.search(r"no-cache|no-store|must-revalidate", control)
    if seconds > 0 and not must_ask:
        problem = f"is kept for {seconds} s by caches: what was yanked is shown as long (no-cache)"
        yield Problem(path, problem, broken=False)
    yield from _cors_problems(path, answer)


def _cors_problems(path: str, answer: Answer) -> Iterator[Problem]:
    if answer.headers.get("Access-Control-Allow-Origin") not in {"*", ORIGIN}:
        problem = (
            f"has no Access-Control-Allow-Origin (HTTP {answer.status}): programs in browsers "
            "cannot read it"
        )
        yield Problem(path, problem, broken=False)
