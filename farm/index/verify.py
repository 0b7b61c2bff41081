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
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from securesystemslib.exceptions import StorageError
from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadError,
    DownloadHTTPError,
    ExpiredMetadataError,
    RepositoryError,
    UnsignedMetadataError,
)
from tuf.api.metadata import Metadata, Root, Targets
from tuf.ngclient import FetcherInterface, Updater

from farm.base.errors import FarmError, InfrastructureError, UsageError, VerificationFailedError
from farm.base.temporary import temporary_folder
from farm.index.keys import online_keys, revoked_keys
from farm.index.layout import CATALOGUE, GROUPS, HOME, html_key, json_key, json_page_of, metadata_key, record_key
from farm.index.pages import parse_catalogue, parse_page
from farm.index.reader import Reader
from farm.index.records import READERS
from farm.index.sign import is_page, time_of

_BASE = "index:"


@dataclass(frozen=True)
class Verified:
    """The extent of a verification and its problems; none mean that the index is what was signed.

    Attributes:
        time: When it was signed; the signer's word.
        keys: The keyids that may sign, after rotation and revocation.
        pages: How many pages are signed.
        wheels: How many wheels are.
        problems: One line each.
    """

    time: str
    keys: tuple[str, ...]
    pages: int
    wheels: int
    problems: tuple[str, ...]


def verify_index(
    reader: Reader,
    root: bytes,
    *,
    state: Path | None = None,
    wheels: bool = False,
    max_age: timedelta | None = None,
) -> Verified:
    """Follows the keys, then compares every page with its signed digest.

    Args:
        reader: The index.
        root: The root metadata that the user trusts: `tuf/1.root.json` or a later one, from its owner.
        state: A folder in which is kept what was seen, so that nothing older is believed later; None: nothing is kept.
        wheels: Read and hash the wheels as well, their `.metadata` and their records; installers compare the first two
            with the pages themselves.
        max_age: How long ago it may have been signed at most; by default until that expires.

    Raises:
        VerificationFailedError: There are no signatures that lead back to this root: there is nothing to verify by.
        InfrastructureError: The index cannot be read.
        UsageError: The folder cannot be written.
    """
    with temporary_folder("farm-verify-") if state is None else nullcontext(state) as folder:
        targets, keys = _followed(reader, root, folder)
    signed = time_of(targets)
    problems = []
    if max_age is not None and signed < datetime.now(UTC) - max_age:
        problems.append(f"signed on {signed.isoformat()}, longer ago than {max_age.days} days")
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
    return Verified(signed.isoformat(), keys, len(pages), len(others), tuple(problems))


def _followed(reader: Reader, root: bytes, folder: Path) -> tuple[Targets, tuple[str, ...]]:
    """The newest targets, as TUF's client gives them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        updater = Updater(str(folder), f"{_BASE}tuf/", fetcher=_Fetcher(reader), bootstrap=root)
        updater.refresh()
        newest = Metadata[Root].from_file(str(folder / "root.json")).signed
        targets = Metadata[Targets].from_file(str(folder / "targets.json")).signed
    except OSError as error:
        raise UsageError(f"cannot keep what was seen in {folder}: {error}", hint="name another: --state DIR") from error
    except (FarmError, RepositoryError, DownloadError, ValueError) as error:
        raise _explained(error, folder) from error
    return targets, tuple(sorted(online_keys(newest)))


def _explained(error: Exception, folder: Path) -> FarmError:
    """A failure of TUF's client in words for a user."""
    match error:
        case FarmError():
            return error
        case ExpiredMetadataError():
            return VerificationFailedError(
                f"the signatures of this index have expired: {error}",
                hint="its owner has not signed for long, or a server shows an old state; ask the owner",
            )
        case BadVersionNumberError():
            return VerificationFailedError(
                f"older than what was seen of this index before: {error}",
                hint="a cache or mirror that is behind, or someone who shows an old state",
            )
        case UnsignedMetadataError():
            why = f"not signed by a key that counts: {error}{_revoked(folder)}"
            return VerificationFailedError(why, hint="if the owner knows of no change of keys, do not install from it")
        case DownloadHTTPError():
            return VerificationFailedError(
                f"{error}: this index is not signed, or not an index",
                hint="what pip gets, without /whl/<group>/simple/ at its end, is the index",
            )
        case DownloadError():
            return InfrastructureError(str(error), hint="run it again")
    return VerificationFailedError(f"no signatures that lead back to the trusted root: {error}")


class _Fetcher(FetcherInterface):
    """Gives TUF's client the files below `tuf/`, from wherever the index is."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def _fetch(self, url: str) -> Iterator[bytes]:
        data = self.reader.get(url.removeprefix(_BASE))
        if data is None:
            raise DownloadHTTPError(f"{url.removeprefix(_BASE)} is not there", 404)
        return iter((data,))


def _revoked(folder: Path) -> str:
    """Which keys the newest root says are revoked, for the message."""
    try:
        newest = Metadata[Root].from_file(str(folder / "root.json")).signed
    except (OSError, ValueError, RepositoryError, StorageError):
        return ""  # the trusted root itself is none
    named = ", ".join(f"{keyid[:16]} ({reason or 'no reason given'})" for keyid, reason in revoked_keys(newest).items())
    return f"; revoked: {named}" if named else ""


def _candidates(reader: Reader, data: dict[str, bytes]) -> set[str]:
    """Keys at which there may be pages: all that there are, or those of every known name in every known group."""
    keys = reader.keys()
    if keys is not None:
        return {key for key in keys if is_page(key)}
    catalogue = parse_catalogue(data[CATALOGUE]) if CATALOGUE in data else None
    groups = catalogue.groups if catalogue else {}
    names = catalogue.names if catalogue else set()
    found = {HOME, GROUPS, CATALOGUE}
    for group in groups:
        for name in names:
            found |= {html_key(group, name), json_key(group, name)}
    return found


def _beside(data: dict[str, bytes]) -> dict[str, str]:
    """The `.metadata` and records of the wheels on signed pages, with their hashes."""
    found = {}
    for key, page in data.items():
        if json_page_of(key) is None:
            continue
        for file in parse_page(page, key).files:
            if file.core_metadata is not None:
                found[metadata_key(file.filename)] = file.core_metadata.sha256
            if file.record is not None:
                found[record_key(file.filename)] = file.record
    return found
