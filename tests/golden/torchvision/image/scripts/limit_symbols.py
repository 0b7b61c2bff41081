#!/usr/bin/env python3
"""Lets a system link only what older systems have, so that its wheels run there.

    python3 limit_symbols.py GLIBC=2.28 GLIBCXX=3.4.24 CXXABI=1.3.11

What a program needs of the C library is decided when it is linked: `exp` is `exp@GLIBC_2.29` on
Debian 11, although its glibc has `exp@GLIBC_2.2.5` too. For each library of glibc, and for
libstdc++, this makes a library to link with that holds the same names, of which a program gets
the newest version up to the given ones; the names that the linker looks for (`libm.so`) lead to it.
Programs of the image run with the real libraries as before.

What libstdc++ got later is linked statically and hidden, as Red Hat's toolsets do: each library of
the wheel holds the few functions that it calls. What glibc got later is not there at all.

The system's other libraries go into wheels too (libpng): where one needs `pow@GLIBC_2.29` and there
is an older `pow`, its file is changed to need that one.

Runs as root in an image build, after the compilers are installed. Exit codes: 0 done, 1 the proof
at the end failed, 2 the command line.
"""

import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path("/opt/limits")
SYSTEM = Path("/usr/lib/x86_64-linux-gnu")
ROOTS = (Path("/usr"), Path("/opt/gcc/usr"))  # the second: a newer gcc, by install_gcc.py
LIBRARIES = {
    "libc.so": "libc.so.6",
    "libm.so": "libm.so.6",
    "libdl.so": "libdl.so.2",
    "libpthread.so": "libpthread.so.0",
    "librt.so": "librt.so.1",
    "libutil.so": "libutil.so.1",
    "libresolv.so": "libresolv.so.2",
}
GLIBC = (*LIBRARIES.values(), "libmvec.so.1", "ld-linux-x86-64.so.2")
LIBSTDCXX = "libstdc++.so.6"
SYMBOL = re.compile(
    r"\s*\d+: (?P<value>[0-9a-f]+)\s+(?P<size>\d+|0x[0-9a-f]+) "
    r"(?P<type>\w+)\s+(?P<bind>\w+)\s+\w+\s+(?P<section>\w+) "
    r"(?P<name>[^@\s]+)(?P<mark>@@?)(?P<version>\S+)"
)
SECTIONS = {
    "FUNC": (".text", "@function"),
    "IFUNC": (".text", "@function"),
    "OBJECT": (".bss", "@object"),
    "TLS": ('.section .tbss,"awT",@nobits', "@tls_object"),
}
# gcc 10 calls pthread_cond_clockwait and its like (glibc 2.30) where this says that they are there.
CLOCKWAIT = re.compile(r"^#define _GLIBCXX_USE_PTHREAD_\w+_CLOCK\w+ 1$", re.MULTILINE)
# What the static libraries of a newer gcc ask of a newer glibc: false says "not surely alone".
LATER = '__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;'
ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
SYMBOL_ENTRY = 24
SHT_SYMTAB = 2
STV_HIDDEN = 2
SHT_DYNSYM = 11
SHT_GNU_VERNEED = 0x6FFFFFFE
SHT_GNU_VERSYM = 0x6FFFFFFF
VERNEED = struct.Struct("<HHIII")
VERNAUX = struct.Struct("<IHHII")
ELF64 = b"\x7fELF\x02\x01"
AR_MAGIC = b"!<arch>\n"
AR_HEADER = 60
PROOF = r"""
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <memory_resource>
#include <sstream>
#include <thread>
#include <iostream>
#include <unistd.h>
extern "C" double proof(double x) {
    std::stringstream text;
    text << std::exp(x) << std::pow(x, x) << std::log(x) << std::exp2(float(x));
    std::mutex mutex;
    std::condition_variable condition;
    std::unique_lock<std::mutex> held(mutex);
    condition.wait_for(held, std::chrono::milliseconds(1));
    std::thread([] {}).join();
    bool there = std::filesystem::exists(text.str()) || std::pmr::get_default_resource() == nullptr;
    std::cout << "proof " << x << (environ[0] ? " ran" : "") << std::endl;
    return there + std::fmod(x, 3) + std::lgamma(x);
}
int main(int count, char **) { return proof(count + 1.5) > 100; }
"""


class Symbol(NamedTuple):
    """A name that a library has: its version, whether that is the default, what it is and where."""

    name: str
    version: str
    default: bool
    type: str
    size: int
    value: str
    weak: bool


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def within(version: str, limits: dict[str, tuple[int, ...]]) -> bool:
    """True for GLIBC_2.17 where GLIBC ends at 2.28, and for versions that nothing limits."""
    family, _, number = version.rpartition("_")
    if re.fullmatch(r"[\d.]+", number) and family in limits:
        return numbers(number) <= limits[family]
    return version != "GLIBC_PRIVATE"


def order(symbol: Symbol) -> tuple[int, ...]:
    number = symbol.version.rpartition("_")[2]
    return numbers(number) if re.fullmatch(r"[\d.]+", number) else ()


def symbols(library: Path) -> dict[str, list[Symbol]]:
    """What the library has, by name."""
    text = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", str(library)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    by_name: dict[str, list[Symbol]] = defaultdict(list)
    for line in text.splitlines():
        row = SYMBOL.match(line)
        if row and row["section"] not in ("UND", "ABS") and row["type"] in SECTIONS:
            size = int(row["size"], 0)
            default = row["mark"] == "@@"
            weak = row["bind"] == "WEAK"
            symbol = Symbol(
                row["name"], row["version"], default, row["type"], size, row["value"], weak
            )
            by_name[symbol.name].append(symbol)
    return by_name


def limited(every: list[Symbol], limits: dict[str, tuple[int, ...]]) -> list[Symbol]:
    """The versions of one name, with the newest that old systems have as the default.

    Newer ones stay for what the system's own libraries need of one another; a program never gets
    them. A name that is there for old programs alone, without a default, gets none.
    """
    default = None
    if any(one.default for one in every):
        old = [one for one in every if within(one.version, limits)]
        default = max(old, key=order, default=None)
    return [one._replace(default=one is default) for one in every]


def placed(kept: list[Symbol]) -> list[str]:
    """Lines for the assembler: names of one place, such as environ and __environ, have one place.

    A program gets a copy of a variable that it names (std::cout), as large as it is here and where
    it can be written. The copy of a weak name (environ) is that of the strong one (__environ) too.
    """
    places = defaultdict(list)
    for one in kept:
        places[SECTIONS[one.type], one.value].append(one)
    lines = []
    number = 0
    for ((section, kind), _), names in places.items():
        lines += [section, ".balign 64"]
        for one in names:
            number += 1
            label = f"farm_{number}"
            mark = "@@" if one.default else "@"
            lines += [
                f".weak {label}" if one.weak else f".globl {label}",
                f".type {label},{kind}",
                f"{label}:",
                f".size {label},{one.size}",
                f".symver {label},{one.name}{mark}{one.version}",
            ]
        lines.append(f".space {1 if kind == '@function' else max(one.size for one in names)}")
    return lines


def stub(library: Path, soname: str, limits: dict[str, tuple[int, ...]]) -> Path:
    """Makes the library to link with; returns its path."""
    kept = [one for every in symbols(library).values() for one in limited(every, limits)]
    lines = placed(kept)
    versions = sorted({one.version for one in kept})
    script = "".join(f"{version} {{ local: farm_*; }};\n" for version in versions[:1])
    script += "".join(f"{version} {{ }};\n" for version in versions[1:])
    target = FOLDER / soname
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "stub.s")
        source.write_text("\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""]))
        nodes = Path(folder, "versions")
        nodes.write_text(script)
        command = ["-shared", "-nostdlib", f"-Wl,-soname,{soname},--version-script={nodes}"]
        subprocess.run([compiler("gcc"), *command, "-o", str(target), str(source)], check=True)
    print(f"{soname}: {len(kept)} names")
    return target


def compiler(name: str) -> str:
    """The newest gcc or g++ of the image."""
    found = [
        path for path in Path("/usr/bin").glob(f"{name}-*") if path.name.split("-")[1].isdigit()
    ]
    return str(max(found, key=lambda path: int(path.name.split("-")[1])))


def lead(link: Path, library: Path, target: Path) -> None:
    """The name that the linker looks for leads to `target` instead of to `library`."""
    if link.is_symlink():
        link.unlink()
        link.symlink_to(target)
    else:  # a script of the linker names it
        text = link.read_text()
        link.write_text(re.sub(rf"\S*/{re.escape(library.name)}(?=\s)", str(target), text))


def hidden(archive: Path, target: Path) -> None:
    """A copy of a static library whose functions no library that is linked with it exports."""
    data = bytearray(archive.read_bytes())
    offset = len(AR_MAGIC)
    while offset + AR_HEADER <= len(data):
        size = int(data[offset + 48 : offset + 58])
        hide(memoryview(data)[offset + AR_HEADER : offset + AR_HEADER + size])
        offset += AR_HEADER + size + size % 2
    target.write_bytes(data)


def hide(member: memoryview) -> None:
    if bytes(member[:4]) != b"\x7fELF":
        return  # the archive's own index
    header = ELF_HEADER.unpack_from(member)
    start = header[6]
    entry_size = header[11]
    for number in range(header[12]):
        section = SECTION_HEADER.unpack_from(member, start + number * entry_size)
        if section[1] != SHT_SYMTAB:
            continue
        first_global = section[7]
        for symbol in range(first_global, section[5] // SYMBOL_ENTRY):
            place = section[4] + symbol * SYMBOL_ENTRY
            defined = member[place + 6] or member[place + 7]
            if defined:
                member[place + 5] = member[place + 5] & ~3 | STV_HIDDEN


class Library:
    """A shared library whose needs of versions are read and changed; a 64-bit ELF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = bytearray(path.read_bytes())
        self.sections: dict[int, tuple[int, ...]] = {}
        header = ELF_HEADER.unpack_from(self.data)
        for number in range(header[12]):
            section = SECTION_HEADER.unpack_from(self.data, header[6] + number * header[11])
            self.sections[section[1]] = section

    def has_needs(self) -> bool:
        return {SHT_DYNSYM, SHT_GNU_VERSYM, SHT_GNU_VERNEED} <= set(self.sections)

    def text(self, offset: int) -> str:
        """The text at an offset of .dynstr."""
        header = ELF_HEADER.unpack_from(self.data)
        number = self.sections[SHT_DYNSYM][6]
        strings = SECTION_HEADER.unpack_from(self.data, header[6] + number * header[11])[4]
        start = strings + offset
        return self.data[start : self.data.index(0, start)].decode()

    def needs(self) -> Iterator[tuple[str, str, int]]:
        """Each needed version: of which library, its name, the place of its entry."""
        place = self.sections[SHT_GNU_VERNEED][4]
        while True:
            _, count, file, first, following = VERNEED.unpack_from(self.data, place)
            entry = place + first
            for _ in range(count):
                fields = VERNAUX.unpack_from(self.data, entry)
                yield self.text(file), self.text(fields[3]), entry
                entry += fields[4]
            if not following:
                return
            place += following

    def names_of(self, entry: int) -> list[str]:
        """The names that are needed in the version of an entry."""
        number = VERNAUX.unpack_from(self.data, entry)[2]
        versions = self.sections[SHT_GNU_VERSYM]
        table = self.sections[SHT_DYNSYM][4]
        names = []
        for index in range(versions[5] // 2):
            if struct.unpack_from("<H", self.data, versions[4] + 2 * index)[0] == number:
                names.append(self.text(struct.unpack_from("<I", self.data, table + 24 * index)[0]))
        return names

    def replace(self, entry: int, other: int) -> None:
        """The version of an entry becomes that of another one."""
        _, flags, number, _, following = VERNAUX.unpack_from(self.data, entry)
        code, _, _, name, _ = VERNAUX.unpack_from(self.data, other)
        VERNAUX.pack_into(self.data, entry, code, flags, number, name, following)


def age(path: Path, limits: dict[str, tuple[int, ...]]) -> None:
    """Changes a library of the system to need older versions, where those have all that it calls."""
    library = Library(path)
    if not library.has_needs():
        return
    needs = list(library.needs())
    places = {version: entry for _, version, entry in needs}
    changed = False
    for soname, version, entry in needs:
        if within(version, limits) or version == "GLIBC_PRIVATE" or soname not in GLIBC:
            continue
        offered = symbols((SYSTEM / soname).resolve())
        older = set()
        for name in library.names_of(entry):
            defaults = [one.version for one in limited(offered[name], limits) if one.default]
            older.add(defaults[0] if defaults else None)
        if len(older) == 1 and (old := older.pop()) in places:
            library.replace(entry, places[old])
            changed = True
            print(f"{path.name}: {version} -> {old}")
    if changed:
        # Not in place: this very program may have it loaded.
        new = path.with_name(path.name + ".farm")
        new.write_bytes(library.data)
        new.chmod(path.stat().st_mode)
        new.replace(path)


def age_all(limits: dict[str, tuple[int, ...]]) -> None:
    """Changes what wheels may take of the system: each library of it but glibc's own."""
    own = {(SYSTEM / soname).resolve() for soname in GLIBC if (SYSTEM / soname).exists()}
    for path in sorted(SYSTEM.rglob("*.so*")):
        if path.is_symlink() or not path.is_file() or path in own:
            continue
        with path.open("rb") as file:
            magic = file.read(len(ELF64))
        if magic == ELF64:
            age(path, limits)


def limit(limits: dict[str, tuple[int, ...]]) -> None:
    FOLDER.mkdir(parents=True)
    for link, soname in LIBRARIES.items():
        library = (SYSTEM / soname).resolve()
        named = SYSTEM / soname if (SYSTEM / soname).exists() else library
        lead(SYSTEM / link, named, stub(library, soname, limits))
    standard = stub((SYSTEM / LIBSTDCXX).resolve(), LIBSTDCXX, limits)
    missing = later()
    for folder in versions_of_gcc():
        link = folder / "libstdc++.so"
        if link.exists() or link.is_symlink():
            static = FOLDER / f"libstdc++-{folder.name}.a"
            hidden(folder / "libstdc++.a", static)
            link.unlink()
            link.write_text(f"INPUT ( {standard} {static} {missing} )\n")
    for root in ROOTS:
        for config in root.glob("include/x86_64-linux-gnu/c++/*/bits/c++config.h"):
            config.write_text(CLOCKWAIT.sub("", config.read_text()))


def versions_of_gcc() -> list[Path]:
    """The folders of each gcc's own libraries."""
    return [folder for root in ROOTS for folder in sorted(root.glob("lib/gcc/x86_64-linux-gnu/*"))]


def later() -> Path:
    """A static library of what a newer glibc has; linked where something asks for it."""
    target = FOLDER / "liblater.a"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "later.c")
        source.write_text(LATER)
        compiled = str(source.with_suffix(".o"))
        subprocess.run([compiler("gcc"), "-fPIC", "-c", str(source), "-o", compiled], check=True)
        subprocess.run(["ar", "rcs", str(target), compiled], check=True)
    return target


def proved(limits: dict[str, tuple[int, ...]]) -> bool:
    """A library and a program that use what came later are linked, need nothing newer, and run."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "proof.cpp")
        source.write_text(PROOF)
        library = Path(folder, "libproof.so")
        program = Path(folder, "proof")
        command = [compiler("g++"), "-std=c++17", "-O2", "-pthread", "-Wl,-z,defs", str(source)]
        subprocess.run([*command, "-shared", "-fPIC", "-o", str(library)], check=True)
        subprocess.run([*command, "-o", str(program)], check=True)
        needs = subprocess.run(
            ["readelf", "--version-info", "--wide", str(library), str(program)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        versions = set(re.findall(r"Name: (\S+)", needs))
        too_new = sorted(each for each in versions if not within(each, limits))
        if too_new or not any(each.startswith("GLIBC_") for each in versions):
            print(f"limit_symbols: needs {too_new or 'nothing'}", file=sys.stderr)
            return False
        said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
        if said != "proof 2.5 ran\n":
            print(f"limit_symbols: the program said {said!r}", file=sys.stderr)
            return False
        load = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).proof"
        subprocess.run([sys.executable, "-c", load, str(library)], check=True)
    print("needs at most " + ", ".join(sorted(versions)))
    return True


def main() -> int:
    limits = {}
    for word in sys.argv[1:]:
        family, _, version = word.partition("=")
        if not re.fullmatch(r"\d+(\.\d+)*", version):
            print(f"limit_symbols: {word!r}: FAMILY=VERSION is expected", file=sys.stderr)
            return 2
        limits[family] = numbers(version)
    if not limits:
        print("limit_symbols: no limit", file=sys.stderr)
        return 2
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    limit(limits)
    age_all(limits)
    return 0 if proved(limits) else 1


if __name__ == "__main__":
    sys.exit(main())
