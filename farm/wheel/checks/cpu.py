"""The check `cpu`: no machine code beyond the promised level."""

import posixpath
import re
from collections.abc import Iterator
from fnmatch import translate

from farm.wheel.checks.subject import Subject, fits_any, not_run, outcome
from farm.wheel.library import Contents, Instructions
from farm.wheel.policy import (
    Check,
    Finding,
    Policy,
    arm_level_names,
    defaults,
    level_names,
)

# What a new build may call otherwise: auditwheel and delvewheel put a hash of its content into a
# name, and behind `.so` stands the version.
_CHANGING = re.compile(r"(-[0-9a-f]{8,32})*(\.so|\.dll|\.pyd)(?!.*/).*", re.IGNORECASE)


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
        if code.open_ends:
            undecided.append(library.path)
        if code.not_checked:
            skipped.append(f"{library.path}: {code.not_checked}")
            continue
        decoded += 1
        findings += _beyond(library.path, code, level)
    findings += _left_out(subject.contents, policy, level)
    if not decoded and not findings:
        return not_run("cpu", "; ".join(skipped) or "no machine code besides exempt members")
    note = "; ".join([f"{decoded} libraries decoded", *skipped])
    return outcome("cpu", findings, note).model_copy(update={"undecided": tuple(undecided)})


def _beyond(path: str, code: Instructions, level: str) -> Iterator[Finding]:
    """The features beyond the level that a library needs."""
    asks_the_cpu = fits_any(posixpath.basename(path), defaults("ask_the_cpu"))
    pattern = _CHANGING.sub("*", path)
    for feature, (count, places) in code.beyond.items():
        at = ", ".join(places)
        text = f"{count} instructions need {feature}, first at {at}"
        if code.starts is not None:
            text = f"{count} instructions run on loading or at exit need {feature}, first at {at}"
            yield _on_load(path, text, level)
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


def _on_load(where: str, what: str, level: str) -> Finding:
    return Finding(
        check="cpu",
        where=where,
        what=what,
        why=_illegal_instruction(level),
        fix="compile what has static initialisers without the kernels' flags: no global objects "
        "beside kernels",
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
    where: str, model: str, signal: str, last_words: str, level: str | None
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
