"""Wheels of libraries, such as NVIDIA's, that a wheel needs instead of holding their libraries.

Requirements go into METADATA, for those wheels alone that a library of the wheel needs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from farm.wheel.library import Library


@dataclass(frozen=True)
class LibraryWheel:
    """Another wheel whose libraries are needed.

    Attributes:
        requirement: As METADATA names it, with its exact version.
        folder: Where its libraries are below site-packages, such as `nvidia/cublas/lib`.
        libraries: Their names (`fnmatch`).
        requires: The wheels that it needs in turn, by package.
    """

    requirement: str
    folder: str
    libraries: tuple[str, ...]
    requires: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """The name of its package."""
        return self.requirement.partition("==")[0]

    def holds(self, name: str) -> bool:
        """True if the library of this name is in it."""
        return any(fnmatchcase(name, pattern) for pattern in self.libraries)

    def holds_one_of(self, patterns: Sequence[str]) -> bool:
        """True if one of its libraries has a name that fits one of the patterns (`fnmatch`)."""
        for library in self.libraries:
            if any(fnmatchcase(library, pattern) for pattern in patterns):
                return True
        return False


def wheels_needed(
    libraries: Iterable[Library],
    wheels: Sequence[LibraryWheel],
    opens: Sequence[str],
) -> list[LibraryWheel]:
    """Select the wheels that libraries need.

    Args:
        libraries: Those of the wheel under repair.
        wheels: What may be needed.
        opens: Patterns of names that a library opens at run time.

    Returns:
        Those that hold what a library needs or opens, and the wheels that these need: NVIDIA's name
        them without a version, and pip would take the newest.
    """
    names: set[str] = set()
    for library in libraries:
        names.update(library.needed)

    in_use = []
    packages: set[str] = set()
    for wheel in wheels:
        # What a library opens by name counts only where the wheel needs anything at all.
        is_opened = bool(names) and wheel.holds_one_of(opens)
        if is_opened or any(map(wheel.holds, names)):
            in_use.append(wheel)
            packages.update(wheel.requires)
    return [wheel for wheel in wheels if wheel in in_use or wheel.package in packages]


def without_wheel_libraries(
    opens: Sequence[str],
    wheels: Sequence[LibraryWheel],
) -> list[str]:
    """The patterns of `opens` that are of no library of `wheels`."""
    libraries: list[str] = []
    for wheel in wheels:
        libraries += wheel.libraries
    remaining = []
    for pattern in opens:
        if not any(_fit(pattern, library) for library in libraries):
            remaining.append(pattern)
    return remaining


def _fit(left: str, right: str) -> bool:
    """True if either is a pattern that the other fits."""
    return fnmatchcase(left, right) or fnmatchcase(right, left)
