"""`farm why --official`: whether PyTorch's own wheels run on a card, and who else has one."""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import FarmError
from farm.catalog import gpus, paste
from farm.catalog.gpus import is_integrated
from farm.cli import official_cpu, show
from farm.cli.official_request import Request, platform_of, read_request, refuse_options
from farm.cli.selection import folder_of
from farm.cli.wheel_lines import (
    build_document,
    driver_range,
    print_builds,
    underscored,
    wheel_facts,
)
from farm.plan.compat import official, official_wheels, other_makers
from farm.plan.compat.answer import Question
from farm.plan.compat.official import CardAnswer
from farm.plan.compat.other_makers import Maker, MakerBeside
from farm.plan.recommend import FarmBuild, buildable_here, machine_of
from farm.plan.variant import Variant

EXIT_CODES = {"yes": 0, "no": 3, "not known": 2}
"""By the verdict: nothing that upstream publishes runs on the cards is 3."""
MAX_PASTE = 100_000
MAX_BUILDS = 3
"""Builds of one's own that fit on one screen; one fewer where other makers are listed, too."""


@dataclass(frozen=True)
class OfficialAnswer:
    """What PyTorch, other makers and the farm have for the cards.

    Attributes:
        request: The question.
        answer: The best wheel of PyTorch for it.
        newest: The best wheel where the release and the CUDA are left open.
        others: Builds of other makers, each with the line that installs it.
        builds: Builds of one's own.
        builds_driver: The drivers that `builds` need, where the one that was named runs none.
        no_build: Why nobody can build a wheel of their own for the cards.
    """

    request: Request
    answer: CardAnswer
    newest: CardAnswer
    others: tuple[tuple[Maker, str], ...]
    builds: tuple[FarmBuild, ...]
    builds_driver: str | None
    no_build: str | None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.answer.verdict]

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        question = self.request.question
        read = None
        if self.request.pasted:
            read = self.request.pasted.summary()
        source = None
        if self.answer.wheel:
            source = official_wheels.source(self.answer.wheel)
        builds: Sequence[FarmBuild] = self.builds
        if self.builds_driver:
            builds = ()
        return {
            "gpus": [name for name, _ in self.request.cards],
            "sms": [f"sm{sm}" for sm in question.sms],
            "platform": question.platform,
            "read": read,
            "notes": list(self.request.notes),
            "answer": self.answer.to_json() | {"source": source},
            "newest": self.newest.to_json(),
            "others": list(itertools.starmap(_maker_document, self.others)),
            "own": list(map(build_document, builds)),
            "no_variant": self.no_build,
        }


def _maker_document(row: Maker, line: str) -> dict[str, Any]:
    document = show.fields(row, "maker", "torch", "cuda", "has", "lacks", "unconfirmed")
    return {**document, "install": line, "source": other_makers.makers().sources[row.source]}


def run_official(args: argparse.Namespace) -> int:
    """Answer with a pip line, or with who else has a wheel.

    Returns:
        0 if a wheel of PyTorch runs on the cards, 3 if none does, 2 if that is not known.
    """
    refuse_options(args)
    pasted = None
    if args.gpu == ["-"]:
        pasted = paste.read(sys.stdin.read(MAX_PASTE))
    project = folder_of(args)
    if official_cpu.is_asked(args, pasted):
        question = official_cpu.question_of(args, pasted, platform=platform_of(args, pasted))
        return official_cpu.answer(args, question, pasted, project)
    answer = answer_of(read_request(args, pasted), project)
    if args.json:
        show.json_document(answer.to_json())
    else:
        _print(answer, verbose=args.verbose)
    return answer.exit_code


def answer_of(request: Request, project: Path) -> OfficialAnswer:
    """Find what PyTorch, other makers and the channels of a project have for the cards."""
    question = request.question
    open_question = replace(question, torch=None, cuda=None)
    rows = other_makers.others(question) or other_makers.others(open_question)
    for_project = own_builds(project, question, request.variant)
    return OfficialAnswer(
        request=request,
        answer=official.best(question),
        newest=official.best(open_question),
        others=tuple((row, other_makers.install(row, question)) for row in rows),
        builds=tuple(for_project.builds),
        builds_driver=for_project.driver,
        no_build=for_project.why_none,
    )


@dataclass(frozen=True)
class OwnBuilds:
    """Builds of one's own for the cards; `driver` where they need another one than is there."""

    builds: Sequence[FarmBuild] = ()
    driver: str | None = None
    why_none: str | None = None


def own_builds(project: Path, question: Question, variant: Variant | None) -> OwnBuilds:
    """Find the builds of a project's channels for the cards, or why nobody can build one."""
    for sm in question.sms:
        reason = gpus.without_variant(sm)
        if reason:
            return OwnBuilds(why_none=reason)
    builds = _builds(project, question, variant)
    if builds:
        return OwnBuilds(builds)
    if question.driver:
        builds = _builds(project, replace(question, driver=None), variant)
        driver = _drivers_for(builds, question.sms)
        if driver:
            return OwnBuilds(builds, driver=driver)
    if any(map(is_integrated, question.sms)):
        return OwnBuilds(why_none=gpus.jetson_note())
    return OwnBuilds()


def _builds(project: Path, question: Question, variant: Variant | None) -> list[FarmBuild]:
    cpu = None
    if variant:
        cpu = variant.cpu
    machine = machine_of(question.sms, question.platform, question.python, cpu, question.driver)
    try:
        return buildable_here(project, machine)
    except FarmError:
        # A matrix that cannot be read: the answer about upstream is right without it.
        return []


def _drivers_for(builds: Sequence[FarmBuild], sms: Sequence[int]) -> str | None:
    """The drivers that run a build, up to the last one for the cards."""
    floors = [build.driver for build in builds if build.driver]
    if not floors:
        return None
    return driver_range(min(floors, key=catalog.number), sms)


def headline(request: Request, answer: CardAnswer) -> str:
    """Say yes or no in one sentence."""
    question = request.question
    wheel = answer.wheel
    which = ""
    if question.torch:
        which += f" of torch {question.torch}"
    if question.cuda:
        which += f" with CUDA {question.cuda}"
    if answer.unknown:
        return f"not known: {answer.unknown}"
    if wheel is None:
        return (
            f"no: none of PyTorch's own wheels{which} in the catalogue has code for {request.named}"
        )
    if answer.runs:
        return (
            f"yes: PyTorch's own wheel of torch {wheel.torch} with CUDA {wheel.cuda} runs on "
            f"{request.named}"
        )
    if answer.lost:
        return (
            f"no: no wheel{which} has code for all of {request.named}; torch {wheel.torch} leaves "
            f"out {underscored(answer.lost)}"
        )
    return f"no: {answer.problem}"


def _print(result: OfficialAnswer, *, verbose: bool) -> None:
    """Print an answer for a person: the line to copy, then who else has a wheel."""
    request = result.request
    answer = result.answer
    if request.pasted:
        show.prose(f"read: {request.pasted.summary()}")
    for note in request.notes:
        show.prose(f"note: {note}")
    show.prose(headline(request, answer))
    if answer.update and not answer.lost:
        show.prose(f"  another driver is enough: {answer.update}")
    _print_wheel(answer, verbose=verbose)
    _print_newer(result)
    if verbose or not _is_enough(result):
        _print_others(result, verbose=verbose)


def _print_newer(result: OfficialAnswer) -> None:
    """Print why newer wheels do not run, and the newest that runs if this one does not."""
    question = result.request.question
    answer = result.answer
    if answer.runs and answer.wheel:
        reason = official.why_not_newer(question, answer.wheel)
        if reason:
            show.prose(f"  newer ones: {reason}")
    for text in _announcements(question, answer):
        show.prose(f"  {text}")
    newest = result.newest
    if not answer.runs and newest.runs and newest.wheel:
        show.say(f"the newest that runs: torch {newest.wheel.torch} with CUDA {newest.wheel.cuda}")
        show.say(f"  {newest.wheel.pip}")


def _is_enough(result: OfficialAnswer) -> bool:
    """True where what others have would only hide the answer."""
    if result.answer.runs:
        return not result.answer.without
    return bool(result.answer.unknown) and result.newest.runs


def _print_others(result: OfficialAnswer, *, verbose: bool) -> None:
    """Print the wheels of other makers, and builds of one's own."""
    for row, line in result.others:
        about = f"{row.maker}: torch {row.torch}, CUDA {row.cuda}; {row.has}; lacks {row.lacks}"
        show.prose(f"{about} (not confirmed: {row.unconfirmed})")
        show.say(f"  {line}")
    _print_makers_beside(other_makers.makers_beside(result.request.question), verbose=verbose)
    if result.builds_driver:
        show.say(f"with driver {result.builds_driver}:")
    builds = result.builds
    if not verbose:
        builds = builds[: _room_for_builds(result)]
    print_builds(builds, result.no_build)


def _room_for_builds(result: OfficialAnswer) -> int:
    if result.answer.runs:
        return 1
    return MAX_BUILDS - bool(result.others)


def _print_makers_beside(makers: Sequence[MakerBeside], *, verbose: bool) -> None:
    """Print who makes packages that go with torch: by name, or with what each has and lacks."""
    if makers and not verbose:
        names = ", ".join(maker.maker for maker in makers)
        show.prose(f"made for use with torch, by {names}: --verbose shows what they have and lack")
        return
    for maker in makers:
        show.prose(
            f"made for use with torch, by {maker.maker}: {maker.has}; lacks {maker.lacks} "
            f"(not confirmed: {maker.unconfirmed})"
        )


def _print_wheel(answer: CardAnswer, *, verbose: bool) -> None:
    wheel = answer.wheel
    if wheel is None:
        return
    show.say(f"  {wheel.pip}")
    show.prose(f"  {wheel_facts(wheel)}; driver {answer.drivers}")
    for text in answer.without:
        show.prose(f"  without {text}")
    for text in answer.but:
        show.prose(f"  but: {text}")
    if verbose:
        sms = ", ".join(map(str, wheel.sm))
        show.prose(f"  code for sm {sms}; source: {official_wheels.source(wheel)}")


def _announcements(question: Question, answer: CardAnswer) -> Iterator[str]:
    """Upstream's own words about dropping the cards."""
    ends = []
    for sm in question.sms:
        end = official_wheels.end_of_support(sm)
        if end and end not in ends:
            ends.append(end)
            yield f"the end: {end.text} ({end.source}); newer releases: builds of your own"
    if answer.runs or not question.cuda:
        return
    for sm in question.sms:
        dropped = official_wheels.left_behind(question.torch or "99", question.cuda, sm)
        if dropped and dropped not in ends:
            yield f"{dropped.text} ({dropped.source})"
