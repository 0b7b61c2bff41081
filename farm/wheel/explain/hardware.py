"""Causes that lie in the machine: another kind of it, its GPU, its CPU."""

import re
from collections import Counter

from farm.wheel.explain.files import Cause, Files, given, is_called
from farm.wheel.fatbin import number, order, runs_on


def wrong_machine(files: Files, match: re.Match[str]) -> Cause:
    libraries = files.libraries
    # An installed folder has no tags: the machine of most libraries counts as the right one.
    usual = Counter(library.machine for library in libraries if not library.error).most_common(1)
    machine = usual[0][0] if usual else ""
    bad = [f"{library.path}: {library.error}" for library in libraries if library.error]
    bad += [
        f"{library.path}: for {library.machine}"
        for library in libraries
        if not library.error and library.machine != machine
    ]
    file = given(match)
    name = file.rpartition("/")[2]
    if name and not any(is_called(library.path, name) for library in libraries):
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


def kernels(files: Files, match: re.Match[str]) -> Cause:
    """CUDA has no code for the GPU: which libraries have code, and for which GPUs."""
    gpu_match = re.search(
        r"\bsm_?(\d{2,3})\b|capability (\d{1,2})\.(\d)", match.string, re.IGNORECASE
    )
    gpu = int(gpu_match[1] or gpu_match[2] + gpu_match[3]) if gpu_match else None
    with_code = [file for file in files.libraries if file.fatbins]
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
    gpu_name = f"sm_{gpu}" if gpu else "this GPU (farm detect says which it is)"
    if gpu is not None and with_code and not rows:
        cause = (
            f"every library here has code for {gpu_name}: another build is imported, or another "
            "package lacks it"
        )
        return (
            cause,
            (),
            "print(torch.__file__, torch.cuda.get_arch_list()) says which build is imported",
        )
    if with_code:
        cause = f"a library holds no code for {gpu_name}"
    else:
        cause = f"no library here has code for GPUs or {gpu_name}"
    return (
        cause,
        rows,
        "install a wheel for this GPU (farm detect names it), or build one (farm plan)",
    )


def on_load(files: Files, match: re.Match[str]) -> Cause:
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
        library_read.path
        for library_read in files.on_load.libraries
        if library_read.instructions and library_read.instructions.open_ends
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
