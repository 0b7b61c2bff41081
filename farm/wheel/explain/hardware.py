"""Causes that lie in the machine: another kind of it, its GPU, its CPU."""

import re
from collections import Counter
from collections.abc import Iterable

from farm.wheel.explain.files import Cause, Files, given, paths_called
from farm.wheel.fatbin import Architecture, number, order, runs_on
from farm.wheel.library import Library


def wrong_machine(files: Files, match: re.Match[str]) -> Cause:
    """A library for another kind of machine, or a damaged one: "wrong ELF class", WinError 193."""
    machine = _usual_machine(files.libraries)
    bad = _damaged_or_foreign(files.libraries, machine)
    file = given(match)
    name = file.rpartition("/")[2]
    if name and not paths_called(files.libraries, name):
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
        cure = (
            f"install the package anew (pip install --force-reinstall), with a Python for {machine}"
        )
        return cause, (), cure
    cause = f"all libraries here are sound and for {machine}: the Python that loads them is not"
    cure = (
        f"use a Python for {machine} (32 bits and 64 bits do not mix), or the wheel for this Python"
    )
    return cause, (), cure


def _usual_machine(libraries: Iterable[Library]) -> str:
    """The machine of most libraries, which counts as the right one: an installed folder has no
    tags.
    """
    machines = Counter(library.machine for library in libraries if not library.error)
    for machine, _ in machines.most_common(1):
        return machine
    return ""


def _damaged_or_foreign(libraries: Iterable[Library], machine: str) -> list[str]:
    """The libraries that cannot be read, then those for another machine, each with what is
    wrong.
    """
    damaged = []
    foreign = []
    for library in libraries:
        if library.error:
            damaged.append(f"{library.path}: {library.error}")
        elif library.machine != machine:
            foreign.append(f"{library.path}: for {library.machine}")
    return damaged + foreign


def kernels(files: Files, match: re.Match[str]) -> Cause:
    """CUDA has no code for the GPU: which libraries have code, and for which GPUs."""
    gpu = _gpu_of(match)
    has_code = False
    rows = []
    for library in files.libraries:
        if library.fatbins:
            has_code = True
            if not _has_code_for(library, gpu):
                rows.append(_code_of(library))
    gpu_name = f"sm_{gpu}" if gpu else "this GPU (farm detect says which it is)"
    if gpu is not None and has_code and not rows:
        cause = (
            f"every library here has code for {gpu_name}: another build is imported, or another "
            "package lacks it"
        )
        cure = "print(torch.__file__, torch.cuda.get_arch_list()) says which build is imported"
        return cause, (), cure
    cause = f"no library here has code for GPUs or {gpu_name}"
    if has_code:
        cause = f"a library holds no code for {gpu_name}"
    cure = "install a wheel for this GPU (farm detect names it), or build one (farm plan)"
    return cause, rows, cure


def _gpu_of(match: re.Match[str]) -> int | None:
    """The architecture of the GPU that a message names, such as 35."""
    gpu_match = re.search(
        r"\bsm_?(\d{2,3})\b|capability (\d{1,2})\.(\d)", match.string, re.IGNORECASE
    )
    if gpu_match is None:
        return None
    return int(gpu_match[1] or gpu_match[2] + gpu_match[3])


def _architectures(library: Library) -> tuple[set[Architecture], set[Architecture]]:
    """The architectures of a library's machine code, and of its PTX."""
    sass: set[Architecture] = set()
    ptx: set[Architecture] = set()
    for group in library.fatbins:
        sass.update(group.sass)
        ptx.update(group.ptx)
    return sass, ptx


def _has_code_for(library: Library, gpu: int | None) -> bool:
    """True if a GPU runs a library's code; False where the GPU is not known."""
    if gpu is None:
        return False
    sass, ptx = _architectures(library)
    if any(runs_on(gpu, arch) for arch in sass):
        return True
    return bool(ptx) and min(map(number, ptx)) <= gpu


def _code_of(library: Library) -> str:
    """A library with the architectures that it has code for."""
    sass, ptx = _architectures(library)
    code = []
    for arch in sorted(sass, key=order):
        code.append(f"sm_{arch}")
    for arch in sorted(ptx, key=order):
        code.append(f"PTX {arch}")
    return f"{library.path}: {', '.join(code) or 'no code'}"


def on_load(files: Files, match: re.Match[str]) -> Cause:
    """Which libraries run instructions on loading that old CPUs do not have."""
    rows = []
    open_ends = []
    for library in files.on_load.libraries:
        code = library.instructions
        if code is None:
            continue
        if code.open_ends:
            open_ends.append(library.path)
        for feature, (count, places) in code.beyond.items():
            rows.append(
                f"{library.path}: {count} instructions that run on loading need {feature}, "
                f"at {places[0]}"
            )
    where = re.search(r" in ([\w.+-]+\.(?:so[\w.]*|dll|pyd))\[", match.string)
    if where:
        rows = [row for row in rows if where[1] in row] or rows
    if rows:
        cause = (
            "code that runs on loading needs instructions that this CPU may not have (lscpu "
            "names those it has)"
        )
        cure = "install a wheel for this CPU (farm detect names it), or build one for its level"
        return cause, rows, cure
    cause = (
        "a function needs an instruction that this CPU does not have; nothing that runs on "
        "loading does"
    )
    if where:
        cause += f"; the kernel names {where[1]}"
    if open_ends:
        cause += (
            f", as far as it can be followed ({open_ends[0]} calls by pointers; farm verify "
            "--emulate runs it)"
        )
    cure = (
        "farm verify WHEEL --policy with the CPU level of the machine lists such instructions; "
        "install or build a wheel for that level; ATEN_CPU_CAPABILITY=default helps where only "
        "ATen's kernels are too new"
    )
    return cause, (), cure
