"""`farm detect`: show this machine, the wheel for it and the pip command."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.cli import show
from farm.cli.selection import project_of
from farm.index.backends import open_store
from farm.machine.detect import Recommendation, choose, driver_problem, machine_of, with_published
from farm.machine.host import Machine
from farm.machine.readings import Readings, collect
from farm.plan.compat import official
from farm.plan.recommend import FarmBuild, buildable_here

if TYPE_CHECKING:
    pass


def run_detect(args: argparse.Namespace) -> int:
    """Print the readings and the recommendation; 0 if there is a variant, else 3."""
    readings = collect(Machine())
    project, settings = project_of(args)
    own, too_old = _builds(project, readings)
    found = choose(readings, own)
    if too_old and found.variant:
        found = found.model_copy(update={"warnings": (*found.warnings, too_old)})
    index = root = args.index or settings.index_at(project)
    if not index.startswith(("https://", "http://")):
        # The public address is that of the index in ci/farm.yaml: of one that was named it says
        # nothing.
        root = (None if args.index else settings.index_public_url) or open_store(index).url("")
    found = with_published(found, readings, index, root)
    others = list(_other_makers(readings))
    if args.json:
        models = {"readings": readings, "recommendation": found}
        document: dict[str, Any] = {
            name: each.model_dump(mode="json", by_alias=True) for name, each in models.items()
        }
        document["elsewhere"] = [
            dict(zip(("maker", "what", "install"), o, strict=True)) for o in others
        ]
        show.json_document(document)
    else:
        _print_detected(readings, found, others)
    return 0 if found.variant else 3


def _builds(project: Path, readings: Readings) -> tuple[list[FarmBuild], str | None]:
    """The builds for this machine as `farm why` and the site name them, and a fault.

    The fault is the driver's, where builds are for the machine and it runs none of them.
    """
    system = readings.os.system
    driver = readings.driver
    machine = machine_of(readings)
    own = buildable_here(project, machine)
    newer = own or buildable_here(project, replace(machine, driver=None), limit=1)
    if newer and not own:
        fault = driver_problem(newer[0].cuda, driver, system)
    else:
        fault = None
    return own, f"channel {newer[0].channel}: {fault}" if fault else None


def _other_makers(readings: Readings) -> Iterator[tuple[str, str, str]]:
    """Who else has a wheel for the cards, as `farm why --official` says: the maker, what it is, its
    install line.
    """
    machine, place = machine_of(readings), f"{readings.os.system}-{readings.cpu.machine}"
    if not machine.sms or place not in official.PLATFORMS:
        return
    question = official.Question(machine.sms, place, machine.driver)
    answer = official.best(question)
    if answer.runs and answer.wheel:
        without = "".join(f", without {text.partition(':')[0]}" for text in answer.without)
        yield (
            "PyTorch's own",
            f"torch {answer.wheel.torch}, CUDA {answer.wheel.cuda}{without}",
            answer.wheel.pip,
        )
    if answer.runs and not answer.without:
        return
    for row in official.others(question):
        yield (
            row.maker,
            f"torch {row.torch}, CUDA {row.cuda}; lacks {row.lacks}",
            official.install(row, question),
        )


def _print_detected(
    readings: Readings, found: Recommendation, others: list[tuple[str, str, str]]
) -> None:
    cpu = readings.cpu
    os = readings.os
    rows = [("system", f"{os.name} {os.version}" + (f", {os.libc}" if os.libc else ""))]
    names = [name for name in (cpu.name, cpu.microarchitecture, cpu.machine) if name]
    rows.append(("CPU", ", ".join(names)))
    for gpu in readings.gpus:
        facts = [gpu.name]
        if gpu.capability:
            facts.append(f"compute capability {gpu.capability}")
        if gpu.memory_mb is not None:
            facts.append(f"{gpu.memory_mb} MiB")
        rows.append(("GPU", f"{', '.join(facts)} ({gpu.source})"))
    if readings.driver:
        rows.append(("driver", readings.driver))
    rows += [
        (f"Python {python.name[2]}.{python.name[3:]}", python.path) for python in readings.pythons
    ]
    rows += [("not read", f"{item.what}: {item.why}") for item in readings.missing]
    show.table("", ("this machine", ""), rows, show.SCREEN)
    print()
    lines = [("variant", found.variant or "none")]
    if found.channel:
        lines.append(("channel", found.channel))
    if found.state:
        lines.append(("wheel", found.state))
    lines += [("tested", test) for test in found.tests]
    show.table("", ("the wheel for it", ""), lines, show.SCREEN)
    for kind, texts in (("why", found.reasons), ("warning", found.warnings)):
        for text in texts:
            words, command, options = text.partition(" farm submit ")
            show.prose(f"{kind}: {words}")
            if command:  # on a line of its own, to be copied
                show.say(f"  farm submit {options}")
    for maker, what, install in others:
        show.prose(f"{maker}: {what}")
        show.say(f"  {install}")
    if found.pip:
        print()
        show.say(found.pip)
