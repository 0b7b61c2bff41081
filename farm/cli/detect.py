"""`farm detect`: what this machine is, which wheel is for it, and the pip command."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from farm.base.project import find_project
from farm.cli import show
from farm.machine.detect import Recommendation, choose, driver_problem, machine_of, with_published
from farm.machine.readings import Machine, Readings, take
from farm.plan.compat import official
from farm.plan.recommend import Own, own_builds
from farm.plan.settings import load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", metavar="URL", help="https://…, a folder or s3://… (default: ci/farm.yaml)")


def run(args: argparse.Namespace) -> int:
    """Print the readings and the recommendation; 0 if there is a variant, else 3."""
    readings = take(Machine())
    project = find_project(args.project or Path.cwd())
    own, too_old = _builds(project, readings)
    found = choose(readings, own)
    if too_old and found.variant:
        found = found.model_copy(update={"warnings": (*found.warnings, too_old)})
    found = with_published(found, readings, _index(args.index, project), _index_url(args.index, project))
    others = list(_other_makers(readings))
    if args.json:
        models = {"readings": readings, "recommendation": found}
        document = {name: model.model_dump(mode="json", by_alias=True) for name, model in models.items()}
        show.json_document(
            document | {"elsewhere": [dict(zip(("maker", "what", "install"), o, strict=True)) for o in others]}
        )
    else:
        _print(readings, found, others)
    return 0 if found.variant else 3


def _builds(project: Path, readings: Readings) -> tuple[list[Own], str | None]:
    """The builds for this machine as `farm why` and the site name them, and a fault.

    The fault is the driver's, where builds are for the machine and it runs none of them.
    """
    system, driver = readings.os.system, readings.driver
    machine = machine_of(readings)
    own = own_builds(project, machine)
    newer = own or own_builds(project, replace(machine, driver=None), limit=1)
    fault = driver_problem(newer[0].cuda, driver, system) if newer and not own else None
    return own, f"channel {newer[0].channel}: {fault}" if fault else None


def _other_makers(readings: Readings) -> Iterator[tuple[str, str, str]]:
    """Who else has a wheel for the cards, as `farm why --official` says: the maker, what it is, its install line."""
    machine, place = machine_of(readings), f"{readings.os.system}-{readings.cpu.machine}"
    if not machine.sms or place not in official.PLATFORMS:
        return
    question = official.Question(machine.sms, place, machine.driver)
    answer = official.best(question)
    if answer.runs and answer.wheel:
        without = "".join(f", without {text.partition(':')[0]}" for text in answer.without)
        yield "PyTorch's own", f"torch {answer.wheel.torch}, CUDA {answer.wheel.cuda}{without}", answer.wheel.pip
    if answer.runs and not answer.without:
        return
    for row in official.others(question):
        yield row.maker, f"torch {row.torch}, CUDA {row.cuda}; lacks {row.lacks}", official.install(row, question)


def _index(named: str | None, project: Path) -> str:
    """Where the index can be asked: `--index`, else `index:` of ci/farm.yaml."""
    return named or load_settings(project).index_at(project)


def _index_url(named: str | None, project: Path) -> str:
    """The root of the same index as pip sees it."""
    index = _index(named, project)
    if index.startswith(("https://", "http://")):
        return index
    from farm.index.backends import open_store

    # The public address is that of the index in ci/farm.yaml: of one that was named it says nothing.
    public = None if named else load_settings(project).index_public_url
    return public or open_store(index).url("")


def _print(readings: Readings, found: Recommendation, others: list[tuple[str, str, str]]) -> None:
    cpu, os = readings.cpu, readings.os
    rows = [("system", f"{os.name} {os.version}" + (f", {os.libc}" if os.libc else ""))]
    names = [name for name in (cpu.name, cpu.microarchitecture, cpu.machine) if name]
    rows.append(("CPU", ", ".join(names)))
    for gpu in readings.gpus:
        facts = [gpu.name]
        facts += [f"compute capability {gpu.capability}"] if gpu.capability else []
        facts += [f"{gpu.memory_mb} MiB"] if gpu.memory_mb is not None else []
        rows.append(("GPU", f"{', '.join(facts)} ({gpu.source})"))
    rows += [("driver", readings.driver)] if readings.driver else []
    rows += [(f"Python {python.name[2]}.{python.name[3:]}", python.path) for python in readings.pythons]
    rows += [("not read", f"{item.what}: {item.why}") for item in readings.missing]
    show.table("", ("this machine", ""), rows, show.SCREEN)
    print()
    lines = [("variant", found.variant or "none")]
    lines += [("channel", found.channel)] if found.channel else []
    lines += [("wheel", found.state)] if found.state else []
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
