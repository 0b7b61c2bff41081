"""Where an installer puts a wheel's files, and what goes wrong there.

Installers unpack the members into site-packages and each folder of `<name>-<version>.data` into a place of its own
(PyPA, "Binary distribution format"). So two members of different names may land on one path, and a file for the
scheme `data` may land anywhere below the prefix: in another package, or in Python's own library.
"""

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SCHEMES = ("purelib", "platlib", "headers", "scripts", "data")
_SITE = re.compile(r"(lib(64)?/(python|pypy)[0-9.]+t?/|lib/)site-packages/", re.IGNORECASE)
_STDLIB = re.compile(r"lib(64)?/((python|pypy)[0-9.]+t?/(?!site-packages/)|(?!(python|pypy)[0-9.]+t?/)[^/]+\.pyc?$)")
_SCRIPTS = re.compile(r"(bin|scripts)/", re.IGNORECASE)
# What an environment itself is made of: to overwrite it breaks Python for every package in it.
_ENVIRONMENT = re.compile(r"pyvenv\.cfg|(bin|scripts)/(python[0-9.t]*|pythonw?\.exe|activate[^/]*)")
_CUSTOM = re.compile(r"(site|user)customize\.py")  # Python runs them at every start


class Problem(NamedTuple):
    """A member, and what is wrong with where it goes."""

    member: str
    what: str


def check_tree(members: Iterable[str], distribution: str, data_folder: str, scripts: Iterable[str]) -> list[Problem]:
    """Find what an installer refuses or overwrites.

    Args:
        members: The files of the wheel, in the order in which they are unpacked.
        distribution: The normalized name.
        data_folder: The wheel's own `<name>-<version>.data`.
        scripts: Names of commands that installers make from entry points.
    """
    problems: list[Problem] = []
    places: list[tuple[str, str]] = [(f"entry point {name}", f"scripts:{name}") for name in scripts]
    for member in members:
        top, _, rest = member.partition("/")
        if not top.endswith(".data"):
            places.append((member, f"site:{member}"))
        elif top != data_folder:
            problems.append(Problem(member, f"lies in {top}, the data folder of another wheel, which pip unpacks too"))
        else:
            scheme, _, below = rest.partition("/")
            if scheme not in SCHEMES or not below:
                problems.append(
                    Problem(member, f"{rest.partition('/')[0]!r} is not a scheme; there are {', '.join(SCHEMES)}")
                )
            else:
                if scheme == "scripts" and "/" in below:
                    problems.append(Problem(member, "lies in a folder of scripts, where uv takes files alone"))
                places.append((member, _place(scheme, below, distribution)))
    return [*problems, *_collisions(places), *_misplaced(places)]


def _place(scheme: str, path: str, distribution: str) -> str:
    """`site:…`, `scripts:…`, `prefix:…`: one name for each place, whichever scheme leads there."""
    if scheme in ("purelib", "platlib"):
        return f"site:{path}"
    if scheme == "scripts":
        return f"scripts:{path}"
    if scheme == "headers":
        return f"prefix:include/{distribution}/{path}"
    site, script = _SITE.match(path), _SCRIPTS.match(path)
    if site:
        return f"site:{path[site.end() :]}"
    return f"scripts:{path[script.end() :]}" if script else f"prefix:{path}"


def _collisions(places: list[tuple[str, str]]) -> Iterator[Problem]:
    """Files that land on one path, also where the disk tells neither case nor normal form apart."""
    first: dict[str, tuple[str, str]] = {}
    for member, place in places:
        key = place.lower() if place.isascii() else unicodedata.normalize("NFC", place).casefold()
        if key in first:
            other, its = first[key]
            same = "the same path" if its == place else "a path that differs only by case or normal form"
            yield Problem(member, f"is installed to {same} as {other}: one overwrites the other")
        first.setdefault(key, (member, place))
    for key, (member, _) in first.items():
        folder = key.rpartition("/")[0]
        while folder:
            if folder in first:
                yield Problem(member, f"is installed below {first[folder][0]}, which is a file")
                break
            folder = folder.rpartition("/")[0]


def _misplaced(places: list[tuple[str, str]]) -> Iterator[Problem]:
    for member, place in places:
        kind, _, path = place.partition(":")
        name = f"bin/{path}".lower() if kind == "scripts" else path.lower()
        if kind != "site" and _ENVIRONMENT.fullmatch(name):
            yield Problem(member, f"overwrites {path}, which belongs to the environment")
        elif kind == "prefix" and _STDLIB.match(name):
            yield Problem(member, f"is installed into Python's own library as {path}")
        elif kind == "site" and "/" not in path and _CUSTOM.fullmatch(name):
            yield Problem(member, "is run by every Python of the environment at its start")
        elif kind == "site" and _module(path) in sys.stdlib_module_names:
            yield Problem(member, f"has the name of {_module(path)}, a module of Python's own library")


def _module(path: str) -> str:
    """The importable name at the top of site-packages that a file belongs to; empty for other files."""
    top, slash, _ = path.partition("/")
    if slash:
        return top
    return top.partition(".")[0] if top.endswith((".py", ".pyd", ".so")) else ""
