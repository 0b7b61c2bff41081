"""The question of `farm why --official`: from arguments, the environment and pasted text."""

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import gpus
from farm.catalog.paste import Pasted, PastedCard
from farm.cli.cards import sm_of
from farm.plan.compat import official_wheels
from farm.plan.compat.answer import Question
from farm.plan.compat.stack import parse_glibc
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
    variant = Variant.parse(args.variant) if args.variant else None
    torch, cuda = _versions(args.torch, args.cuda)
    python = _python(args.python) or (variant.python if variant else None)
    request = request_of(
        pasted.cards if pasted else [PastedCard(name) for name in args.gpu],
        platform_of(args, pasted),
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


def platform_of(args: argparse.Namespace, pasted: Pasted | None) -> str:
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
    if where not in official_wheels.PLATFORMS:
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


def refuse_options(args: argparse.Namespace) -> None:
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


def named(name: str, sm: int) -> str:
    """Name a card with its SM; with all of them where it was sold with several, all too old."""
    chips = sorted({card.sm for card in gpus.find(name)})
    if len(chips) > 1 and f"sm{sm}" in gpus.gpus().too_old:
        return f"{name} ({' or '.join(chip.replace('sm', 'sm_') for chip in chips)})"
    return f"{name} (sm_{sm})"
