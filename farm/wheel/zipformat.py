"""The structures of a ZIP file as bytes, and a member as its directory describes it.

Source: PKWARE APPNOTE 6.3.10, sections 4.3 (structures), 4.4 (fields), 4.5.3 (ZIP64).
"""

import struct
from typing import NamedTuple, Never

from farm.base.errors import VerificationFailedError

STORED = 0
DEFLATED = 8
LIMIT32 = 0xFFFFFFFF  # from here on a size or offset needs a ZIP64 field
SEE_ZIP64 = 0xFFFFFFFF  # in a 32-bit field: the ZIP64 field has the value
LIMIT16 = 0xFFFF
DOS_EPOCH = (0, (1 << 5) | 1)  # time, date of 1980-01-01 00:00:00
MADE_BY_UNIX = 3 << 8
LOCAL = struct.Struct("<4s5H3I2H")
CENTRAL = struct.Struct("<4s6H3I5H2I")
LOCAL64 = struct.Struct("<2H2Q")
END = struct.Struct("<4s4H2IH")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR = struct.Struct("<4sIQI")
FLAG_DESCRIPTOR = 0x8
FLAG_UTF8 = 0x800
FLAGS_KNOWN = 0x6 | FLAG_DESCRIPTOR | FLAG_UTF8  # 0x6: how hard deflate tried
NEWEST_VERSION = 63  # APPNOTE 6.3, which Python's zipfile and uv know


class Entry(NamedTuple):
    """One member as the directory describes it (a tuple, because wheels hold ten thousand of them).

    `data_offset` is where its compressed bytes begin.
    """

    name: str
    method: int
    time: int
    date: int
    crc: int
    compressed: int
    size: int
    external_attributes: int
    made_by: int
    header_offset: int
    data_offset: int = 0

    @property
    def mode(self) -> int:
        """Unix mode bits (type and permissions), 0 where the writer gave none."""
        return self.external_attributes >> 16 if self.made_by >> 8 == 3 else 0

    @property
    def is_dir(self) -> bool:
        return self.name.endswith("/")


def refuse(what: str, member: str | None = None) -> Never:
    """Raise `VerificationFailedError`. The name is quoted: it may hold control characters."""
    raise VerificationFailedError(what if member is None else f"member {member!r}: {what}")


def local_header(entry: Entry, *, wide: bool) -> bytes:
    """A local header without descriptor; `wide` reserves the ZIP64 field (16 bytes of sizes)."""
    name, flags = _encode(entry.name)
    extra = LOCAL64.pack(1, 16, entry.size, entry.compressed) if wide else b""
    if wide:
        sizes = (SEE_ZIP64, SEE_ZIP64)
    else:
        sizes = (entry.compressed, entry.size)
    fixed = (entry.method, entry.time, entry.date, entry.crc)
    # "Version needed" in tenths: 2.0 for deflate, 4.5 for ZIP64 (APPNOTE 4.4.3.2).
    if wide:
        version = 45
    else:
        version = 20
    return (
        LOCAL.pack(b"PK\3\4", version, flags, *fixed, *sizes, len(name), len(extra)) + name + extra
    )


def needs_zip64(*values: int) -> bool:
    """True if one of the values does not fit into 32 bits."""
    return max(values) >= LIMIT32


def central_header(entry: Entry) -> bytes:
    """The directory record of a member, with the ZIP64 field only where a value needs it."""
    name, flags = _encode(entry.name)
    values = (entry.size, entry.compressed, entry.header_offset)
    wide = [value for value in values if needs_zip64(value)]
    if wide:
        extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide)
    else:
        extra = b""
    size, compressed, offset = (SEE_ZIP64 if needs_zip64(value) else value for value in values)
    version = 45 if wide else 20
    made_by = (entry.made_by & 0xFF00) | version
    head = (
        b"PK\1\2",
        made_by,
        version,
        flags,
        entry.method,
        entry.time,
        entry.date,
        entry.crc,
        compressed,
        size,
    )
    return (
        CENTRAL.pack(*head, len(name), len(extra), 0, 0, 0, entry.external_attributes, offset)
        + name
        + extra
    )


def end_records(count: int, start: int, length: int) -> bytes:
    """The bytes behind the directory: the end record, with the ZIP64 pair before it where
    needed.
    """
    if count < LIMIT16 and not needs_zip64(start, length):
        return END.pack(b"PK\5\6", 0, 0, count, count, length, start, 0)
    wide = END64.pack(
        b"PK\6\6", END64.size - 12, MADE_BY_UNIX | 45, 45, 0, 0, count, count, length, start
    )
    locator = LOCATOR.pack(b"PK\6\7", 0, start + length, 1)
    few = min(count, 0xFFFF)
    return wide + locator + END.pack(b"PK\5\6", 0, 0, few, few, SEE_ZIP64, SEE_ZIP64, 0)


def _encode(name: str) -> tuple[bytes, int]:
    raw = name.encode()
    return raw, 0 if name.isascii() else FLAG_UTF8
