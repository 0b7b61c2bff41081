"""Other makers of PyTorch with CUDA (`makers.yaml`), and whose build serves a question."""

from functools import cache
from typing import Any

from farm import catalog
from farm.base.yamlfile import Model, load
from farm.catalog import FOLDER, number
from farm.catalog.models import Commit, Version
from farm.plan.compat.answer import Question
from farm.plan.compat.official_wheels import has_code
from farm.plan.compat.stack import reaches


class Maker(Model):
    """One kind of build by someone else (`makers.yaml`).

    `install` may hold `{arch}`, the SM of the card; `commit` is that of the recipes at which the
    row was read, None where it was no repository.
    """

    maker: str
    torch: Version
    since: Version
    cuda: Version
    platforms: list[str]
    sm: list[int]
    ptx: list[int]
    cudnn_sm: int | None
    pythons: list[str] | None
    install: str
    has: str
    lacks: str
    source: str
    commit: Commit | None
    unconfirmed: str


class MakerBeside(Model):
    """Someone who makes packages that old cards need beside torch."""

    maker: str
    sm: list[int]
    has: str
    lacks: str
    source: str
    unconfirmed: str


class Makers(Model):
    """Other makers of PyTorch with CUDA, the newest release of each first; `beside`: of what goes
    with it.
    """

    sources: dict[str, str]
    makers: list[Maker]
    beside: list[MakerBeside]


@cache
def makers() -> Makers:
    return load(FOLDER / "makers.yaml", Makers)


@cache
def facts() -> dict[str, Any]:
    """Everything that `others` and `makers_beside` read, as JSON."""
    rows = []
    for row in makers().makers:
        rows.append(row.model_dump() | {"source": makers().sources[row.source]})
    return {"makers": rows, "beside": [row.model_dump() for row in makers().beside]}


def others(question: Question) -> list[Maker]:
    """Builds of other makers with code for all cards, the newest of each kind that the driver
    runs.
    """
    newest: dict[tuple[str, str], Maker] = {}
    for row in makers().makers:
        if _answers(row, question):
            newest.setdefault((row.maker, row.cuda.split(".")[0]), row)
    return list(newest.values())


def _answers(row: Maker, question: Question) -> bool:
    """True if a maker's build is what a question asks for, and runs on its machine."""
    if question.platform not in row.platforms:
        return False
    if not all(has_code(row, sm) for sm in question.sms):
        return False
    return _is_asked_for(row, question) and _a_driver_runs_it(row, question)


def _is_asked_for(row: Maker, question: Question) -> bool:
    """True if a build is of the release, the CUDA and the Python of a question."""
    torch = question.torch
    if torch and not number(row.since) <= number(torch) <= number(row.torch):
        return False
    if question.cuda not in (None, row.cuda):
        return False
    # Where the Pythons of a build were not read, none is ruled out.
    return not row.pythons or question.python in (None, *row.pythons)


def _a_driver_runs_it(row: Maker, question: Question) -> bool:
    """True if a driver for the cards runs a build, and the driver of the question does."""
    system = question.platform.split("-")[0]
    needed = catalog.lowest_driver(row.cuda, system) or "0"
    architectures = catalog.architectures().architectures
    for sm in question.sms:
        card = architectures.get(f"sm{sm}")
        if card and card.last_driver and number(needed)[0] > card.last_driver:
            return False
    return question.driver is None or reaches(question.driver, needed)


def install(row: Maker, question: Question) -> str:
    """The line that installs a build of another maker."""
    return row.install.replace("{arch}", ",".join(map(str, question.sms)))


def makers_beside(question: Question) -> list[MakerBeside]:
    """Who makes packages beside torch for some card of a question."""
    return [row for row in makers().beside if not set(row.sm).isdisjoint(question.sms)]
