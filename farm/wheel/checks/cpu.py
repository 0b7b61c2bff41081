"""The check `cpu`: no machine code beyond the promised level."""

import posixpath
import re
from collections.abc import Iterator
from fnmatch import translate

from farm.policy.levels import arm_level_names, level_names
from farm.policy.rules import Policy, defaults
from farm.wheel.checks.subject import Subject, fits_any, not_run, outcome
from farm.wheel.isa.levels import is_within, lowest_level_with
from farm.wheel.library import Contents, Instructions
from farm.wheel.report import Check, Finding

# What a new build may call otherwise: auditwheel and delvewheel put a hash of its content into a
# name, and behind `.so` stands the version.
_CHANGING = re.compile(r"(-[0-9a-f]{8,32})*(\.so|\.dll|\.pyd)(?!.*/).*", re.IGNORECASE)


# The name of an instruction set as a part of a file's name, with what divides it from the rest.
_INSTRUCTION_SET = re.compile(r"[._-](?:avx|sse|sve|fma)[a-z0-9]*(?=[._-])", re.IGNORECASE)


def held_to(policy: Policy, member: str) -> str | None:
    """The CPU level that a member must keep to: the promised one, or a higher one that `only_on`
    has for it.
    """
    promised = policy.cpu
    if promised is None:
        return None
    for level, patterns in policy.only_on.items():
        if fits_any(member, patterns) and not is_within(level, promised):
            return level
    return promised


def is_for_other_cpus(policy: Policy, member: str) -> bool:
    """True if `only_on` says that no CPU of the promised level loads a member."""
    return held_to(policy, member) != policy.cpu


def check(subject: Subject) -> Check:
    """Check the decoded libraries against the promised level."""
    policy = subject.policy
    level = policy.cpu
    if level is None:
        return not_run("cpu", "no CPU level is promised")
    if level not in (*level_names(), *arm_level_names()):
        return not_run("cpu", f"CPU level {level} cannot be checked")
    findings: list[Finding] = []
    decoded = 0
    skipped = []
    undecided = []
    for library in subject.contents.libraries:
        code = library.instructions
        if code is None:
            continue
        # Which CPUs load a member is decided by Python code, which is not followed.
        if code.open_ends or is_for_other_cpus(policy, library.path):
            undecided.append(library.path)
        if code.not_checked:
            skipped.append(f"{library.path}: {code.not_checked}")
            continue
        decoded += 1
        findings += _beyond(library.path, code)
    findings += _left_out(subject.contents, policy, level)
    if not decoded and not findings:
        return not_run("cpu", "; ".join(skipped) or "no machine code besides exempt members")
    note = "; ".join([f"{decoded} libraries decoded", *skipped])
    return outcome("cpu", findings, note).model_copy(update={"undecided": tuple(undecided)})


def _beyond(path: str, code: Instructions) -> Iterator[Finding]:
    """The features beyond its level that a library needs."""
    level = code.level
    newer = lowest_level_with(code.beyond, level)
    module_of_level = _of_one_level(path)
    asks_the_cpu = fits_any(posixpath.basename(path), defaults("ask_the_cpu"))
    pattern = _CHANGING.sub("*", path)
    for feature, (count, places) in code.beyond.items():
        at = ", ".join(places)
        text = f"{count} instructions need {feature}, first at {at}"
        if code.starts is not None:
            text = f"{count} instructions run on loading or at exit need {feature}, first at {at}"
            yield _on_load(path, text, level, newer, module_of_level or pattern)
        elif module_of_level and newer:
            yield _module_of_level(path, text, level, newer, module_of_level)
        elif asks_the_cpu:
            yield _known_to_ask(path, text, level, pattern)
        else:
            yield _code(path, text, level, pattern)


def _illegal_instruction(level: str) -> str:
    return f"on a CPU of level {level} the process dies with 'Illegal instruction'"


def _code(where: str, what: str, level: str, pattern: str) -> Finding:
    return Finding(
        check="cpu",
        where=where,
        what=what,
        why=_illegal_instruction(level),
        fix="compile with the level's -march: a build that adds its own (-march=native) often has "
        "a switch against it, for the recipe's `env`; only if it asks the CPU at run time, as many "
        f'libraries for mathematics and cryptography do: dispatching: ["{pattern}"] in the policy, '
        "or under `verify` in the recipe",
    )


def _known_to_ask(where: str, what: str, level: str, pattern: str) -> Finding:
    return Finding(
        check="cpu",
        where=where,
        what=what,
        why=_illegal_instruction(level),
        fix="it is known to ask the CPU at run time: if it comes from a distribution, or was built "
        f'so, write dispatching: ["{pattern}"] in the policy, or under `verify` in the recipe; '
        "what runs on loading is checked all the same. If it was compiled with a -march of its "
        "own, compile it with the level's",
    )


def _module_of_level(
    where: str,
    what: str,
    level: str,
    newer: str,
    pattern: str,
) -> Finding:
    """A member whose name says which CPUs it is for."""
    return Finding(
        check="cpu",
        where=where,
        what=what,
        why=_illegal_instruction(level),
        fix=f"if the package loads it on newer CPUs alone: {_only_on(newer, pattern)}",
    )


def _on_load(
    where: str,
    what: str,
    level: str,
    newer: str | None,
    pattern: str,
) -> Finding:
    fix = (
        "compile what has static initialisers without the kernels' flags: no global objects beside "
        "kernels"
    )
    if newer is not None:
        fix += (
            "; if the package has a module for each kind of CPU, and loads this one on newer CPUs "
            f"alone: {_only_on(newer, pattern)}"
        )
    return Finding(check="cpu", where=where, what=what, why=_illegal_instruction(level), fix=fix)


def _only_on(level: str, pattern: str) -> str:
    return (
        f'only_on: {{{level}: ["{pattern}"]}} in the policy, or under `verify` in the recipe; '
        "--emulate and `farm submit` then import the package on an emulated CPU, and see that it "
        "loads none of them"
    )


def _of_one_level(path: str) -> str | None:
    """A pattern for the members of a package that carry the same instruction set in their name, as
    `rapidfuzz/*_avx2*`; None where the name has none.
    """
    match = _INSTRUCTION_SET.search(posixpath.basename(path))
    if match is None:
        return None
    package, slash, _ = path.partition("/")
    return f"{package}/*{match[0]}*" if slash else f"*{match[0]}*"


def loaded_on_lower_cpu(where: str, model: str, policy: Policy) -> Finding:
    """A member that `only_on` has for newer CPUs, and that an import loaded all the same.

    Args:
        where: The member.
        model: qemu's name of the CPU.
        policy: What the wheel is held to.
    """
    return Finding(
        check="cpu",
        where=where,
        what=f"importing the package on {model} loads it, which `only_on` has for "
        f"{held_to(policy, where)}",
        why=_illegal_instruction(policy.cpu or ""),
        fix="take it out of `only_on`, and compile it for the level; or have the package ask the "
        "CPU before it loads it",
    )


def _left_out(contents: Contents, policy: Policy, level: str) -> Iterator[Finding]:
    """Code for other CPUs that a library chooses at run time: right by itself, and not what the
    variant promises.
    """
    if not policy.left_out:
        return
    # One expression for all patterns: a large library exports very many names.
    pattern = re.compile("|".join(map(translate, policy.left_out)))
    for path, symbols in contents.symbols.items():
        names = sorted(filter(pattern.match, symbols.exports))
        if names:
            yield _tier_was_compiled(path, len(names), level, names[0][:200])


def _tier_was_compiled(where: str, count: int, level: str, first: str) -> Finding:
    return Finding(
        check="cpu",
        where=where,
        what=f"exports {count} names of code that {level} leaves out, first {first}",
        why="the tier was compiled: the build did not see the plan's setting",
        fix="look at CMake's output for tiers.cmake (CMAKE_PROJECT_INCLUDE), and build it again",
    )


def died_when_loaded(
    where: str,
    model: str,
    signal: str,
    last_words: str,
    level: str | None,
) -> Finding:
    """A library whose import ended the process on an emulated CPU.

    Args:
        where: The member.
        model: qemu's name of the CPU.
        signal: The name of the signal.
        last_words: The last line that the process wrote, empty where there is none.
        level: The promised level.
    """
    words = f" (last words: {last_words})" if last_words else ""
    return Finding(
        check="cpu",
        where=where,
        what=f"loading it on {model} ends the process by {signal}{words}",
        why=f"on a CPU of level {level} the import dies so",
        fix="compile what runs on loading without the kernels' flags: initialisers, resolvers, "
        "PyInit functions",
    )


def died_at_exit(where: str, model: str, level: str | None) -> Finding:
    """A library that ended the process when it left, on an emulated CPU.

    Args:
        where: The member; empty where no single one does so.
        model: qemu's name of the CPU.
        level: The promised level.
    """
    return Finding(
        check="cpu",
        where=where,
        what=f"a process that has loaded it on {model} ends by SIGILL when it exits",
        why=f"on a CPU of level {level} every program that imports it ends with an error",
        fix="compile what runs at exit without the kernels' flags: destructors of global objects, "
        "functions for atexit",
    )
