"""Downloads pinned archives, checks their sha256 and unpacks the members that are wanted.

Usage: fetch_tools.py MANIFEST.json FOLDER. Stands beside install_toolkit.py, downloads as that does
(FARM_ARCHIVES) and exits with its codes.

The manifest is a list of `{name, version, url, sha256, max_mb, members, mirrors}`; `members` maps a
pattern (fnmatch) to a place below FOLDER, a folder if it ends in a slash; `mirrors` are asked after
`url`. FOLDER/NAME.ok records what is there; it is not downloaded again.
"""

import errno
import fnmatch
import json
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import install_toolkit as toolkit

ATTEMPTS = 3


def download(tool: dict[str, Any], target: Path) -> None:
    """Into `target`, at most max_mb; refused when its sha256 is another."""
    if toolkit.from_archives(tool["url"], tool["sha256"], target, tool["max_mb"] << 20):
        return
    url, *mirrors = tool["url"], *tool.get("mirrors", [])
    for other in mirrors:
        try:
            fetched(tool, url, target)
            return
        except (toolkit.NetworkError, toolkit.ArchiveError) as error:
            toolkit.say(f"{error}; next: {toolkit.public_url(other)}")
            url = other
    fetched(tool, url, target)


def fetched(tool: dict[str, Any], url: str, target: Path) -> None:
    """The file of one address into `target`."""
    where = f"{tool['name']}: {toolkit.public_url(url)}"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            toolkit.fetch(url, target, tool["max_mb"] << 20)
            break
        except OSError as error:  # urllib's errors are among them
            if error.errno == errno.ENOSPC:
                raise
            if attempt == ATTEMPTS:
                raise toolkit.NetworkError(
                    f"{where}: {error}, {ATTEMPTS} times; check the network, or put the file into "
                    "a folder and "
                    "set FARM_ARCHIVES to it (for an image its URL: archives in ci/farm.yaml)"
                ) from None
    digest = toolkit.digest(target)
    if digest != tool["sha256"]:
        raise toolkit.ArchiveError(f"{where}: sha256 is {digest}, expected {tool['sha256']}")


def members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of every file."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    with archive.open(info) as body:
                        yield info.filename, body
        return
    with tarfile.open(path, "r:gz") as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isreg() else None
            if content:
                yield entry.name, content


def unpack(tool: dict[str, Any], path: Path, folder: Path) -> None:
    """The members that are wanted; every pattern must find one."""
    found = set()
    left = toolkit.EXPANSION * (tool["max_mb"] << 20)
    try:
        for name, body in members(path):
            for pattern, place in tool["members"].items():
                if not fnmatch.fnmatchcase(name, pattern):
                    continue
                parts = toolkit._parts(name, windows=True)
                if place.endswith("/"):
                    target = folder / place / parts[-1]
                else:
                    target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                content = body.read(left + 1)
                left -= len(content)
                if left < 0:
                    raise toolkit.ArchiveError(
                        f"{tool['name']}: unpacks to more than {toolkit.EXPANSION} times its limit"
                    )
                target.write_bytes(content)
                found.add(pattern)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise toolkit.ArchiveError(f"{tool['name']}: damaged: {error}") from None
    missing = sorted(set(tool["members"]) - found)
    if missing:
        raise toolkit.ArchiveError(f"{tool['name']}: the archive holds no {missing[0]}")


def main(argv: list[str]) -> int:
    """Fetch what is not there; one line and an exit code when something fails."""
    manifest = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    folder = Path(argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for tool in manifest:
            receipt = folder / f"{tool['name']}.ok"
            if receipt.exists() and receipt.read_text() == tool["sha256"]:
                toolkit.say(f"{tool['name']}: {tool['version']} is there already")
                continue
            stage = tempfile.mkdtemp()
            try:
                archive = Path(stage, "archive")
                download(tool, archive)
                unpack(tool, archive, folder)
            finally:
                shutil.rmtree(
                    stage, ignore_errors=True
                )  # a virus scanner may have it open; it lies in C:\farm\t
            receipt.write_text(tool["sha256"])
            toolkit.say(f"{tool['name']}: {tool['version']}, sha256 as pinned")
    except toolkit.InstallError as error:
        print(f"fetch_tools: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"fetch_tools: {error}; check disk space and permissions", file=sys.stderr)
        return 9
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
