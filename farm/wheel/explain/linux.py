"""Causes of what the loader of Linux says."""

import re

from farm.wheel.explain.files import Cause, Files, given, is_called, paths_called
from farm.wheel.explain.hardware import wrong_machine
from farm.wheel.explain.tables import tables, where_from
from farm.wheel.needs import Answer

_FILE = re.compile(r"[\w./+@-]+\.so[\w.]*")


def undefined_symbol(files: Files, match: re.Match[str]) -> Cause:
    """A name that a library takes and none gives."""
    symbol = given(match)
    symbols = files.contents.symbols
    takers = []
    for path, table in symbols.items():
        where = table.source(symbol)
        if where is not None:
            takers.append(f"{path} takes it{where}")
    givers = []
    for path, table in symbols.items():
        if symbol in table.exports:
            givers.append(path)
    if givers:
        cause = (
            f"{symbol} is given by {', '.join(givers[:3])}, but another copy of that library "
            "was loaded first"
        )
        cure = (
            "take other copies out of LD_LIBRARY_PATH and PATH, and import nothing before that "
            "brings its own"
        )
        return cause, takers, cure
    owner, cure = _owner_of_symbol(symbol)
    cause = f"{symbol} should come from {owner}, and the version that was loaded does not have it"
    return cause, takers, cure


def _owner_of_symbol(symbol: str) -> tuple[str, str]:
    """Who brings a symbol, and the cure where it lacks: by the table of symbols' forms."""
    for row in tables().symbols:
        if re.match(row["pattern"], symbol):
            return row["owner"], row["cure"]
    cure = "install the versions that METADATA pins, or build the wheel again"
    return "a library that these files need", cure


def missing_file(files: Files, match: re.Match[str]) -> Cause:
    """A shared library that the loader does not find: which libraries need it, and where it is."""
    name = given(match).rpartition("/")[2]
    if not name:
        return None
    asking = []
    unreachable_at = None
    for need in files.needs:
        if need.name.lower() == name.lower():
            asking.append(need.who)
            if need.answer is Answer.UNREACHABLE:
                unreachable_at = unreachable_at or need.by

    paths = paths_called(files.contents.libraries, name)
    if paths:
        # glibc says so of a file for another machine, too.
        wrong = wrong_machine(files, match)
        if wrong and any(culprit.startswith(paths[0]) for culprit in wrong[1]):
            return wrong
    if unreachable_at:
        cause = f"{name} is at {unreachable_at}, where the loader does not look for it"
        culprits = [f"{path}: its RUNPATH does not lead there" for path in asking]
        cure = (
            "repair the wheel: farm repair --tools; on one machine, import the package that "
            "loads it first"
        )
        return cause, culprits, cure
    if paths:
        cause = (
            f"{name} is at {paths[0]}; a library elsewhere opens it by name and does not look there"
        )
        cure = (
            "import this package before the one that fails; or start Python with that folder in "
            "LD_LIBRARY_PATH (PATH "
            "on Windows); give both packages the same major version of it"
        )
        return cause, paths[:1], cure
    cause = f"{name} is not on this machine, or not where the loader looks"
    return cause, [f"{path} needs it" for path in asking], where_from(name)


def symbol_version(files: Files, match: re.Match[str]) -> Cause:
    """`version 'GLIBC_2.34' not found`, and those of libstdc++ and others."""
    name = str(given(match) if "short" in match.re.groupindex else match["name"])
    culprits = []
    for library in files.libraries:
        for file, versions in library.versions.items():
            if name in versions:
                culprits.append(f"{library.path} needs it of {file}")
    path = match["file"] if "file" in match.re.groupindex else None
    file_name = (path or "library").rpartition("/")[2]
    for library in files.libraries:
        if is_called(library.path, file_name):
            cause = (
                f"{file_name} is at {library.path} and was built without {name}: these files are "
                "of different builds, or another copy was loaded first"
            )
            cure = "build all libraries of the wheel from one tree, or install the package anew"
            return cause, culprits, cure
    cause, cure = _older_system(name, file_name)
    return cause, culprits, cure


def _older_system(name: str, file: str) -> tuple[str, str]:
    """The cause and the cure where a library of the system lacks a version."""
    family, _, version = name.partition("_")
    cure = (
        "install a wheel that was built on an older system (a lower manylinux tag), or build "
        "it there"
    )
    if family == "GLIBC":
        cause = f"the system's glibc is older than {version}, which these files need"
        for row in tables().glibc:
            if _numbers(row["version"]) >= _numbers(version):
                cause += f": {row['systems']} and newer"
                break
        return cause, f"use a newer system or container; {cure}; glibc cannot be installed beside"
    cause = f"the system's {file} is older than these files were built for: it lacks {name}"
    if family in ("GLIBCXX", "CXXABI"):
        cure = (
            "use a newer libstdc++.so.6 (conda: libstdcxx-ng; a newer GCC's runtime, first in "
            f"LD_LIBRARY_PATH); or {cure}"
        )
    return cause, cure


def _numbers(version: str) -> tuple[int, ...]:
    parts = filter(str.isdigit, version.split("."))
    return tuple(map(int, parts))


def named_file(files: Files, match: re.Match[str]) -> Cause:
    """The file that the message names, and what of the kind is among these files."""
    stack = "stack" in match[0]
    kind = []
    for library in files.libraries:
        has_static_tls = "TLS" in match[0] and library.static_tls
        if has_static_tls or (stack and library.executable_stack):
            kind.append(library.path)
    names = _FILE.findall(match.string[: match.start()].rpartition("\n")[2])
    name = names[-1].rpartition("/")[2] if names else ""
    paths = paths_called(files.libraries, name)
    absent = ""
    if name and not paths:
        absent = (
            f"; {name}, which the message names, is not among these files: look at the package "
            "that it is of"
        )
    return "", list(dict.fromkeys([*paths, *kind])), absent
