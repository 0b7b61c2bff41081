"""A new wheel from an old one, with unchanged members copied as compressed bytes.

Same input, same bytes: order is kept, new members come last in the order given, RECORD at the very
end, and what is new carries the date 1980-01-01. Nothing is recompressed, so the cost is that of
copying the file.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from packaging.version import Version

from farm.base.errors import UsageError, VerificationFailedError
from farm.base.locks import retry_while_open
from farm.base.outputs import sync_folder
from farm.wheel.archive import Archive
from farm.wheel.member_names import check_name
from farm.wheel.metadata import (
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
    copied = [
        (entry, renamed.get(name, name))
        for name, entry in source.members.items()
        if name not in drop
    ]
    added = [*(member.name for member in new), record]
    # Names that are kept were checked when the source was opened; new ones are checked now.
    for name in (*renamed.values(), *added):
        check_name(name)
    if twice := [
        name
        for name, count in Counter([*(name for _, name in copied), *added]).items()
        if count > 1
    ]:
        raise VerificationFailedError(f"member {twice[0]!r}: the new wheel would hold it twice")
    try:
        with ExitStack() as stack:
            # In the target's folder: a rename between file systems would be a copy, which can be
            # seen incomplete.
            temporary = dest.parent / f".wheel-{os.urandom(8).hex()}.tmp"
            handle = os.open(
                temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600
            )
            stack.callback(temporary.unlink, missing_ok=True)
            with os.fdopen(handle, "wb", buffering=0) as file:
                writer = ZipWriter(file)
                for entry, name in copied:
                    writer.copy(source, entry, name)
                rows = [
                    Row(name, *hashes[entry.name])
                    for entry, name in copied
                    if not name.endswith("/")
                ]
                written = {}
                for member in packed(new, dest.parent):
                    writer.add(member)
                    written[member.entry.name] = (member.sha256, member.entry.size)
                    rows.append(Row(member.entry.name, member.sha256, member.entry.size))
                # Last: archivers put `.dist-info` at the end (PEP 427). RECORD lists itself without
                # a hash.
                rows.append(Row(record, None, None))
                for member in packed([NewMember(record, render_record(rows))], dest.parent):
                    writer.add(member)
                    written[record] = (member.sha256, member.entry.size)
                writer.finish()
                os.fsync(file.fileno())
            # It was 0600 while it was being written: no one else reads half a wheel.
            temporary.chmod(0o644)
            retry_while_open(temporary.replace, dest)
            sync_folder(dest.parent)
    except OSError as error:
        raise UsageError(f"{dest}: cannot be written ({error})") from error
    return written


_LABEL = re.compile(r"[0-9a-z_.]{1,64}")


def label_wheel(
    wheel: Path, dest: Path, label: str, variant: Mapping[str, Any], build: str = ""
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
    number = "_".join([*builds, *([build] if build else [])])
    target = dest / "-".join(
        [project, version, *([number] if number else []), python, abi, platform, f"{label}.whl"]
    )
    with Archive(wheel) as archive:
        info = read_dist_info(archive)
        folder = info.folder
        stem = info.stem
        new_folder = f"{stem.partition('-')[0]}-{version}.dist-info"
        metadata = with_version(archive.read(f"{folder}/METADATA"), version)
        # Those of other copies are there without one, too.
        metadata = without_local_pins(metadata)
        _, rows = read_record(archive, info.record)
        hashes = {}
        for row in rows:
            if row.digest and row.algorithm == "sha256" and row.size is not None:
                hashes[row.path] = (row.digest, row.size)
        dropped = frozenset({*info.signed, f"{folder}/METADATA", f"{folder}/WHEEL"})
        if bare := [
            n
            for n in archive.members
            if n not in hashes and n not in dropped and not n.endswith("/")
        ]:
            raise VerificationFailedError(
                f"{wheel.name}: RECORD has no sha256 and size of {bare[0]}",
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
                NewMember(
                    f"{new_folder}/WHEEL", with_build(archive.read(f"{folder}/WHEEL"), number)
                ),
                NewMember(
                    f"{new_folder}/variant.json", json.dumps(variant, sort_keys=True).encode()
                ),
            ],
        )
    return target, metadata


def renames(archive: Archive, stem: str, version: str | None) -> dict[str, str]:
    """Old to new names of what is in the folders that carry the version in their name."""
    new_stem = f"{stem.partition('-')[0]}-{version}"
    own_folders = (f"{stem}.dist-info/", f"{stem}.data/")
    return {
        name: new_stem + name.removeprefix(stem)
        for name in archive.members
        if version and name.startswith(own_folders)
    }
