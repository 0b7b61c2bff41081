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
    for row in tables().libraries:
        if fits(library, tuple(row["names"])):
            return str(row["source"])
    return ""


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
    fitting_ids: set[str] = set()
    for row in tables().messages:
        if not fitting_ids.isdisjoint(row.unless):
            continue
        match = _first_match(row, texts, module)
        if hung:
            ended_so = row.hung and row.gpu == gpu
        else:
            ended_so = signal in row.signals
        if match or ended_so:
            matching.append((row, match))
            fitting_ids.add(row.id)
    return matching


def _first_match(row: Row, texts: Sequence[str], module: str) -> re.Match[str] | None:
    """The match of a row's patterns that begins first in its text; None where none fits."""
    patterns = [pattern.replace("{module}", re.escape(module)) for pattern in row.patterns]
    patterns += map(re.escape, row.also)
    first = None
    for text in texts:
        for pattern in patterns:
            match = re.search(pattern, text, re.IGNORECASE)
            if match and (first is None or match.start() < first.start()):
                first = match
    return first


def placeholders(
    texts: Iterable[str],
    module: str,
    seen: Mapping[str, str] | None = None,
    cpu: str | None = None,
) -> dict[str, str]:
    """Values for the placeholders of the table's texts; `seen`: what the checks of a smoke test
    saw, by name.
    """
    by_check = seen or {}
    match = re.match(r"(\d+)\.\d+$", by_check.get("CUDA version", ""))
    majors = catalog.cuda_majors()
    if match and match[1] in majors:
        majors = {match[1]: majors[match[1]]}
    linux_drivers = {}
    windows_drivers = {}
    for name, major in majors.items():
        linux_drivers[name] = major.driver_linux
        windows_drivers[name] = major.driver_windows
    return {
        "module": module,
        "missing": _missing_module(texts) or "a module",
        "cuda": f"CUDA {match[0]}" if match else "a newer CUDA",
        "driver_linux": _drivers(linux_drivers),
        "driver_windows": _drivers(windows_drivers),
        "archs": by_check.get("architectures", "") or "unknown",
        "card": by_check.get("devices", "") or "the card",
        "cpu": cpu or "this CPU",
    }


def _missing_module(texts: Iterable[str]) -> str:
    """The module that Python did not find, by its own message; empty where there is none."""
    for text in texts:
        match = re.search(r"No module named '([\w.]{1,100})'", text)
        if match:
            return match[1]
    return ""


def _drivers(by_major: Mapping[str, str | None]) -> str:
    """The driver, or those of each CUDA where the report does not say which one it is."""
    drivers = []
    with_cuda = []
    for major, driver in by_major.items():
        if driver:
            drivers.append(driver)
            with_cuda.append(f"{driver} (CUDA {major})")
    if len(drivers) == 1:
        return drivers[0]
    return ", ".join(with_cuda) or "the one of its toolkit"


def where_from(name: str) -> str:
    """The library, and where to get it."""
    return f"{name}: {source_of(name) or 'look for the name in the environment of the build'}"
