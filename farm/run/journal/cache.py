"""Hits of the compiler cache, by language and by axis: each build leaves `cache.json` beside its wheel."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError

from farm.base.errors import UsageError
from farm.base.yamlfile import Model

FILE = Path("built", "cache.json")
"""Where it is in the folder of a run."""
MAX_BYTES = 1 << 20

Result = Literal["direct", "preprocessed", "miss", "other"]


class Row(Model):
    """Compiles with the same result. `axis` is what their objects depend on; `other`: the cache did not look.

    `direct` and `preprocessed` are ccache's words for hits: by the sources, or by what they are preprocessed to.
    """

    language: Literal["C", "C++", "CUDA"]
    axis: Literal["cpu", "gpu", "python", "configure"]
    result: Result
    count: int = Field(ge=0, le=10_000_000)


class Counts(Model):
    """The file."""

    version: Literal[1] = Field(alias="schema")
    rows: Annotated[list[Row], Field(max_length=1000)]


class Line(Model):
    """One line of a report: compiles in all, and how the cache answered them."""

    language: str
    axis: str
    compiles: int
    direct: int
    preprocessed: int
    miss: int
    other: int

    @property
    def answered(self) -> int:
        """Compiles that were hits."""
        return self.direct + self.preprocessed

    @property
    def hits(self) -> float:
        """The share of hits, 0 to 1."""
        return self.answered / self.compiles if self.compiles else 0.0


def read_counts(path: Path) -> list[Row]:
    """The report of one build; a build machine wrote it, so it is checked.

    Raises:
        UsageError: The file is too large, or not what it should be.
    """
    try:
        with path.open("rb") as stream:
            # One byte more than may be: a file that is too large is noticed without being read whole.
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise UsageError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
        return Counts.model_validate(json.loads(raw)).rows
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise UsageError(f"{path}: not compiler cache statistics: {error.errors()[0]['msg']}") from error
    # RecursionError: what json raises for deep nesting.
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not compiler cache statistics: {error}") from error


def lines(rows: Iterable[Row]) -> list[Line]:
    """The counts added up, a line for each language and axis."""
    kinds: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row.language, row.axis].append(row)
    return [_line(*kind, alike) for kind, alike in sorted(kinds.items(), key=lambda item: item[0])]


def total(rows: Iterable[Row]) -> Line:
    """All counts in one line."""
    return _line("all", "", rows)


def _line(language: str, axis: str, rows: Iterable[Row]) -> Line:
    counted: Counter[Result] = Counter()
    for row in rows:
        counted[row.result] += row.count
    each = {result: counted[result] for result in get_args(Result)}
    return Line(language=language, axis=axis, compiles=counted.total(), **each)
