"""Extension modules against the Pythons that a wheel's tags name.

Sources: CPython's `_PyImport_DynLoadFiletab` (`Python/dynload_shlib.c`, `dynload_win.c`) and `PLATFORM_TRIPLET` of its
`configure.ac`, PEP 3149 and PEP 489 (`PyInit_NAME`), PEP 384 and PEP 803 (abi3, abi3t),
PEP 425 (tags), `PC/pyconfig.h` (python311.dll, python3.dll).
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from farm.platforms.facts import PLATFORMS, WINDOWS
from farm.wheel.elf import Symbols
from farm.wheel.library import Contents, Library
from farm.wheel.pe import DllSymbols
from farm.wheel.report import Check, Finding

SUFFIX = re.compile(r"\.(cpython-\d{2,4}[tdmu]*|cp\d{2,4}[td]*|abi3t?)(-[\w-]+)?\.(so|pyd)$")
"""The suffix of a module that is named after its Python."""
_PYTHON = re.compile(r"cp3(\d{1,2})")
_PYTHON_DLL = re.compile(r"python(?P<version>3\d{0,2})(?P<flags>t?(_d)?)\.dll", re.IGNORECASE)
_PYTHON_SO = re.compile(r"libpython3\.(?P<minor>\d{1,2})(?P<flags>[tdm]*)\.so(\.[\d.]+)?")
_API = re.compile(r"_?Py[A-Z_]")
_TRIPLETS = {"ppc64le": "powerpc64le"}  # the others are called as in platform tags
_LINUX = re.compile(r"(many)?linux(\d+|_\d+_\d+)?_")
_MANY = ("abi3", "abi3t")
_MAX_TAGS = 3


class _Module(NamedTuple):
    """A library that Python imports: its name, its suffix, and the PyInit_ functions that it exports."""

    library: Library
    name: str
    suffix: str
    entries: frozenset[str]
    takes_api: bool


def check_abi(contents: Contents, tags: frozenset[str]) -> Check:
    """Each extension module can be imported by each Python that a tag names, and loads no other Python."""
    rows = [tuple(tag.split("-")) for tag in sorted(tags)]
    real = [row for row in rows if _exists(row[0], row[1])]
    modules = [module for library in contents.libraries if (module := _module(library, contents))]
    found = [("", what) for what in _no_python(rows, real)]
    found += [("", what) for what in _without_abi(modules, real)]
    for module in modules:
        found += [(module.library.path, what) for what in (*_suffix(module, real), *_entry(module))]
    for library in contents.libraries:
        if library.is_loadable:
            found += [(library.path, what) for what in _python_of(library, {row[:2] for row in real})]
    why = "pip refuses it, importing it fails, or it runs in a Python of another ABI and crashes"
    fix = "build the wheel with the Python that the tag names; never retag a binary wheel by hand"
    findings = tuple(Finding(check="abi", where=where, what=what, why=why, fix=fix) for where, what in found)
    note = f"{len(modules)} extension modules"
    return Check(id="abi", status="failed" if findings else "passed", findings=findings, note=note)


def _module(library: Library, contents: Contents) -> _Module | None:
    """None for a library that no one imports: one without a Python's suffix and without PyInit_."""
    name, dot, rest = posixpath.basename(library.path).partition(".")
    if not library.is_loadable or not rest.endswith(("so", "pyd")):
        return None
    symbols = contents.symbols.get(library.path)
    exports = symbols.exports if isinstance(symbols, DllSymbols) else symbols.defined if symbols else ()
    entries = frozenset(each for each in exports if each.startswith(("PyInit_", "PyInitU_")))
    # Programs that embed Python, and libpython itself, export its built-in modules.
    if not SUFFIX.search(dot + rest) and (not entries or name.startswith("lib")):
        return None
    takes = _API.match if isinstance(symbols, Symbols) else _PYTHON_DLL.fullmatch
    takers = symbols.undefined if isinstance(symbols, Symbols) else library.needed
    return _Module(library, name, dot + rest, entries, any(map(takes, takers)))


def _exists(python: str, abi: str) -> bool:
    """True if some Python has this pair of tags."""
    if python.startswith("py"):
        return abi == "none"
    found = _PYTHON.fullmatch(python)
    if found is None or abi in ("none", *_MANY):
        return True
    minor = int(found[1])
    # m (pymalloc) and u (wide Unicode) ended with 3.8, t (free-threaded) began with 3.13.
    flags = "d?m?u?" if minor < 8 else "d?" if minor < 13 else "t?d?"
    return re.fullmatch(python + flags, abi) is not None


def _no_python(rows: Sequence[tuple[str, ...]], real: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Tags that no Python has; one of a set such as `cp38.cp39-cp38.cp39`, where each has a partner, does no harm."""
    pairs = {row[:2] for row in real}
    for python, abi in sorted({row[:2] for row in rows} - pairs):
        if not any(python == each[0] for each in pairs) or not any(abi == each[1] for each in pairs):
            yield f"no Python has the tag {python}-{abi}"


def _without_abi(modules: Sequence[_Module], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Modules that take Python's API in a wheel whose tag says that it depends on no ABI.

    Under `py3-none` a package may hold one module for several Pythons, and chooses.
    """
    by_name: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        by_name[module.library.path.removesuffix(module.suffix)].add(module.suffix)
    for python in sorted({row[0] for row in rows if row[1] == "none"}):
        wrong = [
            module.library.path
            for module in modules
            if (module.entries or module.takes_api)
            and not (python.startswith("py") and len(by_name[module.library.path.removesuffix(module.suffix)]) > 1)
        ]
        if wrong:
            count = f"{len(wrong)} modules take" if len(wrong) > 1 else "a module takes"
            yield f"{count} Python's API ({wrong[0]}), and the tag {python}-none says that it needs no ABI"


def suffixes(python: str, abi: str, platform: str) -> tuple[str, ...]:
    """The suffixes of modules that the Pythons of a tag import; none where that is not known.

    Of `abi3` those that all of its Pythons import.
    """
    found = _PYTHON.fullmatch(python)
    linux = _LINUX.match(platform)
    windows = platform.startswith(PLATFORMS[WINDOWS].tag)
    if found is None or abi == "none" or not (linux or windows):
        return ()
    minor, tag, is_free = int(found[1]), abi.removeprefix("cp"), "t" in abi
    if not linux:
        both = (".abi3t.pyd", f".abi3t-{platform}.pyd") if abi == "abi3t" else (f".cp{tag}-{platform}.pyd",)
        return (".pyd",) if abi == "abi3" else (*both, ".pyd")
    # Free-threaded Pythons import no abi3: their objects have another layout.
    shared = (*(() if is_free else (".abi3.so",)), *((".abi3t.so",) if abi == "abi3t" or minor >= 15 else ()), ".so")
    if abi in _MANY:
        return shared
    machine = platform[linux.end() :]
    return (f".cpython-{tag}-{_TRIPLETS.get(machine, machine)}-linux-gnu.so", *shared)


def _suffix(module: _Module, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    wrong = []
    for python, abi, platform in rows:
        known = suffixes(python, abi, platform)
        if known and module.suffix not in known:
            wrong.append((f"{python}-{abi}-{platform}", known))
    if wrong:
        tags = ", ".join(tag for tag, _ in wrong[:_MAX_TAGS])
        yield f"its suffix {module.suffix} is not one that {tags} imports, which are {', '.join(wrong[0][1])}"


def _entry(module: _Module) -> Iterator[str]:
    """A module that Python finds, and has no function to begin with."""
    wanted = f"PyInit_{module.name}"
    if not module.name.isascii():
        wanted = "PyInitU_" + module.name.encode("punycode").decode().replace("-", "_")
    # Without either it is a library that only has the name: for ctypes, or for torch.ops.load_library.
    if wanted not in module.entries and (module.entries or module.takes_api):
        there = f" (it has {min(module.entries)})" if module.entries else ""
        yield f"has no {wanted}, which Python calls to import it{there}"


def _python_of(library: Library, pairs: set[tuple[str, ...]]) -> Iterator[str]:
    for name in (*library.needed, *library.delay_needed):
        dll, so = _PYTHON_DLL.fullmatch(name), _PYTHON_SO.fullmatch(name)
        if dll:
            version, flags = dll["version"], dll["flags"].lower()
        elif so:
            version, flags = "3" + so["minor"], so["flags"]
        else:
            continue
        for python, abi in sorted(pairs):
            if python.startswith("py") or abi == "none":
                continue
            if version == "3":
                if abi.endswith("t") != ("t" in flags):
                    yield f"loads {name}, which {python}-{abi} does not have"
            elif abi in _MANY:
                yield f"loads {name}, the library of one Python; {python}-{abi} is for many (python3.dll)"
            elif python.startswith("cp") and (version, "t" in flags) != (python.removeprefix("cp"), "t" in abi):
                yield f"loads {name}, another Python's library than that of {python}-{abi}"
