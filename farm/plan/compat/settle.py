"""Defaults yield to explicit choices: a default must not be the reason why a build is refused."""

from collections.abc import Collection

from farm.plan.compat.nearest import Check, Objects, nearest
from farm.plan.compat.stack import Stack

MAX_ROUNDS = 4


def settle(stack: Stack, free: Collection[str], check: Check, objects: Objects) -> Stack:
    """The stack with other values of the `free` fields where that does away with reasons against it.

    Args:
        stack: What was asked for, completed with defaults.
        free: The fields whose values are defaults: `base`, `cudnn`, `torch`.
        check: The rules.
        objects: As for `nearest`.
    """
    # A round moves one default, which may leave a reason that another default does away with.
    for _ in range(MAX_ROUNDS):
        found = check(stack)
        blocking = [reason for reason in found if reason.severity != "warning"]
        options = (nearest(stack, reason, check, objects, found, only=frozenset(free)) for reason in blocking)
        better = next((other for other in options if other), None)
        if better is None:
            return stack
        stack = better
    return stack
