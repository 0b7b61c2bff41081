"""Reasons: what a rule objects to, the fact that it rests on, and the source of that fact."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from farm.catalog.models import Facts
from farm.plan.compat.stack import Stack

Severity = Literal["error", "unpinned", "warning", "note"]


@dataclass(frozen=True)
class Reason:
    """A rule's objection to a stack.

    Attributes:
        rule: The name of the rule.
        text: What is wrong.
        fact: What it rests on.
        source: Where the fact is from.
        nearest: The options that would do away with it, as they are typed.
        severity: An `error` cannot be built. `unpinned` goes together, but the farm has no pinned
            file to build it with. A `warning` can be built, but should be read. A `note` is worth
            knowing, and asks for nothing.
        change: The fields of the stack that may be changed to do away with it, the best first.
    """

    rule: str
    text: str
    fact: str
    source: str
    nearest: str | None = None
    severity: Severity = "error"
    change: tuple[str, ...] = ()

    @property
    def blocks(self) -> bool:
        """True if no plan can be made as long as the reason is there."""
        return self.severity in ("error", "unpinned")

    def with_severity(self, severity: Severity) -> "Reason":
        return replace(self, severity=severity)

    def __str__(self) -> str:
        return self.text + (f"; nearest that can: {self.nearest}" if self.nearest else "")

    def to_json(self) -> dict[str, str | None]:
        names = ("rule", "severity", "text", "fact", "source", "nearest")
        return {name: getattr(self, name) for name in names}


Rule = Callable[[Stack], Iterator[Reason]]


class Ground(NamedTuple):
    """The source of a fact, and why it is in doubt; None: it is not."""

    source: str
    doubt: str | None = None


def ground(record: Facts, fact: str) -> Ground:
    """The source of one fact of a record of the catalogue, and the doubt about it."""
    return Ground(record.sources.get(fact, fact), record.doubt(fact))


def because(
    rule: str,
    text: str,
    fact: str,
    rests_on: Ground | str,
    *,
    severity: Severity = "error",
    change: tuple[str, ...] = (),
) -> Reason:
    """Make the reason of a rule; a fact in doubt only warns.

    Args:
        rule: The name of the rule.
        text: What is wrong.
        fact: What it rests on.
        rests_on: The source of the fact, and the doubt about it.
        severity: How much it matters where the fact is not in doubt.
        change: The fields of the stack that may be changed to do away with it, the best first.
    """
    source, doubt = Ground(rests_on) if isinstance(rests_on, str) else rests_on
    if doubt:
        fact += f" (unconfirmed: {doubt})"
        if severity == "error":
            severity = "warning"
    return Reason(rule, text, fact, source, severity=severity, change=change)
