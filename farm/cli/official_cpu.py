"""`farm why --official` without a card: the newest wheel of PyTorch that a CPU can run."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import FarmError, UsageError
from farm.catalog.paste import Pasted
from farm.cli import show
from farm.cli.wheel_lines import build_document, print_builds, wheel_facts
from farm.plan.compat import official_cpu
from farm.plan.compat.answer import Question
from farm.plan.compat.official_cpu import CpuAnswer
from farm.plan.compat.stack import parse_glibc
from farm.plan.recommend import FarmBuild, Machine, buildable_here
from farm.plan.variant import Variant, python_word
from farm.platforms.facts import DEFAULT, facts

EXIT_CODES = {"yes": 0, "no": 3, "not known": 2}
MAX_BUILDS = 2


def is_asked(args: argparse.Namespace, pasted: Pasted | None) -> bool:
    """True if a question is about a CPU alone: it names one, or a Mac, and no card."""
    if pasted:
        about_a_machine = pasted.cpu is not None or _without_cuda(pasted.platform)
        return not pasted.cards and pasted.problem is None and about_a_machine
    if args.gpu:
        return False
    cpu_alone = bool(args.variant) and not Variant.parse(args.variant).sms
    return cpu_alone or args.cpu is not None or _without_cuda(args.platform)


def _without_cuda(platform: str | None) -> bool:
    """True for a platform on which no NVIDIA card computes."""
    return platform is not None and not facts(platform).cuda


def question_of(args: argparse.Namespace, pasted: Pasted | None, *, platform: str) -> Question:
    """The question about a CPU that the options, else a pasted text, ask.

    Args:
        args: The options of the command.
        pasted: What was read of a text.
        platform: The system of the machine.

    Raises:
        UsageError: A value is unknown, or the kind of Mac.
    """
    if args.cuda or args.driver:
        raise UsageError(
            "a CUDA and a driver are about a card, and none is named",
            hint="name it with --gpu, or leave them out",
        )
    variant = None
    if args.variant:
        variant = Variant.parse(args.variant)
    read = pasted or Pasted()
    cpu = _cpu(args.cpu, variant, read)
    machine = read.machine
    if cpu:
        machine = catalog.cpu_levels()[cpu].machine
    if _without_cuda(platform) and machine is None:
        raise UsageError(
            "Macs have Intel's or Apple's processors, and the answer depends on it",
            hint="--cpu arm64 (Apple), or --cpu avx2 (Intel)",
        )
    return Question(
        sms=(),
        platform=f"{platform}-{facts(platform).machine(machine or 'x86_64')}",
        python=_python(args.python, variant, read),
        torch=_torch(args.torch),
        glibc=glibc_of(args.glibc, read, platform),
        cpu=cpu,
    )


def _cpu(name: str | None, variant: Variant | None, read: Pasted) -> str | None:
    """The level that was named, else the variant's, else that of a pasted text."""
    cpu = name
    if not cpu and variant:
        cpu = variant.cpu
    cpu = cpu or read.cpu
    levels = catalog.cpu_levels()
    if cpu is not None and cpu not in levels:
        raise UsageError(f"{cpu!r} is no CPU level", hint=f"known: {', '.join(levels)}")
    return cpu


def glibc_of(text: str | None, read: Pasted, platform: str) -> str | None:
    """The C library that was named, else that of a pasted text; it counts on Linux alone."""
    glibc = read.glibc
    if text:
        glibc = parse_glibc(text)
    if platform != DEFAULT:
        return None
    return glibc


def _python(name: str | None, variant: Variant | None, read: Pasted) -> str | None:
    if name is not None:
        word = python_word(name)
        if not word:
            raise UsageError(f"{name!r} is no Python", hint="such as: --python py312")
        return word
    if variant:
        return variant.python
    return read.python


def _torch(text: str | None) -> str | None:
    """The release of `2.8`, or of `2.8.0+cpu` as `torch.__version__` prints it."""
    if text is None:
        return None
    releases = catalog.torch_releases()
    release = catalog.find(releases, text.removesuffix("+cpu"))
    if release is None:
        raise UsageError(
            f"torch {text} is not in the catalogue", hint=catalog.known(releases, text)
        )
    return release


def answer(
    args: argparse.Namespace, question: Question, pasted: Pasted | None, project: Path
) -> int:
    """Print the answer to a question about a CPU; 0: yes, 3: no, 2: not known."""
    best = official_cpu.best(question)
    newest = official_cpu.best(Question((), question.platform))
    builds = _builds(project, question)
    if args.json:
        show.json_document(_document(question, pasted, best, newest, builds))
    else:
        _print(question, pasted, best, builds)
    return EXIT_CODES[best.verdict]


def _builds(project: Path, question: Question) -> list[FarmBuild]:
    """Builds of one's own for the CPU, where its level is known."""
    platform, _, machine = question.platform.partition("-")
    if question.cpu is None or machine not in facts(platform).built_on:
        return []
    machine_here = Machine((), (question.cpu,), platform)
    if question.python:
        machine_here = replace(machine_here, pythons=(question.python,))
    try:
        return buildable_here(project, machine_here, limit=MAX_BUILDS)
    except FarmError:  # a matrix that cannot be read: the answer about upstream is right
        return []


def _document(
    question: Question,
    pasted: Pasted | None,
    best: CpuAnswer,
    newest: CpuAnswer,
    builds: list[FarmBuild],
) -> dict[str, Any]:
    source = None
    if best.wheel:
        source = catalog.official().cpu_glibc_source
    summary = None
    notes: list[str] = []
    if pasted:
        summary = pasted.summary()
        notes += pasted.notes
    return {
        "gpus": [],
        "sms": [],
        "platform": question.platform,
        "read": summary,
        "notes": notes,
        "answer": best.to_json() | {"source": source},
        "newest": newest.to_json(),
        "others": [],
        "own": list(map(build_document, builds)),
        "no_variant": None,
    }


def headline(question: Question, best: CpuAnswer) -> str:
    """Say yes or no in one sentence."""
    if best.unknown:
        return f"not known: {best.unknown}"
    if best.problem or best.wheel is None:
        return f"no: {best.problem}"
    cpu = "the CPU"
    if question.cpu:
        cpu = f"a CPU with {question.cpu}"
    return f"yes: PyTorch's own wheel of torch {best.wheel.torch} runs on {cpu}"


def _print(
    question: Question, pasted: Pasted | None, best: CpuAnswer, builds: list[FarmBuild]
) -> None:
    if pasted:
        show.prose(f"read: {pasted.summary()}")
        show.prose("note: no card is named there; this is about the CPU alone")
        for note in pasted.notes:
            show.prose(f"note: {note}")
    show.prose(headline(question, best))
    wheel = best.wheel
    if wheel:
        show.say(f"  {wheel.pip}")
        show.prose(f"  {wheel_facts(wheel)}")
    if best.newer:
        show.prose(f"  newer ones: {best.newer}")
    for text in best.but:
        show.prose(f"  but: {text}")
    if question.cpu in catalog.official().old_cpus or not best.runs:
        print_builds(builds, None)
