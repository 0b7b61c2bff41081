"""The check `platform`: each platform tag is one that the libraries really earn."""

from collections.abc import Iterator, Sequence

from farm.platforms.facts import split_platform
from farm.wheel.checks.subject import Subject, outcome
from farm.wheel.library import Library
from farm.wheel.needs import system_needs
from farm.wheel.report import Check, Finding
from farm.wheel.tags import SystemNeed, earned_level, for_musl, level_of_tag, unmet_needs

_MISPLACED = "pip installs the wheel where it cannot run, or not at all"


def check(subject: Subject) -> Check:
    """Check that each platform tag is of the promised machine and promises what the libraries
    keep.
    """
    tags = sorted({tag.rsplit("-", 1)[-1] for tag in subject.tags})
    names = ", ".join(tags)
    findings: list[Finding] = []
    if subject.policy.platform is None:
        # Its tags name no machine: nothing may be in it that a machine loads.
        for library in subject.loadable:
            findings.append(_not_pure(library, names))
        return outcome("platform", findings, names)

    platform, machine = split_platform(subject.policy.platform)
    if not platform.in_images:  # no level of manylinux to earn
        promised = f"{platform.tag}_{platform.tag_of(machine)}"
        for tag in tags:
            if not platform.fits(tag, machine):
                findings.append(_other(tag, promised))
        return outcome("platform", findings, names)

    # What the wheel itself answers does not count: only what is asked of the system decides the
    # level.
    needs = system_needs(subject.contents.libraries, subject.needs)
    for tag in tags:
        if tag == "any" and not subject.loadable:
            findings.append(_not_built())
        elif not tag.startswith("musllinux"):  # beside another tag; nothing is said of musl
            findings += _broken_promises(tag, machine, needs, subject.loadable)
    if findings:
        return outcome("platform", findings)
    return outcome("platform", (), f"earned: {earned_level(needs, machine).name}")


def _broken_promises(
    tag: str,
    machine: str,
    needs: list[SystemNeed],
    libraries: Sequence[Library],
) -> Iterator[Finding]:
    """Promises of a platform tag that the libraries do not keep."""
    level = level_of_tag(tag)
    if level is None or level[1] != machine:
        yield _no_manylinux(tag, machine)
        return

    musl = [library.path for library in libraries if for_musl(library.path, library.needed)]
    for path in musl:
        yield _built_for_musl(path, tag)
    if musl:
        return

    for need in needs:
        unmet = unmet_needs(level[0], need, machine)
        if unmet:
            yield _unearned(need.who, ", ".join(unmet[:5]), tag)


def _not_built() -> Finding:
    return Finding(
        check="platform",
        where="",
        what="holds no compiled code: it is for every machine",
        why="an extension was not built, which some packages leave out where their compiler "
        "fails, or the package is pure Python, and one wheel of it serves all variants",
        fix="look into the build's log; publish a pure package by farm publish --to",
    )


def _no_manylinux(tag: str, machine: str) -> Finding:
    return Finding(
        check="platform",
        where="",
        what=f"platform tag {tag} is not a manylinux tag for {machine}",
        why="pip takes the tag at its word: it installs the wheel where it cannot run, or not at "
        "all",
        fix="repair the wheel: that gives it the tag that its libraries earn",
    )


def _built_for_musl(where: str, tag: str) -> Finding:
    return Finding(
        check="platform",
        where=where,
        what=f"is for musl (Alpine Linux), and the platform tag is {tag}",
        why="pip installs the wheel where this file cannot be loaded or started",
        fix="build this file for glibc",
    )


def _unearned(where: str, unmet: str, tag: str) -> Finding:
    return Finding(
        check="platform",
        where=where,
        what=f"needs {unmet}, more than the tag {tag} promises",
        why="pip installs it on systems that are too old, where the import fails",
        fix="repair the wheel again, or build on the distribution that the tag means",
    )


def _not_pure(library: Library, tags: str) -> Finding:
    machine = library.machine or "no known machine"
    return Finding(
        check="platform",
        where=library.path,
        what=f"is a library for {machine}; the platform tags are {tags}",
        why="pip installs the wheel on every machine that the tag fits, and this file loads on one "
        "kind",
        fix="build it with the tag of its platform (Root-Is-Purelib: false)",
    )


def _other(tag: str, promised: str) -> Finding:
    return Finding(
        check="platform",
        where="",
        what=f"platform tag {tag} is not {promised}",
        why=_MISPLACED,
        fix="build it for Windows with Root-Is-Purelib: false; repair keeps Windows' tags",
    )
