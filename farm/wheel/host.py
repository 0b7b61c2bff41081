"""Checks of host code: does it load on the promised platform, and does it run on the promised CPU?"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase, translate
from itertools import groupby

from farm.platforms.facts import Facts, split_platform, unread
from farm.wheel.dependencies import brings
from farm.wheel.isalevels import arm_level_names, level_names
from farm.wheel.library import Contents, Library
from farm.wheel.needs import TWO_OPENMP, Answer, Need, resolve, system_needs, two_openmp
from farm.wheel.pe import DllSymbols
from farm.wheel.policy import CheckId, Policy, defaults
from farm.wheel.report import Check, Finding
from farm.wheel.tags import SystemNeed, earned_level, for_musl, level_of_tag, unmet_needs

_FIX_CODE = (
    "compile with the level's -march: a build that adds its own (-march=native) often has a switch against it, for the "
    "recipe's `env`; only if it asks the CPU at run time, as many libraries for mathematics and cryptography do: "
    'dispatching: ["{}"] in the policy, or under `verify` in the recipe'
)
_FIX_KNOWN = (
    "it is known to ask the CPU at run time: if it comes from a distribution, or was built so, write "
    'dispatching: ["{}"] in the policy, or under `verify` in the recipe; what runs on loading is checked all the same. '
    "If it was compiled with a -march of its own, compile it with the level's"
)
# What a new build may call otherwise: auditwheel and delvewheel put a hash of its content into a name, and behind `.so`
# stands the version.
_CHANGING = re.compile(r"(-[0-9a-f]{8,32})*(\.so|\.dll|\.pyd)(?!.*/).*", re.IGNORECASE)
_FIX_ON_LOAD = "compile what has static initialisers without the kernels' flags: no global objects beside kernels"


def check_platform(contents: Contents, policy: Policy, tags: frozenset[str]) -> Check:
    """Each platform tag must be a manylinux tag of the promised machine that the libraries really satisfy."""
    if policy.platform is None:
        return _check_pure(contents, tags)
    platform, machine = split_platform(policy.platform)
    if not platform.in_images:  # no level of manylinux to earn
        return _check_tags(platform, machine, tags)
    # What the wheel itself answers does not count: only what is asked of the system decides the level.
    needs = system_needs(contents.libraries, resolve(contents.libraries, policy.exclude, contents.dependencies))
    loadable = [library for library in contents.libraries if library.is_loadable]
    findings: list[Finding] = []
    for tag in sorted({tag.rsplit("-", 1)[-1] for tag in tags}):
        if tag.startswith("musllinux"):  # beside another tag; nothing is said of musl
            continue
        if tag == "any" and not loadable:
            findings.append(_not_built())
        else:
            findings += _unearned(tag, machine, needs, loadable)
    note = "" if findings else f"earned: {earned_level(needs, machine).name}"
    return _check("platform", findings, note)


def _not_built() -> Finding:
    return Finding(
        check="platform",
        where="",
        what="holds no compiled code: it is for every machine",
        why="an extension was not built, which some packages leave out where their compiler fails, "
        "or the package is pure Python, and one wheel of it serves all variants",
        fix="look into the build's log; publish a pure package by farm publish --to",
    )


def _unearned(tag: str, machine: str, needs: list[SystemNeed], libraries: Sequence[Library]) -> Iterator[Finding]:
    """Promises of a platform tag that the libraries do not keep."""
    known = level_of_tag(tag)
    musl = [library.path for library in libraries if for_musl(library.path, library.needed)]
    if known is None or known[1] != machine:
        yield Finding(
            check="platform",
            where="",
            what=f"platform tag {tag} is not a manylinux tag for {machine}",
            why="pip takes the tag at its word: it installs the wheel where it cannot run, or not at all",
            fix="repair the wheel: that gives it the tag that its libraries earn",
        )
    elif musl:
        yield from (
            Finding(
                check="platform",
                where=path,
                what=f"is for musl (Alpine Linux), and the platform tag is {tag}",
                why="pip installs the wheel where this file cannot be loaded or started",
                fix="build this file for glibc",
            )
            for path in musl
        )
    else:
        for need in needs:
            if unmet := unmet_needs(known[0], need, machine):
                yield Finding(
                    check="platform",
                    where=need.who,
                    what=f"needs {', '.join(unmet[:5])}, more than the tag {tag} promises",
                    why="pip installs it on systems that are too old, where the import fails",
                    fix="repair the wheel again, or build on the distribution that the tag means",
                )


def _check_pure(contents: Contents, tags: frozenset[str]) -> Check:
    """A wheel whose tags name no machine must hold nothing that a machine loads."""
    names = ", ".join(sorted({tag.rsplit("-", 1)[-1] for tag in tags}))
    findings = [
        Finding(
            check="platform",
            where=library.path,
            what=f"is a library for {library.machine or 'no known machine'}; the platform tags are {names}",
            why="pip installs the wheel on every machine that the tag fits, and this file loads on one kind",
            fix="build it with the tag of its platform (Root-Is-Purelib: false)",
        )
        for library in contents.libraries
        if library.is_loadable
    ]
    return _check("platform", findings, names)


def _machine(policy: Policy) -> str | None:
    """The machine as `Library.machine` has it: Windows has names of its own."""
    if policy.platform is None:
        return None
    platform, machine = split_platform(policy.platform)
    return platform.tag_of(machine)


def _check_tags(platform: Facts, machine: str, tags: frozenset[str]) -> Check:
    found = sorted({tag.rsplit("-", 1)[-1] for tag in tags})
    findings = [
        Finding(
            check="platform",
            where="",
            what=f"platform tag {tag} is not {platform.tag}_{platform.tag_of(machine)}",
            why="pip installs the wheel where it cannot run, or not at all",
            fix="build it for Windows with Root-Is-Purelib: false; repair keeps Windows' tags",
        )
        for tag in found
        if not platform.fits(tag, machine)
    ]
    return _check("platform", findings, ", ".join(found))


def check_imports(contents: Contents, policy: Policy, tags: frozenset[str]) -> Check:
    """Every needed library must be in the wheel where the loader looks, on the system, or excluded."""
    machine = _machine(policy)
    findings = [_unreadable(library) for library in contents.libraries if library.error]
    for library in contents.libraries:
        if machine and library.is_loadable and library.machine != machine:
            findings.append(
                Finding(
                    check="imports",
                    where=library.path,
                    what=f"is built for {library.machine}, not for {machine}",
                    why="the loader refuses it",
                    fix="build it for the variant's machine, or leave it out of the wheel",
                )
            )
        if runtimes := two_openmp(library):
            findings.append(_two_openmp(library.path, runtimes))
    if not contents.libraries and (reason := unread(tags)):
        return Check(id="imports", status="not_run", note=reason)
    needs = resolve(contents.libraries, policy.exclude, contents.dependencies)
    for need in needs:
        if need.answer is Answer.UNREACHABLE:
            findings.append(_not_reached(need))
    missing = [need for need in needs if need.answer is Answer.MISSING]
    findings += _missing(missing, contents)
    beside = sum(need.answer is Answer.DEPENDENCY for need in needs)
    note = f"{len(needs)} imports of {len(contents.libraries)} libraries"
    return _check("imports", findings, note + (f", {beside} from dependencies" if beside else ""))


def _not_reached(need: Need) -> Finding:
    """A library that is there, where the loader does not find it: by its folder, or by its name."""
    there = str(need.by)
    windows = need.who.lower().endswith((".pyd", ".dll"))
    where = "where Windows does not look" if windows else "where its RUNPATH does not lead"
    what, fix = f"needs {need.name}, which is at {there}, {where}", "farm repair --tools writes such a RUNPATH"
    if windows:
        fix = "put it beside the file that needs it, or into a folder that the package adds (os.add_dll_directory)"
    elif posixpath.basename(there) != posixpath.basename(need.name):
        what = f"needs {need.name}, and no file has this name: {there} calls itself so (SONAME)"
        fix = "give the file that name, or the other one to what needs it (patchelf --replace-needed); a tool that "
        fix += "unpacks links as files loses such names"
    why = "it loads only if something else has loaded that library before"
    return Finding(check="imports", where=need.who, what=what, why=why, fix=fix)


def _missing(needs: Sequence[Need], contents: Contents) -> Iterator[Finding]:
    """Libraries that the wheel does not have, by the file that needs them and the requirement that brings them."""
    known = {library.path for library in contents.libraries}
    fakes = {posixpath.basename(path): path for path in contents.files if path not in known}
    for who, group in groupby(needs, key=lambda need: need.who):
        for requirement, names in _by_requirement([need.name for need in group], contents.requires).items():
            what = f"needs {', '.join(names)}, which is neither in the wheel nor a system library"
            fix = (
                "repair the wheel with the folder that holds it, give the dependency that brings it (--dependency), or "
            )
            fix += "exclude it on purpose"
            if requirement.strip():
                what = f"needs {', '.join(names)} of another wheel: by its Requires-Dist {requirement}"
                fix = f"give that wheel, too: pip download --no-deps '{requirement}'; farm verify --dependency FILE"
            elif fake := fakes.get(posixpath.basename(names[0])):
                what = f"needs {names[0]}, and {fake} is no library ({contents.files[fake][1]} bytes)"
                fix = "build the wheel again with a tool that follows links: unpacked as a file, a link is its own text"
            why = "importing fails wherever that library does not happen to be installed"
            yield Finding(check="imports", where=who, what=what, why=why, fix=fix)


def _by_requirement(names: Iterable[str], requires: Sequence[str]) -> dict[str, list[str]]:
    """Names of libraries by the requirement that brings them; of others each by itself, under a key without words."""
    found: dict[str, list[str]] = {}
    alone = 0
    for name in names:
        requirement = brings(name, requires)
        alone += not requirement
        found.setdefault(requirement or " " * alone, []).append(name)
    return found


def _two_openmp(path: str, runtimes: str) -> Finding:
    return Finding(
        check="imports",
        where=path,
        what=f"imports two OpenMP runtimes: {runtimes}",
        why="one runs its parallel regions and the other answers for threads and locks: wrong numbers without an error",
        fix=TWO_OPENMP,
    )


def check_cpu(contents: Contents, policy: Policy) -> Check:
    """No library that is not exempt may hold instructions beyond the promised CPU level."""
    if policy.cpu is None or policy.cpu not in (*level_names(), *arm_level_names()):
        note = f"CPU level {policy.cpu} cannot be checked" if policy.cpu else "no CPU level is promised"
        return Check(id="cpu", status="not_run", note=note)
    findings = []
    checked = 0
    skipped = []
    for library in contents.libraries:
        if library.instructions is None:
            continue
        if library.instructions.not_checked:
            skipped.append(f"{library.path}: {library.instructions.not_checked}")
            continue
        checked += 1
        on_load = library.instructions.starts is not None
        which = "instructions run on loading" if on_load else "instructions"
        for feature, (count, places) in library.instructions.beyond.items():
            findings.append(
                Finding(
                    check="cpu",
                    where=library.path,
                    what=f"{count} {which} need {feature}, first at {', '.join(places)}",
                    why=f"on a CPU of level {policy.cpu} the process dies with 'Illegal instruction'",
                    fix=_FIX_ON_LOAD if on_load else _advice(library.path),
                )
            )
    findings += _left_out(contents, policy)
    if not checked and not findings:
        reason = "; ".join(skipped) or "no machine code besides exempt members"
        return Check(id="cpu", status="not_run", note=reason)
    ends = [library.path for library in contents.libraries if library.instructions and library.instructions.open_ends]
    note = f"{checked} libraries decoded" + "".join(f"; {line}" for line in skipped)
    return _check("cpu", findings, note).model_copy(update={"undecided": tuple(ends)})


def _advice(path: str) -> str:
    known = any(fnmatchcase(posixpath.basename(path), pattern) for pattern in defaults("ask_the_cpu"))
    return (_FIX_KNOWN if known else _FIX_CODE).format(_CHANGING.sub("*", path))


def _left_out(contents: Contents, policy: Policy) -> Iterator[Finding]:
    """Code for other CPUs that a library chooses at run time: right by itself, and not what the variant promises."""
    if not policy.left_out:
        return
    # One expression for all patterns: a large library exports very many names.
    pattern = re.compile("|".join(map(translate, policy.left_out)))
    for path, symbols in contents.symbols.items():
        names = symbols.exports if isinstance(symbols, DllSymbols) else symbols.defined
        found = sorted(name for name in names if pattern.match(name))
        if found:
            yield Finding(
                check="cpu",
                where=path,
                what=f"exports {len(found)} names of code that {policy.cpu} leaves out, first {found[0][:200]}",
                why="the tier was compiled: the build did not see the plan's setting",
                fix="look at CMake's output for tiers.cmake (CMAKE_PROJECT_INCLUDE), and build it again",
            )


def _unreadable(library: Library) -> Finding:
    return Finding(
        check="imports",
        where=library.path,
        what=f"cannot be read: {library.error}",
        why="the loader refuses it, or loads something else than was checked here",
        fix="build the wheel again; if this comes back, look at what writes this file",
        waivable=False,
    )


def _check(check: CheckId, findings: list[Finding], note: str) -> Check:
    return Check(id=check, status="failed" if findings else "passed", findings=tuple(findings), note=note)
