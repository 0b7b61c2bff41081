"""The files that a message is about: a wheel, or the folder of an installed package."""

import mmap
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from farm.base.errors import UsageError
from farm.policy.levels import level_names
from farm.wheel.archive import Archive
from farm.wheel.dll_folders import added_by_code
from farm.wheel.library import (
    Code,
    Contents,
    Library,
    SymbolTable,
    magics,
    read_contents,
    read_library,
    symbols_of,
)
from farm.wheel.needs import Need, resolve, search_folders

_MAX_FILES = 20_000
MAX_CULPRITS = 8
SHARED = "Library/bin"
LIBRARY = re.compile(r"\.(so(\.[\d.]+)?|dll|pyd)$", re.IGNORECASE)


@dataclass(frozen=True)
class Files:
    """The wheel or the installed package, read when it is asked for."""

    path: Path

    @cached_property
    def contents(self) -> Contents:
        return self._read(None)

    @cached_property
    def on_load(self) -> Contents:
        """With what the code that runs on loading needs beyond the oldest CPU."""
        # Only what runs on loading, for that is when a loader's message comes.
        return self._read(Code(level_names()[0], on_load=True))

    def _read(self, code: Code | None) -> Contents:
        if self.path.is_dir():
            return _read_folder(_package(self.path), code)
        with Archive(self.path) as archive:
            contents = read_contents(archive, lambda _: code, with_symbols=True)
        read = {library.path for library in contents.libraries}
        libraries = list(contents.libraries)
        for name in contents.files:
            if name not in read and LIBRARY.search(name):
                libraries.append(no_library(name))
        return contents._replace(libraries=tuple(libraries))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All files, as a wheel names them."""
        if self.path.is_dir():
            folder = _package(self.path)
            return tuple(_name_in(folder.parent, path) for path in _files_below(folder))
        return tuple(self.contents.files)

    @cached_property
    def libraries(self) -> tuple[Library, ...]:
        """What a loader may be asked for, and what cannot be read."""
        libraries = []
        for library in self.contents.libraries:
            if library.is_loadable or library.error:
                libraries.append(library)
        if not libraries:
            raise UsageError(
                f"{self.path}: no library in it",
                hint="give the wheel, or the folder of the package",
            )
        return tuple(libraries)

    @cached_property
    def needs(self) -> list[Need]:
        contents = self.contents
        return resolve(contents.libraries, (), contents.dependencies, contents.dll_folders)


def _package(folder: Path) -> Path:
    """The package's own folder, of it, of its `lib`, or of site-packages with torch in it."""
    folder = folder.resolve()
    if folder.name.lower() == "lib":
        names = [entry.name for entry in folder.iterdir()]
        if any(map(LIBRARY.search, names)):
            folder = folder.parent
    torch = folder / "torch"
    return torch if (torch / "lib").is_dir() else folder


def _files_below(folder: Path, pattern: str = "*") -> Iterator[Path]:
    """The files of a folder and of those in it whose name fits a pattern."""
    for path in folder.rglob(pattern):
        if path.is_file():
            yield path


def _name_in(site: Path, file: Path) -> str:
    """The name that a wheel would have for a file of site-packages."""
    return file.relative_to(site).as_posix()


def _read_folder(folder: Path, code: Code | None) -> Contents:
    """The libraries of an installed package; those of packages beside it into which its RUNPATHs
    lead, too.
    """
    site = folder.parent
    symbols: dict[str, SymbolTable] = {}
    libraries = []
    for file in _library_files(folder):
        libraries.append(_read_file(file, site, code, symbols))

    neighbours = []
    for path in _paths_outside(libraries):
        file = site / path
        if file.is_file():
            neighbours.append(_read_file(file, site, code, symbols))
    return Contents(
        files={},
        libraries=tuple(libraries),
        symbols=symbols,
        dependencies=tuple(neighbours),
        dll_folders=_dll_folders(folder, libraries),
    )


def _library_files(package: Path) -> list[Path]:
    """The files with a library's name, of a package and of the folders that belong to it."""
    site = package.parent
    folders = [package, *_libs(package)]
    if site.name.lower() == "site-packages":
        # <prefix>/Library/bin: where pip puts MKL and Intel's OpenMP on Windows, and torch looks.
        folders.append(site.parent.parent / SHARED)
    files = []
    for folder in folders:
        for file in folder.rglob("*"):
            if LIBRARY.search(file.name) and file.is_file():
                files.append(file)
    if len(files) > _MAX_FILES:
        raise UsageError(
            f"{package}: more than {_MAX_FILES} libraries; give the package's own folder"
        )
    return sorted(files)


def _read_file(
    file: Path,
    site: Path,
    code: Code | None,
    symbols: dict[str, SymbolTable],
) -> Library:
    """Read a library of an installed package.

    Args:
        file: Where it is.
        site: The folder site-packages.
        code: What to look for in its machine code.
        symbols: Gets the names that it gives and takes.
    """
    name = f"{SHARED}/{file.name}"
    if file.is_relative_to(site):
        name = _name_in(site, file)
    try:
        with file.open("rb") as stream:
            if not stream.read(4).startswith(magics(name)):
                return no_library(name)
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                symbols[name] = symbols_of(data)
                return read_library(name, "", data, code)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from error


def _paths_outside(libraries: Sequence[Library]) -> list[str]:
    """The paths, below site-packages, at which the loader of Linux looks for what libraries need,
    without those of the libraries themselves.
    """
    paths: set[str] = set()
    for library in libraries:
        if library.format != "elf":
            continue
        for folder in search_folders(library):
            for name in library.needed:
                paths.add(posixpath.join(folder, name))
    return sorted(paths.difference(library.path for library in libraries))


def _dll_folders(package: Path, libraries: Iterable[Library]) -> frozenset[str]:
    """The folders with DLLs that the code of an installed package adds."""
    dlls = [library.path for library in libraries if library.format == "pe"]
    if not dlls:
        return frozenset()
    site = package.parent
    modules = {}
    for path in _files_below(package, "*.py"):
        modules[_name_in(site, path)] = path.stat().st_size

    def content(name: str) -> bytes:
        try:
            return (site / name).read_bytes()
        except OSError as error:
            raise UsageError(f"{name}: cannot be read ({error.strerror})") from error

    return added_by_code(modules, dlls, content)


def _libs(package: Path) -> list[Path]:
    """The folders beside a package into which delvewheel put its DLLs, by the RECORD that lists the
    package's files.
    """
    site = package.parent
    if not any(site.glob("*.libs")):
        return []
    names: set[str] = set()
    for record in site.glob("*.dist-info/RECORD"):
        text = record.read_text("utf-8", "replace")
        if re.search(rf'^"?{re.escape(package.name)}/', text, re.MULTILINE):
            names.update(re.findall(r'^"?([^/"\n]+\.libs)/', text, re.MULTILINE))
    folders = []
    for name in sorted(names):
        if (site / name).is_dir():
            folders.append(site / name)
    return folders


def no_library(name: str) -> Library:
    """A file that has the name of a library, and is none."""
    return Library(path=name, sha256="", size=0, error="not a library, in spite of its name")


Cause = tuple[str, Sequence[str], str] | None
"""What the files say of a message: the cause, the culprits, the cure; None where they have nothing
to do with it. Where cause or cure is empty, the table's own words are right; a cure that begins
with a semicolon follows them.
"""


def given(match: re.Match[str]) -> str:
    """The name in a message, whichever of the pattern's groups holds it."""
    return next(filter(None, match.groupdict().values()), "")


def is_called(member: str, name: str) -> bool:
    """True if a member has this file name; Windows' names do not tell cases apart."""
    return posixpath.basename(member).lower() == name.lower()


def paths_called(libraries: Iterable[Library], name: str) -> list[str]:
    """The paths of the libraries that have this file name."""
    return [library.path for library in libraries if is_called(library.path, name)]
