"""What a loader's message means: the cause, who is to blame for it, and what to do.

Loaders name the file that they were asked for, seldom the one that is wrong. What is wrong is looked for in the files:
in the wheel, or in the folder of the installed package. Where nothing is wrong there, it is the machine, and the
explanation says which of its parts.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from farm.errors import UsageError
from farm.wheel.arch import number, order, runs_on
from farm.wheel.archive import Archive
from farm.wheel.contents import Contents, read_contents
from farm.wheel.folder import read_folder
from farm.wheel.imports import resolve
from farm.wheel.isa import level_names
from farm.wheel.library import Library
from farm.wheel.link import missing_names
from farm.wheel.models import Frozen, Printable
from farm.wheel.needs import Answer, Need
from farm.wheel.pesymbols import DllSymbols
from farm.wheel.symbols import Symbols
from farm.wheel.why126 import source_of, why_126

_MAX_MESSAGE = 64 << 10
_MOST = 8


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
class _Files:
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
            return read_contents(archive, lambda _: level, ("*",), with_symbols=True)

    @cached_property
    def libraries(self) -> tuple[Library, ...]:
        found = tuple(each for each in self.contents.libraries if each.is_loadable or each.error)
        if not found:
            raise UsageError(f"{self.path}: no library in it", hint="give the wheel, or the folder of the package")
        return found

    @cached_property
    def needs(self) -> list[Need]:
        return resolve(self.contents.libraries, (), self.contents.dependencies)


def explain(path: Path, message: str) -> tuple[Explanation, ...]:
    """Explain each error that is recognised in `message`.

    Args:
        path: A wheel, or the folder of an installed package.
        message: What the loader, Python, the kernel or CUDA wrote; whole tracebacks are fine.

    Raises:
        UsageError: There is no such file or folder, no library in it, or no known error in the message.
        VerificationFailedError: The wheel is damaged.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    files = _Files(path)
    text = message[:_MAX_MESSAGE]
    found = [(match.start(), run(files, match)) for pattern, run in _MESSAGES if (match := pattern.search(text))]
    if not found:
        raise UsageError(
            "no known error in the message",
            hint="paste the line with the error, such as '[WinError 126] …' or 'undefined symbol: …'",
        )
    return tuple(explanation for _, explanation in sorted(found, key=lambda each: each[0]))


def _error_126(files: _Files, _: re.Match[str]) -> Explanation:
    found = why_126(files.path)
    if not found.missing:
        return Explanation(
            message="error 126",
            cause="a DLL is missing, but none of those that these files need",
            cure="install the Microsoft Visual C++ Redistributable; pip install --force-reinstall the package",
        )
    loading = [item for item in found.missing if item.when == "load"] or list(found.missing)
    named = f"; {found.named}, which the message names, is there" if found.named else ""
    return Explanation(
        message="error 126",
        cause=f"Windows cannot find a DLL that is needed{named}",
        culprits=tuple(f"{item.name}, needed by {', '.join(item.needed_by[:3])}" for item in loading[:_MOST]),
        cure="; ".join(dict.fromkeys(_where_from(item.name) for item in loading[:_MOST])),
    )


def _where_from(name: str) -> str:
    source = source_of(name) or next(
        (each["source"] for each in _known()["libraries"] if any(fnmatchcase(name, one) for one in each["names"])), ""
    )
    return f"{name}: {source or 'look for the name in the environment of the build'}"


def _missing_file(files: _Files, match: re.Match[str]) -> Explanation:
    name = (match["name"] or match["other"]).rpartition("/")[2]
    asking = [need for need in files.needs if need.name == name and files.libraries]
    unreachable = next((need for need in asking if need.answer is Answer.UNREACHABLE), None)
    if unreachable:
        return Explanation(
            message="cannot open shared object file",
            cause=f"{name} lies at {unreachable.by}, where the loader does not look for it",
            culprits=tuple(f"{need.who}: its RUNPATH does not lead there" for need in asking[:_MOST]),
            cure="repair the wheel: farm repair --tools; on one machine, import the package that loads it first",
        )
    return Explanation(
        message="cannot open shared object file",
        cause=f"{name} is not on this machine, or not where the loader looks",
        culprits=tuple(f"{need.who} needs it" for need in asking[:_MOST]),
        cure=_where_from(name),
    )


def _lost_names(files: _Files) -> list[tuple[str, str]]:
    return list(missing_names(files.libraries, files.needs, files.contents.symbols))


def _error_127(files: _Files, _: re.Match[str]) -> Explanation:
    lost = _lost_names(files)
    if lost:
        cure = (
            "these files are of different builds: install the package anew (pip install --force-reinstall), or build it"
        )
        return Explanation(
            message="error 127",
            cause="a DLL lacks a function that another one takes from it",
            culprits=tuple(f"{member} {what}" for member, what in lost[:_MOST]),
            cure=f"{cure} from one tree",
        )
    outside = Counter(need.name.lower() for need in files.needs if need.answer is not Answer.WHEEL)
    others = [name for name, _ in outside.most_common() if not name.startswith(("api-ms-", "kernel32", "ucrtbase"))]
    return Explanation(
        message="error 127",
        cause="a DLL lacks a function that another one takes from it; all DLLs of these files fit one another, so "
        "another copy was loaded in place of one: from System32, an older Visual C++ runtime, or another package",
        cure=f"update the Visual C++ Redistributable and the driver; look at {', '.join(others[:_MOST])}",
    )


def _error_193(files: _Files, match: re.Match[str]) -> Explanation:
    libraries = files.libraries
    usual = Counter(each.machine for each in libraries if not each.error).most_common(1)
    machine = usual[0][0] if usual else ""
    bad = [f"{each.path}: {each.error}" for each in libraries if each.error]
    bad += [f"{each.path}: for {each.machine}" for each in libraries if not each.error and each.machine != machine]
    if bad:
        return Explanation(
            message=match[0].lower(),
            cause="a library is for another kind of machine, or damaged",
            culprits=tuple(bad[:_MOST]),
            cure=f"the others are for {machine or 'no known machine'}: install the package anew, or replace these",
        )
    return Explanation(
        message=match[0].lower(),
        cause=f"all libraries here are sound and for {machine}: the Python that loads them is not",
        cure=f"use a Python for {machine} (32 bits and 64 bits do not mix), or the wheel for this Python",
    )


def _error_1114(files: _Files, match: re.Match[str]) -> Explanation:
    dlls = [each for each in files.libraries if each.format == "pe"]
    text = match.string.lower()
    named = [each for each in dlls if each.path.rpartition("/")[2].lower() in text] or dlls
    linked = [each for each in named if each.linker and any(fnmatchcase(n.lower(), "msvcp140*") for n in each.needed)]
    newest = max(linked, key=lambda each: tuple(map(int, str(each.linker).split("."))), default=None)
    openmp = [each.path for each in dlls if re.search(r"(libiomp5md|libomp|vcomp\d+)[^/]*\.dll$", each.path.lower())]
    culprits = [f"{newest.path}: linked by Visual C++ {newest.linker}"] if newest else []
    culprits += [f"{each}: an OpenMP runtime" for each in openmp] if len(openmp) > 1 else []
    first = f"version 14.{(newest.linker or '').partition('.')[2]} or newer" if newest else "the newest version"
    return Explanation(
        message="error 1114",
        cause="every DLL was found; the code that one runs on loading failed. Usual reasons: an older Visual C++ "
        "runtime than the DLL was linked for, an instruction that this CPU does not have, or a second OpenMP runtime",
        culprits=tuple(culprits),
        cure=f"install the Microsoft Visual C++ Redistributable, {first}; then try --explain 'illegal instruction'",
    )


def _undefined(files: _Files, match: re.Match[str]) -> Explanation:
    symbol = match["name"] or match["other"]
    symbols = files.contents.symbols
    takers = [path for path, each in symbols.items() if isinstance(each, Symbols) and symbol in each.undefined]
    takers += [path for path, each in symbols.items() if isinstance(each, DllSymbols) and _takes(each, symbol)]
    givers = [
        path
        for path, each in symbols.items()
        if symbol in (each.defined if isinstance(each, Symbols) else each.exports)
    ]
    known = next((each for each in _known()["symbols"] if re.match(each["pattern"], symbol)), None)
    owner = known["owner"] if known else "a library that these files need"
    if givers:
        cause = f"{symbol} is given by {', '.join(givers[:3])}, but another copy of that library was loaded first"
        cure = "take other copies out of LD_LIBRARY_PATH and PATH, and import nothing before that brings its own"
    else:
        cause = f"{symbol} should come from {owner}, and the version that was loaded does not have it"
        cure = known["cure"] if known else "install the versions that METADATA pins, or build the wheel again"
    return Explanation(
        message="undefined symbol",
        cause=cause,
        culprits=tuple(f"{path} takes it" + _from(symbols[path], symbol) for path in takers[:_MOST]),
        cure=cure,
    )


def _takes(dll: DllSymbols, symbol: str) -> bool:
    return any(symbol in taken for taken in dll.imports.values())


def _from(each: Symbols | DllSymbols, symbol: str) -> str:
    if isinstance(each, DllSymbols):
        return " from " + next(dll for dll, taken in each.imports.items() if symbol in taken)
    library, version = each.undefined[symbol]
    return f" from {library}, version {version}" if library else ""


def _version(files: _Files, match: re.Match[str]) -> Explanation:
    """`version 'GLIBC_2.34' not found`, and those of libstdc++ and others."""
    wanted = match["name"]
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
        first = next((row for row in _known()["glibc"] if _numbers(row["version"]) >= _numbers(number)), None)
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
        culprits=tuple(f"{path} needs it of {file}" for path, file in asking[:_MOST]),
        cure=cure,
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _no_kernel(files: _Files, match: re.Match[str]) -> Explanation:
    """CUDA has no code for the GPU: which libraries have code, and for which GPUs."""
    said = re.search(r"\bsm_?(\d{2,3})\b|capability (\d{1,2})\.(\d)", match.string, re.IGNORECASE)
    gpu = int(said[1] or said[2] + said[3]) if said else None
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
    here = f"sm_{gpu}" if gpu else "this GPU (nvidia-smi --query-gpu=compute_cap --format=csv says which it is)"
    if gpu is not None and with_code and not rows:
        return Explanation(
            message="no kernel image",
            cause=f"every library here has code for {here}: another build is imported, or another package lacks it",
            cure="print(torch.__file__, torch.cuda.get_arch_list()) says which build is imported",
        )
    return Explanation(
        message="no kernel image",
        cause=f"a library holds no code for {here}" if with_code else "no library here holds code for GPUs",
        culprits=tuple(rows[:_MOST]),
        cure="install a wheel for this GPU (farm detect names it), or build one (farm plan)",
    )


def _illegal(files: _Files, match: re.Match[str]) -> Explanation:
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
            culprits=tuple(rows[:_MOST]),
            cure="install a wheel for this CPU (farm detect names it), or build one for its level",
        )
    named = f"; the kernel names {where[1]}" if where else ""
    return Explanation(
        message="illegal instruction",
        cause=f"a function needs an instruction that this CPU does not have; nothing that runs on loading does{named}",
        cure="farm verify WHEEL --policy with the CPU level of the machine lists such instructions; install or build a "
        "wheel for that level; ATEN_CPU_CAPABILITY=default helps where only ATen's kernels are too new",
    )


def _stack(files: _Files, _: re.Match[str]) -> Explanation:
    return Explanation(
        message="executable stack",
        cause="a library asks for an executable stack, which glibc 2.41 and systems with SELinux refuse",
        culprits=tuple(each.path for each in files.libraries if each.executable_stack)[:_MOST],
        cure="patchelf --clear-execstack FILE, or link with -Wl,-z,noexecstack",
    )


def _tls(files: _Files, _: re.Match[str]) -> Explanation:
    names = [each.path for each in files.libraries if re.search(r"lib(g|i?)omp", each.path)]
    return Explanation(
        message="static TLS",
        cause="too many libraries with thread-local variables were loaded before this one",
        culprits=tuple(names[:_MOST]),
        cure="import this package first, or start Python with LD_PRELOAD set to the library that the message names",
    )


@cache
def _known() -> dict[str, Any]:
    text = (resources.files("farm.wheel") / "loader_messages.yaml").read_text(encoding="utf-8")
    known: dict[str, Any] = yaml.safe_load(text)
    return known


def _compiled(rows: Iterable[tuple[str, Callable[[_Files, re.Match[str]], Explanation]]]) -> list[Any]:
    return [(re.compile(pattern, re.IGNORECASE), run) for pattern, run in rows]


# What Windows, glibc, musl, CUDA, PyTorch and shells write. `WinError N` is Python's way; programs have others.
_MESSAGES: list[tuple[re.Pattern[str], Callable[[_Files, re.Match[str]], Explanation]]] = _compiled(
    [
        (r"(win)?error\]? ?126\b|specified module could not be found|0x8007007e", _error_126),
        (r"(win)?error\]? ?127\b|specified procedure could not be found|procedure entry point|0x8007007f", _error_127),
        (r"error\]? ?193\b|not a valid win32 application|wrong ELF class|invalid ELF header|file too short|0xc000007b",
         _error_193),
        (r"error\]? ?1114\b|initialization routine failed|0x8007045a|0xc0000142", _error_1114),
        (r"(?P<name>[\w./+-]+\.so[\w.]*): cannot open shared object file|Error loading shared library (?P<other>\S+?):",
         _missing_file),
        (r"undefined symbol: (?P<name>[\w.@$?]+)|Error relocating \S+: (?P<other>\S+?): symbol not found", _undefined),
        (r"((?P<file>[\w./+-]+\.so[\w.]*): )?(version )?[`']?(?P<name>[A-Za-z]\w*_\d[\w.]*)['`]? not found", _version),
        (r"no kernel image|is not compatible with the current PyTorch installation|cudaErrorNoKernelImageForDevice",
         _no_kernel),
        (r"illegal (hardware )?instruction|SIGILL|invalid opcode|0xc000001d|exit code -4\b", _illegal),
        (r"cannot enable executable stack", _stack),
        (r"cannot allocate memory in static TLS block", _tls),
    ]
)  # fmt: skip
