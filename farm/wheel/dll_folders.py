"""The folders that a package's own Python code adds to Windows' search for DLLs.

`os.add_dll_directory` is called with a path that the code puts together when it runs. It is not
run here: a folder with DLLs counts as added if a module that calls the function holds every part of
the way from its own folder to that one as text, as in `os.path.join(os.path.dirname(__file__),
"libs")` (openvino). A module that builds the names in another way is not understood.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from farm.base.errors import FarmError

_CALL = b"add_dll_directory"
_TEXT = re.compile(rb"\"([^\"\n]{1,200})\"|'([^'\n]{1,200})'")
_SEPARATOR = re.compile(r"[\\/]")
_LARGEST = 256 << 10  # bytes of a module
_DEEPEST = 3  # parts of a module's path: a package's loader is near its top
_MOST_MODULES = 50


def added_by_code(
    files: Mapping[str, int],
    libraries: Iterable[str],
    read: Callable[[str], bytes],
) -> frozenset[str]:
    """Return the folders with DLLs, in lower case, that the modules of a package add.

    Args:
        files: The size of each file by its path below site-packages.
        libraries: The paths of the DLLs and extension modules among them.
        read: Returns the content of a file; a FarmError leaves that file out.
    """
    folders = set()
    packages = set()
    for path in libraries:
        folder = posixpath.dirname(path).lower()
        folders.add(folder)
        packages.add(folder.split("/")[0])
    added = set()
    for path, content in _callers(files, packages, read):
        home = posixpath.dirname(path).lower()
        parts = _parts(content)
        for folder in folders:
            if _is_named(folder, home, parts):
                added.add(folder)
    return frozenset(added)


def _callers(
    files: Mapping[str, int],
    packages: set[str],
    read: Callable[[str], bytes],
) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the modules that call the function."""
    callers = 0
    for path, size in files.items():
        parts = path.lower().split("/")
        is_module = path.endswith(".py") and parts[0] in packages
        if not is_module or len(parts) > _DEEPEST or size > _LARGEST:
            continue
        try:
            content = read(path)
        except FarmError:
            continue
        if _CALL in content:
            yield path, content
            callers += 1
            if callers == _MOST_MODULES:
                return


def _parts(content: bytes) -> frozenset[str]:
    """Return the names of files and folders in the texts of a module, in lower case."""
    parts: set[str] = set()
    for match in _TEXT.finditer(content):
        text = (match[1] or match[2]).decode(errors="replace").lower()
        parts.update(_SEPARATOR.split(text))
    if b"__file__" in content:
        parts.add(".")
    return frozenset(parts)


def _is_named(folder: str, home: str, parts: frozenset[str]) -> bool:
    """True if each part of the way from a module's folder to another one is in its texts."""
    way = posixpath.relpath(f"/{folder}", f"/{home}")
    return parts.issuperset(part for part in way.split("/") if part != "..")
