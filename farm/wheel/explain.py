"""Explanations of loaders' messages: the cause, the culprit, the cure.

Loaders name the file that they were asked for, seldom the one that is wrong. What is wrong is looked for in the files:
in the wheel, or in the folder of the installed package. Where nothing is wrong there, it is the machine, and the
explanation says which of its parts.

Behind "[WinError 126] The specified module could not be found" Windows does not say which file it missed. Python names
the file that it was asked to load; torch/__init__.py loads torch/lib/*.dll one by one in the order of the folder, which
NTFS keeps sorted without regard to case. So the file named is the first one with a broken chain of imports, and usually
a bystander.
"""

import mmap
import posixpath
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel.archive import Archive
from farm.wheel.elf import Symbols
from farm.wheel.fatbin import number, order, runs_on
from farm.wheel.isalevels import level_names
from farm.wheel.library import Contents, Library, magics, read_contents, read_library, read_needs, symbols_of
from farm.wheel.link import missing_names
from farm.wheel.needs import Answer, Need, resolve, resolve_dlls, search_folders
from farm.wheel.pe import DllSymbols
from farm.wheel.policy import Frozen, Printable
from farm.wheel.windows import added_folders, fits

PREFIX = "Library/bin"
"""Where the DLLs of a conda-like prefix are, in which torch looks too."""
_MAX_FILES = 20_000
_MAX_MESSAGE = 64 << 10


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
                return _no_library(name), None
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return read_library(name, "", data, level, on_load=True), symbols_of(data)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from error


def _no_library(name: str) -> Library:
    return Library(path=name, sha256="", size=0, error="not a library, in spite of its name")


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


class MissingDll(Frozen):
    """A DLL that nothing provides.

    Attributes:
        name: As the file that needs it writes it.
        needed_by: The members that import it.
        when: `load`: without it nothing works (error 126); `call` or `name`: a later function fails.
        chain: From the first DLL that is loaded and fails because of it to it; empty if none does.
        source: Where to get it; empty if that is not known.
        elsewhere: The member that has this name, in a folder where Windows does not look.
    """

    name: Printable
    needed_by: tuple[Printable, ...]
    when: str
    chain: tuple[Printable, ...]
    source: str
    elsewhere: Printable | None


class Diagnosis(Frozen):
    """DLLs that a wheel or an installation lacks.

    Attributes:
        where: Name of the file or folder.
        named: The file that Python's message names; None if everything loads.
        innocent: It imports nothing itself that is missing.
        missing: What breaks the import first, then the rest.
    """

    where: str
    named: Printable | None
    innocent: bool
    missing: tuple[MissingDll, ...]


class _Source(Frozen):
    names: tuple[str, ...]
    source: str


def why_126(path: Path) -> Diagnosis:
    """Find what is missing in a Windows wheel, or in an installed package's folder (`site-packages/torch`).

    Raises:
        UsageError: There is no such file or folder, or it holds no DLL.
        VerificationFailedError: The wheel or a DLL is damaged.
    """
    libraries = _of_folder(path) if path.is_dir() else _of_wheel(path)
    broken = next((library for library in libraries if library.error), None)
    if broken is not None:
        raise VerificationFailedError(f"{broken.path}: {broken.error}", hint="install or build it again")
    loadable = [library for library in libraries if library.is_loadable]
    if not loadable:
        raise UsageError(f"{path}: no DLL and no .pyd in it", hint="give a Windows wheel, or the folder torch")
    needs = resolve_dlls(loadable, ())
    named, chains, reached = _walk(loadable, needs)
    missing: dict[str, list[Need]] = {}
    for need in needs:
        if need.who in reached and need.answer in (Answer.MISSING, Answer.UNREACHABLE):
            missing.setdefault(need.name.lower(), []).append(need)
    found = [_missing(group, chains.get(key, ())) for key, group in sorted(missing.items())]
    found.sort(key=lambda item: (not item.chain, item.when != "load", item.name.lower()))
    guilty = {who for item in found if item.when == "load" for who in item.needed_by}
    return Diagnosis(
        where=path.name, named=named, innocent=named is not None and named not in guilty, missing=tuple(found)
    )


def _missing(group: list[Need], chain: tuple[str, ...]) -> MissingDll:
    whens = [need.when for need in group]
    return MissingDll(
        name=group[0].name,
        needed_by=tuple(dict.fromkeys(need.who for need in group)),
        when="load" if "load" in whens else whens[0],
        chain=chain,
        source=source_of(group[0].name),
        elsewhere=group[0].by,
    )


def source_of(name: str) -> str:
    """Which package or component holds a DLL; empty if that is not known."""
    return next((source.source for source in _sources() if fits(name, source.names)), "")


@cache
def _sources() -> tuple[_Source, ...]:
    text = (resources.files("farm.wheel") / "dll_sources.yaml").read_text(encoding="utf-8")
    return tuple(_Source.model_validate(raw) for raw in yaml.safe_load(text))


def _order(library: Library) -> tuple[bool, bool, str]:
    """As they are loaded: the DLLs of the folder that the package adds, then extension modules; NTFS sorts so."""
    folder, name = posixpath.split(library.path)
    return not fits(folder, added_folders()), not name.lower().endswith(".dll"), library.path.upper()


def _walk(libraries: list[Library], needs: list[Need]) -> tuple[str | None, dict[str, tuple[str, ...]], frozenset[str]]:
    """Load everything: the first file that fails; for each missing DLL the shortest way to it from the first file
    that fails because of it; all files that were come to. The prefix's DLLs are loaded only if something needs them.
    """
    by_who: dict[str, list[Need]] = {}
    for need in needs:
        if need.when == "load":
            by_who.setdefault(need.who, []).append(need)
    named = None
    chains: dict[str, tuple[str, ...]] = {}
    reached: set[str] = set()
    for root in sorted(libraries, key=_order):
        if root.path.startswith(f"{PREFIX}/"):
            continue
        seen = {root.path}
        ways: deque[tuple[str, ...]] = deque([(root.path,)])
        while ways:
            way = ways.popleft()
            for need in by_who.get(way[-1], []):
                if need.answer in (Answer.MISSING, Answer.UNREACHABLE):
                    named = named or root.path
                    chains.setdefault(need.name.lower(), (*way, need.name))
                elif need.answer is Answer.WHEEL and need.by and need.by not in seen:
                    seen.add(need.by)
                    ways.append((*way, need.by))
        reached |= seen
    return named, chains, frozenset(reached)


def _of_wheel(path: Path) -> list[Library]:
    with Archive(path) as archive:
        return [library for library in read_needs(archive, hashed=False).libraries if library.format == "pe"]


def _of_folder(path: Path) -> list[Library]:
    return [read_file(file, name)[0] for name, file in library_files(path, (".dll", ".pyd"))]


MOST = 8


class Explanation(Frozen):
    """One message, explained.

    Attributes:
        message: What was recognised, such as `error 126`.
        cause: What it means here.
        culprits: The files that cause it, each with what is wrong; empty: none of these files does.
        cure: What to do.
    """

    message: str
    cause: Printable
    culprits: tuple[Printable, ...] = ()
    cure: Printable


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
        return self._read(level_names()[0])

    def _read(self, level: str | None) -> Contents:
        if self.path.is_dir():
            return read_folder(self.path, level)
        with Archive(self.path) as archive:
            # `*`: of every library only what runs on loading, for that is when a loader's message comes.
            found = read_contents(archive, lambda _: level, ("*",), with_symbols=True)
        known = {each.path for each in found.libraries}
        fakes = [name for name in found.files if name not in known and re.search(r"\.(so(\.[\d.]+)?|dll|pyd)$", name)]
        return found._replace(libraries=(*found.libraries, *map(_no_library, fakes)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All files, as a wheel names them."""
        if self.path.is_dir():
            folder = _package(self.path)
            return tuple(each.relative_to(folder.parent).as_posix() for each in folder.rglob("*") if each.is_file())
        return tuple(self.contents.files)

    @cached_property
    def libraries(self) -> tuple[Library, ...]:
        found = tuple(each for each in self.contents.libraries if each.is_loadable or each.error)
        if not found:
            raise UsageError(f"{self.path}: no library in it", hint="give the wheel, or the folder of the package")
        return found

    @cached_property
    def needs(self) -> list[Need]:
        return resolve(self.contents.libraries, (), self.contents.dependencies)


def where_from(name: str) -> str:
    """The library, and where to get it."""
    source = source_of(name) or next(
        (each["source"] for each in known()["libraries"] if any(fnmatchcase(name, one) for one in each["names"])), ""
    )
    return f"{name}: {source or 'look for the name in the environment of the build'}"


@cache
def known() -> dict[str, Any]:
    """The tables of loader_messages.yaml."""
    text = (resources.files("farm.wheel") / "loader_messages.yaml").read_text(encoding="utf-8")
    tables: dict[str, Any] = yaml.safe_load(text)
    return tables


def given(match: re.Match[str]) -> str:
    """The name in a message, whichever of the pattern's groups holds it."""
    return next((text for text in match.groupdict().values() if text), "")


def undefined_symbol(files: Files, symbol: str) -> Explanation:
    """A name that a library takes and none gives."""
    symbols = files.contents.symbols
    takers = [path for path, each in symbols.items() if isinstance(each, Symbols) and symbol in each.undefined]
    takers += [path for path, each in symbols.items() if isinstance(each, DllSymbols) and _takes(each, symbol)]
    givers = [
        path
        for path, each in symbols.items()
        if symbol in (each.defined if isinstance(each, Symbols) else each.exports)
    ]
    owned = next((each for each in known()["symbols"] if re.match(each["pattern"], symbol)), None)
    owner = owned["owner"] if owned else "a library that these files need"
    if givers:
        cause = f"{symbol} is given by {', '.join(givers[:3])}, but another copy of that library was loaded first"
        cure = "take other copies out of LD_LIBRARY_PATH and PATH, and import nothing before that brings its own"
    else:
        cause = f"{symbol} should come from {owner}, and the version that was loaded does not have it"
        cure = owned["cure"] if owned else "install the versions that METADATA pins, or build the wheel again"
    return Explanation(
        message="undefined symbol",
        cause=cause,
        culprits=tuple(f"{path} takes it" + _from(symbols[path], symbol) for path in takers[:MOST]),
        cure=cure,
    )


def _takes(dll: DllSymbols, symbol: str) -> bool:
    return any(symbol in taken for taken in dll.imports.values())


def _from(each: Symbols | DllSymbols, symbol: str) -> str:
    if isinstance(each, DllSymbols):
        return " from " + next(dll for dll, taken in each.imports.items() if symbol in taken)
    library, version = each.undefined[symbol]
    return f" from {library}, version {version}" if library else ""


def _error_126(files: Files, match: re.Match[str]) -> Explanation:
    found = why_126(files.path)
    # PyTorch and ctypes name the DLL that they were loading; messages of others name none.
    told = re.search(r"([\w.-]+\.(?:dll|pyd))[\"']", match.string, re.IGNORECASE)
    name = told[1].lower() if told else ""
    absent = bool(name) and all(_file_name(library) != name for library in files.libraries)
    if not found.missing:
        return Explanation(
            message="error 126",
            cause=f"{name}, which the message names, is not among these files"
            if absent
            else "a DLL is missing, but none of those that these files need",
            cure="install the Microsoft Visual C++ Redistributable; pip install --force-reinstall the package",
        )
    loading = [item for item in found.missing if item.when == "load"] or list(found.missing)
    named = f"; {found.named} is the first that fails" if found.named else ""
    if told and name not in {each.name.lower() for each in found.missing}:
        named = f"; {told[1]}, which the message names, is {'not among these files' if absent else 'there'}"
    return Explanation(
        message="error 126",
        cause=f"Windows cannot find a DLL that is needed{named}",
        culprits=tuple(f"{item.name}, needed by {', '.join(item.needed_by[:3])}" for item in loading[:MOST]),
        cure="; ".join(dict.fromkeys(where_from(item.name) for item in loading[:MOST])),
    )


def _file_name(library: Library) -> str:
    return library.path.rpartition("/")[2].lower()


def _lost_names(files: Files) -> list[tuple[str, str]]:
    return list(missing_names(files.libraries, files.needs, files.contents.symbols))


def _error_127(files: Files, _: re.Match[str]) -> Explanation:
    lost = _lost_names(files)
    if lost:
        cure = (
            "these files are of different builds: install the package anew (pip install --force-reinstall), or build it"
        )
        return Explanation(
            message="error 127",
            cause="a DLL lacks a function that another one takes from it",
            culprits=tuple(f"{member} {what}" for member, what in lost[:MOST]),
            cure=f"{cure} from one tree",
        )
    outside = Counter(need.name.lower() for need in files.needs if need.answer is not Answer.WHEEL)
    system = ("api-ms-", "kernel32", "ucrtbase")
    # Of a wheel for Linux there are none: the message came from another package, or another machine.
    others = [name for name, _ in outside.most_common() if name.endswith(".dll") and not name.startswith(system)]
    look = f"; look at {', '.join(others[:MOST])}" if others else ""
    return Explanation(
        message="error 127",
        cause="a DLL lacks a function that another one takes from it; all DLLs of these files fit one another, so "
        "another copy was loaded in place of one: from System32, an older Visual C++ runtime, or another package",
        cure=f"update the Visual C++ Redistributable and the driver{look}",
    )


def _error_193(files: Files, match: re.Match[str]) -> Explanation:
    libraries = files.libraries
    # An installed folder has no tags: the machine of most libraries counts as the right one.
    usual = Counter(each.machine for each in libraries if not each.error).most_common(1)
    machine = usual[0][0] if usual else ""
    bad = [f"{each.path}: {each.error}" for each in libraries if each.error]
    bad += [f"{each.path}: for {each.machine}" for each in libraries if not each.error and each.machine != machine]
    name = (match["file"] or "").rpartition("/")[2]
    if name and all(not _is_called(each.path, name) for each in libraries):
        return Explanation(
            message=match[0].lower(),
            cause=f"{name}, which the message names, is not among these files",
            culprits=tuple(bad[:MOST]),
            cure=f"look at the file that the message names (file PATH), and at the package that brought it: "
            f"{match['file']}",
        )
    if bad:
        return Explanation(
            message=match[0].lower(),
            cause="a library is for another kind of machine, or damaged",
            culprits=tuple(bad[:MOST]),
            cure=f"the others are for {machine or 'no known machine'}: install the package anew, or replace these",
        )
    return Explanation(
        message=match[0].lower(),
        cause=f"all libraries here are sound and for {machine}: the Python that loads them is not",
        cure=f"use a Python for {machine} (32 bits and 64 bits do not mix), or the wheel for this Python",
    )


def _error_1114(files: Files, match: re.Match[str]) -> Explanation:
    culprits, newest = _runtimes(files, match.string)
    return Explanation(
        message="error 1114",
        cause="every DLL was found; the code that one runs on loading failed. Usual reasons: an older Visual C++ "
        "runtime than the DLL was linked for, an instruction that this CPU does not have, or a second OpenMP runtime",
        culprits=culprits,
        cure=f"install the Microsoft Visual C++ Redistributable, {newest}; then try --explain 'illegal instruction'",
    )


def _error_998(files: Files, match: re.Match[str]) -> Explanation:
    """A crash: while a DLL is loaded Windows says 998 or 487 of it, afterwards the process ends with 0xC0000005."""
    culprits, newest = _runtimes(files, match.string)
    return Explanation(
        message="error 998",
        cause="the code of a DLL reached for memory that is not there; these files are sound. Usual reasons: an older "
        "msvcp140.dll than they were linked for (std::mutex of Visual C++ 14.40 and newer crashes in it), a second "
        "OpenMP runtime, or another version of a library that was loaded first",
        culprits=culprits,
        cure=f"install the Microsoft Visual C++ Redistributable, {newest}; then import this package first. "
        "python -X faulthandler shows the line that crashes",
    )


def _runtimes(files: Files, message: str) -> tuple[tuple[str, ...], str]:
    """Libraries with the highest needs of the Visual C++ runtime and of OpenMP, and a runtime that is new enough."""
    dlls = [each for each in files.libraries if each.format == "pe"]
    named = [each for each in dlls if _file_name(each) in message.lower()] or dlls
    linked = [each for each in named if each.linker and _needs(each, "msvcp140*")]
    newest = max(linked, key=lambda each: tuple(map(int, str(each.linker).split("."))), default=None)
    openmp = [each.path for each in dlls if re.search(r"(libiomp5md|libomp|vcomp\d+)[^/]*\.dll$", each.path.lower())]
    culprits = [f"{newest.path}: linked by Visual C++ {newest.linker}"] if newest else []
    # One OpenMP runtime is usual; two in one process are a reason to fail.
    culprits += [f"{each}: an OpenMP runtime" for each in openmp] if len(openmp) > 1 else []
    first = f"version 14.{(newest.linker or '').partition('.')[2]} or newer" if newest else "the newest version"
    return tuple(culprits), first


def _needs(library: Library, pattern: str) -> bool:
    return any(fnmatchcase(name.lower(), pattern) for name in library.needed)


def _no_module(files: Files, match: re.Match[str]) -> Explanation | None:
    """A module that Python does not find, looked up in the files; None if another package should have it."""
    name = match["name"]
    stem = name.replace(".", "/")
    if not any(each.startswith(f"{stem.partition('/')[0]}/") for each in files.names) or "." not in name:
        return None
    binary = [each for each in files.names if re.fullmatch(re.escape(stem) + r"\.([\w-]+\.)?(so|pyd)", each)]
    if binary:
        suffixes = ", ".join(each.removeprefix(stem) for each in binary)
        return Explanation(
            message="no module",
            cause=f"{name} is there, and the Python that looked for it does not import {suffixes}",
            culprits=tuple(binary[:MOST]),
            cure="python -c 'import _imp; print(_imp.extension_suffixes())' lists what it imports: use the Python that "
            "the suffix names, or the wheel for this one; if the suffix is listed, another folder of this name comes "
            "first (the current folder, PYTHONPATH)",
        )
    if any(each in files.names for each in (f"{stem}.py", f"{stem}/__init__.py")):
        cause, cure = "is there", "another folder of this name comes first: run Python elsewhere, and unset PYTHONPATH"
    else:
        cause, cure = "is not among these files", "the build left it out, or the code that imports it is for another "
        cure += "version: install the versions that belong together, or build the wheel with it"
    return Explanation(message="no module", cause=f"{name} {cause}", cure=cure)


def _no_entry(files: Files, match: re.Match[str]) -> Explanation:
    """A library with the name of a module, and none inside."""
    name = f"PyInit_{match['name']}"
    called = re.compile(rf"(^|/){re.escape(match['name'])}\.([\w-]+\.)?(so|pyd)$")
    lacks = []
    for path, each in files.contents.symbols.items():
        if called.search(path) and name not in (each.defined if isinstance(each, Symbols) else each.exports):
            lacks.append(f"{path} has no {name}")
    return Explanation(
        message="no PyInit",
        cause=f"Python calls {name} of a module, and the file that it found does not have it: it was renamed, its "
        "symbols were stripped or hidden, or it is no extension module",
        culprits=tuple(lacks[:MOST]),
        cure="build it under the name that its source gives to PyInit_ (PYBIND11_MODULE, TORCH_EXTENSION_NAME)"
        + ("" if lacks else "; these files are not to blame: print the package's __file__, another copy comes first"),
    )


def explain(path: Path, message: str) -> tuple[Explanation, ...]:
    """Explain each error that is recognised in `message`; empty where none is.

    Args:
        path: A wheel, or the folder of an installed package.
        message: What the loader, Python, the kernel or CUDA wrote; whole tracebacks are fine.

    Raises:
        UsageError: There is no such file or folder, or no library in it.
        VerificationFailedError: The wheel is damaged.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    files = Files(path)
    text = message[:_MAX_MESSAGE]
    found = [(match.start(), run(files, match)) for pattern, run in _messages() if (match := pattern.search(text))]
    return tuple(explanation for _, explanation in sorted(found, key=lambda each: each[0]) if explanation is not None)


def _missing_file(files: Files, match: re.Match[str]) -> Explanation:
    name = given(match).rpartition("/")[2]
    asking = [need for need in files.needs if need.name.lower() == name.lower()]
    unreachable = next((need for need in asking if need.answer is Answer.UNREACHABLE), None)
    inside = next((each.path for each in files.contents.libraries if _is_called(each.path, name)), None)
    if unreachable:
        return Explanation(
            message="cannot open shared object file",
            cause=f"{name} is at {unreachable.by}, where the loader does not look for it",
            culprits=tuple(f"{need.who}: its RUNPATH does not lead there" for need in asking[:MOST]),
            cure="repair the wheel: farm repair --tools; on one machine, import the package that loads it first",
        )
    if inside:
        return Explanation(
            message="cannot open shared object file",
            cause=f"{name} is at {inside}; a library elsewhere opens it by name and does not look there",
            culprits=(inside,),
            cure="import this package before the one that fails; or start Python with that folder in LD_LIBRARY_PATH "
            "(PATH on Windows); give both packages the same major version of it",
        )
    return Explanation(
        message="cannot open shared object file",
        cause=f"{name} is not on this machine, or not where the loader looks",
        culprits=tuple(f"{need.who} needs it" for need in asking[:MOST]),
        cure=where_from(name),
    )


def _is_called(member: str, name: str) -> bool:
    return member.rpartition("/")[2].lower() == name.lower()


def _undefined(files: Files, match: re.Match[str]) -> Explanation:
    return undefined_symbol(files, given(match))


def _version(files: Files, match: re.Match[str]) -> Explanation:
    """`version 'GLIBC_2.34' not found`, and those of libstdc++ and others."""
    wanted = match["name"] or match["short"]
    asking = [
        (library.path, file)
        for library in files.libraries
        for file, versions in library.versions.items()
        if wanted in versions
    ]
    family, _, number = wanted.partition("_")
    file = (match["file"] or "library").rpartition("/")[2]
    cause = f"the system's {file} is older than these files were built for: it lacks {wanted}"
    cure = "install a wheel that was built on an older system (a lower manylinux tag), or build it there"
    if family == "GLIBC":
        first = next((row for row in known()["glibc"] if _numbers(row["version"]) >= _numbers(number)), None)
        systems = f": {first['systems']} and newer" if first else ""
        cause = f"the system's glibc is older than {number}, which these files need{systems}"
        cure = f"use a newer system or container; {cure}; glibc cannot be installed beside"
    elif family in ("GLIBCXX", "CXXABI"):
        cure = (
            "use a newer libstdc++.so.6 (conda: libstdcxx-ng; a newer GCC's runtime, first in LD_LIBRARY_PATH); or "
            + cure
        )
    return Explanation(
        message=f"{wanted} not found",
        cause=cause,
        culprits=tuple(f"{path} needs it of {file}" for path, file in asking[:MOST]),
        cure=cure,
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _no_kernel(files: Files, match: re.Match[str]) -> Explanation:
    """CUDA has no code for the GPU: which libraries have code, and for which GPUs."""
    named = re.search(r"\bsm_?(\d{2,3})\b|capability (\d{1,2})\.(\d)", match.string, re.IGNORECASE)
    gpu = int(named[1] or named[2] + named[3]) if named else None
    with_code = [each for each in files.libraries if each.fatbins]
    rows = []
    for library in with_code:
        sass = {arch for group in library.fatbins for arch in group.sass}
        ptx = {arch for group in library.fatbins for arch in group.ptx}
        if gpu is None or not (any(runs_on(gpu, arch) for arch in sass) or any(number(arch) <= gpu for arch in ptx)):
            names = [
                *(f"sm_{arch}" for arch in sorted(sass, key=order)),
                *(f"PTX {arch}" for arch in sorted(ptx, key=order)),
            ]
            rows.append(f"{library.path}: {', '.join(names) or 'no code'}")
    here = f"sm_{gpu}" if gpu else "this GPU (farm detect says which it is)"
    if gpu is not None and with_code and not rows:
        return Explanation(
            message="no kernel image",
            cause=f"every library here has code for {here}: another build is imported, or another package lacks it",
            cure="print(torch.__file__, torch.cuda.get_arch_list()) says which build is imported",
        )
    return Explanation(
        message="no kernel image",
        cause=f"a library holds no code for {here}" if with_code else f"no library here has code for GPUs or {here}",
        culprits=tuple(rows[:MOST]),
        cure="install a wheel for this GPU (farm detect names it), or build one (farm plan)",
    )


def _illegal(files: Files, match: re.Match[str]) -> Explanation:
    """Which libraries run instructions on loading that old CPUs do not have."""
    rows = []
    for library in files.on_load.libraries:
        for feature, (count, places) in library.instructions.beyond.items() if library.instructions else ():
            rows.append(f"{library.path}: {count} instructions that run on loading need {feature}, at {places[0]}")
    where = re.search(r" in ([\w.+-]+\.(?:so[\w.]*|dll|pyd))\[", match.string)
    rows = [row for row in rows if not where or where[1] in row] or rows
    if rows:
        return Explanation(
            message="illegal instruction",
            cause="code that runs on loading needs instructions that this CPU may not have (lscpu names those it has)",
            culprits=tuple(rows[:MOST]),
            cure="install a wheel for this CPU (farm detect names it), or build one for its level",
        )
    named = f"; the kernel names {where[1]}" if where else ""
    return Explanation(
        message="illegal instruction",
        cause=f"a function needs an instruction that this CPU does not have; nothing that runs on loading does{named}",
        cure="farm verify WHEEL --policy with the CPU level of the machine lists such instructions; install or build a "
        "wheel for that level; ATEN_CPU_CAPABILITY=default helps where only ATen's kernels are too new",
    )


def _stack(files: Files, _: re.Match[str]) -> Explanation:
    return Explanation(
        message="executable stack",
        cause="a library asks for an executable stack, which glibc 2.41 and systems with SELinux refuse",
        culprits=tuple(each.path for each in files.libraries if each.executable_stack)[:MOST],
        cure="patchelf --clear-execstack FILE, or link with -Wl,-z,noexecstack",
    )


def _by_table(kind: str, files: Files, _: re.Match[str]) -> Explanation:
    """A message that means the same wherever it comes from; `needs`: what a file must need to have to do with it."""
    cause = known()["causes"][kind]
    asking = [
        f"{library.path} needs {name}"
        for library in files.libraries
        for name in library.needed
        if any(fnmatchcase(name.lower(), pattern) for pattern in cause.get("needs", ()))
    ]
    return Explanation(message=kind, cause=cause["cause"], culprits=tuple(asking[:MOST]), cure=cause["cure"])


# Kinds of messages as loader_messages.yaml names them; those that are not here have a cause there.
_KINDS: dict[str, Callable[[Files, re.Match[str]], Explanation | None]] = {
    "error 126": _error_126,
    "error 127": _error_127,
    "error 193": _error_193,
    "error 1114": _error_1114,
    "error 998": _error_998,
    "missing file": _missing_file,
    "undefined symbol": _undefined,
    "version not found": _version,
    "no kernel image": _no_kernel,
    "illegal instruction": _illegal,
    "executable stack": _stack,
    "no module": _no_module,
    "no PyInit": _no_entry,
}


@cache
def _messages() -> list[tuple[re.Pattern[str], Callable[[Files, re.Match[str]], Explanation | None]]]:
    tables = known()
    return [
        (
            re.compile("|".join([*patterns, *map(re.escape, tables["translated"].get(kind, ()))]), re.IGNORECASE),
            _KINDS.get(kind) or partial(_by_table, kind),
        )
        for kind, patterns in tables["messages"].items()
    ]
