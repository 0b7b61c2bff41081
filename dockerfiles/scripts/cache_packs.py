"""Takes packs of a shared compiler cache into this machine's, and packs what a build had of it. Needs no network.

Usage: cache_packs.py take PACKS CCACHE_DIR             before a build
       cache_packs.py put PACKS CCACHE_DIR SINCE DEST   after it; SINCE is a file as old as the build's first attempt

A pack is a tar of ccache's entries (results `…R`, manifests `…M`), each under its key; ccache compresses them itself.
PACKS holds packs by their sha256 and `request.json`: {schema, scope, stored, max_bytes}. `scope` is what the packs are
of, `stored` the sha256 of every pack that the store has (null: it did not say), `max_bytes` how large a new one may be.

What a pack that was taken or put holds is noted in CCACHE_DIR/farm-packs/<scope>/<sha256>. A new pack holds what the
build made or used (ccache renews an entry's time at every hit) and no noted pack has. So what an attempt compiled that
was killed, or a build that failed, goes out with the next build that uses it. Packs come from other machines: only
plain files with names of entries are taken out of them. Writes DEST/report.json, and DEST/<sha256>.tar if there is new.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

KEY = re.compile(r"[0-9a-f]{4}[0-9a-v]{16,60}[RM]")
"""ccache 4: two bytes of the digest in base 16, the others in base 32, and what it is; folders are its first digits."""
SHA256 = re.compile(r"[0-9a-f]{64}")
BLOCK = tarfile.BLOCKSIZE
MAX_ENTRY = 512 << 20
MAX_ENTRIES = 200_000
MAX_FETCHED = 4 << 30
LEVELS = (2, 3, 4)  # ccache spreads its files over two folders, one in the other, or three or four


class Refused(Exception):  # noqa: N818
    """A pack that is none."""


def place(cache: Path, key: str, level: int) -> Path:
    return cache.joinpath(*key[:level], key[level:])


def unique() -> str:
    """A name in ccache's own folder for what is not whole yet, which it tidies up. Containers share process ids."""
    return f"farm-{os.urandom(16).hex()}"


def members(stream: "IO[bytes]") -> "Iterator[tuple[str, int]]":
    """(key, size) of each entry; its bytes are to be read before the next is asked for.

    The headers are read here, a block each: tarfile follows headers for long names and sparse files, and no pack has
    any.
    """
    for _ in range(MAX_ENTRIES):
        block = stream.read(BLOCK)
        if block == bytes(BLOCK):
            return
        try:
            info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.TarError, ValueError) as error:
            raise Refused(f"no tar: {error}") from None
        if info.type != tarfile.REGTYPE or not KEY.fullmatch(info.name) or not 0 <= info.size <= MAX_ENTRY:
            raise Refused(f"{info.name[:80]!r} is no entry of ccache")
        yield info.name, info.size
        padding = -info.size % BLOCK
        if len(stream.read(padding)) != padding:
            raise Refused("it ends too early")
    raise Refused(f"more than {MAX_ENTRIES} entries")


def unpack(pack: Path, cache: Path) -> "Iterator[str]":
    """The key of each entry once it is in the cache. One that is there already stays as it is."""
    part = cache / "tmp" / unique()
    part.parent.mkdir(exist_ok=True)
    try:
        with pack.open("rb") as stream:
            for key, size in members(stream):
                there = any(place(cache, key, level).exists() for level in LEVELS)
                with open(os.devnull if there else part, "wb") as out:  # noqa: PTH123
                    left = size
                    while left:
                        piece = stream.read(min(left, 1 << 20))
                        if not piece:
                            raise Refused("it ends too early")
                        out.write(piece)
                        left -= len(piece)
                if not there:
                    target = place(cache, key, LEVELS[0])
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(part, target)  # noqa: PTH105  other builds may be reading the cache
                yield key
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def read_request(packs: Path) -> "dict[str, Any]":
    request: dict[str, Any] = json.loads((packs / "request.json").read_text(encoding="utf-8"))
    if request["schema"] != 1 or not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", request["scope"]):
        raise Refused("request.json is of another version of the farm")
    return request


def notes_of(cache: Path, request: "dict[str, Any]") -> "dict[str, Path]":
    """The notes by the sha256 of their packs; what the store has no more is forgotten, so that it is packed again."""
    folder = cache / "farm-packs" / request["scope"]
    folder.mkdir(parents=True, exist_ok=True)
    found = {path.name: path for path in folder.iterdir() if SHA256.fullmatch(path.name)}
    for sha256 in set(found) - set(request["stored"] if request["stored"] is not None else found):
        with contextlib.suppress(FileNotFoundError):  # another build is as far
            found.pop(sha256).unlink()
    return found


def note(cache: Path, request: "dict[str, Any]", sha256: str, keys: "set[str]") -> None:
    path = cache / "farm-packs" / request["scope"] / sha256
    part = cache / "tmp" / unique()
    part.parent.mkdir(exist_ok=True)
    part.write_text("".join(f"{key}\n" for key in sorted(keys)), encoding="ascii")
    os.replace(part, path)  # noqa: PTH105


def take(packs: Path, cache: Path) -> None:
    """Every pack that this cache has not had."""
    request = read_request(packs)
    known, taken, left = notes_of(cache, request), 0, MAX_FETCHED
    for pack in sorted(packs.glob("*.tar")):
        left -= pack.stat().st_size
        if pack.stem in known or not SHA256.fullmatch(pack.stem) or left < 0:
            continue
        keys: set[str] = set()
        try:
            for key in unpack(pack, cache):
                keys.add(key)
        except Refused as refused:  # noted all the same: it is as wrong the next time
            print(f"farm: pack {pack.stem[:12]} of the compiler cache is not taken: {refused}")
        taken += bool(keys)
        note(cache, request, pack.stem, keys)
    if taken:
        print(f"farm: {taken} packs taken into the compiler cache")
        if shutil.which("ccache"):  # it counts what it holds; what came from elsewhere it has not counted
            subprocess.run(["ccache", "--cleanup"], check=False, stdout=subprocess.DEVNULL)


def entries(cache: Path, since: int, held: "set[str]") -> "dict[str, Path]":
    """What was made or used from a time on (ns) and is in no pack."""
    found: dict[str, Path] = {}
    for top in "0123456789abcdef":
        for path in (cache / top).rglob("*"):
            key = "".join(path.relative_to(cache).parts)
            if KEY.fullmatch(key) and key not in held:
                with contextlib.suppress(FileNotFoundError):  # another build's ccache tidies up
                    status = path.lstat()
                    if path.is_file() and not path.is_symlink() and status.st_mtime_ns >= since:
                        found[key] = path
    return found


def write(found: "dict[str, Path]", dest: Path, max_bytes: int) -> "tuple[str, set[str]]":
    """The pack, as DEST/<sha256>.tar: the same entries give the same bytes. What does not fit waits for the next."""
    part, keys, left = dest / "part", set(), max_bytes - 20 * BLOCK
    with part.open("wb") as out, tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for key, path in sorted(found.items())[:MAX_ENTRIES]:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
                info = tarfile.TarInfo(key)
                info.size = os.fstat(stream.fileno()).st_size  # ccache replaces files, it never changes one
                if info.size > MAX_ENTRY or info.size + 2 * BLOCK > left:
                    continue
                left -= info.size + 2 * BLOCK
                archive.addfile(info, stream)
                keys.add(key)
    digest = hashlib.sha256()
    with part.open("rb") as stream:
        for piece in iter(lambda: stream.read(1 << 20), b""):
            digest.update(piece)
    part.rename(dest / f"{digest.hexdigest()}.tar")
    return digest.hexdigest(), keys


def put(packs: Path, cache: Path, since: Path, dest: Path) -> None:
    """The pack of this build, if it has anything new, and the report."""
    request = read_request(packs)
    notes = notes_of(cache, request)
    held = {key for path in notes.values() for key in path.read_text(encoding="ascii").split()}
    found = entries(cache, since.stat().st_mtime_ns, held)
    dest.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"schema": 1, "held": sorted(notes), "pack": None, "objects": 0}
    if any(key.endswith("R") for key in found):
        report["pack"], keys = write(found, dest, request["max_bytes"])
        report["objects"] = sum(key.endswith("R") for key in keys)
        note(cache, request, report["pack"], keys)
        print(f"farm: {report['objects']} results of the compiler cache are packed for other machines")
    (dest / "report.json").write_text(json.dumps(report) + "\n", encoding="utf-8")


def main() -> int:
    what, *paths = sys.argv[1:]
    try:
        {"take": take, "put": put}[what](*map(Path, paths))
    except (Refused, OSError, ValueError, KeyError, TypeError) as error:  # never the build's fault
        print(f"farm: the compiler cache goes on without packs: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
