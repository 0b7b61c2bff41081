"""The question of `farm why --official`: from arguments, the environment and pasted text."""

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import gpus
from farm.catalog.paste import Pasted, PastedCard
from farm.cli.cards import sm_of
from farm.cli.official_cpu import glibc_of
from farm.plan.compat import official_wheels
from farm.plan.compat.answer import Question
from farm.plan.options import OPTIONS, from_environment
from farm.plan.variant import Variant, python_word
from farm.platforms.facts import DEFAULT

_BUILDS_ALONE = ("channel", "numpy", "arch_list", "msvc", "gcc")
"""Options about a build alone."""


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


def read_request(args: argparse.Namespace, pasted: Pasted | None) -> Request:
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
    variant = None
    if args.variant:
        variant = Variant.parse(args.variant)
    torch, cuda = _versions(args.torch, args.cuda)
    read = pasted or Pasted(cards=tuple(map(PastedCard, args.gpu)))
    platform = platform_of(args, pasted)
    request = request_of(
        read.cards,
        platform,
        driver=args.driver or read.driver,
        python=_python(args.python, variant, read),
        glibc=glibc_of(args.glibc, read, platform),
        cpu=_cpu(args.cpu) or read.cpu,
        machine=read.machine,
        variant=variant,
        skip_unknown=pasted is not None,
    )
    return replace(
        request,
        question=replace(request.question, torch=torch, cuda=cuda),
        pasted=pasted,
        notes=(*read.notes, *request.notes),
    )


def platform_of(args: argparse.Namespace, pasted: Pasted | None) -> str:
    """The system that was asked about: that of a pasted text unless --platform is given."""
    named_options = {word.partition("=")[0] for word in args.words}
    if pasted and pasted.platform and "--platform" not in named_options:
        return pasted.platform
    return str(args.platform)


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
    architectures: tuple[str, ...] = ()
    if variant:
        architectures = variant.architectures
        cpu = cpu or variant.cpu
    if platform != DEFAULT:
        glibc = None
    named_cards: list[tuple[str, int]] = []
    notes = []
    first_error = None
    for card in cards:
        try:
            named_cards.append((card.name, sm_of(_name_of(card), architectures)))
        except UsageError as error:
            notes.append(f"Left out: {error}.")
            first_error = first_error or error
    if first_error and not (skip_unknown and named_cards):
        raise first_error

    place = f"{platform}-{_machine_of(named_cards, machine, variant)}"
    if place not in official_wheels.PLATFORMS:
        raise UsageError(
            f"PyTorch publishes no CUDA wheels for {place}", hint="--platform linux or windows"
        )
    sms = tuple(dict.fromkeys(sm for _, sm in named_cards))
    question = Question(sms, place, driver=driver, python=python, glibc=glibc, cpu=cpu)
    return Request(tuple(named_cards), question, variant, notes=tuple(notes))


def _name_of(card: PastedCard) -> str:
    """The SM of a card where the text has it, else its name."""
    if card.sm is None:
        return card.name
    return f"sm_{card.sm}"


def _machine_of(
    cards: Sequence[tuple[str, int]], machine: str | None, variant: Variant | None
) -> str:
    """The one machine that has all the cards.

    Raises:
        UsageError: There is none.
    """
    if variant:
        return variant.machine
    machines: set[str] = set()
    for name, sm in cards:
        usual = gpus.machine(name, sm)
        if usual != "aarch64":
            usual = machine or usual
        machines.add(usual)
    if len(machines) > 1:
        names = ", ".join(name for name, _ in cards)
        raise UsageError(f"no machine has all of {names}: some are only built into Arm machines")
    return machines.pop()


def _cpu(name: str | None) -> str | None:
    """The CPU level that was asked about."""
    if name is not None and name not in catalog.cpu_levels():
        raise UsageError(
            f"{name!r} is no CPU level", hint=f"known: {', '.join(catalog.cpu_levels())}"
        )
    return name


def refuse_options(args: argparse.Namespace) -> None:
    """Refuse options about a build, not about wheels that others publish; take release and CUDA of
    the environment.
    """
    for name, choice in from_environment(os.environ).items():
        if name not in ("torch", "cuda"):
            raise UsageError(
                f"{choice.origin}: about a build of your own, not about PyTorch's wheels",
                hint="unset it",
            )
    flags = [f"--{name.replace('_', '-')}" for name in _build_options(args)]
    if flags:
        raise UsageError(
            f"{', '.join(flags)}: about a build of your own, not about PyTorch's wheels",
            hint="leave it out, or ask about a build: farm why --variant GPU-CPU-PYTHON …",
        )
    for name, choice in from_environment(os.environ).items():
        if getattr(args, name) is None:
            setattr(args, name, choice.value)


def _build_options(args: argparse.Namespace) -> Iterator[str]:
    """The options of the command line that are about a build."""
    for name in (*_BUILDS_ALONE, *OPTIONS):
        if name not in ("torch", "cuda") and getattr(args, name, None) is not None:
            yield name
    for switch in catalog.switches():
        name = switch.removeprefix("USE_").lower()
        if getattr(args, name, None) is not None:
            yield name
    if args.package != "torch":
        yield "package"


def _versions(torch: str | None, cuda: str | None) -> tuple[str | None, str | None]:
    """Release and CUDA: `2.8`, `2.8.0+cu128` as `torch.__version__` prints it, `12.8`, `cu128`."""
    release, _, label = (torch or "").partition("+")
    cudas = set()
    for text in filter(None, (label, cuda)):
        number = re.sub(r"^cu(\d+)(\d)$", r"\1.\2", text.strip().lower())
        if number == "cpu":
            raise UsageError(
                "a wheel +cpu runs on no card: ask for one with CUDA", hint=f"--torch {release}"
            )
        cudas.add(_entry(catalog.toolkits(), number, f"CUDA {number!r}"))
    if len(cudas) > 1:
        raise UsageError(
            f"--torch {torch} and --cuda {cuda} name two CUDAs", hint="give one of them"
        )
    torch_release = None
    if release:
        torch_release = _entry(catalog.torch_releases(), release, f"torch {release}")
    return torch_release, next(iter(cudas), None)


def _entry(table: Mapping[str, object], text: str, what: str) -> str:
    """The key of a table of the catalogue that a text stands for."""
    key = catalog.find(table, text)
    if key is None:
        raise UsageError(f"{what} is not in the catalogue", hint=catalog.known(table, text))
    return key


def _python(name: str | None, variant: Variant | None, read: Pasted) -> str | None:
    """The Python that was asked for, also as 3.12, cp312 or python3.12; else the variant's, else
    that of a pasted text.
    """
    pythons = official_wheels.pythons()
    if name is not None:
        word = python_word(name)
        if word in pythons:
            return word
        raise UsageError(
            f"no PyTorch in the catalogue has wheels for {name!r}",
            hint=f"known: {', '.join(pythons)}",
        )
    if variant:
        return variant.python
    if read.python in pythons:
        return read.python
    return None


def named(name: str, sm: int) -> str:
    """Name a card with its SM; with all of them where it was sold with several, all too old."""
    chips = sorted({card.sm for card in gpus.find(name)})
    if len(chips) > 1 and f"sm{sm}" in gpus.gpus().too_old:
        return f"{name} ({' or '.join(chips).replace('sm', 'sm_')})"
    return f"{name} (sm_{sm})"
