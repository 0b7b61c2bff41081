"""The table of known messages (`messages.yaml`), and the words that fill it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.yamlfile import Model, load
from farm.wheel.pe import fits


class Row(Model):
    """A known cause; `messages.yaml` says what the keys mean."""

    id: str
    patterns: list[str] = []
    also: list[str] = []
    signals: list[str] = []
    hung: bool = False
    gpu: bool = True
    unless: list[str] = []
    needs: list[str] = []
    looks: str = ""
    what: str
    fix: str
    source: str


class Tables(Model):
    """The file: messages; the first systems with a glibc; whose names of a form are; who brings a
    library.
    """

    messages: list[Row]
    glibc: list[dict[str, str]]
    symbols: list[dict[str, str]]
    libraries: list[dict[str, Any]]


@cache
def tables() -> Tables:
    """The tables of `messages.yaml`."""
    return load(Path(__file__).with_name("messages.yaml"), Tables)


def source_of(library: str) -> str:
    """The package or component that holds a library; empty if that is not known."""
    return next(
        (str(row["source"]) for row in tables().libraries if fits(library, tuple(row["names"]))), ""
    )


def matching_rows(
    texts: Sequence[str],
    module: str,
    *,
    signal: str | None = None,
    hung: bool = False,
    gpu: bool = True,
) -> list[tuple[Row, re.Match[str] | None]]:
    """The rows that fit, in the order of the table; no match where the way in which the process
    ended decided.

    `signal` ended the process; `hung`: it did not end in its time; `gpu`: it could use a card.
    """
    matching: list[tuple[Row, re.Match[str] | None]] = []
    for row in tables().messages:
        if any(earlier.id in row.unless for earlier, _ in matching):
            continue
        patterns = [
            *(row_pattern.replace("{module}", re.escape(module)) for row_pattern in row.patterns),
            *map(re.escape, row.also),
        ]
        matches = (
            re.search(pattern, text, re.IGNORECASE) for text in texts for pattern in patterns
        )
        match = min(filter(None, matches), key=lambda match: match.start(), default=None)
        if match or (signal in row.signals and not hung) or (row.hung and hung and row.gpu == gpu):
            matching.append((row, match))
    return matching


def placeholders(
    texts: Iterable[str], module: str, seen: Mapping[str, str] | None = None, cpu: str | None = None
) -> dict[str, str]:
    """Values for the placeholders of the table's texts; `seen`: what the checks of a smoke test
    saw, by name.
    """
    by_check = seen or {}
    match = re.match(r"(\d+)\.\d+$", by_check.get("CUDA version", ""))
    missing = next(
        (
            module_match[1]
            for text in texts
            if (module_match := re.search(r"No module named '([\w.]{1,100})'", text))
        ),
        "",
    )
    majors = catalog.cuda_majors()
    if match and match[1] in majors:
        majors = {match[1]: majors[match[1]]}
    return {
        "module": module,
        "missing": missing or "a module",
        "cuda": f"CUDA {match[0]}" if match else "a newer CUDA",
        "driver_linux": _drivers({name: major.driver_linux for name, major in majors.items()}),
        "driver_windows": _drivers({name: major.driver_windows for name, major in majors.items()}),
        "archs": by_check.get("architectures", "") or "unknown",
        "card": by_check.get("devices", "") or "the card",
        "cpu": cpu or "this CPU",
    }


def _drivers(by_major: Mapping[str, str | None]) -> str:
    """The driver, or those of each CUDA where the report does not say which one it is."""
    drivers = {name: driver for name, driver in by_major.items() if driver}
    if len(drivers) == 1:
        return next(iter(drivers.values()))
    return (
        ", ".join(f"{driver} (CUDA {name})" for name, driver in drivers.items())
        or "the one of its toolkit"
    )


def where_from(name: str) -> str:
    """The library, and where to get it."""
    return f"{name}: {source_of(name) or 'look for the name in the environment of the build'}"
