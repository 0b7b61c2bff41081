"""RECORD: the list of a wheel's files with their hashes (PEP 376 and "Recording installed projects")."""

import binascii
import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Archive

# 32 bytes are 43 digits, of which the last carries four bits.
_DIGEST = re.compile(r"[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]")
# "sha256 or better", of those that every Python has and that have one length.
_OTHERS = ("sha384", "sha512", "sha3_256", "sha3_384", "sha3_512", "blake2b", "blake2s")
_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_SIZE = 19  # digits of a length
_QUOTED = ',"\r\n'  # a path with one of them is in quotes
_STANDARD = bytes.maketrans(b"-_", b"+/")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_MAX_ROWS = 250_000  # a wheel has at most 200,000 members
RECORD_LIMIT = 64 << 20


class Row(NamedTuple):
    """One line: path, sha256 in hexadecimal and length in bytes; both None where RECORD leaves them empty.

    Another hash has its name in front (`sha512=…`), so that it equals no sha256.
    """

    path: str
    sha256: str | None
    size: int | None


_new = tuple.__new__  # of a Row from its fields, in half the time


def read_record(archive: Archive, record: str) -> tuple[bytes, list[Row]]:
    """RECORD as it is, and its rows: where a file has the other hash that its row gives, the row gets its sha256.

    Raises:
        VerificationFailedError: As `parse_record`, or a member is missing or damaged.
    """
    content = archive.read(record, RECORD_LIMIT)
    try:
        rows = parse_record(content)
    except VerificationFailedError as error:
        raise VerificationFailedError(
            str(error), hint="repair the wheel (farm repair), which writes RECORD anew"
        ) from error
    return content, [_in_sha256(archive, row) for row in rows]


def _in_sha256(archive: Archive, row: Row) -> Row:
    algorithm, other, value = (row.sha256 or "").partition("=")
    entry = archive.members.get(row.path)
    if not other or entry is None or entry.is_dir:
        return row
    asked, sha256 = hashlib.new(algorithm), hashlib.sha256()
    for chunk in archive.chunks(row.path):
        asked.update(chunk)
        sha256.update(chunk)
    return row._replace(sha256=sha256.hexdigest()) if asked.hexdigest() == value else row


def parse_record(content: bytes) -> list[Row]:
    """Rows of a RECORD file.

    Raises:
        VerificationFailedError: Not UTF-8, not CSV of three columns, too many rows, or no hash that is allowed.
    """
    return _parse_plain(content) or _parse_csv(content)


def _parse_plain(content: bytes) -> list[Row]:
    """The rows, in a tenth of the time: every check looks at all lines at once. None if one needs a closer look."""
    if content.count(b"\n") >= _MAX_ROWS:
        return []
    try:
        text = content.decode().replace("\r\n", "\n").removesuffix("\n")
    except UnicodeDecodeError:
        return []
    lines = [line.split(",", 3) for line in text.split("\n")]  # four parts are too many already
    # Without quotes and in three columns, a line means the same to a reader of CSV.
    if '"' in text or "\r" in text or set(map(len, lines)) != {3}:
        return []
    paths, digests, sizes = zip(*lines, strict=True)
    digits = "".join(sizes)
    if "" in paths or max(map(len, sizes)) > _SIZE or (digits and not (digits.isascii() and digits.isdigit())):
        return []
    given = [digest for digest in digests if digest]
    if not set(map(len, given)) <= {50} or not {digest[:7] for digest in given} <= {"sha256="}:
        return []
    # One digit more makes 33 bytes of each, the last of them zero: so all are converted at once.
    packed = "A".join([*(digest[7:] for digest in given), ""]).encode()
    if packed.translate(None, _DIGITS):
        return []
    together = binascii.a2b_base64(packed.translate(_STANDARD))
    if any(together[32::33]):  # two bits more than a sha256 has
        return []
    plain = together.hex()
    hashes = iter([plain[at : at + 64] for at in range(0, len(plain), 66)])
    return [
        _new(Row, (path, next(hashes) if digest else None, int(size) if size else None)) for path, digest, size in lines
    ]


def _parse_csv(content: bytes) -> list[Row]:
    import csv  # noqa: PLC0415 (seldom needed)

    rows: list[Row] = []
    # Line by line: a StringIO would take four bytes a character.
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")
    try:
        for number, line in enumerate(csv.reader(text, strict=True), 1):
            if len(rows) == _MAX_ROWS:
                raise VerificationFailedError(f"RECORD: more than {_MAX_ROWS} rows")
            if line:
                rows.append(_row(number, line))
    except (UnicodeDecodeError, csv.Error) as error:
        raise VerificationFailedError(f"RECORD: not CSV in UTF-8 ({error})") from error
    return rows


def _row(number: int, line: list[str]) -> Row:
    if len(line) != 3:
        raise VerificationFailedError(f"RECORD line {number}: {len(line)} columns instead of 3")
    path, digest, size = line
    if not (size == "" or (size.isascii() and size.isdigit() and len(size) <= _SIZE)):
        raise VerificationFailedError(f"RECORD line {number}: {size[:40]!r} is not a size")
    return Row(path, _digest(number, digest) if digest else None, int(size) if size else None)


def _digest(number: int, digest: str) -> str:
    algorithm, _, value = digest.partition("=")
    if algorithm in _OTHERS:
        return f"{algorithm}={_other(number, algorithm, value)}"
    if algorithm != "sha256":
        raise VerificationFailedError(
            f"RECORD line {number}: hash {algorithm[:40]!r}; accepted are sha256, {', '.join(_OTHERS)}"
        )
    if not _DIGEST.fullmatch(value):
        raise VerificationFailedError(f"RECORD line {number}: {value[:60]!r} is not a sha256 in URL-safe base64")
    return _hexadecimal(value.encode())


def _other(number: int, algorithm: str, value: str) -> str:
    try:
        digest = binascii.a2b_base64(value.encode().translate(_STANDARD) + b"=" * (-len(value) % 4))
    except binascii.Error:
        digest = b""
    # Written again: other lengths and digits, and bits to spare, show.
    again = binascii.b2a_base64(digest, newline=False).translate(_URL_SAFE).rstrip(b"=")
    if len(digest) != hashlib.new(algorithm).digest_size or again != value.encode():
        raise VerificationFailedError(f"RECORD line {number}: {value[:120]!r} is not a {algorithm} in URL-safe base64")
    return digest.hex()


def _hexadecimal(digits: bytes) -> str:
    return binascii.a2b_base64(digits.translate(_STANDARD) + b"=").hex()


def render_record(rows: Iterable[Row]) -> bytes:
    """The file's bytes: LF line ends, quotes only where a path needs them."""
    all_rows = list(rows)
    quotes = _needs_quotes("".join([path for path, _, _ in all_rows]))  # for nearly all wheels none does
    # All hashes at once, each with a byte more, so that they make a whole number of digits.
    hashes = "00".join([sha256 for _, sha256, _ in all_rows if sha256] + [""])
    digits = binascii.b2a_base64(bytes.fromhex(hashes), newline=False).translate(_URL_SAFE).decode()
    at = 0
    lines = []
    for path, sha256, size in all_rows:
        name = '"' + path.replace('"', '""') + '"' if quotes and _needs_quotes(path) else path
        digest = ""
        if sha256:
            digest = f"sha256={digits[at : at + 43]}"
            at += 44
        # LF on every system: the same wheel must come out on Windows.
        lines.append(f"{name},{digest},{'' if size is None else size}\n")
    return "".join(lines).encode()


def _needs_quotes(path: str) -> bool:
    return any(mark in path for mark in _QUOTED)


def compare_record(rows: Iterable[Row], record: str, files: Mapping[str, tuple[str, int]]) -> list[tuple[str, str]]:
    """RECORD compared with the members of the wheel.

    Args:
        rows: The parsed RECORD (`read_record`).
        record: RECORD's own name; it and its signatures carry no hash.
        files: (sha256 in hexadecimal, length) of each file of the wheel.

    Returns:
        (path, what is wrong), in the order of RECORD, then of the wheel. Empty: all is well.
    """
    signatures = {f"{record}.jws", f"{record}.p7s"}  # "Binary distribution format": they cannot sign themselves
    unhashed = {record, *signatures}
    wrong = []
    seen: set[str] = set()
    for path, sha256, size in rows:
        true = files.get(path)
        if path in signatures:
            wrong.append((path, "listed in RECORD, which it signs"))
        elif path in seen:
            wrong.append((path, "listed twice in RECORD"))
        elif true is None:
            wrong.append((path, "listed in RECORD but not in the wheel"))
        elif sha256 is None and path not in unhashed:
            wrong.append((path, "listed in RECORD without a hash"))
        elif sha256 is not None and sha256 != true[0]:
            algorithm = sha256.partition("=")[0] if "=" in sha256 else "sha256"
            wrong.append((path, f"its {algorithm} is not the one in RECORD"))
        elif size is None and path not in unhashed:
            wrong.append((path, "listed in RECORD without its length"))
        elif size is not None and size != true[1]:
            wrong.append((path, "its length is not the one in RECORD"))
        seen.add(path)
    if record not in seen:
        wrong.append((record, "RECORD does not list itself"))
    seen |= unhashed
    wrong += [(path, "in the wheel but not in RECORD") for path in files if path not in seen]
    return wrong
