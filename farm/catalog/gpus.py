"""GPUs: which SM a card has by its name (`gpus.yaml`), and which code runs on it."""

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

from pydantic import Field

from farm import catalog
from farm.base.text import nearest
from farm.base.yamlfile import Model, load
from farm.catalog import FOLDER

Sm = str
"""An SM as variant names write it: `sm35`."""


class Group(Model):
    """Names with one SM, from one source. `unconfirmed` says why the SM may be another one."""

    sm: Sm = Field(pattern=r"^sm\d{2,3}$")
    family: str
    source: str
    unconfirmed: str | None = None
    gpus: list[str]


class TooOld(Model):
    """An SM that no variant covers, the last driver branch for it, and why there is no variant."""

    name: str
    last_driver: int
    why: str


class Gpus(Model):
    """`gpus.yaml`; the texts of `sources` are what `Group.source` names.

    `others`: how names of other makers' cards begin, `chips`: how names of chips begin; in lower
    case. `instead`: the variant for a machine with such a card.
    """

    sources: dict[str, str]
    too_old: dict[Sm, TooOld]
    too_old_source: str
    renamed: dict[Sm, Sm]
    renamed_source: str
    others: dict[str, list[str]]
    instead: dict[str, str]
    chips: dict[str, Sm]
    chips_source: str
    arm: list[str]
    arm_source: str
    noise: list[str]
    groups: list[Group]


class Card(NamedTuple):
    """One name of the catalogue. `source` is the text, not the key."""

    name: str
    sm: Sm
    family: str
    source: str
    unconfirmed: str | None


Index = dict[str, list[Card]]
"""Cards by what is left of their names."""


@cache
def gpus() -> Gpus:
    return load(FOLDER / "gpus.yaml", Gpus)


@cache
def cards() -> tuple[Card, ...]:
    """Every name with every SM that it was sold with, in the order of the file."""
    catalogue = gpus()
    all_cards = []
    for group in catalogue.groups:
        source = catalogue.sources[group.source]
        for name in group.gpus:
            all_cards.append(Card(name, group.sm, group.family, source, group.unconfirmed))
    return tuple(all_cards)


def find(name: str) -> tuple[Card, ...]:
    """The cards that `name` may mean; empty when it is not in the catalogue.

    Case, spaces, punctuation, vendor words, trade marks, memory sizes, form factors and what
    `nvidia-smi -L` adds do not count, and the words GeForce, Quadro, Tesla, Jetson, GTX and RTX may
    be left out: `NVIDIA A100-SXM4-40GB`, `gtx1080ti`, `1080 Ti`, a line of `lspci`. Several cards
    come back when the name was sold with several chips (GT 730), or when words were left out that
    tell cards apart. A line of `lspci` names the chip, which decides between them.
    """
    in_brackets = _PCI.search(name[:200].lower())
    if in_brackets and "/" in in_brackets[1]:
        head = name[: in_brackets.start()]
        return _find_first(head, in_brackets[1].split("/"))
    for key, index in zip(KEYS, _indices(), strict=True):
        matches = index.get(key(name))
        if matches:
            # The chip decides where the name does not; a chip that contradicts the name is not
            # believed.
            sm = _sm_of_chip(name)
            of_chip = [card for card in matches if card.sm == sm]
            return tuple(of_chip or matches)
    return ()


def _find_first(head: str, names: list[str]) -> tuple[Card, ...]:
    """The cards of the first name that is known, of a chip that has several.

    "GF117M [GeForce 610M/710M / GT 620M]": one chip under many names; the first that is known
    stands for them.
    """
    for name in names:
        matches = find(f"{head}[{name.strip()}]")
        if matches:
            return matches
    return ()


def variant_sms(matches: Iterable[Card]) -> set[Sm]:
    """The SMs of cards as variants name them."""
    renamed = gpus().renamed
    return {renamed.get(card.sm, card.sm) for card in matches}


def _sm_of_chip(line: str) -> Sm | None:
    """The SM of the chip that a line of `lspci` names before the card's name in brackets."""
    chip = re.search(_CHIP, line[:200].lower(), re.ASCII)
    if chip is None:
        return None
    chips = gpus().chips
    begun = [prefix for prefix in chips if chip[1].startswith(prefix)]
    if not begun:
        return None
    # The longest beginning: GK210 is another SM than the other GK2 chips.
    return chips[max(begun, key=len)]


def maker(name: str) -> str | None:
    """Who makes a card that is none of NVIDIA's; None: no one that the catalogue knows."""
    text = _MARKS.sub(" ", name[:200].lower())
    text = re.sub(r"[^a-z0-9]+", " ", text)
    words = re.sub(r"\b(?:amd|ati|intel|apple)\b", " ", text).strip()
    for company, patterns in gpus().others.items():
        if company.lower() in text.split():
            return company
        if any(re.match(rf"(?:{pattern})\b", words) for pattern in patterns):
            return company
    return None


def machine(name: str, sm: int) -> str:
    """`aarch64` for a card that is beside Arm cores alone, such as GH200; else `x86_64`, which most
    are in.
    """
    if is_integrated(sm) or sm in catalog.architectures().arm_alone or beside_arm(name):
        return "aarch64"
    return "x86_64"


def beside_arm(name: str) -> bool:
    """True if the card is sold beside NVIDIA's own Arm CPU alone, which its SM does not tell."""
    return any(card.name in gpus().arm for card in find(name))


def without_variant(sm: int) -> str | None:
    """Why there is no variant for the machines with an SM; None: there is one."""
    if old_card := gpus().too_old.get(f"sm{sm}"):
        return old_card.why
    if sm in catalog.architectures().armv8_0:
        return (
            "it sits beside Arm cores of Armv8.0, and the farm's wheels for Arm start at "
            f"Armv8.2 (armv8_2); {catalog.architectures().jetson.elsewhere}"
        )
    return None


def jetson_note() -> str:
    """Which builds of one's own run on Jetson boards, and who serves the others."""
    jetson = catalog.architectures().jetson
    return (
        f"on Jetson boards they run from CUDA {jetson.cuda} on, with {jetson.system}; "
        f"{jetson.elsewhere}"
    )


def begins(name: str) -> set[Sm]:
    """The SMs of all cards whose names begin like this."""
    start = _full(name)
    if not start:
        return set()
    sms: set[Sm] = set()
    for key, matches in _indices()[0].items():
        if key.startswith(start):
            sms.update(card.sm for card in matches)
    return sms


def families() -> dict[str, list[Sm]]:
    """The chips of each architecture, by its name in lower case."""
    chips: dict[str, list[Sm]] = {}
    for sm, architecture in catalog.architectures().architectures.items():
        chips.setdefault(architecture.name.lower(), []).append(sm)
    for sm, name in catalog.architectures().not_built.items():
        chips.setdefault(name.lower(), []).append(sm)
    return chips


def of_no_variant() -> set[int]:
    """SMs that some nvcc of the catalogue compiles for and that are no variant's: sm_88, sm_107."""
    sms: set[int] = set()
    for toolkit in catalog.toolkits().values():
        sms.update(toolkit.sm)
    architectures = catalog.architectures().architectures
    for names in (architectures, gpus().too_old, gpus().renamed):
        sms.difference_update(int(name[2:]) for name in names)
    return sms


def nearest_names(name: str) -> list[str]:
    """Names of the catalogue that are most like an unknown one, best first, at most three."""
    # Letters alone would find wrong names of the same length for the beginning of one: GTX 950 for
    # "RTX 50".
    bare = _indices()[KEYS.index(_bare)]
    start = _bare(name)
    if start:
        begun = [key for key in bare if key.startswith(start)]
        if begun:
            begun.sort(key=len)
            return _names(bare, begun[:3])
    # A family that is misspelt ("Telsa K40") is not left out; the strict names have it as well.
    indices = zip(KEYS, _indices(), strict=True)
    for key, index in reversed(list(indices)):
        near = nearest(key(name), list(index))
        if near:
            return _names(index, near)
    return []


def _names(index: Index, keys: Iterable[str]) -> list[str]:
    """The name of the first card of each key."""
    return [index[key][0].name for key in keys]


# Memory stands apart ("A100-SXM4-40GB", "RTX 3060 12GB", "GH200 144G"): the G of A10G and T4G is
# part of the name.
_MEMORY = re.compile(r"(?:^|(?<=[\s(-]))\d+\s?g(?:b|ib)?\b")
_MARKS = re.compile(r"\((?:tm|r|c|rev [^)]{0,9})\)|[™®©]")
_FORM = re.compile(r"(?<![a-z0-9])(?:sxm\d?|hbm\d?e?|g?ddr\d?x?|\d+[- ]?bits?)(?![a-z0-9])|sxm\d")
_SLICE = re.compile(
    r"\bmig\b.*|(?:\bdc|(?<=[0-9a-z])(?<!geforce)(?<!gtx))-(?:\d-)?\d+[abcq](?:\d|me)?\b"
)
"""A slice of a card: "MIG 1g.10gb", "A100-10C", "A100-1-5CME"."""
_LISTED = re.compile(r"^\s*(?:gpu \d+|product name\s*):|\(uuid:.*")  # nvidia-smi -L and -q
_CHIP = r"\b(g[fkmpv]\d{3})\w{0,4} \["
_FAMILY = r"^(?:geforce|quadro|tesla|grid|jetson|dgx|hgx)"
_SERIES = r"^(?:gtx|gts|gt|rtx)(?=.)"
_PCI = re.compile(
    r"\[([^\]\[]*[a-z][^\]\[]*)\](?=[^\]\[]*$|\s*\[[0-9a-f:]+\])"
)  # lspci: "GA102 [GeForce RTX 3090]"


def _full(name: str) -> str:
    # Bounded: the name may be a whole line of someone's terminal.
    text = _MARKS.sub(" ", name[:200].lower())
    in_brackets = _PCI.search(text)
    if in_brackets:
        text = in_brackets[1]
    words, inside = _noise()
    for pattern in (_LISTED, _SLICE, _MEMORY, _FORM, words):
        text = pattern.sub(" ", text)
    return inside.sub("", re.sub(r"[^a-z0-9]", "", text))


def _bare(name: str) -> str:
    return re.sub(_FAMILY, "", _full(name))


def _number(name: str) -> str:
    return re.sub(_SERIES, "", _bare(name))


KEYS: tuple[Callable[[str], str], ...] = (_full, _bare, _number)
"""From strict to loose; the first that finds a card decides."""


@cache
def _noise() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Words to leave out where they stand alone, and long ones inside of words, which cannot be
    part of a name.
    """
    separate = []
    inside = []
    for word in sorted(gpus().noise, key=len, reverse=True):
        parts = re.findall(r"[a-z0-9]+", word)
        separate.append(r"[\W_]*".join(parts))
        joined = "".join(parts)
        if len(joined) > 4:
            inside.append(joined)
    alone = re.compile(rf"(?<![a-z0-9])(?:{'|'.join(separate)})(?![a-z0-9])")
    return alone, re.compile("|".join(inside))


@cache
def _indices() -> list[Index]:
    """The cards by the key that finds them, an index for each of `KEYS`."""
    indices = []
    for key in KEYS:
        index: Index = {}
        for card in cards():
            index.setdefault(key(card.name), []).append(card)
        indices.append(index)
    return indices


MAJOR = 10
"""The SM number of a major version: sm_86 is 8 x 10 + 6."""


def sass_runs(code: int, card: int, suffix: str = "") -> bool:
    """True if machine code for sm_`code` runs on a card of sm_`card`.

    It runs on the same major version and the same or a higher minor one: 8.6 on 8.9, 8.0 on 8.6,
    12.0 on 12.1. Code with the suffix `a` runs on its own SM alone; `f` (a family) keeps to the
    rule. Code of cards and of integrated GPUs (Tegra) does not run on each other.
    """
    if suffix == "a" or is_integrated(code) or is_integrated(card):
        return code == card
    return code // MAJOR == card // MAJOR and code <= card


def ptx_compiles(code: int, card: int, suffix: str = "") -> bool:
    """True if a driver can compile PTX for compute_`code` on a card: any card that is not older,
    without a suffix.
    """
    return not suffix and card >= code


def is_integrated(sm: int) -> bool:
    """True if an SM is that of an integrated GPU (Tegra), which sits in a 64-bit Arm chip alone."""
    return sm in catalog.architectures().tegra


def page_names() -> dict[str, Any]:
    """Everything that `find` and `maker` read, as JSON."""
    words, inside = _noise()
    return {
        "marks": _MARKS.pattern,
        "brackets": _PCI.pattern,
        "strip": [rule.pattern for rule in (_LISTED, _SLICE, _MEMORY, _FORM, words)],
        "inside": inside.pattern,
        "loose": [_FAMILY, _SERIES],
        "index": _names_by_key(),
        "chip": _CHIP,
        "chips": gpus().chips,
        "renamed": gpus().renamed,
        "families": families(),
        "no_variant": sorted(of_no_variant()),
        "others": gpus().others,
        "too_old": {sm: chip.why for sm, chip in gpus().too_old.items()},
        "arm": _names_beside_arm(),
    }


def _names_beside_arm() -> list[str]:
    """The names of the cards that are beside Arm cores alone."""
    names = []
    for card in cards():
        sm = int(card.sm[2:])
        if machine(card.name, sm) == "aarch64":
            names.append(card.name)
    return names


def _names_by_key() -> list[dict[str, list[tuple[str, Sm]]]]:
    """The names and SMs of cards by the key that finds them, an index for each of `KEYS`."""
    documents = []
    for index in _indices():
        document = {}
        for key, matches in index.items():
            names = {(card.name, card.sm) for card in matches}
            document[key] = sorted(names)
        documents.append(document)
    return documents
