"""`farm why --official`: whether PyTorch's own wheels run on a card, and who else has one."""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import FarmError, UsageError
from farm.base.project import find_project
from farm.catalog import gpus, paste
from farm.catalog.gpus import is_integrated
from farm.catalog.paste import Pasted, PastedCard
from farm.cli import official_cpu, show
from farm.cli.cards import sm_of
from farm.plan.compat import official
from farm.plan.compat.official import Answer, Maker, Question
from farm.plan.compat.stack import parse_glibc
from farm.plan.options import OPTIONS, from_environment
from farm.plan.recommend import FarmBuild, buildable_here, machine_of
from farm.plan.variant import Variant, python_word
from farm.platforms.facts import DEFAULT

EXIT_CODES = {"yes": 0, "no": 3, "not known": 2}
"""By the verdict: nothing that upstream publishes runs on the cards is 3."""
MAX_PASTE = 100_000
MAX_BUILDS = 3
"""Builds of one's own that fit on one screen; one fewer where other makers are listed, too."""
_BUILDS_ALONE = ("channel", "numpy", "arch_list", "msvc", "gcc")


@dataclass(frozen=True)
class Request:
    """What was asked: the cards, each with its SM, and the question in the catalogue's words."""

    cards: tuple[tuple[str, int], ...]
    question: Question
    variant: Variant | None = None
    pasted: Pasted | None = None
    notes: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The cards with their SMs, as a sentence names them."""
        return " and ".join(named(name, sm) for name, sm in self.cards)


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
    answer: Answer
    newest: Answer
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
        source = official.source(wheel) if wheel else None
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
                | {"install": line, "source": official.makers().sources[row.source]}
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
    _refuse_options(args)
    pasted = paste.read(sys.stdin.read(MAX_PASTE)) if args.gpu == ["-"] else None
    project = find_project(args.project or Path.cwd())
    if official_cpu.is_asked(args, pasted):
        question = official_cpu.question_of(args, pasted, platform=_platform(args, pasted))
        return official_cpu.answer(args, question, pasted, project)
    answer = answer_of(_request(args, pasted), project)
    if args.json:
        show.json_document(answer.to_json())
    else:
        _print(answer, verbose=args.verbose)
    return answer.exit_code


def answer_of(request: Request, project: Path) -> OfficialAnswer:
    """Find what PyTorch, other makers and the channels of a project have for the cards."""
    question = request.question
    open_question = replace(question, torch=None, cuda=None)
    rows = official.others(question) or official.others(open_question)
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
        others=tuple((row, official.install(row, question)) for row in rows),
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


# --- the request ---


def _request(args: argparse.Namespace, pasted: Pasted | None) -> Request:
    """The question that the arguments, and a pasted text, ask."""
    if pasted and not pasted.cards:
        hint = "nvidia-smi -L | farm why --official --gpu -"
        problem = pasted.problem or "no card is named in the text on standard input"
        raise UsageError(problem, hint=hint)
    if not args.gpu:
        raise UsageError(
            "--official asks about a card or a CPU: name it with --gpu or --cpu",
            hint="an example: --gpu 'GTX 1080 Ti', or --cpu avx",
        )
    variant = Variant.parse(args.variant) if args.variant else None
    torch, cuda = _versions(args.torch, args.cuda)
    python = _python(args.python) or (variant.python if variant else None)
    request = request_of(
        pasted.cards if pasted else [PastedCard(name) for name in args.gpu],
        _platform(args, pasted),
        driver=args.driver or (pasted.driver if pasted else None),
        python=python or (_python_of_paste(pasted) if pasted else None),
        glibc=parse_glibc(args.glibc) if args.glibc else (pasted.glibc if pasted else None),
        cpu=_cpu(args.cpu) or (pasted.cpu if pasted else None),
        machine=pasted.machine if pasted else None,
        variant=variant,
        skip_unknown=pasted is not None,
    )
    return replace(
        request,
        question=replace(request.question, torch=torch, cuda=cuda),
        pasted=pasted,
        notes=(*(pasted.notes if pasted else ()), *request.notes),
    )


def _platform(args: argparse.Namespace, pasted: Pasted | None) -> str:
    """The system that was asked about: that of a pasted text unless --platform is given."""
    if pasted and pasted.platform and "--platform" not in _option_names(args.words):
        return pasted.platform
    return str(args.platform)


def _option_names(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def request_of(
    cards: Sequence[PastedCard],
    platform: str,
    *,
    driver: str | None = None,
    python: str | None = None,
    glibc: str | None = None,
    cpu: str | None = None,
    machine: str | None = None,
    variant: Variant | None = None,
    skip_unknown: bool = False,
) -> Request:
    """Turn names of cards into a question.

    Args:
        cards: Names, or SMs, of the cards that one wheel must run on.
        platform: The system of the machine.
        driver: The installed driver.
        python: The Python, such as `py311`.
        glibc: The version of the C library; it counts on Linux alone.
        cpu: The CPU level.
        machine: `x86_64` or `aarch64`; None: the one that such cards are in.
        variant: The variant that decides between the chips of a name, and the machine.
        skip_unknown: Leave unknown cards out, with a note, where another one is known.

    Raises:
        UsageError: No card is known, or no machine has all of them.
    """
    architectures = variant.architectures if variant else ()
    named_cards: list[tuple[str, int]] = []
    machines: set[str] = set()
    errors: list[UsageError] = []
    for card in cards:
        try:
            sm = sm_of(card.name if card.sm is None else f"sm_{card.sm}", architectures)
        except UsageError as error:
            errors.append(error)
            continue
        named_cards.append((card.name, sm))
        usual = gpus.machine(card.name, sm)
        machines.add(usual if usual == "aarch64" else machine or usual)
    if errors and not (skip_unknown and named_cards):
        raise errors[0]
    if variant:
        machines = {variant.machine}
    if len(machines) > 1:
        names = ", ".join(card.name for card in cards)
        raise UsageError(f"no machine has all of {names}: some sit beside Arm cores alone")
    where = f"{platform}-{machines.pop()}"
    if where not in official.PLATFORMS:
        raise UsageError(
            f"PyTorch publishes no CUDA wheels for {where}", hint="--platform linux or windows"
        )
    sms = tuple(dict.fromkeys(sm for _, sm in named_cards))
    notes = tuple(f"Left out: {error}." for error in errors)
    question = Question(
        sms=sms,
        platform=where,
        driver=driver,
        python=python,
        glibc=glibc if platform == DEFAULT else None,
        cpu=cpu or (variant.cpu if variant else None),
    )
    return Request(tuple(named_cards), question, variant, notes=notes)


def _cpu(name: str | None) -> str | None:
    """The CPU level that was asked about."""
    if name is not None and name not in catalog.cpu_levels():
        raise UsageError(
            f"{name!r} is no CPU level", hint=f"known: {', '.join(catalog.cpu_levels())}"
        )
    return name


def _python_of_paste(pasted: Pasted) -> str | None:
    """The Python of a pasted text; none that no release of PyTorch is for."""
    return pasted.python if pasted.python in _pythons() else None


def _refuse_options(args: argparse.Namespace) -> None:
    """Refuse options about a build, not about wheels that others publish; take release and CUDA of
    the environment.
    """
    names = [*_BUILDS_ALONE, *(name for name in OPTIONS if name not in ("torch", "cuda"))]
    used = [name for name in names if getattr(args, name, None) is not None]
    for name, choice in from_environment(os.environ).items():
        if name not in ("torch", "cuda"):
            raise UsageError(
                f"{choice.origin}: about a build of your own, not about PyTorch's wheels",
                hint="unset it",
            )
        if getattr(args, name) is None:
            setattr(args, name, choice.value)
    switches = [name.removeprefix("USE_").lower() for name in catalog.switches()]
    used += [name for name in switches if getattr(args, name, None) is not None]
    if args.package != "torch":
        used.append("package")
    if used:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in used)
        raise UsageError(
            f"{flags}: about a build of your own, not about PyTorch's wheels",
            hint="leave it out, or ask about a build: farm why --variant GPU-CPU-PYTHON …",
        )


def _versions(torch: str | None, cuda: str | None) -> tuple[str | None, str | None]:
    """Release and CUDA: `2.8`, `2.8.0+cu128` as `torch.__version__` prints it, `12.8`, `cu128`."""
    release, _, label = (torch or "").partition("+")
    version_texts = [text for text in (label, cuda) if text]
    spelled = [re.sub(r"^cu(\d+)(\d)$", r"\1.\2", text.strip().lower()) for text in version_texts]
    if "cpu" in spelled:
        raise UsageError(
            "a wheel +cpu runs on no card: ask for one with CUDA", hint=f"--torch {release}"
        )
    toolkits = catalog.toolkits()
    for text in spelled:
        if catalog.find(toolkits, text) is None:
            raise UsageError(
                f"CUDA {text!r} is not in the catalogue", hint=catalog.known(toolkits, text)
            )
    cudas = {catalog.find(toolkits, text) for text in spelled}
    if len(cudas) > 1:
        raise UsageError(
            f"--torch {torch} and --cuda {cuda} name two CUDAs", hint="give one of them"
        )
    releases = catalog.torch_releases()
    torch_release = catalog.find(releases, release) if release else None
    if release and torch_release is None:
        raise UsageError(
            f"torch {release} is not in the catalogue", hint=catalog.known(releases, release)
        )
    return torch_release, next(iter(cudas), None)


def _python(name: str | None) -> str | None:
    """The Python that was asked for, also as 3.12, cp312 or python3.12."""
    if name is None:
        return None
    if (word := python_word(name)) in _pythons():
        return word
    names = sorted(_pythons(), key=lambda word: (int(word[3:].removesuffix("t")), word))
    raise UsageError(
        f"no PyTorch in the catalogue has wheels for {name!r}", hint=f"known: {', '.join(names)}"
    )


def _pythons() -> set[str]:
    """The Pythons that some release of PyTorch has wheels for."""
    releases = catalog.torch_releases().values()
    return {word for release in releases for word in release.pythons.linux}


# --- printing ---


def headline(request: Request, answer: Answer) -> str:
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
    for maker in official.makers_beside(result.request.question):
        show.prose(
            f"beside torch, {maker.maker}: {maker.has}; lacks {maker.lacks} (not confirmed: "
            f"{maker.unconfirmed})"
        )
    if result.builds_driver:
        show.say(f"with driver {result.builds_driver}:")
    room = 1 if answer.runs else MAX_BUILDS - bool(result.others)
    print_builds(result.builds if verbose else result.builds[:room], result.no_build)


def _print_wheel(answer: Answer, *, verbose: bool) -> None:
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
        show.prose(f"  code for sm {sms}; source: {official.source(wheel)}")


def _announcements(question: Question, answer: Answer) -> Iterator[str]:
    """Upstream's own words about dropping the cards."""
    ends = [end for sm in question.sms if (end := official.end_of_support(sm))]
    for text in dict.fromkeys(f"{end.text} ({end.source})" for end in ends):
        yield f"the end: {text}; newer releases: builds of your own"
    if answer.runs or not question.cuda:
        return
    for sm in question.sms:
        dropped = official.left_behind(question.torch or "99", question.cuda, sm)
        if dropped and dropped not in ends:
            yield f"{dropped.text} ({dropped.source})"


def named(name: str, sm: int) -> str:
    """Name a card with its SM; with all of them where it was sold with several, all too old."""
    chips = sorted({card.sm for card in gpus.find(name)})
    if len(chips) > 1 and f"sm{sm}" in gpus.gpus().too_old:
        return f"{name} ({' or '.join(chip.replace('sm', 'sm_') for chip in chips)})"
    return f"{name} (sm_{sm})"


def print_builds(builds: Sequence[FarmBuild], no_build: str | None) -> None:
    """Print builds of one's own, each with the command that makes it."""
    if no_build:
        show.prose(f"no wheel of your own either: {no_build}")
    for build in builds:
        without_code = "".join(f"; no code for sm_{sm}" for sm in build.lost)
        show.prose(f"of your own: {build.release} ({build.standing}; {build.cost}{without_code})")
        show.say(f"  farm submit {build.words}")
