"""A wheel as a ZIP file: read strictly and without extracting it, written one way.

A wheel is read by several programs (pip, uv, the index, this one), and a file that two of them read
differently is an attack. So everything that the format allows but no wheel needs is refused: bytes
that belong to no member, a local header that contradicts the directory, encryption, several disks,
a comment, names in an unknown encoding.

Opening checks everything that can be known from the directory: names, overlaps, sizes, the
compression ratio. Reading a member checks the rest: its length and its CRC. All memory is bounded:
members are streamed, and one that is wanted whole is kept in memory up to 16 MiB and in an unnamed
temporary file above.

Source: PKWARE APPNOTE 6.3.10, sections 4.3 (structures), 4.4 (fields), 4.5.3 (ZIP64).
"""

import hashlib
import mmap
import os
import re
import stat
import struct
import tempfile
import threading
import unicodedata
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Never, Self, cast

from farm.base.errors import UsageError, VerificationFailedError

zlib: Any
try:
    zlib = import_module(
        "zlib_ng.zlib_ng"
    )  # the extra `fast`: the same format and checks in half the time
except ImportError:
    import zlib

Buffer = bytes | mmap.mmap

STORED = 0
DEFLATED = 8
LIMIT32 = 0xFFFFFFFF  # from here on a size or offset needs a ZIP64 field
_SEE_ZIP64 = 0xFFFFFFFF  # in a 32-bit field: the ZIP64 field has the value
LIMIT16 = 0xFFFF
DOS_EPOCH = (0, (1 << 5) | 1)  # time, date of 1980-01-01 00:00:00
MADE_BY_UNIX = 3 << 8
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL64 = struct.Struct("<2H2Q")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_FLAG_DESCRIPTOR = 0x8
_FLAG_UTF8 = 0x800
_FLAGS_KNOWN = 0x6 | _FLAG_DESCRIPTOR | _FLAG_UTF8  # 0x6: how hard deflate tried
_NEWEST_VERSION = 63  # APPNOTE 6.3, which Python's zipfile and uv know
_TOO_NEW = (
    f"needs a newer version of the ZIP format than {_NEWEST_VERSION // 10}.{_NEWEST_VERSION % 10}"
)
_MAX_DIRECTORY = 128 << 20
_HEADERS = 4 << 10  # local headers of neighbours are read together
_CHUNK = (
    1 << 18
)  # stays in the processor's cache from unpacking to hashing: a tenth less time than 1 MiB
_IN_MEMORY = 16 << 20
_RATIO_FROM = 64 << 20  # small archives of zeros are harmless
_MAGIC = 4  # bytes by which a library is known
_MAX_LINK = 4096
_MAX_NAME = 1024
_MAX_PART = 255  # bytes: NAME_MAX of Linux, and of NTFS and APFS in characters
_MAX_DEPTH = 64
# Names that Windows gives to devices, with any extension and in any folder.
_DEVICES = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(\..*)?", re.IGNORECASE
)


class Limits(NamedTuple):
    """Limits of a wheel: members, bytes of one and of all, ratio of unpacked to packed."""

    members: int = 200_000
    member_bytes: int = 8 << 30
    total_bytes: int = 32 << 30
    ratio: int = 200


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


def check_is_file(path: Path) -> None:
    """Before it is opened: opening a pipe waits for who writes it, and some devices have no end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise UsageError(
            f"{path} is {kind}, not a wheel", hint="`pip wheel` or `pip download` makes one"
        )


class Archive:
    """A wheel opened for reading.

    Attributes:
        members: Name to entry, in the order of the file.
        unportable: Members that Linux unpacks and another system cannot, each with the reason.

    Raises:
        UsageError: There is no such file.
        VerificationFailedError: The archive is malformed, ambiguous or unsafe; the message names
            the member.
    """

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        try:
            check_is_file(path)
            self._file = cast("BinaryIO", path.open("rb", buffering=0))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
        try:
            with os.fdopen(os.dup(self._file.fileno()), "rb", buffering=_HEADERS) as buffered:
                entries = _read_directory(buffered, path.stat().st_size, self.limits.members)
            self._check_sizes(entries)
            self.members, self.unportable = _check_names(entries)
            self._check_links()
        except VerificationFailedError as error:
            self._file.close()
            raise VerificationFailedError(f"{path.name}: {error}", hint=error.hint) from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def fileno(self) -> int:
        return self._file.fileno()

    def raw(self, entry: Entry) -> Generator[bytes, None, None]:
        """The compressed bytes of a member, in chunks of at most 256 KiB."""
        return self.span(entry.data_offset, entry.data_offset + entry.compressed)

    def span(self, start: int, end: int) -> Generator[bytes, None, None]:
        """The file's bytes from `start` to `end`, in chunks of at most 256 KiB."""
        while start < end:
            with self._lock:  # members are read by several threads
                self._file.seek(start)
                chunk = self._file.read(min(_CHUNK, end - start))
            if not chunk:
                refuse(f"{self.path.name}: the file ends before byte {end}")
            yield chunk
            start += len(chunk)

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of a member, in chunks of at most 1 MiB, its length and CRC checked at the
        end.
        """
        entry = self.entry(name)
        crc = length = 0
        for chunk in self.raw(entry) if entry.method == STORED else self.inflate(entry):
            crc = zlib.crc32(chunk, crc)
            length += len(chunk)
            # Longer than declared: what is too much is not handed on.
            if length > entry.size:
                break
            yield chunk
        if length != entry.size:
            refuse(f"is not of the length that the directory declares ({entry.size} bytes)", name)
        if crc != entry.crc:
            refuse("its CRC does not match: damaged", name)

    def entry(self, name: str) -> Entry:
        """The directory entry of a member, or `VerificationFailedError` where there is none."""
        try:
            return self.members[name]
        except KeyError:
            refuse(f"{self.path.name}: it is missing", name)

    def read(self, name: str, limit: int = 16 << 20) -> bytes:
        """A small member whole; `limit` in bytes."""
        if self.entry(name).size > limit:
            refuse(f"{self.entry(name).size} bytes; at most {limit} are read", name)
        return b"".join(self.chunks(name))

    @contextmanager
    def content(self, name: str, magics: tuple[bytes, ...]) -> Iterator[tuple[str, Buffer | None]]:
        """Read a member once: (its sha256 in hexadecimal, its content if it begins with one of
        `magics`, else None).

        The content is valid inside the `with` block only.
        """
        sha = hashlib.sha256()
        chunks = self.chunks(name)
        first = b""
        while len(first) < _MAGIC and (chunk := next(chunks, b"")):
            first += chunk
        sha.update(first)
        if not first.startswith(magics):
            for chunk in chunks:
                sha.update(chunk)
            yield sha.hexdigest(), None
        elif self.entry(name).size <= _IN_MEMORY:
            following = []
            for chunk in chunks:
                sha.update(chunk)
                following.append(chunk)
            yield sha.hexdigest(), b"".join([first, *following])
        else:
            with tempfile.TemporaryFile() as spool:
                spool.write(first)
                for chunk in chunks:
                    sha.update(chunk)
                    spool.write(chunk)
                spool.flush()
                with mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ) as view:
                    yield sha.hexdigest(), view

    def inflate(self, entry: Entry) -> Generator[bytes, None, None]:
        """The content of a deflated member as it comes; see `chunks` for the checked."""
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for raw in self.raw(entry):
                if unpacker.eof:
                    refuse("compressed data behind its end", entry.name)
                pending = raw
                while pending:
                    chunk = unpacker.decompress(pending, _CHUNK)
                    if chunk:
                        yield chunk
                    pending = unpacker.unconsumed_tail
            # The loop above stops when the input is used up: more output may wait inside.
            while not unpacker.eof:
                chunk = unpacker.decompress(b"", _CHUNK)
                if not chunk:
                    refuse("its compressed data are cut off", entry.name)
                yield chunk
        except zlib.error as error:
            raise VerificationFailedError(
                f"member {entry.name!r}: damaged compressed data ({error})"
            ) from error
        if unpacker.unused_data:
            refuse("compressed data behind its end", entry.name)

    def _check_sizes(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.size > self.limits.member_bytes:
                refuse(
                    f"{entry.size} bytes; more than {self.limits.member_bytes} are refused",
                    entry.name,
                )
            if entry.method == STORED and entry.size != entry.compressed:
                refuse("stored, but with two different sizes", entry.name)
        total = sum(entry.size for entry in entries)
        packed = sum(entry.compressed for entry in entries)
        if total > self.limits.total_bytes:
            refuse(f"{total} bytes unpacked; more than {self.limits.total_bytes} are refused")
        if total > _RATIO_FROM and total > self.limits.ratio * packed:
            refuse(f"{total} bytes from {packed}: looks like a decompression bomb")

    def _check_links(self) -> None:
        for entry in self.members.values():
            kind = stat.S_IFMT(entry.mode)
            if kind == stat.S_IFREG and not entry.is_dir:
                continue
            if kind == stat.S_IFLNK:
                raw = self.read(entry.name, _MAX_LINK)
                _check_link(entry.name, raw)
            elif (
                kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > entry.is_dir
            ):
                refuse("neither a file, a folder nor a symbolic link", entry.name)


def _read_directory(file: BinaryIO, size: int, max_members: int) -> list[Entry]:
    """All members of a ZIP file in the order of their data, with local headers checked."""
    count, start, length, end = _find_directory(file, size)
    if count > max_members:
        refuse(f"{count} members; more than {max_members} are refused")
    if length > _MAX_DIRECTORY:
        refuse(f"a directory of {length} bytes; more than {_MAX_DIRECTORY} are refused")
    # zipfile shifts all offsets where bytes are before the archive; not every reader does.
    if start + length != end:
        refuse("not a wheel: the ZIP directory is not where its end record says")
    file.seek(start)
    position = 0
    checked = []
    for entry, flags in sorted(
        _records(file.read(length), count), key=lambda record: record[0].header_offset
    ):
        if entry.header_offset < position:
            refuse("overlaps another member", entry.name)
        if entry.header_offset > position:
            refuse(
                f"{entry.header_offset - position} bytes before it belong to no member", entry.name
            )
        member, position = _check_local_header(file, entry, start, flags)
        checked.append(member)
    if position != start:
        refuse("bytes between the last member and the directory belong to no member")
    return checked


def _find_directory(file: BinaryIO, size: int) -> tuple[int, int, int, int]:
    """(members, directory offset, directory length, offset just behind the directory)."""
    if size < _END.size:
        refuse("not a wheel: too short for a ZIP file")
    end_at = size - _END.size
    file.seek(end_at)
    magic, disk, disk2, on_this_disk, count, length, start, comment = _END.unpack(
        file.read(_END.size)
    )
    if magic != b"PK\5\6" or comment:
        refuse(
            "not a wheel: no ZIP end record at the end of the file (cut off, bytes appended, or a "
            "comment)"
        )
    # A field of all ones says that the ZIP64 record holds the value (APPNOTE 4.4.1.4).
    if LIMIT16 not in (on_this_disk, count) and _SEE_ZIP64 not in (length, start):
        if disk or disk2 or on_this_disk != count:
            refuse("not a wheel: a ZIP file of several disks")
        return count, start, length, end_at
    # The three end structures stand back to back. The format allows gaps, which could hide a second
    # directory.
    locator_at = end_at - _LOCATOR.size
    end64_at = locator_at - _END64.size
    if end64_at < 0:
        refuse("not a wheel: the ZIP64 end record is missing")
    file.seek(end64_at)
    raw = file.read(_END64.size + _LOCATOR.size)
    magic, record, _, _, disk, disk2, on_this_disk, count, length, start = _END64.unpack_from(raw)
    magic2, disk3, recorded_at, disks = _LOCATOR.unpack_from(raw, _END64.size)
    if (
        magic != b"PK\6\6"
        or magic2 != b"PK\6\7"
        or recorded_at != end64_at
        or record != _END64.size - 12
    ):
        refuse("not a wheel: the ZIP64 end record is damaged")
    if disk or disk2 or disk3 or disks > 1 or on_this_disk != count:
        refuse("not a wheel: a ZIP file of several disks")
    return count, start, length, end64_at


def _records(directory: bytes, count: int) -> Iterator[tuple[Entry, int]]:
    """Each member as the directory has it, and its flags."""
    position = 0
    for _ in range(count):
        if position + _CENTRAL.size > len(directory):
            refuse("the ZIP directory is cut off")
        fields = _CENTRAL.unpack_from(directory, position)
        (magic, made_by, version, flags, method, time, date, crc, compressed, size) = fields[:10]
        (name_length, extra_length, comment_length, disk, _, external, offset) = fields[10:]
        name_end = position + _CENTRAL.size + name_length
        raw_name = directory[position + _CENTRAL.size : name_end]
        extra = directory[name_end : name_end + extra_length]
        position = name_end + extra_length + comment_length
        if magic != b"PK\1\2" or position > len(directory):
            refuse("the ZIP directory is damaged")
        name = _decode(raw_name, flags)
        if method not in (STORED, DEFLATED):
            refuse(
                f"compression method {method}; wheels hold stored and deflated members only", name
            )
        if flags & ~_FLAGS_KNOWN or disk:
            refuse("encrypted, patched or on another disk", name)
        if version > _NEWEST_VERSION:
            refuse(_TOO_NEW, name)
        if extra:
            size, compressed, offset = _zip64(extra, (size, compressed, offset), name)
        yield (
            Entry(name, method, time, date, crc, compressed, size, external, made_by, offset),
            flags,
        )
    if position != len(directory):
        refuse("the ZIP directory holds more than its members")


def _decode(raw: bytes, flags: int) -> str:
    try:
        return raw.decode("utf-8" if flags & _FLAG_UTF8 else "ascii")
    except UnicodeDecodeError:
        refuse("its name is neither ASCII nor marked and valid UTF-8", raw.decode("latin-1"))


def _zip64(
    extra: bytes, values: tuple[int, ...], name: str, *, spare: bool = False
) -> tuple[int, ...]:
    """Replace values that say "see the ZIP64 field" (APPNOTE 4.5.3: present in this order, only
    those).

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
    used = 0
    for value in values:
        if value == _SEE_ZIP64 and wide is not None:
            if used + 8 > len(wide):
                refuse("its ZIP64 field is cut off", name)
            result.append(int.from_bytes(wide[used : used + 8], "little"))
            used += 8
        else:
            result.append(value)
    if wide is not None and used < len(wide) and not spare:
        refuse("its ZIP64 field holds what no other field refers to", name)
    return tuple(result)


def _check_local_header(
    file: BinaryIO, entry: Entry, limit: int, central_flags: int
) -> tuple[Entry, int]:
    """(the entry with its data's place, offset behind the member), after comparing the header with
    the directory.
    """
    expected = entry.name.encode()
    file.seek(entry.header_offset)
    raw = file.read(_LOCAL.size + len(expected))
    if len(raw) < _LOCAL.size:
        refuse("its local header is cut off", entry.name)
    magic, version, *fields = _LOCAL.unpack_from(raw)
    flags, method, _, _, crc, compressed, size, name_length, extra_length = fields
    if (
        magic != b"PK\3\4"
        or flags & ~_FLAGS_KNOWN
        or raw[_LOCAL.size :] != expected
        or name_length != len(expected)
    ):
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
    if extra_length:
        extra = file.read(extra_length)
        # Bazel's wheels have the sizes in both places.
        sizes_repeated = _LOCAL64.pack(1, 16, entry.size, entry.compressed) in extra
        size, compressed = _zip64(
            extra, (size, compressed), entry.name, spare=deferred or sizes_repeated
        )
    same = (method, crc, compressed, size) == (
        entry.method,
        entry.crc,
        entry.compressed,
        entry.size,
    )
    if not same and not (deferred and (method, crc, compressed, size) == (entry.method, 0, 0, 0)):
        refuse("its local header contradicts the directory", entry.name)
    end = data + entry.compressed
    if end > limit:
        refuse("its data overlaps the directory", entry.name)
    if deferred:
        end += _descriptor_length(file, entry, end)
    return entry._replace(data_offset=data), end


def _descriptor_length(file: BinaryIO, entry: Entry, end: int) -> int:
    """Length of the data descriptor (APPNOTE 4.3.9): with or without signature, 4- or 8-byte
    sizes.
    """
    file.seek(end)
    raw = file.read(24)
    for sizes in ("<3I", "<I2Q"):
        if sizes == "<3I" and max(entry.compressed, entry.size) > 0xFFFFFFFF:
            continue
        # The signature is optional and the width of the sizes is not marked anywhere: each form is
        # tried.
        plain = struct.pack(sizes, entry.crc, entry.compressed, entry.size)
        for form in (b"PK\7\x08" + plain, plain):
            if raw.startswith(form):
                return len(form)
    refuse("its data descriptor is missing or contradicts the directory", entry.name)


def check_name(name: str) -> None:
    """Refuse a member name that cannot be unpacked on every operating system, or leaves its folder.

    Raises:
        VerificationFailedError: With the name and the reason.
    """
    _check_safe(name)
    if problem := windows_problem(name):
        refuse(problem, name)


def _check_safe(name: str) -> None:
    """Refuse a member name that could leave the folder it is unpacked in, on any operating
    system.
    """
    if not name or len(name) > _MAX_NAME:
        refuse("its name is empty or too long", name[:80])
    if not name.isprintable():
        categories = {unicodedata.category(char) for char in name}
        if categories & {"Cc", "Cs"}:
            refuse("its name holds control characters", name)
        if categories & {"Cf", "Zl", "Zp"}:
            refuse(
                "its name holds invisible characters or such as change the direction of writing",
                ascii(name),
            )
    if "\\" in name or ":" in name:
        refuse("its name holds a backslash or a colon (a path or drive on Windows)", name)
    if name.startswith("/"):
        refuse("its name is an absolute path", name)
    parts = name.removesuffix("/").split("/")
    if any(len(part.encode()) > _MAX_PART for part in parts):
        refuse(
            f"a part of its path has more than {_MAX_PART} bytes, the most that disks take",
            name[:80],
        )
    if len(parts) > _MAX_DEPTH:
        refuse(f"more than {_MAX_DEPTH} folders deep", name)
    if any(part in ("", ".", "..") for part in parts):
        refuse("its path is not in normal form (empty part, '.' or '..')", name)


def windows_problem(name: str) -> str | None:
    """Why Windows cannot unpack a member name as it is; None where it can."""
    for part in name.removesuffix("/").split("/"):
        if part[-1:] in (".", " "):
            return "a part of its path ends in a dot or space, which Windows drops"
        if _DEVICES.fullmatch(part):
            return "a part of its path is the name of a Windows device"
    return None


def _check_names(entries: list[Entry]) -> tuple[dict[str, Entry], dict[str, str]]:
    """Check that all members can be unpacked beside one another.

    Returns:
        The members by name, in the order of the archive; and those that some system cannot unpack
        beside the others (Windows' names, differences by case alone), each with the reason.
    """
    folded: dict[str, str] = {}
    parents: dict[str, str] = {}  # to the first member in it
    unportable: dict[str, str] = {}
    for entry in entries:
        name = entry.name
        parent, _, base = name.rpartition("/")
        _check_safe(name)
        if problem := windows_problem(name):
            unportable[name] = problem
        key = name.lower() if base and name.isascii() else _fold(name)
        if key in folded:
            twin = folded[key]
            if twin == name:
                refuse("occurs twice", name)
            if twin.removesuffix("/") == name.removesuffix("/"):
                refuse("a file and a folder of one name", name)
            unportable[name] = f"differs only by case or normal form from {twin!r}"
        folded[key] = name
        if not base:
            if entry.size:
                refuse("a folder with content", name)
            parent = parent.rpartition("/")[0]
        if parent not in parents:
            parents[parent] = name
    checked: set[str] = set()
    for parent, name in parents.items():
        while parent and parent not in checked:
            checked.add(parent)
            above = folded.get(_fold(parent))
            if above is not None and not above.endswith("/"):
                refuse(f"is below {above!r}, which is not a folder", name)
            parent = parent.rpartition("/")[0]  # noqa: PLW2901 upwards, folder by folder
    return {entry.name: entry for entry in entries}, unportable


def _fold(name: str) -> str:
    name = name.removesuffix("/")
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", name).casefold()


def _check_link(name: str, raw: bytes) -> None:
    """A link may climb only at its start and only to inside the wheel: then no chain of links gets
    out.

    One to nothing leads nowhere: installers write an empty file for it (nodejs-bin).
    """
    if not raw:
        return
    try:
        target = raw.decode()
    except UnicodeDecodeError:
        refuse("a symbolic link to a name that is not UTF-8", name)
    parts = target.split("/")
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    if ups > name.count("/"):
        refuse(f"a symbolic link out of the wheel, to {target!r}", name)
    below_root = "/".join(parts[ups:])
    if below_root:
        try:
            check_name(below_root)
        except VerificationFailedError:
            refuse(f"a symbolic link to an unsafe path, {target!r}", name)


def local_header(entry: Entry, *, wide: bool) -> bytes:
    """A local header without descriptor; `wide` reserves the ZIP64 field (16 bytes of sizes)."""
    name, flags = _encode(entry.name)
    extra = _LOCAL64.pack(1, 16, entry.size, entry.compressed) if wide else b""
    if wide:
        sizes = (_SEE_ZIP64, _SEE_ZIP64)
    else:
        sizes = (entry.compressed, entry.size)
    fixed = (entry.method, entry.time, entry.date, entry.crc)
    # "Version needed" in tenths: 2.0 for deflate, 4.5 for ZIP64 (APPNOTE 4.4.3.2).
    if wide:
        version = 45
    else:
        version = 20
    return (
        _LOCAL.pack(b"PK\3\4", version, flags, *fixed, *sizes, len(name), len(extra)) + name + extra
    )


def needs_zip64(*values: int) -> bool:
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
    size, compressed, offset = (_SEE_ZIP64 if needs_zip64(value) else value for value in values)
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
        _CENTRAL.pack(*head, len(name), len(extra), 0, 0, 0, entry.external_attributes, offset)
        + name
        + extra
    )


def end_records(count: int, start: int, length: int) -> bytes:
    """The bytes behind the directory: the end record, with the ZIP64 pair before it where
    needed.
    """
    if count < LIMIT16 and not needs_zip64(start, length):
        return _END.pack(b"PK\5\6", 0, 0, count, count, length, start, 0)
    wide = _END64.pack(
        b"PK\6\6", _END64.size - 12, MADE_BY_UNIX | 45, 45, 0, 0, count, count, length, start
    )
    locator = _LOCATOR.pack(b"PK\6\7", 0, start + length, 1)
    few = min(count, 0xFFFF)
    return wide + locator + _END.pack(b"PK\5\6", 0, 0, few, few, _SEE_ZIP64, _SEE_ZIP64, 0)


def _encode(name: str) -> tuple[bytes, int]:
    raw = name.encode()
    return raw, 0 if name.isascii() else _FLAG_UTF8
