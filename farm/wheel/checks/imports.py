"""The check `imports`: every needed library is in the wheel where the loader looks, on the system,
or excluded.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from farm.platforms.facts import split_platform, unread
from farm.policy.rules import Policy
from farm.wheel.checks.subject import Subject, not_run, outcome
from farm.wheel.library import Contents, Library
from farm.wheel.needs import TWO_OPENMP, Answer, Need, brings, two_openmp
from farm.wheel.report import Check, Finding

_BY_LUCK = "it loads only if something else has loaded that library before"
_DEBUG_RUNTIME = re.compile(
    r"(msvcp|msvcr|vcruntime|concrt|vcomp|ucrtbase)[\d_a-z]*d\.dll", re.IGNORECASE
)
_NOT_FOUND = "importing fails wherever that library does not happen to be installed"


def check(subject: Subject) -> Check:
    """Follow the imports of all libraries."""
    contents = subject.contents
    libraries = contents.libraries
    needs = subject.needs
    findings = [_unreadable(library) for library in libraries if library.error]
    findings += _unfit_libraries(libraries, _promised_machine(subject.policy))
    if not libraries:
        reason = unread(subject.tags)
        if reason:
            return not_run("imports", reason)

    missing = []
    from_dependencies = 0
    for need in needs:
        if need.answer is Answer.UNREACHABLE:
            findings.append(_unreachable(need))
        elif need.answer is Answer.MISSING:
            missing.append(need)
        elif need.answer is Answer.DEPENDENCY:
            from_dependencies += 1
    findings += _missing(missing, contents)

    note = f"{len(needs)} imports of {len(libraries)} libraries"
    if from_dependencies:
        note += f", {from_dependencies} from dependencies"
    return outcome("imports", findings, note)


def _unfit_libraries(
    libraries: Sequence[Library],
    machine: str | None,
) -> Iterator[Finding]:
    """Libraries for another machine than the promised one, or with two OpenMP runtimes."""
    for library in libraries:
        if machine and library.is_loadable and library.machine != machine:
            yield _other_machine(library, machine)
        runtimes = two_openmp(library)
        if runtimes:
            yield _two_openmp(library.path, runtimes)


def _promised_machine(policy: Policy) -> str | None:
    """The promised machine as `Library.machine` has it: Windows has names of its own."""
    if policy.platform is None:
        return None
    platform, name = split_platform(policy.platform)
    return platform.tag_of(name)


def _unreadable(library: Library) -> Finding:
    return Finding(
        check="imports",
        where=library.path,
        what=f"cannot be read: {library.error}",
        why="the loader refuses it, or loads something else than was checked here",
        fix="build the wheel again; if this comes back, look at what writes this file",
        waivable=False,  # nothing else about it was checked
    )


def _other_machine(library: Library, machine: str) -> Finding:
    return Finding(
        check="imports",
        where=library.path,
        what=f"is built for {library.machine}, not for {machine}",
        why="the loader refuses it",
        fix="build it for the variant's machine, or leave it out of the wheel",
    )


def _two_openmp(where: str, runtimes: str) -> Finding:
    return Finding(
        check="imports",
        where=where,
        what=f"imports two OpenMP runtimes: {runtimes}",
        why="one runs its parallel regions and the other answers for threads and locks: wrong "
        "numbers without an error",
        fix=TWO_OPENMP,
    )


def _unreachable(need: Need) -> Finding:
    """A library that is there, where the loader does not find it: by its folder, or by its name."""
    path = str(need.by)
    if need.who.lower().endswith((".pyd", ".dll")):
        return _not_where_windows_looks(need, path)
    if posixpath.basename(path) != posixpath.basename(need.name):
        return _only_by_soname(need, path)
    return Finding(
        check="imports",
        where=need.who,
        what=f"needs {need.name}, which is at {path}, where its RUNPATH does not lead",
        why=_BY_LUCK,
        fix="farm repair --tools writes such a RUNPATH",
    )


def _not_where_windows_looks(need: Need, path: str) -> Finding:
    return Finding(
        check="imports",
        where=need.who,
        what=f"needs {need.name}, which is at {path}, where Windows does not look",
        why=_BY_LUCK,
        fix="put it beside the file that needs it, or into a folder that the package adds "
        "(os.add_dll_directory)",
    )


def _only_by_soname(need: Need, path: str) -> Finding:
    return Finding(
        check="imports",
        where=need.who,
        what=f"needs {need.name}, and no file has this name: {path} calls itself so (SONAME)",
        why=_BY_LUCK,
        fix="give the file that name, or the other one to what needs it (patchelf "
        "--replace-needed); a tool that unpacks links as files loses such names",
    )


def _missing(needs: Sequence[Need], contents: Contents) -> Iterator[Finding]:
    """Libraries that the wheel does not have, by the file that needs them and the requirement that
    brings them.
    """
    libraries = {library.path for library in contents.libraries}
    fakes = {posixpath.basename(path): path for path in contents.files if path not in libraries}
    for who, group in groupby(needs, key=lambda need: need.who):
        by_requirement: dict[str, list[str]] = {}
        not_brought: list[Finding] = []
        for need in group:
            if requirement := brings(need.name, contents.requires):
                by_requirement.setdefault(requirement, []).append(need.name)
            elif fake := fakes.get(posixpath.basename(need.name)):
                not_brought.append(_no_library(need, fake, contents.files[fake][1]))
            else:
                not_brought.append(_nowhere(need))
        for requirement, names in by_requirement.items():
            yield _of_another_wheel(who, names, requirement)
        yield from not_brought


def _nowhere(need: Need) -> Finding:
    if _DEBUG_RUNTIME.fullmatch(need.name):
        return Finding(
            check="imports",
            where=need.who,
            what=f"needs {need.name}, Microsoft's debug runtime, which may not be shipped",
            why=_NOT_FOUND,
            fix="compile it as Release: /MD in place of /MDd (CMAKE_BUILD_TYPE=Release)",
        )
    return Finding(
        check="imports",
        where=need.who,
        what=f"needs {need.name}, which is neither in the wheel nor a system library",
        why=_NOT_FOUND,
        fix="repair the wheel with the folder that holds it, give the dependency that brings it "
        "(--dependency), or exclude it on purpose",
    )


def _of_another_wheel(where: str, names: Sequence[str], requirement: str) -> Finding:
    return Finding(
        check="imports",
        where=where,
        what=f"needs {', '.join(names)} of another wheel: by its Requires-Dist {requirement}",
        why=_NOT_FOUND,
        fix=f"give that wheel, too: pip download --no-deps '{requirement}'; farm verify "
        "--dependency FILE",
    )


def _no_library(need: Need, fake: str, size: int) -> Finding:
    return Finding(
        check="imports",
        where=need.who,
        what=f"needs {need.name}, and {fake} is no library ({size} bytes)",
        why=_NOT_FOUND,
        fix="build the wheel again with a tool that follows links: unpacked as a file, a link is "
        "its own text",
    )
