"""Explanations of the errors of Windows' loader; 193 also in Linux' words."""

import re
from collections import Counter
from fnmatch import fnmatchcase

from farm.wheel.explained import MOST, Explanation, Files, where_from
from farm.wheel.library import Library
from farm.wheel.link import missing_names
from farm.wheel.needs import Answer
from farm.wheel.why126 import why_126


def error_126(files: Files, match: re.Match[str]) -> Explanation:
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


def error_127(files: Files, _: re.Match[str]) -> Explanation:
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


def error_193(files: Files, match: re.Match[str]) -> Explanation:
    libraries = files.libraries
    # An installed folder has no tags: the machine of most libraries counts as the right one.
    usual = Counter(each.machine for each in libraries if not each.error).most_common(1)
    machine = usual[0][0] if usual else ""
    bad = [f"{each.path}: {each.error}" for each in libraries if each.error]
    bad += [f"{each.path}: for {each.machine}" for each in libraries if not each.error and each.machine != machine]
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


def no_runtime(files: Files, _: re.Match[str]) -> Explanation:
    """PyTorch says so of a machine where it cannot load vcruntime140.dll, msvcp140.dll or vcruntime140_1.dll."""
    asking = [each for each in files.libraries if _needs(each, "msvcp140*")]
    return Explanation(
        message="no Visual C++ runtime",
        cause="DLLs of the Microsoft Visual C++ runtime are missing in System32; Python brings no msvcp140.dll",
        culprits=tuple(f"{each.path} needs msvcp140.dll" for each in asking[:MOST]),
        cure="install https://aka.ms/vs/17/release/vc_redist.x64.exe (Arm: vc_redist.arm64.exe)",
    )


def error_1114(files: Files, match: re.Match[str]) -> Explanation:
    culprits, newest = _runtimes(files, match.string)
    return Explanation(
        message="error 1114",
        cause="every DLL was found; the code that one runs on loading failed. Usual reasons: an older Visual C++ "
        "runtime than the DLL was linked for, an instruction that this CPU does not have, or a second OpenMP runtime",
        culprits=culprits,
        cure=f"install the Microsoft Visual C++ Redistributable, {newest}; then try --explain 'illegal instruction'",
    )


def error_998(files: Files, match: re.Match[str]) -> Explanation:
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


def error_14001(files: Files, _: re.Match[str]) -> Explanation:
    """A manifest asks for an assembly of WinSxS: the runtimes of Visual C++ 2005 and 2008 are such."""
    old = [each for each in files.libraries if any(_needs(each, f"*{number}.dll") for number in ("80", "90"))]
    return Explanation(
        message="error 14001",
        cause="the manifest in a DLL or program asks for another part of Windows (an assembly) that is not installed; "
        "mostly the runtime of Visual C++ 2005 or 2008",
        culprits=tuple(f"{each.path} needs {', '.join(each.needed)}" for each in old[:MOST]),
        cure="install the Visual C++ 2008 (or 2005) Redistributable of the same machine; sxstrace trace and sxstrace "
        "parse name the assembly",
    )


def blocked(_: Files, __: re.Match[str]) -> Explanation:
    return Explanation(
        message="blocked",
        cause="Windows was told not to load a file: by Smart App Control, AppLocker, a policy or a virus scanner; "
        "they trust files by signature and reputation, which a new build does not have",
        cure="the event log says which rule it was (Microsoft-Windows-CodeIntegrity/Operational, AppLocker; Windows "
        "Security, Protection history); allow the folder there, or ask who manages this machine",
    )
