"""What a machine's GPUs are to the farm: their SM, which code they run, and what drivers allow."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from farm import catalog
from farm.catalog import gpus
from farm.catalog.gpus import sass_runs
from farm.machine.readings import Gpu
from farm.plan.compat.stack import NUMBERS
from farm.plan.variant import sm_number


class Judged(NamedTuple):
    """One GPU with its SM, and where that comes from; None: no wheel is for it, and `warnings` say
    why.
    """

    name: str
    sm: str | None
    source: str
    warnings: tuple[str, ...]


def judge_gpu(gpu: Gpu, driver: str | None) -> Judged:
    """The SM of a GPU: what the driver says, else by name."""
    # The driver's word counts more than the name: some names were sold with several chips.
    if gpu.capability:
        sm = f"sm{gpu.capability.replace('.', '')}"
        source = f"compute capability {gpu.capability}, from {gpu.source}"
        return _usable(gpu.name, gpus.gpus().renamed.get(sm, sm), source, [], driver)
    cards = gpus.find(gpu.name)
    if not cards:
        return Judged(gpu.name, None, "unknown", (_not_in_catalogue(gpu.name),))
    notes = []
    for card in cards:
        if card.unconfirmed:
            notes.append(f"{gpu.name}: {card.unconfirmed}; not confirmed")
    sms = sorted({card.sm for card in cards}, key=sm_number)
    if len(sms) > 1:
        architectures = catalog.architectures().architectures
        buildable = [sm for sm in sms if sm in architectures] or sms
        notes.append(
            f"{gpu.name} was sold with {' and '.join(map(dotted, sms))}, and the driver does not "
            f"say which this is: taken for {dotted(buildable[0])}"
        )
        sms = buildable
    return _usable(gpu.name, sms[0], "by its name, from the catalogue", notes, driver)


def _not_in_catalogue(name: str) -> str:
    text = f"{name} is not in the catalogue and the driver does not say its compute capability"
    near = gpus.nearest_names(name)
    if near:
        text += f"; nearest names: {', '.join(near)}"
    return text


def _usable(name: str, sm: str, source: str, notes: list[str], driver: str | None) -> Judged:
    """A GPU whose SM is decided: is a variant for it, and does its driver fit?"""
    old = gpus.gpus().too_old
    if sm in old:
        note = f"{name} is {dotted(sm)} ({old[sm].name}), too old for every variant: {old[sm].why}"
        return Judged(name, None, source, (*notes, note))
    notes += _driver_notes(name, sm, driver)
    if sm in catalog.architectures().architectures:
        return Judged(name, sm, source, tuple(notes))
    lower_sms = compatible(sm)
    if not lower_sms:
        note = f"{name} is {dotted(sm)}, which no variant is for and no variant's code runs on"
        return Judged(name, None, source, (*notes, note))
    lower = lower_sms[0]
    note = f"{name} is {dotted(sm)}, which no variant is for; it runs {dotted(lower)} code"
    return Judged(name, lower, source, (*notes, note))


def _driver_notes(name: str, sm: str, driver: str | None) -> Iterator[str]:
    """What is wrong with the driver for a card: too new or too old."""
    branch = driver_branch(driver)
    if branch is None:
        return
    last = last_driver(sm)
    if last and branch > last:
        yield (
            f"driver {driver} is newer than {last}, the last branch for {name} ({dotted(sm)}): "
            f"install {last}"
        )
    architecture = catalog.architectures().architectures.get(sm)
    if architecture and architecture.first_driver and branch < architecture.first_driver:
        first = architecture.first_driver
        yield (
            f"driver {driver} is too old for {name} ({dotted(sm)}): install {first} or newer, or "
            "no wheel sees the card"
        )


def compatible(sm: str) -> list[str]:
    """Other SMs whose code runs on this one, nearest first."""
    card = sm_number(sm)
    older = []
    for candidate in catalog.architectures().architectures:
        if candidate != sm and sass_runs(sm_number(candidate), card):
            older.append(candidate)
    return sorted(older, key=sm_number, reverse=True)


def sets_with(sms: list[str]) -> list[str]:
    """The named sets that hold all the SMs, smallest first."""
    sets = catalog.architectures().sets
    names = [name for name, members in sets.items() if set(sms) <= set(members)]
    return sorted(names, key=lambda name: len(sets[name]))


def dotted(sm: str) -> str:
    """`sm_35` for `sm35`."""
    return sm.replace("sm", "sm_")


def last_driver(sm: str) -> int | None:
    """The last branch of drivers that drives an SM; None: it has not ended, or is not known."""
    old = gpus.gpus().too_old
    if sm in old:
        return old[sm].last_driver
    architecture = catalog.architectures().architectures.get(sm)
    if architecture is None:
        return None
    return architecture.last_driver


def driver_branch(driver: str | None) -> int | None:
    """470 for `470.256.02`, and for `472.50` of Windows."""
    match = re.match(r"\d{3,4}(?=\.|$)", driver or "")
    if match is None:
        return None
    return catalog.driver_branch(int(match[0]))


def driver_problem(cuda: str | None, driver: str | None, system: str) -> str | None:
    """Why a driver cannot run wheels of a CUDA version; None if it can, or if one of them is not
    known.
    """
    if cuda is None or driver is None or not NUMBERS.fullmatch(driver):
        return None
    major = catalog.cuda_majors().get(cuda.split(".")[0])
    if major is None:
        return None
    floor = major.driver(system)
    if floor and catalog.number(driver) < catalog.number(floor):
        return f"driver {driver} is too old for CUDA {cuda}, which needs {floor} or newer"
    return None
