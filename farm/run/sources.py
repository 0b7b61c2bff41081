"""The sources of a build, put together as the build unpacks them: a tar of the tree, and one for
each of its parts.
"""

import contextlib
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from farm.base import outputs
from farm.base.errors import BuildFailedError, InfrastructureError, UsageError
from farm.base.hashes import TreeDigest, read_tree
from farm.base.safe_files import copy_to, create_new, open_plain
from farm.base.temporary import temporary_folder
from farm.base.zips import DAMAGED
from farm.plan.file import PartPlan, Plan
from farm.plan.materials import source_folder
from farm.plan.recipe import recipe
from farm.plan.render import EPOCH
from farm.run.download import CHECK_HASH, Line, fetch

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
    except DAMAGED as error:
        raise BuildFailedError(f"{archive} cannot be unpacked: {error}", hint=CHECK_HASH) from error


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
    raise BuildFailedError(f"{package} is no Debian package", hint=CHECK_HASH)


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
