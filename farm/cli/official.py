"""`farm why --official`: whether PyTorch's own wheels run on a card, and who else has one."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import FarmError
from farm.base.project import find_project
from farm.catalog import gpus, paste
from farm.catalog.gpus import is_integrated
from farm.cli import official_cpu, show
from farm.cli.official_request import Request, platform_of, read_request, refuse_options
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
        wheel = self.answer.wheel
        source = official_wheels.source(wheel) if wheel else None
        builds = () if self.builds_driver else self.builds
        return {
            "gpus": [name for name, _ in self.request.cards],
            "sms": [f"sm{sm}" for sm in question.sms],
            "platform": question.platform,
            "read": self.request.pasted.summary() if self.request.pasted else None,
            "notes": list(self.request.notes),
            "answer": self.answer.to_json() | {"source": source},
            "newest": self.newest.to_json(),
            "others": [
                show.fields(row, "maker", "torch", "cuda", "has", "lacks", "unconfirmed")
                | {"install": line, "source": other_makers.makers().sources[row.source]}
                for row, line in self.others
            ],
            "own": [
                show.fields(build, "words", "torch", "cuda", "cost")
                | {"proved": build.proved or None}
                for build in builds
            ],
            "no_variant": self.no_build,
        }


def run_official(args: argparse.Namespace) -> int:
    """Answer with a pip line, or with who else has a wheel.

    Returns:
        0 if a wheel of PyTorch runs on the cards, 3 if none does, 2 if that is not known.
    """
    refuse_options(args)
    pasted = paste.read(sys.stdin.read(MAX_PASTE)) if args.gpu == ["-"] else None
    project = find_project(args.project or Path.cwd())
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
    reasons = (gpus.without_variant(sm) for sm in question.sms)
    no_build = next((reason for reason in reasons if reason), None)
    builds: list[FarmBuild] = []
    builds_driver = None
    if no_build is None:
        builds = _builds(project, question, request.variant)
    if no_build is None and not builds and question.driver:
        later = _builds(project, replace(question, driver=None), request.variant)
        builds_driver = _drivers_for(later, question.sms)
        builds = later if builds_driver else []
    if not builds and any(is_integrated(sm) for sm in question.sms):
        no_build = no_build or gpus.jetson_note()
    return OfficialAnswer(
        request=request,
        answer=official.best(question),
        newest=official.best(open_question),
        others=tuple((row, other_makers.install(row, question)) for row in rows),
        builds=tuple(builds),
        builds_driver=builds_driver,
        no_build=no_build,
    )


def _builds(project: Path, question: Question, variant: Variant | None) -> list[FarmBuild]:
    cpu = variant.cpu if variant else None
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
    cards = catalog.architectures().architectures
    lasts = [cards[f"sm{sm}"].last_driver for sm in sms if f"sm{sm}" in cards]
    last = min((branch for branch in lasts if branch), default=None)
    end = f", up to branch {last}" if last else ""
    return f"{min(floors, key=catalog.number)} or newer{end}"


def headline(request: Request, answer: CardAnswer) -> str:
    """Say yes or no in one sentence."""
    question = request.question
    wheel = answer.wheel
    which = f" of torch {question.torch}" if question.torch else ""
    which += f" with CUDA {question.cuda}" if question.cuda else ""
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
        without_code = ", ".join(f"sm_{sm}" for sm in answer.lost)
        return (
            f"no: no wheel{which} has code for all of {request.named}; torch {wheel.torch} leaves "
            f"out {without_code}"
        )
    return f"no: {answer.problem}"


def _print(result: OfficialAnswer, *, verbose: bool) -> None:
    """Print an answer for a person: the line to copy, then who else has a wheel."""
    answer = result.answer
    if result.request.pasted:
        show.prose(f"read: {result.request.pasted.summary()}")
    for note in result.request.notes:
        show.prose(f"note: {note}")
    show.prose(headline(result.request, answer))
    if answer.update and not answer.lost:
        show.prose(f"  another driver is enough: {answer.update}")
    _print_wheel(answer, verbose=verbose)
    reason = (
        official.why_not_newer(result.request.question, answer.wheel)
        if answer.runs and answer.wheel
        else None
    )
    if reason:
        show.prose(f"  newer ones: {reason}")
    for text in _announcements(result.request.question, answer):
        show.prose(f"  {text}")
    newest = result.newest
    if not answer.runs and newest.runs and newest.wheel:
        show.say(f"the newest that runs: torch {newest.wheel.torch} with CUDA {newest.wheel.cuda}")
        show.say(f"  {newest.wheel.pip}")
    plain_yes = answer.runs and not answer.without
    if (plain_yes or (answer.unknown and newest.runs)) and not verbose:
        return  # the rest would only hide it
    for row, line in result.others:
        about = f"{row.maker}: torch {row.torch}, CUDA {row.cuda}; {row.has}; lacks {row.lacks}"
        show.prose(f"{about} (not confirmed: {row.unconfirmed})")
        show.say(f"  {line}")
    _print_makers_beside(other_makers.makers_beside(result.request.question), verbose=verbose)
    if result.builds_driver:
        show.say(f"with driver {result.builds_driver}:")
    room = 1 if answer.runs else MAX_BUILDS - bool(result.others)
    print_builds(result.builds if verbose else result.builds[:room], result.no_build)


def _print_makers_beside(makers: Sequence[MakerBeside], *, verbose: bool) -> None:
    """Print who makes packages beside torch: by name, or with what each has and lacks."""
    if makers and not verbose:
        names = ", ".join(maker.maker for maker in makers)
        show.prose(f"beside torch, {names}: --verbose says what they have and lack")
        return
    for maker in makers:
        show.prose(
            f"beside torch, {maker.maker}: {maker.has}; lacks {maker.lacks} (not confirmed: "
            f"{maker.unconfirmed})"
        )


def _print_wheel(answer: CardAnswer, *, verbose: bool) -> None:
    wheel = answer.wheel
    if wheel is None:
        return
    show.say(f"  {wheel.pip}")
    glibc = f", glibc {wheel.glibc} or newer" if wheel.glibc else ""
    pythons = " ".join(f"{word[2]}.{word[3:]}" for word in wheel.pythons)
    show.prose(f"  {wheel.platform}{glibc}; Python {pythons}; driver {answer.drivers}")
    for text in answer.without:
        show.prose(f"  without {text}")
    for text in answer.but:
        show.prose(f"  but: {text}")
    if verbose:
        sms = ", ".join(map(str, wheel.sm))
        show.prose(f"  code for sm {sms}; source: {official_wheels.source(wheel)}")


def _announcements(question: Question, answer: CardAnswer) -> Iterator[str]:
    """Upstream's own words about dropping the cards."""
    ends = [end for sm in question.sms if (end := official_wheels.end_of_support(sm))]
    for text in dict.fromkeys(f"{end.text} ({end.source})" for end in ends):
        yield f"the end: {text}; newer releases: builds of your own"
    if answer.runs or not question.cuda:
        return
    for sm in question.sms:
        dropped = official_wheels.left_behind(question.torch or "99", question.cuda, sm)
        if dropped and dropped not in ends:
            yield f"{dropped.text} ({dropped.source})"


def print_builds(builds: Sequence[FarmBuild], no_build: str | None) -> None:
    """Print builds of one's own, each with the command that makes it."""
    if no_build:
        show.prose(f"no wheel of your own either: {no_build}")
    for build in builds:
        without_code = "".join(f"; no code for sm_{sm}" for sm in build.lost)
        show.prose(f"of your own: {build.release} ({build.standing}; {build.cost}{without_code})")
        show.say(f"  farm submit {build.words}")
