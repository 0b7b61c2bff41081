"""The wheels that a wheel leaves some of its libraries to, as PyTorch's Linux wheels do with NVIDIA's.

pip unpacks them beside it, so its RUNPATHs lead from one into the other (`$ORIGIN/../../nvidia/cublas/lib`). Here they
are files on this machine: what the wheel imports from them is looked up in them, and what they hold is judged with it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from farm.base.errors import UsageError, VerificationFailedError
from farm.base.hashes import sha256_of
from farm.base.requirement import read_requirement
from farm.wheel.archive import Archive, Limits
from farm.wheel.library import Library, read_contents
from farm.wheel.metadata import DistInfo, parse_wheel_name, read_dist_info, same_name
from farm.wheel.policy import defaults


@dataclass(frozen=True)
class DependencyWheel:
    """One wheel that METADATA requires: its file name, sha256, name, version and libraries."""

    file: str
    sha256: str
    name: str
    version: str
    libraries: tuple[Library, ...]


def read_dependencies(
    paths: Sequence[Path], info: DistInfo, limits: Limits | None = None
) -> tuple[DependencyWheel, ...]:
    """Read those of the given wheels that a wheel requires.

    Args:
        paths: Wheels, and folders of wheels; a folder may hold others than are required.
        info: METADATA of the wheel.
        limits: What a wheel may ask of this machine.

    Raises:
        UsageError: A file cannot be read, or a wheel that was given by name is not required.
        VerificationFailedError: A required wheel is damaged, or two fit one requirement.
    """
    wanted = _requirements(info)
    found: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder")
        for file in sorted(path.glob("*.whl")) if path.is_dir() else [path]:
            name = parse_wheel_name(file.name)
            fits = any(
                same_name(each.name, name.name) and each.specifier.contains(name.version, prereleases=True)
                for each in wanted
            )
            if not fits and path.is_dir():
                continue
            if not fits:
                raise UsageError(
                    f"{file.name} is not a dependency of {info.name} {info.version}",
                    hint=f"its METADATA requires: {', '.join(map(str, wanted)) or 'nothing'}",
                )
            if name.name in found:
                raise UsageError(f"{found[name.name].name} and {file.name}: two wheels for one dependency")
            found[name.name] = file
    return tuple(_read(file, limits) for _, file in sorted(found.items()))


def required(info: DistInfo) -> set[str]:
    """The names, in normal form, of what METADATA requires."""
    return {canonicalize_name(each.name) for each in _requirements(info)}


def brings(library: str, requires: Iterable[str]) -> str | None:
    """The requirement whose wheel has a library, by their names: `nvidia-cublas-cu12` has `libcublasLt.so.12`."""
    stem = re.sub(r"[^a-z0-9]", "", re.sub(r"^lib|\.(so|dll)\b.*", "", library.lower()))
    owner = next((line.split()[0] for line in defaults("brought_by") if fnmatchcase(library, line.split()[1])), None)
    best: tuple[int, str] | None = None
    for line in requires:
        text = line.partition(";")[0].strip()
        name = canonicalize_name(re.split(r"[^\w.-]", text, maxsplit=1)[0])
        if name == owner:
            return text
        words = [word.removeprefix("py") for word in name.split("-") if word != "nvidia"]
        length = max((len(word) for word in words if len(word) > 2 and stem.startswith(word)), default=0)
        if length > (best[0] if best else 0):
            best = length, text
    return best[1] if best else None


def _requirements(info: DistInfo) -> list[Requirement]:
    """Requirements of METADATA; unreadable ones are another check's finding."""
    found = []
    for line in info.requires_dist:
        try:
            found.append(read_requirement(line))
        except InvalidRequirement:
            continue
    return found


def _read(path: Path, limits: Limits | None) -> DependencyWheel:
    name = parse_wheel_name(path.name)
    with Archive(path, limits) as archive:
        info = read_dist_info(archive)
        if not same_name(info.name, name.name):
            raise VerificationFailedError(f"{path.name}: its METADATA is that of {info.name}")
        # No CPU level: of these wheels only exports and device code are judged.
        contents = read_contents(archive, lambda _: None)
    return DependencyWheel(path.name, sha256_of(path), name.name, name.version, contents.libraries)
