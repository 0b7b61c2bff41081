"""A wheel with a variant label (drafts of PEP 825): the same files, another name, and `variant.json` inside."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel.archive import Archive
from farm.wheel.metadata import parse_wheel_name, read_dist_info, with_build, with_version
from farm.wheel.record import read_record
from farm.wheel.rewrite import NewMember, rewrite

_LABEL = re.compile(r"[0-9a-z_.]{1,64}")


def label_wheel(wheel: Path, dest: Path, label: str, variant: Mapping[str, Any], build: str = "") -> tuple[Path, bytes]:
    """Writes the labelled wheel into `dest`; gives its path and its METADATA.

    The local version goes: the label holds the same facts and distinguishes wheels of one version.

    Args:
        wheel: A finished wheel; the hashes of its RECORD are kept.
        dest: An existing folder.
        label: `sm61_v3` for one.
        variant: The content of `variant.json`.
        build: The build number of a rebuild, of which installers take the highest; added to that of the wheel.

    Raises:
        UsageError: A bad label.
        VerificationFailedError: The wheel is damaged.
    """
    if not _LABEL.fullmatch(label):
        raise UsageError(f"not a variant label: {label[:80]!r}", hint="lower-case letters, digits, _ and .")
    name = parse_wheel_name(wheel.name)
    version = Version(name.version).public
    project, _version, *builds, python, abi, platform = name.parts
    number = "_".join([*builds, *([build] if build else [])])
    target = dest / "-".join([project, version, *([number] if number else []), python, abi, platform, f"{label}.whl"])
    with Archive(wheel) as archive:
        folder = read_dist_info(archive).folder
        stem = folder.removesuffix(".dist-info")
        new_stem = f"{stem.partition('-')[0]}-{version}"
        rename = {
            member: new_stem + member.removeprefix(stem)
            for member in archive.members
            if member.startswith((f"{stem}.dist-info/", f"{stem}.data/"))
        }
        metadata = with_version(archive.read(f"{folder}/METADATA"), version)
        _, rows = read_record(archive, f"{folder}/RECORD")
        hashes = {path: (sha256, size) for path, sha256, size in rows if sha256 and size is not None}
        # RECORD is written anew, so its signatures hold no longer.
        dropped = frozenset(f"{folder}/{each}" for each in ("RECORD", "RECORD.jws", "RECORD.p7s", "METADATA", "WHEEL"))
        if bare := [n for n in archive.members if n not in hashes and n not in dropped and not n.endswith("/")]:
            raise VerificationFailedError(
                f"{wheel.name}: RECORD has no sha256 and size of {bare[0]}",
                hint=f"farm repair {wheel.name} writes it anew",
            )
        rewrite(
            archive,
            target,
            record=f"{new_stem}.dist-info/RECORD",
            hashes=hashes,
            drop=dropped,
            rename=rename,
            new=[
                NewMember(f"{new_stem}.dist-info/METADATA", metadata),
                NewMember(f"{new_stem}.dist-info/WHEEL", with_build(archive.read(f"{folder}/WHEEL"), number)),
                NewMember(f"{new_stem}.dist-info/variant.json", json.dumps(variant, sort_keys=True).encode()),
            ],
        )
    return target, metadata
