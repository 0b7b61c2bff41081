"""What a pasted text says of a machine: cards, driver, system, Python, C library, CPU, PyTorch.

The rules are data (`paste.yaml`). The page's `answers.js` reads the same data in the same way;
`tests/unit/site/test_page.py` compares them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pydantic import Field

from farm import catalog
from farm.base.yamlfile import Model, load
from farm.catalog import FOLDER
from farm.catalog.gpus import begins, find, maker, page_names

MAX_LINES = 2000
MAX_LINE = 300
MAX_FLAGS = 6000
"""Characters of the line that lists a CPU's flags, which has about 1,500."""
MAX_TYPED = 3
"""Lines of a text that somebody typed: names of cards, and a driver."""


class CardRule(Model):
    """Lines of one program that name a card; `name` and `sm` are templates over its groups."""

    kind: str
    pattern: str
    name: str = "$1"
    sm: str | None = None
    once: bool = False


class FieldRule(Model):
    """Text that tells a field's value; a value that is looked up in `table` counts if it is
    there.
    """

    pattern: str
    value: str = "$1"
    table: str | None = Field(default=None, pattern="^(drivers|distributions)$")


class Message(Model):
    pattern: str
    text: str


class Grammar(Model):
    """`paste.yaml`."""

    cards: list[CardRule]
    mentioned: str
    fields: dict[str, list[FieldRule]]
    systems: dict[str, str]
    flags: str
    distributions: dict[str, str]
    columns: dict[str, list[str]]
    version: str
    cut: str
    cut_text: str
    typed: str
    separator: str
    times: list[str]
    messages: list[Message]
    notes: list[Message]


class PastedCard(NamedTuple):
    """A card as the text names it; `sm` where the text has its compute capability."""

    name: str
    copies: int = 1
    sm: int | None = None


@dataclass(frozen=True)
class Pasted:
    """A text about a machine, read.

    Attributes:
        cards: The cards, in their order; none where `problem` says why.
        driver: The driver's version; Windows' own number is converted.
        platform: The system, in the words of `systems`.
        machine: `x86_64` or `aarch64`.
        python: The Python, such as `py311`.
        glibc: The version of the C library.
        cpu: The highest level of `cpu_features.yaml` that the CPU's flags reach.
        torch: The release of PyTorch that is installed there.
        cuda: The CUDA of that PyTorch.
        problem: What to do where no card is named.
        notes: What was read and is not part of the question.
    """

    cards: tuple[PastedCard, ...] = ()
    driver: str | None = None
    platform: str | None = None
    machine: str | None = None
    python: str | None = None
    glibc: str | None = None
    cpu: str | None = None
    torch: str | None = None
    cuda: str | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()

    def summary(self) -> str:
        """Say what was read, in one line."""
        parts = [_counted(card) for card in self.cards]
        if self.driver:
            parts.append(f"driver {self.driver}")
        if self.platform:
            parts.append(grammar().systems[self.platform])
            if self.machine:
                parts[-1] += f" on {self.machine}"
        if self.python:
            parts.append(f"Python 3.{self.python[3:]}")
        if self.glibc:
            parts.append(f"glibc {self.glibc}")
        if self.cpu:
            parts.append(f"a CPU with {self.cpu}")
        if self.torch:
            parts.append(f"torch {self.torch}")
            if self.cuda:
                parts[-1] += f" with CUDA {self.cuda}"
        return ", ".join(parts)


def _counted(card: PastedCard) -> str:
    text = card.name
    if card.copies != 1:
        text = f"{card.copies} x {text}"
    if card.sm is not None:
        text += f" (sm_{card.sm})"
    return text


@cache
def grammar() -> Grammar:
    return load(FOLDER / "paste.yaml", Grammar)


@cache
def tables() -> dict[str, dict[str, str]]:
    """Values that rules look up: the driver branch of a CUDA version, the glibc of a
    distribution.
    """
    branches = {}
    for cuda, toolkit in catalog.toolkits().items():
        if toolkit.driver_linux:
            branches[cuda] = toolkit.driver_linux.split(".")[0]
    distributions = grammar().distributions | catalog.glibc_of_distributions()
    return {"drivers": branches, "distributions": distributions}


def facts() -> dict[str, Any]:
    """Everything that `read` and `farm.catalog.gpus` use, as JSON for the page."""
    rules = grammar().model_dump() | {
        "tables": tables(),
        "levels": catalog.cpu_features().levels,
    }
    return {"paste": rules, "names": page_names()}


def read(text: str) -> Pasted:
    """Read a pasted text.

    Args:
        text: What somebody typed, or what a program printed. Lines beyond the first 2,000 are
            left out.

    Returns:
        What the text says, with no card and a problem where it names none.
    """
    rules = grammar()
    spaces = re.sub("[\u00a0\u2007\u202f\ufeff\t]", " ", text.replace("\r\n", "\n"))
    all_lines = re.split("[\r\n]", spaces)
    full_lines = [line[:MAX_FLAGS] for line in all_lines[:MAX_LINES]]
    lines = [line[:MAX_LINE] for line in full_lines]
    values = {}
    for name, entries in rules.fields.items():
        values[name] = _value(entries, lines)
    cards, driver = _cards(lines)
    if driver and not values["driver"]:
        values["driver"] = driver
    notes = []
    for note in rules.notes:
        if _match(note.pattern, spaces):
            notes.append(note.text)
    message = _message(spaces)
    # What a message says is a card's name there: "bash: nvidia-smi: command not found".
    if message and not any(find(card.name) or card.sm for card in cards):
        cards = []
    elif message:
        notes.append(message)
        message = None
    cards, left_out = _nvidia(cards)
    complete = [card for card in cards if _is_complete(card)]
    if cards and not complete:
        message = message or rules.cut_text
    elif len(complete) < len(cards):
        notes.append(rules.cut_text)
    return Pasted(
        cards=tuple(_together(complete)),
        cpu=_level(full_lines, values["machine"]),
        problem=message,
        notes=(*notes, *left_out),
        **values,
    )


def _cards(lines: Sequence[str]) -> tuple[list[PastedCard], str | None]:
    """The cards of a text, and the driver where it stands beside them; the first way to read it
    that finds some.
    """
    cards = _listed(lines)
    driver = None
    if not cards:
        cards, driver = _cells(lines)
    cards = cards or _listed(lines, once=True) or _typed_names(lines)
    return cards or _mentioned(lines) or _typed_alone(lines), driver


def _message(text: str) -> str | None:
    """What to do where a program printed this message instead of what was asked for."""
    for message in grammar().messages:
        if _match(message.pattern, text):
            return message.text
    return None


def driver_number(text: str) -> str:
    """Convert Windows' own number of a driver to NVIDIA's: `560.94` for `32.0.15.6094`."""
    windows = re.fullmatch(r"\d{1,2}\.\d{1,2}\.1(\d)\.(\d{2})(\d{2})", text.strip(), re.ASCII)
    if windows is None:
        return text
    return f"{windows[1]}{windows[2]}.{windows[3]}"


def _is_cut(name: str) -> bool:
    """True if nvidia-smi has cut a name off."""
    return _match(grammar().cut, name) is not None


def _is_complete(card: PastedCard) -> bool:
    """True if a card has its whole name, or the text says its SM."""
    return bool(card.sm) or not _is_cut(card.name)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


def _match(pattern: str, text: str) -> re.Match[str] | None:
    return _compiled(pattern).search(text)


def _filled(template: str, match: re.Match[str]) -> str:
    """A template with the groups of a match in place of $1, $2 and $3."""
    return re.sub(r"\$(\d)", lambda place: match[int(place[1])] or "", template)


def _value(rules: Sequence[FieldRule], lines: Sequence[str]) -> str | None:
    """The value of a field: of the first rule that fits, in the first line that it fits."""
    for rule in rules:
        for line in lines:
            match = _match(rule.pattern, line)
            if match is None:
                continue
            value = _filled(rule.value, match)
            if rule.table is None:
                return value
            if value in tables()[rule.table]:
                return tables()[rule.table][value]
    return None


def _listed(lines: Sequence[str], *, once: bool = False) -> list[PastedCard]:
    """The cards of the first kind of line that names one in full, else of the first with a cut
    name.
    """
    cut: list[PastedCard] = []
    for rule in grammar().cards:
        if rule.once != once:
            continue
        cards = list(_of_rule(rule, lines))
        if any(map(_is_complete, cards)):
            return cards
        cut = cut or cards
    return cut


def _of_rule(rule: CardRule, lines: Sequence[str]) -> Iterator[PastedCard]:
    names: set[str] = set()
    for line in lines:
        match = _match(rule.pattern, line)
        if match is None:
            continue
        name = _filled(rule.name, match)
        if rule.once and name in names:
            continue
        names.add(name)
        capability = _filled(rule.sm or "", match)
        number = re.sub("[^0-9]", "", capability)
        if number:
            yield PastedCard(name, 1, int(number))
        else:
            yield PastedCard(name, 1, _of_cut_name(name))


def _of_cut_name(name: str) -> int | None:
    """The SM of every card whose name begins so, where nvidia-smi has cut the rest off."""
    if not _is_cut(name):
        return None
    sms = begins(re.sub(r"\.\.\.$", "", name))
    if len(sms) != 1:
        return None
    return int(min(sms)[2:])


def _cells(lines: Sequence[str]) -> tuple[list[PastedCard], str | None]:
    """The names and the driver of comma-separated rows, by their header, or by what the cells
    are.
    """
    columns = grammar().columns
    cards: list[PastedCard] = []
    driver: str | None = None
    header: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        small = [cell.lower() for cell in cells]
        if len(cells) > 1 and not set(small).isdisjoint(columns["name"]):
            header = small
        elif header and len(cells) == len(header):
            row = dict(zip(header, cells, strict=True))
            cards += [PastedCard(name) for name in _filled_cells(row, "name")]
            for version in _filled_cells(row, "driver"):
                driver = driver_number(version)
        elif len(cells) > 1:
            row_cards, versions = _cells_without_header(cells)
            if row_cards:
                cards += row_cards
                # Below a header that does not fit, the driver comes last.
                driver = driver_number(versions[-1 if header else 0])
    return cards, driver


def _filled_cells(row: Mapping[str, str], column: str) -> list[str]:
    """The cells of a row below the headers of a column that are not empty."""
    cells = []
    for name in grammar().columns[column]:
        if row.get(name):
            cells.append(row[name])
    return cells


def _cells_without_header(cells: Sequence[str]) -> tuple[list[PastedCard], list[str]]:
    """The cards and the versions of a row that has both."""
    versions = [cell for cell in cells if _match(grammar().version, cell)]
    if not versions:
        return [], []
    cards = [PastedCard(cell) for cell in cells if find(cell)]
    if not cards:
        return [], []
    return cards, versions


def _typed_lines(lines: Sequence[str]) -> list[str]:
    """The lines of a text that somebody typed; none of a longer one."""
    filled = [line.strip() for line in lines if line.strip()]
    if len(filled) > MAX_TYPED:
        return []
    return filled


def _typed_alone(lines: Sequence[str]) -> list[PastedCard]:
    """A name alone that the catalogue does not have, as it is."""
    names = _typed_lines(lines)
    if len(names) != 1 or not _match(grammar().typed, names[0]):
        return []
    return [PastedCard(names[0])]


def _typed_names(lines: Sequence[str]) -> list[PastedCard]:
    """Cards of the catalogue that somebody typed, one or several on a line."""
    cards: list[PastedCard] = []
    for line in _typed_lines(lines):
        single_card = _typed_card(line)
        if single_card:
            cards.append(single_card)
            continue
        for part in _compiled(grammar().separator).split(line):
            card = _typed_card(part)
            if card:
                cards.append(card)
    return cards


def _typed_card(text: str) -> PastedCard | None:
    """A name of the catalogue, with how many there are."""
    if not _match(grammar().typed, text):
        return None
    if find(text):
        return PastedCard(text)
    for pattern in grammar().times:
        match = _match(pattern, text)
        if match and find(match[2]):
            groups = match.groups()
            number = groups[0] or groups[-1]
            return PastedCard(match[2], int(number))
    return None


def _mentioned(lines: Sequence[str]) -> list[PastedCard]:
    """Cards of the catalogue that sentences mention."""
    cards: list[PastedCard] = []
    names: set[str] = set()
    for line in lines:
        for match in _compiled(grammar().mentioned).finditer(line):
            name = match[1].strip()
            if name.lower() not in names and find(name):
                cards.append(PastedCard(name))
            names.add(name.lower())
    return cards


def _nvidia(cards: Sequence[PastedCard]) -> tuple[list[PastedCard], list[str]]:
    """NVIDIA's cards, and a note on each other one; all of them where none is NVIDIA's."""
    notes: dict[str, str] = {}
    nvidia_cards: list[PastedCard] = []
    for card in cards:
        company = None
        if not card.sm and not find(card.name):
            company = maker(card.name)
        if company is None:
            nvidia_cards.append(card)
        else:
            note = f"Left out: {card.name}, a card of {company}, which runs no CUDA."
            notes[card.name] = note
    if not nvidia_cards:
        return list(cards), []
    return nvidia_cards, list(notes.values())


def _together(cards: Sequence[PastedCard]) -> Iterator[PastedCard]:
    """Each card once, with how many there are."""
    places: dict[tuple[str, int | None], PastedCard] = {}
    for card in cards:
        key = (card.name, card.sm)
        copies = card.copies
        if key in places:
            copies += places[key].copies
        places[key] = card._replace(copies=copies)
    yield from places.values()


def _level(lines: Sequence[str], machine: str | None) -> str | None:
    """The highest CPU level whose features a line of flags has."""
    for line in lines:
        match = _match(grammar().flags, line)
        if match is None:
            continue
        flags = set(match[1].lower().split())
        for name, levels in catalog.cpu_features().levels.items():
            if machine not in (None, name):
                continue
            for level, needs in levels.items():
                if needs and flags.issuperset(needs):
                    return level
    return None
