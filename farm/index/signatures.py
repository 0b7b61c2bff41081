"""Signs an index as it is, and verifies one: a repository of The Update Framework (TUF) beside it,
below `tuf/`.

A step of its own, at the end of a batch or by a schedule: publishing knows nothing of signatures
and needs no key. The root key is kept offline and signs `tuf/<n>.root.json` alone, counted from 1:
which keys may sign the index (TUF's roles targets, snapshot and timestamp alike). Each root is
signed by the root key of the one before too, so that a user who has an old one is led to the
newest.

Targets are all pages, with their hashes, and all wheels, with those that the pages say; what a page
does not say is in a record whose hash is on the page. Signatures expire, so that nobody can show an
old state for ever. Versions are milliseconds since 1970, or one more than the last: they grow even
after a backup was restored.

Users verify with nothing but a trusted root and the index's URL. TUF's client follows the root keys
and refuses what is expired or older than what it saw before (a roll-back): it keeps that in a
folder. Then every page is compared with the signed digests, and pages that nobody signed are named:
all of them where the store can be listed; over http, those of every name that the index knows.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from securesystemslib.signer import CryptoSigner, Key, SSlibKey
from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadError,
    DownloadHTTPError,
    DownloadLengthMismatchError,
    ExpiredMetadataError,
    RepositoryError,
    UnsignedMetadataError,
)
from tuf.api.metadata import (
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    SuccinctRoles,
    TargetFile,
    Targets,
    Timestamp,
)
from tuf.api.serialization import DeserializationError
from tuf.ngclient import FetcherInterface, Updater

from farm.base.errors import (
    FarmError,
    InfrastructureError,
    PublishRefusedError,
    UsageError,
    VerificationFailedError,
)
from farm.base.safe_files import read_small
from farm.base.temporary import temporary_folder
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
from farm.index.pages import JSON, parse_catalogue, parse_page
from farm.index.publish import check_store
from farm.index.reader import ACCEPT_BROWSER, ACCEPT_PIP, HttpReader, Reader
from farm.index.records import READERS, ForeignObjectError, foreign
from farm.index.stores import SCRATCH, Store, Stored, each_answer, etag_of

MAX_ROLE_BYTES = 5_000_000
MAX_KEY = 1 << 16
"""What TUF's client reads of one file (`tuf.ngclient.UpdaterConfig.targets_max_length`)."""
WHEELS_PER_ROLE = 10_000
"""One file of signatures names at most so many wheels, about 2 MB."""
WHEEL_ROLE = "wheels"
MAX_ROOTS = 256
"""As many rotations as TUF's client follows."""
DAYS = 30
ROOT_DAYS = 365
"""How long a signature counts, and a root."""
BEHIND = timedelta(hours=1)
AHEAD = timedelta(days=1)
"""How far a clock may be behind and ahead of the store's, or of the newest signature where the
store has none.
"""
SIGNATURE_WARNING = timedelta(days=10)
ROOT_WARNING = timedelta(days=60)
"""How long before their end they are reported: a weekly schedule failed once then; the root's key
is offline.
"""
TIMESTAMP = "tuf/timestamp.json"
_BASE = "index:"
_HINT = "openssl genpkey -algorithm ed25519 -out FILE; openssl pkey -in FILE -pubout -out FILE.pub"


def load_signer(where: str | Path) -> CryptoSigner:
    """The private key in a PEM file, or in a variable as `env:NAME`; UsageError, without its text,
    if there is none.
    """
    try:
        return CryptoSigner(load_pem_private_key(_pem(where), password=None))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{where} holds no private key in PEM without a password", hint=_HINT
        ) from error


def load_public(path: Path) -> SSlibKey:
    """The public key in a PEM file; UsageError if there is none."""
    try:
        return SSlibKey.from_crypto(load_pem_public_key(_pem(path)))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path} holds no public key in PEM", hint=_HINT) from error


def _pem(where: str | Path) -> bytes:
    name = str(where).removeprefix("env:")
    if name != str(where):
        if os.environ.get(name):
            return os.environ[name].encode()
        hint = (
            "set it to the text of the private key, or sign where it is set: publishing needs "
            "no key"
        )
        raise UsageError(
            f"the signing key is to be in the variable {name}, and it is not set", hint=hint
        )
    try:
        return read_small(Path(where), MAX_KEY)
    except OSError as error:
        raise UsageError(f"cannot read the key {where}: {error.strerror}", hint=_HINT) from error


def root_key(number: int) -> str:
    return f"tuf/{number}.root.json"


def newest_root(store: Store) -> Metadata[Root] | None:
    """The newest root that the first one leads to; None if there is no root.

    Raises:
        VerificationFailedError: A root is not signed by the root key of the one before, so no user
            would follow it.
    """
    newest: Metadata[Root] | None = None
    for number in range(1, MAX_ROOTS):
        key = root_key(number)
        stored = store.get(key)
        if stored is None:
            break
        root: Metadata[Root] = _role(stored, key)
        _check_root(store.url(key), number, root, newest or root)
        newest = root
    return newest


def _check_root(url: str, number: int, root: Metadata[Root], before: Metadata[Root]) -> None:
    """VerificationFailedError unless `root` is signed by its own root key and the one before."""
    try:
        before.verify_delegate(Root.type, root)
        root.verify_delegate(Root.type, root)
        if root.signed.version != number:
            raise ValueError(f"its version is {root.signed.version}")
    except (UnsignedMetadataError, ValueError) as error:
        raise VerificationFailedError(
            f"{url} is not signed by the root key: {error}",
            hint="somebody else wrote it: find out who may write to the store, delete it, and "
            "compare the wheels with your own runs before you sign",
        ) from error


def set_keys(
    store: Store,
    signer: CryptoSigner,
    online: Sequence[SSlibKey],
    successor: CryptoSigner | None = None,
) -> tuple[int, bytes]:
    """Writes the first root, or the next: these keys may sign, and no others, for a year. Gives its
    number and bytes.

    `signer` is the root key, `successor` that from now on; no `online` keys: those of now.
    """
    check_store(store)
    before = newest_root(store)
    owner = successor or signer
    keyid = signer.public_key.keyid
    if before and keyid not in before.signed.roles[Root.type].keyids:
        raise UsageError(
            f"key {keyid[:16]} is not the root key of this index",
            hint="name the root key: --root-key FILE",
        )
    keys: list[Key] = list(online)
    number = 1
    if before is not None:
        number = before.signed.version + 1
        keys = keys or [before.signed.keys[key_id] for key_id in _online(before)]
    if not keys:
        raise UsageError(
            "no key could sign this index",
            hint="name one: farm index keys ONLINE.pub --root-key FILE",
        )
    now = datetime.now(UTC).replace(microsecond=0)
    expires = now + timedelta(days=ROOT_DAYS)
    root = Root(version=number, expires=expires, consistent_snapshot=True)
    root.add_key(owner.public_key, Root.type)
    for role in (Targets.type, Snapshot.type, Timestamp.type):
        for key in keys:
            root.add_key(key, role)
    data = _signed(root, signer, owner)
    # The number is the name, and a name is created once: of two changes at the same time one is
    # refused.
    if not store.create(root_key(number), data, content_type="application/json"):
        raise PublishRefusedError(
            "another change of the keys came first", hint="look at the keys, then run this again"
        )
    return number, data


def is_page(key: str) -> bool:
    """Is this an object that clients trust, and so one that is signed?"""
    return not key.startswith((*DATA, SCRATCH, SMOKE))


def sign(
    store: Store, signer: CryptoSigner, *, trust_clock: bool = False
) -> tuple[int, int, datetime]:
    """Signs all pages and wheels as they are: how many of each, and until when that counts.

    `trust_clock`: although this machine's clock and the newest signature disagree.
    """
    check_store(store)
    root = newest_root(store)
    if root is None:
        raise UsageError(
            "this index has no root yet", hint="farm index keys ONLINE.pub --root-key FILE"
        )
    if signer.public_key.keyid not in _online(root):
        raise PublishRefusedError(
            f"key {signer.public_key.keyid[:16]} may not sign this index",
            hint="use a key that may, or name all that may: farm index keys ONLINE.pub … "
            "--root-key FILE",
        )
    old = store.get(TIMESTAMP)
    now = datetime.now(UTC).replace(microsecond=0)  # TUF's times have whole seconds
    version = time.time_ns() // 10**6
    older_than = version
    if old is not None:
        before: Timestamp = _role(old, TIMESTAMP).signed
        if not trust_clock:
            _check_clock(store, time_of(before), now)
        version = max(version, before.version + 1)
        older_than = before.version
    targets = _targets(store)
    if not _write(store, signer, targets, version, now, old):
        raise InfrastructureError("somebody else signed at the same time", hint="run it again")
    _discard_older(store, older_than)
    wheels = sum(not is_page(key) for key in targets)
    return len(targets) - wheels, wheels, now + timedelta(days=DAYS)


def time_of(signed: Timestamp | Targets) -> datetime:
    """When it was signed; the signer's word."""
    return signed.expires.replace(tzinfo=UTC) - timedelta(days=DAYS)


def expiring(store: Store, now: datetime) -> Iterator[tuple[str, str, bool]]:
    """Signatures that end soon: key, what to do, and whether they have ended."""
    try:
        root = newest_root(store)
    except VerificationFailedError as error:
        yield "tuf/", str(error), True
        return
    stored = store.get(TIMESTAMP)
    if root is not None:
        key = root_key(root.signed.version)
        remedy = "farm index keys --root-key FILE"
        yield from _ends_soon(key, root, ROOT_WARNING, remedy, now)
    if stored is not None:
        role = _role(stored, TIMESTAMP)
        yield from _ends_soon(TIMESTAMP, role, SIGNATURE_WARNING, "farm index sign", now)


def _ends_soon(
    key: str, role: Metadata[Any], warning: timedelta, remedy: str, now: datetime
) -> Iterator[tuple[str, str, bool]]:
    expires = role.signed.expires.replace(tzinfo=UTC)
    if expires < now + warning:
        yield key, f"its signature ends or ended on {expires:%Y-%m-%d}: {remedy}", expires < now


def _online(root: Metadata[Root]) -> list[str]:
    return list(root.signed.roles[Targets.type].keyids)


def _role(stored: Stored, key: str) -> Metadata[Any]:
    """Metadata as it is, not verified; ForeignObjectError if it is none, or another role's."""
    try:
        metadata = Metadata[Any].from_bytes(stored.data)
    except (DeserializationError, ValueError, RecursionError) as error:
        raise foreign(key, "no metadata of The Update Framework") from error
    if f".{metadata.signed.type}.json" not in key.replace("/", "."):
        raise foreign(key, f"it is {metadata.signed.type!r:.40}")
    return metadata


def _check_clock(store: Store, signed: datetime, now: datetime) -> None:
    """Whoever signs with a wrong clock makes signatures that have expired, or that an attacker can
    show for years.
    """
    store_time = store.clock()
    reference = store_time or signed
    is_behind = now < max(signed, reference) - BEHIND
    is_ahead = now > reference + AHEAD
    if not is_behind and not is_ahead:
        return
    text = (
        f"this machine's clock says {now.isoformat()}, the newest signature is of "
        f"{signed.isoformat()}"
    )
    if store_time:
        text += f", and the store's clock says {store_time.isoformat()}"
    raise PublishRefusedError(
        text,
        hint="set the clock (timedatectl set-ntp true); if it is right, as in a folder that was "
        "not signed for a day: farm index sign --trust-clock",
    )


def _targets(store: Store) -> dict[str, TargetFile]:
    """Everything that is signed, by key."""
    keys = sorted(key for key in store.list("") if is_page(key))
    targets: dict[str, TargetFile] = {}
    for key, stored in each_answer(store.get, keys, READERS):
        if stored is None:
            continue
        digest = hashlib.sha256(stored.data).hexdigest()
        targets[key] = TargetFile(len(stored.data), {"sha256": digest}, key)
        if not json_page_of(key):
            continue
        # A page that is none is signed as it is; `farm index check` names it.
        with suppress(ForeignObjectError):
            for file in parse_page(stored.data, key).files:
                place = wheel_key(file.filename)
                hashes = {"sha256": file.hashes.sha256}
                targets[place] = TargetFile(file.size or 0, hashes, place)
    return targets


def _write(
    store: Store,
    signer: CryptoSigner,
    targets: dict[str, TargetFile],
    version: int,
    now: datetime,
    old: Stored | None,
) -> bool:
    """Write the signatures; False if somebody else signed meanwhile.

    Readers see them once the last file, the timestamp, is there.
    """
    # One version for all: they are written together, so none can be newer than another.
    common: dict[str, Any] = {"version": version, "expires": now + timedelta(days=DAYS)}
    meta = {}
    files = {}
    for name, role in _target_roles(targets, signer.public_key, common).items():
        meta[f"{name}.json"] = MetaFile(version)
        files[f"tuf/{version}.{name}.json"] = _signed(role, signer)
    files[f"tuf/{version}.snapshot.json"] = _signed(Snapshot(**common, meta=meta), signer)
    for key, data in files.items():
        if len(data) > MAX_ROLE_BYTES:
            raise PublishRefusedError(
                f"too much to sign: {key} would have {len(data)} bytes, and TUF's client reads "
                f"{MAX_ROLE_BYTES}",
                hint="nothing was written; split the index (about 25,000 pages or 2,500,000 wheels "
                "are the limit)",
            )
    for key, data in files.items():
        if not store.create(key, data, content_type="application/json"):
            return False
    timestamp = _signed(Timestamp(**common, snapshot_meta=MetaFile(version)), signer)
    return store.replace(TIMESTAMP, timestamp, etag_of(old), content_type="application/json")


def _target_roles(
    targets: dict[str, TargetFile], key: Key, common: Mapping[str, Any]
) -> dict[str, Targets]:
    """The roles that sign the targets, by name.

    One for all, or for many wheels one for the pages and further ones, to which it delegates the
    wheels by the hash of their key.
    """
    pages, wheels = _pages_and_files(targets)
    if len(wheels) <= WHEELS_PER_ROLE:
        return {Targets.type: Targets(**common, targets=targets)}
    bits = min(8, (len(wheels) // WHEELS_PER_ROLE).bit_length())
    delegated = SuccinctRoles([key.keyid], 1, bits, WHEEL_ROLE)
    shares: dict[str, dict[str, TargetFile]] = {name: {} for name in delegated.get_roles()}
    for name, target in wheels.items():
        share = shares[delegated.get_role_for_target(name)]
        share[name] = target
    delegations = Delegations({key.keyid: key}, succinct_roles=delegated)
    roles = {Targets.type: Targets(**common, targets=pages, delegations=delegations)}
    for name, share in shares.items():
        roles[name] = Targets(**common, targets=share)
    return roles


def _pages_and_files(
    targets: Mapping[str, TargetFile],
) -> tuple[dict[str, TargetFile], dict[str, TargetFile]]:
    """The targets that are pages, and the others."""
    pages = {}
    files = {}
    for key, target in targets.items():
        if is_page(key):
            pages[key] = target
        else:
            files[key] = target
    return pages, files


def _signed(role: Root | Targets | Snapshot | Timestamp, *signers: CryptoSigner) -> bytes:
    metadata: Metadata[Any] = Metadata(role)
    for signer in signers:
        metadata.sign(signer, append=True)
    return bytes(metadata.to_bytes())


def _discard_older(store: Store, version: int) -> None:
    """Readers may still be at the signatures before these; what is older than those goes."""
    for key in list(store.list("tuf/")):
        number, _, role = key.removeprefix("tuf/").partition(".")
        is_replaced = role.startswith(("targets.", "snapshot.", f"{WHEEL_ROLE}-"))
        if is_replaced and number.isdigit() and int(number) < version:
            store.discard(key)


# --- verification ---


class Verified(NamedTuple):
    """When it was signed, by the signer's word; how much was; and the problems, one line each."""

    time: str
    pages: int
    wheels: int
    problems: tuple[str, ...]


def verify_index(
    reader: Reader, root: bytes, *, state: Path | None = None, wheels: bool = False
) -> Verified:
    """Follows the keys from `root`, which the user trusts, then compares every page with its signed
    digest.

    `state` is a folder that keeps what was seen, so that nothing older is believed later; None:
    nothing is kept. `wheels`: hash the wheels as well, their `.metadata` and their records.

    Raises:
        VerificationFailedError: No signatures lead back to this root: there is nothing to verify
            by.
    """
    with temporary_folder("farm-verify-") if state is None else nullcontext(state) as folder:
        with _tuf_errors(reader) as fetcher:
            updater = _updater(fetcher, root, folder)
            targets = Metadata[Targets].from_file(str(folder / "targets.json")).signed
        return _compare(reader, fetcher, updater, targets, wheels=wheels)


class PromisedFile(NamedTuple):
    """What signatures and signed pages say of a file; the size is None if they do not say it."""

    sha256: str
    size: int | None


def _compare(
    reader: Reader, fetcher: "_Fetcher", updater: Updater, targets: Targets, *, wheels: bool
) -> Verified:
    """Compare the index with what was signed."""
    signed = time_of(targets)
    signed_pages, signed_files = _pages_and_files(targets.targets)
    data: dict[str, bytes] = {}
    problems = _read_pages(reader, signed_pages, signed, data)
    candidates = sorted(_candidates(reader, data) - signed_pages.keys())
    for key, page in each_answer(reader.get, candidates, READERS):
        if page is not None:
            problems.append(f"{key}: no signature covers this page")
    with _tuf_errors(reader, fetcher):
        for key in _listed_wheels(data):
            target = signed_files.get(key) or updater.get_targetinfo(key)
            if target is None:
                problems.append(f"{key}: no signature covers this wheel")
            else:
                signed_files[key] = target
    if isinstance(reader, HttpReader):
        page_keys = installer_pages(data)  # what differs is named above
        ask = partial(_seen_by_clients, reader, signed=signed_pages)
        for _, lines in each_answer(ask, page_keys, READERS):
            problems += lines
    if wheels:
        problems += _compare_files(reader, _promised_files(signed_files, data))
    return Verified(signed.isoformat(), len(signed_pages), len(signed_files), tuple(problems))


def _read_pages(
    reader: Reader,
    signed_pages: Mapping[str, TargetFile],
    signed: datetime,
    data: dict[str, bytes],
) -> list[str]:
    """Put the pages that are as they were signed into `data`; return what is wrong with others."""
    problems = []
    for key, page in each_answer(reader.get, signed_pages, READERS):
        if page is None:
            problems.append(f"{key}: is signed, and is not there")
        elif hashlib.sha256(page).hexdigest() != signed_pages[key].hashes["sha256"]:
            problems.append(
                f"{key}: not as it was signed on {signed:%Y-%m-%d %H:%M} UTC; either its owner "
                "changed it and has not signed since, or signed by someone else"
            )
        else:
            data[key] = page
    return problems


def _compare_files(reader: Reader, files: Mapping[str, PromisedFile]) -> list[str]:
    """Hash wheels, their `.metadata` and their records; return what is not as it was signed."""

    def digest_of(key: str) -> str | None:
        return reader.digest(key, files[key].size)

    problems = []
    for key, digest in each_answer(digest_of, files, READERS):
        if digest is None:
            problems.append(f"{key}: is not there")
        elif digest != files[key].sha256:
            problems.append(f"{key}: has other bytes than signed")
    return problems


def installer_pages(keys: Iterable[str]) -> list[str]:
    """The HTML pages that installers ask for by their folder."""
    simple = [key for key in keys if key.startswith("whl/") and "/simple/" in key]
    return [key for key in simple if key.endswith("/index.html")]


def _seen_by_clients(reader: HttpReader, key: str, signed: Mapping[str, TargetFile]) -> list[str]:
    """What pip and browsers get from the folder of a page, if it is not as it was signed.

    They do not ask for index.html: a cache or server may answer the folder with something else.
    """
    folder = key.removesuffix("index.html")
    _, group, _, *project, _ = key.split("/")
    json_page = "/".join(["whl", group, "v1-json", *project, "index.json"])
    problems = []
    for client, accept in (("pip", ACCEPT_PIP), ("a browser", ACCEPT_BROWSER)):
        try:
            answer = reader.ask(quote(folder), {"Accept": accept})
        except InfrastructureError as error:
            problems.append(f"{folder}, as {client} asks for it: {error}")
            continue
        expected = signed.get(key)
        if answer.media_type == JSON:
            expected = signed.get(json_page)
        problem = ""
        if answer.status != 200:
            problem = f"HTTP {answer.status}"
        elif expected is None:
            problem = "no signature covers this page"
        elif hashlib.sha256(answer.data).hexdigest() != expected.hashes["sha256"]:
            problem = "not as it was signed: a cache or server shows something else than the index"
        if problem:
            problems.append(f"{folder}, as {client} asks for it: {problem}")
    return problems


def _listed_wheels(pages: Mapping[str, bytes]) -> list[str]:
    """Keys of the wheels on JSON pages."""
    keys = set()
    for key, data in pages.items():
        if json_page_of(key):
            for file in parse_page(data, key).files:
                keys.add(wheel_key(file.filename))
    return sorted(keys)


def _updater(fetcher: "_Fetcher", root: bytes, folder: Path) -> Updater:
    """TUF's client, which has followed the keys to the newest targets."""
    folder.mkdir(parents=True, exist_ok=True)
    updater = Updater(str(folder), f"{_BASE}tuf/", fetcher=fetcher, bootstrap=root)
    updater.refresh()
    return updater


@contextmanager
def _tuf_errors(reader: Reader, fetcher: "_Fetcher | None" = None) -> Iterator["_Fetcher"]:
    """Say errors of TUF's client with the file and its address."""
    fetcher = fetcher or _Fetcher(reader)
    try:
        yield fetcher
    except OSError as error:
        raise UsageError(
            f"cannot keep what was verified: {error}", hint="XDG_STATE_HOME names another folder"
        ) from error
    except (RepositoryError, DownloadError, ValueError) as error:
        if isinstance(error.__cause__, FarmError):  # the server's failure, with its address
            raise error.__cause__ from error
        where = reader.url(fetcher.key or root_key(1))
        if isinstance(error, DownloadLengthMismatchError):
            raise VerificationFailedError(
                f"{where}: longer than TUF's client reads: {error}",
                hint="the index's owner signed too much, or a server sends something else",
            ) from error
        if isinstance(error, DownloadError) and not isinstance(error, DownloadHTTPError):
            raise InfrastructureError(f"{where}: {error}", hint="run it again") from error
        for kind, (why, hint) in _WORDS.items():
            if isinstance(error, kind):
                raise VerificationFailedError(f"{where}: {why}: {error}", hint=hint) from error
        raise


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
    """Gives TUF's client the files below `tuf/`, wherever the index is; `key`: the last one."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.key = ""

    def _fetch(self, url: str) -> Iterator[bytes]:
        key = url.removeprefix(_BASE)
        data = self.reader.get(key)
        if data is None:
            raise DownloadHTTPError(f"{key} is not there", 404)
        self.key = key
        return iter((data,))


def _candidates(reader: Reader, data: dict[str, bytes]) -> set[str]:
    """Keys at which there may be pages: all that there are, or those of every known name in every
    known group.
    """
    keys = reader.keys()
    if keys is not None:
        return {key for key in keys if is_page(key)}
    catalogue = parse_catalogue(data.get(CATALOGUE))
    pages = {
        place(group, name)
        for group in catalogue.groups
        for name in catalogue.names
        for place in (html_key, json_key)
    }
    return {HOME, GROUPS, CATALOGUE} | pages


def _promised_files(
    signed_files: Mapping[str, TargetFile], pages: Mapping[str, bytes]
) -> dict[str, PromisedFile]:
    """The signed wheels, and the `.metadata` and records of the wheels on signed pages."""
    files = {
        key: PromisedFile(target.hashes["sha256"], target.length)
        for key, target in signed_files.items()
    }
    for key, data in pages.items():
        if not json_page_of(key):
            continue
        for file in parse_page(data, key).files:
            if file.core_metadata is not None:
                files[metadata_key(file.filename)] = PromisedFile(file.core_metadata.sha256, None)
            if file.record is not None:
                files[record_key(file.filename)] = PromisedFile(file.record, None)
    return files
