"""`farm detect`: show this machine, the wheel for it and the pip command."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm.catalog import number
from farm.cli import show
from farm.cli.advice import Advice, advice
from farm.cli.selection import project_of
from farm.index.store_urls import open_store
from farm.machine.cards import driver_problem
from farm.machine.detect import Recommendation, choose, machine_of
from farm.machine.host import Machine
from farm.machine.published import with_published
from farm.machine.readings import Readings, collect
from farm.plan.compat import official, official_cpu, other_makers
from farm.plan.compat.answer import Question
from farm.plan.compat.official import CardAnswer
from farm.plan.compat.official_cpu import CpuAnswer
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
        newer: Why no newer wheel of PyTorch runs here.
    """

    readings: Readings
    recommendation: Recommendation
    first: tuple[str, str] | None
    elsewhere: tuple[tuple[str, str, str], ...]
    newer: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        models = {"readings": self.readings, "recommendation": self.recommendation}
        document: dict[str, Any] = {
            name: model.model_dump(mode="json", by_alias=True) for name, model in models.items()
        }
        document["first"] = {"text": self.first[0], "line": self.first[1]} if self.first else None
        document["newer"] = self.newer
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
        newer=_why_not_newer(question) if question else None,
    )


def _question(readings: Readings) -> Question | None:
    """Everything that was read of a machine, as a question about PyTorch's own wheels.

    Of several Pythons it is about the one with the newest wheel that runs there. None: the C
    library is another one than theirs.
    """
    platform = readings.os.platform
    if platform and platform.in_images and readings.os.libc is None:
        return None
    machine = machine_of(readings)
    libc = (readings.os.libc or "").removeprefix("glibc ")
    question = Question(
        sms=machine.sms,
        platform=f"{readings.os.system}-{readings.cpu.machine}",
        driver=machine.driver,
        glibc=libc if NUMBERS.fullmatch(libc) else None,
        cpu=machine.cpus[0] if machine.cpus else None,
    )
    releases = []
    for python in machine.pythons:
        answer = _best(replace(question, python=python))
        if answer.runs and answer.wheel:
            releases.append((number(answer.wheel.torch), python))
    newest = max((release for release, _ in releases), default=None)
    # The Pythons are in the order of preference: of those with the newest release the first counts.
    best = [python for release, python in releases if release == newest]
    return replace(question, python=next(iter(best or machine.pythons), None))


def _best(question: Question) -> CardAnswer | CpuAnswer:
    """The best wheel of PyTorch for the cards of a question; for its CPU where it has none."""
    return official.best(question) if question.sms else official_cpu.best(question)


def _upstream(question: Question | None, readings: Readings) -> Advice | None:
    """PyTorch's own wheel for a machine; of one without a GPU, that for CPUs."""
    if question is None:
        return None
    cards_left_out = readings.gpus or readings.unclaimed_gpus
    if not question.sms and cards_left_out:
        return None
    return advice(question)


def _first(
    upstream: Advice | None, recommendation: Recommendation, builds: Sequence[FarmBuild]
) -> tuple[str, str] | None:
    """What to say first: the wheel of PyTorch, else one of the index, else a build and its cost."""
    if upstream:
        flavour = f"CUDA {upstream.cuda}" if upstream.cuda else "for CPUs"
        python = f", Python 3.{upstream.python[3:]}" if upstream.python else ""
        end = f" ({upstream.end})" if upstream.end else ""
        text = f"PyTorch's own wheel runs here: torch {upstream.torch}, {flavour}{python}{end}"
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


def _why_not_newer(question: Question) -> str | None:
    """Why a newer wheel of PyTorch than the best one does not run here."""
    answer = _best(question)
    if isinstance(answer, CpuAnswer):
        return answer.newer
    if answer.runs and answer.wheel:
        return official.why_not_newer(question, answer.wheel)
    return answer.problem


def _other_makers(question: Question) -> Iterator[tuple[str, str, str]]:
    """Who has a wheel for the machine, as `farm why --official` says: the maker, what it is, its
    install line.
    """
    answer = _best(question)
    without = () if isinstance(answer, CpuAnswer) else answer.without
    if answer.runs and answer.wheel:
        lacks = "".join(f", without {text.partition(':')[0]}" for text in without)
        but = "".join(f"; {text}" for text in answer.but)
        yield "PyTorch's own", f"{_release(answer)}{lacks}{but}", answer.wheel.pip
    if not question.sms or (answer.runs and not without):
        return
    for row in other_makers.others(question):
        description = f"torch {row.torch}, CUDA {row.cuda}; lacks {row.lacks}"
        yield row.maker, description, other_makers.install(row, question)


def _release(answer: CardAnswer | CpuAnswer) -> str:
    if isinstance(answer, CardAnswer) and answer.wheel:
        return f"torch {answer.wheel.torch}, CUDA {answer.wheel.cuda}"
    return f"torch {answer.wheel.torch}, for CPUs" if answer.wheel else ""


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
    if detected.newer:
        show.prose(f"newer ones of PyTorch: {detected.newer}")
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
