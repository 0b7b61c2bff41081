"""The libraries of an installed package, named from site-packages on as in a wheel."""

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from farm.base.errors import UsageError
from farm.wheel.contents import Contents
from farm.wheel.imports import search_folders
from farm.wheel.library import Library, magics, read_library
from farm.wheel.link import read_link
from farm.wheel.pesymbols import DllSymbols
from farm.wheel.symbols import Symbols

PREFIX = "Library/bin"
"""Where the DLLs of a conda-like prefix are, in which torch looks too."""
_MAX_FILES = 20_000


def library_files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """(name from site-packages on, file) of what has one of these suffixes, and of the DLLs of the prefix.

    Args:
        folder: A package's own (`site-packages/torch`), its `lib`, or site-packages with torch in it.
        suffixes: In lower case; `.so` takes `.so.1` too.
    """
    folder = _package(folder)
    for file in _files(folder, suffixes):
        yield file.relative_to(folder.parent).as_posix(), file
    dlls = tuple(each for each in suffixes if each != ".so")  # those of Linux are found by RUNPATHs
    for libs in _libs(folder):
        yield from ((file.relative_to(folder.parent).as_posix(), file) for file in _files(libs, dlls))
    shared = folder.parent.parent.parent / "Library" / "bin"  # <prefix>\Lib\site-packages\torch
    if folder.parent.name.lower() == "site-packages" and shared.is_dir():
        yield from ((f"{PREFIX}/{file.name}", file) for file in _files(shared, suffixes))


def _libs(package: Path) -> list[Path]:
    """The folders beside a package into which delvewheel put its DLLs, by the RECORD that lists the package's files."""
    site = package.parent
    own: set[str] = set()
    for record in site.glob("*.dist-info/RECORD") if any(site.glob("*.libs")) else ():
        try:
            text = record.read_text("utf-8", "replace")
        except OSError:
            continue
        if re.search(rf'^"?{re.escape(package.name)}/', text, re.MULTILINE):
            own.update(re.findall(r'^"?([^/"\n]+\.libs)/', text, re.MULTILINE))
    return [site / name for name in sorted(own) if (site / name).is_dir()]


def _package(folder: Path) -> Path:
    folder = folder.resolve()
    if folder.name.lower() == "lib" and any(_files(folder, (".so", ".dll", ".pyd"))):
        folder = folder.parent
    return folder / "torch" if (folder / "torch" / "lib").is_dir() else folder


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    wanted = tuple(f"{suffix}." for suffix in suffixes if suffix == ".so")
    files = sorted(
        path
        for path in folder.rglob("*")
        if (path.suffix.lower() in suffixes or any(each in path.name for each in wanted)) and path.is_file()
    )
    if len(files) > _MAX_FILES:
        raise UsageError(f"{folder}: more than {_MAX_FILES} libraries; give the package's own folder")
    return files


def read_file(file: Path, name: str, level: str | None = None) -> tuple[Library, Symbols | DllSymbols | None]:
    """The facts of an installed library, with `level` also what it runs on loading, and what it takes and gives.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        with file.open("rb") as stream:
            if not stream.read(4).startswith(magics(name)):
                return Library(path=name, sha256="", size=0, error="not a library, in spite of its name"), None
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return read_library(name, "", data, level, on_load=True), read_link(data)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from error


def read_folder(folder: Path, level: str | None) -> Contents:
    """The libraries of an installed package; those of packages beside it into which its RUNPATHs lead, too."""
    libraries: list[Library] = []
    symbols: dict[str, Symbols | DllSymbols] = {}
    for name, file in library_files(folder, (".so", ".dll", ".pyd")):
        library, names = read_file(file, name, level)
        libraries.append(library)
        if names is not None:
            symbols[name] = names
    beside = _beside(folder.resolve(), libraries)
    for library, names in beside:
        if names is not None:
            symbols[library.path] = names
    return Contents(
        files={}, libraries=tuple(libraries), symbols=symbols, dependencies=tuple(library for library, _ in beside)
    )


def _beside(folder: Path, libraries: list[Library]) -> list[tuple[Library, Symbols | DllSymbols | None]]:
    """Files outside of the package to which RUNPATHs lead."""
    site = next((each for each in folder.parents if each.name == "site-packages"), folder.parent)
    known = {library.path for library in libraries}
    found = []
    for library in libraries:
        for place in search_folders(library) if library.format == "elf" else ():
            for name in library.needed:
                path = f"{place}/{name}".lstrip("/")
                if path not in known and (site / path).is_file():
                    known.add(path)
                    found.append(read_file(site / path, path))
    return found
