"""What a pasted text says of a machine: cards, driver, system, Python, C library, CPU, PyTorch.

The rules are data (`paste.yaml`). The page's `answers.js` reads the same data in the same way;
`tests/unit/site/test_page.py` compares them.
"""

import re
from collections.abc import Iterator, Sequence
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
            system = grammar().systems[self.platform]
            parts.append(system if self.machine is None else f"{system} on {self.machine}")
        if self.python:
            parts.append(f"Python 3.{self.python[3:]}")
        if self.glibc:
            parts.append(f"glibc {self.glibc}")
        if self.cpu:
            parts.append(f"a CPU with {self.cpu}")
        if self.torch:
            parts.append(f"torch {self.torch}" + (f" with CUDA {self.cuda}" if self.cuda else ""))
        return ", ".join(parts)


def _counted(card: PastedCard) -> str:
    name = card.name if card.copies == 1 else f"{card.copies} x {card.name}"
    return name if card.sm is None else f"{name} (sm_{card.sm})"


@cache
def grammar() -> Grammar:
    return load(FOLDER / "paste.yaml", Grammar)


@cache
def tables() -> dict[str, dict[str, str]]:
    """Values that rules look up: the driver branch of a CUDA version, the glibc of a
    distribution.
    """
    branches = {
        cuda: toolkit.driver_linux.split(".")[0]
        for cuda, toolkit in catalog.toolkits().items()
        if toolkit.driver_linux
    }
    return {
        "drivers": branches,
        "distributions": grammar().distributions | catalog.glibc_of_distributions(),
    }


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
    full_lines = [line[:MAX_FLAGS] for line in re.split("[\r\n]", spaces)[:MAX_LINES]]
    lines = [line[:MAX_LINE] for line in full_lines]
    values = {name: _value(entries, lines) for name, entries in rules.fields.items()}
    cards = _listed(lines)
    if not cards:
        cards, driver = _cells(lines)
        values["driver"] = values["driver"] or driver
    cards = cards or _listed(lines, once=True) or _typed(lines, known=True)
    cards = cards or _mentioned(lines) or _typed(lines, known=False)
    notes = [note.text for note in rules.notes if _match(note.pattern, spaces)]
    message = next((m.text for m in rules.messages if _match(m.pattern, spaces)), None)
    # What a message says is a card's name there: "bash: nvidia-smi: command not found".
    if message and not any(find(card.name) or card.sm for card in cards):
        cards = []
    elif message:
        notes.append(message)
        message = None
    cards, left_out = _nvidia(cards)
    complete = [card for card in cards if card.sm or not _match(rules.cut, card.name)]
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


def driver_number(text: str) -> str:
    """Convert Windows' own number of a driver to NVIDIA's: `560.94` for `32.0.15.6094`."""
    windows = re.fullmatch(r"\d{1,2}\.\d{1,2}\.1(\d)\.(\d{2})(\d{2})", text.strip(), re.ASCII)
    return f"{windows[1]}{windows[2]}.{windows[3]}" if windows else text


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
        if any(not _match(grammar().cut, card.name) or card.sm for card in cards):
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
        capability = _filled(rule.sm, match) if rule.sm else ""
        number = re.sub("[^0-9]", "", capability)
        yield PastedCard(name, 1, int(number) if number else _of_cut_name(name))


def _of_cut_name(name: str) -> int | None:
    """The SM of every card whose name begins so, where nvidia-smi has cut the rest off."""
    if not _match(grammar().cut, name):
        return None
    sms = begins(re.sub(r"\.\.\.$", "", name))
    return int(min(sms)[2:]) if len(sms) == 1 else None


def _cells(lines: Sequence[str]) -> tuple[list[PastedCard], str | None]:
    """The names and the driver of comma-separated rows, by their header, or by what the cells
    are.
    """
    rules = grammar()
    cards: list[PastedCard] = []
    driver: str | None = None
    header: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        small = [cell.lower() for cell in cells]
        if len(cells) > 1 and any(name in small for name in rules.columns["name"]):
            header = small
            continue
        if header and len(cells) == len(header):
            row = dict(zip(header, cells, strict=True))
            cards += [PastedCard(row[name]) for name in rules.columns["name"] if row.get(name)]
            versions = [row[name] for name in rules.columns["driver"] if row.get(name)]
        else:
            versions = [cell for cell in cells if _match(rules.version, cell)]
            if len(cells) < 2 or not versions:
                continue
            named_cards = [PastedCard(cell) for cell in cells if find(cell)]
            cards += named_cards
            versions = versions if named_cards else []
        if versions:
            driver = driver_number(versions[-1] if header else versions[0])
    return cards, driver


def _typed(lines: Sequence[str], *, known: bool) -> list[PastedCard]:
    """Cards that somebody typed, one or several on a line; an unknown name alone as it is."""
    filled = [line.strip() for line in lines if line.strip()]
    if len(filled) > MAX_TYPED:
        return []
    if not known:
        single = len(filled) == 1 and _match(grammar().typed, filled[0])
        return [PastedCard(filled[0])] if single else []
    cards: list[PastedCard] = []
    for line in filled:
        single_card = _typed_card(line)
        if single_card:
            cards.append(single_card)
            continue
        parts = _compiled(grammar().separator).split(line)
        cards += [card for part in parts if (card := _typed_card(part))]
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
    other_makers: dict[str, str] = {}
    nvidia_cards: list[PastedCard] = []
    for card in cards:
        company = None if card.sm or find(card.name) else maker(card.name)
        if company is None:
            nvidia_cards.append(card)
        else:
            other_makers[card.name] = company
    if not nvidia_cards:
        return list(cards), []
    notes = [
        f"Left out: {name}, a card of {company}, which runs no CUDA."
        for name, company in other_makers.items()
    ]
    return nvidia_cards, notes


def _together(cards: Sequence[PastedCard]) -> Iterator[PastedCard]:
    """Each card once, with how many there are."""
    places: dict[tuple[str, int | None], PastedCard] = {}
    for card in cards:
        key = (card.name, card.sm)
        copies = places[key].copies if key in places else 0
        places[key] = card._replace(copies=copies + card.copies)
    yield from places.values()


def _level(lines: Sequence[str], machine: str | None) -> str | None:
    """The highest CPU level whose features a line of flags has."""
    for line in lines:
        match = _match(grammar().flags, line)
        flags = set(match[1].lower().split()) if match else set()
        for name, levels in catalog.cpu_features().levels.items():
            if machine not in (None, name):
                continue
            for level, needs in levels.items():
                if needs and flags.issuperset(needs):
                    return level
    return None
