"""`farm why --official`: does PyTorch's own wheel run on the cards? If not, who else has one, and the farm's own."""

import argparse
import os
import re
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import catalog
from farm.base.errors import FarmError, UsageError
from farm.catalog import gpus
from farm.catalog.gpus import is_integrated
from farm.cli import show
from farm.plan.compat import official
from farm.plan.compat.official import Answer, Question
from farm.plan.options import OPTIONS, from_environment
from farm.plan.variant import Variant, python_word, sm_number, sm_word

if TYPE_CHECKING:
    from farm.plan.recommend import Own


NO = 3
"""The exit code for "no": nothing that upstream publishes runs on the cards."""
MAX_PASTE = 100_000
MAX_OWN = 3
"""Builds of one's own that an answer of one screen has room for; one fewer beside those of others."""
_BUILDS_ALONE = ("channel", "numpy", "arch_list", "msvc", "gcc")


def run(args: argparse.Namespace) -> int:
    """Answer with a pip line, or with who else has a wheel.

    Raises:
        UsageError: A card, a release or an option is not known, or upstream has nothing for the platform.
    """
    _refuse_options(args)
    if args.gpu == ["-"]:
        _read_paste(args)
    if not args.gpu:
        raise UsageError("--official asks about a card: name it with --gpu", hint="an example: --gpu 'GTX 1080 Ti'")
    variant = Variant.parse(args.variant) if args.variant else None
    question = _question(args, variant)
    answer = official.best(question)
    anything = Question(question.sms, question.platform, question.driver, question.python)
    newest = official.best(anything)
    rows = official.others(question) or official.others(anything)
    others = [(row, official.install(row, question)) for row in rows]
    missing = next((why for sm in question.sms if (why := gpus.without_variant(sm))), None)
    own = [] if missing else _own(args, question, variant)
    if not own and any(is_integrated(sm) for sm in question.sms):
        known = catalog.architectures().jetson
        missing = missing or f"on Jetson boards they run from CUDA {known.cuda} on, with {known.system}"
    if args.json:
        show.json_document(_document(args, question, answer, newest, others, own, missing))
    else:
        _print(args, question, answer, newest)
        # Beside a plain yes they would only hide it.
        if answer.runs and not answer.without and not args.verbose:
            return 0
        for row, line in others:
            about = f"{row.maker}: torch {row.torch}, CUDA {row.cuda}; {row.has}; lacks {row.lacks}"
            show.prose(f"{about} (not confirmed: {row.unconfirmed})")
            show.say(f"  {line}")
        if not own and question.driver and not missing:
            own = _own(args, replace(question, driver=None), variant)
            if floors := [text for each in own if (text := each.driver)]:
                cards = (catalog.architectures().architectures.get(f"sm{sm}") for sm in question.sms)
                last = min((card.last_driver for card in cards if card and card.last_driver), default=None)
                end = f", up to branch {last}" if last else ""
                show.say(f"with driver {min(floors, key=catalog.number)} or newer{end}:")
        print_own(own if args.verbose else own[: MAX_OWN - bool(others)], missing)
    return 0 if answer.runs else NO


def _read_paste(args: argparse.Namespace) -> None:
    """The cards and the driver in what `nvidia-smi` or `lspci` printed, from standard input.

    Raises:
        UsageError: The text names no card.
    """
    pasted = gpus.read_paste(sys.stdin.read(MAX_PASTE))
    if not pasted.cards:
        hint = "nvidia-smi -L | farm why --official --gpu -"
        raise UsageError(pasted.problem or "no card is named in the text on standard input", hint=hint)
    args.gpu, args.driver = list(pasted.cards), args.driver or pasted.driver


def _refuse_options(args: argparse.Namespace) -> None:
    """Options that are about a build and not about wheels that others publish; release and CUDA from the environment.

    Raises:
        UsageError: One is given.
    """
    names = [*_BUILDS_ALONE, *(name for name in OPTIONS if name not in ("torch", "cuda"))]
    given = [name for name in names if getattr(args, name, None) is not None]
    for name, choice in from_environment(os.environ).items():
        if name not in ("torch", "cuda"):
            raise UsageError(f"{choice.origin}: about a build of your own, not about PyTorch's wheels", hint="unset it")
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
    """A question in the catalogue's words.

    Raises:
        UsageError: A word is not known.
    """
    sms = tuple(dict.fromkeys(sm_of(name, variant.architectures if variant else ()) for name in args.gpu))
    machines = {gpus.machine(name, sm_of(name, ())) if not variant else variant.machine for name in args.gpu}
    if len(machines) > 1:
        raise UsageError(f"no machine has all of {', '.join(args.gpu)}: some sit beside Arm cores alone")
    where = f"{args.platform}-{machines.pop()}"
    if where not in official.PLATFORMS:
        raise UsageError(f"PyTorch publishes no CUDA wheels for {where}", hint="--platform linux or windows")
    torch, cuda = _versions(args.torch, args.cuda)
    return Question(sms, where, args.driver, _python(args.python) or (variant.python if variant else None), torch, cuda)


def _versions(torch: str | None, cuda: str | None) -> tuple[str | None, str | None]:
    """Release and CUDA: `2.8`, `2.8.0+cu128` as `torch.__version__` prints it, `12.8`, `cu128`.

    Raises:
        UsageError: One is not in the catalogue, or both name a CUDA and differ.
    """
    release, _, label = (torch or "").partition("+")
    named = [text for text in (label, cuda) if text]
    spelled = [re.sub(r"^cu(\d+)(\d)$", r"\1.\2", text.strip().lower()) for text in named]
    if "cpu" in spelled:
        raise UsageError("a wheel +cpu runs on no card: ask for one with CUDA", hint=f"--torch {release}")
    known = catalog.toolkits()
    for text in spelled:
        if catalog.find(known, text) is None:
            raise UsageError(f"CUDA {text!r} is not in the catalogue", hint=catalog.known(known, text))
    cudas = {catalog.find(known, text) for text in spelled}
    if len(cudas) > 1:
        raise UsageError(f"--torch {torch} and --cuda {cuda} name two CUDAs", hint="give one of them")
    releases = catalog.torch_releases()
    found = catalog.find(releases, release) if release else None
    if release and found is None:
        raise UsageError(f"torch {release} is not in the catalogue", hint=catalog.known(releases, release))
    return found, next(iter(cudas), None)


def _python(name: str | None) -> str | None:
    """The Python that was asked for, also as 3.12, cp312 or python3.12.

    Raises:
        UsageError: No release of the catalogue has wheels for it.
    """
    known = {word for release in catalog.torch_releases().values() for word in release.pythons.linux}
    if name is None:
        return None
    if (word := python_word(name)) in known:
        return word
    names = sorted(known, key=lambda word: (int(word[3:].removesuffix("t")), word))
    raise UsageError(
        f"no release of PyTorch in the catalogue has wheels for {name!r}", hint=f"known: {', '.join(names)}"
    )


def _own(args: argparse.Namespace, question: Question, variant: Variant | None) -> "list[Own]":
    from farm.base.project import find_project
    from farm.plan.recommend import machine_of, own_builds

    cpu = variant.cpu if variant else None
    machine = machine_of(question.sms, question.platform, question.python, cpu, question.driver)
    try:
        return own_builds(find_project(args.project or Path.cwd()), machine)
    except FarmError:  # no project, or a matrix that cannot be read: the answer about upstream stands without it
        return []


def _document(
    args: argparse.Namespace,
    question: Question,
    answer: Answer,
    newest: Answer,
    others: list[tuple[official.Maker, str]],
    own: "list[Own]",
    missing: str | None,
) -> dict[str, Any]:
    return {
        "gpus": args.gpu,
        "sms": [f"sm{sm}" for sm in question.sms],
        "platform": question.platform,
        "answer": answer.to_json() | {"source": official.source(answer.wheel) if answer.wheel else None},
        "newest": newest.to_json(),
        "others": [
            {"maker": row.maker, "torch": row.torch, "cuda": row.cuda, "install": line, "has": row.has}
            | {"lacks": row.lacks, "unconfirmed": row.unconfirmed, "source": official.makers().sources[row.source]}
            for row, line in others
        ],
        "own": [
            {"words": each.words, "torch": each.torch, "cuda": each.cuda, "proved": each.proved or None}
            | {"cost": each.cost}
            for each in own
        ],
        "no_variant": missing,
    }


def _print(args: argparse.Namespace, question: Question, answer: Answer, newest: Answer) -> None:
    cards = " and ".join(_named(name, sm) for name, sm in zip(args.gpu, question.sms, strict=False))
    wheel = answer.wheel
    which = "".join(
        [
            f" of torch {question.torch}" if question.torch else "",
            f" with CUDA {question.cuda}" if question.cuda else "",
        ]
    )
    if wheel is None:
        show.prose(f"no: none of PyTorch's own wheels{which} in the catalogue has code for {cards}")
    elif answer.runs:
        show.prose(f"yes: PyTorch's own wheel of torch {wheel.torch} with CUDA {wheel.cuda} runs on {cards}")
    elif answer.lost:
        lost = ", ".join(f"sm_{sm}" for sm in answer.lost)
        show.prose(f"no: no wheel{which} has code for all of {cards}; torch {wheel.torch} leaves out {lost}")
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
        if args.verbose:
            show.prose(f"  code for sm {', '.join(map(str, wheel.sm))}; source: {official.source(wheel)}")
    for sm in question.sms:
        left = official.left_behind(question.torch or "99", question.cuda, sm) if question.cuda else None
        if left and not answer.runs:
            show.prose(f"  {left.text} ({left.source})")
    if not answer.runs and newest.runs and newest.wheel:
        show.say(f"the newest that runs: torch {newest.wheel.torch} with CUDA {newest.wheel.cuda}")
        show.say(f"  {newest.wheel.pip}")


def _named(name: str, sm: int) -> str:
    """A card with its SM; with all of them where it was sold with several, all too old."""
    chips = sorted({card.sm for card in gpus.find(name)})
    either = " or ".join(chip.replace("sm", "sm_") for chip in chips)
    return f"{name} ({either if len(chips) > 1 and f'sm{sm}' in gpus.gpus().too_old else f'sm_{sm}'})"


def print_own(own: "list[Own]", missing: str | None) -> None:
    """Builds of one's own, each with the command that makes it."""
    if missing:
        show.prose(f"no wheel of your own either: {missing}")
    for each in own:
        lost = "".join(f"; no code for sm_{sm}" for sm in each.lost)
        show.prose(f"of your own: {each.release} ({each.standing}; {each.cost}{lost})")
        show.say(f"  farm submit {each.words}")


def sm_of(name: str, architectures: Collection[str] = ()) -> int:
    """The SM of a card by name or number; of a name with several chips, the one among `architectures`.

    Raises:
        UsageError: No card is called so, or several chips are.
    """
    word = sm_word(name.strip())
    if word in catalog.architectures().architectures or word in gpus.gpus().too_old:
        return sm_number(word)
    if word.removeprefix("sm").isdecimal() and sm_number(word) in _of_no_variant():
        raise _no_variant(name, sm_number(word))
    # An SM may have another name in variants: sm_101 became sm_110.
    known = {gpus.gpus().renamed.get(card.sm, card.sm) for card in gpus.find(name)}
    if not known and (company := gpus.maker(name)):
        raise UsageError(
            f"{name!r} is a card of {company}: it runs no CUDA, and the farm builds for NVIDIA's cards",
            hint=f"for that machine: --variant {gpus.gpus().instead[company]}",
        )
    family = name.strip().lower()
    chips = [sm for sm, one in catalog.architectures().architectures.items() if one.name.lower() == family]
    if not known and chips:
        raise UsageError(
            f"{name!r} is the name of an architecture, not of a card", hint=f"one of its chips: {_either(chips)}"
        )
    if not known:
        near = gpus.nearest_names(name)
        raise UsageError(
            f"the catalogue has no card {name!r}",
            hint=(f"nearest: {', '.join(near)}; or give" if near else "give")
            + " its SM, as `farm detect` on its machine says: --gpu sm_NN",
        )
    if len(known) == 1 and (sm := sm_number(min(known))) in _of_no_variant():
        raise _no_variant(name, sm)
    # All of its chips are too old: the newest stands for them, and the rules say so.
    if known <= set(gpus.gpus().too_old):
        return int(max(known, key=lambda sm: int(sm[2:])).removeprefix("sm"))
    # The variant decides between the chips of a name: whoever asks for sm35 has the GT 730 with that chip.
    ours = known & set(architectures)
    if len(known) > 1 and not ours:
        raise UsageError(
            f"{name!r} was sold with several chips: {', '.join(sorted(known))}",
            hint=f"give its SM, as `farm detect` on its machine says: {_either(sorted(known))}",
        )
    return int(min(ours or known).removeprefix("sm"))


def example(name: str) -> str:
    """A variant for the machine that a card is in; one of other cards where there is none for it."""
    from farm.plan.recommend import machine_of

    sm = sm_of(name)
    if gpus.without_variant(sm):
        return "sm35-avx-py311"
    machine = machine_of((sm,), f"linux-{gpus.machine(name, sm)}", "py311")
    return f"sm{sm}-{machine.cpus[0]}-py311"


def _either(sms: Collection[str]) -> str:
    return " or ".join(f"--gpu sm_{sm.removeprefix('sm')}" for sm in sms)


def _no_variant(name: str, sm: int) -> UsageError:
    return UsageError(
        f"{name!r} is sm_{sm}: nvcc can compile for it, and no PyTorch of the catalogue is built for it",
        hint="newer releases: tools/refresh-catalogue torch official",
    )


def _of_no_variant() -> set[int]:
    """SMs that some nvcc of the catalogue compiles for and that are no variant's: sm_88, sm_107."""
    known = {sm for toolkit in catalog.toolkits().values() for sm in toolkit.sm}
    named = {*catalog.architectures().architectures, *gpus.gpus().too_old, *gpus.gpus().renamed}
    return known - {sm_number(name) for name in named}
