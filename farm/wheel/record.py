"""RECORD: the list of a wheel's files with their hashes (PEP 376 and "Recording installed projects")."""

import binascii
import io
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from farm.errors import VerificationFailedError

# 32 bytes are 43 digits, of which the last carries four bits.
_DIGEST = re.compile(r"[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]")
# A line as nearly all are: no quotes. What it takes means the same to a reader of CSV. Anything else takes the rest.
_LINE = re.compile(rb"([^\",\r\n]+),(?:sha256=(%s))?,([0-9]{0,19})(\r?\n|\Z)|(?s:.+)" % _DIGEST.pattern.encode())
_QUOTED = re.compile(r"[\",\r\n]")
_STANDARD = bytes.maketrans(b"-_", b"+/")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_MAX_ROWS = 250_000  # a wheel has at most 200,000 members


class Row(NamedTuple):
    """One line: path, sha256 in hexadecimal and length in bytes; both None where RECORD leaves them empty."""

    path: str
    sha256: str | None
    size: int | None


_new = tuple.__new__  # of a Row from its fields, in half the time


def parse_record(content: bytes) -> list[Row]:
    """Rows of a RECORD file.

    Raises:
        VerificationFailedError: Not UTF-8, not CSV of three columns, too many rows, or a hash that is not a sha256.
    """
    return _parse_plain(content) or _parse_csv(content)


def _parse_plain(content: bytes) -> list[Row]:
    """The rows, in a tenth of the time; none if any line needs more than a look."""
    if content.count(b"\n") >= _MAX_ROWS:
        return []
    lines = _LINE.findall(content)
    if not lines or not lines[-1][0]:
        return []
    digests = [digest for _, digest, _, _ in lines if digest]
    # One digit more makes 33 bytes of each, the last of them zero: so all are converted at once.
    together = binascii.a2b_base64(b"A".join([*digests, b""]).translate(_STANDARD)).hex()
    hashes = iter([together[at : at + 64] for at in range(0, len(together), 66)])
    try:
        return [
            _new(Row, (path.decode(), next(hashes) if digest else None, int(size) if size else None))
            for path, digest, size, _ in lines
        ]
    except UnicodeDecodeError:
        return []


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
    if not (size == "" or (size.isascii() and size.isdigit() and len(size) < 20)):
        raise VerificationFailedError(f"RECORD line {number}: {size[:40]!r} is not a size")
    return Row(path, _digest(number, digest) if digest else None, int(size) if size else None)


def _digest(number: int, digest: str) -> str:
    algorithm, _, value = digest.partition("=")
    if algorithm != "sha256":
        raise VerificationFailedError(f"RECORD line {number}: hash {algorithm[:40]!r}; only sha256 is accepted")
    if not _DIGEST.fullmatch(value):
        raise VerificationFailedError(f"RECORD line {number}: {value[:60]!r} is not a sha256 in URL-safe base64")
    return _hexadecimal(value.encode())


def _hexadecimal(digits: bytes) -> str:
    return binascii.a2b_base64(digits.translate(_STANDARD) + b"=").hex()


def render_record(rows: Iterable[Row]) -> bytes:
    """The file's bytes: LF line ends, quotes only where a path needs them."""
    # LF on every system: the same wheel must come out on Windows.
    text = io.StringIO(newline="")
    all_rows = list(rows)
    # All hashes at once, each with a byte more, so that they make a whole number of digits.
    hashes = "00".join([sha256 for _, sha256, _ in all_rows if sha256] + [""])
    digits = binascii.b2a_base64(bytes.fromhex(hashes), newline=False).translate(_URL_SAFE).decode()
    at = 0
    for path, sha256, size in all_rows:
        digest = ""
        if sha256:
            digest = f"sha256={digits[at : at + 43]}"
            at += 44
        length = "" if size is None else size
        if _QUOTED.search(path):
            text.write('"' + path.replace('"', '""') + f'",{digest},{length}\n')
        else:
            text.write(f"{path},{digest},{length}\n")
    return text.getvalue().encode()


def compare_record(rows: Iterable[Row], record: str, files: Mapping[str, tuple[str, int]]) -> list[tuple[str, str]]:
    """What RECORD says against what the wheel holds.

    Args:
        rows: The parsed RECORD.
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
