"""Explanations of loaders' messages: the cause, the culprit, the cure.

Loaders name the file that they were asked for, seldom the one that is wrong. What is wrong is looked for in the files:
in the wheel, or in the folder of the installed package. Where nothing is wrong there, it is the machine, and the
explanation says which of its parts.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from farm.base.errors import UsageError
from farm.wheel.arch import number, order, runs_on
from farm.wheel.explain_windows import (
    blocked,
    error_126,
    error_127,
    error_193,
    error_998,
    error_1114,
    error_14001,
    no_runtime,
)
from farm.wheel.explained import MOST, Explanation, Files, given, known, undefined_symbol, where_from
from farm.wheel.needs import Answer

__all__ = ["Explanation", "explain"]

_MAX_MESSAGE = 64 << 10


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
    return tuple(explanation for _, explanation in sorted(found, key=lambda each: each[0]))


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


def _driver(files: Files, _: re.Match[str]) -> Explanation:
    """The driver is older than the CUDA runtime that a package brings."""
    asking = [each.path for each in files.contents.libraries if any("cudart" in name for name in each.needed)]
    return Explanation(
        message="driver too old",
        cause="the NVIDIA driver is older than the CUDA that these files were built with (nvidia-smi prints the newest "
        "CUDA that it knows)",
        culprits=tuple(asking[:MOST]),
        cure="update the driver, or install the build of the package for an older CUDA (farm detect names one)",
    )


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


def _memory(files: Files, _: re.Match[str]) -> Explanation:
    largest = sorted(files.libraries, key=lambda each: -each.size)
    return Explanation(
        message="error 1455",
        cause="Windows has no memory left to promise for these DLLs: each process that loads them takes it anew",
        culprits=tuple(f"{each.path}: {each.size >> 20} MiB" for each in largest[:MOST]),
        cure="let Windows choose the size of the paging file, or enlarge it; start fewer processes (num_workers of a "
        "DataLoader)",
    )


def _not_mapped(files: Files, match: re.Match[str]) -> Explanation:
    name = match["name"].rpartition("/")[2]
    return Explanation(
        message="failed to map segment",
        cause="the kernel refused to map the library as code: its folder is on a file system that is mounted noexec, "
        "or the process may not have so much memory (ulimit -v)",
        culprits=tuple(each.path for each in files.libraries if _is_called(each.path, name))[:MOST],
        cure="findmnt -T FOLDER shows noexec: install elsewhere, or set TMPDIR where programs unpack libraries to /tmp",
    )


def _tls(files: Files, _: re.Match[str]) -> Explanation:
    names = [each.path for each in files.libraries if re.search(r"lib(g|i?)omp", each.path)]
    return Explanation(
        message="static TLS",
        cause="too many libraries with thread-local variables were loaded before this one",
        culprits=tuple(names[:MOST]),
        cure="import this package first, or start Python with LD_PRELOAD set to the library that the message names",
    )


# Kinds of messages as loader_messages.yaml names them.
_KINDS: dict[str, Callable[[Files, re.Match[str]], Explanation]] = {
    "error 126": error_126,
    "error 127": error_127,
    "error 193": error_193,
    "error 1114": error_1114,
    "error 998": error_998,
    "error 14001": error_14001,
    "blocked": blocked,
    "missing file": _missing_file,
    "undefined symbol": _undefined,
    "version not found": _version,
    "no kernel": _no_kernel,
    "illegal instruction": _illegal,
    "driver too old": _driver,
    "executable stack": _stack,
    "no memory": _memory,
    "no runtime": no_runtime,
    "not mapped": _not_mapped,
    "static TLS": _tls,
}


@cache
def _messages() -> list[tuple[re.Pattern[str], Callable[[Files, re.Match[str]], Explanation]]]:
    tables = known()
    return [
        (
            re.compile("|".join([*patterns, *map(re.escape, tables["translated"].get(kind, ()))]), re.IGNORECASE),
            _KINDS[kind],
        )
        for kind, patterns in tables["messages"].items()
    ]
