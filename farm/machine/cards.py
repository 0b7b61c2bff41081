"""What a machine's GPUs are to the farm: their SM, which code they run, and what drivers allow."""

import re
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
        near = gpus.nearest_names(gpu.name)
        hint = f"; nearest names: {', '.join(near)}" if near else ""
        text = (
            f"{gpu.name} is not in the catalogue and the driver does not tell its compute "
            f"capability{hint}"
        )
        return Judged(gpu.name, None, "unknown", (text,))
    notes = [f"{gpu.name}: {card.unconfirmed}; not confirmed" for card in cards if card.unconfirmed]
    sms = sorted({card.sm for card in cards}, key=sm_number)
    if len(sms) > 1:
        buildable = [sm for sm in sms if sm in catalog.architectures().architectures] or sms
        notes.append(
            f"{gpu.name} was sold with {' and '.join(map(dotted, sms))}, and the driver does not "
            "tell which this is: "
            f"taken for {dotted(buildable[0])}"
        )
        sms = buildable
    return _usable(gpu.name, sms[0], "by its name, from the catalogue", notes, driver)


def _usable(name: str, sm: str, source: str, notes: list[str], driver: str | None) -> Judged:
    architectures = catalog.architectures().architectures
    old = gpus.gpus().too_old
    branch = driver_branch(driver)
    last = last_driver(sm)
    if sm in old:
        note = f"{name} is {dotted(sm)} ({old[sm].name}), too old for every variant: {old[sm].why}"
        return Judged(name, None, source, (*notes, note))
    if branch and last and branch > last:
        notes.append(
            f"driver {driver} is newer than {last}, the last branch for {name} ({dotted(sm)}): "
            f"install {last}"
        )
    first = architectures[sm].first_driver if sm in architectures else None
    if branch and first and branch < first:
        notes.append(
            f"driver {driver} is too old for {name} ({dotted(sm)}): install {first} or newer, or "
            "no wheel sees the card"
        )
    if sm in architectures:
        return Judged(name, sm, source, tuple(notes))
    lower = [*compatible(sm), None][0]
    if lower:
        code = f"; it runs {dotted(lower)} code"
    else:
        code = " and no variant's code runs on"
    return Judged(
        name, lower, source, (*notes, f"{name} is {dotted(sm)}, which no variant is for{code}")
    )


def compatible(sm: str) -> list[str]:
    """Other SMs whose code runs on this one, nearest first."""
    card = sm_number(sm)
    architectures = (
        candidate for candidate in catalog.architectures().architectures if candidate != sm
    )
    return sorted(
        (candidate for candidate in architectures if sass_runs(sm_number(candidate), card)),
        key=sm_number,
        reverse=True,
    )


def sets_with(sms: list[str]) -> list[str]:
    """The named sets that hold all the SMs, smallest first."""
    sets = catalog.architectures().sets
    return sorted(
        (name for name in sets if set(sms) <= set(sets[name])), key=lambda name: len(sets[name])
    )


def dotted(sm: str) -> str:
    """`sm_35` for `sm35`."""
    return sm.replace("sm", "sm_")


def last_driver(sm: str) -> int | None:
    architectures = catalog.architectures().architectures
    old = gpus.gpus().too_old
    if sm in old:
        return old[sm].last_driver
    return architectures[sm].last_driver if sm in architectures else None


def driver_branch(driver: str | None) -> int | None:
    """470 for `470.256.02`, and for `472.50` of Windows."""
    match = re.match(r"\d{3,4}(?=\.|$)", driver or "")
    return catalog.driver_branch(int(match[0])) if match else None


def driver_problem(cuda: str | None, driver: str | None, system: str) -> str | None:
    """Why a driver cannot run wheels of a CUDA version; None if it can, or if one of them is not
    known.
    """
    major = catalog.cuda_majors().get(cuda.split(".")[0]) if cuda else None
    floor = major.driver(system) if major else None
    if floor is None or driver is None or not NUMBERS.fullmatch(driver):
        return None
    too_old = catalog.number(driver) < catalog.number(floor)
    if too_old:
        return f"driver {driver} is too old for CUDA {cuda}, which needs {floor} or newer"
    return None
