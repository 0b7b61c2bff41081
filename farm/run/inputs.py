"""Inputs of a build: sources, fetched once a host and verified; needed wheels; the record of them
for a provenance.

`<cache>/<key>.tar` is a source, whatever it is compressed with; `<key>` holds the commit or hash. A
cached file is verified again each time that it is used. Wheels that a toolkit takes something from
are kept beside them.

Whoever runs a build knows its inputs: the journal of this machine, or the farm on a runner, whose
`farm build` leaves `built/inputs.json` beside the wheel. A container cannot say it: the file is
written after its output was taken.
"""

import contextlib
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import uuid
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import IO, Annotated, Any
from urllib.parse import unquote, urljoin

import requests
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from pydantic import Field

from farm.base import outputs, resources
from farm.base.errors import BuildFailedError, FarmError, InfrastructureError, UsageError
from farm.base.hashes import TreeDigest, read_tree, sha256_of
from farm.base.heartbeat import Heartbeat, megabytes
from farm.base.locks import retry_while_open
from farm.base.requirement import serves
from farm.base.safe_files import copy_to, create_new, open_plain, read_small
from farm.base.temporary import temporary_folder
from farm.base.text import duration, log_line, nearest, short
from farm.base.yamlfile import Model, load
from farm.engines.base import Engine
from farm.index.backends import open_store
from farm.index.layout import json_key, wheel_key
from farm.index.pages import File, parse_page
from farm.index.stores import Store
from farm.plan.file import PartPlan, Plan, SourcePlan
from farm.plan.materials import source_folder
from farm.plan.matrix import load_matrix
from farm.plan.platforms.base import platform
from farm.plan.recipe import Recipe, names, recipe
from farm.plan.render import EPOCH
from farm.platforms.facts import facts
from farm.run.journal import Journal, OpenRun
from farm.run.workspace import Workspace
from farm.wheel.archive import Archive
from farm.wheel.metadata import read_dist_info
from farm.wheel.needs import required

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
_AR = b"!<arch>\n"
_AR_HEADER = 60


def gather(plan: Plan, cache: Path, dest: Path, *, mirror: str | None, line: Line) -> list[Path]:
    """Put the sources of a plan into the folder `dest` as `00.tar` (the tree), `01.tar`, … (its
    parts); returns them.

    `cache`: where fetched sources are kept; `mirror`: where Debian's packages are (None: where apt
    gets them here); `line` gets what is fetched. UsageError: a folder beside the recipe is not what
    the plan was made from; InfrastructureError: something cannot be fetched; BuildFailedError: it
    is not what the plan names.
    """
    dest.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    files = []
    for number, part in enumerate([None, *plan.parts]):
        target = dest / f"{number:02d}.tar"
        if part is None and plan.source.kind == "path":
            folder = source_folder(plan)
            if _pack(folder, target, line) != plan.source.digest:
                raise UsageError(
                    f"{folder}: changed while it was packed", hint="create the plan again"
                )
        else:
            if part:
                cached = _fetch_part(plan, part, cache, mirror=mirror, line=line)
            else:
                cached = fetch(plan.source, cache, mirror=mirror, line=line)
            with temporary_folder(".source-", dest) as folder:
                copy = folder / cached.name
                _copy_from_cache(cached, copy)
                _place(copy, target, part)
        files.append(target)
    return files


def fetch_all(plan: Plan, cache: Path, *, mirror: str | None, line: Line) -> list[Path]:
    """Fetch into the cache what a build of the plan needs from elsewhere, in time: a wrong hash is
    said in seconds.
    """
    cache.mkdir(parents=True, exist_ok=True)
    if plan.source.kind == "path":
        source_files = []
    else:
        source_files = [fetch(plan.source, cache, mirror=mirror, line=line)]
    parts = [_fetch_part(plan, part, cache, mirror=mirror, line=line) for part in plan.parts]
    return [
        *source_files,
        *parts,
        *(fetch(wheel, cache, mirror=None, line=line) for wheel in plan.build_requires),
    ]


def _fetch_part(plan: Plan, part: PartPlan, cache: Path, *, mirror: str | None, line: Line) -> Path:
    try:
        return fetch(part.source, cache, mirror=mirror, line=line)
    except (InfrastructureError, BuildFailedError) as error:
        # Two parts for two base images may share a folder; their files differ.
        parts = recipe(plan.recipe).parts
        files = [
            (entry.into, getattr(entry.source, "file", None), entry.alternatives) for entry in parts
        ]
        instead = next(
            (text for into, file, text in files if (into, file) == (part.into, part.source.file)),
            None,
        )
        raise type(error)(
            f"{part.into} of {plan.package}, from {part.source.package or part.source.url}: "
            f"{error}",
            hint=f"{error.hint}; instead of it: {instead}" if instead else error.hint,
        ) from error


def _copy_from_cache(cached: Path, copy: Path) -> None:
    """Copy a fetched file to where nobody else can change it, and check what was copied.

    Raises:
        InfrastructureError: the file was changed since it was looked at.
    """
    if cached.suffix == ".tar" and (marker := cached.with_suffix(".sha256")).exists():
        sha256 = marker.read_text(encoding="ascii")  # of a packed clone, whose name is the commit
    else:
        sha256 = cached.stem
    with open_plain(cached) as stream, outputs.writing(copy), create_new(copy) as target:
        digest, _ = copy_to(stream, target, os.fstat(stream.fileno()).st_size)
    if digest != sha256:
        raise InfrastructureError(
            f"{cached} was changed while it was read", hint="who else writes to that folder?"
        )


def _place(found: Path, target: Path, part: PartPlan | None) -> None:
    target.unlink(missing_ok=True)
    if part is None or (not part.members and found.suffix == ".tar"):
        if _is_zip(found):
            _from_zip(found, target)
            return
        found.replace(target)
        return
    # A low level: libraries of 400 MB to link with are packed in each build.
    with (
        outputs.writing(target),
        tarfile.open(target, "w:xz", format=tarfile.GNU_FORMAT, preset=1) as selection,
    ):
        missing = set(part.members)
        for name, size, stream in _files(found):
            member = next((m for m in part.members if name == m or name.startswith(f"{m}/")), None)
            if member or not part.members:
                missing.discard(str(member))
                selection.addfile(_plain(tarfile.TarInfo(name), size), stream)
    if missing:
        raise BuildFailedError(f"{found.name} of {part.into} holds no {min(missing)}")


def _is_zip(archive: Path) -> bool:
    """By its start: `zipfile.is_zipfile` looks for the end of one, which a tar may have inside."""
    with archive.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def _from_zip(archive: Path, target: Path) -> None:
    """A tar of a zip, which builds do not unpack; old sdists are zips (numpy until 1.22)."""
    try:
        with (
            outputs.writing(target),
            zipfile.ZipFile(archive) as packed,
            tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tree,
        ):
            for info in packed.infolist():
                if not info.is_dir():
                    _add(tree, packed, info)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        raise BuildFailedError(f"{archive} cannot be unpacked: {error}", hint=_CHECK) from error


def _add(tree: tarfile.TarFile, packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    mode = info.external_attr >> 16
    member = tarfile.TarInfo(info.filename)  # of a zip that was made on Unix
    with packed.open(info) as content:
        if stat.S_ISLNK(mode):
            member.type = tarfile.SYMTYPE
            member.linkname = os.fsdecode(content.read())
            tree.addfile(_plain(member, 0, 0o777))
        else:
            tree.addfile(_plain(member, info.file_size, mode & 0o755 | 0o644), content)


def _files(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """The plain files of a wheel or of a tar file: name, size in bytes, content."""
    if archive.suffix == ".whl" or _is_zip(archive):
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                if not info.is_dir():
                    with wheel.open(info) as content:
                        yield info.filename, info.file_size, content
        return
    with contextlib.ExitStack() as opened:
        packed = opened.enter_context(
            _package_content(archive) if archive.suffix == ".deb" else archive.open("rb")
        )
        tar = opened.enter_context(tarfile.open(fileobj=packed))
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() else None
            if stream:
                yield member.name.removeprefix("./"), member.size, stream


def _package_content(package: Path) -> IO[bytes]:
    """The tar of the files in a Debian package, which is an ar archive (deb(5))."""
    data = package.read_bytes()
    offset = len(_AR)
    while data.startswith(_AR) and (size := data[offset + 48 : offset + 58].strip()).isdigit():
        if data[offset : offset + 8] == b"data.tar":
            return io.BytesIO(data[offset + _AR_HEADER : offset + _AR_HEADER + int(size)])
        offset += _AR_HEADER + int(size) + int(size) % 2
    raise BuildFailedError(f"{package} is no Debian package", hint=_CHECK)


def _plain(info: tarfile.TarInfo, size: int, mode: int = 0o644) -> tarfile.TarInfo:
    info.size = size
    info.mode = mode
    info.mtime = EPOCH
    info.uname = "root"
    info.gname = "root"
    return info


def _pack(folder: Path, target: Path, line: Line) -> str:
    """Write a tar of a folder that depends on names and contents alone.

    Returns:
        The digest of what was packed, as `tree_digest` gives it.
    """
    tree = read_tree(folder)
    for path in tree.leading_out:
        line(f"{path} is left out: it leads to {path.readlink()}, out of the source")
    digest = TreeDigest()
    with outputs.writing(target), tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as archive:
        for path in tree.files:
            with open_plain(path, follow_links=True) as stream:
                mode = os.fstat(stream.fileno()).st_mode & 0o755 | 0o644
                content = stream.read()
            digest.add_file(path.relative_to(folder), content)
            archive.addfile(_plain(_named(path, folder), len(content), mode), io.BytesIO(content))
        for path, end in tree.links.items():
            digest.add_link(path.relative_to(folder), end)
            info = _named(path, folder)
            info.type = tarfile.SYMTYPE
            info.linkname = end
            archive.addfile(_plain(info, 0, 0o777))
    return digest.hexdigest()


def _named(path: Path, folder: Path) -> tarfile.TarInfo:
    return tarfile.TarInfo(f"source/{path.relative_to(folder).as_posix()}")


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
        return f"{(mirror or apt_mirror()).rstrip('/')}/pool/{source.section}/{initial}/{name}/{source.file}"
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


_CHECK = "its sha256 is that of the plan: check that the recipe names the right file"
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


SCRIPTS = "dockerfiles/scripts"
PRODUCT = ("package", "version", "variant", "platform")
"""The fields of a plan by which another plan's need finds its run."""


class Makers:
    """Which of the open runs will publish what a plan needs."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, Any, Any], set[str]] = defaultdict(set)

    def add(self, run: OpenRun) -> None:
        if run.request.publishes:
            package, version, variant, platform = (run.about.get(field) for field in PRODUCT)
            self._runs[f"{package}=={version}", variant, platform].add(run.id)

    def of(self, needs: Iterable[str], variant: str, platform: str) -> frozenset[str]:
        """The ids of the runs that make the needs (`torch==2.0.1+…`) of a plan."""
        return frozenset(
            run for need in needs for run in self._runs.get((need, variant, platform), ())
        )


def is_being_built(journal: Journal, plan: Plan) -> bool:
    """True if an open run will publish what the plan needs."""
    if not plan.needs:
        return False
    makers = Makers()
    for run in journal.open_after("", PRODUCT):
        makers.add(run)
    return bool(makers.of(plan.needs, plan.variant, plan.platform))


def published_needs(workspace: Workspace, plan: Plan) -> dict[str, File]:
    """The wheel of each of the plan's needs in the index; UsageError: one is missing; its hint
    builds it.
    """
    if not plan.needs:
        return {}  # most builds: the index is not even opened
    store = open_store(workspace.index_url)
    return {need: _find(store, plan, Requirement(need), workspace.project) for need in plan.needs}


def standing(index_url: str, plan: Plan, project: Path) -> list[tuple[str, str | None]]:
    """Each of the plan's needs; and where the index has no such wheel, what it costs and the
    command that builds it.
    """
    store = open_store(index_url)
    needs = list[tuple[str, str | None]]()
    for need in map(Requirement, plan.needs):
        try:
            _find(store, plan, need, project)
            text = None
        except UsageError:
            package, how = _how(plan, need, project)
            hours = _recipe_of(plan, package, project).cost_for(plan.parsed_variant.sms)
            text = (
                f"{f'{hours[0]} {hours[1]:g} CPU hours' if hours else 'cost not measured'}: "
                f"farm submit {how}"
            )
        needs.append((str(need), text))
    return needs


def _find(store: Store, plan: Plan, need: Requirement, project: Path) -> File:
    key = json_key(plan.parsed_variant.group, canonicalize_name(need.name))
    page = store.get(key)
    # A page may list wheels of several Pythons, and yanked ones.
    for file in parse_page(page.data, key).files if page else ():
        if file.url is not None and file.yanked is False and _serves(file.filename, plan, need):
            return file
    raise UsageError(
        f"{plan.package} is built against {need}, and the index has no such wheel for "
        f"{plan.variant}",
        hint=f"build it first: farm submit {_how(plan, need, project)[1]}",
    )


def _how(plan: Plan, need: Requirement, project: Path) -> tuple[str, str]:
    """The recipe that makes it, and the options: by the recipe's name, from the same channel where
    that has it.
    """
    channel = load_matrix(project).channels.get(plan.channel)
    called = [name for name in names() if recipe(name).package == need.name]
    in_channel = [name for name in called if channel and name in channel.packages]
    package = (
        in_channel or [name for name in called if name == need.name] or called or [need.name]
    )[0]
    options = f"--variant {plan.variant} --package {package} --platform {plan.platform}"
    if in_channel:
        return package, f"{options} --channel {plan.channel}"
    torch = plan.options.get("torch")
    return package, f"{options} --torch {torch}" if need.name == "torch" and torch else options


def _recipe_of(plan: Plan, package: str, project: Path) -> Recipe:
    """The recipe of the channel that would build it: the plan's own, else the first that offers
    this release.
    """
    matrix = load_matrix(project)
    for channel in [c for c in (matrix.channels.get(plan.channel), *matrix.channels.values()) if c]:
        if (
            package in channel.packages
            and plan.options.get("torch") == channel.text.options["torch"]
        ):
            return recipe(channel.text.recipe_of(package))
    return recipe(package)


def _serves(filename: str, plan: Plan, need: Requirement) -> bool:
    _, version, _, tags = parse_wheel_filename(filename)
    return need.specifier.contains(version) and any(
        serves(tag.interpreter, tag.abi, plan.parsed_variant.python)
        and facts(plan.platform).fits(tag.platform, plan.machine)
        for tag in tags
    )


def fetch_needs(workspace: Workspace, plan: Plan, dest: Path) -> dict[str, str]:
    """Put the wheels that the build imports into the folder `dest`; returns the sha256 of the
    farm's own by file name.

    UsageError: one is not published; InfrastructureError: an index does not answer, or a wheel
    there does not match its page; BuildFailedError: one of the Python index is not the one that the
    plan names.
    """
    dest.mkdir(parents=True, exist_ok=True)
    cache = workspace.artifacts / "sources"
    cache.mkdir(parents=True, exist_ok=True)
    for wheel in plan.build_requires:
        shutil.copyfile(
            fetch(wheel, cache, mirror=None, line=workspace.watcher.line), dest / str(wheel.file)
        )
    wheels = published_needs(workspace, plan)
    if not wheels:
        return {}
    store = open_store(workspace.index_url)
    for need, file in wheels.items():
        workspace.watcher.line(f"{need}: {file.filename} of the index")
        # By the page's hash, not the record's: it is what pip would check.
        digest = hashlib.sha256()
        part = dest / f"{file.filename}.part"
        with part.open("wb") as stream:
            for chunk in store.chunks(wheel_key(file.filename)):
                digest.update(chunk)
                stream.write(chunk)
        if digest.hexdigest() != file.hashes.sha256:
            part.unlink()
            raise InfrastructureError(
                f"{file.filename}: the index holds other bytes than its page says",
                hint="farm index check says more",
            )
        retry_while_open(part.replace, dest / file.filename)
    return {file.filename: file.hashes.sha256 for file in wheels.values()}


def library_wheels(workspace: Workspace, plan: Plan, wheel: Path, folder: Path) -> list[Path]:
    """Those of the plan's wheels of libraries that `wheel` requires, fetched; `[folder]` for
    `verify`, or nothing.
    """
    if not plan.library_wheels:
        return []
    cache = workspace.artifacts / "sources"
    with Archive(wheel) as archive:
        required_names = required(read_dist_info(archive))
    cache.mkdir(parents=True, exist_ok=True)
    # Made anew: verify reads every wheel that it holds.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for library in plan.library_wheels:
        if canonicalize_name(library.package) not in required_names:
            continue
        source = SourcePlan(
            kind="wheel", package=library.package, file=library.file, sha256=library.sha256
        )
        cached = fetch(source, cache, mirror=None, line=workspace.watcher.line)
        target = folder / library.file
        try:
            target.hardlink_to(cached)
        except OSError:  # another file system
            shutil.copyfile(cached, target)
    return [folder]


@dataclass
class Inputs:
    """`folders`: in the job -> here; `wheels`: sha256 of the published wheels that it is built
    against, by name.
    """

    folders: dict[str, Path]
    wheels: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def gathered(workspace: Workspace, plan: Plan, engine: Engine, folder: Path) -> Iterator[Inputs]:
    """The inputs of a build; its folders go at the end: sources have gigabytes, and `submit` has
    copied them.
    """
    system = platform(plan.platform)
    subfolders = [folder / name for name in ("sources", "needs")]
    sources, needed = subfolders
    job_inputs = Inputs({"/farm/job": folder / "context" / "job"})
    try:
        if not engine.traits.gathers:
            if not system.self_contained:
                cache = workspace.artifacts / "sources"
                mirror = workspace.settings.debian_mirror
                gather(plan, cache, sources, mirror=mirror, line=workspace.watcher.line)
                job_inputs.folders["/farm/source"] = sources
            if plan.installs:
                job_inputs.wheels = fetch_needs(workspace, plan, needed)
                job_inputs.folders[system.needs_folder] = needed
        if not engine.traits.in_container:  # an image holds them
            job_inputs.folders["/farm/scripts"] = resources.path(workspace.project, SCRIPTS)
        yield job_inputs
    finally:
        for subfolder in subfolders:
            shutil.rmtree(subfolder, ignore_errors=True)


INPUTS_FILE = "inputs.json"
MAX_INPUTS = 1 << 20
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{1,300}$")]


class BuildInputs(Model):
    """The inputs of one build: its image, the sha256 of wheels that it was built against, the
    compiler cache's name.
    """

    image: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    wheels: dict[Name, Sha256] = {}
    cache: Annotated[str, Field(max_length=300)] | None = None


def refuse_notes(output: Path) -> None:
    """Refuse a build's output with something in the place of the controller's own notes.

    Raises:
        BuildFailedError: The build left it.
    """
    file = output / INPUTS_FILE
    if os.path.lexists(file):
        raise BuildFailedError(
            f"the build left {INPUTS_FILE} in its output, where the farm notes its inputs",
            hint="a build writes below wheel/ and lib/ alone",
        )


def read_inputs(file: Path) -> BuildInputs:
    """The inputs that another machine's build noted; BuildFailedError: the file is none of ours."""
    try:
        # A runner wrote it: a link could lead to any file of this machine.
        if file.is_symlink() or file.stat().st_size > MAX_INPUTS:
            raise UsageError(f"{file}: more than {MAX_INPUTS >> 20} MiB")
        return load(file, BuildInputs)
    except (UsageError, OSError) as error:
        raise BuildFailedError(
            f"the inputs that the build noted cannot be used: {error}"
        ) from error
