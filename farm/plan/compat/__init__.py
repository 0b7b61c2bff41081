"""Can it be built? Each rule gives the reason why not, the fact it rests on, and the nearest that would work.

A reason is an error (it cannot be built) or a warning (it can, but not as the name says, or no one knows). A fact
that the catalogue marks as unconfirmed gives a warning. No error is a yes.

The way through: `stack` is what is judged; `gpu`, `host` and `torch` hold the rules, `reasons.yaml` their words;
`nearest` looks for what would work instead; `official` answers for PyTorch's own wheels.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from farm.plan.compat import gpu, host, torch
from farm.plan.compat.nearest import difference, nearest
from farm.plan.compat.stack import Reason, Rule, Stack

__all__ = ["RULES", "Reason", "Stack", "advise", "check", "difference", "objects", "reasons", "settle", "solve"]

RULES: tuple[Rule, ...] = (*gpu.RULES, *host.RULES, *torch.RULES)
MAX_ROUNDS = 8


def check(stack: Stack) -> list[Reason]:
    """The reasons of the rules against the stack, in their order, without a nearest stack."""
    return list(_check(stack))


# The search for the nearest stack judges the same ones again and again.
@lru_cache(maxsize=1 << 14)
def _check(stack: Stack) -> tuple[Reason, ...]:
    found = []
    for rule in RULES:
        for reason in rule(stack):
            _GIVERS.setdefault(reason.rule, set()).add(rule)
            found.append(reason)
    return tuple(found)


_GIVERS: dict[str, set[Rule]] = {}
"""The rules that have given a reason of a name so far."""


def objects(stack: Stack, name: str) -> bool:
    """True if `check` finds a reason called `name`: most changes leave the reason, which its own rule tells alone."""
    if any(reason.rule == name for rule in _GIVERS.get(name, ()) for reason in rule(stack)):
        return True
    return any(reason.rule == name for reason in check(stack))


def advise(stack: Stack, found: list[Reason], keep: tuple[str, ...] = ()) -> list[Reason]:
    """The reasons with the nearest that would do away with each; `keep` as for `nearest`."""
    explained = []
    for reason in found:
        other = nearest(stack, reason, check, objects, found, keep=keep) if reason.change else None
        explained.append(replace(reason, nearest=difference(stack, other) or None) if other else reason)
    return explained


def reasons(stack: Stack) -> list[Reason]:
    """Everything that the rules hold against the stack, each with the nearest that would do away with it."""
    return advise(stack, check(stack))


def _better(stack: Stack, only: Collection[str] | None, keep: tuple[str, ...]) -> tuple[Stack, list[Reason]]:
    """The stack after doing away with one error after the other, and the errors that are left."""
    fields = None if only is None else frozenset(only)
    errors: list[Reason] = []
    for _ in range(MAX_ROUNDS):
        found = check(stack)
        errors = [reason for reason in found if reason.severity != "warning"]
        options = (nearest(stack, reason, check, objects, found, fields, keep) for reason in errors if reason.change)
        # One reason at a time: doing away with it often does away with others.
        if (other := next((other for other in options if other), None)) is None:
            break
        stack = other
    return stack, errors


def solve(stack: Stack, keep: tuple[str, ...] = ()) -> Stack | None:
    """The nearest stack without any error; None: none was found."""
    found, errors = _better(stack, None, keep)
    return None if errors else found


def settle(stack: Stack, free: Collection[str]) -> Stack:
    """The stack with other values of the `free` fields, which are defaults, where that does away with errors.

    Defaults yield to explicit choices: a default must not be the reason why a build is refused.
    """
    return _better(stack, free, ())[0]
