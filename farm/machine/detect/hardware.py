"""Conclusions from readings: the CPU levels of the machine, the SM of each GPU, the CUDA that its driver runs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from farm import catalog
from farm.base.yamlfile import Model, load
from farm.catalog import gpus as cards
from farm.catalog.binary import sass_runs
from farm.machine.detect.readings import Cpu, Gpu, Readings
from farm.plan.compat.stack import NUMBERS
from farm.plan.variant import sm_number
from farm.platforms.facts import PLATFORMS


class Levels(Model):
    """`levels.yaml`: what each CPU level needs, by machine and best first."""

    levels: dict[str, dict[str, list[str]]]
    source: str
    macos_min: str
    macos_source: str


@cache
def levels() -> Levels:
    return load(Path(__file__).with_name("levels.yaml"), Levels)


def cpu_levels(cpu: Cpu, system: str) -> list[str]:
    """The levels of `farm/catalog/cpus.yaml` that the CPU has, best first, those for one kind of work left out.

    macOS has `arm64` only, Windows x86_64 only: other wheels are not built.
    """
    platform = PLATFORMS.get(system)
    if platform is None or cpu.machine not in platform.built_on:
        return []
    has = set(cpu.features)
    known = levels().levels[cpu.machine]
    return [level for level, needs in known.items() if has.issuperset(needs)]


@dataclass(frozen=True)
class Judged:
    """One GPU with its SM; `sm` is None where no wheel is for it, and `warnings` then say why.

    `source` says where the SM comes from.
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
        sm = cards.gpus().renamed.get(sm, sm)
        return Judged(gpu.name, *_usable(gpu.name, sm, source, [], driver))
    found = cards.find(gpu.name)
    if not found:
        near = cards.nearest_names(gpu.name)
        hint = f"; nearest names: {', '.join(near)}" if near else ""
        text = f"{gpu.name} is not in the catalogue and the driver does not tell its compute capability{hint}"
        return Judged(gpu.name, None, "unknown", (text,))
    notes = [f"{gpu.name}: {card.unconfirmed}; not confirmed" for card in found if card.unconfirmed]
    sms = sorted({card.sm for card in found}, key=sm_number)
    if len(sms) > 1:
        buildable = [sm for sm in sms if sm in catalog.architectures().architectures] or sms
        notes.append(
            f"{gpu.name} was sold with {' and '.join(map(dotted, sms))}, and the driver does not tell which this is: "
            f"taken for {dotted(buildable[0])}"
        )
        sms = buildable
    return Judged(gpu.name, *_usable(gpu.name, sms[0], "by its name, from the catalogue", notes, driver))


def _usable(
    name: str, sm: str, source: str, notes: list[str], driver: str | None
) -> tuple[str | None, str, tuple[str, ...]]:
    known, old = catalog.architectures().architectures, cards.gpus().too_old
    branch, last = driver_branch(driver), last_driver(sm)
    if sm in old:
        note = f"{name} is {dotted(sm)} ({old[sm].name}), too old for every variant: {old[sm].why}"
        return None, source, (*notes, note)
    if branch and last and branch > last:
        notes.append(f"driver {driver} is newer than {last}, the last branch for {name} ({dotted(sm)}): install {last}")
    first = known[sm].first_driver if sm in known else None
    if branch and first and branch < first:
        notes.append(
            f"driver {driver} is too old for {name} ({dotted(sm)}): install {first} or newer, or no wheel sees the card"
        )
    if sm in known:
        return sm, source, tuple(notes)
    lower = compatible(sm)
    if not lower:
        return None, source, (*notes, f"{name} is {dotted(sm)}, which no variant is for and no variant's code runs on")
    note = f"{name} is {dotted(sm)}, which no variant is for; it runs {dotted(lower[0])} code"
    return lower[0], source, (*notes, note)


def compatible(sm: str) -> list[str]:
    """Other SMs whose code runs on this one, nearest first."""
    card = sm_number(sm)
    lower = [
        other for other in catalog.architectures().architectures if other != sm and sass_runs(sm_number(other), card)
    ]
    return sorted(lower, key=sm_number, reverse=True)


def sets_with(sms: list[str]) -> list[str]:
    """The named sets that hold all the SMs, smallest first."""
    sets = catalog.architectures().sets
    return sorted((name for name in sets if set(sms) <= set(sets[name])), key=lambda name: len(sets[name]))


def dotted(sm: str) -> str:
    """`sm_35` for `sm35`."""
    return sm.replace("sm", "sm_")


def last_driver(sm: str) -> int | None:
    known, old = catalog.architectures().architectures, cards.gpus().too_old
    if sm in old:
        return old[sm].last_driver
    return known[sm].last_driver if sm in known else None


def driver_branch(driver: str | None) -> int | None:
    """470 for `470.256.02`, and for `472.50` of Windows."""
    match = re.match(r"\d{3,4}(?=\.|$)", driver or "")
    return catalog.driver_branch(int(match[0])) if match else None


def driver_problem(cuda: str | None, driver: str | None, system: str) -> str | None:
    """Why a driver cannot run wheels of a CUDA version; None if it can, or if one of them is not known."""
    major = catalog.cuda_majors().get(cuda.split(".")[0]) if cuda else None
    floor = major.driver(system) if major else None
    if floor is None or driver is None or not NUMBERS.fullmatch(driver):
        return None
    too_old = catalog.number(driver) < catalog.number(floor)
    return f"driver {driver} is too old for CUDA {cuda}, which needs {floor} or newer" if too_old else None


def machine_warnings(readings: Readings) -> Iterator[str]:
    """Obstacles to any wheel."""
    platform = readings.os.platform
    if any("version mismatch" in item.why for item in readings.missing):
        yield (
            "the NVIDIA driver and its libraries are of different versions, as after an update: restart the machine, "
            "then run farm detect again"
        )
    elif readings.unclaimed_gpus and readings.inside == "container":
        yield (
            f"{readings.unclaimed_gpus} NVIDIA display device(s) are on the PCI bus, but this container has no "
            "driver libraries: start it with --gpus all (NVIDIA Container Toolkit)"
        )
    elif readings.unclaimed_gpus:
        yield (
            f"{readings.unclaimed_gpus} NVIDIA display device(s) are on the PCI bus, but no NVIDIA driver tells of "
            "them: install the driver, then run farm detect again"
        )
    if readings.inside == "wsl" and not readings.gpus:
        yield (
            "this is WSL, which uses the driver of Windows: for an NVIDIA card install the driver there, not here, "
            "then run wsl --update"
        )
    if platform and platform.in_images and readings.os.libc is None:
        yield "the C library is not glibc (Alpine?): the wheels are manylinux wheels and do not install here"
    if readings.translated:
        yield "this Python is an x86_64 one under Rosetta 2: install into an arm64 Python"
    if platform and not platform.cuda:
        version = readings.os.version
        if NUMBERS.fullmatch(version) and catalog.number(version) < catalog.number(levels().macos_min):
            yield f"macOS {readings.os.version} is too old for PyTorch on Metal: it needs {levels().macos_min} or newer"
