"""A new wheel from an old one, with unchanged members copied as compressed bytes.

Same input, same bytes: order is kept, new members come last in the order given, RECORD at the very
end, and what is new carries the date 1980-01-01. Nothing is recompressed, so the cost is that of
copying the file.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

from packaging.version import Version

from farm.base.errors import UsageError, VerificationFailedError
from farm.base.locks import retry_while_open
from farm.base.outputs import sync_folder
from farm.wheel.archive import Archive
from farm.wheel.member_names import check_name
from farm.wheel.metadata import (
    DistInfo,
    Row,
    parse_wheel_name,
    read_dist_info,
    read_record,
    render_record,
    with_build,
    with_version,
    without_local_pins,
)
from farm.wheel.zipwriter import NewMember, ZipWriter, packed


def rewrite(
    source: Archive,
    dest: Path,
    *,
    record: str,
    hashes: Mapping[str, tuple[str, int]],
    drop: frozenset[str] = frozenset(),
    rename: Mapping[str, str] | None = None,
    new: Sequence[NewMember] = (),
) -> dict[str, tuple[str, int]]:
    """Write `dest` from `source`: some members dropped or renamed, new ones added, RECORD rebuilt.

    `dest` appears whole (temporary file, fsync, rename) or not at all. `record`: the name of RECORD
    in the new wheel; that of `source` must be in `drop`, as must a member that is replaced.
    `hashes`: (sha256 in hexadecimal, length in bytes) of every kept file of `source`, by old name.
    `rename`: old name to new name. `new` is deflated, in this order.

    Returns:
        (sha256, length) of each new member and of RECORD, by name.
    """
    renamed = rename or {}
    copied = []
    for name, entry in source.members.items():
        if name not in drop:
            copied.append((entry, renamed.get(name, name)))
    added = [member.name for member in new]
    added.append(record)
    # Names that are kept were checked when the source was opened; new ones are checked now.
    for name in (*renamed.values(), *added):
        check_name(name)
    _refuse_twice([*map(itemgetter(1), copied), *added])
    try:
        with _new_file(dest) as file:
            writer = ZipWriter(file)
            rows = []
            for entry, name in copied:
                writer.copy(source, entry, name)
                if not name.endswith("/"):
                    rows.append(Row(name, *hashes[entry.name]))
            written = {}
            for member in packed(new, dest.parent):
                writer.add(member)
                path = member.entry.name
                written[path] = (member.sha256, member.entry.size)
                rows.append(Row(path, *written[path]))
            # Last: archivers put `.dist-info` at the end (PEP 427). RECORD lists itself without a
            # hash.
            rows.append(Row(record, None, None))
            for member in packed([NewMember(record, render_record(rows))], dest.parent):
                writer.add(member)
                written[record] = (member.sha256, member.entry.size)
            writer.finish()
    except OSError as error:
        raise UsageError(f"{dest}: cannot be written ({error})") from error
    return written


def _refuse_twice(names: Iterable[str]) -> None:
    """Refuse a wheel that would hold two members of one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise VerificationFailedError(f"member {name!r}: the new wheel would hold it twice")


@contextmanager
def _new_file(dest: Path) -> Iterator[BinaryIO]:
    """A file to write, which becomes `dest` at the end of the block, whole or not at all."""
    # In the target's folder: a rename between file systems would be a copy, which can be seen
    # incomplete.
    temporary = dest.parent / f".wheel-{os.urandom(8).hex()}.tmp"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            yield file
            os.fsync(file.fileno())
        # It was 0600 while it was being written: no one else reads half a wheel.
        temporary.chmod(0o644)
        retry_while_open(temporary.replace, dest)
        sync_folder(dest.parent)
    finally:
        temporary.unlink(missing_ok=True)


_LABEL = re.compile(r"[0-9a-z_.]{1,64}")


def label_wheel(
    wheel: Path,
    dest: Path,
    label: str,
    variant: Mapping[str, Any],
    build: str = "",
) -> tuple[Path, bytes]:
    """A wheel with a variant label (drafts of PEP 825) and `variant.json` in `dest`; its path and
    METADATA.

    The local version goes: the label holds the same facts and distinguishes wheels of one version.
    So it goes from requirements as well.
    `build`: the number of a rebuild, of which installers take the highest; added to that of the
    wheel.
    """
    if not _LABEL.fullmatch(label):
        raise UsageError(
            f"not a variant label: {label[:80]!r}", hint="lower-case letters, digits, _ and ."
        )
    name = parse_wheel_name(wheel.name)
    version = Version(name.version).public
    project, _version, *builds, python, abi, platform = name.parts
    if build:
        builds.append(build)
    number = "_".join(builds)
    parts = [project, version, python, abi, platform, label]
    if number:
        parts.insert(2, number)
    target = dest / f"{'-'.join(parts)}.whl"
    with Archive(wheel) as archive:
        info = read_dist_info(archive)
        folder = info.folder
        stem = info.stem
        new_folder = f"{stem.partition('-')[0]}-{version}.dist-info"
        metadata = with_version(archive.read(f"{folder}/METADATA"), version)
        # Those of other copies are there without one, too.
        metadata = without_local_pins(metadata)
        wheel_file = with_build(archive.read(f"{folder}/WHEEL"), number)
        variant_file = json.dumps(variant, sort_keys=True).encode()
        dropped = frozenset({*info.signed, f"{folder}/METADATA", f"{folder}/WHEEL"})
        hashes = _recorded_hashes(archive, info)
        for member in archive.members:
            if member not in hashes and member not in dropped and not member.endswith("/"):
                raise VerificationFailedError(
                    f"{wheel.name}: RECORD has no sha256 and size of {member}",
                    hint=f"farm repair {wheel.name} writes it anew",
                )
        rewrite(
            archive,
            target,
            record=f"{new_folder}/RECORD",
            hashes=hashes,
            drop=dropped,
            rename=renames(archive, stem, version),
            new=[
                NewMember(f"{new_folder}/METADATA", metadata),
                NewMember(f"{new_folder}/WHEEL", wheel_file),
                NewMember(f"{new_folder}/variant.json", variant_file),
            ],
        )
    return target, metadata


def _recorded_hashes(archive: Archive, info: DistInfo) -> dict[str, tuple[str, int]]:
    """sha256 and size of each member of which RECORD has both."""
    _, rows = read_record(archive, info.record)
    hashes = {}
    for row in rows:
        if row.digest and row.algorithm == "sha256" and row.size is not None:
            hashes[row.path] = (row.digest, row.size)
    return hashes


def renames(archive: Archive, stem: str, version: str) -> dict[str, str]:
    """Old to new names of what is in the folders that carry the version in their name."""
    new_stem = f"{stem.partition('-')[0]}-{version}"
    own_folders = (f"{stem}.dist-info/", f"{stem}.data/")
    new_names = {}
    for name in archive.members:
        if name.startswith(own_folders):
            new_names[name] = new_stem + name.removeprefix(stem)
    return new_names
