"""RECORD: the list of a wheel's files with their hashes (PEP 376 and "Recording installed projects")."""

import base64
import csv
import io
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Archive

# 32 bytes are 43 digits, of which the last carries four bits.
_DIGEST = re.compile(r"[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]")
_SIZE = 19  # digits of a length
_MAX_ROWS = 250_000  # a wheel has at most 200,000 members
RECORD_LIMIT = 64 << 20


class Row(NamedTuple):
    """One line: path, sha256 in hexadecimal and length in bytes; both None where RECORD leaves them empty."""

    path: str
    sha256: str | None
    size: int | None


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
    if algorithm != "sha256":
        raise VerificationFailedError(f"RECORD line {number}: hash {algorithm[:40]!r}; accepted is sha256")
    if not _DIGEST.fullmatch(value):
        raise VerificationFailedError(f"RECORD line {number}: {value[:60]!r} is not a sha256 in URL-safe base64")
    return base64.urlsafe_b64decode(value + "=").hex()


def render_record(rows: Iterable[Row]) -> bytes:
    """The file's bytes: LF line ends, quotes only where a path needs them."""
    text = io.StringIO(newline="")
    # LF on every system: the same wheel must come out on Windows.
    writer = csv.writer(text, lineterminator="\n")
    for path, sha256, size in rows:
        digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode() if sha256 else ""
        writer.writerow((path, f"sha256={digest}" if digest else "", "" if size is None else size))
    return text.getvalue().encode()


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
            wrong.append((path, "its sha256 is not the one in RECORD"))
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
