"""The ZIP structures that a wheel uses: read strictly, written one way.

Source: PKWARE APPNOTE 6.3.10, sections 4.3 (structures), 4.4 (fields), 4.5.3 (ZIP64).

A wheel is read by several programs (pip, uv, the index, this one), and a file that two of them read
differently is an attack. So everything that the format allows but no wheel needs is refused: bytes that belong to
no member, a local header that contradicts the directory, encryption, several disks, a comment, names in an
unknown encoding.
"""

import re
import struct
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple, Never

from farm.base.errors import VerificationFailedError

STORED, DEFLATED = 0, 8
LIMIT32 = 0xFFFFFFFF  # from here on a size or offset needs a ZIP64 field
LIMIT32_FIELD = 0xFFFFFFFF  # what a 32-bit field says when the true value is in the ZIP64 field
LIMIT16 = 0xFFFF
DOS_EPOCH = (0, (1 << 5) | 1)  # time, date of 1980-01-01 00:00:00
MADE_BY_UNIX = 3 << 8

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
# The same without what is not read (internal attributes), and without what is zero.
_CENTRAL_READ = struct.Struct("<4s6H3I4H2x2I")
_CENTRAL_LEAST = struct.Struct("<4s6H3IH8x2I")
_LOCAL64 = struct.Struct("<2H2Q")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_FLAG_DESCRIPTOR, _FLAG_UTF8 = 0x8, 0x800
_FLAGS_KNOWN = 0x6 | _FLAG_DESCRIPTOR | _FLAG_UTF8  # 0x6: how hard deflate tried
_NEWEST_VERSION = 63  # APPNOTE 6.3, which Python's zipfile and uv know
_TOO_NEW = f"needs a newer version of the ZIP format than {_NEWEST_VERSION // 10}.{_NEWEST_VERSION % 10}"
_MAX_DIRECTORY = 128 << 20
# Extra fields as Info-ZIP writes them, times and user numbers: what most members have, and no installer reads.
_USUAL = re.compile(rb"(?:UT(?:\x05\0.{5}|\x09\0.{9}))?(?:ux\x0b\0.{11})?", re.DOTALL)

_USUAL_LENGTH = 28  # of both, the longer way


class Entry(NamedTuple):
    """One member as the directory describes it (a tuple, because wheels hold ten thousand of them).

    `data_offset` is where its compressed bytes begin. `is_plain`: its local header is one that `local_header` could
    have written, times and user numbers of Info-ZIP aside, and no descriptor follows: it may be copied as it stands.
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
    is_plain: bool = False

    @property
    def mode(self) -> int:
        """Unix mode bits (type and permissions), 0 where the writer gave none."""
        return self.external_attributes >> 16 if self.made_by >> 8 == 3 else 0

    @property
    def is_dir(self) -> bool:
        return self.name.endswith("/")


_new = tuple.__new__  # of an Entry from its fields, in half the time of `Entry._make`


def refuse(what: str, member: str | None = None) -> Never:
    """Raise `VerificationFailedError`. The name is quoted: it may hold control characters."""
    raise VerificationFailedError(what if member is None else f"member {member!r}: {what}")


def read_directory(file: BinaryIO, size: int, max_members: int) -> list[Entry]:
    """All members of a ZIP file in the order of their data, with local headers checked.

    Args:
        file: The open file.
        size: Its length in bytes.
        max_members: More members than this are refused.

    Raises:
        VerificationFailedError: Not a ZIP file, or one that can be read in two ways.
    """
    count, start, length, end = _find_directory(file, size)
    if count > max_members:
        refuse(f"{count} members; more than {max_members} are refused")
    if length > _MAX_DIRECTORY:
        refuse(f"a directory of {length} bytes; more than {_MAX_DIRECTORY} are refused")
    # zipfile shifts all offsets where bytes stand before the archive; not every reader does.
    if start + length != end:
        refuse("not a wheel: the ZIP directory is not where its end record says")
    file.seek(start)
    directory = file.read(length)
    position = 0
    checked = []
    for offset, fields, middle, raw_name in sorted(_records(directory, count), key=itemgetter(0)):
        if offset != position:
            if offset < position:
                refuse("overlaps another member", fields[0])
            refuse(f"{offset - position} bytes before it belong to no member", fields[0])
        file.seek(offset)
        # One read for the header and what usually follows: a wheel has ten thousand of them.
        length = _LOCAL.size + len(raw_name)
        raw = file.read(length + _USUAL_LENGTH)
        # What nearly all headers are, at one look: as the directory has it, with the usual extra fields.
        if (
            raw[6:28] == middle
            and raw[:4] == b"PK\3\4"
            and raw[4] <= _NEWEST_VERSION
            and raw[5] == 0
            and raw[_LOCAL.size : length] == raw_name
            and raw[29] == 0
            and length + raw[28] <= len(raw)
            and _USUAL.fullmatch(raw, length, length + raw[28])
        ):
            data = offset + length + raw[28]
            entry = _new(Entry, (*fields, data, True))
            position = data + entry.compressed
            if position > start:
                refuse("its data overlaps the directory", entry.name)
        else:
            entry, position = _check_local_header(file, Entry(*fields), start, int.from_bytes(middle[:2], "little"))
        checked.append(entry)
    if position != start:
        refuse("bytes between the last member and the directory belong to no member")
    return checked


def _find_directory(file: BinaryIO, size: int) -> tuple[int, int, int, int]:
    """(members, directory offset, directory length, offset just behind the directory)."""
    if size < _END.size:
        refuse("not a wheel: too short for a ZIP file")
    end_at = size - _END.size
    file.seek(end_at)
    magic, disk, disk2, here, count, length, start, comment = _END.unpack(file.read(_END.size))
    if magic != b"PK\5\6" or comment:
        refuse("not a wheel: no ZIP end record at the end of the file (cut off, bytes appended, or a comment)")
    # A field of all ones says that the ZIP64 record holds the value (APPNOTE 4.4.1.4).
    if LIMIT16 not in (here, count) and LIMIT32_FIELD not in (length, start):
        if disk or disk2 or here != count:
            refuse("not a wheel: a ZIP file of several disks")
        return count, start, length, end_at
    # The three end structures stand back to back. The format allows gaps, which could hide a second directory.
    locator_at = end_at - _LOCATOR.size
    end64_at = locator_at - _END64.size
    if end64_at < 0:
        refuse("not a wheel: the ZIP64 end record is missing")
    file.seek(end64_at)
    raw = file.read(_END64.size + _LOCATOR.size)
    magic, record, _, _, disk, disk2, here, count, length, start = _END64.unpack_from(raw)
    magic2, disk3, recorded_at, disks = _LOCATOR.unpack_from(raw, _END64.size)
    if magic != b"PK\6\6" or magic2 != b"PK\6\7" or recorded_at != end64_at or record != _END64.size - 12:
        refuse("not a wheel: the ZIP64 end record is damaged")
    if disk or disk2 or disk3 or disks > 1 or here != count:
        refuse("not a wheel: a ZIP file of several disks")
    return count, start, length, end64_at


def _records(directory: bytes, count: int) -> Iterator[tuple[int, tuple[Any, ...], bytes, bytes]]:
    """(place of its local header, the fields of its `Entry`, `middle`, name) of each member.

    `middle` is what a plain local header repeats of the record, from the flags to the length of the name; nothing
    but the flags where the header cannot be a plain one: if flags are set, or there are fields that are not usual.
    """
    position = 0
    last = len(directory) - _CENTRAL.size
    for _ in range(count):
        if position > last:
            refuse("the ZIP directory is cut off")
        fields = _CENTRAL_READ.unpack_from(directory, position)
        (magic, made_by, version, flags, method, time, date, crc, compressed, size) = fields[:10]
        (name_length, extra_length, comment_length, disk, external, offset) = fields[10:]
        middle = directory[position + 8 : position + 30]
        position += _CENTRAL.size
        name_end = position + name_length
        extra_end = name_end + extra_length
        raw_name = directory[position:name_end]
        position = extra_end + comment_length
        if magic != b"PK\1\2" or position > len(directory):
            refuse("the ZIP directory is damaged")
        name = raw_name.decode("ascii") if raw_name.isascii() else _decode(raw_name, flags)
        if method not in (STORED, DEFLATED):
            refuse(f"compression method {method}; wheels hold stored and deflated members only", name)
        if flags or disk or version > _NEWEST_VERSION:
            if flags & ~_FLAGS_KNOWN or disk:
                refuse("encrypted, patched or on another disk", name)
            if version > _NEWEST_VERSION:
                refuse(_TOO_NEW, name)
            middle = middle[:2]
        if extra_length and not _USUAL.fullmatch(directory, name_end, extra_end):
            extra = directory[name_end:extra_end]
            size, compressed, offset = _zip64(extra, (size, compressed, offset), name)
            middle = middle[:2]
        entry = (name, method, time, date, crc, compressed, size, external, made_by, offset)
        yield offset, entry, middle, raw_name
    if position != len(directory):
        refuse("the ZIP directory holds more than its members")


def _decode(raw: bytes, flags: int) -> str:
    try:
        return raw.decode("utf-8" if flags & _FLAG_UTF8 else "ascii")
    except UnicodeDecodeError:
        refuse("its name is neither ASCII nor marked and valid UTF-8", raw.decode("latin-1"))


def _zip64(extra: bytes, values: tuple[int, ...], name: str, *, spare: bool = False) -> tuple[int, ...]:
    """Replace values that say "see the ZIP64 field" (APPNOTE 4.5.3: present in this order, only those).

    `spare`: the field may hold more than those.
    """
    position = 0
    wide: bytes | None = None
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        if position + 4 + length > len(extra):
            refuse("its extra fields are cut off", name)
        # Info-ZIP's Unicode path: some readers would take this name, others the one in the header.
        if kind == 0x7075:
            refuse("carries a second name (Unicode path field)", name)
        if kind == 1:
            if wide is not None:
                refuse("carries two ZIP64 fields", name)
            wide = extra[position + 4 : position + 4 + length]
        position += 4 + length
    result = []
    taken = 0
    for value in values:
        if value == LIMIT32_FIELD and wide is not None:
            if taken + 8 > len(wide):
                refuse("its ZIP64 field is cut off", name)
            result.append(int.from_bytes(wide[taken : taken + 8], "little"))
            taken += 8
        else:
            result.append(value)
    if wide is not None and taken < len(wide) and not spare:
        refuse("its ZIP64 field holds what no other field refers to", name)
    return tuple(result)


def _check_local_header(file: BinaryIO, entry: Entry, limit: int, central_flags: int) -> tuple[Entry, int]:
    """(the entry with its data's place, offset behind the member), after comparing the header with the directory."""
    expected = entry.name.encode()
    file.seek(entry.header_offset)
    raw = file.read(_LOCAL.size + len(expected))
    if len(raw) < _LOCAL.size:
        refuse("its local header is cut off", entry.name)
    magic, version, *fields = _LOCAL.unpack_from(raw)
    flags, method, time, date, crc, compressed, size, name_length, extra_length = fields
    if magic != b"PK\3\4" or flags & ~_FLAGS_KNOWN or raw[_LOCAL.size :] != expected or name_length != len(expected):
        refuse("its local header names another member", entry.name)
    if version > _NEWEST_VERSION:
        refuse(_TOO_NEW, entry.name)
    if not flags & _FLAG_UTF8 and not entry.name.isascii():
        refuse("its local header names another member", entry.name)
    # A writer that cannot seek leaves zeros here and puts sum and sizes behind the data.
    deferred = bool(flags & _FLAG_DESCRIPTOR)
    if deferred != bool(central_flags & _FLAG_DESCRIPTOR):
        refuse("its local header contradicts the directory", entry.name)
    data = entry.header_offset + _LOCAL.size + name_length + extra_length
    extra = file.read(extra_length) if extra_length else b""
    tidy = bool(_USUAL.fullmatch(extra))
    if not tidy:
        tidy = size == compressed == LIMIT32_FIELD and extra == _LOCAL64.pack(1, 16, entry.size, entry.compressed)
        if tidy:
            size, compressed = entry.size, entry.compressed
        else:
            # Bazel's wheels have the sizes in both places.
            again = _LOCAL64.pack(1, 16, entry.size, entry.compressed) in extra
            size, compressed = _zip64(extra, (size, compressed), entry.name, spare=deferred or again)
            tidy = _is_harmless(extra)
    same = (method, crc, compressed, size) == (entry.method, entry.crc, entry.compressed, entry.size)
    if not same and not (deferred and (method, crc, compressed, size) == (entry.method, 0, 0, 0)):
        refuse("its local header contradicts the directory", entry.name)
    end = data + entry.compressed
    if end > limit:
        refuse("its data overlaps the directory", entry.name)
    plain = tidy and not deferred and time == entry.time and date == entry.date
    if deferred:
        end += _descriptor_length(file, entry, end)
    return entry._replace(data_offset=data, is_plain=plain), end


def _is_harmless(extra: bytes) -> bool:
    """True if all there is are Info-ZIP's fields of times and user numbers, which no installer reads."""
    position = 0
    while position + 4 <= len(extra) and extra[position : position + 2] in (b"UT", b"ux"):
        position += 4 + int.from_bytes(extra[position + 2 : position + 4], "little")
    return position == len(extra)


def _descriptor_length(file: BinaryIO, entry: Entry, end: int) -> int:
    """Length of the data descriptor (APPNOTE 4.3.9): with or without signature, 4- or 8-byte sizes."""
    file.seek(end)
    raw = file.read(24)
    for sizes in ("<3I", "<I2Q"):
        # The signature is optional and the width of the sizes is not marked anywhere: each form is tried.
        plain = struct.pack(sizes, entry.crc, entry.compressed, entry.size) if _fits(entry, sizes) else None
        if plain is not None:
            for form in (b"PK\7\x08" + plain, plain):
                if raw.startswith(form):
                    return len(form)
    refuse("its data descriptor is missing or contradicts the directory", entry.name)


def _fits(entry: Entry, sizes: str) -> bool:
    return sizes == "<I2Q" or max(entry.compressed, entry.size) <= 0xFFFFFFFF


def local_header(entry: Entry, *, wide: bool) -> bytes:
    """A local header without descriptor; `wide` reserves the ZIP64 field (16 bytes of sizes)."""
    name, flags = _encode(entry.name)
    extra = _LOCAL64.pack(1, 16, entry.size, entry.compressed) if wide else b""
    sizes = (LIMIT32_FIELD, LIMIT32_FIELD) if wide else (entry.compressed, entry.size)
    fixed = (entry.method, entry.time, entry.date, entry.crc)
    # "Version needed" in tenths: 2.0 for deflate, 4.5 for ZIP64 (APPNOTE 4.4.3.2).
    version = 45 if wide else 20
    return _LOCAL.pack(b"PK\3\4", version, flags, *fixed, *sizes, len(name), len(extra)) + name + extra


def needs_zip64(*values: int) -> bool:
    return max(values) >= LIMIT32


def central_header(entry: Entry) -> bytes:
    """The directory record of a member, with the ZIP64 field only where a value needs it."""
    name, flags = _encode(entry.name)
    _, method, time, date, crc, compressed, size, external, made_by, offset = entry[:10]
    if size < LIMIT32 and compressed < LIMIT32 and offset < LIMIT32:
        made_by = (made_by & 0xFF00) | 20
        least = _CENTRAL_LEAST.pack(
            b"PK\1\2", made_by, 20, flags, method, time, date, crc, compressed, size, len(name), external, offset
        )
        return least + name
    values = (entry.size, entry.compressed, entry.header_offset)
    wide = [value for value in values if needs_zip64(value)]
    extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide)
    size, compressed, offset = (LIMIT32_FIELD if needs_zip64(value) else value for value in values)
    made_by = (entry.made_by & 0xFF00) | 45
    head = (b"PK\1\2", made_by, 45, flags, entry.method, entry.time, entry.date, entry.crc, compressed, size)
    return _CENTRAL.pack(*head, len(name), len(extra), 0, 0, 0, entry.external_attributes, offset) + name + extra


def end_records(count: int, start: int, length: int) -> bytes:
    """The bytes behind the directory: the end record, with the ZIP64 pair before it where needed."""
    if count < LIMIT16 and not needs_zip64(start, length):
        return _END.pack(b"PK\5\6", 0, 0, count, count, length, start, 0)
    wide = _END64.pack(b"PK\6\6", _END64.size - 12, MADE_BY_UNIX | 45, 45, 0, 0, count, count, length, start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + length, 1)
    few = min(count, 0xFFFF)
    return wide + locator + _END.pack(b"PK\5\6", 0, 0, few, few, LIMIT32_FIELD, LIMIT32_FIELD, 0)


def _encode(name: str) -> tuple[bytes, int]:
    raw = name.encode()
    return raw, 0 if name.isascii() else _FLAG_UTF8
