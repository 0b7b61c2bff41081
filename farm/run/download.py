"""What builds need from elsewhere, fetched once a host and verified each time that it is used.

`<cache>/<key>.tar` is a source, whatever it is compressed with; `<key>` holds the commit or hash.
Wheels that a toolkit takes something from are kept beside them.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urljoin

import requests
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from farm.base import outputs
from farm.base.errors import BuildFailedError, FarmError, InfrastructureError
from farm.base.hashes import sha256_of
from farm.base.heartbeat import Heartbeat, megabytes
from farm.base.locks import retry_while_open
from farm.base.safe_files import read_small
from farm.base.temporary import temporary_folder
from farm.base.text import duration, log_line, nearest, short
from farm.plan.file import SourcePlan

Line = Callable[[str], None]


def packed_clone(source: SourcePlan, cache: Path, line: Line) -> Path:
    """One tar a commit, with its submodules, and its own hash beside it; BuildFailedError: no such
    tag or commit.
    """
    assert source.commit is not None
    packed = cache / f"{source.commit}.tar"
    marker = packed.with_suffix(".sha256")
    # The commit names the content, not the bytes of a tar: only its own hash shows that the cache
    # is damaged.
    if (
        packed.exists()
        and marker.exists()
        and marker.read_text(encoding="ascii") == sha256_of(packed)
    ):
        return packed
    with temporary_folder("clone-", cache) as folder, outputs.writing(folder):
        tree = folder / "tree"
        _clone(source, tree, line)
        part = folder / "packed.tar"
        with tarfile.open(part, "w") as archive:
            archive.add(tree, arcname="source")
        # The hash before the file: killed between the two, they differ, and the next call clones
        # again.
        marker.write_text(sha256_of(part), encoding="ascii")
        retry_while_open(part.replace, packed)
    return packed


def _clone(source: SourcePlan, tree: Path, line: Line) -> None:
    url = str(source.url)
    tag = str(source.tag)
    command = ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, "--recurse-submodules"]
    command += ["--shallow-submodules", "--", url, str(tree)]
    line("+ " + " ".join(command))
    # A farm has no one to type a password; what git says is read below.
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment
        )
    except FileNotFoundError as error:
        raise InfrastructureError(
            f"{url} cannot be fetched: there is no git here", hint="install git"
        ) from error
    if result.returncode:
        tail = "\n".join(log_line(text) for text in result.stderr.splitlines()[-5:])
        if "not found in upstream" in result.stderr:
            raise BuildFailedError(
                f"{url} has no tag {tag}:\n{tail}", hint="correct the tag in the recipe"
            )
        if "transport 'file' not allowed" in result.stderr:
            raise BuildFailedError(
                f"git clone of {url} at {tag} failed: a submodule is a folder of this "
                f"machine:\n{tail}",
                hint="git takes such a submodule only if it is told to: git config --global "
                "protocol.file.allow always",
            )
        raise InfrastructureError(
            f"git clone of {url} at {tag} failed:\n{tail}", hint="is the host reachable?"
        )
    command = ["git", "-C", str(tree), "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    # A tag can be moved; the commit is what the plan means.
    if head != source.commit:
        raise BuildFailedError(
            f"{url}: tag {tag} is commit {head}, the plan says {source.commit}",
            hint="if upstream moved the tag on purpose, change `commit` of the recipe, or the "
            "catalogue's of PyTorch",
        )


TIMEOUT_S = 60
MAX_ARCHIVE = 4 << 30
MAX_PAGE = 64 << 20


def fetch(source: SourcePlan, cache: Path, *, mirror: str | None, line: Line) -> Path:
    """The file of a source in the cache, fetched when it is not there; see `gather` for what it
    raises.
    """
    if source.kind == "git":
        return packed_clone(source, cache, line)
    assert source.sha256 is not None
    suffix = {"wheel": "whl", "debian-package": "deb"}.get(source.kind, "tar")
    path = cache / f"{source.sha256}.{suffix}"
    if path.exists() and sha256_of(path) == source.sha256:
        return path
    address = _address(source, mirror)
    line(f"+ fetch {address}")
    _download(address, path, source.sha256, line)
    return path


def _address(source: SourcePlan, mirror: str | None) -> str:
    if source.kind == "archive":
        return str(source.url)
    if source.kind.startswith("debian-"):
        name = str(source.package)
        if name.startswith("lib"):
            initial = name[:4]
        else:
            initial = name[0]
        root = (mirror or apt_mirror()).rstrip("/")
        return f"{root}/pool/{source.section}/{initial}/{name}/{source.file}"
    return index_address(str(source.package), str(source.file), source.url)


def apt_mirror() -> str:
    """Where apt gets Debian's packages on this machine; InfrastructureError: there is no such
    mirror over HTTP.
    """
    # apt itself says what its lists of sources come to, in whichever of their two formats they are
    # written.
    command = ["apt-get", "indextargets", "--format", "$(SITE) $(ORIGIN)", "Created-By: Packages"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        text = ""
    for word in text.split("\n"):
        site, _, origin = word.partition(" ")
        if origin == "Debian" and site.startswith("http"):
            return site
    raise InfrastructureError(
        "no mirror of Debian is known here", hint="name one: debian_mirror in ci/farm.yaml"
    )


def index_address(package: str, file: str, index: str | None = None) -> str:
    """Where an index (None: the one that pip is set to) has a file; BuildFailedError: it has no
    such file.
    """
    page, addresses = _index_page(package, index)
    plain = [address.partition("#")[0] for address, _ in addresses]
    by_name = {unquote(address.rpartition("/")[2]): address for address in plain}
    if file in by_name:
        return by_name[file]
    near = nearest(file, list(by_name)) or list(by_name)[-3:]
    raise BuildFailedError(
        f"{index or 'the Python index'} has no {file}",
        hint=f"correct the recipe; {page} has {', '.join(map(short, near)) or 'no files'}",
    )


def index_files(package: str, python: str) -> dict[str, str]:
    """The files of a project for a Python (`3.11`) on the index that pip is set to, with their
    sha256 or nothing.
    """
    files = {}
    for address, requires_python in _index_page(package)[1]:
        with contextlib.suppress(InvalidSpecifier):
            if SpecifierSet(requires_python).contains(python):
                files[unquote(address.partition("#")[0].rpartition("/")[2])] = address.partition(
                    "#sha256="
                )[2]
    return files


def _index_page(package: str, index: str | None = None) -> tuple[str, list[tuple[str, str]]]:
    """The page of a project, and the address of each file with the Pythons that it is for."""
    page = f"{(index or pip_index()).rstrip('/')}/{canonicalize_name(package)}/"
    text = _get(page, MAX_PAGE).decode("utf-8", "replace")
    pythons = re.compile(r'data-requires-python="([^"]*)"')
    return page, [
        (
            urljoin(page, unescape(match[1])),
            unescape(answer[1]) if (answer := pythons.search(match[0])) else "",
        )
        for match in re.finditer(r'<a\b[^>]*?href="([^"]+)"[^>]*>', text)
    ]


def pip_index() -> str:
    """Pip's index: its setting, else its default, which only pip itself knows."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    set_to: dict[str, str] = dict(
        re.findall(r"^(global|:env:|user|site)\.index-url='([^']+)'", settings, re.MULTILINE)
    )
    if set_to:
        # The environment counts most, and pip before 25 prints it first.
        return set_to.get(":env:") or list(set_to.values())[-1]
    code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(
            "pip's index is not known: there is no pip here", hint="set PIP_INDEX_URL"
        )
    return done.stdout.strip()


def _get(address: str, limit: int) -> bytes:
    if address.startswith("file://"):  # an index in a folder, as pip reads it
        file = Path(_file_of(address), "index.html")
        try:
            return read_small(file, limit)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and file.parents[1].is_dir():
                raise BuildFailedError(f"{file} is not there", hint=_CORRECT) from error
            raise InfrastructureError(
                f"{file}: {error.strerror}", hint="is the index there?"
            ) from error
    try:
        with requests.get(address, timeout=TIMEOUT_S, stream=True) as answer:
            answer.raise_for_status()
            data = bytearray()
            for piece in answer.iter_content(1 << 20):
                data += piece
                if len(data) > limit:
                    raise InfrastructureError(f"{address}: larger than {limit >> 20} MiB")
            return bytes(data)
    except requests.exceptions.RequestException as error:
        raise _not_fetched(address, error) from error


CHECK_HASH = "its sha256 is that of the plan: check that the recipe names the right file"
_CORRECT = "correct the name or the version in the recipe, or name a mirror that still has it"


def _not_fetched(address: str, error: requests.exceptions.RequestException) -> FarmError:
    """The error for a file that did not come: the recipe names an absent one, or something is in
    the way.
    """
    code = None if error.response is None else error.response.status_code
    if code in (404, 410):
        return BuildFailedError(f"{address} is not there: the server answers {code}", hint=_CORRECT)
    return InfrastructureError(
        f"{address} cannot be fetched: {error}", hint="is the host reachable?"
    )


def _download(address: str, path: Path, sha256: str, line: Line) -> None:
    """Download to `path`, which appears only when its hash is right."""
    # A name of its own: two builds may fetch the same file at the same time.
    part = path.with_suffix(f".{uuid.uuid4().hex[:8]}.part")
    total = hashlib.sha256()
    size = 0
    try:
        if address.startswith("file://"):
            try:
                shutil.copyfile(_file_of(address), part)
            except FileNotFoundError as error:
                raise BuildFailedError(f"{address} is not there", hint=_CORRECT) from error
            sha256_found = sha256_of(part)
        else:
            with (
                Heartbeat(line, lambda silent: f"  no data for {duration(silent)}") as heartbeat,
                requests.get(address, timeout=TIMEOUT_S, stream=True) as answer,
                outputs.writing(part),
                part.open("wb") as stream,
            ):
                answer.raise_for_status()
                length = answer.headers.get("Content-Length", "")
                for piece in answer.iter_content(1 << 20):
                    size += len(piece)
                    if size > MAX_ARCHIVE:
                        raise InfrastructureError(f"{address}: larger than {MAX_ARCHIVE >> 30} GiB")
                    total.update(piece)
                    stream.write(piece)
                    heartbeat.overwrite(
                        f"  {megabytes(size, int(length) if length.isdecimal() else None)}"
                    )
            sha256_found = total.hexdigest()
        if sha256_found != sha256:
            raise BuildFailedError(
                f"{address} has sha256 {sha256_found}, the recipe says {sha256}",
                hint="the file was changed on the way or at its origin: compare it before you "
                "change the recipe",
            )
        retry_while_open(part.replace, path)
    except requests.exceptions.RequestException as error:
        raise _not_fetched(address, error) from error
    finally:
        part.unlink(missing_ok=True)


def _file_of(address: str) -> str:
    """The path in `file:///srv/a.tar.gz`, or in `file:///C:/srv/a.tar.gz`."""
    path = unquote(address.removeprefix("file://"))
    return path[1:] if re.match("/[A-Za-z]:", path) else path
