"""Wheels, members and DLLs of any shape, also of shapes that no tool would write. Used by
`hostile_corpus`.
"""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

INFO = "canary-1.0.dist-info"
TAG = "cp311-cp311-manylinux_2_17_x86_64"
LINK, FIFO, DIR, FILE = 0o120777, 0o010644, 0o040755, 0o100644
METADATA = b"Metadata-Version: 2.1\nName: canary\nVersion: 1.0\n"
WHEEL = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode()


@dataclass(frozen=True)
class Member:
    """One member; what is None follows from the content, and so is true. `local` changes the local
    header only.
    """

    name: str | bytes
    data: bytes = b""
    method: int = 8
    flags: int = 0
    mode: int = FILE
    raw: bytes | None = None
    crc: int | None = None
    size: int | None = None
    packed: int | None = None
    extra: bytes = b""
    disk: int = 0
    offset: int | None = None
    tail: bytes = b""
    local: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> tuple[bytes, bytes, tuple[int, int, int, int, int, int]]:
        """(name, compressed bytes, (flags, method, crc, packed, size, length of the name))."""
        name = self.name if isinstance(self.name, bytes) else self.name.encode()
        flags = self.flags | (0 if isinstance(self.name, bytes) or self.name.isascii() else 0x800)
        raw = self.raw
        if raw is None:
            packer = zlib.compressobj(1, zlib.DEFLATED, -15)
            raw = self.data if self.method == 0 else packer.compress(self.data) + packer.flush()
        crc = zlib.crc32(self.data) if self.crc is None else self.crc
        size = len(self.data) if self.size is None else self.size
        packed = len(raw) if self.packed is None else self.packed
        return name, raw, (flags, self.method, crc, packed, size, len(name))


def local(member: Member) -> bytes:
    seen = replace(member, **member.local, local={})
    _, raw, _ = member.fields()
    if "raw" not in member.local:
        seen = replace(seen, raw=raw, crc=seen.crc, packed=seen.packed)
    name, _, (flags, method, crc, packed, size, length) = seen.fields()
    head = struct.pack(
        "<4s5H3I2H", b"PK\3\4", 20, flags, method, 0, 33, crc, packed, size, length, len(seen.extra)
    )
    return head + name + seen.extra + raw + member.tail


def central(member: Member, at: int) -> bytes:
    name, _, (flags, method, crc, packed, size, length) = member.fields()
    at = at if member.offset is None else member.offset
    head = struct.pack(
        "<4s6H3I", b"PK\1\2", 3 << 8 | 20, 20, flags, method, 0, 33, crc, packed, size
    )
    return head + struct.pack("<5H2I", length, len(member.extra), 0, member.disk, 0, member.mode << 16, at) + (
        name + member.extra
    )  # fmt: skip


def pack(
    members: Sequence[Member],
    *,
    prefix: bytes = b"",
    gap: bytes = b"",
    comment: bytes = b"",
    more: bytes = b"",
    end: Mapping[str, int] | None = None,
    end64: Mapping[str, int] | None = None,
) -> bytes:
    """A ZIP file. `end` changes fields of the end record; `end64` asks for a ZIP64 one, changed."""
    body, directory = prefix, b""
    for member in members:
        at = len(body)
        if member.offset is None:
            body += local(member)
        directory += central(member, at)
    body += gap
    start = len(body)
    directory += more
    n = len(members)
    record = {"disk": 0, "here": n, "count": n, "length": len(directory), "start": start} | dict(
        end or {}
    )
    out = body + directory
    if end64 is not None:
        wide = {
            "record": 44,
            "here": n,
            "count": n,
            "length": len(directory),
            "start": start,
            "at": len(out),
        }
        wide |= end64
        out += struct.pack("<4sQ2H2I4Q", b"PK\6\6", wide["record"], 45, 45, 0, 0, wide["here"], wide["count"],
                           wide["length"], wide["start"])  # fmt: skip
        out += struct.pack("<4sIQI", b"PK\6\7", 0, wide["at"], 1)
        record |= {"here": 0xFFFF, "count": 0xFFFF, "length": 0xFFFFFFFF, "start": 0xFFFFFFFF}
    order = (
        record["disk"],
        0,
        record["here"],
        record["count"],
        record["length"],
        record["start"],
        len(comment),
    )
    return out + struct.pack("<4s4H2IH", b"PK\5\6", *order) + comment


@dataclass(frozen=True)
class Kit:
    """The makers of the parts, from conftest."""

    elf: Callable[..., bytes]
    container: Callable[..., bytes]
    entry: Callable[..., bytes]
    digest: Callable[[bytes], str]

    def members(
        self, files: Mapping[str, bytes] | None = None, **info: bytes | None
    ) -> list[Member]:
        """The members of a good wheel, some changed: `METADATA=`, `WHEEL=`, `RECORD=` (None leaves
        it out).
        """
        good = self.container(self.entry("sass", 35))
        everything: dict[str, bytes | None] = {
            "canary/__init__.py": b"",
            "canary/_C.so": self.elf(needed=["libc.so.6"], fatbin=good),
            **(files or {}),
            f"{INFO}/METADATA": METADATA,
            f"{INFO}/WHEEL": WHEEL,
            **{f"{INFO}/{name}": content for name, content in info.items() if name != "RECORD"},
        }
        there = {name: content for name, content in everything.items() if content is not None}
        rows = "".join(
            f'"{name}",{self.digest(data)},{len(data)}\n' for name, data in there.items()
        )
        record = info.get("RECORD", rows.encode() + f"{INFO}/RECORD,,\n".encode())
        if record is not None:
            there[f"{INFO}/RECORD"] = record
        return [Member(name, data) for name, data in there.items()]


def dll(
    needed: Sequence[str] = ("KERNEL32.dll",),
    *,
    fatbin: bytes = b"",
    change: tuple[int, str, int] | None = None,
) -> bytes:
    """A DLL of one section (two with `fatbin`) at address 0x1000, file offset 0x400, imports
    first.
    """
    names = [name.encode() + b"\0" for name in needed]
    at = 0x1000 + 20 * (len(needed) + 1)
    table, text = b"", b""
    for name in names:
        table += struct.pack("<5I", 0x1000, 0, 0, at + len(text), 0x1000)
        text += name
    content = (table + bytes(20) + text).ljust(512, b"\0")
    sections = struct.pack(
        "<8s6I2HI", b".rdata", len(content), 0x1000, len(content), 0x400, 0, 0, 0, 0, 0x40000040
    )
    if fatbin:
        place = 0x400 + len(content)
        sections += struct.pack(
            "<8s6I2HI",
            b".nv_fatb",
            len(fatbin),
            0x100000,
            len(fatbin),
            place,
            0,
            0,
            0,
            0,
            0x40000040,
        )
    optional = struct.pack("<HBB5IQ2I", 0x20B, 14, 29, 0, 0, 0, 0, 0, 0x180000000, 0x1000, 512)
    optional = optional.ljust(108, b"\0") + struct.pack("<I", 16)
    optional += struct.pack("<4I", 0, 0, 0x1000, 20 * len(needed) + 20).ljust(128, b"\0")
    head = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40) + b"PE\0\0"
    head += (
        struct.pack("<2H3I2H", 0x8664, 1 + bool(fatbin), 0, 0, 0, len(optional), 0x2022)
        + optional
        + sections
    )
    raw = bytearray(head.ljust(0x400, b"\0") + content + fatbin)
    if change:
        struct.pack_into(change[1], raw, change[0], change[2])
    return bytes(raw)
