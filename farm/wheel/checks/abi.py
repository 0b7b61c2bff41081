"""The check `abi`: each Python that a tag names can import the extension modules.

What a module takes from Python is the check `link`.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from farm.platforms.facts import PLATFORMS, WINDOWS
from farm.wheel.checks.subject import Subject, outcome
from farm.wheel.elf_symbols import Symbols
from farm.wheel.library import Contents, Library
from farm.wheel.report import Check, Finding

MODULE_SUFFIX = re.compile(r"\.(cpython-\d{2,4}[tdmu]*|cp\d{2,4}[td]*|abi3t?)(-[\w-]+)?\.(so|pyd)$")
"""The suffix of a module that is named after its Python."""
_PYTHON_TAG = re.compile(r"cp3(\d{1,2})")
_PYTHON_DLL = re.compile(r"python(?P<version>3\d{0,2})(?P<flags>t?(_d)?)\.dll", re.IGNORECASE)
_PYTHON_SO = re.compile(r"libpython3\.(?P<minor>\d{1,2})(?P<flags>[tdm]*)\.so(\.[\d.]+)?")
_API = re.compile(r"_?Py[A-Z_]")
_TRIPLETS = {"ppc64le": "powerpc64le"}  # the others are called as in platform tags
_LINUX = re.compile(r"(many)?linux(\d+|_\d+_\d+)?_")
_FOR_MANY_PYTHONS = ("abi3", "abi3t")
_MAX_TAGS = 3

_Tag = tuple[str, ...]  # python, abi, platform


class _Module(NamedTuple):
    """A library that Python imports."""

    library: Library
    name: str
    suffix: str
    entries: frozenset[str]  # the PyInit_ functions that it exports
    uses_api: bool  # it takes functions of Python

    @property
    def stem(self) -> str:
        return self.library.path.removesuffix(self.suffix)


def check(subject: Subject) -> Check:
    """Check names and entry points of the extension modules against the tags."""
    tags: list[_Tag] = []
    real_tags: list[_Tag] = []
    pairs: set[_Tag] = set()
    for text in sorted(subject.tags):
        python, abi, platform = text.split("-")
        tags.append((python, abi, platform))
        if _exists(python, abi):
            real_tags.append((python, abi, platform))
            pairs.add((python, abi))

    modules = list(_modules(subject.contents))
    findings: list[Finding] = []
    for problem in _impossible_tags(tags, pairs):
        findings.append(_wrong("", problem))
    for problem in _without_abi(modules, real_tags):
        findings.append(_wrong("", problem))
    for module in modules:
        for problem in _unfit_suffix(module, real_tags):
            findings.append(_wrong(module.library.path, problem))
        for problem in _missing_entry(module):
            findings.append(_wrong(module.library.path, problem))
    for library in subject.loadable:
        for problem in _other_pythons(library, pairs):
            findings.append(_wrong(library.path, problem))
    return outcome("abi", findings, f"{len(modules)} extension modules")


def _wrong(where: str, what: str) -> Finding:
    return Finding(
        check="abi",
        where=where,
        what=what,
        why="pip refuses it, importing it fails, or it runs in a Python of another ABI and crashes",
        fix="build the wheel with the Python that the tag names; never retag a binary wheel by "
        "hand",
    )


def _modules(contents: Contents) -> Iterator[_Module]:
    """The libraries that Python imports: those with a Python's suffix or with PyInit_."""
    for library in contents.libraries:
        name, dot, ending = posixpath.basename(library.path).partition(".")
        suffix = dot + ending
        if not library.is_loadable or not suffix.endswith(("so", "pyd")):
            continue
        symbols = contents.symbols.get(library.path)
        entries: frozenset[str] = frozenset()
        if symbols:
            entries = frozenset(filter(_is_entry, symbols.exports))
        # Programs that embed Python, and libpython itself, export its built-in modules.
        if not MODULE_SUFFIX.search(suffix) and (not entries or name.startswith("lib")):
            continue
        if isinstance(symbols, Symbols):
            uses_api = any(map(_API.match, symbols.undefined))
        else:
            uses_api = any(map(_PYTHON_DLL.fullmatch, library.needed))
        yield _Module(library, name, suffix, entries, uses_api)


def _is_entry(symbol: str) -> bool:
    """True for the function that Python calls to import a module."""
    return symbol.startswith(("PyInit_", "PyInitU_"))


def _exists(python: str, abi: str) -> bool:
    """True if some Python has this pair of tags."""
    if python.startswith("py"):
        return abi == "none"
    match = _PYTHON_TAG.fullmatch(python)
    if match is None or abi in ("none", *_FOR_MANY_PYTHONS):
        return True
    minor = int(match[1])
    # m (pymalloc) and u (wide Unicode) ended with 3.8, t (free-threaded) began with 3.13.
    if minor < 8:
        flags = "d?m?u?"
    elif minor < 13:
        flags = "d?"
    else:
        flags = "t?d?"
    return re.fullmatch(python + flags, abi) is not None


def _impossible_tags(tags: Sequence[_Tag], pairs: set[_Tag]) -> Iterator[str]:
    """Tags that no Python has.

    One of a set such as `cp38.cp39-cp38.cp39`, where each has a partner, does no harm.
    """
    pythons = set()
    abis = set()
    for python, abi in pairs:
        pythons.add(python)
        abis.add(abi)
    impossible = {tag[:2] for tag in tags} - pairs
    for python, abi in sorted(impossible):
        if python not in pythons or abi not in abis:
            yield f"no Python has the tag {python}-{abi}"


def _without_abi(modules: Sequence[_Module], tags: Iterable[_Tag]) -> Iterator[str]:
    """Modules that take Python's API in a wheel whose tag says that it depends on no ABI.

    Under `py3-none` a package may hold one module for several Pythons, and chooses.
    """
    suffixes_of: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        suffixes_of[module.stem].add(module.suffix)
    binding = []
    without_choice = []
    for module in modules:
        if not module.entries and not module.uses_api:
            continue
        binding.append(module)
        if len(suffixes_of[module.stem]) == 1:
            without_choice.append(module)

    pythons = {python for python, abi, _ in tags if abi == "none"}
    for python in sorted(pythons):
        wrong = without_choice if python.startswith("py") else binding
        if wrong:
            count = "a module takes" if len(wrong) == 1 else f"{len(wrong)} modules take"
            yield (
                f"{count} Python's API ({wrong[0].library.path}), and the tag {python}-none says "
                "that it needs no ABI"
            )


def importable_suffixes(python: str, abi: str, platform: str) -> tuple[str, ...]:
    """The suffixes of modules that the Pythons of a tag import.

    Of `abi3` those that all of its Pythons import. None where that is not known.
    """
    match = _PYTHON_TAG.fullmatch(python)
    if match is None or abi == "none":
        return ()
    if linux := _LINUX.match(platform):
        return _suffixes_of_linux(int(match[1]), abi, platform[linux.end() :])
    if platform.startswith(PLATFORMS[WINDOWS].tag):
        return _suffixes_of_windows(abi, platform)
    return ()


def _suffixes_of_windows(abi: str, platform: str) -> tuple[str, ...]:
    if abi == "abi3t":
        return (".abi3t.pyd", f".abi3t-{platform}.pyd", ".pyd")
    if abi == "abi3":
        return (".pyd",)
    return (f".cp{abi.removeprefix('cp')}-{platform}.pyd", ".pyd")


def _suffixes_of_linux(minor: int, abi: str, machine: str) -> tuple[str, ...]:
    suffixes = []
    if abi not in _FOR_MANY_PYTHONS:
        triplet = _TRIPLETS.get(machine, machine)
        suffixes.append(f".cpython-{abi.removeprefix('cp')}-{triplet}-linux-gnu.so")
    # Free-threaded Pythons import no abi3: their objects have another layout.
    if "t" not in abi:
        suffixes.append(".abi3.so")
    if abi == "abi3t" or minor >= 15:
        suffixes.append(".abi3t.so")
    return (*suffixes, ".so")


def _unfit_suffix(module: _Module, tags: Sequence[_Tag]) -> Iterator[str]:
    refusing = []
    suffixes: tuple[str, ...] = ()
    for python, abi, platform in tags:
        importable = importable_suffixes(python, abi, platform)
        if importable and module.suffix not in importable:
            refusing.append(f"{python}-{abi}-{platform}")
            suffixes = suffixes or importable
    if refusing:
        yield (
            f"its suffix {module.suffix} is not one that {', '.join(refusing[:_MAX_TAGS])} "
            f"imports, which are {', '.join(suffixes)}"
        )


def _missing_entry(module: _Module) -> Iterator[str]:
    """A module that Python finds, and has no function to begin with."""
    entry = f"PyInit_{module.name}"
    if not module.name.isascii():
        entry = "PyInitU_" + module.name.encode("punycode").decode().replace("-", "_")
    # Without either it is a library that only has the name: for ctypes, or for
    # torch.ops.load_library.
    if entry not in module.entries and (module.entries or module.uses_api):
        present = f" (it has {min(module.entries)})" if module.entries else ""
        yield f"has no {entry}, which Python calls to import it{present}"


def _other_pythons(library: Library, pairs: set[_Tag]) -> Iterator[str]:
    """Libraries of other Pythons that a library loads."""
    for name in (*library.needed, *library.delay_needed):
        dll = _PYTHON_DLL.fullmatch(name)
        so = _PYTHON_SO.fullmatch(name)
        if dll:
            version = dll["version"]
            flags = dll["flags"].lower()
        elif so:
            version = "3" + so["minor"]
            flags = so["flags"]
        else:
            continue
        for python, abi in sorted(pairs):
            if not python.startswith("py") and abi != "none":
                yield from _other_python(name, version, python, abi, free_threaded="t" in flags)


def _other_python(
    name: str,
    version: str,
    python: str,
    abi: str,
    *,
    free_threaded: bool,
) -> Iterator[str]:
    if version == "3":
        if abi.endswith("t") != free_threaded:
            yield f"loads {name}, which {python}-{abi} does not have"
    elif abi in _FOR_MANY_PYTHONS:
        yield f"loads {name}, the library of one Python; {python}-{abi} is for many (python3.dll)"
    elif python.startswith("cp"):
        of_tag = (python.removeprefix("cp"), "t" in abi)
        if (version, free_threaded) != of_tag:
            yield f"loads {name}, another Python's library than that of {python}-{abi}"
