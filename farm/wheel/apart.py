"""DLLs of a wheel that are for another machine than the wheel's: delvewheel, told of DLLs inside, refuses it for them.

What names its machine goes by (debugpy's `attach_x86.dll`, for processes that it is attached to), and so does what is
excluded. delvewheel looks at `.dll` and `.pyd`: these bear another name for as long as it works.
"""

import posixpath
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Archive
from farm.wheel.contents import read_needs
from farm.wheel.library import Library
from farm.wheel.machines import says_its_machine
from farm.wheel.metadata import read_dist_info
from farm.wheel.needs import installed_path
from farm.wheel.rewrite import rewrite

_ENDINGS = (".dll", ".pyd")
_AWAY = ".another-machine"


def for_another_machine(
    libraries: Sequence[Library], data_folder: str, machine: str | None, exclude: Sequence[str]
) -> dict[str, str]:
    """Name in the wheel to the name meanwhile.

    Args:
        libraries: Of the wheel.
        data_folder: Its `.data` folder, of which delvewheel looks at what goes into site-packages.
        machine: The wheel's.
        exclude: Name patterns of libraries that are left as they are.

    Raises:
        VerificationFailedError: One is for another machine, and nothing says that it is meant to be.
    """
    found = {}
    for library in libraries:
        name = posixpath.basename(library.path).lower()
        outside = installed_path(library.path).startswith(f"{data_folder}/")
        if library.machine == machine or library.error or outside or not name.endswith(_ENDINGS):
            continue
        # delvewheel takes an assembly of .NET for any machine for one of x86.
        meant = library.kind == "other" or says_its_machine(library)
        if not meant and not any(fnmatchcase(name, each.lower()) for each in exclude):
            raise VerificationFailedError(
                f"member {library.path!r} is a library for {library.machine}, the wheel is for {machine}",
                hint=f"if it is meant to be, exclude it: --exclude {posixpath.basename(library.path)} "
                "(in a recipe: exclude)",
            )
        found[library.path] = library.path + _AWAY
    return found


def with_other_names(wheel: Path, folder: Path, names: Mapping[str, str]) -> Path:
    """The wheel in a new `folder`, with some members under other names, which RECORD has too."""
    folder.mkdir()
    with Archive(wheel) as archive:
        record = read_dist_info(archive).record
        rewrite(
            archive,
            folder / wheel.name,
            record=record,
            hashes=read_needs(archive, {}).files,
            drop=frozenset((record, f"{record}.jws", f"{record}.p7s")),
            rename=names,
        )
    return folder / wheel.name
