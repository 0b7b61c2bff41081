"""Cards and a driver in pasted text (`paste.yaml`): the page's `answers.js` reads the same expressions alike."""

import re
from functools import cache
from typing import Any, NamedTuple

from farm.base.yamlfile import Model, load
from farm.catalog import FOLDER, gpus

MAX_LINES = 2000
MAX_LINE = 300
MAX_TYPED = 3
"""Lines of a text that somebody typed: names of cards, and a driver."""


class Message(Model):
    pattern: str
    text: str


class Grammar(Model):
    """`paste.yaml`."""

    cards: list[str]
    drivers: list[str]
    windows: str
    version: str
    columns: dict[str, str]
    cut: str
    typed: str
    messages: list[Message]


class Pasted(NamedTuple):
    """Cards as a text writes them, a driver, and what is wrong on that machine."""

    cards: tuple[str, ...]
    driver: str | None
    problem: str | None


@cache
def grammar() -> Grammar:
    return load(FOLDER / "paste.yaml", Grammar)


def read(text: str) -> Pasted:
    """The cards and the driver that a pasted text names."""
    known = grammar()
    lines = [line[:MAX_LINE] for line in text.split("\n")[:MAX_LINES]]
    cards = [match[1] for line in lines for pattern in known.cards if (match := re.search(pattern, line))]
    driver = next((m[1] for line in lines for pattern in known.drivers if (m := re.search(pattern, line))), None)
    if not cards:
        cards, found = _csv(lines)
        driver = driver or found
    windows = re.search(known.windows, text)
    if driver is None and windows:
        driver = f"{windows[1]}{windows[2]}.{windows[3]}"
    filled = [line.strip() for line in lines if line.strip()]
    if not cards and len(filled) <= MAX_TYPED:  # a name alone may be one that no one knows
        cards = [line for line in filled if re.search(known.typed, line) and (len(filled) == 1 or gpus.find(line))]
    problem = next((message.text for message in known.messages if re.search(message.pattern, text)), None)
    return Pasted(() if problem else tuple(cards), driver, problem)


def _csv(lines: list[str]) -> tuple[list[str], str | None]:
    """The names and the driver of comma-separated rows, by their header, or by what the cells are."""
    known, names, driver = grammar(), list[str](), None
    columns: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if known.columns["name"] in cells:
            columns = cells
        elif columns and len(cells) == len(columns):
            row = dict(zip(columns, cells, strict=True))
            names.append(row[known.columns["name"]])
            driver = row.get(known.columns["driver"], driver)
        elif len(cells) > 1 and (versions := [cell for cell in cells if re.search(known.version, cell)]):
            found = [cell for cell in cells if gpus.find(cell)]
            names += found
            driver = versions[0] if found else driver
    return names, driver


def facts() -> dict[str, Any]:
    """The grammar, and how names find cards, as JSON."""
    return {"paste": grammar().model_dump(), "names": gpus.name_facts()}
