"""`farm why --official`: whether PyTorch's own wheels run on a card, and who else has one."""

import argparse
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

from farm import catalog
from farm.base.errors import FarmError, UsageError
from farm.base.project import find_project
from farm.catalog import gpus
from farm.catalog.gpus import is_integrated
from farm.cli import show
from farm.cli.cards import sm_of
from farm.plan.compat import official
from farm.plan.compat.official import Answer, Question
from farm.plan.compat.stack import parse_glibc
from farm.plan.options import OPTIONS, from_environment
from farm.plan.recommend import FarmBuild, buildable_here, machine_of
from farm.plan.variant import Variant, python_word

EXIT_CODES = {"yes": 0, "no": 3, "not known": 2}
"""By the verdict: nothing that upstream publishes runs on the cards is 3."""
MAX_PASTE = 100_000
MAX_OWN = 3
"""Builds of one's own that an answer of one screen has room for; one fewer beside those of others.
"""
_BUILDS_ALONE = ("channel", "numpy", "arch_list", "msvc", "gcc")


def run_official(args: argparse.Namespace) -> int:
    """Answer with a pip line, or with who else has a wheel."""
    _refuse_options(args)
    if args.gpu == ["-"]:
        _read_paste(args)
    if not args.gpu:
        raise UsageError(
            "--official asks about a card: name it with --gpu",
            hint="an example: --gpu 'GTX 1080 Ti'",
        )
    variant = Variant.parse(args.variant) if args.variant else None
    question = _question(args, variant)
    answer = official.best(question)
    anything = replace(question, torch=None, cuda=None)
    newest = official.best(anything)
    rows = official.others(question) or official.others(anything)
    others = [(row, official.install(row, question)) for row in rows]
    missing = next((why for sm in question.sms if (why := gpus.without_variant(sm))), None)
    own = [] if missing else _own(args, question, variant)
    if not own and any(is_integrated(sm) for sm in question.sms):
        known = catalog.architectures().jetson
        missing = (
            missing or f"on Jetson boards they run from CUDA {known.cuda} on, with {known.system}"
        )
    if args.json:
        document = {
            "gpus": args.gpu,
            "sms": [f"sm{sm}" for sm in question.sms],
            "platform": question.platform,
        }
        document["answer"] = answer.to_json() | {
            "source": official.source(answer.wheel) if answer.wheel else None
        }
        document["newest"] = newest.to_json()
        document["others"] = [
            show.fields(row, "maker", "torch", "cuda", "has", "lacks", "unconfirmed")
            | {"install": line, "source": official.makers().sources[row.source]}
            for row, line in others
        ]
        document["own"] = [
            show.fields(each, "words", "torch", "cuda", "cost") | {"proved": each.proved or None}
            for each in own
        ]
        show.json_document(document | {"no_variant": missing})
    else:
        _print_official(args, question, answer, newest)
        # Beside a plain yes they would only hide it.
        settled = answer.runs and not answer.without
        if (settled or (answer.unknown and newest.runs)) and not args.verbose:
            return EXIT_CODES[answer.verdict]
        for row, line in others:
            about = f"{row.maker}: torch {row.torch}, CUDA {row.cuda}; {row.has}; lacks {row.lacks}"
            show.prose(f"{about} (not confirmed: {row.unconfirmed})")
            show.say(f"  {line}")
        if not own and question.driver and not missing:
            own = _own(args, replace(question, driver=None), variant)
            if floors := [text for each in own if (text := each.driver)]:
                cards = (
                    catalog.architectures().architectures.get(f"sm{sm}") for sm in question.sms
                )
                last = min(
                    (card.last_driver for card in cards if card and card.last_driver), default=None
                )
                end = f", up to branch {last}" if last else ""
                show.say(f"with driver {min(floors, key=catalog.number)} or newer{end}:")
        limit = 1 if answer.runs else MAX_OWN - bool(others)
        print_builds(own if args.verbose else own[:limit], missing)
    return EXIT_CODES[answer.verdict]


def _read_paste(args: argparse.Namespace) -> None:
    """The cards and the driver in what `nvidia-smi` or `lspci` printed, from standard input."""
    pasted = gpus.read_paste(sys.stdin.read(MAX_PASTE))
    if not pasted.cards:
        hint = "nvidia-smi -L | farm why --official --gpu -"
        raise UsageError(
            pasted.problem or "no card is named in the text on standard input", hint=hint
        )
    args.gpu = list(pasted.cards)
    args.driver = args.driver or pasted.driver


def _refuse_options(args: argparse.Namespace) -> None:
    """Refuse options about a build, not about wheels that others publish; take release and CUDA of
    the environment.
    """
    names = [*_BUILDS_ALONE, *(name for name in OPTIONS if name not in ("torch", "cuda"))]
    given = [name for name in names if getattr(args, name, None) is not None]
    for name, choice in from_environment(os.environ).items():
        if name not in ("torch", "cuda"):
            raise UsageError(
                f"{choice.origin}: about a build of your own, not about PyTorch's wheels",
                hint="unset it",
            )
        if getattr(args, name) is None:
            setattr(args, name, choice.value)
    switches = [name.removeprefix("USE_").lower() for name in catalog.switches()]
    given += [name for name in switches if getattr(args, name, None) is not None]
    if args.package != "torch":
        given.append("package")
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(
            f"{flags}: about a build of your own, not about PyTorch's wheels",
            hint="leave it out, or ask about a build: farm why --variant GPU-CPU-PYTHON …",
        )


def _question(args: argparse.Namespace, variant: Variant | None) -> Question:
    """A question in the catalogue's words."""
    sms = tuple(
        dict.fromkeys(sm_of(name, variant.architectures if variant else ()) for name in args.gpu)
    )
    machines = {
        gpus.machine(name, sm_of(name, ())) if not variant else variant.machine for name in args.gpu
    }
    if len(machines) > 1:
        raise UsageError(
            f"no machine has all of {', '.join(args.gpu)}: some sit beside Arm cores alone"
        )
    where = f"{args.platform}-{machines.pop()}"
    if where not in official.PLATFORMS:
        raise UsageError(
            f"PyTorch publishes no CUDA wheels for {where}", hint="--platform linux or windows"
        )
    torch, cuda = _versions(args.torch, args.cuda)
    return Question(
        sms,
        where,
        args.driver,
        _python(args.python) or (variant.python if variant else None),
        torch,
        cuda,
        parse_glibc(args.glibc) if args.glibc else None,
        _cpu(args.cpu) or (variant.cpu if variant else None),
    )


def _cpu(name: str | None) -> str | None:
    """The CPU level that was asked about."""
    if name is not None and name not in catalog.cpu_levels():
        raise UsageError(
            f"{name!r} is no CPU level", hint=f"known: {', '.join(catalog.cpu_levels())}"
        )
    return name


def _versions(torch: str | None, cuda: str | None) -> tuple[str | None, str | None]:
    """Release and CUDA: `2.8`, `2.8.0+cu128` as `torch.__version__` prints it, `12.8`, `cu128`."""
    release, _, label = (torch or "").partition("+")
    named = [text for text in (label, cuda) if text]
    spelled = [re.sub(r"^cu(\d+)(\d)$", r"\1.\2", text.strip().lower()) for text in named]
    if "cpu" in spelled:
        raise UsageError(
            "a wheel +cpu runs on no card: ask for one with CUDA", hint=f"--torch {release}"
        )
    known = catalog.toolkits()
    for text in spelled:
        if catalog.find(known, text) is None:
            raise UsageError(
                f"CUDA {text!r} is not in the catalogue", hint=catalog.known(known, text)
            )
    cudas = {catalog.find(known, text) for text in spelled}
    if len(cudas) > 1:
        raise UsageError(
            f"--torch {torch} and --cuda {cuda} name two CUDAs", hint="give one of them"
        )
    releases = catalog.torch_releases()
    found = catalog.find(releases, release) if release else None
    if release and found is None:
        raise UsageError(
            f"torch {release} is not in the catalogue", hint=catalog.known(releases, release)
        )
    return found, next(iter(cudas), None)


def _python(name: str | None) -> str | None:
    """The Python that was asked for, also as 3.12, cp312 or python3.12."""
    known = {
        word for release in catalog.torch_releases().values() for word in release.pythons.linux
    }
    if name is None:
        return None
    if (word := python_word(name)) in known:
        return word
    names = sorted(known, key=lambda word: (int(word[3:].removesuffix("t")), word))
    raise UsageError(
        f"no PyTorch in the catalogue has wheels for {name!r}", hint=f"known: {', '.join(names)}"
    )


def _own(args: argparse.Namespace, question: Question, variant: Variant | None) -> list[FarmBuild]:
    cpu = variant.cpu if variant else None
    machine = machine_of(question.sms, question.platform, question.python, cpu, question.driver)
    try:
        return buildable_here(find_project(args.project or Path.cwd()), machine)
    except (
        FarmError
    ):  # no project, or a matrix that cannot be read: the answer about upstream stands without it
        return []


def _print_official(
    args: argparse.Namespace, question: Question, answer: Answer, newest: Answer
) -> None:
    cards = " and ".join(_named(name, sm) for name, sm in zip(args.gpu, question.sms, strict=False))
    wheel = answer.wheel
    which = f" of torch {question.torch}" if question.torch else ""
    which += f" with CUDA {question.cuda}" if question.cuda else ""
    if answer.unknown:
        show.prose(f"not known: {answer.unknown}")
    elif wheel is None:
        show.prose(f"no: none of PyTorch's own wheels{which} in the catalogue has code for {cards}")
    elif answer.runs:
        show.prose(
            f"yes: PyTorch's own wheel of torch {wheel.torch} with CUDA {wheel.cuda} runs on "
            f"{cards}"
        )
    elif answer.lost:
        lost = ", ".join(f"sm_{sm}" for sm in answer.lost)
        show.prose(
            f"no: no wheel{which} has code for all of {cards}; torch {wheel.torch} leaves out "
            f"{lost}"
        )
    else:
        show.prose(f"no: {answer.problem}")
        if answer.update:
            show.prose(f"  another driver is enough: {answer.update}")
    if wheel:
        show.say(f"  {wheel.pip}")
        glibc = f", glibc {wheel.glibc} or newer" if wheel.glibc else ""
        pythons = " ".join(f"{word[2]}.{word[3:]}" for word in wheel.pythons)
        show.prose(f"  {wheel.platform}{glibc}; Python {pythons}; driver {answer.drivers}")
        for text in answer.without:
            show.prose(f"  without {text}")
        for text in answer.but:
            show.prose(f"  but: {text}")
        if args.verbose:
            show.prose(
                f"  code for sm {', '.join(map(str, wheel.sm))}; source: {official.source(wheel)}"
            )
    if answer.runs and wheel and (reason := official.why_not_newer(question, wheel)):
        show.prose(f"  newer ones: {reason}")
    ends = {end.text: end for sm in question.sms if (end := official.end_of_support(sm))}
    for end in ends.values():
        show.prose(f"  the end: {end.text} ({end.source}); newer releases: builds of your own")
    for sm in question.sms:
        if question.cuda:
            left = official.left_behind(question.torch or "99", question.cuda, sm)
        else:
            left = None
        if left and not answer.runs and left != official.end_of_support(sm):
            show.prose(f"  {left.text} ({left.source})")
    if not answer.runs and newest.runs and newest.wheel:
        show.say(f"the newest that runs: torch {newest.wheel.torch} with CUDA {newest.wheel.cuda}")
        show.say(f"  {newest.wheel.pip}")


def _named(name: str, sm: int) -> str:
    """A card with its SM; with all of them where it was sold with several, all too old."""
    chips = sorted({card.sm for card in gpus.find(name)})
    either = " or ".join(chip.replace("sm", "sm_") for chip in chips)
    return (
        f"{name} ({either if len(chips) > 1 and f'sm{sm}' in gpus.gpus().too_old else f'sm_{sm}'})"
    )


def print_builds(own: list[FarmBuild], missing: str | None) -> None:
    """Builds of one's own, each with the command that makes it."""
    if missing:
        show.prose(f"no wheel of your own either: {missing}")
    for each in own:
        lost = "".join(f"; no code for sm_{sm}" for sm in each.lost)
        show.prose(f"of your own: {each.release} ({each.standing}; {each.cost}{lost})")
        show.say(f"  farm submit {each.words}")
