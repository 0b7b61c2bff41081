#!/usr/bin/env python3
"""Installs a CUDA toolkit from NVIDIA's redist archives: download, check, unpack, merge.
Driverless.

    python install_toolkit.py MANIFEST.json --prefix DIR [--cache DIR] [--keep-archives]
    [--msbuild-dir DIR]

One file, standard library, Python 3.9+, Linux and Windows: it runs inside an image build, without
the farm. The manifest is written by the farm (`farm.catalog.redist.install_manifest`).

Everything is unpacked beside the prefix first and merged when all of it is there. If anything fails
the prefix is as it was before. `PREFIX/.redist.json` records what was installed; that is not
downloaded again.

FARM_ARCHIVES, a folder or the URL of one, is where each archive is looked for first, by its file
name. On Windows curl.exe downloads: Python finds no root certificates in a fresh container
(docker-library/python#359).

Exit codes: 0 done, 2 bad manifest or arguments, 6 an archive is not what was pinned, is not safe to
unpack or does not fit the others, 9 network, disk or machine.
"""

from __future__ import annotations

import argparse
import base64
import errno
import filecmp
import hashlib
import http.client
import json
import lzma
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

SCHEMA = 1
RECEIPT = ".redist.json"
CHUNK = 1 << 20
ATTEMPTS = 5
HELD_S = 10.0  # how long a virus scanner may have a new file open
TIMEOUT_S = 60.0
MAX_WAIT_S = 60.0
MAX_MEMBERS = 50_000
MAX_READ = (
    4 << 20
)  # bytes that tarfile may read at once: bodies are read in CHUNKs, headers are small
# NVIDIA's archives unpack to less than ten times their size: forty and a floor leave room, a bomb
# is stopped.
EXPANSION = 40
EXPANSION_FLOOR = 64 << 20

CURL = "curl.exe" if os.name == "nt" else None
CURL_OPTIONS = (
    "--fail",
    "--location",
    "--silent",
    "--show-error",
    "--retry",
    "3",
    "--retry-delay",
    "2",
)
CURL_LIMITS = ("--proto", "=http,https", "--proto-redir", "=http,https", "--connect-timeout", "60")
CURL_STALLED = ("--speed-limit", "1", "--speed-time", "60")
# Exit codes of curl: HTTP error, cannot write, the server does not continue a file, larger than
# --max-filesize.
CURL_HTTP = 22
CURL_DISK = 23
CURL_NO_RANGE = (33, 36)
CURL_TOO_LARGE = 63

VISUAL_STUDIO = "extras/visual_studio_integration"
MSBUILD = "MSBuildExtensions"
MSBUILD_SUFFIXES = (".props", ".targets", ".xml", ".dll")
NOT_ON_WINDOWS = re.compile(r'[:\x00-\x1f<>"|?*]|[. ]$')
WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


class InstallError(Exception):
    """A failure with its exit code."""

    code = 9


class ManifestError(InstallError):
    code = 2


class ArchiveError(InstallError):
    code = 6


class NetworkError(InstallError):
    code = 9


@dataclass(frozen=True)
class Archive:
    """One row of the manifest; `size` in bytes."""

    component: str
    version: str
    url: str
    sha256: str
    size: int
    kind: str
    place: str


@dataclass(frozen=True)
class Manifest:
    """`target` is the folder below targets/ (Linux layout), empty for the Windows layout."""

    layout: str
    target: str
    archives: tuple[Archive, ...]


def patiently(call: Callable[..., Any], *words: Any) -> Any:
    """Calls it; on Windows again and again while it is refused: a virus scanner opens what is new,
    for seconds.

    Raises:
        PermissionError: Still refused after `HELD_S` seconds.
    """
    end = time.monotonic() + HELD_S
    while True:
        try:
            return call(*words)
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > end:
                raise
            time.sleep(0.05)


# --- the manifest ---

_ROW = {
    "component": r"[a-z][a-z0-9_]{0,63}",
    "version": r"[0-9]+(\.[0-9]+)*",
    "url": r"https?://[^\s/]+/\S+",
    "sha256": r"[0-9a-f]{64}",
    "kind": r"tar\.xz|zip",
    "place": r"toolkit|nvtx|visual-studio",
}


def read_manifest(path: Path) -> Manifest:
    """Reads and checks the manifest; a message never repeats a URL, since it may carry
    credentials.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ManifestError(
            f"{path}: not a manifest of schema {SCHEMA}; use the installer of the same farm version"
        )
    layout = data.get("layout")
    target = data.get("target", "")
    rows = data.get("archives")
    if layout not in ("linux", "windows"):
        raise ManifestError(f"{path}: layout must be linux or windows")
    if not isinstance(target, str) or not re.fullmatch(
        r"[a-z0-9_]+-linux" if layout == "linux" else "", target
    ):
        raise ManifestError(
            f"{path}: target must be like x86_64-linux for Linux, and absent for Windows"
        )
    if not isinstance(rows, list) or not rows:
        raise ManifestError(f"{path}: archives must be a list with something in it")
    archives = []
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or set(row) != {field.name for field in fields(Archive)}:
            raise ManifestError(
                f"{path}: archive {number}: needs exactly "
                f"{', '.join(f.name for f in fields(Archive))}"
            )
        for key, pattern in _ROW.items():
            if not isinstance(row[key], str) or not re.fullmatch(pattern, row[key]):
                raise ManifestError(f"{path}: archive {number}: {key} is not of the form {pattern}")
        if type(row["size"]) is not int or row["size"] <= 0:
            raise ManifestError(f"{path}: archive {number}: size must be a number of bytes above 0")
        try:
            _ = urllib.parse.urlsplit(row["url"]).port
        except ValueError:
            raise ManifestError(f"{path}: archive {number}: url cannot be opened as one") from None
        archives.append(Archive(**row))
    if len({archive.component for archive in archives}) != len(archives):
        raise ManifestError(f"{path}: a component is listed twice")
    return Manifest(layout, target, tuple(archives))


# --- download ---


def public_url(url: str) -> str:
    """The URL as it may be shown: no user, password, query or fragment."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
    )


def _request(url: str, start: int) -> urllib.request.Request:
    parts = urllib.parse.urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(
        urllib.parse.urlunsplit((parts.scheme, host, parts.path, parts.query, "")),
        headers={"User-Agent": "torch-farm-toolkit"},
    )
    if user:
        token = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        # Unredirected: a redirect to another host must not take the password along.
        request.add_unredirected_header("Authorization", f"Basic {token}")
    if start:
        request.add_header("Range", f"bytes={start}-")
    return request


def _opener() -> urllib.request.OpenerDirector:
    # Not build_opener: that one would follow a redirect to ftp:.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


class _RetryError(Exception):
    """This attempt failed, the next may not; `wait` is what the server asked for, in seconds."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


def _curl(url: str, target: Path, limit: int, *more: str) -> tuple[int, str]:
    """Runs curl once: its exit code, and the last line of what it says.

    The URL goes by its input, since every user can read a command line. The proxy is the system's:
    curl itself looks at variables alone.
    """
    parts = urllib.parse.urlsplit(url)
    settings = {"url": url, "user-agent": "torch-farm-toolkit"}
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        settings["proxy"] = proxy
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in settings.items()
    }
    config = "".join(f'{name} = "{value}"\n' for name, value in escaped.items())
    command = [str(CURL), "--config", "-", *CURL_OPTIONS, *CURL_LIMITS, *CURL_STALLED]
    command += ["--max-filesize", str(limit), *more, "--output", str(target)]
    try:
        done = subprocess.run(command, input=config.encode(), capture_output=True, check=False)
    except FileNotFoundError:
        raise InstallError(
            "curl.exe is not there: Windows 10 1803 and newer have it in System32"
        ) from None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return done.returncode, lines[-1][:300] if lines else f"curl ended with {done.returncode}"


def fetch(url: str, target: Path, limit: int) -> None:
    """One attempt at a whole file of at most `limit` bytes.

    Raises:
        OSError: It did not come, or could not be written.
        InstallError: It could not be written, as curl says.
        ArchiveError: It is larger.
    """
    too_large = ArchiveError(f"{public_url(url)}: larger than {limit >> 20} MiB")
    if CURL:
        code, message = _curl(url, target, limit)
        if code == CURL_TOO_LARGE or (code == 0 and target.stat().st_size > limit):
            raise too_large
        if code == CURL_DISK:
            raise InstallError(f"{target} cannot be written; check disk space and permissions")
        if code:
            raise OSError(message)
        return
    size = 0
    with _opener().open(_request(url, 0), timeout=TIMEOUT_S) as body, target.open("wb") as out:
        while block := body.read(CHUNK):
            size += len(block)
            if size > limit:
                raise too_large
            out.write(block)


def reach(url: str) -> str:
    """Ask a server for the first byte of a file.

    Returns:
        Why it does not come; empty if it does. A page is no file: a site that was suspended, or a
        network that wants a login, answers with one, and with status 200.
    """
    if CURL:
        with tempfile.TemporaryDirectory() as folder:
            first = Path(folder, "first")
            once = ("--range", "0-0", "--max-time", "60", "--retry", "0")
            code, message = _curl(url, first, sys.maxsize, *once)
            if code:
                return message
            beginning = first.read_bytes()[:1] if first.exists() else b""
    else:
        try:
            with _opener().open(_request(url, 0), timeout=TIMEOUT_S) as answer:
                beginning = answer.read(1)
        except OSError as error:  # urllib's errors are among them
            return str(error)
    if not beginning.strip() or beginning == b"<":
        return "it answers with a page, not with the file"
    return ""


def from_archives(url: str, sha256: str, target: Path, limit: int) -> bool:
    """Takes the file of that name from FARM_ARCHIVES; False: it is not there, or is not what is
    pinned.
    """
    own = os.environ.get("FARM_ARCHIVES", "")
    if not own:
        return False
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    is_url = own.lower().startswith(("http://", "https://"))
    place = f"{own.rstrip('/')}/{name}" if is_url else str(Path(own, name))
    shown = public_url(place) if is_url else place
    new = target.with_name(target.name + ".own")
    try:
        if is_url:
            fetch(place, new, limit)
        else:
            shutil.copyfile(place, new)
        if digest(new) == sha256:
            patiently(new.replace, target)
            say(f"{name}: from FARM_ARCHIVES, sha256 as pinned")
            return True
        say(f"{shown}: another sha256 than the pinned {sha256}; not used")
    except (ArchiveError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise  # a download would not fit either
        if is_url or Path(place).exists():
            say(f"{shown}: {error}; not used")
        else:
            say(f"{shown}: not there")
    finally:
        patiently(new.unlink, True)
    return False


def _append_by_curl(archive: Archive, part: Path, start: int) -> None:
    """`_append` by curl, which looks at the headers by itself."""
    code, message = _curl(
        archive.url, part, archive.size, *(("--continue-at", "-") if start else ())
    )
    size = part.stat().st_size if part.exists() else 0
    where = f"{archive.component}: {public_url(archive.url)}"
    status = re.search(r"returned error: (\d{3})", message)
    if code in CURL_NO_RANGE or (status and status[1] == "416"):
        part.unlink(missing_ok=True)
        raise _RetryError("the server does not continue a file")
    if code == CURL_TOO_LARGE or size > archive.size or (code == 0 and size < archive.size):
        raise ArchiveError(
            f"{where} is not {archive.size} bytes as pinned: not the same file; check the URL or "
            "mirror"
        )
    if code == CURL_DISK:
        raise InstallError(
            f"{archive.component}: {part} cannot be written; check disk space and permissions"
        )
    if (
        code == CURL_HTTP
        and status
        and status[1][0] == "4"
        and status[1] not in ("408", "425", "429")
    ):
        raise NetworkError(
            f"{where}: HTTP {status[1]}; check that the mirror has this file and that this "
            "machine may read it"
        )
    if code:
        raise _RetryError(message)
    say(f"{archive.component}: {archive.size / 1e6:.1f} MB")


def _append(archive: Archive, part: Path) -> None:
    """One attempt: continues `part` where it ends, or starts again if the server will not
    continue.
    """
    start = part.stat().st_size if part.exists() else 0
    if start == archive.size:
        return
    if start > archive.size:
        part.unlink()
        start = 0
    if CURL:
        _append_by_curl(archive, part, start)
        return
    try:
        response = _opener().open(_request(archive.url, start), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:
                part.unlink(missing_ok=True)
            elif error.code not in (408, 425, 429) and error.code < 500:
                raise NetworkError(
                    f"{archive.component}: {public_url(archive.url)}: HTTP {error.code}; "
                    "check that the mirror has this file and that this machine may read it"
                ) from None
            after = error.headers.get("Retry-After") or ""
        raise _RetryError(f"HTTP {error.code}", float(after) if after.isdigit() else 0.0) from None
    except (http.client.InvalidURL, UnicodeError):
        raise ManifestError(f"{archive.component}: its URL cannot be opened as one") from None
    except urllib.error.URLError as error:
        raise _RetryError(str(error.reason)) from None
    except (http.client.HTTPException, OSError) as error:
        raise _RetryError(type(error).__name__) from None
    with response:
        if start and response.status == 206:
            if not str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-"):
                part.unlink()
                raise _RetryError("the server continued at the wrong place")
        else:
            start = 0
        offered = response.headers.get("Content-Length") or ""
        if offered.isdigit() and int(offered) + start != archive.size:
            raise ArchiveError(
                f"{archive.component}: {public_url(archive.url)} offers {int(offered) + start} "
                "bytes, "
                f"{archive.size} are pinned: not the same file; check the URL or mirror"
            )
        with part.open("ab" if start else "wb") as out:
            _copy(archive, response, out, start)


def _copy(archive: Archive, response: IO[bytes], out: IO[bytes], start: int) -> None:
    done = start
    shown = -1
    while True:
        try:
            block = response.read(CHUNK)
        except (http.client.HTTPException, OSError) as error:
            raise _RetryError(
                f"{type(error).__name__} after {done} of {archive.size} bytes"
            ) from None
        if not block:
            break
        done += len(block)
        if done > archive.size:  # what a lying server sends beyond the size never reaches the disk
            raise ArchiveError(
                f"{archive.component}: {public_url(archive.url)} sends more than the "
                f"{archive.size} bytes that are pinned: not the same file; check the URL or mirror"
            )
        out.write(block)
        percent = 100 * done // archive.size
        if percent // 10 != shown:
            shown = percent // 10
            say(f"{archive.component}: {done / 1e6:.1f} of {archive.size / 1e6:.1f} MB, {percent}%")
    if done < archive.size:
        raise _RetryError(f"the body ended after {done} of {archive.size} bytes")


def digest(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            whole.update(block)
    return whole.hexdigest()


def _cached(archive: Archive, cache: Path) -> Path:
    return cache / f"{archive.sha256}.{archive.kind}"


def download(archive: Archive, cache: Path, wait: float) -> Path:
    """The archive in `cache`, its sha256 checked; a partial file of an earlier run is continued."""
    done = _cached(archive, cache)
    part = done.with_name(done.name + ".part")
    if done.exists():
        if digest(done) == archive.sha256:
            say(f"{archive.component}: {archive.size / 1e6:.1f} MB from the cache")
            return done
        done.unlink()
    if from_archives(archive.url, archive.sha256, done, archive.size):
        return done
    resumed = part.exists()
    while True:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                _append(archive, part)
                break
            except _RetryError as error:
                where = f"{archive.component}: {public_url(archive.url)}"
                if attempt == ATTEMPTS:
                    raise NetworkError(
                        f"{where}: {error}, {ATTEMPTS} times; check the network, or put the file "
                        "into a folder and "
                        "set FARM_ARCHIVES to it (for an image its URL: archives in ci/farm.yaml)"
                    ) from None
                pause = min(max(wait * 2 ** (attempt - 1), error.wait), MAX_WAIT_S)
                say(f"{where}: {error}; attempt {attempt + 1} of {ATTEMPTS} in {pause:.0f} s")
                time.sleep(pause)
            except ArchiveError:
                part.unlink(missing_ok=True)
                raise
        got = digest(part)
        if got == archive.sha256:
            return patiently(part.replace, done)  # type: ignore[no-any-return]
        part.unlink()
        if not resumed:
            raise ArchiveError(
                f"{archive.component}: {public_url(archive.url)}: sha256 is {got}, "
                f"expected {archive.sha256}; the file was removed; find out why before you use "
                "this source"
            )
        say(f"{archive.component}: the partial file was damaged; starting from its beginning")
        resumed = False


# --- unpack ---


@dataclass(frozen=True)
class _Member:
    """What stands in an archive; `link` is a link's target as the archive writes it."""

    name: str
    kind: str  # "dir", "file", "symlink", "hardlink"
    executable: bool = False
    body: IO[bytes] | None = None
    link: str = ""


class _BoundedReader:
    """A decompressed stream that ends at `limit` bytes and never gives much of it at once."""

    def __init__(self, raw: IO[bytes], limit: int) -> None:
        self.raw = raw
        self.limit = limit

    def tell(self) -> int:
        return self.raw.tell()

    def seek(self, offset: int) -> int:
        if offset > self.limit:
            raise ArchiveError(f"unpacks to more than {self.limit} bytes")
        return self.raw.seek(offset)

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_READ:
            raise ArchiveError(f"has a header of {size} bytes")
        if self.raw.tell() > self.limit:
            raise ArchiveError(f"unpacks to more than {self.limit} bytes")
        return self.raw.read(size)


def _tar_members(path: Path, limit: int) -> Iterator[_Member]:
    # Headers and padding count too, so the stream gets some room above the sum of the files.
    bound = limit + MAX_MEMBERS * 2048
    with lzma.open(path) as raw:
        reader: Any = _BoundedReader(raw, bound)
        with tarfile.open(fileobj=reader, mode="r:") as tar:
            for info in tar:
                if info.isreg():
                    yield _Member(info.name, "file", bool(info.mode & 0o111), tar.extractfile(info))
                elif info.isdir():
                    yield _Member(info.name, "dir")
                elif info.issym() or info.islnk():
                    yield _Member(
                        info.name, "symlink" if info.issym() else "hardlink", link=info.linkname
                    )
                else:
                    raise ArchiveError(f"{info.name!r} is a device, a pipe or the like")


def _zip_members(path: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            mode = info.external_attr >> 16
            if info.is_dir():
                yield _Member(info.filename.rstrip("/"), "dir")
            elif info.flag_bits & 1 or stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise ArchiveError(f"{info.filename!r} is encrypted, a link or the like")
            else:
                with archive.open(info) as body:
                    yield _Member(info.filename, "file", bool(mode & 0o111), body)


def _parts(name: str, windows: bool) -> tuple[str, ...]:
    """The path as parts; refuses what is absolute, climbs, or means something else on Windows."""
    parts = name.removeprefix("./").split("/")
    for part in parts:
        if part in ("", ".", "..") or "\\" in part or "\0" in part:
            raise ArchiveError(f"member {name[:200]!r} is not a safe relative path")
        if windows and (NOT_ON_WINDOWS.search(part) or WINDOWS_DEVICE.fullmatch(part)):
            raise ArchiveError(f"member {name[:200]!r} is not a name that Windows can hold")
    return tuple(parts)


class Tree:
    """The toolkit growing in the staging folder; symlinks come last, so no file is written through
    one.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root = root
        self.windows = manifest.layout == "windows"
        self.target = manifest.target
        self.files: dict[str, tuple[str, Path]] = {}  # key -> component, real path
        self.links: dict[
            tuple[str, ...], tuple[tuple[str, ...], str]
        ] = {}  # path -> target, component

    def _place(self, archive: Archive, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Where a member (top folder stripped) goes below the prefix."""
        if len(parts) == 1 and parts[0].upper().startswith("LICENSE"):
            return ("licenses", archive.component, parts[0])
        if archive.place == "nvtx" and parts[0] != "NvToolsExt":
            return ("NvToolsExt", *parts)
        if archive.place == "visual-studio":
            # Its depth differs between releases; where the installer puts it does not.
            if MSBUILD in parts:
                parts = parts[parts.index(MSBUILD) :]
            return (*VISUAL_STUDIO.split("/"), *parts)
        if self.target and parts[0] in ("include", "lib", "lib64"):
            # The archives have lib/, but nvcc.profile points at targets/<target>/{include,lib} and
            # lib64.
            return ("targets", self.target, parts[0].removesuffix("64"), *parts[1:])
        return parts

    def _key(self, parts: tuple[str, ...]) -> str:
        path = "/".join(parts)
        return path.lower() if self.windows else path

    def unpack(self, archive: Archive, path: Path) -> None:
        """Adds one archive; raises ArchiveError where it is damaged, unsafe or does not fit the
        others.
        """
        limit = EXPANSION * archive.size + EXPANSION_FLOOR
        if archive.kind == "zip":
            members = _zip_members(path)
        else:
            members = _tar_members(path, limit)
        where = f"{archive.component}: {public_url(archive.url)}"
        try:
            self._unpack(archive, members, limit)
        except ArchiveError as error:
            raise ArchiveError(f"{where}: {error}") from None
        except (
            tarfile.TarError,
            zipfile.BadZipFile,
            lzma.LZMAError,
            zlib.error,
            EOFError,
        ) as error:
            raise ArchiveError(f"{where}: damaged: {error}") from None
        except (
            ValueError,
            RuntimeError,
            OverflowError,
        ) as error:  # how those readers fail on nonsense
            raise ArchiveError(f"{where}: cannot be read: {error}") from None

    def _unpack(self, archive: Archive, members: Iterator[_Member], limit: int) -> None:
        top = ""
        left = limit
        mine = 0
        for count, member in enumerate(members):
            if count >= MAX_MEMBERS:
                raise ArchiveError(f"has more than {MAX_MEMBERS} members")
            first, *rest = _parts(member.name, self.windows)
            top = top or first
            if first != top or (not rest and member.kind != "dir"):
                raise ArchiveError(
                    f"member {member.name[:200]!r} is not below the one top folder {top!r}"
                )
            if member.kind == "dir":
                continue
            place = self._place(archive, tuple(rest))
            if member.kind == "symlink":
                self._symlink(archive, tuple(rest), place, member.link)
                continue
            if member.body is not None:
                left -= self._file(archive, place, member.body, member.executable, left)
            else:
                left -= self._hardlink(archive, place, member.link, top, left)
            mine += 1
        if not mine:
            raise ArchiveError("holds no file")
        if archive.place == "visual-studio" and not (self.root / VISUAL_STUDIO / MSBUILD).is_dir():
            raise ArchiveError(f"holds no {MSBUILD} folder")

    def _file(
        self, archive: Archive, place: tuple[str, ...], body: IO[bytes], executable: bool, left: int
    ) -> int:
        incoming = self.root.with_name("incoming")
        size = 0
        with incoming.open("wb") as out:
            for block in iter(lambda: body.read(CHUNK), b""):
                size += len(block)
                if size > left:
                    raise ArchiveError(f"unpacks to more than {EXPANSION} times its size")
                out.write(block)
        incoming.chmod(0o755 if executable else 0o644)
        key = self._key(place)
        final = self.root.joinpath(*place)
        if key in self.files:
            owner, there = self.files[key]
            if not filecmp.cmp(incoming, there, shallow=False):
                raise ArchiveError(f"{'/'.join(place)} is in {owner} too, with other bytes")
            return size
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ArchiveError(f"{'/'.join(place)} is below what is a file elsewhere") from None
        if final.is_dir():
            raise ArchiveError(f"{'/'.join(place)} is a file here and a folder elsewhere")
        patiently(incoming.replace, final)
        self.files[key] = (archive.component, final)
        return size

    def _hardlink(
        self, archive: Archive, place: tuple[str, ...], link: str, top: str, left: int
    ) -> int:
        first, *rest = _parts(link, self.windows)
        if first == top and rest:
            source = self.files.get(self._key(self._place(archive, tuple(rest))))
        else:
            source = None
        if source is None or source[0] != archive.component:
            raise ArchiveError(
                f"hard link to {link[:200]!r}, which is not a file before it in the archive"
            )
        with source[1].open("rb") as body:
            return self._file(archive, place, body, os.access(source[1], os.X_OK), left)

    def _symlink(
        self, archive: Archive, at: tuple[str, ...], place: tuple[str, ...], link: str
    ) -> None:
        if self.windows:
            raise ArchiveError(f"{'/'.join(at)} is a symlink, in a toolkit for Windows")
        where = list(at[:-1])
        steps = [step for step in link.rstrip("/").split("/") if step != "."]
        while steps and steps[0] == ".." and where:
            where.pop()
            del steps[0]
        if not steps:
            raise ArchiveError(
                f"symlink {'/'.join(at)} -> {link[:200]!r} leads to a folder above it"
            )
        try:  # what is left must go down only: an absolute path starts with "", a climb with ".."
            target = self._place(archive, (*where, *_parts("/".join(steps), self.windows)))
        except ArchiveError:
            raise ArchiveError(
                f"symlink {'/'.join(at)} -> {link[:200]!r} leads outside the archive"
            ) from None
        if target == place:
            return  # lib64 -> lib: one folder here
        if self.links.setdefault(place, (target, archive.component))[0] != target:
            raise ArchiveError(
                f"{'/'.join(place)} is a symlink in {self.links[place][1]} too, to somewhere else"
            )

    def finish(self) -> None:
        """Makes the symlinks, those of the runfile layout included."""
        if self.target:
            for name, real in (("include", "include"), ("lib64", "lib")):
                self.root.joinpath("targets", self.target, real).mkdir(parents=True, exist_ok=True)
                self.links[(name,)] = (("targets", self.target, real), "the layout")
        for place, (target, component) in self.links.items():
            # With no link on the way, the path means what it says and cannot lead out.
            for path in (place, target):
                if any(path[:depth] in self.links for depth in range(1, len(path))):
                    raise ArchiveError(
                        f"{component}: {'/'.join(path)} leads through another symlink"
                    )
            at = self.root.joinpath(*place)
            try:
                at.parent.mkdir(parents=True, exist_ok=True)
                at.symlink_to(os.path.relpath("/".join(target), "/".join(place[:-1]) or "."))
            except (FileExistsError, NotADirectoryError):
                raise ArchiveError(
                    f"{component}: {'/'.join(place)} is a symlink here and a file elsewhere"
                ) from None


# --- merge ---


def _same(new: Path, old: Path) -> bool:
    if new.is_symlink() or old.is_symlink():
        return new.is_symlink() and old.is_symlink() and new.readlink() == old.readlink()
    return old.is_file() and filecmp.cmp(new, old, shallow=False)


def merge(tree: Path, prefix: Path) -> None:
    """Moves the tree into the prefix: all of it or, on any failure, nothing. The receipt goes
    last.
    """
    if not prefix.exists():
        prefix.parent.mkdir(parents=True, exist_ok=True)
        patiently(tree.replace, prefix)
        return
    moves = []
    for folder, folders, names in os.walk(tree):
        for name in [*names, *(f for f in folders if Path(folder, f).is_symlink())]:
            new = Path(folder, name)
            old = prefix / new.relative_to(tree)
            if new == tree / RECEIPT:
                continue
            for parent in list(old.parents)[: len(new.relative_to(tree).parts) - 1]:
                if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
                    raise ArchiveError(f"{parent} exists and is no folder; choose an empty prefix")
            if not os.path.lexists(old):
                moves.append((new, old))
            elif not _same(new, old):
                raise ArchiveError(f"{old} exists with other content; choose an empty prefix")
    moved: list[Path] = []
    made: list[Path] = []
    receipt = prefix / (RECEIPT + ".new")
    try:
        for new, old in moves:
            for parent in [p for p in reversed(old.parents) if not p.exists()]:
                parent.mkdir()
                made.append(parent)
            moved.append(old)
            patiently(shutil.move, new, old)  # the prefix may be another file system
        shutil.copy(tree / RECEIPT, receipt)
        patiently(receipt.replace, prefix / RECEIPT)
    except BaseException:
        for path in moved:
            patiently(path.unlink, True)
        for path in reversed(made):
            path.rmdir()
        receipt.unlink(missing_ok=True)
        raise


def read_receipt(prefix: Path) -> dict[str, str]:
    """What is installed: component -> sha256 of its archive."""
    path = prefix / RECEIPT
    if not path.exists():
        return {}
    try:
        installed = json.loads(path.read_text(encoding="utf-8"))["archives"]
        return {str(name): str(digest) for name, digest in installed.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ManifestError(f"{path}: damaged; remove the prefix and install again") from None


def copy_msbuild(prefix: Path, destination: Path) -> None:
    """Puts the MSBuild rules where Visual Studio looks:
    <VS>/MSBuild/Microsoft/VC/v160/BuildCustomizations.

    Only its MSBuild generator needs them; Ninja does not.
    """
    source = prefix / VISUAL_STUDIO / MSBUILD
    found = sorted(p for p in source.glob("*") if p.suffix.lower() in MSBUILD_SUFFIXES)
    if not found:
        raise ManifestError(
            f"{source}: nothing for --msbuild-dir; add visual_studio_integration to the components"
        )
    destination.mkdir(parents=True, exist_ok=True)
    for path in found:
        new = destination / (path.name + ".new")
        shutil.copy(path, new)
        new.replace(destination / path.name)


def install(manifest: Manifest, prefix: Path, cache: Path | None, keep: bool, wait: float) -> None:
    """Carries out the manifest; see the top of this file."""
    if prefix.exists() and not prefix.is_dir():
        raise ManifestError(f"{prefix}: exists and is no folder")
    receipt = read_receipt(prefix)
    for archive in manifest.archives:
        if receipt.get(archive.component, archive.sha256) != archive.sha256:
            raise ManifestError(
                f"{prefix}: holds another {archive.component}; one prefix holds one toolkit, "
                "choose another"
            )
    todo = [archive for archive in manifest.archives if archive.component not in receipt]
    if not todo:
        say(f"{prefix}: all {len(manifest.archives)} components are there already")
        return
    prefix.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{prefix.name}-", dir=prefix.parent))
    try:
        root = stage / "tree"
        root.mkdir()
        if cache is not None:
            cache.mkdir(parents=True, exist_ok=True)
        tree = Tree(root, manifest)
        for archive in todo:
            path = download(archive, cache or stage, wait)
            say(f"{archive.component}: sha256 as pinned; unpacking")
            tree.unpack(archive, path)
            if cache is None:
                path.unlink()
        tree.finish()
        receipt.update({archive.component: archive.sha256 for archive in todo})
        text = json.dumps({"schema": SCHEMA, "archives": receipt}, indent=1, sort_keys=True)
        (root / RECEIPT).write_text(text + "\n", encoding="utf-8")
        merge(root, prefix)
        if cache is not None and not keep:
            for archive in todo:
                patiently(_cached(archive, cache).unlink, True)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    say(f"{prefix}: {len(todo)} components, {len(tree.files)} files")


def say(line: str) -> None:
    print(line, flush=True)


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(143)  # an exception, so that the staging folder goes


def main(argv: list[str] | None = None) -> int:
    """Parses the arguments, installs, and turns a failure into one line and an exit code."""
    parser = argparse.ArgumentParser(
        description="Installs a CUDA toolkit from NVIDIA's redist archives."
    )
    parser.add_argument("manifest", type=Path)
    parser.add_argument(
        "--prefix",
        type=Path,
        required=True,
        help="the toolkit's root, such as /usr/local/cuda-11.8",
    )
    parser.add_argument(
        "--cache", type=Path, help="where archives are looked for and partial ones are kept"
    )
    parser.add_argument(
        "--keep-archives", action="store_true", help="leave the archives in --cache afterwards"
    )
    parser.add_argument(
        "--msbuild-dir", type=Path, help="Visual Studio's BuildCustomizations folder (Windows)"
    )
    parser.add_argument(
        "--retry-wait", type=float, default=1.0, help="seconds before the second try; then doubled"
    )
    arguments = parser.parse_args(argv)
    if arguments.keep_archives and arguments.cache is None:
        parser.error("--keep-archives needs --cache")
    signal.signal(signal.SIGTERM, _terminated)
    prefix = arguments.prefix.resolve()
    try:
        manifest = read_manifest(arguments.manifest)
        install(manifest, prefix, arguments.cache, arguments.keep_archives, arguments.retry_wait)
        if arguments.msbuild_dir is not None:
            copy_msbuild(prefix, arguments.msbuild_dir)
    except InstallError as error:
        print(f"install_toolkit: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"install_toolkit: {error}; check disk space and permissions", file=sys.stderr)
        return 9
    except KeyboardInterrupt:
        print("install_toolkit: interrupted; the prefix is as it was", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
