"""The directory of a ZIP file, read strictly: every byte of the file belongs to one structure."""

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from farm.wheel.zipformat import (
    CENTRAL,
    DEFLATED,
    END,
    END64,
    FLAG_DESCRIPTOR,
    FLAG_UTF8,
    FLAGS_KNOWN,
    LIMIT16,
    LIMIT32,
    LOCAL,
    LOCAL64,
    LOCATOR,
    NEWEST_VERSION,
    SEE_ZIP64,
    STORED,
    Entry,
    refuse,
)

_TOO_NEW = (
    f"needs a newer version of the ZIP format than {NEWEST_VERSION // 10}.{NEWEST_VERSION % 10}"
)
_MAX_DIRECTORY = 128 << 20


def read_directory(file: BinaryIO, size: int, max_members: int) -> list[Entry]:
    """Read all members of a ZIP file, in the order of their data, with local headers checked.

    Args:
        file: The file.
        size: Its bytes.
        max_members: More are refused.
    """
    place = _find_directory(file, size)
    if place.members > max_members:
        refuse(f"{place.members} members; more than {max_members} are refused")
    if place.length > _MAX_DIRECTORY:
        refuse(f"a directory of {place.length} bytes; more than {_MAX_DIRECTORY} are refused")
    # zipfile shifts all offsets where bytes are before the archive; not every reader does.
    if place.start + place.length != place.end:
        refuse("not a wheel: the ZIP directory is not where its end record says")
    file.seek(place.start)
    records = list(_records(file.read(place.length), place.members))
    records.sort(key=lambda record: record[0].header_offset)
    position = 0
    checked = []
    for entry, flags in records:
        if entry.header_offset < position:
            refuse("overlaps another member", entry.name)
        if entry.header_offset > position:
            refuse(
                f"{entry.header_offset - position} bytes before it belong to no member", entry.name
            )
        member, position = _check_local_header(file, entry, place.start, flags)
        checked.append(member)
    if position != place.start:
        refuse("bytes between the last member and the directory belong to no member")
    return checked


class _Place(NamedTuple):
    """Where the directory is: how many members it has, its offset and length, and the end behind
    it.
    """

    members: int
    start: int
    length: int
    end: int


def _find_directory(file: BinaryIO, size: int) -> _Place:
    """Find the directory by the end record, which is the last of the file."""
    if size < END.size:
        refuse("not a wheel: too short for a ZIP file")
    end = size - END.size
    file.seek(end)
    magic, disk, disk2, on_this_disk, count, length, start, comment = END.unpack(
        file.read(END.size)
    )
    if magic != b"PK\5\6" or comment:
        refuse(
            "not a wheel: no ZIP end record at the end of the file (cut off, bytes appended, or a "
            "comment)"
        )
    # A field of all ones says that the ZIP64 record holds the value (APPNOTE 4.4.1.4).
    if LIMIT16 in (on_this_disk, count) or SEE_ZIP64 in (length, start):
        return _find_directory64(file, end)
    if disk or disk2 or on_this_disk != count:
        refuse("not a wheel: a ZIP file of several disks")
    return _Place(count, start, length, end)


def _find_directory64(file: BinaryIO, end: int) -> _Place:
    """Find the directory by the ZIP64 end record.

    The three end structures stand back to back. The format allows gaps, which could hide a second
    directory.
    """
    end64 = end - LOCATOR.size - END64.size
    if end64 < 0:
        refuse("not a wheel: the ZIP64 end record is missing")
    file.seek(end64)
    raw = file.read(END64.size + LOCATOR.size)
    magic, record, _, _, disk, disk2, on_this_disk, count, length, start = END64.unpack_from(raw)
    magic2, disk3, recorded_at, disks = LOCATOR.unpack_from(raw, END64.size)
    if (magic, magic2) != (b"PK\6\6", b"PK\6\7"):
        refuse("not a wheel: the ZIP64 end record is damaged")
    if recorded_at != end64 or record != END64.size - 12:
        refuse("not a wheel: the ZIP64 end record is damaged")
    if disk or disk2 or disk3 or disks > 1 or on_this_disk != count:
        refuse("not a wheel: a ZIP file of several disks")
    return _Place(count, start, length, end64)


def _records(directory: bytes, count: int) -> Iterator[tuple[Entry, int]]:
    """Each member as the directory has it, and its flags."""
    position = 0
    for _ in range(count):
        if position + CENTRAL.size > len(directory):
            refuse("the ZIP directory is cut off")
        fields = CENTRAL.unpack_from(directory, position)
        (magic, made_by, version, flags, method, time, date, crc, compressed, size) = fields[:10]
        (name_length, extra_length, comment_length, disk, _, external, offset) = fields[10:]
        name_end = position + CENTRAL.size + name_length
        raw_name = directory[position + CENTRAL.size : name_end]
        extra = directory[name_end : name_end + extra_length]
        position = name_end + extra_length + comment_length
        if magic != b"PK\1\2" or position > len(directory):
            refuse("the ZIP directory is damaged")
        name = _decode(raw_name, flags)
        if method not in (STORED, DEFLATED):
            refuse(
                f"compression method {method}; wheels hold stored and deflated members only", name
            )
        if flags & ~FLAGS_KNOWN or disk:
            refuse("encrypted, patched or on another disk", name)
        if version > NEWEST_VERSION:
            refuse(_TOO_NEW, name)
        if extra:
            size, compressed, offset = _zip64(extra, (size, compressed, offset), name)
        entry = Entry(
            name=name,
            method=method,
            time=time,
            date=date,
            crc=crc,
            compressed=compressed,
            size=size,
            external_attributes=external,
            made_by=made_by,
            header_offset=offset,
        )
        yield entry, flags
    if position != len(directory):
        refuse("the ZIP directory holds more than its members")


def _decode(raw: bytes, flags: int) -> str:
    """A member's name as text."""
    encoding = "ascii"
    if flags & FLAG_UTF8:
        encoding = "utf-8"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        refuse("its name is neither ASCII nor marked and valid UTF-8", raw.decode("latin-1"))


def _zip64(
    extra: bytes,
    values: tuple[int, ...],
    name: str,
    *,
    spare: bool = False,
) -> tuple[int, ...]:
    """Replace values that say "see the ZIP64 field" (APPNOTE 4.5.3: present in this order, only
    those).

    `spare`: the field may hold more than those.
    """
    wide = _zip64_field(extra, name)
    if wide is None:
        return values
    result = []
    position = 0
    for value in values:
        if value != SEE_ZIP64:
            result.append(value)
            continue
        if position + 8 > len(wide):
            refuse("its ZIP64 field is cut off", name)
        result.append(int.from_bytes(wide[position : position + 8], "little"))
        position += 8
    if position < len(wide) and not spare:
        refuse("its ZIP64 field holds what no other field refers to", name)
    return tuple(result)


def _zip64_field(extra: bytes, name: str) -> bytes | None:
    """The ZIP64 field among the extra fields of a member; None where there is none."""
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
    return wide


def _check_local_header(
    file: BinaryIO,
    entry: Entry,
    limit: int,
    central_flags: int,
) -> tuple[Entry, int]:
    """(the entry with its data's place, offset behind the member), after comparing the header with
    the directory.
    """
    expected = entry.name.encode()
    file.seek(entry.header_offset)
    raw = file.read(LOCAL.size + len(expected))
    if len(raw) < LOCAL.size:
        refuse("its local header is cut off", entry.name)
    magic, version, *fields = LOCAL.unpack_from(raw)
    flags, method, _, _, crc, compressed, size, name_length, extra_length = fields
    if magic != b"PK\3\4" or flags & ~FLAGS_KNOWN:
        refuse("its local header names another member", entry.name)
    if raw[LOCAL.size :] != expected or name_length != len(expected):
        refuse("its local header names another member", entry.name)
    if version > NEWEST_VERSION:
        refuse(_TOO_NEW, entry.name)
    if not flags & FLAG_UTF8 and not entry.name.isascii():
        refuse("its local header names another member", entry.name)
    # A writer that cannot seek leaves zeros here and puts sum and sizes behind the data.
    deferred = bool(flags & FLAG_DESCRIPTOR)
    if deferred != bool(central_flags & FLAG_DESCRIPTOR):
        refuse("its local header contradicts the directory", entry.name)
    data = entry.header_offset + LOCAL.size + name_length + extra_length
    if extra_length:
        extra = file.read(extra_length)
        # Bazel's wheels have the sizes in both places.
        sizes_repeated = LOCAL64.pack(1, 16, entry.size, entry.compressed) in extra
        size, compressed = _zip64(
            extra, (size, compressed), entry.name, spare=deferred or sizes_repeated
        )
    facts = (crc, compressed, size)
    if not _is_of_entry(entry, method, facts, deferred=deferred):
        refuse("its local header contradicts the directory", entry.name)
    end = data + entry.compressed
    if end > limit:
        refuse("its data overlaps the directory", entry.name)
    if deferred:
        end += _descriptor_length(file, entry, end)
    return entry._replace(data_offset=data), end


def _is_of_entry(
    entry: Entry,
    method: int,
    facts: tuple[int, int, int],
    *,
    deferred: bool,
) -> bool:
    """True if a local header agrees with the directory.

    Args:
        entry: The member as the directory has it.
        method: The compression method of the local header.
        facts: Its CRC, compressed and unpacked size.
        deferred: These may be zeros, for they stand behind the data.
    """
    if method != entry.method:
        return False
    if deferred and facts == (0, 0, 0):
        return True
    return facts == (entry.crc, entry.compressed, entry.size)


def _descriptor_length(file: BinaryIO, entry: Entry, end: int) -> int:
    """The length of a data descriptor (APPNOTE 4.3.9): with or without signature, 4- or 8-byte
    sizes.
    """
    file.seek(end)
    raw = file.read(24)
    layouts = ["<I2Q"]
    if max(entry.compressed, entry.size) <= LIMIT32:
        layouts.insert(0, "<3I")
    # The signature is optional and the width of the sizes is not marked anywhere: each form is
    # tried.
    for layout in layouts:
        plain = struct.pack(layout, entry.crc, entry.compressed, entry.size)
        if raw.startswith(b"PK\7\x08" + plain):
            return len(plain) + 4
        if raw.startswith(plain):
            return len(plain)
    return refuse("its data descriptor is missing or contradicts the directory", entry.name)
