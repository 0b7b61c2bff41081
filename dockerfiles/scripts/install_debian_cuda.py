"""Installs chosen files of the distribution's CUDA packages: the compiler and libraries that a
recipe names.

Usage: install_debian_cuda.py MANIFEST.json. Runs as root in an image build, after `apt-get update`.

The packages' own dependencies would bring 1.6 GB to download and 7.9 GB to disk; a toolkit needs a
tenth of it. apt names each package's address, size and signed sha256. A part with a pinned `head`
(length, sha256) is fetched only that far when the version is the pinned one and the mirror allows
ranges: nvidia-cuda-dev begins with its headers and goes on with 770 MB of static libraries.
Everything else is fetched whole and checked against apt's hash. Exit codes: 0 done, 2 bad manifest,
9 a download failed.
"""

import contextlib
import fnmatch
import hashlib
import http.client
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

SCHEMA = 1
MAGIC = b"!<arch>\n"
HEADER = 60  # bytes of an ar member header


class FailedError(Exception):
    pass


def uris(package: str) -> tuple[str, str, int]:
    """(address, file name, size in bytes) of the package's candidate version, as apt knows it."""
    out = subprocess.run(
        ["apt-get", "download", "--print-uris", package],
        capture_output=True,
        text=True,
        check=False,
    )
    match = re.search(r"^'([^']+)' (\S+) (\d+)", out.stdout, re.MULTILINE)
    if not match:
        raise FailedError(f"apt knows no package {package}: {out.stderr.strip()[-300:]}")
    return match[1], match[2], int(match[3])


def version_of(file_name: str) -> str:
    """11.8.89~11.8.0-5 of `libx_11.8.89~11.8.0-5_amd64.deb` (apt may escape ':' and '~')."""
    parts = file_name.split("_")
    if len(parts) != 3:
        raise FailedError(f"{file_name!r} is no package's file name")
    return urllib.parse.unquote(parts[1])


def fetch_head(address: str, head: dict[str, Any]) -> Optional[bytes]:
    """The first bytes of a package when they are the pinned ones, else None."""
    request = urllib.request.Request(address, headers={"Range": f"bytes=0-{head['bytes'] - 1}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            data: bytes = answer.read(head["bytes"])
    except (
        OSError,
        ValueError,
        http.client.HTTPException,
    ) as error:  # apt may also name a cdrom: or mirror: address
        print(f"  the beginning alone cannot be had ({error}); fetching the whole package")
        return None
    if hashlib.sha256(data).hexdigest() != head["sha256"]:
        print("  the beginning is not the pinned one; fetching the whole package")
        return None
    return data


def fetch_whole(package: str, folder: str) -> bytes:
    """The package file, downloaded and checked by apt."""
    result = subprocess.run(["apt-get", "download", "-q=0", package], cwd=folder, check=False)
    files = list(Path(folder).glob(package + "_*"))
    if result.returncode or len(files) != 1:
        raise FailedError(f"apt-get download {package} failed (exit code {result.returncode})")
    return files[0].read_bytes()


def data_stream(deb: bytes) -> bytes:
    """The unpacked bytes of data.tar.* as far as they are there."""
    if not deb.startswith(MAGIC):
        raise FailedError("no Debian package: it does not begin as one")
    offset = len(MAGIC)
    while offset + HEADER <= len(deb):
        name = deb[offset : offset + 16].decode("ascii", "replace").strip()
        length = deb[offset + 48 : offset + 58].strip()
        if not length.isdigit():
            raise FailedError(f"no Debian package: its member {name!r} has no length")
        size = int(length)
        body = deb[offset + HEADER : offset + HEADER + size]
        if name.startswith("data.tar"):
            if name.endswith(".xz"):
                return lzma.LZMADecompressor().decompress(body)
            raise FailedError(f"{name}: a compression that this installer does not know")
        offset += HEADER + size + size % 2
    raise FailedError("no data.tar in the package")


def unpack(deb: bytes, patterns: list[str], root: str, complete: bool) -> list[str]:
    """Writes the members that match; returns their names. A truncated package ends where its bytes
    end.
    """
    written = []
    under_way = None
    try:
        with tarfile.open(fileobj=io.BytesIO(data_stream(deb)), mode="r|") as archive:
            # Python 3.12 and 3.13 warn without one, 3.14 has a stricter one, old ones know none.
            archive.extraction_filter = getattr(tarfile, "tar_filter", None)
            for member in archive:
                name = member.name[2:] if member.name.startswith("./") else member.name
                if member.isdir() or not any(fnmatch.fnmatchcase(name, p) for p in patterns):
                    continue
                if name.startswith("/") or ".." in name.split("/"):
                    raise FailedError(f"member {member.name!r} points outside")
                member.name = name
                under_way = Path(root, name)
                archive.extract(member, root)
                under_way = None
                written.append(name)
    except tarfile.ReadError:
        if complete:
            raise
        if under_way:  # half a header would be found by a compiler, and believed
            under_way.unlink(missing_ok=True)
    return written


def link(root: str, written: list[str], name: str) -> Path:
    """Makes the development symlink libX.so beside the library that it names; returns their
    folder.
    """
    stem = name + "."
    found = sorted(w for w in written if w.rsplit("/", 1)[-1].startswith(stem))
    if not found:
        raise FailedError(f"nothing to point {name} at in {written}")
    target = min(found, key=len)
    path = Path(root, target).parent / name
    if not path.is_symlink():
        path.symlink_to(Path(target).name)
    return path.parent


def stub(root: str, header: str, soname: str) -> None:
    """Makes stubs/libX.so with an empty function for every name of the driver's interface in the
    header.
    """
    text = Path(root, header).read_text(encoding="utf-8", errors="replace")
    names = sorted(set(re.findall(r"\bcu[A-Z][A-Za-z0-9_]*", text)))
    if not names:
        raise FailedError(f"{header} names no function")
    folder = Path(root, "usr/lib/x86_64-linux-gnu/stubs")
    folder.mkdir(parents=True, exist_ok=True)
    code = "".join(f"void {name}(void) {{}}\n" for name in names)
    library = folder / soname.partition(".so")[0]
    compilers = sorted(path for path in Path("/usr/bin").glob("gcc-*") if path.name[4:].isdigit())
    if not compilers:
        raise FailedError(f"{soname} cannot be made: there is no /usr/bin/gcc-<version>")
    command = [
        str(compilers[0]),
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        f"-Wl,-soname,{soname}",
        "-o",
        f"{library}.so",
    ]
    done = subprocess.run(command, input=code, text=True, check=False, stderr=subprocess.PIPE)
    if done.returncode:
        raise FailedError(f"{soname} cannot be made: {done.stderr[-300:]}")
    print(f"{library}.so: {len(names)} empty functions")


def linked(part: dict[str, Any], root: str) -> None:
    """What was taken out of a wheel is in its place; its library gets the link to link with."""
    written = []
    for pattern, folder in part["members"].items():
        found = sorted(Path(root, folder).glob(pattern.rpartition("/")[2]))
        if not found:
            raise FailedError(f"nothing of {part['wheel']} that matches {pattern} is in {folder}")
        written += [str(path.relative_to(root)) for path in found]
    print(f"{part['wheel']}: {len(written)} files")
    link(root, written, part["link"])


def install(part: dict[str, Any], root: str) -> None:
    if "wheel" in part:
        linked(part, root)
        return
    package = part["package"]
    address, file_name, size = uris(package)
    version = version_of(file_name)
    head = part.get("head")
    deb = None
    if head and head["version"] == version:
        print(
            f"{package} {version}: the first {head['bytes'] / 1e6:.1f} of {size / 1e6:.1f} MB",
            flush=True,
        )
        deb = fetch_head(address, head)
    complete = deb is None
    if deb is None:
        print(f"{package} {version}: {size / 1e6:.1f} MB", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)  # apt downloads as an unprivileged user
            deb = fetch_whole(package, folder)
    written = unpack(deb, part["members"], root, complete)
    for pattern in part["members"]:
        if not fnmatch.filter(written, pattern):
            raise FailedError(f"{package} {version} holds nothing that matches {pattern}")
    if part.get("link"):
        folder_of_library = link(root, written, part["link"])
        if part.get("empty_archive"):
            (folder_of_library / part["empty_archive"]).write_bytes(MAGIC)
        if part.get("link_script"):
            shared = part["link"].removeprefix("lib").removesuffix(".so")
            (folder_of_library / part["link_script"]).write_text(
                f"INPUT ( -l{shared} )\n", encoding="utf-8"
            )
    if part.get("stub"):
        stub(root, written[0], part["stub"])


@contextlib.contextmanager
def packages_of(suite: Optional[str]) -> Iterator[None]:
    """Lets apt see the packages of another release while they are taken: CUDA's need nothing of
    theirs.
    """
    if suite is None:
        yield
        return
    mirror = first_mirror(Path("/etc/apt/sources.list").read_text(encoding="utf-8"))
    added = Path("/etc/apt/sources.list.d/farm-toolkit.list")
    added.write_text(f"deb {mirror} {suite} main contrib non-free\n", encoding="utf-8")
    preferred = Path("/etc/apt/preferences.d/farm-toolkit")
    preferred.write_text(
        f"Package: *\nPin: release n={suite}\nPin-Priority: 990\n", encoding="utf-8"
    )
    if subprocess.run(["apt-get", "update", "-q=0"], check=False).returncode:
        raise FailedError(f"apt cannot read {suite} of {mirror}")
    try:
        yield
    finally:
        added.unlink()
        preferred.unlink()


def first_mirror(text: str) -> str:
    """The address of the first line of a sources.list."""
    match = re.search(r"^deb (?:\[[^]]*\] )?(\S+) ", text, re.MULTILINE)
    if not match:
        raise FailedError("/etc/apt/sources.list names no mirror")
    return match[1]


def main() -> int:
    try:
        manifest = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        schema = manifest.get("schema")
        parts = manifest["parts"]
        root = manifest.get("root", "/")
    except (IndexError, OSError, ValueError, AttributeError, KeyError) as error:
        print(f"install_debian_cuda: no manifest: {error!r}", file=sys.stderr)
        return 2
    if schema != SCHEMA:
        print(
            f"install_debian_cuda: {sys.argv[1]}: expected schema {SCHEMA}, not {schema!r}",
            file=sys.stderr,
        )
        return 2
    try:
        with packages_of(manifest.get("suite")):
            for part in parts:
                install(part, root)
    except (FailedError, OSError, lzma.LZMAError, tarfile.TarError) as error:
        print(f"install_debian_cuda: {error}", file=sys.stderr)
        return 9
    subprocess.run(["ldconfig"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
