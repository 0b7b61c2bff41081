"""Messages of loaders, Python, CUDA and compilers, their causes and cures: `messages.yaml`, matched with texts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from farm import catalog
from farm.base.yamlfile import Model, load
from farm.wheel.windows import fits


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


class GlibcRow(Model):
    """The first systems with a glibc."""

    version: str
    systems: str
    source: str


class SymbolRow(Model):
    """The library that names of this form belong to."""

    pattern: str
    owner: str
    cure: str


class LibraryRow(Model):
    """The package that brings libraries of these names."""

    names: list[str]
    source: str


class Tables(Model):
    """The file."""

    messages: list[Row]
    glibc: list[GlibcRow]
    symbols: list[SymbolRow]
    libraries: list[LibraryRow]


@cache
def tables() -> Tables:
    return load(Path(__file__).with_name("messages.yaml"), Tables)


def source_of(library: str) -> str:
    """The package or component that holds a library; empty if that is not known."""
    return next((row.source for row in tables().libraries if fits(library, tuple(row.names))), "")


class Known(NamedTuple):
    """A row that fits, and where in the texts; no match where the way in which the process ended decided."""

    row: Row
    match: re.Match[str] | None


def known(
    texts: Sequence[str], module: str, *, signal: str | None = None, hung: bool = False, gpu: bool = True
) -> list[Known]:
    """The rows that fit, in the order of the table.

    Args:
        texts: What was written.
        module: The package that it is about.
        signal: The signal that ended the process.
        hung: The run did not end in its time.
        gpu: It could use a card.
    """
    found: list[Known] = []
    for row in tables().messages:
        if any(other.row.id in row.unless for other in found):
            continue
        match = _first(row, texts, re.escape(module))
        if match or (signal in row.signals and not hung) or (row.hung and hung and row.gpu == gpu):
            found.append(Known(row, match))
    return found


def _first(row: Row, texts: Sequence[str], module: str) -> re.Match[str] | None:
    patterns = [each.replace("{module}", module) for each in row.patterns] + [re.escape(each) for each in row.also]
    matches = (re.search(pattern, text, re.IGNORECASE) for text in texts for pattern in patterns)
    return min((match for match in matches if match), key=lambda match: match.start(), default=None)


def words(
    texts: Iterable[str], module: str, seen: Mapping[str, str] | None = None, cpu: str | None = None
) -> dict[str, str]:
    """Values for the placeholders of the table's texts; `seen`: what the checks of a smoke test saw, by name."""
    seen = seen or {}
    match = re.match(r"(\d+)\.\d+$", seen.get("CUDA version", ""))
    missing = next((found[1] for text in texts if (found := re.search(r"No module named '([\w.]{1,100})'", text))), "")
    majors = catalog.cuda_majors()
    majors = {match[1]: majors[match[1]]} if match and match[1] in majors else majors
    return {
        "module": module,
        "missing": missing or "a module",
        "cuda": f"CUDA {match[0]}" if match else "a newer CUDA",
        "driver_linux": _drivers({name: major.driver_linux for name, major in majors.items()}),
        "driver_windows": _drivers({name: major.driver_windows for name, major in majors.items()}),
        "archs": seen.get("architectures", "") or "unknown",
        "card": seen.get("devices", "") or "the card",
        "cpu": cpu or "this CPU",
    }


def _drivers(by_major: Mapping[str, str | None]) -> str:
    """The driver, or those of each CUDA where the report does not say which one it is."""
    found = {name: driver for name, driver in by_major.items() if driver}
    if len(found) == 1:
        return next(iter(found.values()))
    return ", ".join(f"{driver} (CUDA {name})" for name, driver in found.items()) or "the one of its toolkit"
