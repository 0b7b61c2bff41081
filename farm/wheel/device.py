"""Device code: do the kernels run on the GPUs that the name promises?

cuDNN comes from NVIDIA as it is, and its releases drop GPUs without changing the CUDA version they are for: a wheel
whose own kernels are right may still fail in its first convolution.
"""

import posixpath
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from farm.wheel.fatbin import is_code_for, number, order, runs_on
from farm.wheel.library import Contents, FatbinSet, Library
from farm.wheel.policy import Policy, defaults
from farm.wheel.report import Check, Finding


def is_part(library: Library, patterns: str) -> bool:
    """True if a library's file name fits the list of `verify_defaults.yaml` with this key."""
    name = posixpath.basename(library.path)
    return any(fnmatchcase(name, pattern) for pattern in defaults(patterns))


_Kind = Literal["sass", "ptx"]
_WHY = {
    "sass": "on such a GPU every kernel here fails with 'no kernel image is available for execution on the device'",
    "ptx": "GPUs newer than the machine code in the wheel have nothing that the driver could compile for them",
}


def check_sass(contents: Contents, policy: Policy) -> Check:
    """Every fat binary of the wheel's own libraries must hold the promised machine code, and no other."""
    if policy.sass is None:
        return Check(id="sass", status="not_run", note=f"no machine code is promised; {_seen(contents, 'sass')}")
    findings = _missing(contents, policy, "sass", policy.sass) + _cudnn(contents, policy.sass)
    if not policy.allow_other_sass:
        findings += _others(contents, policy, policy.sass)
    return _check("sass", findings, contents)


def check_ptx(contents: Contents, policy: Policy) -> Check:
    """Every fat binary of the wheel's own libraries must hold the promised PTX; more does no harm."""
    if not policy.ptx:
        return Check(id="ptx", status="not_run", note=f"no PTX is promised; {_seen(contents, 'ptx')}")
    return _check("ptx", _missing(contents, policy, "ptx", policy.ptx), contents)


def _check(kind: _Kind, findings: list[Finding], contents: Contents) -> Check:
    return Check(
        id=kind, status="failed" if findings else "passed", findings=tuple(findings), note=_seen(contents, kind)
    )


def _missing(contents: Contents, policy: Policy, kind: _Kind, promised: tuple[int | str, ...]) -> list[Finding]:
    findings = []
    own = [library for library in contents.libraries if library.fatbins and not _is_others(library, policy)]
    # Without device code there is no group that could lack something: the loop below would find nothing.
    if promised and not own:
        empty = sum(library.empty_fatbins for library in contents.libraries)
        beside = f" ({empty} fat binaries hold no kernel)" if empty else ""
        findings.append(
            _finding(kind, "", f"no library of the wheel's own holds device code{beside}; promised: {_sm(promised)}")
        )
    for library in contents.libraries:
        if not library.fatbins or _is_others(library, policy):
            continue
        for group in _judged(library, policy):
            gaps = [sm for sm in promised if not any(is_code_for(sm, code) for code in _of(group, kind))]
            if gaps:
                what = f"{group.containers} fat binaries lack {_sm(gaps)}; they hold {_sm(_of(group, kind))}"
                findings.append(_finding(kind, library.path, what))
    if kind == "sass":
        theirs = [library for library in contents.libraries if _is(library, policy.foreign)]
        findings += _not_running(promised, theirs) + _not_running(promised, contents.dependencies)
    return findings


def _not_running(promised: tuple[int | str, ...], libraries: Iterable[Library]) -> list[Finding]:
    """Libraries that come from elsewhere as they are: each needs some code that runs on every promised GPU."""
    findings = []
    for library in libraries:
        there = {sm for group in library.fatbins for sm in group.sass}
        gaps = [sm for sm in promised if not _any_runs_on(sm, there)]
        # cuDNN has a check of its own.
        if gaps and there and not is_part(library, "cudnn"):
            what = f"no fat binary in it holds code that runs on {_sm(gaps)}; they hold {_sm(sorted(there, key=order))}"
            findings.append(_finding("sass", library.path, what))
    return findings


def _others(contents: Contents, policy: Policy, promised: tuple[int | str, ...]) -> list[Finding]:
    findings = []
    for library in contents.libraries:
        if _is_others(library, policy):
            continue
        for group in _judged(library, policy):
            more = [code for code in group.sass if not any(is_code_for(sm, code) for sm in promised)]
            if more:
                findings.append(
                    Finding(
                        check="sass",
                        where=library.path,
                        what=f"{group.containers} fat binaries hold {_sm(more)}, which is not promised",
                        why="the wheel was built for other GPUs than its name says; the extra code costs size",
                        fix="set the architecture list to the variant's, or name the variant after what is built",
                    )
                )
    return findings


def _cudnn(contents: Contents, promised: tuple[int | str, ...]) -> list[Finding]:
    """Each of cuDNN's libraries with device code must have some that runs on the lowest promised GPU."""
    findings = []
    lowest = min(map(number, promised), default=None)
    for library in (*contents.libraries, *contents.dependencies):
        there = sorted({sm for group in library.fatbins for sm in group.sass}, key=order)
        if lowest is None or not there or not is_part(library, "cudnn"):
            continue
        if not _any_runs_on(lowest, there):
            findings.append(
                Finding(
                    check="sass",
                    where=library.path,
                    what=f"cuDNN without code for sm_{lowest}; it holds {_sm(there)}",
                    why=f"on sm_{lowest} convolutions fail with CUDNN_STATUS_ARCH_MISMATCH or 'no kernel image'",
                    fix="vendor an older cuDNN: choose it by the lowest GPU, not by the CUDA version",
                )
            )
    return findings


def _any_runs_on(gpu: int | str, there: Iterable[int | str]) -> bool:
    return any(runs_on(gpu, code) for code in there)


def _judged(library: Library, policy: Policy) -> tuple[FatbinSet, ...]:
    """All groups; of a library with others' code in it, the most frequent one."""
    return library.fatbins[:1] if _is(library, policy.mixed) else library.fatbins


def _finding(kind: _Kind, where: str, what: str) -> Finding:
    return Finding(
        check=kind,
        where=where,
        what=what,
        why=_WHY[kind],
        fix="compile with the variant's architecture list (TORCH_CUDA_ARCH_LIST) and from a clean build folder",
    )


def _is(library: Library, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(library.path, pattern) for pattern in patterns)


def _is_others(library: Library, policy: Policy) -> bool:
    return is_part(library, "cudnn") or _is(library, policy.foreign)


def _of(group: FatbinSet, kind: _Kind) -> tuple[int | str, ...]:
    return group.sass if kind == "sass" else group.ptx


def _sm(numbers: Sequence[int | str]) -> str:
    return ", ".join(f"sm_{number}" for number in numbers) or "none"


def _seen(contents: Contents, kind: _Kind) -> str:
    there = sorted(
        {sm for library in contents.libraries for group in library.fatbins for sm in _of(group, kind)}, key=order
    )
    return f"found: {_sm(there)}"
