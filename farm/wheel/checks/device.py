"""The checks `sass` and `ptx`: the code for GPUs is what was promised.

cuDNN comes from NVIDIA as it is, and its releases drop GPUs without changing the CUDA version they
are for. A wheel whose own kernels are right may still fail in its first convolution.
"""

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal

from farm.policy.rules import Policy, defaults
from farm.wheel.checks.subject import Subject, fits_any, not_run, outcome
from farm.wheel.fatbin import Architecture, is_code_for, number, order, runs_on
from farm.wheel.library import Contents, FatbinSet, Library
from farm.wheel.report import Check, Finding

_Kind = Literal["sass", "ptx"]
_Architectures = tuple[Architecture, ...]

_CLEAN_BUILD = (
    "compile with the variant's architecture list (TORCH_CUDA_ARCH_LIST) and from a clean build "
    "folder"
)


def check_sass(subject: Subject) -> Check:
    """Check that every fat binary of the wheel's own libraries holds the promised machine code, and
    no other.
    """
    contents = subject.contents
    policy = subject.policy
    summary = _summary(contents, "sass")
    if policy.sass is None:
        return not_run("sass", f"no machine code is promised; {summary}")
    vendored = [file for file in contents.libraries if fits_any(file.path, policy.foreign)]
    findings = list(_lacking(contents, policy, "sass", policy.sass))
    findings += _not_running(policy.sass, [*vendored, *contents.dependencies])
    findings += _unfit_cudnn(policy.sass, [*contents.libraries, *contents.dependencies])
    if not policy.allow_other_sass:
        findings += _unpromised(contents, policy, policy.sass)
    return outcome("sass", findings, summary)


def check_ptx(subject: Subject) -> Check:
    """Check that every fat binary of the wheel's own libraries holds the promised PTX; more does no
    harm.
    """
    contents = subject.contents
    promised = subject.policy.ptx
    summary = _summary(contents, "ptx")
    if not promised:
        return not_run("ptx", f"no PTX is promised; {summary}")
    return outcome("ptx", _lacking(contents, subject.policy, "ptx", promised), summary)


def _lacks(check: _Kind, where: str, what: str) -> Finding:
    if check == "sass":
        why = (
            "on such a GPU every kernel here fails with 'no kernel image is available for "
            "execution on the device'"
        )
    else:
        why = (
            "GPUs newer than the machine code in the wheel have nothing that the driver could "
            "compile for them"
        )
    return Finding(check=check, where=where, what=what, why=why, fix=_CLEAN_BUILD)


def _others(where: str, containers: int, more: Sequence[Architecture]) -> Finding:
    return Finding(
        check="sass",
        where=where,
        what=f"{containers} fat binaries hold {_listed(more)}, which is not promised",
        why="the wheel was built for other GPUs than its name says; the extra code costs size",
        fix="set the architecture list to the variant's, or name the variant after what is built",
    )


def _cudnn(where: str, gpu: int, architectures: Sequence[Architecture]) -> Finding:
    return Finding(
        check="sass",
        where=where,
        what=f"cuDNN without code for sm_{gpu}; it holds {_listed(architectures)}",
        why=f"on sm_{gpu} convolutions fail with CUDNN_STATUS_ARCH_MISMATCH or 'no kernel image'",
        fix="vendor an older cuDNN: choose it by the lowest GPU, not by the CUDA version",
    )


def _compiled_here(contents: Contents, policy: Policy) -> list[Library]:
    """The libraries with device code that was compiled for this wheel."""
    libraries = []
    for library in contents.libraries:
        is_foreign = _is_cudnn(library) or fits_any(library.path, policy.foreign)
        if library.fatbins and not is_foreign:
            libraries.append(library)
    return libraries


def _lacking(
    contents: Contents,
    policy: Policy,
    kind: _Kind,
    promised: _Architectures,
) -> Iterator[Finding]:
    """The groups of fat binaries without some promised code."""
    libraries = _compiled_here(contents, policy)
    # Without device code there is no group that could lack something: the loop below would find
    # nothing.
    if promised and not libraries:
        empty = sum(library.empty_fatbins for library in contents.libraries)
        text = "no library of the wheel's own holds device code"
        if empty:
            text += f" ({empty} fat binaries hold no kernel)"
        yield _lacks(kind, "", f"{text}; promised: {_listed(promised)}")

    for library in libraries:
        for group in _checked_groups(library, policy):
            architectures: _Architectures = getattr(group, kind)
            gaps = _without_code(promised, architectures, is_code_for)
            if gaps:
                text = (
                    f"{group.containers} fat binaries lack {_listed(gaps)}; they hold "
                    f"{_listed(architectures)}"
                )
                yield _lacks(kind, library.path, text)


def _without_code(
    promised: _Architectures,
    architectures: Collection[Architecture],
    serves: Callable[[Architecture, Architecture], bool],
) -> list[Architecture]:
    """The promised GPUs that no code serves.

    Args:
        promised: The GPUs.
        architectures: What the code was compiled for.
        serves: Says of a GPU and an architecture whether this code is for that GPU.
    """
    gaps = []
    for gpu in promised:
        if not any(serves(gpu, architecture) for architecture in architectures):
            gaps.append(gpu)
    return gaps


def _not_running(
    promised: _Architectures,
    libraries: Iterable[Library],
) -> Iterator[Finding]:
    """Libraries that come from elsewhere as they are: each needs some code that runs on every
    promised GPU.
    """
    for library in libraries:
        architectures = _architectures([library])
        if not architectures or _is_cudnn(library):
            continue
        gaps = _without_code(promised, architectures, runs_on)
        if gaps:
            text = (
                f"no fat binary in it holds code that runs on {_listed(gaps)}; they hold "
                f"{_listed(architectures)}"
            )
            yield _lacks("sass", library.path, text)


def _unfit_cudnn(
    promised: _Architectures,
    libraries: Iterable[Library],
) -> Iterator[Finding]:
    """Libraries of cuDNN without code for the oldest promised GPU."""
    if not promised:
        return
    lowest = min(map(number, promised))
    for library in filter(_is_cudnn, libraries):
        architectures = _architectures([library])
        if architectures and _without_code((lowest,), architectures, runs_on):
            yield _cudnn(library.path, lowest, architectures)


def _unpromised(
    contents: Contents,
    policy: Policy,
    promised: _Architectures,
) -> Iterator[Finding]:
    for library in _compiled_here(contents, policy):
        for group in _checked_groups(library, policy):
            unpromised = []
            for architecture in group.sass:
                if not any(is_code_for(gpu, architecture) for gpu in promised):
                    unpromised.append(architecture)
            if unpromised:
                yield _others(library.path, group.containers, unpromised)


def _architectures(
    libraries: Iterable[Library],
    kind: _Kind = "sass",
) -> list[Architecture]:
    architectures: set[Architecture] = set()
    for library in libraries:
        for group in library.fatbins:
            architectures.update(getattr(group, kind))
    return sorted(architectures, key=order)


def _checked_groups(library: Library, policy: Policy) -> tuple[FatbinSet, ...]:
    """All groups; of a library with others' code in it, the most frequent one."""
    if fits_any(library.path, policy.mixed):
        return library.fatbins[:1]
    return library.fatbins


def _is_cudnn(library: Library) -> bool:
    return fits_any(posixpath.basename(library.path), defaults("cudnn"))


def _listed(architectures: Sequence[Architecture]) -> str:
    return ", ".join(f"sm_{arch}" for arch in architectures) or "none"


def _summary(contents: Contents, kind: _Kind) -> str:
    return f"found: {_listed(_architectures(contents.libraries, kind))}"
