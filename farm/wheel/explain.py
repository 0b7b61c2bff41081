"""Explanations of messages of loaders, Python, CUDA and compilers: the cause, the culprit, the
cure.

Which message means what: `messages.yaml`. Loaders name the file that they were asked for, seldom
the one that is wrong. What is wrong is looked for in the files: in the wheel, or in the folder of
the installed package. Where nothing is wrong there, it is the machine, and the explanation says
which of its parts.

Behind "[WinError 126] The specified module could not be found" Windows does not say which file it
missed. Python names the file that it was asked to load; torch/__init__.py loads torch/lib/*.dll one
by one in the order of the folder, which NTFS keeps sorted without regard to case. So the file named
is the first one with a broken chain of imports, and usually a bystander.
"""

import mmap
import posixpath
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import UsageError, VerificationFailedError
from farm.base.yamlfile import Model, load
from farm.wheel.archive import Archive
from farm.wheel.elf import Symbols
from farm.wheel.fatbin import number, order, runs_on
from farm.wheel.library import (
    Code,
    Contents,
    Library,
    magics,
    read_contents,
    read_library,
    symbols_of,
)
from farm.wheel.needs import Answer, Need, resolve, search_folders
from farm.wheel.pe import DllSymbols, added_folders, fits
from farm.wheel.policy import Frozen, Printable, level_names
from farm.wheel.verify import missing_names


class Row(Model):
    """A known cause; `messages.yaml` says what the keys mean."""

    id: str
    patterns: list[str] = []
    also: list[str] = []
    signals: list[str] = []
    hung: bool = False
    gpu: bool = True
    unless: list[str] = []
    needs: list[str] = []
    looks: str = ""
    what: str
    fix: str
    source: str


class Tables(Model):
    """The file: messages; the first systems with a glibc; whose names of a form are; who brings a
    library.
    """

    messages: list[Row]
    glibc: list[dict[str, str]]
    symbols: list[dict[str, str]]
    libraries: list[dict[str, Any]]


@cache
def tables() -> Tables:
    return load(Path(__file__).with_name("messages.yaml"), Tables)


def source_of(library: str) -> str:
    """The package or component that holds a library; empty if that is not known."""
    return next(
        (str(row["source"]) for row in tables().libraries if fits(library, tuple(row["names"]))), ""
    )


def known(
    texts: Sequence[str],
    module: str,
    *,
    signal: str | None = None,
    hung: bool = False,
    gpu: bool = True,
) -> list[tuple[Row, re.Match[str] | None]]:
    """The rows that fit, in the order of the table; no match where the way in which the process
    ended decided.

    `signal` ended the process; `hung`: it did not end in its time; `gpu`: it could use a card.
    """
    found: list[tuple[Row, re.Match[str] | None]] = []
    for row in tables().messages:
        if any(other.id in row.unless for other, _ in found):
            continue
        patterns = [
            *(each.replace("{module}", re.escape(module)) for each in row.patterns),
            *map(re.escape, row.also),
        ]
        matches = (
            re.search(pattern, text, re.IGNORECASE) for text in texts for pattern in patterns
        )
        match = min(filter(None, matches), key=lambda match: match.start(), default=None)
        if match or (signal in row.signals and not hung) or (row.hung and hung and row.gpu == gpu):
            found.append((row, match))
    return found


def words(
    texts: Iterable[str], module: str, seen: Mapping[str, str] | None = None, cpu: str | None = None
) -> dict[str, str]:
    """Values for the placeholders of the table's texts; `seen`: what the checks of a smoke test
    saw, by name.
    """
    seen = seen or {}
    match = re.match(r"(\d+)\.\d+$", seen.get("CUDA version", ""))
    missing = next(
        (
            found[1]
            for text in texts
            if (found := re.search(r"No module named '([\w.]{1,100})'", text))
        ),
        "",
    )
    majors = catalog.cuda_majors()
    if match and match[1] in majors:
        majors = {match[1]: majors[match[1]]}
    return {
        "module": module,
        "missing": missing or "a module",
        "cuda": f"CUDA {match[0]}" if match else "a newer CUDA",
        "driver_linux": _drivers({name: major.driver_linux for name, major in majors.items()}),
        "driver_windows": _drivers({name: major.driver_windows for name, major in majors.items()}),
        "archs": seen.get("architectures", "") or "unknown",
        "card": seen.get("devices", "") or "the card",
        "cpu": cpu or "this CPU",
    }


def _drivers(by_major: Mapping[str, str | None]) -> str:
    """The driver, or those of each CUDA where the report does not say which one it is."""
    found = {name: driver for name, driver in by_major.items() if driver}
    if len(found) == 1:
        return next(iter(found.values()))
    return (
        ", ".join(f"{driver} (CUDA {name})" for name, driver in found.items())
        or "the one of its toolkit"
    )


_MAX_FILES = 20_000
_MAX_MESSAGE = 64 << 10
_MOST = 8
_SHARED = "Library/bin"
_FILE = re.compile(r"[\w./+@-]+\.so[\w.]*")
_LIBRARY = re.compile(r"\.(so(\.[\d.]+)?|dll|pyd)$", re.IGNORECASE)


class Explanation(Frozen):
    """One message, explained.

    `culprits`: The files that cause it, each with what is wrong; empty: none of these files does.
    """

    message: str  # what was recognised, such as `winerror 126`
    cause: Printable  # what it means here
    culprits: tuple[Printable, ...] = ()
    cure: Printable  # what to do


def explain(path: Path, message: str) -> tuple[Explanation, ...]:
    """Explain each error that is recognised in `message`, which may be a whole traceback; empty
    where none is.

    Args:
        path: A wheel, or the folder of an installed package.
        message: What the loader, Python, the kernel or CUDA wrote.

    Raises:
        UsageError: There is no such file or folder, or no library in it.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    files = Files(path)
    text = message[:_MAX_MESSAGE]
    module = path.name.partition("-")[0]
    found = []
    for row, match in known([text], module):
        if match is None:
            continue
        there = _LOOKS[row.looks](files, match) if row.looks else None
        cause, culprits, cure = there or ("", _needing(files, row.needs), "")
        filled = words([text], module)
        cause = cause or row.what.format(**filled)
        if not (cure and not cure.startswith(";")):
            cure = row.fix.format(**filled) + cure
        name = row.id.replace("-", " ")
        explanation = Explanation(
            message=name, cause=cause, culprits=tuple(culprits[:_MOST]), cure=cure
        )
        found.append((match.start(), explanation))
    return tuple(explanation for _, explanation in sorted(found, key=lambda each: each[0]))


def _needing(files: "Files", patterns: Sequence[str]) -> list[str]:
    found = ((each, name) for each in (files.libraries if patterns else ()) for name in each.needed)
    return [
        f"{library.path} needs {name}" for library, name in found if fits(name, tuple(patterns))
    ]


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
            found = read_contents(archive, lambda _: code, with_symbols=True)
        read = {each.path for each in found.libraries}
        fakes = [
            _no_library(name) for name in found.files if name not in read and _LIBRARY.search(name)
        ]
        return found._replace(libraries=(*found.libraries, *fakes))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All files, as a wheel names them."""
        if self.path.is_dir():
            folder = _package(self.path)
            return tuple(
                each.relative_to(folder.parent).as_posix()
                for each in folder.rglob("*")
                if each.is_file()
            )
        return tuple(self.contents.files)

    @cached_property
    def libraries(self) -> tuple[Library, ...]:
        found = tuple(each for each in self.contents.libraries if each.is_loadable or each.error)
        if not found:
            raise UsageError(
                f"{self.path}: no library in it",
                hint="give the wheel, or the folder of the package",
            )
        return found

    @cached_property
    def needs(self) -> list[Need]:
        return resolve(self.contents.libraries, (), self.contents.dependencies)


def _package(folder: Path) -> Path:
    """The package's own folder, of it, of its `lib`, or of site-packages with torch in it."""
    folder = folder.resolve()
    if folder.name.lower() == "lib" and any(
        _LIBRARY.search(each.name) for each in folder.iterdir()
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
        *[site.parent.parent / _SHARED][: site.name.lower() == "site-packages"],
    ]
    files = sorted(
        file for each in places for file in each.rglob("*") if _LIBRARY.search(file.name)
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
            name = f"{_SHARED}/{file.name}"
        try:
            with file.open("rb") as stream:
                if not stream.read(4).startswith(magics(name)):
                    return _no_library(name)
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    symbols[name] = symbols_of(data)
                    return read_library(name, "", data, code)
        except OSError as error:
            raise UsageError(f"{file}: cannot be read ({error.strerror})") from error

    libraries = tuple(read(file) for file in files if file.is_file())
    here = {library.path for library in libraries}
    ways = {
        posixpath.join(place, name)
        for library in libraries
        for place in (search_folders(library) if library.format == "elf" else ())
        for name in library.needed
    }
    beside = tuple(read(site / path) for path in sorted(ways - here) if (site / path).is_file())
    return Contents(files={}, libraries=libraries, symbols=symbols, dependencies=beside)


def _libs(package: Path) -> list[Path]:
    """The folders beside a package into which delvewheel put its DLLs, by the RECORD that lists the
    package's files.
    """
    site = package.parent
    own: set[str] = set()
    for record in site.glob("*.dist-info/RECORD") if any(site.glob("*.libs")) else ():
        text = record.read_text("utf-8", "replace")
        if re.search(rf'^"?{re.escape(package.name)}/', text, re.MULTILINE):
            own.update(re.findall(r'^"?([^/"\n]+\.libs)/', text, re.MULTILINE))
    return [site / name for name in sorted(own) if (site / name).is_dir()]


def _no_library(name: str) -> Library:
    return Library(path=name, sha256="", size=0, error="not a library, in spite of its name")


# --- what is looked for in the files: the cause, the culprits, the cure. Where cause or cure is empty the table's own
# words are right; a cure that begins with a semicolon follows them. None: the files have nothing to
# do with it.

_Found = tuple[str, Sequence[str], str] | None


def where_from(name: str) -> str:
    """The library, and where to get it."""
    return f"{name}: {source_of(name) or 'look for the name in the environment of the build'}"


def given(match: re.Match[str]) -> str:
    """The name in a message, whichever of the pattern's groups holds it."""
    return next((text for text in match.groupdict().values() if text), "")


def _undefined_symbol(files: Files, match: re.Match[str]) -> _Found:
    """A name that a library takes and none gives."""
    symbol = given(match)
    symbols = files.contents.symbols
    takers = [
        f"{path} takes it{where}"
        for path, each in symbols.items()
        if (where := each.source(symbol)) is not None
    ]
    givers = [path for path, each in symbols.items() if symbol in each.exports]
    owned = next((each for each in tables().symbols if re.match(each["pattern"], symbol)), None)
    if givers:
        cause = (
            f"{symbol} is given by {', '.join(givers[:3])}, but another copy of that library "
            "was loaded first"
        )
        cure = (
            "take other copies out of LD_LIBRARY_PATH and PATH, and import nothing before that "
            "brings its own"
        )
    else:
        owner = owned["owner"] if owned else "a library that these files need"
        cause = (
            f"{symbol} should come from {owner}, and the version that was loaded does not have it"
        )
        if owned:
            cure = owned["cure"]
        else:
            cure = "install the versions that METADATA pins, or build the wheel again"
    return cause, takers, cure


def _missing_dlls(files: Files, match: re.Match[str]) -> _Found:
    """WinError 126: every DLL that is missing, the chain to it from the first file that fails,
    where to get it.
    """
    dlls = [
        each
        for each in files.libraries
        if each.format == "pe" and not each.path.startswith(_SHARED)
    ]
    if broken := next((each for each in dlls if each.error), None):
        raise VerificationFailedError(
            f"{broken.path}: {broken.error}", hint="install or build it again"
        )
    if not dlls:
        cure = (
            "give the Windows wheel, or the installed folder, of the package that the message names"
        )
        return (
            "a DLL is missing on Windows, and there is none among these files to look into",
            (),
            cure,
        )
    # PyTorch and ctypes name the DLL that they were loading; messages of others name none.
    named = re.search(r"([\w.-]+\.(?:dll|pyd))[\"']", match.string, re.IGNORECASE)
    name = named[1] if named else ""
    absent = bool(name) and not any(_is_called(each.path, name) for each in files.libraries)
    first, chains, reached = _chains(dlls, files.needs)
    missing: dict[str, list[Need]] = {}
    for need in files.needs:
        if need.who in reached and need.answer in (Answer.MISSING, Answer.UNREACHABLE):
            missing.setdefault(need.name.lower(), []).append(need)
    if not missing:
        cause = "a DLL is missing, but none of those that these files need"
        if absent:
            cause = f"{name}, which the message names, is not among these files"
        cure = (
            "install the Microsoft Visual C++ Redistributable; pip install --force-reinstall "
            "the package"
        )
        return cause, (), cure
    # What breaks the import comes first; what is missing for a later call counts where nothing else
    # does.
    loading = {
        key: group for key, group in missing.items() if any(need.when == "load" for need in group)
    } or missing
    innocent = first and not any(need.who == first for group in loading.values() for need in group)
    if first:
        detail = (
            f"; {first} is the first that "
            f"fails{' (it is innocent: a bystander)' if innocent else ''}"
        )
    else:
        detail = ""
    if name and name.lower() not in missing and not (first and _is_called(first, name)):
        detail = (
            f"; {name}, which the message names, is "
            f"{'not among these files' if absent else 'there'}"
        )
    culprits = []
    for key, group in sorted(loading.items(), key=lambda item: (item[0] not in chains, item[0])):
        who = ", ".join(list(dict.fromkeys(need.who for need in group))[:3])
        if len(chains.get(key, ())) > 2:
            chain = f" (chain: {' -> '.join(chains[key])})"
        else:
            chain = ""
        if group[0].by:
            there = f"; there is one at {group[0].by}, where Windows does not look"
        else:
            there = ""
        culprits.append(f"{group[0].name}, needed by {who}{chain}{there}")
    cure = "; ".join(where_from(group[0].name) for group in list(loading.values())[:_MOST])
    return f"Windows cannot find a DLL that is needed{detail}", culprits, cure


def _chains(
    libraries: list[Library], needs: list[Need]
) -> tuple[str | None, dict[str, tuple[str, ...]], frozenset[str]]:
    """Load everything: the first file that fails; for each missing DLL the shortest way to it; what
    was come to.
    """
    by_who: dict[str, list[Need]] = {}
    for need in needs:
        if need.when == "load":
            by_who.setdefault(need.who, []).append(need)
    first = None
    chains: dict[str, tuple[str, ...]] = {}
    reached: set[str] = set()
    for root in sorted(libraries, key=_loading_order):
        seen = {root.path}
        ways: deque[tuple[str, ...]] = deque([(root.path,)])
        while ways:
            way = ways.popleft()
            for need in by_who.get(way[-1], []):
                if need.answer in (Answer.MISSING, Answer.UNREACHABLE):
                    first = first or root.path
                    chains.setdefault(need.name.lower(), (*way, need.name))
                elif need.answer is Answer.WHEEL and need.by and need.by not in seen:
                    seen.add(need.by)
                    ways.append((*way, need.by))
        reached |= seen
    return first, chains, frozenset(reached)


def _loading_order(library: Library) -> tuple[bool, bool, str]:
    """The DLLs of the folder that the package adds, then extension modules; NTFS sorts without
    regard to case.
    """
    folder, name = posixpath.split(library.path)
    return (
        not fits(folder, added_folders()),
        not name.lower().endswith(".dll"),
        library.path.upper(),
    )


def _missing_functions(files: Files, _: re.Match[str]) -> _Found:
    """WinError 127."""
    lost = list(missing_names(files.libraries, files.needs, files.contents.symbols))
    if lost:
        cause = "a DLL lacks a function that another one takes from it"
        cure = (
            "these files are of different builds: install the package anew (pip install "
            "--force-reinstall), or "
        )
        return cause, [f"{member} {what}" for member, what in lost], cure + "build it from one tree"
    outside = Counter(need.name.lower() for need in files.needs if need.answer is not Answer.WHEEL)
    system = ("api-ms-", "kernel32", "ucrtbase")
    # Of a wheel for Linux there are none: the message came from another package, or another
    # machine.
    others = [
        name
        for name, _ in outside.most_common()
        if name.endswith(".dll") and not name.startswith(system)
    ]
    look = f"; look at {', '.join(others[:_MOST])}" if others else ""
    cause = (
        "a DLL lacks a function that another one takes from it; all DLLs of these files fit one "
        "another, so another "
        "copy was loaded in place of one: from System32, an older Visual C++ runtime, or another "
        "package"
    )
    return cause, (), f"update the Visual C++ Redistributable and the driver{look}"


def _wrong_machine(files: Files, match: re.Match[str]) -> _Found:
    libraries = files.libraries
    # An installed folder has no tags: the machine of most libraries counts as the right one.
    usual = Counter(each.machine for each in libraries if not each.error).most_common(1)
    machine = usual[0][0] if usual else ""
    bad = [f"{each.path}: {each.error}" for each in libraries if each.error]
    bad += [
        f"{each.path}: for {each.machine}"
        for each in libraries
        if not each.error and each.machine != machine
    ]
    file = given(match)
    name = file.rpartition("/")[2]
    if name and not any(_is_called(each.path, name) for each in libraries):
        cure = (
            "look at the file that the message names (file PATH), and at the package that "
            f"brought it: {file}"
        )
        return f"{name}, which the message names, is not among these files", bad, cure
    if bad:
        cure = (
            f"the others are for {machine or 'no known machine'}: install the package anew, or "
            "replace these"
        )
        return "a library is for another kind of machine, or damaged", bad, cure
    if name:
        cause = (
            f"{name} is sound in these files: the copy that was loaded is damaged, or for "
            "another machine than Python"
        )
        return (
            cause,
            (),
            (
                "install the package anew (pip install --force-reinstall), with a Python for "
                f"{machine}"
            ),
        )
    cause = f"all libraries here are sound and for {machine}: the Python that loads them is not"
    return (
        cause,
        (),
        (
            f"use a Python for {machine} (32 bits and 64 bits do not mix), or the wheel for this "
            "Python"
        ),
    )


def _runtimes(files: Files, match: re.Match[str]) -> _Found:
    """WinError 1114, or a crash on loading: the table's words, with the Visual C++ runtime that is
    new enough.
    """
    dlls = [each for each in files.libraries if each.format == "pe"]
    named = [
        each for each in dlls if posixpath.basename(each.path).lower() in match.string.lower()
    ] or dlls
    linked = [
        each
        for each in named
        if each.linker and any(fits(name, ("msvcp140*",)) for name in each.needed)
    ]
    newest = max(
        linked, key=lambda each: tuple(map(int, str(each.linker).split("."))), default=None
    )
    openmp = [
        each.path
        for each in dlls
        if re.search(r"(libiomp5md|libomp|vcomp\d+)[^/]*\.dll$", each.path.lower())
    ]
    if newest:
        culprits = [f"{newest.path}: linked by Visual C++ {newest.linker}"]
    else:
        culprits = []
    # One OpenMP runtime is usual; two in one process are a reason to fail.
    if len(openmp) > 1:
        culprits += [f"{each}: an OpenMP runtime" for each in openmp]
    version = f"14.{str(newest.linker).partition('.')[2]}" if newest else ""
    return (
        "",
        culprits,
        f"; the Redistributable must be of version {version} or newer" if newest else "",
    )


def _module(files: Files, match: re.Match[str]) -> _Found:
    """A module that Python does not find, looked up in the files; None if another package should
    have it.
    """
    if "member" in match.re.groupindex:
        name = ".".join(match.group("package", "member"))
    else:
        name = given(match)
    stem = name.replace(".", "/")
    if "." not in name or not any(
        each.startswith(f"{stem.partition('/')[0]}/") for each in files.names
    ):
        return None
    binary = [
        each
        for each in files.names
        if re.fullmatch(re.escape(stem) + r"\.([\w-]+\.)?(so|pyd)", each)
    ]
    if binary:
        suffixes = ", ".join(each.removeprefix(stem) for each in binary)
        cure = (
            "python -c 'import _imp; print(_imp.extension_suffixes())' lists what it imports: use "
            "the Python that the "
            "suffix names, or the wheel for this one; if the suffix is listed, another folder of "
            "this name comes first "
            "(the current folder, PYTHONPATH)"
        )
        return (
            f"{name} is there, and the Python that looked for it does not import {suffixes}",
            binary,
            cure,
        )
    if any(each in files.names for each in (f"{stem}.py", f"{stem}/__init__.py")):
        cure = "another folder of this name comes first: run Python elsewhere, and unset PYTHONPATH"
        return f"{name} is there", (), cure
    cure = (
        "the build left it out, or the code that imports it is for another version: install the "
        "versions that belong "
        "together, or build the wheel with it"
    )
    return f"{name} is not among these files", (), cure


def _entry(files: Files, match: re.Match[str]) -> _Found:
    """A library with the name of a module, and none inside."""
    name = f"PyInit_{match['name']}"
    called = re.compile(rf"(^|/){re.escape(match['name'])}\.([\w-]+\.)?(so|pyd)$")
    lacks = [
        f"{path} has no {name}"
        for path, each in files.contents.symbols.items()
        if called.search(path) and name not in each.exports
    ]
    cause = (
        f"Python calls {name} of a module, and the file that it found does not have it: it was "
        "renamed, its symbols "
        "were stripped or hidden, or it is no extension module"
    )
    cure = (
        "build it under the name that its source gives to PyInit_ (PYBIND11_MODULE, "
        "TORCH_EXTENSION_NAME)"
    )
    if lacks:
        more = ""
    else:
        more = (
            "; these files are not to blame: print the package's __file__, another copy comes first"
        )
    return cause, lacks, cure + more


def _missing_file(files: Files, match: re.Match[str]) -> _Found:
    name = given(match).rpartition("/")[2]
    if not name:
        return None
    asking = [need for need in files.needs if need.name.lower() == name.lower()]
    unreachable = next((need for need in asking if need.answer is Answer.UNREACHABLE), None)
    inside = next(
        (each.path for each in files.contents.libraries if _is_called(each.path, name)), None
    )
    # glibc says so of a file for another machine, too.
    if (
        inside
        and (wrong := _wrong_machine(files, match))
        and any(each.startswith(inside) for each in wrong[1])
    ):
        return wrong
    if unreachable:
        cure = (
            "repair the wheel: farm repair --tools; on one machine, import the package that "
            "loads it first"
        )
        culprits = [f"{need.who}: its RUNPATH does not lead there" for need in asking]
        return (
            f"{name} is at {unreachable.by}, where the loader does not look for it",
            culprits,
            cure,
        )
    if inside:
        cure = (
            "import this package before the one that fails; or start Python with that folder in "
            "LD_LIBRARY_PATH (PATH "
            "on Windows); give both packages the same major version of it"
        )
        return (
            f"{name} is at {inside}; a library elsewhere opens it by name and does not look there",
            [inside],
            cure,
        )
    cause = f"{name} is not on this machine, or not where the loader looks"
    return cause, [f"{need.who} needs it" for need in asking], where_from(name)


def _is_called(member: str, name: str) -> bool:
    return posixpath.basename(member).lower() == name.lower()


def _version(files: Files, match: re.Match[str]) -> _Found:
    """`version 'GLIBC_2.34' not found`, and those of libstdc++ and others."""
    wanted = given(match) if "short" in match.re.groupindex else match["name"]
    asking = [
        (library.path, file)
        for library in files.libraries
        for file, versions in library.versions.items()
        if wanted in versions
    ]
    family, _, version = wanted.partition("_")
    named = match["file"] if "file" in match.re.groupindex else None
    file = (named or "library").rpartition("/")[2]
    cause = f"the system's {file} is older than these files were built for: it lacks {wanted}"
    cure = (
        "install a wheel that was built on an older system (a lower manylinux tag), or build "
        "it there"
    )
    if family == "GLIBC":
        first = next(
            (row for row in tables().glibc if _numbers(row["version"]) >= _numbers(version)), None
        )
        systems = f": {first['systems']} and newer" if first else ""
        cause = f"the system's glibc is older than {version}, which these files need{systems}"
        cure = f"use a newer system or container; {cure}; glibc cannot be installed beside"
    elif family in ("GLIBCXX", "CXXABI"):
        newer = (
            "use a newer libstdc++.so.6 (conda: libstdcxx-ng; a newer GCC's runtime, first in "
            "LD_LIBRARY_PATH); or "
        )
        cure = newer + cure
    return cause, [f"{path} needs it of {file}" for path, file in asking], cure


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _kernels(files: Files, match: re.Match[str]) -> _Found:
    """CUDA has no code for the GPU: which libraries have code, and for which GPUs."""
    named = re.search(r"\bsm_?(\d{2,3})\b|capability (\d{1,2})\.(\d)", match.string, re.IGNORECASE)
    gpu = int(named[1] or named[2] + named[3]) if named else None
    with_code = [each for each in files.libraries if each.fatbins]
    rows = []
    for library in with_code:
        sass = {arch for group in library.fatbins for arch in group.sass}
        ptx = {arch for group in library.fatbins for arch in group.ptx}
        if gpu is None or not (
            any(runs_on(gpu, arch) for arch in sass) or any(number(arch) <= gpu for arch in ptx)
        ):
            code = [f"sm_{arch}" for arch in sorted(sass, key=order)] + [
                f"PTX {a}" for a in sorted(ptx, key=order)
            ]
            rows.append(f"{library.path}: {', '.join(code) or 'no code'}")
    here = f"sm_{gpu}" if gpu else "this GPU (farm detect says which it is)"
    if gpu is not None and with_code and not rows:
        cause = (
            f"every library here has code for {here}: another build is imported, or another "
            "package lacks it"
        )
        return (
            cause,
            (),
            "print(torch.__file__, torch.cuda.get_arch_list()) says which build is imported",
        )
    if with_code:
        cause = f"a library holds no code for {here}"
    else:
        cause = f"no library here has code for GPUs or {here}"
    return (
        cause,
        rows,
        "install a wheel for this GPU (farm detect names it), or build one (farm plan)",
    )


def _on_load(files: Files, match: re.Match[str]) -> _Found:
    """Which libraries run instructions on loading that old CPUs do not have."""
    rows = [
        f"{library.path}: {count} instructions that run on loading need {feature}, at {places[0]}"
        for library in files.on_load.libraries
        for feature, (count, places) in (
            library.instructions.beyond.items() if library.instructions else ()
        )
    ]
    where = re.search(r" in ([\w.+-]+\.(?:so[\w.]*|dll|pyd))\[", match.string)
    rows = [row for row in rows if not where or where[1] in row] or rows
    if rows:
        cause = (
            "code that runs on loading needs instructions that this CPU may not have (lscpu "
            "names those it has)"
        )
        return (
            cause,
            rows,
            "install a wheel for this CPU (farm detect names it), or build one for its level",
        )
    kernel = f"; the kernel names {where[1]}" if where else ""
    cause = (
        "a function needs an instruction that this CPU does not have; nothing that runs on "
        f"loading does{kernel}"
    )
    open_ends = [
        each.path
        for each in files.on_load.libraries
        if each.instructions and each.instructions.open_ends
    ]
    if open_ends:
        cause += (
            f", as far as it can be followed ({open_ends[0]} calls by pointers; farm verify "
            "--emulate runs it)"
        )
    cure = (
        "farm verify WHEEL --policy with the CPU level of the machine lists such instructions; "
        "install or build a "
    )
    cure += (
        "wheel for that level; ATEN_CPU_CAPABILITY=default helps where only ATen's kernels "
        "are too new"
    )
    return cause, (), cure


def _named(files: Files, match: re.Match[str]) -> _Found:
    """The file that the message names, and what of the kind is among these files."""
    stack = "stack" in match[0]
    kind = [
        each.path
        for each in files.libraries
        if (stack and each.executable_stack) or ("TLS" in match[0] and each.static_tls)
    ]
    found = _FILE.findall(match.string[: match.start()].rpartition("\n")[2])
    name = found[-1].rpartition("/")[2] if found else ""
    inside = [each.path for each in files.libraries if _is_called(each.path, name)]
    absent = (
        f"; {name}, which the message names, is not among these files: look at the package "
        "that it is of"
    )
    return "", list(dict.fromkeys([*inside, *kind])), "" if inside or not name else absent


_LOOKS: dict[str, Callable[[Files, re.Match[str]], _Found]] = {
    "missing_dlls": _missing_dlls,
    "missing_functions": _missing_functions,
    "wrong_machine": _wrong_machine,
    "runtimes": _runtimes,
    "missing_file": _missing_file,
    "undefined_symbol": _undefined_symbol,
    "version": _version,
    "kernels": _kernels,
    "on_load": _on_load,
    "named": _named,
    "module": _module,
    "entry": _entry,
}
