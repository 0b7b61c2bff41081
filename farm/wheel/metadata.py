"""A wheel's own account: its file name, METADATA, WHEEL and RECORD, the list of its files with
their hashes.

Names and tags are read as `packaging.utils` and `packaging.tags` read them (the tests compare
them). Sources: PyPA specifications, "Binary distribution format", "Platform compatibility tags",
"Core metadata", "Recording installed projects".
"""

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from email.parser import HeaderParser
from itertools import product
from math import prod
from typing import NamedTuple

from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from farm.base.errors import UsageError, VerificationFailedError
from farm.base.requirement import read_requirement
from farm.base.text import undo_download_name
from farm.wheel.archive import Archive

_LIMIT = 4 << 20
_MAX_HEADERS = 256 << 10  # bytes: each header costs fifty times its length in memory
_MAX_TAGS = 1000  # of a wheel
# packaging ends with int's error at 4300 digits, not with its own.
_ENDLESS = re.compile(r"\d{1000}")
# A build number has at most 64 bits for uv.
_NAME_FORM = "not name-version[-build]-python-abi-platform.whl"
_NAME = re.compile(r"([\w.]+)-([^-]+)(?:-[0-9]{1,18}(?![0-9])[^-\n]*)?-([^-]+-[^-]+-[^-]+)\.whl")


class WheelName(NamedTuple):
    """A wheel's file name. `name` is normalized (PEP 503); `parts` are the name's pieces as
    written.
    """

    name: str
    version: str
    tags: frozenset[str]
    parts: tuple[str, ...]

    def renamed(self, *, version: str | None, platforms: tuple[str, ...]) -> str:
        """The file name with another version and other platform tags (none given: kept)."""
        parts = list(self.parts)
        if version is not None:
            # A dash would end the version within the file name.
            parts[1] = version.replace("-", "_")
        if platforms:
            parts[-1] = ".".join(platforms)
        return "-".join(parts) + ".whl"


class DistInfo(NamedTuple):
    """METADATA and WHEEL."""

    folder: str  # the `.dist-info` folder
    name: str
    version: str
    requires_python: str | None
    requires_dist: tuple[str, ...]
    tags: frozenset[str]  # expanded (`cp311-cp311-linux_x86_64`)
    no_tags: tuple[str, ...] = ()  # tag headers that are none, which installers pass over
    wheel_headers: Mapping[str, list[str]] = {}  # of WHEEL, by name in lower case

    @property
    def record(self) -> str:
        return f"{self.folder}/RECORD"

    @property
    def signed(self) -> frozenset[str]:
        """RECORD and its signatures, which another RECORD makes false."""
        return frozenset(self.record + ending for ending in ("", ".jws", ".p7s"))

    @property
    def stem(self) -> str:
        """Name and version, as the wheel's own folders begin."""
        return self.folder.removesuffix(".dist-info")


def parse_wheel_name(filename: str) -> WheelName:
    """Take a wheel's file name apart, or `VerificationFailedError`."""
    match = _NAME.fullmatch(filename)
    try:
        if match is None:
            raise ValueError(_NAME_FORM)
        name, version_text, tag_text = match.groups()
        tags = _expanded(tag_text)
        # `__`: packaging refuses it in a name.
        if not tags or "__" in name:
            raise ValueError(_NAME_FORM)
        version = str(Version(version_text))
    except ValueError as error:
        raise VerificationFailedError(
            f"{filename!r} is not a wheel's file name ({error})", hint=_hint_on_name(filename)
        ) from error
    parts = filename.removesuffix(".whl").split("-")
    return WheelName(canonicalize_name(name), version, tags, tuple(parts))


def _hint_on_name(filename: str) -> str | None:
    """What to do where a download has changed a wheel's file name."""
    original = undo_download_name(filename)
    if original == filename or not _NAME.fullmatch(original):
        return None
    if not re.fullmatch(r"[\w.+!-]+", original, re.ASCII):
        return None
    return f"rename it as it was before its download: {original}"


def read_dist_info(archive: Archive) -> DistInfo:
    """Read the one `.dist-info` folder, or `VerificationFailedError`."""
    folder = _dist_info_folder(archive)
    # Raises where it is absent. What is in it, those read who compare it.
    archive.entry(f"{folder}/RECORD")
    metadata = _headers(archive, f"{folder}/METADATA")
    wheel = _headers(archive, f"{folder}/WHEEL")
    lines = [line.strip() for line in wheel.get("tag", ())]
    if sum(map(_count, lines)) > _MAX_TAGS:
        raise VerificationFailedError(f"{folder}: more than {_MAX_TAGS} tags")
    tags: set[str] = set()
    no_tags = []
    for line in lines:
        expanded = _expanded(line)
        tags |= expanded
        if not expanded:
            no_tags.append(line)
    return DistInfo(
        folder=folder,
        name=_one(metadata, "Name", f"{folder}/METADATA"),
        version=_one(metadata, "Version", f"{folder}/METADATA"),
        requires_python=next(iter(metadata.get("requires-python", ())), None),
        requires_dist=tuple(metadata.get("requires-dist", ())),
        tags=frozenset(tags),
        no_tags=tuple(no_tags),
        wheel_headers=wheel,
    )


def _dist_info_folder(archive: Archive) -> str:
    """The name of the one `.dist-info` folder."""
    folders = set()
    for name in archive.members:
        # pip and installer count a file of such a name too.
        if ".dist-info" in name:
            folder = name.partition("/")[0]
            if folder.endswith(".dist-info"):
                folders.add(folder)
    if len(folders) != 1:
        raise VerificationFailedError(f"{len(folders)} .dist-info folders; a wheel has one")
    return folders.pop()


def same_version(left: str, right: str) -> bool:
    """Equal by PEP 440; versions that are none equal nothing."""
    try:
        return Version(left) == Version(right)
    except InvalidVersion:
        return False


def same_name(left: str, right: str) -> bool:
    """True if two names are of one project, however they are spelled."""
    return canonicalize_name(left) == canonicalize_name(right)


def normal_version(version: str) -> str:
    """A version in normal form, or `UsageError`."""
    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise UsageError(f"{version!r} is not a version (PEP 440)") from error


def normal_requirement(requirement: str) -> str:
    """A requirement (PEP 508) in normal form, or `UsageError`."""
    try:
        if not requirement.isprintable():
            raise InvalidRequirement("control characters")
        return str(read_requirement(requirement))
    except InvalidRequirement as error:
        raise UsageError(f"{requirement[:80]!r} is not a requirement (PEP 508)") from error


_REQUIREMENT = re.compile(rb"(?mi)^Requires-Dist:[^\r\n]*")


def with_version(metadata: bytes, version: str) -> bytes:
    """METADATA with its Version header replaced; everything else stays byte for byte."""
    head, gap, body = _split(metadata)
    changed, count = re.subn(rb"(?mi)^(Version:[ \t]*)[^\r\n]*", rb"\g<1>" + version.encode(), head)
    if count != 1:
        raise VerificationFailedError(f"METADATA: {count} Version headers; there must be one")
    return changed + gap + body


_LOCAL_PIN = re.compile(rb"(===?\s*[^\s,;()+]+)\+[A-Za-z0-9._-]+")


def without_local_pins(metadata: bytes) -> bytes:
    """METADATA whose requirements name no local version: `torch==2.6.0+cu118.sm61` becomes
    `torch==2.6.0`, which every local version of it meets, and one without (PEP 440).
    """
    head, gap, body = _split(metadata)

    def without_pin(line: re.Match[bytes]) -> bytes:
        return _LOCAL_PIN.sub(rb"\1", line[0])

    return _REQUIREMENT.sub(without_pin, head) + gap + body


def with_requirements(metadata: bytes, requires: Sequence[str]) -> bytes:
    """METADATA with further Requires-Dist headers; everything else stays byte for byte."""
    if not requires:
        return metadata
    head, gap, body = _split(metadata)
    end = _line_end(metadata)
    lines = [b"Requires-Dist: " + requirement.encode() for requirement in requires]
    if gap:  # the last header's line end belongs to the gap
        return end.join([head, *lines]) + gap + body
    if not head.endswith(b"\n"):
        head += end
    return head + end.join([*lines, b""])


def _line_end(text: bytes) -> bytes:
    """How the lines of a file end."""
    return b"\r\n" if b"\r\n" in text else b"\n"


def with_description(metadata: bytes, text: str) -> bytes:
    """METADATA with a paragraph at the end of its description, once; everything else stays byte for
    byte.
    """
    paragraph = text.encode()
    if not text or paragraph in metadata:
        return metadata
    return metadata.rstrip() + b"\n\n" + paragraph + b"\n"


def with_build(wheel: bytes, build: str) -> bytes:
    """WHEEL with this Build header, before its tags; with none for no build."""
    head, gap, body = _split(wheel)
    lines: list[bytes] = []
    first_tag = None
    for line in head.splitlines():
        header = line.lower()
        if header.startswith(b"build:"):
            continue
        if header.startswith(b"tag:") and first_tag is None:
            first_tag = len(lines)
        lines.append(line)
    if build:
        place = len(lines) if first_tag is None else first_tag
        lines.insert(place, b"Build: " + build.encode())
    if head.endswith((b"\r", b"\n")):
        lines.append(b"")
    return _line_end(wheel).join(lines) + gap + body


def with_tags(wheel: bytes, tags: Sequence[str]) -> bytes:
    """WHEEL with these Tag headers, and of each other header the first: installers read that
    one.
    """
    head, _, _ = _split(wheel)
    headers: dict[str, str] = {}
    for line in head.decode("utf-8").splitlines():
        name = line.partition(":")[0].lower()
        if line and name != "tag":
            headers.setdefault(name, line)
    lines = list(headers.values())
    for tag in tags:
        lines.append(f"Tag: {tag}")
    return "\n".join([*lines, ""]).encode()


def _split(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Headers, the empty line behind them, and what follows."""
    gap = re.search(rb"\r?\n\r?\n", text)
    if gap:
        return (text[: gap.start()], gap[0], text[gap.end() :])
    return (text, b"", b"")


def _headers(archive: Archive, member: str) -> dict[str, list[str]]:
    """The headers of METADATA or WHEEL, by name in lower case."""
    try:
        text = archive.read(member, _LIMIT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise VerificationFailedError(f"member {member!r}: not UTF-8") from error
    # Headers alone: the description below them may be long.
    head, _, _ = _split(text.encode())
    if len(head) > _MAX_HEADERS:
        raise VerificationFailedError(
            f"member {member!r}: more than {_MAX_HEADERS} bytes of headers"
        )
    headers: dict[str, list[str]] = {}
    for name, raw in HeaderParser().parsestr(text).items():
        value = str(raw).lstrip(" \t\r\n")
        if name.lower() == "wheel-version" and name != "Wheel-Version":
            continue  # uv knows it in this spelling alone
        headers.setdefault(name.lower(), []).append(value)
    _check_headers(headers, member)
    return headers


def _check_headers(headers: Mapping[str, list[str]], member: str) -> None:
    """Refuse what cannot be shown, or be read as a number, in the headers that are read here."""
    for key in ("Name", "Version", "Requires-Python", "Requires-Dist", "Tag"):
        for value in headers.get(key.lower(), ()):
            if not value.isprintable():
                raise VerificationFailedError(f"member {member!r}: control characters in {key}")
            if _ENDLESS.search(value):
                raise VerificationFailedError(
                    f"member {member!r}: a number of a thousand digits in {key}"
                )


def _one(headers: dict[str, list[str]], key: str, member: str) -> str:
    """The value of a header that must be there once."""
    values = headers.get(key.lower(), [])
    if len(values) != 1:
        raise VerificationFailedError(
            f"member {member!r}: {len(values)} {key} headers; there must be one"
        )
    return values[0].strip()


def _count(tag: str) -> int:
    """How many tags a line stands for, counted before it is expanded: a short one can stand for
    millions.
    """
    counts = [part.count(".") + 1 for part in tag.split("-")]
    return prod(counts)


def _expanded(tag: str) -> frozenset[str]:
    """Each tag that one of the form `cp38.cp39-abi3-linux_x86_64` stands for; or none."""
    parts = tag.lower().split("-")
    if len(parts) != 3:
        return frozenset()
    pythons, abis, platforms = (part.split(".") for part in parts)
    if not all(map(str.isidentifier, pythons)) or "" in abis or "" in platforms:
        return frozenset()
    return frozenset(map("-".join, product(pythons, abis, platforms)))


# "Binary distribution format": sha256 or better. In bytes of the digest.
_ALGORITHMS = {"sha256": 32, "sha384": 48, "sha512": 64}
_BASE64 = re.compile(r"[A-Za-z0-9_-]+")
_SIZE = 19  # digits of a length
_MAX_ROWS = 250_000  # a wheel has at most 200,000 members
RECORD_LIMIT = 64 << 20


class Row(NamedTuple):
    """One line.

    Attributes:
        path: The file.
        digest: Its hash in hexadecimal, None where RECORD leaves it empty.
        size: Its length in bytes, None where RECORD leaves it empty.
        algorithm: That of the hash.
    """

    path: str
    digest: str | None
    size: int | None
    algorithm: str = "sha256"


def read_record(archive: Archive, record: str) -> tuple[bytes, list[Row]]:
    """RECORD as it is, and its rows."""
    content = archive.read(record, RECORD_LIMIT)
    try:
        return content, parse_record(content)
    except VerificationFailedError as error:
        raise VerificationFailedError(
            str(error), hint="repair the wheel (farm repair), which writes RECORD anew"
        ) from error


def parse_record(content: bytes) -> list[Row]:
    """Rows of a RECORD file."""
    rows: list[Row] = []
    # Line by line: a StringIO would take four bytes a character.
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")
    lines = csv.reader(text, strict=True)
    try:
        for number, line in enumerate(lines, 1):
            if len(rows) == _MAX_ROWS:
                raise VerificationFailedError(f"RECORD: more than {_MAX_ROWS} rows")
            if line:
                rows.append(_row(number, line))
    except (UnicodeDecodeError, csv.Error) as error:
        raise VerificationFailedError(f"RECORD: not CSV in UTF-8 ({error})") from error
    return rows


def _row(number: int, line: list[str]) -> Row:
    """A row of RECORD from the columns of its line."""
    if len(line) != 3:
        raise VerificationFailedError(f"RECORD line {number}: {len(line)} columns instead of 3")
    path, digest, size = line
    length = None
    if size:
        if not size.isascii() or not size.isdigit() or len(size) > _SIZE:
            raise VerificationFailedError(f"RECORD line {number}: {size[:40]!r} is not a size")
        length = int(size)
    if not digest:
        return Row(path, None, length)
    algorithm, _, value = digest.partition("=")
    return Row(path, _digest(number, algorithm, value), length, algorithm)


def _digest(number: int, algorithm: str, value: str) -> str:
    """A hash in hexadecimal."""
    if algorithm not in _ALGORITHMS:
        raise VerificationFailedError(
            f"RECORD line {number}: hash {algorithm[:40]!r}; accepted are {', '.join(_ALGORITHMS)}"
        )
    size = _ALGORITHMS[algorithm]
    # Base64 without padding has four digits for three bytes.
    digits = -(-size * 4 // 3)
    if len(value) == digits and _BASE64.fullmatch(value):
        raw = base64.urlsafe_b64decode(value + "=" * (-digits % 4))
        # The last digit may carry bits that belong to no byte; they must be zero.
        if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() == value:
            return raw.hex()
    raise VerificationFailedError(
        f"RECORD line {number}: {value[:60]!r} is not a {algorithm} in URL-safe base64"
    )


def render_record(rows: Iterable[Row]) -> bytes:
    """The file's bytes: LF line ends, quotes only where a path needs them."""
    text = io.StringIO(newline="")
    # LF on every system: the same wheel must come out on Windows.
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        digest = ""
        if row.digest:
            encoded = base64.urlsafe_b64encode(bytes.fromhex(row.digest)).rstrip(b"=")
            digest = f"{row.algorithm}={encoded.decode()}"
        writer.writerow((row.path, digest, "" if row.size is None else row.size))
    return text.getvalue().encode()


def hash_member(archive: Archive, name: str, algorithm: str) -> str:
    """Hash a member, in hexadecimal."""
    digest = hashlib.new(algorithm)
    for chunk in archive.chunks(name):
        digest.update(chunk)
    return digest.hexdigest()


def compare_record(
    archive: Archive,
    rows: Iterable[Row],
    record: str,
    files: Mapping[str, tuple[str, int]],
) -> list[tuple[str, str]]:
    """Compare RECORD with the files of a wheel.

    Args:
        archive: The wheel; read for hashes of another kind than sha256.
        rows: The rows of RECORD.
        record: The name of RECORD; it and its signatures carry no hash.
        files: The sha256 in hexadecimal and the length of each file.

    Returns:
        A path and what is wrong with it, in the order of RECORD; then files that it lacks.
    """
    # "Binary distribution format": they cannot sign themselves.
    signatures = {f"{record}.jws", f"{record}.p7s"}
    unhashed = {record, *signatures}
    problems = []
    paths: set[str] = set()
    for row in rows:
        path = row.path
        if path in signatures:
            problems.append((path, "listed in RECORD, which it signs"))
        elif path in paths:
            problems.append((path, "listed twice in RECORD"))
        elif path not in files:
            problems.append((path, "listed in RECORD but not in the wheel"))
        else:
            problem = _compare_row(archive, row, files[path], hashed=path not in unhashed)
            if problem:
                problems.append((path, problem))
        paths.add(path)
    if record not in paths:
        problems.append((record, "RECORD does not list itself"))
    for path in files:
        if path not in paths and path not in unhashed:
            problems.append((path, "in the wheel but not in RECORD"))
    return problems


def _compare_row(
    archive: Archive,
    row: Row,
    file: tuple[str, int],
    *,
    hashed: bool,
) -> str | None:
    """What is wrong with a row of RECORD; None where it is right.

    Args:
        archive: The wheel.
        row: The row.
        file: The sha256 and the length of its file.
        hashed: It must have both.
    """
    sha256, size = file
    if row.digest is None:
        if hashed:
            return "listed in RECORD without a hash"
    else:
        digest = sha256
        if row.algorithm != "sha256":
            digest = hash_member(archive, row.path, row.algorithm)
        if row.digest != digest:
            return f"its {row.algorithm} is not the one in RECORD"
    if row.size is None and hashed:
        return "listed in RECORD without its length"
    if row.size not in (None, size):
        return "its length is not the one in RECORD"
    return None
