"""Wheels that somebody made to do harm, or that broke on the way: each is one named case.

`CASES` maps a name to a `Case`: how to make the file and what must be said about it.
"""

import functools
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.unit.wheel.hostile_make import (
    DIR,
    FIFO,
    FILE,
    INFO,
    LINK,
    METADATA,
    Kit,
    Member,
    dll,
    pack,
)


@dataclass(frozen=True)
class Case:
    """`make` gives the file; `says` is a pattern in what verify finds.

    `inspect` and `repair`: `refused`, or `ok` where the harm is none of their business (a wrong
    RECORD is mended).
    """

    make: Callable[[Kit], bytes]
    says: str
    inspect: str = "refused"
    repair: str = "refused"


CASES: dict[str, Case] = {}
# So many bytes that they take seconds each: tests/integration/wheel has them.
LARGE = {
    *("record-many-rows", "metadata-many-headers", "elf-symbols-many", "elf-overlapping-code"),
    *("fatbin-endless", "pe-fatbin-endless"),
}


def plus(name: str, says: str, *members: Member, others: str = "refused", **kwargs: Any) -> None:
    """A good wheel with more members; `others`: what inspect and repair do with it."""
    CASES[name] = Case(lambda kit: pack([*kit.members(), *members], **kwargs), says, others, others)


def with_info(
    name: str, says: str, inspect: str = "refused", repair: str = "refused", **info: bytes | None
) -> None:
    CASES[name] = Case(lambda kit: pack(kit.members(**info)), says, inspect, repair)


def with_library(
    name: str, says: str, change: Callable[[Kit], bytes], repair: str = "refused"
) -> None:
    """The archive is sound, a library in it is not: inspect shows the damage.

    Repair refuses what it cannot read the needs from, and copies what is damaged elsewhere for
    verify to find.
    """
    CASES[name] = Case(
        lambda kit: pack(
            kit.members(
                {"canary/evil.dll" if name.startswith("pe-") else "canary/evil.so": change(kit)}
            )
        ),
        says,
        "ok",
        repair,
    )


# --- names ---
for _name, _path, _says in [
    ("traversal", "../evil.py", "normal form"),
    ("traversal-inside", "canary/../../evil.py", "normal form"),
    ("traversal-at-the-end", "canary/..", "normal form"),
    ("absolute", "/tmp/evil.py", "absolute"),
    ("double-slash", "canary//evil.py", "normal form"),
    ("dot-part", "canary/./evil.py", "normal form"),
    ("drive", "C:/evil.py", "colon"),
    ("drive-relative", "C:evil.py", "colon"),
    ("alternate-stream", "canary/a.py:evil", "colon"),
    ("unc", "\\\\server\\share\\evil.py", "backslash"),
    ("backslash-traversal", "canary\\..\\..\\evil.py", "backslash"),
    ("nul", "canary/evil.py\0.txt", "control"),
    ("newline", "canary/evil\n.py", "control"),
    ("escape-sequence", "canary/\x1b[2J.py", "control"),
    ("device", "canary/con", "device"),
    ("device-with-extension", "canary/AUX.py", "device"),
    ("device-superscript", "canary/com\u00b9.py", "device"),
    ("device-folder", "nul/evil.py", "device"),
    ("trailing-dot", "canary/evil.", "dot or space"),
    ("trailing-space", "canary /evil.py", "dot or space"),
    ("empty-name", "", "empty"),
    ("long-name", "a" * 2000, "too long"),
    ("deep", "a/" * 100 + "b", "deep"),
    ("duplicate", "canary/__init__.py", "twice"),
    ("case-only", "canary/__INIT__.py", "only by case"),
    ("below-a-file", "canary/__init__.py/evil.py", "not a folder"),
    ("below-a-file-by-case", "canary/__INIT__.PY/evil.py", "not a folder"),
    ("folder-and-file", "canary/__init__.py/", "a file and a folder of one name"),
]:
    # What Linux unpacks as it is and other systems do not is a finding that stops nothing else.
    _others = "ok" if _says in ("device", "dot or space", "only by case") else "refused"
    _mode = DIR if _path.endswith("/") else FILE
    plus(f"name-{_name}", _says, Member(_path, mode=_mode), others=_others)
plus(
    "name-unicode-twins",
    "normal form",
    Member("canary/\u00e9.py"),
    Member("canary/e\u0301.py"),
    others="ok",
)
plus(
    "name-casefold-twins",
    "only by case",
    Member("canary/stra\u00dfe.py"),
    Member("canary/STRASSE.py"),
    others="ok",
)
plus("name-not-utf8", "UTF-8", Member(b"canary/\xff.py", flags=0x800))
plus("name-unmarked-bytes", "ASCII", Member(b"canary/\xe9.py"))
plus(
    "name-second-in-extra",
    "second name",
    Member("canary/a.py", extra=struct.pack("<2HBI", 0x7075, 8, 1, 0) + b"x.y"),
)

# --- links and other kinds ---
for _name, _target, _says in [
    ("absolute", b"/etc/passwd", "unsafe path|out of"),
    ("climbs", b"../../etc/passwd", "out of the wheel"),
    ("climbs-late", b"a/../../../etc", "unsafe path"),
    ("backslash", b"..\\..\\evil", "unsafe path"),
    ("nul", b"a\0b", "unsafe path"),
    ("not-utf8", b"\xff\xfe", "UTF-8"),
    ("huge", b"a/" * 5000, "at most"),
]:
    plus(f"link-{_name}", _says, Member("canary/link", _target, mode=LINK))
plus(
    "link-then-write-through",
    "not a folder",
    Member("canary/l", b"..", mode=LINK),
    Member("canary/l/evil.py"),
)
plus("kind-fifo", "neither a file", Member("canary/pipe", mode=FIFO))
plus("kind-device", "neither a file", Member("canary/sda", mode=0o060644))
plus("kind-folder-with-content", "folder with content", Member("canary/d/", b"evil", mode=DIR))

# --- sizes, sums, methods ---
_ZEROS = 100 << 20


@functools.cache
def _bomb() -> tuple[bytes, int]:
    zeros = bytes(_ZEROS)
    return zlib.compress(zeros, 9)[2:-4], zlib.crc32(zeros)


def with_bombs(name: str, says: str, count: int = 1, size: int = _ZEROS) -> None:
    def make(kit: Kit) -> bytes:
        raw, crc = _bomb()
        return pack(
            [
                *kit.members(),
                *(Member(f"canary/z{i}", raw=raw, crc=crc, size=size) for i in range(count)),
            ]
        )

    CASES[name] = Case(make, says)


with_bombs("bomb-ratio", "bomb")
with_bombs("bomb-many", "bomb", count=20)
with_bombs("bomb-lying-size", "not of the length", size=1000)
plus(
    "bomb-declared-16-EiB",
    "refused",
    Member("canary/z", b"x", size=0xFFFFFFFF, extra=struct.pack("<2HQ", 1, 8, 2**63)),
)
plus(
    "bomb-overlap",
    "overlaps",
    Member("canary/z", bytes(1000)),
    *(Member(f"canary/{i}", bytes(1000), offset=0) for i in range(50)),
)
plus("size-bigger", "length", Member("canary/a", b"abc", size=4))
plus("size-smaller", "length|CRC", Member("canary/a", b"abcd", size=3))
plus(
    "size-packed-bigger",
    "belong to no member|overlaps|names another",
    Member("canary/a", b"abc", packed=9),
)
plus("size-packed-beyond", "directory", Member("canary/a", b"abc", packed=1 << 30))
plus("size-stored-twice", "two different sizes", Member("canary/a", b"abc", method=0, size=9))
plus("crc", "CRC", Member("canary/a", b"abc", crc=1))
plus("encrypted", "encrypted", Member("canary/a", b"abc", flags=1))
plus("encrypted-strongly", "encrypted", Member("canary/a", b"abc", flags=0x41))
plus(
    "encrypted-locally",
    "another member|contradicts",
    Member("canary/a", b"abc", local={"flags": 1}),
)
for _method in (1, 9, 12, 14, 93, 99):
    plus(
        f"method-{_method}",
        "compression method",
        Member("canary/a", b"abc", method=_method, raw=b"abc"),
    )
plus("deflate-garbage", "damaged", Member("canary/a", raw=b"\xff\xff\xff", size=3))
plus("deflate-cut", "cut off", Member("canary/a", raw=zlib.compress(b"x" * 100)[2:-6], size=100))
plus("deflate-tail", "behind its end", Member("canary/a", b"", raw=b"\3\0EVIL"))
# Codes that are not complete: some unpackers take it, to one byte with this CRC; zlib, which
# installers use, refuses.
_LENIENT = bytes.fromhex(
    "4d84b10ec2300c44f343f550608732a04a2031b05b4e638aa534ad1257227c3d412d8885e7bb"
)
CASES["deflate-incomplete-code"] = Case(
    lambda kit: pack([*kit.members(), Member("canary/a", raw=_LENIENT, crc=2363233923, size=1)]),
    "damaged",
)
plus("deflate-nothing", "cut off|length", Member("canary/a", b"", raw=b""))

# --- the archive's own structure ---
plus("zip-comment", "end record", comment=b"#!/bin/sh")
plus("zip-prefix", "belong to no member|not where", prefix=b"#!/bin/sh\n")
plus("zip-gap", "belong to no member", gap=b"evil")
plus("zip-directory-tail", "more than its members", more=b"PK\5\5\4\0evil")
plus("zip-count-low", "more than its members", end={"here": 2, "count": 2})
plus("zip-count-high", "cut off|damaged", end={"here": 60, "count": 60})
plus("zip-counts-differ", "several disks", end={"here": 2})
plus("zip-disk", "several disks", end={"disk": 1})
plus("zip-member-disk", "another disk", Member("canary/a", b"abc", disk=1))
plus("zip-start-wrong", "not where", end={"start": 7})
plus("zip-length-wrong", "not where", end={"length": 7})
plus("zip64-count", "refused", end64={"here": 1 << 40, "count": 1 << 40})
plus("zip64-length", "refused|not where", end64={"length": 1 << 40})
plus("zip64-start", "not where", end64={"start": 1 << 62})
plus("zip64-record-size", "damaged", end64={"record": 1 << 40})
plus("zip64-locator", "damaged", end64={"at": 0})
plus("zip64-missing", "ZIP64", end={"start": 0xFFFFFFFF})
plus(
    "zip64-field-cut",
    "ZIP64",
    Member("canary/a", b"x", size=0xFFFFFFFF, extra=struct.pack("<2HI", 1, 4, 1)),
)
plus(
    "zip64-field-twice",
    "two ZIP64",
    Member("canary/a", b"x", extra=struct.pack("<2HQ", 1, 8, 1) * 2),
)
plus(
    "zip64-field-lies",
    "contradicts|length",
    Member(
        "canary/a",
        b"x",
        size=0xFFFFFFFF,
        extra=struct.pack("<2HQ", 1, 8, 5),
        local={"size": 1, "extra": b""},
    ),
)
for _name, _change in [("name", {"name": "canary/b"}), ("method", {"method": 0}), ("crc", {"crc": 1}),
                       ("size", {"size": 1})]:  # fmt: skip
    plus(f"local-{_name}", "another member|contradicts", Member("canary/a", b"abc", local=_change))
_DEFERRED: dict[str, Any] = {"flags": 8, "local": {"crc": 0, "size": 0, "packed": 0}}
plus("descriptor-missing", "descriptor", Member("canary/a", b"abc", **_DEFERRED))
plus(
    "descriptor-lies",
    "descriptor",
    Member("canary/a", b"abc", tail=struct.pack("<4s3I", b"PK\7\x08", 1, 2, 3), **_DEFERRED),
)
for _name, _keep in [
    ("nothing", 0),
    ("few-bytes", 10),
    ("half", -1000),
    ("no-end-record", -22),
    ("last-byte", -1),
]:
    CASES[f"truncated-{_name}"] = Case(
        lambda kit, keep=_keep: pack(kit.members())[:keep], "not a wheel"
    )
CASES["appended"] = Case(lambda kit: pack(kit.members()) + b"\0", "end record")
CASES["two-archives"] = Case(
    lambda kit: pack(kit.members()) + pack([Member("evil.py")]), "belong to no|not where"
)
CASES["gzip"] = Case(lambda _: b"\x1f\x8b\x08" + bytes(100), "end record")
CASES["empty-archive"] = Case(lambda _: pack([]), "dist-info")

# --- RECORD, METADATA, WHEEL ---
_ZERO_HASH = b"sha256=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
_OWN = f"{INFO}/RECORD,,\n".encode()
with_info("record-missing", "missing", RECORD=None)
with_info("record-empty", "not in RECORD", "ok", "ok", RECORD=b"")
with_info(
    "record-wrong-hash",
    "not the one in RECORD",
    "ok",
    "ok",
    RECORD=b"canary/_C.so," + _ZERO_HASH + b",1\n",
)
with_info(
    "record-path-outside",
    "not in the wheel",
    "ok",
    "ok",
    RECORD=b"../../etc/passwd," + _ZERO_HASH + b",1\n",
)
with_info("record-row-twice", "listed twice", "ok", "ok", RECORD=_OWN * 2)
with_info("record-md5", "accepted are sha256", "ok", "ok", RECORD=b"canary/_C.so,md5=abc,1\n")
with_info("record-not-utf8", "UTF-8", "ok", "ok", RECORD=b"\xff\xfe,,\n")
with_info("record-columns", "columns", "ok", "ok", RECORD=b"a,b\n")
with_info("record-quote-without-end", "CSV", "ok", "ok", RECORD=b'"' + b"a" * 200_000)
with_info("record-size-of-digits", "not a size", "ok", "ok", RECORD=b"a,," + b"9" * 5000 + b"\n")
with_info("record-many-rows", "rows", "ok", "ok", RECORD=b"a,,\n" * 15_000_000)
with_info("metadata-missing", "missing", METADATA=None)
with_info("metadata-empty", "Name headers", METADATA=b"")
with_info("metadata-two-names", "Name headers", METADATA=METADATA + b"Name: evil\n")
with_info(
    "metadata-other-name", "METADATA says evil", "ok", "ok", METADATA=b"Name: evil\nVersion: 1.0\n"
)
with_info(
    "metadata-other-version", "says 6.6", "ok", "ok", METADATA=b"Name: canary\nVersion: 6.6\n"
)
with_info("metadata-binary", "UTF-8", METADATA=bytes(range(256)) * 8)
with_info(
    "metadata-endless-version",
    "a thousand digits",
    METADATA=b"Name: canary\nVersion: %s\n" % (b"1" * 5000),
)
with_info(
    "metadata-endless-requirement",
    "a thousand digits",
    METADATA=b"Name: canary\nVersion: 1.0\nRequires-Dist: numpy>=%s\n" % (b"1" * 5000),
)
with_info(
    "metadata-control", "control characters", METADATA=b"Name: canary\nVersion: 1.0\x1b]0;x\x07\n"
)
with_info("metadata-huge", "at most", METADATA=METADATA + b"\n" + b"x" * (5 << 20))
with_info("metadata-many-headers", "headers", METADATA=METADATA + b"A:\n" * 1_300_000)
with_info("wheel-missing", "missing", WHEEL=None)
with_info(
    "wheel-without-tags",
    "tags in the file name and in WHEEL differ|tag",
    "ok",
    "ok",
    WHEEL=b"Wheel-Version: 1.0\n",
)
with_info("wheel-bad-tag", "which is not python-abi-platform", "ok", "ok", WHEEL=b"Tag: nonsense\n")
with_info(
    "wheel-tag-product",
    "more than 1000 tags",
    WHEEL=b"Tag: " + b"-".join([b".".join([b"a"] * 500)] * 3) + b"\n",
)
with_info(
    "wheel-many-tags",
    "tags",
    WHEEL=b"".join(
        b"Tag: %s-b-c\n" % b".".join(b"p%d" % (i * 900 + k) for k in range(900)) for i in range(40)
    ),
)
CASES["info-twice"] = Case(
    lambda kit: pack([*kit.members(), Member("evil-1.0.dist-info/METADATA", METADATA)]),
    "dist-info folders",
)

# --- ELF ---


def patched(offset: int, layout: str, *values: int, **kwargs: Any) -> Callable[[Kit], bytes]:
    """A good library with some bytes of its header overwritten."""

    def make(kit: Kit) -> bytes:
        raw = bytearray(kit.elf(needed=["libc.so.6"], symbols={"f": 0}, **kwargs))
        struct.pack_into(layout, raw, offset, *values)
        return bytes(raw)

    return make


def dynamic(*tags: tuple[int, int], end: bool = True) -> Callable[[Kit], bytes]:
    """A library whose dynamic table is just this, mapped at the end of the file."""

    def make(kit: Kit) -> bytes:
        raw = bytearray(kit.elf(needed=["libc.so.6"]))
        table = b"".join(struct.pack("<QQ", *tag) for tag in [*tags, *([(0, 0)] if end else [])])
        at = len(raw)
        raw += table
        struct.pack_into("<IIQQQQQQ", raw, 64, 1, 5, 0, 0, 0, len(raw), len(raw), 4096)
        struct.pack_into("<IIQQQQQQ", raw, 120, 2, 4, at, at, at, len(table), len(table), 8)
        return bytes(raw)

    return make


def _section(raw: bytearray, kind: int) -> int:
    """Where the header of the first section of this kind lies."""
    [table] = struct.unpack_from("<Q", raw, 40)
    [count] = struct.unpack_from("<H", raw, 60)
    return next(
        at
        for at in range(table, table + 64 * count, 64)
        if struct.unpack_from("<I", raw, at + 4)[0] == kind
    )


def _escaped_count(kit: Kit) -> bytes:
    raw = bytearray(kit.elf())
    [table] = struct.unpack_from("<Q", raw, 40)
    struct.pack_into("<H", raw, 60, 0)
    struct.pack_into("<Q", raw, table + 32, 1 << 40)
    return bytes(raw)


def _overlapping(kit: Kit) -> bytes:
    raw = bytearray(kit.elf(text=b"\x90" * 5000))
    [table] = struct.unpack_from("<Q", raw, 40)
    code = bytes(raw[table + 64 : table + 128])
    at = len(raw)
    raw += code * 3000
    struct.pack_into("<Q", raw, 40, at)
    struct.pack_into("<HH", raw, 60, 3000, 0)
    return bytes(raw)


def _symbols(kit: Kit, size: int) -> bytes:
    raw = bytearray(kit.elf(symbols={"f": 0}))
    struct.pack_into("<Q", raw, _section(raw, 11) + 32, size)
    return bytes(raw)


def _many_symbols(kit: Kit) -> bytes:
    raw = bytearray(kit.elf(symbols={"f": 0}))
    table = bytes(24 * 2_000_001)
    struct.pack_into("<QQ", raw, _section(raw, 11) + 24, len(raw), len(table))
    return bytes(raw) + table


for _keep in (4, 16, 40, 64, 100, 400):
    with_library(
        f"elf-cut-at-{_keep}",
        "damaged ELF",
        lambda kit, keep=_keep: kit.elf(needed=["a.so"])[:keep],
    )
with_library("elf-class", "damaged ELF", patched(4, "B", 9))
with_library("elf-byte-order", "damaged ELF", patched(5, "B", 9))
with_library("elf-32-bit", "built for x86_64, 32 bits", patched(4, "B", 1), "ok")
with_library("elf-big-endian", "built for", patched(5, "B", 2), "ok")
with_library("elf-other-machine", "built for aarch64", lambda kit: kit.elf(machine=183), "ok")
with_library("elf-sections-beyond", "cut off", patched(40, "<Q", 1 << 40))
with_library("elf-sections-many", "sections; more than", _escaped_count)
with_library("elf-programs-beyond", "cut off", patched(32, "<Q", 1 << 62))
with_library("elf-dynamic-beyond", "cut off", patched(128, "<Q", 1 << 40))
with_library("elf-dynamic-without-end", "no end", dynamic((1, 1), (5, 0), (1, 1), end=False))
with_library("elf-dynamic-loop", "no end", dynamic(*[(7, 7)] * 20_000))
with_library("elf-strings-unmapped", "outside", dynamic((5, 1 << 40), (1, 1)))
with_library("elf-name-beyond", "beyond|cut off", dynamic((5, 0), (1, 1 << 40)))
with_library("elf-names-many", "names have more", dynamic((5, 0), *[(1, 0)] * 9_000))
with_library(
    "elf-versions-cycle",
    "versions|outside|cut off|names",
    dynamic((5, 0), (0x6FFFFFFE, 0), (0x6FFFFFFF, 1 << 60)),
)
with_library("elf-overlapping-code", "overlap", _overlapping, "ok")
with_library("elf-symbols-beyond", "beyond the end", lambda kit: _symbols(kit, 1 << 50), "ok")
with_library("elf-symbols-many", "symbols; more than", _many_symbols, "ok")


# --- fat binaries ---


def with_fatbin(name: str, says: str, make: Callable[[Kit], bytes], repair: str = "ok") -> None:
    with_library(f"fatbin-{name}", says, lambda kit: kit.elf(fatbin=make(kit)), repair)


with_fatbin("no-magic", "no container", lambda _: b"evil" * 100)
with_fatbin("cut", "beyond|cut off", lambda kit: kit.container(kit.entry("sass", 35))[:-100])
with_fatbin(
    "size-overflow",
    "beyond the section",
    lambda _: struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**64 - 1),
)
with_fatbin(
    "header-0", "no container", lambda _: struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 0) + bytes(64)
)
with_fatbin(
    "version", "no container", lambda _: struct.pack("<IHHQ", 0xBA55ED50, 9, 16, 0) + bytes(64)
)
with_fatbin(
    "endless",
    "entries and containers",
    lambda _: struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0) * 3_000_000,
    "ok",
)
with_fatbin(
    "nested",
    "sm_35|beyond",
    lambda kit: kit.container(kit.entry("ptx", 50, data=kit.container() * 100)),
)
for _name, _entry in [
    ("entry-header-0", struct.pack("<HHIQ", 2, 0x101, 0, 0) + bytes(48)),
    ("entry-size-overflow", struct.pack("<HHIQ", 2, 0x101, 64, 2**64 - 64) + bytes(48)),
    ("entry-beyond", struct.pack("<HHIQ", 2, 0x101, 64, 1 << 20) + bytes(48)),
    ("entry-cut", b"\2\0\1\1"),
]:
    with_fatbin(
        _name, "beyond its container|cut off", lambda kit, entry=_entry: kit.container(entry)
    )


# --- PE ---


for _name, _says, _raw in [
    ("cut-in-header", "damaged PE", dll()[:70]),
    ("cut-in-sections", "damaged PE", dll()[:0x150]),
    ("cut-in-content", "damaged PE", dll()[:0x410]),
    ("no-header", "no PE header", dll(change=(0x3C, "<I", 0x10))),
    ("kind", "unknown kind", dll(change=(0x58, "<H", 0x999))),
    ("sections-many", "sections", dll(change=(0x46, "<H", 0xFFFF))),
    ("section-beyond", "beyond the end", dll(change=(0x40 + 24 + 240 + 20, "<I", 0xFFFFFE00))),
    ("imports-outside", "outside", dll(change=(0x40 + 24 + 120, "<I", 0x7FFFFFFF))),
    ("imports-name-outside", "outside", dll(change=(0x400 + 12, "<I", 0x7FFFFFFF))),
    ("imports-many", "more than", dll(["a"] * 5000)),
]:
    with_library(f"pe-{_name}", f"damaged PE file: .*{_says}|{_says}", lambda _, raw=_raw: raw)
with_library(
    "pe-fatbin-endless",
    "entries and containers",
    lambda _: dll(fatbin=struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0) * 999_999),
    "ok",
)
