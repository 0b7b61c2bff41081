"""The files that a message is about: a wheel, or the folder of an installed package."""

import mmap
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from farm.base.errors import UsageError
from farm.policy.levels import level_names
from farm.wheel.archive import Archive
from farm.wheel.dll_folders import added_by_code
from farm.wheel.elf import Symbols
from farm.wheel.library import (
    Code,
    Contents,
    Library,
    magics,
    read_contents,
    read_library,
    symbols_of,
)
from farm.wheel.needs import Need, resolve, search_folders
from farm.wheel.pe import DllSymbols

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
        fakes = [
            no_library(name) for name in contents.files if name not in read and LIBRARY.search(name)
        ]
        return contents._replace(libraries=(*contents.libraries, *fakes))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All files, as a wheel names them."""
        if self.path.is_dir():
            folder = _package(self.path)
            return tuple(
                path.relative_to(folder.parent).as_posix()
                for path in folder.rglob("*")
                if path.is_file()
            )
        return tuple(self.contents.files)

    @cached_property
    def libraries(self) -> tuple[Library, ...]:
        libraries = tuple(
            library for library in self.contents.libraries if library.is_loadable or library.error
        )
        if not libraries:
            raise UsageError(
                f"{self.path}: no library in it",
                hint="give the wheel, or the folder of the package",
            )
        return libraries

    @cached_property
    def needs(self) -> list[Need]:
        contents = self.contents
        return resolve(contents.libraries, (), contents.dependencies, contents.dll_folders)


def _package(folder: Path) -> Path:
    """The package's own folder, of it, of its `lib`, or of site-packages with torch in it."""
    folder = folder.resolve()
    if folder.name.lower() == "lib" and any(
        LIBRARY.search(entry.name) for entry in folder.iterdir()
    ):
        folder = folder.parent
    return folder / "torch" if (folder / "torch" / "lib").is_dir() else folder


def _read_folder(folder: Path, code: Code | None) -> Contents:
    """The libraries of an installed package; those of packages beside it into which its RUNPATHs
    lead, too.
    """
    site = folder.parent
    # <prefix>/Library/bin: where pip puts MKL and Intel's OpenMP on Windows, and torch looks.
    places = [
        folder,
        *_libs(folder),
        *[site.parent.parent / SHARED][: site.name.lower() == "site-packages"],
    ]
    files = sorted(
        file for file_place in places for file in file_place.rglob("*") if LIBRARY.search(file.name)
    )
    if len(files) > _MAX_FILES:
        raise UsageError(
            f"{folder}: more than {_MAX_FILES} libraries; give the package's own folder"
        )
    symbols: dict[str, Symbols | DllSymbols] = {}

    def read(file: Path) -> Library:
        if file.is_relative_to(site):
            name = file.relative_to(site).as_posix()
        else:
            name = f"{SHARED}/{file.name}"
        try:
            with file.open("rb") as stream:
                if not stream.read(4).startswith(magics(name)):
                    return no_library(name)
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    symbols[name] = symbols_of(data)
                    return read_library(name, "", data, code)
        except OSError as error:
            raise UsageError(f"{file}: cannot be read ({error.strerror})") from error

    libraries = tuple(read(file) for file in files if file.is_file())
    own_paths = {library.path for library in libraries}
    ways: set[str] = set()
    for library in libraries:
        if library.format == "elf":
            for place in search_folders(library):
                ways.update(posixpath.join(place, name) for name in library.needed)
    neighbours = tuple(
        read(site / path) for path in sorted(ways - own_paths) if (site / path).is_file()
    )
    return Contents(
        files={},
        libraries=libraries,
        symbols=symbols,
        dependencies=neighbours,
        dll_folders=_dll_folders(folder, libraries),
    )


def _dll_folders(package: Path, libraries: Iterable[Library]) -> frozenset[str]:
    """The folders with DLLs that the code of an installed package adds."""
    dlls = [library.path for library in libraries if library.format == "pe"]
    if not dlls:
        return frozenset()
    site = package.parent
    modules = {
        path.relative_to(site).as_posix(): path.stat().st_size
        for path in package.rglob("*.py")
        if path.is_file()
    }

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
    folders: set[str] = set()
    if not any(site.glob("*.libs")):
        return []
    for record in site.glob("*.dist-info/RECORD"):
        text = record.read_text("utf-8", "replace")
        if re.search(rf'^"?{re.escape(package.name)}/', text, re.MULTILINE):
            folders.update(re.findall(r'^"?([^/"\n]+\.libs)/', text, re.MULTILINE))
    return [site / name for name in sorted(folders) if (site / name).is_dir()]


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
    return next((text for text in match.groupdict().values() if text), "")


def is_called(member: str, name: str) -> bool:
    """True if a member has this file name; Windows' names do not tell cases apart."""
    return posixpath.basename(member).lower() == name.lower()
