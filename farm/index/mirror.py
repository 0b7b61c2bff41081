"""Copying an index to another store, as a backup or a mirror, while others publish.

A tool that copies objects in the order of their names copies a page before the files that it lists,
or a file that was lost together with the page that still lists it. Here pages are read first, in
the reverse order of publishing, so each page that was read leads only to what exists; then files
and records are copied; then the pages are written in the order of publishing. So the copy is whole
at every moment, whatever is published meanwhile.

Files, records and events in the copy are never deleted or overwritten, and all pages follow from
them. An index that lost some of them is not copied: the copy keeps them.
"""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.base.temporary import temporary_folder
from farm.base.text import first_of
from farm.index import pages
from farm.index.layout import (
    CATALOGUE,
    DATA,
    GROUPS,
    HOME,
    SMOKE,
    html_key,
    json_key,
    json_page_of,
    metadata_key,
    record_key,
    wheel_key,
)
from farm.index.pages import ProjectPage, parse_catalogue, parse_page
from farm.index.records import READERS, Record, parse_record
from farm.index.stores import SCRATCH, Store, each_answer, etag_of

TIMESTAMP = "tuf/timestamp.json"
ROOT_SUFFIX = ".root.json"
MAX_NAMED = 5
"""Lost objects that a message names."""


class Copied(NamedTuple):
    """How many files, records and pages were new or changed in the copy."""

    files: int
    records: int
    pages: int


def copy_index(source: Store, target: Store) -> Copied:
    """Copy an index to another store, or bring an earlier copy up to date.

    Args:
        source: The index.
        target: The copy; nobody publishes there.

    Raises:
        VerificationFailedError: The index lost something that its pages list or that the copy has,
            or a file has other bytes than its record says. No page of the copy was changed.
        InfrastructureError: A store failed; run it again.
    """
    copied_pages = _read_pages(source)
    stored = set(source.list(""))
    copied = set(target.list(""))
    _check_nothing_lost(copied_pages, stored, copied)
    _check_roots(source, target, _below(stored & copied, ("tuf/",)))
    copier = _Copier(source, target)
    new_keys = stored - copied
    new_records = _below(new_keys, ("records/",))
    files = copier.copy_wheels(_below(stored, ("records/",)), new_keys)
    immutable = (SMOKE, "whl/variant/files/", "whl/variant/records/", "events/", "tuf/")
    records = copier.copy_objects([*_below(new_keys, immutable), *new_records])
    written = copier.write_pages(copied_pages)
    for key in _below(copied - stored, ("tuf/",)):
        if not key.endswith(ROOT_SUFFIX):
            target.discard(key)
    return Copied(files, records, written)


def _below(keys: Iterable[str], folders: tuple[str, ...]) -> list[str]:
    return sorted(key for key in keys if key.startswith(folders) and key != TIMESTAMP)


def is_mutable(key: str) -> bool:
    """Is this a page, or the timestamp of the signatures? All other objects never change."""
    return key == TIMESTAMP or not key.startswith((*DATA, SCRATCH, SMOKE))


def _read_pages(source: Store) -> dict[str, bytes]:
    """All pages, in the reverse order of publishing."""
    read: dict[str, bytes] = {}
    _read_into(read, source, [TIMESTAMP, HOME, CATALOGUE, GROUPS])
    lists = []
    for group in parse_catalogue(read.get(CATALOGUE)).groups:
        lists += [f"whl/{group}/simple/index.html", f"whl/{group}/v1-json/index.json"]
    _read_into(read, source, lists)
    # Listed after the lists were read, so that all projects that they name are found.
    page_keys = set(filter(is_mutable, source.list("")))
    page_keys -= read.keys()
    json_keys = []
    html_keys = []
    for place in sorted(filter(None, map(json_page_of, page_keys))):
        json_keys.append(json_key(*place))
        html_keys.append(html_key(*place))
    other_keys = page_keys - {*json_keys, *html_keys}
    _read_into(read, source, sorted(other_keys))
    _read_into(read, source, html_keys)
    _read_into(read, source, json_keys)
    return read


def _read_into(read: dict[str, bytes], source: Store, keys: list[str]) -> None:
    for key, stored in each_answer(source.get, keys, READERS):
        if stored is not None:
            read[key] = stored.data


def _check_nothing_lost(copied_pages: dict[str, bytes], stored: set[str], copied: set[str]) -> None:
    """VerificationFailedError if the index lost what its pages promise or what the copy has."""
    promised_pages = set()
    catalogue = parse_catalogue(copied_pages.get(CATALOGUE))
    for group, projects in catalogue.groups.items():
        promised_pages |= {json_key(group, project) for project in projects}
    promised = set(_below(copied, ("records/", "events/")))
    for page in _project_pages(copied_pages):
        for name in page.entries:
            promised |= {record_key(name), wheel_key(name), metadata_key(name)}
    missing = (promised_pages - copied_pages.keys()) | (promised - stored)
    if missing:
        examples = first_of(sorted(missing), MAX_NAMED)
        raise VerificationFailedError(
            f"the index lost objects, and its copy was left as it is: {examples}",
            hint="if wheels were removed meanwhile, run it again; else bring back what was lost: "
            "docs/how-to/index-handbook.md#backup-and-restore",
        )


def _project_pages(read: dict[str, bytes]) -> list[ProjectPage]:
    project_pages = []
    for key, data in read.items():
        if json_page_of(key):
            project_pages.append(parse_page(data, key))
    return project_pages


def _check_roots(source: Store, target: Store, keys: list[str]) -> None:
    """VerificationFailedError if the copy has another root of trust."""
    for key in keys:
        if not key.endswith(ROOT_SUFFIX):
            continue
        root = source.get(key)
        copied = target.get(key)
        if root is not None and copied is not None and root.data != copied.data:
            raise VerificationFailedError(
                f"the copy has another {key}: its users trust another root",
                hint="if the owner made a new root, delete tuf/ in the copy and run it again",
            )


class _Copier:
    def __init__(self, source: Store, target: Store) -> None:
        self.source = source
        self.target = target

    def copy_wheels(self, record_keys: list[str], new_keys: set[str]) -> int:
        """Copy the files that records promise; the number of those that were new."""
        copied = 0
        for key in record_keys:
            name = key.removeprefix("records/").removesuffix(".json")
            new_files = {wheel_key(name), metadata_key(name)} & new_keys
            if not new_files:
                continue
            record = self._record(key)
            promised = {wheel_key(name): record.sha256, metadata_key(name): record.metadata_sha256}
            for file_key in sorted(new_files):
                copied += self._copy_file(file_key, promised[file_key])
        return copied

    def _record(self, key: str) -> Record:
        stored = self.source.get(key)
        if stored is None:
            raise InfrastructureError(f"{self.source.url(key)} is listed and cannot be read")
        return parse_record(stored.data, key)

    def _copy_file(self, key: str, promised: str | None) -> bool:
        """Copy an object of any size; False if it was there."""
        digest = hashlib.sha256()
        with temporary_folder("farm-copy-") as folder:
            path = folder / "object"
            with path.open("wb") as file:
                for chunk in self.source.chunks(key):
                    digest.update(chunk)
                    file.write(chunk)
            if promised not in {None, digest.hexdigest()}:
                raise VerificationFailedError(
                    f"{self.source.url(key)} has other bytes than its record says",
                    hint="the copy was left as it is; farm index check names what else is broken",
                )
            return self.target.create(
                key, path, content_type="application/octet-stream", sha256=digest.hexdigest()
            )

    def copy_objects(self, keys: list[str]) -> int:
        """Copy objects that never change; the number of those that were new."""
        with ThreadPoolExecutor(READERS) as pool:
            return sum(pool.map(self._copy_object, keys))

    def _copy_object(self, key: str) -> bool:
        if key.startswith("whl/variant/files/"):
            return self._copy_file(key, None)
        stored = self.source.get(key)
        if stored is None:  # signatures that newer ones replaced
            return False
        return self.target.create(key, stored.data, content_type="application/json")

    def write_pages(self, read: dict[str, bytes]) -> int:
        """Write the pages in the order of publishing; the number of those that changed."""
        ranks: dict[int, list[str]] = {}
        for key in read:
            ranks.setdefault(_publishing_rank(key), []).append(key)
        written = 0
        for rank in sorted(ranks):
            keys = ranks[rank]
            contents = [read[key] for key in keys]
            with ThreadPoolExecutor(READERS) as pool:
                written += sum(pool.map(self._write_page, keys, contents))
        return written

    def _write_page(self, key: str, data: bytes) -> bool:
        stored = self.target.get(key)
        if stored is not None and stored.data == data:
            return False
        if not self.target.replace(key, data, etag_of(stored), content_type=_content_type(key)):
            raise InfrastructureError(
                f"{self.target.url(key)} was written by another process meanwhile",
                hint="nobody may publish to a copy; run it again",
            )
        return True


def _publishing_rank(key: str) -> int:
    """Pages with a low rank are written first: those that others lead to."""
    if json_page_of(key):
        return 0
    if key.startswith("whl/") and key.count("/") == 4:  # HTML pages of projects
        return 1
    if key == TIMESTAMP:
        return 5
    if key == CATALOGUE:
        return 4
    if key == GROUPS:
        return 3
    return 2


def _content_type(key: str) -> str:
    if key.startswith("whl/") and key.endswith("index.json"):
        return pages.JSON
    if key.endswith(".html"):
        return pages.HTML
    return "application/json"
