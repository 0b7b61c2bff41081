"""The content of a wheel, as data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import field_serializer

from farm.base.errors import VerificationFailedError
from farm.policy.levels import level_names
from farm.policy.rules import Frozen
from farm.wheel.archive import Archive
from farm.wheel.library import Code, Library, read_contents
from farm.wheel.metadata import read_dist_info
from farm.wheel.needs import Need, resolve, system_needs
from farm.wheel.tags import check_supported, earned_level, platform_machine

DECODED = 16 << 20
"""Libraries up to this many bytes have their machine code decoded: large ones may take half a
minute.
"""


class WheelContents(Frozen):
    """A wheel's own words and what its libraries are.

    `manylinux`: The lowest level that the libraries satisfy (`manylinux_2_17`), or None, with the
    reason in `manylinux_problem`.
    """

    file: str
    size: int  # bytes of the file
    unpacked: int  # bytes of all members
    name: str
    version: str
    requires_python: str | None
    requires_dist: tuple[str, ...]
    tags: tuple[str, ...]  # expanded, from WHEEL
    # The ELF and PE files; `instructions` count from the lowest CPU level.
    libraries: tuple[Library, ...]
    needs: tuple[Need, ...]  # who needs what and who answers
    manylinux: str | None
    manylinux_problem: str | None

    @field_serializer("libraries", "needs")
    def _by_name(self, facts: tuple[NamedTuple, ...]) -> list[Any]:
        return [_plain(fact) for fact in facts]

    def to_json(self) -> dict[str, Any]:
        """Plain data: dictionaries, lists, strings, numbers."""
        return self.model_dump(mode="json")


def _plain(value: Any) -> Any:
    """A NamedTuple as a dictionary, with all that is in it; Pydantic would make a list of it."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        plain = {}
        for key, item in value.items():
            if key != "calls":  # known in verify alone
                plain[key] = _plain(item)
        return plain
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def inspect(wheel: Path, *, decoded: int | None = DECODED) -> WheelContents:
    """Read a wheel; `UsageError` where there is none, `VerificationFailedError` where it is
    damaged.

    `decoded`: of libraries up to this many bytes the machine code is decoded too (about 15 MB/s);
    None: of all.
    """
    check_supported(wheel.name)
    code = Code(level_names()[0])
    with Archive(wheel) as archive:
        info = read_dist_info(archive)

        def code_of(name: str) -> Code | None:
            if decoded is not None and archive.members[name].size > decoded:
                return None
            return code

        contents = read_contents(archive, code_of)
    needs = resolve(contents.libraries, (), dll_folders=contents.dll_folders)
    earned, problem = _manylinux(contents.libraries, needs, info.tags)
    return WheelContents(
        file=wheel.name,
        size=wheel.stat().st_size,
        unpacked=sum(size for _, size in contents.files.values()),
        name=info.name,
        version=info.version,
        requires_python=info.requires_python,
        requires_dist=info.requires_dist,
        tags=tuple(sorted(info.tags)),
        libraries=contents.libraries,
        needs=tuple(needs),
        manylinux=earned,
        manylinux_problem=problem,
    )


def _manylinux(
    libraries: tuple[Library, ...],
    needs: list[Need],
    tags: frozenset[str],
) -> tuple[str | None, str | None]:
    """The manylinux level that libraries earn, or why they earn none."""
    machine = platform_machine(tags)
    if machine is None:
        return None, _why_no_level(tags)
    try:
        level = earned_level(system_needs(libraries, needs), machine)
    except VerificationFailedError as error:
        return None, str(error)
    return level.name, None


def _why_no_level(tags: frozenset[str]) -> str:
    """Why no level of manylinux fits a wheel, by its tags."""
    platforms = {tag.rpartition("-")[2] for tag in tags}
    if any(platform.startswith("win") for platform in platforms):
        return "manylinux levels are for Linux wheels; this one is for Windows"
    if platforms == {"any"}:
        return "manylinux levels are for Linux wheels; this one is for any system"
    return "its tags are not Linux tags of one machine"
