"""Is an index what its owner signed? For users, with nothing but a trusted root and the index's URL.

The client of The Update Framework (`tuf.ngclient`) follows the root keys and refuses what is expired (a server that
shows an old state for ever) or older than what it saw before (a roll-back): it keeps that in a folder. Then every page
is compared with the signed digests, and pages that nobody signed are named: all of them where the store can be listed;
over http, those of every name that the index knows.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadError,
    DownloadHTTPError,
    ExpiredMetadataError,
    RepositoryError,
)
from tuf.api.metadata import Metadata, Targets
from tuf.ngclient import FetcherInterface, Updater

from farm.base.errors import InfrastructureError, UsageError, VerificationFailedError
from farm.base.temporary import temporary_folder
from farm.index.layout import CATALOGUE, GROUPS, HOME, html_key, json_key, json_page_of, metadata_key, record_key
from farm.index.pages import parse_catalogue, parse_page
from farm.index.reader import Reader
from farm.index.records import READERS
from farm.index.sign import is_page, time_of

_BASE = "index:"


class Verified(NamedTuple):
    """When it was signed, by the signer's word; how much was; and the problems, one line each."""

    time: str
    pages: int
    wheels: int
    problems: tuple[str, ...]


def verify_index(reader: Reader, root: bytes, *, state: Path | None = None, wheels: bool = False) -> Verified:
    """Follows the keys from `root`, which the user trusts, then compares every page with its signed digest.

    `state` is a folder that keeps what was seen, so that nothing older is believed later; None: nothing is kept.
    `wheels`: hash the wheels as well, their `.metadata` and their records.

    Raises:
        VerificationFailedError: There are no signatures that lead back to this root: there is nothing to verify by.
        InfrastructureError: The index cannot be read.
        UsageError: The folder cannot be written.
    """
    with temporary_folder("farm-verify-") if state is None else nullcontext(state) as folder:
        targets = _newest(reader, root, folder)
    signed, problems = time_of(targets), list[str]()
    pages = {key: target.hashes["sha256"] for key, target in targets.targets.items() if is_page(key)}
    others = {key: target.hashes["sha256"] for key, target in targets.targets.items() if not is_page(key)}
    data: dict[str, bytes] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for key, found in zip(pages, pool.map(reader.get, pages), strict=True):
            if found is None:
                problems.append(f"{key}: is signed, and is not there")
            elif hashlib.sha256(found).hexdigest() != pages[key]:
                problems.append(
                    f"{key}: not as it was signed on {signed:%Y-%m-%d %H:%M} UTC; either its owner changed it and has "
                    "not signed since, or signed by someone else"
                )
            else:
                data[key] = found
        candidates = sorted(_candidates(reader, data) - pages.keys())
        for key, found in zip(candidates, pool.map(reader.get, candidates), strict=True):
            if found is not None:
                problems.append(f"{key}: no signature covers this page")
        if wheels:
            promised = {**others, **_beside(data)}
            for key, digest in zip(promised, pool.map(reader.digest, promised), strict=True):
                if digest != promised[key]:
                    what = "is not there" if digest is None else "has other bytes than signed"
                    problems.append(f"{key}: {what}")
    return Verified(signed.isoformat(), len(pages), len(others), tuple(problems))


def _newest(reader: Reader, root: bytes, folder: Path) -> Targets:
    """The newest targets, as TUF's client gives them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        Updater(str(folder), f"{_BASE}tuf/", fetcher=_Fetcher(reader), bootstrap=root).refresh()
        return Metadata[Targets].from_file(str(folder / "targets.json")).signed
    except OSError as error:
        raise UsageError(
            f"cannot keep what was seen in {folder}: {error}", hint="XDG_STATE_HOME names another"
        ) from error
    except (RepositoryError, DownloadError, ValueError) as error:
        if isinstance(error, DownloadError) and not isinstance(error, DownloadHTTPError):
            raise InfrastructureError(str(error), hint="run it again") from error
        why, hint = next(words for kind, words in _WORDS.items() if isinstance(error, kind))
        raise VerificationFailedError(f"{why}: {error}", hint=hint) from error


_WORDS: dict[type[Exception], tuple[str, str]] = {
    ExpiredMetadataError: (
        "the signatures of this index have expired",
        "its owner has not signed for long, or a server shows an old state; ask the owner",
    ),
    BadVersionNumberError: (
        "older than what was seen of this index before",
        "a cache or mirror that is behind, or someone who shows an old state",
    ),
    DownloadHTTPError: (
        "this index is not signed, or not an index",
        "what pip gets, without /whl/<group>/simple/ at its end, is the index",
    ),
    Exception: (
        "no signatures that lead back to the trusted root",
        "if the owner knows of no change of keys, do not install from it",
    ),
}
"""Failures of TUF's client in words for a user, each with what to do."""


class _Fetcher(FetcherInterface):
    """Gives TUF's client the files below `tuf/`, from wherever the index is."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def _fetch(self, url: str) -> Iterator[bytes]:
        data = self.reader.get(url.removeprefix(_BASE))
        if data is None:
            raise DownloadHTTPError(f"{url.removeprefix(_BASE)} is not there", 404)
        return iter((data,))


def _candidates(reader: Reader, data: dict[str, bytes]) -> set[str]:
    """Keys at which there may be pages: all that there are, or those of every known name in every known group."""
    keys = reader.keys()
    if keys is not None:
        return {key for key in keys if is_page(key)}
    known = parse_catalogue(data.get(CATALOGUE))
    pages = {place(group, name) for group in known.groups for name in known.names for place in (html_key, json_key)}
    return {HOME, GROUPS, CATALOGUE} | pages


def _beside(data: dict[str, bytes]) -> dict[str, str]:
    """The `.metadata` and records of the wheels on signed pages, with their hashes."""
    files = [file for key, page in data.items() if json_page_of(key) for file in parse_page(page, key).files]
    metadata = {metadata_key(each.filename): each.core_metadata.sha256 for each in files if each.core_metadata}
    return metadata | {record_key(each.filename): each.record for each in files if each.record}
