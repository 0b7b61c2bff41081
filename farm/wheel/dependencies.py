"""The wheels that a wheel leaves some of its libraries to, as PyTorch's Linux wheels do with NVIDIA's.

pip unpacks them beside it, so its RUNPATHs lead from one into the other (`$ORIGIN/../../nvidia/cublas/lib`). Here they
are files on this machine: what the wheel imports from them is looked up in them, and what they hold is judged with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from farm.base.errors import UsageError, VerificationFailedError
from farm.base.hashes import sha256_of
from farm.base.requirement import read_requirement
from farm.wheel.archive import Archive, Limits
from farm.wheel.library import Library, read_contents
from farm.wheel.metadata import DistInfo, parse_wheel_name, read_dist_info, same_name


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


def absent(info: DistInfo, given: Iterable[DependencyWheel]) -> list[str]:
    """The requirements for which no wheel was given."""
    names = [each.name for each in given]
    return [str(each) for each in _requirements(info) if not any(same_name(each.name, name) for name in names)]


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
