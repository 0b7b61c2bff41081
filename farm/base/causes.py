"""Find the first error and its cause in the log of a failed step.

Standard library alone, for Python 3.9: a rendered build for Windows takes this file along, with the
patterns of `failures.yaml` as JSON (`causes.py LOG`). The farm itself reads logs through
`farm.base.failures`.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Sequence  # noqa: UP035 - Python 3.9

PATTERNS = "causes.json"  # beside this file, in a rendered build
MAX_READ = 1 << 20  # bytes of the end of a log
CONTEXT = 6  # lines that are shown from the first error on
WIDTH = 300  # characters of one such line: a compiler's command has thousands
NINJA_STEP = re.compile(r"\[\d+/\d+\] ")
# The farm's own lines begin with a date and a time in the form of the country, or with `14:03`.
OWN_LINE = re.compile(r"^.{0,40}\d\d farm: ")
OWN_STEP = re.compile(r"^.{0,40}\d\d farm: step (?!.*\bFAILED\b)")


@dataclass(frozen=True)
class Failure:
    """What went wrong.

    Attributes:
        lines: The log from its first error on; its last lines where no error is recognized.
        cause: What the error means, if that is known.
        advice: What to do, if the cause is known.
        recipe: Whether the recipe is at fault, so that a new try would fail as well.
    """

    lines: tuple[str, ...]
    cause: str | None = None
    advice: str | None = None
    recipe: bool = False

    @property
    def text(self) -> str:
        """The lines, indented, and the cause."""
        text_lines = [f"    {line}" for line in self.lines]
        if self.cause:
            text_lines.append(f"    cause: {self.cause}")
        return "\n".join(text_lines)

    def hint(self, log: Path) -> str:
        """The next step, and the path of the whole log."""
        if self.advice:
            return f"{self.advice}; the whole log: {log}"
        return f"the whole log: {log}"


class Reader:
    """Reads logs by a table of patterns: `failures.yaml` as a document of plain data."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._errors = _any_of(document["errors"])
        self._build_tools = _any_of(document["build_tools"])
        self._runtime = _any_of(document["runtime"])
        self._causes = [(re.compile(row["pattern"]), row) for row in document["causes"]]

    def read(self, lines: Sequence[str], *, build: bool = False, machine: bool = False) -> Failure:
        """Return the failure that the lines of a log tell of.

        Where Ninja stopped (`FAILED: `), the output of other steps is left out. Lines of the farm
        itself never count; where they name steps, only the last step is read.

        Args:
            lines: Printable lines, without their ends.
            build: Whether a build wrote them, which has no network in a container.
            machine: Whether that build ran on a machine itself, by its own script.
        """
        tools = self._of_last_step(lines)
        first = self._first_error(tools)
        after = tools[first:]
        shown_lines = list(filter(None, after))[:CONTEXT]
        excerpt = tuple(map(_shortened, shown_lines))
        for pattern, row in self._causes:
            if any(map(pattern.search, after)):
                advice = _advice(row, build, machine)
                return Failure(excerpt, row["cause"], advice, row["recipe"])
        return Failure(excerpt)

    def errors(self, lines: Iterable[str]) -> list[str]:
        """Return the lines with which tools say that something failed, each once."""
        errors: dict[str, None] = {}  # in the order of the log
        for line in lines:
            is_error = line.startswith("FAILED: ") or self._errors.search(line)
            if is_error and not OWN_LINE.match(line):
                errors[line.strip()] = None
        return list(errors)

    def is_build_log(self, lines: Iterable[str]) -> bool:
        """Return whether tools of a build wrote an error here, and not on behalf of
        torch.compile.
        """
        by_build = False
        for line in lines:
            if self._runtime.search(line):
                return False
            if self._build_tools.search(line) and not OWN_LINE.match(line):
                by_build = True
        return by_build

    def _of_last_step(self, lines: Sequence[str]) -> list[str]:
        tools: list[str] = []
        for line in lines:
            if OWN_STEP.match(line):
                tools.clear()
            elif not OWN_LINE.match(line):
                tools.append(line.rstrip())
        return tools

    def _first_error(self, lines: Sequence[str]) -> int:
        """Return the place of the first error, else of the last lines.

        CMake's install runs in Ninja's console pool: it prints above `FAILED: ` and below its own
        `[n/m]`.
        """
        failed = 0
        for number, line in enumerate(lines):
            if line.startswith("FAILED: "):
                failed = number
                break
        begin = failed
        for number in range(failed - 1, -1, -1):
            if NINJA_STEP.match(lines[number]):
                begin = number
                break
        for number in range(begin, len(lines)):
            if self._errors.search(lines[number]):
                return number
        return failed or max(0, len(lines) - CONTEXT)


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Return an expression for a line that matches at least one of these."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def _advice(row: dict[str, Any], build: bool, machine: bool) -> str:
    """Return the advice of a cause for the place where the step ran."""
    if machine and row["on_machine"]:
        return str(row["on_machine"])
    if build and row["in_build"]:
        return str(row["in_build"])
    return str(row["advice"])


def _shortened(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    return line[:WIDTH] + " […]"


def log_lines(path: Path) -> list[str]:
    """Return the printable lines of the end of a log; cl.exe writes them in the system's
    encoding.
    """
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - MAX_READ))
        content = stream.read()
    return printable_lines(content)


def printable_lines(content: bytes) -> list[str]:
    """Return the lines of a log, without what cannot be printed."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
    return ["".join(filter(str.isprintable, line)) for line in text.splitlines()]


def failure_of(log: Path) -> Failure | None:
    """Return what failed by the log of a build on this machine.

    None where no tool failed: the step then stopped at something of the farm's own, which says so
    itself.
    """
    document = json.loads(Path(__file__).with_name(PATTERNS).read_text(encoding="utf-8"))
    lines = log_lines(log)
    reader = Reader(document)
    if not reader.errors(lines):
        return None
    return reader.read(lines, build=True, machine=True)


def main(argv: Sequence[str]) -> int:
    """Print the failure of the log `argv[0]`; write the advice to `argv[1]`, if it is known."""
    failure = failure_of(Path(argv[0]))
    if failure is None:
        return 0
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    print(failure.text)
    if failure.advice:
        Path(argv[1]).write_text(f"{failure.advice}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
