"""Installs chosen files of the distribution's CUDA packages: the compiler and libraries that a recipe names.

Usage: install_debian_cuda.py MANIFEST.json. Runs as root in an image build, after `apt-get update`.

The packages' own dependencies would bring 1.6 GB to download and 7.9 GB to disk; a toolkit needs a tenth of it.
apt names each package's address, size and signed sha256. A part with a pinned `head` (length, sha256) is
fetched only that far when the version is the pinned one and the mirror allows ranges: nvidia-cuda-dev begins
with its headers and goes on with 770 MB of static libraries. Everything else is fetched whole and checked
against apt's hash. Exit codes: 0 done, 2 bad manifest, 9 a download failed.
"""

import fnmatch
import hashlib
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

SCHEMA = 1
PASS = 60  # bytes of an ar member header


class Failed(Exception):
    pass


def uris(package):
    """(address, file name, size, sha256 or None) of the package's candidate version, as apt knows it."""
    out = subprocess.run(
        ["apt-get", "download", "--print-uris", package], capture_output=True, text=True, check=False
    )
    match = re.search(r"^'([^']+)' (\S+) (\d+)(?: SHA256:([0-9a-f]{64}))?$", out.stdout, re.MULTILINE)
    if not match:
        raise Failed(f"apt knows no package {package}: {out.stderr.strip()[-300:]}")
    return match[1], match[2], int(match[3]), match[4]


def version_of(file_name):
    """11.8.89~11.8.0-5 of `libx_11.8.89~11.8.0-5_amd64.deb` (apt may escape ':' and '~')."""
    return urllib.request.unquote(file_name.split("_")[1])


def fetch_head(address, head):
    """The first bytes of a package when they are the pinned ones, else None."""
    request = urllib.request.Request(address, headers={"Range": "bytes=0-%d" % (head["bytes"] - 1)})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            data = answer.read(head["bytes"])
    except OSError as error:
        print(f"  the beginning alone cannot be had ({error}); fetching the whole package")
        return None
    if hashlib.sha256(data).hexdigest() != head["sha256"]:
        print("  the beginning is not the pinned one; fetching the whole package")
        return None
    return data


def fetch_whole(package, folder):
    """The package file, downloaded and checked by apt."""
    result = subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=False)
    files = [f for f in os.listdir(folder) if f.startswith(package + "_")]
    if result.returncode or len(files) != 1:
        raise Failed(f"apt-get download {package} failed (exit code {result.returncode})")
    return Path(folder, files[0]).read_bytes()


def data_stream(deb):
    """The unpacked bytes of data.tar.* as far as they are there."""
    offset = 8
    while offset + PASS <= len(deb):
        name = deb[offset : offset + 16].decode("ascii").strip()
        size = int(deb[offset + 48 : offset + 58])
        body = deb[offset + PASS : offset + PASS + size]
        if name.startswith("data.tar"):
            if name.endswith(".xz"):
                return lzma.LZMADecompressor().decompress(body)
            raise Failed(f"{name}: a compression that this installer does not know")
        offset += PASS + size + size % 2
    raise Failed("no data.tar in the package")


def unpack(deb, patterns, root, complete):
    """Writes the members that match; returns their names. A truncated package ends where its bytes end."""
    written = []
    archive = tarfile.open(fileobj=io.BytesIO(data_stream(deb)), mode="r|")
    try:
        for member in archive:
            name = member.name.lstrip("./")
            if member.isdir() or not any(fnmatch.fnmatchcase(name, p) for p in patterns):
                continue
            if ".." in name.split("/"):
                raise Failed(f"member {member.name!r} points outside")
            member.name = name
            archive.extract(member, root)
            written.append(name)
    except tarfile.ReadError:
        if complete:
            raise
    return written


def link(root, written, name):
    """Makes the development symlink libX.so beside the library that it names."""
    stem = name + "."
    found = sorted(w for w in written if w.rsplit("/", 1)[-1].startswith(stem))
    if not found:
        raise Failed(f"nothing to point {name} at in {written}")
    target = min(found, key=len)
    path = Path(root, target).parent / name
    if not path.is_symlink():
        path.symlink_to(Path(target).name)


def install(part, root):
    package = part["package"]
    address, file_name, size, _ = uris(package)
    version, head, deb = version_of(file_name), part.get("head"), None
    if head and head["version"] == version:
        print(f"{package} {version}: the first {head['bytes'] / 1e6:.1f} of {size / 1e6:.1f} MB", flush=True)
        deb = fetch_head(address, head)
    complete = deb is None
    if deb is None:
        print(f"{package} {version}: {size / 1e6:.1f} MB", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            deb = fetch_whole(package, folder)
    written = unpack(deb, part["members"], root, complete)
    for pattern in part["members"]:
        if not fnmatch.filter(written, pattern):
            raise Failed(f"{package} {version} holds nothing that matches {pattern}")
    if part.get("link"):
        link(root, written, part["link"])


def main():
    manifest = json.loads(Path(sys.argv[1]).read_text())
    if manifest.get("schema") != SCHEMA:
        print(f"{sys.argv[1]}: expected schema {SCHEMA}", file=sys.stderr)
        return 2
    try:
        for part in manifest["parts"]:
            install(part, manifest.get("root", "/"))
    except (Failed, OSError, lzma.LZMAError, tarfile.TarError) as error:
        print(f"install_debian_cuda: {error}", file=sys.stderr)
        return 9
    subprocess.run(["ldconfig"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
