"""Small ELF files, fat binaries and wheels, made from the formats' descriptions: no compiler
needed.

The makers are session-scoped fixtures that return functions, so that property tests may use them.
"""

import base64
import csv
import hashlib
import io
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

TEXT = 352
"""Where the code of `build_elf` lies: behind the header and five program headers."""
RET = b"\xc3"
VPADDD_YMM = bytes.fromhex("c5f5fec2")  # AVX2


def text(**pieces: bytes) -> bytes:
    """Machine code from pieces at given offsets (`p16` at 16), int3 between."""
    code = bytearray(b"\xcc" * 256)
    for name, piece in pieces.items():
        at = int(name[1:])
        code[at : at + len(piece)] = piece
    return bytes(code)


def call(at: int, to: int) -> bytes:
    return b"\xe8" + struct.pack("<i", to - at - 5)


class _Strings:
    """A string table."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def _hash(name: str) -> int:
    """Of ELF, as the specification writes it (gABI chapter 5)."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ ((value & 0xF0000000) >> 24)) & 0x0FFFFFFF
    return value


def _verneed(versions: Mapping[str, Iterable[str]], strings: _Strings) -> bytes:
    blocks = []
    for file, given in versions.items():
        names = list(given)
        auxiliary = b"".join(
            struct.pack(
                "<IHHII",
                _hash(name),
                0,
                index + 2,
                strings.add(name),
                16 if index + 1 < len(names) else 0,
            )
            for index, name in enumerate(names)
        )
        is_last = len(blocks) + 1 == len(versions)
        blocks.append(
            struct.pack(
                "<HHIII",
                1,
                len(names),
                strings.add(file),
                16,
                0 if is_last else 16 + len(auxiliary),
            )
            + auxiliary
        )
    return b"".join(blocks)


def build_elf(
    *,
    needed: Iterable[str] = (),
    soname: str | None = None,
    runpath: str | None = None,
    rpath: str | None = None,
    versions: Mapping[str, Iterable[str]] | None = None,
    text: bytes = b"\xc3",
    symbols: Mapping[str, int] | None = None,
    takes: Iterable[str] = (),
    indirect: Iterable[str] = (),
    dynamic: Iterable[tuple[int, int]] = (),
    fatbin: bytes | None = None,
    machine: int = 62,
    pages: int = 64 << 10,
    kind: int = 3,
    init: Iterable[int] = (),
    relocate_init: bool = True,
    relocations: Iterable[tuple[int, int, int]] = (),
    stack: int | None = 6,
    interpreter: str | None = None,
    tls: int = 0,
) -> bytes:
    """A 64-bit little-endian shared object whose addresses are its file offsets; `text` lies at
    `TEXT`.

    `symbols`: function name to offset in `text`. `takes`: names that others must give. `indirect`:
    those of `symbols` that are resolvers (STT_GNU_IFUNC). `dynamic`: further tags. `pages`: the
    size of a page that it is linked for. `init`: offsets in `text` of the static initialisers, put
    into `.init_array` by relocations or, without `relocate_init`, as they are. `relocations`:
    further rows of `.rela.dyn`. `stack`: the flags of PT_GNU_STACK, None without one.
    `interpreter`: PT_INTERP. `tls`: bytes of PT_TLS.
    """
    versions = versions or {}
    strings = _Strings()
    tags = [(1, strings.add(name)) for name in needed]
    tags += [
        (tag, strings.add(text))
        for tag, text in ((14, soname), (15, rpath), (29, runpath))
        if text is not None
    ]
    tags += dynamic
    verneed = _verneed(versions, strings)
    names = {name: strings.add(name) for name in symbols or {}}
    taken = [strings.add(name) for name in takes]

    body = bytearray(b"\0" * TEXT)
    places: dict[str, tuple[int, int]] = {}

    def place(name: str, content: bytes) -> int:
        body.extend(b"\0" * (-len(body) % 16))
        places[name] = (len(body), len(content))
        body.extend(content)
        return places[name][0]

    code = place(".text", text)
    table = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    kinds_of = dict.fromkeys(symbols or {}, 0x12) | dict.fromkeys(indirect, 0x1A)
    table += [
        struct.pack("<IBBHQQ", names[name], kinds_of[name], 0, 1, code + at, 1)
        for name, at in (symbols or {}).items()
    ]
    table += [struct.pack("<IBBHQQ", name, 0x12, 0, 0, 0, 0) for name in taken]
    tags.append((6, place(".dynsym", b"".join(table))))
    tags += [(5, place(".dynstr", strings.data)), (10, len(strings.data)), (11, 24)]
    if versions:
        tags.append((0x6FFFFFF0, place(".gnu.version", bytes(2 * len(table)))))
        tags += [(0x6FFFFFFE, place(".gnu.version_r", verneed)), (0x6FFFFFFF, len(versions))]
    place(".dynamic", b"".join(struct.pack("<QQ", *tag) for tag in [*tags, (0, 0)]))
    starts = [code + offset for offset in init]
    rows = list(relocations)
    if starts:
        stored = [0] * len(starts) if relocate_init else starts
        array = place(".init_array", struct.pack(f"<{len(starts)}Q", *stored))
        rows += [
            (array + 8 * index, 8, address) for index, address in enumerate(starts) if relocate_init
        ]
    if rows:
        place(".rela.dyn", b"".join(struct.pack("<QQq", *row) for row in rows))
    if fatbin is not None:
        place(".nv_fatbin", fatbin)
    titles = _Strings()
    kinds = {".text": (1, 6), ".dynsym": (11, 2), ".dynstr": (3, 2), ".dynamic": (6, 3)}
    kinds |= {".init_array": (14, 3), ".rela.dyn": (4, 2)}
    order = list(places)
    headers = [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name in order:
        section_kind, flags = kinds.get(name, (1, 2))
        offset, size = places[name]
        linked = {".dynsym": ".dynstr", ".rela.dyn": ".dynsym"}.get(name)
        link = order.index(linked) + 1 if linked else 0
        headers.append(
            struct.pack(
                "<IIQQQQIIQQ",
                titles.add(name),
                section_kind,
                flags,
                offset,
                offset,
                size,
                link,
                0,
                1,
                0,
            )
        )
    title = titles.add(".shstrtab")
    at = place(".shstrtab", titles.data)
    headers.append(struct.pack("<IIQQQQIIQQ", title, 3, 0, 0, at, len(titles.data), 0, 0, 1, 0))
    table_at = place("headers", b"".join(headers))
    interp_at = place(".interp", interpreter.encode() + b"\0") if interpreter else 0
    identity = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    body[:64] = identity + struct.pack(
        "<HHIQQQIHHHHHH",
        kind,
        machine,
        1,
        0,
        64,
        table_at,
        0,
        64,
        56,
        5,
        64,
        len(headers),
        len(headers) - 1,
    )
    offset, size = places[".dynamic"]
    body[64:120] = struct.pack("<IIQQQQQQ", 1, 7, 0, 0, 0, len(body), len(body), pages)
    body[120:176] = struct.pack("<IIQQQQQQ", 2, 4, offset, offset, offset, size, size, 8)
    body[176:232] = struct.pack(
        "<IIQQQQQQ", 0 if stack is None else 0x6474E551, stack or 0, 0, 0, 0, 0, 0, 16
    )
    body[232:288] = struct.pack(
        "<IIQQQQQQ", 3 if interpreter else 0, 4, interp_at, interp_at, interp_at, 0, 0, 1
    )
    body[288:344] = struct.pack("<IIQQQQQQ", 7 if tls else 0, 4, 0, 0, 0, 0, tls, 8)
    return bytes(body)


def build_pe(
    *,
    needed: Iterable[str] = (),
    delayed: Iterable[str] = (),
    exports: Iterable[str] = ("given",),
    takes: Mapping[str, str] | None = None,
    text: bytes = b"\xc3",
    data: bytes = b"",
    fatbin: bytes | None = None,
    machine: int = 0x8664,
    dll: bool = True,
    linker: tuple[int, int] = (14, 29),
    absolute: bool = False,
) -> bytes:
    """A 64-bit DLL (32-bit with machine 0x14C). It takes the first function of each DLL in
    `needed`, or by name what `takes` says. `data` stands in .rdata; `absolute`: delay loads of old
    linkers.
    """
    wide = machine != 0x14C
    base, at = 0x10000000, 0x2000  # the image, and .rdata in it
    needed, delayed, exports = list(needed), list(delayed), sorted(exports)
    rdata = bytearray(data or b"\0")

    def add(content: bytes) -> int:
        rdata.extend(b"\0" * (-len(rdata) % 8))
        rdata.extend(content)
        return at + len(rdata) - len(content)

    thunk = (
        struct.pack("<QQ", 1 << 63 | 1, 0) if wide else struct.pack("<II", 1 << 31 | 1, 0)
    )  # one ordinal
    places = [(0, 0)] * 16
    if needed:
        records = []
        for name in needed:
            lookup = thunk
            if takes and name in takes:  # a function by its name
                lookup = struct.pack("<QQ", add(b"\0\0" + takes[name].encode() + b"\0"), 0)
            table = [add(lookup)]
            records.append(struct.pack("<IIIII", *table, 0, 0, add(name.encode() + b"\0"), *table))
        places[1] = (add(b"".join([*records, b"\0" * 20])), 20 * len(records) + 20)
    if delayed:
        flag, off = (0, base) if absolute else (1, 0)
        thunks = add(thunk)
        table = [thunks + off] * 2
        records = [
            struct.pack("<8I", flag, add(name.encode() + b"\0") + off, 0, *table, 0, 0, 0)
            for name in delayed
        ]
        places[13] = (add(b"".join([*records, b"\0" * 32])), 32 * len(records) + 32)
    if exports:
        names = add(b"".join(struct.pack("<I", add(name.encode() + b"\0")) for name in exports))
        places_ = add(struct.pack("<I", 0x1000) * len(exports))
        ordinals = add(b"".join(struct.pack("<H", index) for index in range(len(exports))))
        count = len(exports)
        head = struct.pack("<IIHHIIIIIII", 0, 0, 0, 0, 0, 1, count, count, places_, names, ordinals)
        places[0] = (add(head), 40)
    parts = [(b".text", 0x1000, text, 0x60000020), (b".rdata", at, bytes(rdata), 0x40000040)]
    if fatbin is not None:
        parts.append((b".nv_fatb", at + 0x1000 * (1 + len(rdata) // 0x1000), fatbin, 0x40000040))
    optional = struct.pack("<HBB", 0x20B if wide else 0x10B, *linker).ljust(
        24 if wide else 28, b"\0"
    )
    optional += struct.pack("<Q" if wide else "<I", base)
    optional = optional.ljust(108 if wide else 92, b"\0") + struct.pack("<I", 16)
    optional += b"".join(struct.pack("<II", *place) for place in places)
    head = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40) + b"PE\0\0"
    head += (
        struct.pack(
            "<HHIIIHH", machine, len(parts), 0, 0, 0, len(optional), 0x2022 if dll else 0x22
        )
        + optional
    )
    offset = 1024
    body = b""
    for title, address, content, flags in parts:
        padded = content.ljust(-(-len(content) // 512) * 512, b"\0")
        places_ = (len(content), address, len(padded), offset + len(body), 0, 0, 0, 0, flags)
        head += title.ljust(8, b"\0") + struct.pack("<IIIIIIHHI", *places_)
        body += padded
    return head.ljust(offset, b"\0") + body


def cubin(*, kernel: bool = True, size: int = 4096) -> bytes:
    """The outside of a cubin: an ELF header for machine 190, section names, symbols; with a kernel
    or none.
    """
    names = b"\0.shstrtab\0" + (b".text._Z6kernelv\0" if kernel else b".nv.info\0")
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    symbols += struct.pack("<IBBHQQ", 1, 0x12, 0x10, 1, 0, 128) if kernel else b""
    at = 64 + len(names)
    section = struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, at, len(symbols), 0, 0, 8, 24)
    head = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, at + len(symbols), 0, 64, 0, 0, 64, 1, 0)
    return (head + names + symbols + section).ljust(size, b"\0")


def fat_entry(
    kind: str,
    sm: int,
    *,
    data: bytes | None = None,
    flags: int = 0x11,
    unpacked: int = 0,
    header: int = 64,
) -> bytes:
    """One entry. `unpacked` is the size before compression, for entries whose flags say that they
    are compressed.
    """
    if data is None:
        data = cubin() if kind == "sass" else b".version 7.8\n.target sm_%d\n" % sm
    padded = data.ljust(-(-len(data) // 8) * 8, b"\0")
    head = struct.pack("<HHIQ", {"ptx": 1, "sass": 2}[kind], 0x101, header, len(padded))
    head += struct.pack("<IIHHI", len(data) if unpacked else 0, 0, 8, 7, sm)
    head += struct.pack("<IIQQQ", 0, 0, flags, 0, unpacked)
    return head.ljust(header, b"\0") + padded


def fat_container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip(
        "="
    )


def build_wheel(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    name: str = "canary",
    version: str = "1.0",
    tag: str = "cp311-cp311-linux_x86_64",
    metadata: bytes | None = None,
    requires: Iterable[str] = (),
    wheel_file: bytes | None = None,
    wheel_tags: Iterable[str] | None = None,
    record: bytes | None = None,
    level: int = 9,
) -> Path:
    """A wheel with a right RECORD (unless one is given), written by the standard library."""
    info = f"{name}-{version}.dist-info"
    tags = "".join(f"Tag: {each}\n" for each in (wheel_tags or [tag]))
    if metadata is None:
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: >=3.8\n"
        metadata = (
            head + "".join(f"Requires-Dist: {each}\n" for each in requires) + "\nText\n"
        ).encode()
    if wheel_file is None:
        wheel_file = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n{tags}".encode()
    everything = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel_file}
    if record is None:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(
            (path, digest(content), len(content)) for path, content in everything.items()
        )
        writer.writerow((f"{info}/RECORD", "", ""))
        record = text.getvalue().encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for member, content in {**everything, f"{info}/RECORD": record}.items():
            entry = zipfile.ZipInfo(member, (2022, 6, 1, 12, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if ".so" in member else 0o100644) << 16
            archive.writestr(entry, content, compresslevel=level)
    return path


@pytest.fixture(scope="session")
def make_elf() -> Callable[..., bytes]:
    return build_elf


@pytest.fixture(scope="session")
def make_pe() -> Callable[..., bytes]:
    return build_pe


@pytest.fixture(scope="session")
def make_wheel() -> Callable[..., Path]:
    return build_wheel


@pytest.fixture(scope="session")
def make_entry() -> Callable[..., bytes]:
    return fat_entry


@pytest.fixture(scope="session")
def make_container() -> Callable[..., bytes]:
    return fat_container


@pytest.fixture(scope="session")
def make_cubin() -> Callable[..., bytes]:
    return cubin


@pytest.fixture(scope="session")
def make_digest() -> Callable[[bytes], str]:
    return digest
