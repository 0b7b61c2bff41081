"""What the errors of Windows' loader mean; 193 also where Linux says it in words of its own."""

import re
from collections import Counter
from fnmatch import fnmatchcase

from farm.wheel.explained import MOST, Explanation, Files, where_from
from farm.wheel.link import missing_names
from farm.wheel.needs import Answer
from farm.wheel.why126 import why_126


def error_126(files: Files, match: re.Match[str]) -> Explanation:
    found = why_126(files.path)
    if not found.missing:
        return Explanation(
            message="error 126",
            cause="a DLL is missing, but none of those that these files need",
            cure="install the Microsoft Visual C++ Redistributable; pip install --force-reinstall the package",
        )
    loading = [item for item in found.missing if item.when == "load"] or list(found.missing)
    # PyTorch names the DLL that it was loading; messages of others name none.
    told = re.search(r"([\w.-]+\.(?:dll|pyd))\"", match.string, re.IGNORECASE)
    named = f"; {found.named} is the first that fails" if found.named else ""
    if told and told[1].lower() not in {each.name.lower() for each in found.missing}:
        named = f"; {told[1]}, which the message names, is there"
    return Explanation(
        message="error 126",
        cause=f"Windows cannot find a DLL that is needed{named}",
        culprits=tuple(f"{item.name}, needed by {', '.join(item.needed_by[:3])}" for item in loading[:MOST]),
        cure="; ".join(dict.fromkeys(where_from(item.name) for item in loading[:MOST])),
    )


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
    asking = [each for each in files.libraries if any(fnmatchcase(n.lower(), "msvcp140*") for n in each.needed)]
    return Explanation(
        message="no Visual C++ runtime",
        cause="DLLs of the Microsoft Visual C++ runtime are missing in System32; Python brings no msvcp140.dll",
        culprits=tuple(f"{each.path} needs msvcp140.dll" for each in asking[:MOST]),
        cure="install https://aka.ms/vs/17/release/vc_redist.x64.exe (Arm: vc_redist.arm64.exe)",
    )


def error_1114(files: Files, match: re.Match[str]) -> Explanation:
    dlls = [each for each in files.libraries if each.format == "pe"]
    text = match.string.lower()
    named = [each for each in dlls if each.path.rpartition("/")[2].lower() in text] or dlls
    linked = [each for each in named if each.linker and any(fnmatchcase(n.lower(), "msvcp140*") for n in each.needed)]
    newest = max(linked, key=lambda each: tuple(map(int, str(each.linker).split("."))), default=None)
    openmp = [each.path for each in dlls if re.search(r"(libiomp5md|libomp|vcomp\d+)[^/]*\.dll$", each.path.lower())]
    culprits = [f"{newest.path}: linked by Visual C++ {newest.linker}"] if newest else []
    # One OpenMP runtime is usual; two in one process are a reason to fail.
    culprits += [f"{each}: an OpenMP runtime" for each in openmp] if len(openmp) > 1 else []
    first = f"version 14.{(newest.linker or '').partition('.')[2]} or newer" if newest else "the newest version"
    return Explanation(
        message="error 1114",
        cause="every DLL was found; the code that one runs on loading failed. Usual reasons: an older Visual C++ "
        "runtime than the DLL was linked for, an instruction that this CPU does not have, or a second OpenMP runtime",
        culprits=tuple(culprits),
        cure=f"install the Microsoft Visual C++ Redistributable, {first}; then try --explain 'illegal instruction'",
    )
