"""`farm detect`: show this machine, the wheel for it and the pip command."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm.cli import show
from farm.cli.advice import Advice, advice, cpu_advice
from farm.cli.selection import project_of
from farm.index.backends import open_store
from farm.machine.detect import Recommendation, choose, driver_problem, machine_of, with_published
from farm.machine.host import Machine
from farm.machine.readings import Readings, collect
from farm.plan.compat import official
from farm.plan.compat.official import Question
from farm.plan.compat.stack import NUMBERS
from farm.plan.recommend import FarmBuild, buildable_here
from farm.plan.settings import Settings


@dataclass(frozen=True)
class Detected:
    """What was read of this machine, and what is for it.

    Attributes:
        readings: The machine.
        recommendation: The variant for it, and the published wheel of it.
        first: The sentence to begin with, and the line to copy.
        elsewhere: Wheels of others: the maker, what it is, the line that installs it.
    """

    readings: Readings
    recommendation: Recommendation
    first: tuple[str, str] | None
    elsewhere: tuple[tuple[str, str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        models = {"readings": self.readings, "recommendation": self.recommendation}
        document: dict[str, Any] = {
            name: model.model_dump(mode="json", by_alias=True) for name, model in models.items()
        }
        document["first"] = {"text": self.first[0], "line": self.first[1]} if self.first else None
        document["elsewhere"] = [
            {"maker": maker, "what": description, "install": install}
            for maker, description, install in self.elsewhere
        ]
        return document


def run_detect(args: argparse.Namespace) -> int:
    """Print the readings and the recommendation; 0 if there is a variant, else 3."""
    project, settings = project_of(args)
    detected = detect(collect(Machine()), project, settings, args.index)
    if args.json:
        show.json_document(detected.to_json())
    else:
        _print(detected)
    return 0 if detected.recommendation.variant else 3


def detect(
    readings: Readings, project: Path, settings: Settings, named_index: str | None = None
) -> Detected:
    """Find what is for a machine: a wheel of PyTorch, of the index, of others, or a build.

    Args:
        readings: The machine.
        project: The project whose channels may build for it.
        settings: The settings of the project, which name the index.
        named_index: Another index to look into.
    """
    builds, driver_fault = _builds(project, readings)
    recommendation = choose(readings, builds)
    if driver_fault and recommendation.variant:
        warnings = (*recommendation.warnings, driver_fault)
        recommendation = recommendation.model_copy(update={"warnings": warnings})
    index = root = named_index or settings.index_at(project)
    if not index.startswith(("https://", "http://")):
        # The public address is that of the index in ci/farm.yaml, not of one that was named.
        public = None if named_index else settings.index_public_url
        root = public or open_store(index).url("")
    recommendation = with_published(recommendation, readings, index, root)
    question = _question(readings)
    return Detected(
        readings=readings,
        recommendation=recommendation,
        first=_first(_upstream(question, readings), recommendation, builds),
        elsewhere=tuple(_other_makers(question)) if question else (),
    )


def _question(readings: Readings) -> Question | None:
    """What to ask about PyTorch's own wheels; None where it publishes none for such a machine."""
    machine = machine_of(readings)
    place = f"{readings.os.system}-{readings.cpu.machine}"
    if not machine.sms or place not in official.PLATFORMS:
        return None
    libc = (readings.os.libc or "").removeprefix("glibc ")
    return Question(
        sms=machine.sms,
        platform=place,
        driver=machine.driver,
        glibc=libc if NUMBERS.fullmatch(libc) else None,
        cpu=machine.cpus[0] if machine.cpus else None,
    )


def _upstream(question: Question | None, readings: Readings) -> Advice | None:
    """PyTorch's own wheel for a machine; of one whose GPUs are no NVIDIA cards, that for CPUs."""
    if question:
        return advice(question)
    if readings.gpus:
        return None
    cpus = machine_of(readings).cpus
    place = f"{readings.os.system}-{readings.cpu.machine}"
    return cpu_advice(
        place, [python.name for python in readings.pythons], cpus[0] if cpus else None
    )


def _first(
    upstream: Advice | None, recommendation: Recommendation, builds: Sequence[FarmBuild]
) -> tuple[str, str] | None:
    """What to say first: the wheel of PyTorch, else one of the index, else a build and its cost."""
    if upstream:
        flavour = f"CUDA {upstream.cuda}" if upstream.cuda else "for CPUs"
        end = f" ({upstream.end})" if upstream.end else ""
        text = f"PyTorch's own wheel runs here: torch {upstream.torch}, {flavour}{end}"
        return text, upstream.pip
    if recommendation.pip:
        return "a wheel of the index is for this machine", recommendation.pip
    if builds and recommendation.submit:
        reason = f"no wheel is published for this machine; a build of {builds[0].release} takes"
        return f"{reason} {builds[0].cost}", recommendation.submit
    return None


def _builds(project: Path, readings: Readings) -> tuple[list[FarmBuild], str | None]:
    """The builds for this machine as `farm why` and the site name them, and a fault.

    The fault is the driver's, where builds are for the machine and it runs none of them.
    """
    machine = machine_of(readings)
    builds = buildable_here(project, machine)
    if builds:
        return builds, None
    for build in buildable_here(project, replace(machine, driver=None), limit=1):
        fault = driver_problem(build.cuda, readings.driver, readings.os.system)
        return [], f"channel {build.channel}: {fault}" if fault else None
    return [], None


def _other_makers(question: Question) -> Iterator[tuple[str, str, str]]:
    """Who else has a wheel for the cards, as `farm why --official` says: the maker, what it is, its
    install line.
    """
    answer = official.best(question)
    if answer.runs and answer.wheel:
        without = "".join(f", without {text.partition(':')[0]}" for text in answer.without)
        description = f"torch {answer.wheel.torch}, CUDA {answer.wheel.cuda}{without}"
        yield "PyTorch's own", description, answer.wheel.pip
    if answer.runs and not answer.without:
        return
    for row in official.others(question):
        description = f"torch {row.torch}, CUDA {row.cuda}; lacks {row.lacks}"
        yield row.maker, description, official.install(row, question)


def _print(detected: Detected) -> None:
    """Print what was found, the line to copy first."""
    if detected.first:
        text, line = detected.first
        show.prose(f"{text}:")
        show.say(f"  {line}")
        print()
    _print_machine(detected.readings)
    recommendation = detected.recommendation
    print()
    rows = [("variant", recommendation.variant or "none")]
    if recommendation.channel:
        rows.append(("channel", recommendation.channel))
    if recommendation.state:
        rows.append(("wheel", recommendation.state))
    rows += [("tested", test) for test in recommendation.tests]
    show.table("", ("the farm's wheel for it", ""), rows, show.SCREEN)
    for kind, texts in (("why", recommendation.reasons), ("warning", recommendation.warnings)):
        for text in texts:
            words, command, options = text.partition(" farm submit ")
            show.prose(f"{kind}: {words}")
            if command:  # on a line of its own, to be copied
                show.say(f"  farm submit {options}")
    for maker, description, install in detected.elsewhere:
        show.prose(f"{maker}: {description}")
        show.say(f"  {install}")
    if recommendation.pip:
        print()
        show.say(recommendation.pip)


def _print_machine(readings: Readings) -> None:
    cpu = readings.cpu
    system = readings.os
    libc = f", {system.libc}" if system.libc else ""
    rows = [("system", f"{system.name} {system.version}{libc}")]
    rows.append(("CPU", ", ".join(filter(None, (cpu.name, cpu.microarchitecture, cpu.machine)))))
    for gpu in readings.gpus:
        facts = [gpu.name]
        if gpu.capability:
            facts.append(f"compute capability {gpu.capability}")
        if gpu.memory_mb is not None:
            facts.append(f"{gpu.memory_mb} MiB")
        rows.append(("GPU", f"{', '.join(facts)} ({gpu.source})"))
    if readings.driver:
        rows.append(("driver", readings.driver))
    for python in readings.pythons:
        rows.append((f"Python {python.name[2]}.{python.name[3:]}", python.path))
    rows += [("not read", f"{item.what}: {item.why}") for item in readings.missing]
    show.table("", ("this machine", ""), rows, show.SCREEN)
