"""Why a step failed, read from its log: the tool's own first error, the cause where it is known,
and what to do.

The patterns are in `failures.yaml`. A log is untrusted text: it is only searched, and printed
through `plain`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from farm.base.text import log_line
from farm.base.yamlfile import Model, load

CONTEXT = 6  # lines that are shown from the first error on
WIDTH = 300  # characters of one such line: a compiler's command has thousands
_NINJA_STEP = re.compile(r"\[\d+/\d+\] ")


class Pattern(Model):
    """`in_build`: the advice for a build, without network. `recipe`: the recipe's fault. `id`: for
    `line_naming_cause`.
    """

    pattern: str
    cause: str
    advice: str
    id: str | None = None
    in_build: str | None = None
    recipe: bool = False


class Patterns(Model):
    """`failures.yaml`."""

    errors: list[str]
    causes: list[Pattern]


@dataclass(frozen=True)
class Failure:
    """The lines of a log from its first error on, else its last; the cause; `recipe`: a new try
    would fail as well.
    """

    lines: tuple[str, ...]
    cause: str | None = None
    advice: str | None = None
    recipe: bool = False

    @property
    def text(self) -> str:
        """The lines, indented, and the cause, for an error's message."""
        shown = [f"    {line}" for line in self.lines]
        return "\n".join([*shown, f"    cause: {self.cause}"] if self.cause else shown)

    def hint(self, log: Path) -> str:
        """The next step, and the path of the whole log."""
        if self.advice:
            return f"{self.advice}; the whole log: {log}"
        return f"the whole log: {log}"


def read(log: Sequence[str], *, build: bool = False) -> Failure:
    """The failure in the lines of a log. Where Ninja stopped (`FAILED: `), what other steps printed
    is not looked at.

    Its console pool (CMake's install) prints above that line and below its own `[n/m]`. `build`:
    without network.
    """
    lines = [log_line(line).rstrip() for line in log]
    failed = next((i for i, line in enumerate(lines) if line.startswith("FAILED: ")), 0)
    step = next((i for i in range(failed - 1, -1, -1) if _NINJA_STEP.match(lines[i])), failed)
    first = next((i for i in range(step, len(lines)) if _errors().search(lines[i])), None)
    if first is None:
        first = failed if failed else max(0, len(lines) - CONTEXT)
    after = lines[first:]
    shown = tuple(line[:WIDTH] + (" […]" if len(line) > WIDTH else "") for line in after if line)[
        :CONTEXT
    ]
    for known in _patterns().causes:
        if any(re.search(known.pattern, line) for line in after):
            return Failure(
                shown, known.cause, (build and known.in_build) or known.advice, known.recipe
            )
    return Failure(shown)


def line_naming_cause(identity: str, log: Sequence[str]) -> str | None:
    """The last line with which a tool names the cause of this `id`."""
    [known] = [cause for cause in _patterns().causes if cause.id == identity]
    return next((line for line in reversed(log) if re.search(known.pattern, line)), None)


@cache
def _patterns() -> Patterns:
    return load(Path(__file__).with_name("failures.yaml"), Patterns)


@cache
def _errors() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in _patterns().errors))
