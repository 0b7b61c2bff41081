"""`farm detect`: show this machine, the wheel for it and the pip command."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm.base.errors import ExitCode
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
from farm.plan.variant import dotted_python


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
        first = None
        if self.first:
            text, line = self.first
            first = {"text": text, "line": line}
        elsewhere = []
        for maker, description, install in self.elsewhere:
            elsewhere.append({"maker": maker, "what": description, "install": install})
        return {
            "readings": self.readings.model_dump(mode="json", by_alias=True),
            "recommendation": self.recommendation.model_dump(mode="json", by_alias=True),
            "first": first,
            "newer": self.newer,
            "elsewhere": elsewhere,
        }


def run_detect(args: argparse.Namespace) -> int:
    """Print the readings and the recommendation; 0 if there is a variant, else 3."""
    project, settings = project_of(args)
    detected = detect(collect(Machine()), project, settings, args.index)
    if args.json:
        show.json_document(detected.to_json())
    else:
        _print(detected)
    if detected.recommendation.variant is None:
        return ExitCode.NOT_BUILDABLE
    return 0


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
    index = named_index or settings.index_at(project)
    root = _public_root(index, settings, named=bool(named_index))
    recommendation = with_published(recommendation, readings, index, root)
    question = _question(readings)
    if question is None:
        first = _first(None, recommendation, builds)
        return Detected(readings, recommendation, first, elsewhere=())
    return Detected(
        readings=readings,
        recommendation=recommendation,
        first=_first(_upstream(question, readings), recommendation, builds),
        elsewhere=tuple(_other_makers(question)),
        newer=_why_not_newer(question),
    )


def _public_root(index: str, settings: Settings, *, named: bool) -> str:
    """The index as pip sees it.

    The public address is that of the index in ci/farm.yaml, not of one that was named.
    """
    if index.startswith(("https://", "http://")):
        return index
    if settings.index_public_url and not named:
        return settings.index_public_url
    return open_store(index).url("")


def _question(readings: Readings) -> Question | None:
    """Everything that was read of a machine, as a question about PyTorch's own wheels.

    Of several Pythons it is about the one with the newest wheel that runs there. None: the C
    library is another one than theirs.
    """
    platform = readings.os.platform
    if platform and platform.in_images and readings.os.libc is None:
        return None
    machine = machine_of(readings)
    libc: str | None = (readings.os.libc or "").removeprefix("glibc ")
    if not NUMBERS.fullmatch(libc or ""):
        libc = None
    question = Question(
        sms=machine.sms,
        platform=f"{readings.os.system}-{readings.cpu.machine}",
        driver=machine.driver,
        glibc=libc,
        cpu=next(iter(machine.cpus), None),
    )
    return replace(question, python=_best_python(question, machine.pythons))


def _best_python(question: Question, pythons: Sequence[str]) -> str | None:
    """The Python with the newest wheel that runs there; of several the one that is preferred.

    Args:
        question: The machine.
        pythons: Those that it has, in the order of preference.
    """
    best_python = next(iter(pythons), None)
    newest = None
    for python in pythons:
        answer = _best(replace(question, python=python))
        if not answer.runs or answer.wheel is None:
            continue
        release = number(answer.wheel.torch)
        if newest is None or release > newest:
            newest = release
            best_python = python
    return best_python


def _best(question: Question) -> CardAnswer | CpuAnswer:
    """The best wheel of PyTorch for the cards of a question; for its CPU where it has none."""
    if question.sms:
        return official.best(question)
    return official_cpu.best(question)


def _upstream(question: Question, readings: Readings) -> Advice | None:
    """PyTorch's own wheel for a machine; of one without a GPU, that for CPUs."""
    cards_left_out = readings.gpus or readings.unclaimed_gpus
    if not question.sms and cards_left_out:
        return None
    return advice(question)


def _first(
    upstream: Advice | None, recommendation: Recommendation, builds: Sequence[FarmBuild]
) -> tuple[str, str] | None:
    """What to say first: the wheel of PyTorch, else one of the index, else a build and its cost."""
    if upstream:
        flavour = "for CPUs"
        if upstream.cuda:
            flavour = f"CUDA {upstream.cuda}"
        text = f"PyTorch's own wheel runs here: torch {upstream.torch}, {flavour}"
        if upstream.python:
            text += f", Python {dotted_python(upstream.python)}"
        if upstream.end:
            text += f" ({upstream.end})"
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
        if fault:
            return [], f"channel {build.channel}: {fault}"
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
    lacks: tuple[str, ...] = ()
    if isinstance(answer, CardAnswer):
        lacks = answer.without
    if answer.runs and answer.wheel:
        description = _release(answer)
        for text in lacks:
            description += f", without {text.partition(':')[0]}"
        for text in answer.but:
            description += f"; {text}"
        yield "PyTorch's own", description, answer.wheel.pip
    if not question.sms or (answer.runs and not lacks):
        return
    for row in other_makers.others(question):
        description = f"torch {row.torch}, CUDA {row.cuda}; lacks {row.lacks}"
        yield row.maker, description, other_makers.install(row, question)


def _release(answer: CardAnswer | CpuAnswer) -> str:
    if answer.wheel is None:
        return ""
    if isinstance(answer, CardAnswer) and answer.wheel:
        return f"torch {answer.wheel.torch}, CUDA {answer.wheel.cuda}"
    return f"torch {answer.wheel.torch}, for CPUs"


def _print(detected: Detected) -> None:
    """Print what was found, the line to copy first."""
    if detected.first:
        text, line = detected.first
        show.prose(f"{text}:")
        show.say(f"  {line}")
        print()
    _print_machine(detected.readings)
    print()
    _print_recommendation(detected.recommendation)
    if detected.newer:
        show.prose(f"newer ones of PyTorch: {detected.newer}")
    for maker, description, install in detected.elsewhere:
        show.prose(f"{maker}: {description}")
        show.say(f"  {install}")
    if detected.recommendation.pip:
        print()
        show.say(detected.recommendation.pip)


def _print_recommendation(recommendation: Recommendation) -> None:
    rows = [("variant", recommendation.variant or "none")]
    if recommendation.channel:
        rows.append(("channel", recommendation.channel))
    if recommendation.state:
        rows.append(("wheel", recommendation.state))
    for test in recommendation.tests:
        rows.append(("tested", test))
    show.table("", ("the farm's wheel for it", ""), rows, show.SCREEN)
    for text in recommendation.reasons:
        _print_line("why", text)
    for text in recommendation.warnings:
        _print_line("warning", text)


def _print_line(kind: str, text: str) -> None:
    """Print a reason; a command at its end on a line of its own, to be copied."""
    words, command, options = text.partition(" farm submit ")
    show.prose(f"{kind}: {words}")
    if command:
        show.say(f"  farm submit {options}")


def _print_machine(readings: Readings) -> None:
    cpu = readings.cpu
    system = readings.os
    system_text = f"{system.name} {system.version}"
    if system.libc:
        system_text += f", {system.libc}"
    cpu_text = ", ".join(filter(None, (cpu.name, cpu.microarchitecture, cpu.machine)))
    rows = [("system", system_text), ("CPU", cpu_text)]
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
        rows.append((f"Python {dotted_python(python.name)}", python.path))
    for item in readings.missing:
        rows.append(("not read", f"{item.what}: {item.why}"))
    show.table("", ("this machine", ""), rows, show.SCREEN)
