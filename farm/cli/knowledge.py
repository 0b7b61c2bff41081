"""Commands that answer from the rules and the catalogue, and build nothing: `farm plan`, `why`,
`matrix`.
"""

import argparse
import json
import os
import platform as system
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import FarmError, UsageError
from farm.base.project import find_project
from farm.base.text import duration
from farm.catalog import gpus
from farm.catalog.gpus import is_integrated
from farm.cli import show
from farm.cli.arguments import SWITCHES, switch
from farm.cli.selection import project_of, selectors_of
from farm.machine.doctor import Site, needs
from farm.plan.build import judge, resolve
from farm.plan.compat import official
from farm.plan.compat.official import Answer, Question
from farm.plan.compat.rules import parse_msvc
from farm.plan.compat.stack import parse_driver, parse_gcc
from farm.plan.environment import feature_rows
from farm.plan.evidence import Evidence, load_evidence
from farm.plan.file import Plan
from farm.plan.matrix import Build, Channel, load_matrix, workflow_matrix
from farm.plan.options import OPTIONS, from_environment
from farm.plan.recipe import recipe
from farm.plan.recommend import Machine, Own, machine_of, own_builds
from farm.plan.selectors import Selectors
from farm.plan.settings import Settings, load_github
from farm.plan.variant import Variant, python_word, sm_number, sm_word
from farm.platforms.base import platform
from farm.platforms.facts import facts

Row = tuple[str, str, str]
NO = 3
"""The exit code for "no": it cannot be built, or nothing that upstream publishes runs on the cards.
"""
MAX_PASTE = 100_000
MAX_OWN = 3
"""Builds of one's own that an answer of one screen has room for; one fewer beside those of others.
"""
_BUILDS_ALONE = ("channel", "numpy", "arch_list", "msvc", "gcc")


# --- farm plan ---


def run_plan(args: argparse.Namespace) -> int:
    project, settings = project_of(args)
    selectors = selectors_of(args, project, settings)
    plan = resolve(project, selectors)
    if args.json:
        print(plan.to_json(), end="")
        return 0
    evidence = load_evidence(project)
    show.say(
        f"{plan.package} {plan.version} for {plan.variant} on {plan.platform} (plan "
        f"{plan.digest[:12]})"
    )
    for what, text in [
        *first(project, settings, plan),
        *feature_rows(plan.features, plan.without),
        *without_device_code(plan),
        *cost(plan),
        *((what, f"{text} ({source})") for what, text, source in evidence.rows(plan)),
        *(("warning", reason.text) for reason in judge(project, selectors).rules),
        *instead(project, plan, evidence),
    ]:
        line = f"  {what:<11} {text}"
        # As the table below: whole in a pipe, where it is read by line.
        if what and sys.stdout.isatty():
            show.prose(line, 12)
        else:
            show.say(line)
    print()
    rows = values(plan)
    if args.all:
        rows += evidence.details(plan)
        shown = {what for what, _, _ in rows}
        names = (key for key in plan.env if f"env {key}" not in shown)
        rows += [(f"env {key}", plan.env[key], plan.origins[f"env.{key}"]) for key in names]
    show.table("", ("what", "value", "origin"), rows)
    if not args.all:
        show.say(
            f"--all prints {len(plan.env)} variables of the build and each of its tests as well"
        )
    return 0


def values(plan: Plan) -> list[Row]:
    """The choices that make the build, each with its origin."""
    rows = [("channel", plan.channel, plan.origins["channel"])]
    options = ((name, value) for name, value in plan.options.items() if value is not None)
    for name, value in options:
        rows.append((name, str(value), plan.origins[name]))
        rows += [
            (f"env {key}", plan.env[key], plan.origins[f"env.{key}"])
            for key in OPTIONS[name].environment(value)
        ]
    if plan.base:
        reach = f"runs at least on {', '.join(catalog.reach(plan.base)) or 'newer ones'}"
        if any(is_integrated(sm) for sm in plan.parsed_variant.sms):
            reach = f"its CUDA needs {catalog.architectures().jetson.system} or newer"
        glibc = catalog.debian_releases()[plan.base].glibc
        rows.append(
            (
                "base",
                plan.base,
                f"glibc {glibc} at most, the built wheel's tag says it exactly: {reach}",
            )
        )
    if plan.python:
        rows.append(
            (
                "python",
                f"{plan.python.version} from python-build-standalone",
                plan.origins["python"],
            )
        )
    if plan.windows:
        rows.append(("openmp", plan.windows.openmp, "the one OpenMP runtime of the build"))
    rows += [("needs", need, f"recipe {plan.recipe}") for need in plan.needs]
    for name in plan.features:
        if why := catalog.features()[name].untried.get(plan.platform):
            rows.append(("untried", name, why))
    return rows + [
        ("not pinned", text, f"docs/{plan.platform}.md")
        for text in platform(plan.platform).floating(plan)
    ]


def first(project: Path, settings: Settings, plan: Plan) -> Iterator[tuple[str, str]]:
    """Builds needed before, and their hours; or that the index has them, or PyTorch's own is
    fetched.
    """
    yield from (
        ("torch", f"PyTorch's own: {wheel.file}, from {wheel.url or 'the Python index'}")
        for wheel in plan.build_requires
        if wheel.package == "torch"
    )
    if not plan.needs:
        return
    from farm.run.inputs import standing

    try:
        for need, missing in standing(settings.index_at(project), plan, project):
            yield (
                "first",
                f"{need}: {f'not in the index; {missing}' if missing else 'the index has it'}",
            )
    except FarmError as error:
        yield "first", f"{', '.join(plan.needs)}: the index cannot be asked: {error}"


def without_device_code(plan: Plan) -> Iterator[tuple[str, str]]:
    """The build for the CPU alone, where one for a GPU would be the same code."""
    variant = plan.parsed_variant
    if variant.sms and not recipe(plan.recipe).is_for_gpus:
        yield (
            "the same",
            f"it has no code for a GPU: cpu-{variant.cpu}-{variant.python} is the same code",
        )


def instead(project: Path, plan: Plan, evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The tested build for the same cards and CPU, beside one of PyTorch that was not tested."""
    variant = plan.parsed_variant
    machine = Machine(variant.sms, (variant.cpu,), plan.platform, (variant.python,), together=True)
    if plan.package == "torch" and not evidence.of(plan):
        for own in own_builds(project, machine, limit=1):
            if own.proved:
                yield "instead", f"{own.release} ({own.standing}):"
                yield "", f"farm plan {own.words}"


def cost(plan: Plan) -> Iterator[tuple[str, str]]:
    """Time, memory, disk and downloads of the build; the time for the cores and memory of this
    machine.
    """
    known = recipe(plan.recipe)
    site = Site()
    memory = site.memory()[0]
    cores = site.cores()
    jobs = max(1, min(cores, int(memory / (plan.memory_per_job_gb * 1e9))))
    here = (
        f"with {jobs} compilers at a time ({cores} cores, {memory / 1e9:.0f} GB; "
        f"{plan.memory_per_job_gb} GB each)"
    )
    hours = known.cost_for(plan.parsed_variant.sms)
    if hours is None:
        yield "time", f"not measured; here {here}"
    else:
        word, count = hours
        if plan.options["without"]:
            less = f", less without {plan.options['without']}"
        else:
            less = ""
        yield (
            "time",
            (
                f"{word} {count:g} CPU hours{less}: {word} {duration(count * 3600 / jobs)} here, "
                f"{here}"
            ),
        )
    if plan.base and plan.machine != (found := facts(plan.platform).machine(system.machine())):
        yield (
            "emulated",
            f"on {found}, by qemu: image, build and test take far longer (docs/how-to/runners.md)",
        )
    sizes = [f"{known.disk_gb:g} GB for the build"]
    if plan.base:
        sizes.append(f"{needs().image_gb} GB for the image")
    if known.cost and known.cost.installed_gb and plan.toolkit:
        sizes.append(f"{known.cost.installed_gb:g} GB where it is installed, with CUDA's libraries")
    yield "disk", ", ".join(sizes)
    if known.cost and known.cost.download_gb:
        yield "downloads", f"{known.cost.download_gb:g} GB of tools and sources"


# --- farm why ---


def run_why(args: argparse.Namespace) -> int:
    if args.driver is not None:
        args.driver = parse_driver(args.driver)
    if args.official:
        return _run_official(args)
    if args.python is not None:
        raise UsageError(
            "--python belongs to --official",
            hint="a variant names its Python: --variant sm35-avx-py311",
        )
    if args.variant is None:
        hint = f"an example: --variant {example(args.gpu[0]) if args.gpu else 'sm35-avx-py311'}"
        hint += "; about PyTorch's own wheels: --official" if args.gpu else ""
        raise UsageError("--variant GPU-CPU-PYTHON is missing", hint=hint)
    project, settings = project_of(args)
    selectors = selectors_of(args, project, settings)
    judged = judge(project, selectors, questions(args, selectors.variant))
    found = judged.advised()
    nearest = judged.nearest()
    if (
        judged.buildable and judged.channel != judge(project, selectors).channel
    ):  # another than a plan takes by itself
        nearest = f"--channel {judged.channel}"
    if judged.complete:
        plan = resolve(project, replace(selectors, channel=judged.channel))
    else:
        plan = None
    evidence = load_evidence(project).rows(plan) if plan else []
    floating = platform(plan.platform).floating(plan) if plan else []
    if args.json:
        reasons = [reason.to_json() for reason in found]
        proved = [dict(zip(("what", "text", "source"), row, strict=True)) for row in evidence]
        document = {
            "buildable": judged.buildable,
            "reasons": reasons,
            "nearest": nearest,
            "evidence": proved,
        }
        document["not_pinned"] = floating
        show.json_document(document)
    else:
        can = "can be built" if judged.buildable else "cannot be built"
        can += f" with {nearest}" if judged.buildable and nearest else ""
        if judged.buildable and any(reason.severity == "unpinned" for reason in found):
            can = "goes together, but the farm has no pinned file for a part of it"
        elif judged.buildable and any(reason.rule.endswith("-reported") for reason in found):
            can = "may not build: who tried it says so"
        show.say(f"{judged.what} on {selectors.platform} {can}")
        for reason in found:
            instead = f" (instead: {reason.nearest})" if reason.nearest else ""
            show.prose(f"  {reason.severity}: {reason.text}{instead}")
            if args.verbose:
                show.prose(f"    {reason.fact} ({reason.source})")
        if nearest and not judged.buildable:
            show.say(f"nearest that the rules allow: {nearest}")
        if plan and plan.windows:
            why = "two in one DLL compute wrong numbers (pytorch/pytorch#193784)"
            show.say(f"openmp: {plan.windows.openmp} alone; {why}")
        for text in floating:
            show.prose(f"not pinned: {text}")
        tested = [row for row in evidence if row[0] == "tested"]
        for what, text, source in (
            evidence if args.verbose else (*tested[-1:], *evidence[len(tested) :])
        ):
            show.prose(f"{what}: {text} ({source})")
        if not judged.buildable:
            print_own(_instead(args, project, selectors), None)
    return 0 if judged.buildable else 3


def _instead(args: argparse.Namespace, project: Path, selectors: Selectors) -> list[Own]:
    """Builds of torch for the same cards and CPU, which can be planned."""
    variant = selectors.variant
    if selectors.package != "torch" or not variant.sms:
        return []
    sms = variant.sms
    if args.gpu:
        sms = (sm_of(args.gpu[0], variant.architectures),)
    machine = Machine(
        sms, (variant.cpu,), selectors.platform, (variant.python,), args.driver, together=True
    )
    return own_builds(project, machine)


def questions(args: argparse.Namespace, variant: Variant) -> dict[str, Any]:
    """The fields of a stack that were asked about."""
    _refuse_elsewhere(args, variant)
    fields: dict[str, Any] = {
        name: getattr(args, name) for name in ("driver", "arch_list", "numpy")
    }
    fields["gcc"] = parse_gcc(args.gcc) if args.gcc is not None else None
    fields["msvc"] = parse_msvc(args.msvc) if args.msvc is not None else None
    if args.gpu is not None:
        if len(args.gpu) > 1:
            hint = "about PyTorch's own wheels for several cards: --official"
            raise UsageError("--gpu is given twice: a build is asked about one card", hint=hint)
        fields["gpu"] = sm_of(args.gpu[0], variant.architectures)
        fields["gpu_name"] = args.gpu[0]
    # None where nothing was said, False for `--no-…`: both ask nothing.
    on = {switch(name) for name in SWITCHES if getattr(args, name.replace("-", "_"))}
    return {name: value for name, value in fields.items() if value is not None} | {
        "switches": frozenset(on)
    }


def _refuse_elsewhere(args: argparse.Namespace, variant: Variant) -> None:
    """Refuse questions about parts that the build has not."""
    compiler = facts(args.platform).compiler
    about = {"gcc": compiler == "gcc", "msvc": compiler == "msvc"}
    about |= dict.fromkeys(("gpu", "driver", "arch_list"), bool(variant.sms))
    for name, has in about.items():
        if getattr(args, name) is not None and not has:
            text = f"--{name.replace('_', '-')} means nothing to {variant} on {args.platform}"
            raise UsageError(text, hint="leave it out")


def _run_official(args: argparse.Namespace) -> int:
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
    anything = Question(question.sms, question.platform, question.driver, question.python)
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
            _fields(row, "maker", "torch", "cuda", "has", "lacks", "unconfirmed")
            | {"install": line, "source": official.makers().sources[row.source]}
            for row, line in others
        ]
        document["own"] = [
            _fields(each, "words", "torch", "cuda", "cost") | {"proved": each.proved or None}
            for each in own
        ]
        show.json_document(document | {"no_variant": missing})
    else:
        _print_official(args, question, answer, newest)
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
                cards = (
                    catalog.architectures().architectures.get(f"sm{sm}") for sm in question.sms
                )
                last = min(
                    (card.last_driver for card in cards if card and card.last_driver), default=None
                )
                end = f", up to branch {last}" if last else ""
                show.say(f"with driver {min(floors, key=catalog.number)} or newer{end}:")
        print_own(own if args.verbose else own[: MAX_OWN - bool(others)], missing)
    return 0 if answer.runs else NO


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
    )


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


def _own(args: argparse.Namespace, question: Question, variant: Variant | None) -> list[Own]:
    cpu = variant.cpu if variant else None
    machine = machine_of(question.sms, question.platform, question.python, cpu, question.driver)
    try:
        return own_builds(find_project(args.project or Path.cwd()), machine)
    except (
        FarmError
    ):  # no project, or a matrix that cannot be read: the answer about upstream stands without it
        return []


def _fields(of: object, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def _print_official(
    args: argparse.Namespace, question: Question, answer: Answer, newest: Answer
) -> None:
    cards = " and ".join(_named(name, sm) for name, sm in zip(args.gpu, question.sms, strict=False))
    wheel = answer.wheel
    which = f" of torch {question.torch}" if question.torch else ""
    which += f" with CUDA {question.cuda}" if question.cuda else ""
    if wheel is None:
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
        if args.verbose:
            show.prose(
                f"  code for sm {', '.join(map(str, wheel.sm))}; source: {official.source(wheel)}"
            )
    for sm in question.sms:
        if question.cuda:
            left = official.left_behind(question.torch or "99", question.cuda, sm)
        else:
            left = None
        if left and not answer.runs:
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


def print_own(own: list[Own], missing: str | None) -> None:
    """Builds of one's own, each with the command that makes it."""
    if missing:
        show.prose(f"no wheel of your own either: {missing}")
    for each in own:
        lost = "".join(f"; no code for sm_{sm}" for sm in each.lost)
        show.prose(f"of your own: {each.release} ({each.standing}; {each.cost}{lost})")
        show.say(f"  farm submit {each.words}")


def sm_of(name: str, architectures: Collection[str] = ()) -> int:
    """The SM of a card by name or number; of a name with several chips, the one among
    `architectures`.
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
            f"{name!r} is a card of {company}: it runs no CUDA, and the farm builds for NVIDIA's "
            "cards",
            hint=f"for that machine: --variant {gpus.gpus().instead[company]}",
        )
    family = name.strip().lower()
    chips = [
        sm
        for sm, one in catalog.architectures().architectures.items()
        if one.name.lower() == family
    ]
    if not known and chips:
        hint = f"one of its chips: {_either(chips)}"
        raise UsageError(f"{name!r} is the name of an architecture, not of a card", hint=hint)
    if not known:
        near = gpus.nearest_names(name)
        hint = f"nearest: {', '.join(near)}; or give" if near else "give"
        hint += " its SM, as `farm detect` on its machine says: --gpu sm_NN"
        raise UsageError(f"the catalogue has no card {name!r}", hint=hint)
    if len(known) == 1 and (sm := sm_number(min(known))) in _of_no_variant():
        raise _no_variant(name, sm)
    # All of its chips are too old: the newest stands for them, and the rules say so.
    if known <= set(gpus.gpus().too_old):
        return int(max(known, key=lambda sm: int(sm[2:])).removeprefix("sm"))
    # The variant decides between the chips of a name: whoever asks for sm35 has the GT 730 with
    # that chip.
    ours = known & set(architectures)
    if len(known) > 1 and not ours:
        raise UsageError(
            f"{name!r} was sold with several chips: {', '.join(sorted(known))}",
            hint=f"give its SM, as `farm detect` on its machine says: {_either(sorted(known))}",
        )
    return int(min(ours or known).removeprefix("sm"))


def example(name: str) -> str:
    """A variant for the machine that a card is in; one of other cards where there is none for
    it.
    """
    sm = sm_of(name)
    if gpus.without_variant(sm):
        return "sm35-avx-py311"
    machine = machine_of((sm,), f"linux-{gpus.machine(name, sm)}", "py311")
    return f"sm{sm}-{machine.cpus[0]}-py311"


def _either(sms: Collection[str]) -> str:
    return " or ".join(f"--gpu sm_{sm.removeprefix('sm')}" for sm in sms)


def _no_variant(name: str, sm: int) -> UsageError:
    return UsageError(
        f"{name!r} is sm_{sm}: nvcc can compile for it, and no PyTorch of the catalogue is built "
        "for it",
        hint="newer releases: tools/refresh-catalogue torch official",
    )


def _of_no_variant() -> set[int]:
    """SMs that some nvcc of the catalogue compiles for and that are no variant's: sm_88, sm_107."""
    known = {sm for toolkit in catalog.toolkits().values() for sm in toolkit.sm}
    named = {*catalog.architectures().architectures, *gpus.gpus().too_old, *gpus.gpus().renamed}
    return known - {sm_number(name) for name in named}


# --- farm matrix ---


def run_matrix(args: argparse.Namespace) -> int:
    project = find_project(args.project or Path.cwd())
    matrix = load_matrix(project)
    builds = [build for build in matrix.builds(args.channel) if _fits(build, args)]
    if not builds:
        raise UsageError(
            "no build of the matrix fits", hint="farm matrix --format names lists them all"
        )
    # `--format github` and `names` are formats of their own: `--json` changes the table alone.
    if args.json and args.format == "table":
        form = "json"
    else:
        form = args.format
    if form == "names":
        for build in builds:
            show.say(build.alias if args.channel else f"{build.channel}/{build.alias}")
    elif form == "json":
        fields = ("channel", "package", "platform", "cuda", "alias")
        show.json_document(
            [_fields(build, *fields) | {"variant": str(build.variant)} for build in builds]
        )
    elif form == "github":
        labels = load_github(project)
        jobs = workflow_matrix(
            matrix, builds, lambda job, b: labels.runs_on(job, b.variant, b.platform)
        )
        print(json.dumps(jobs, separators=(",", ":")))  # one line: a step output
    else:
        for name, channel in matrix.channels.items():
            if any(build.channel == name for build in builds):
                _grid(channel, [build for build in builds if build.channel == name])
    return 0


def _fits(build: Build, args: argparse.Namespace) -> bool:
    return (
        fnmatchcase(build.package, args.package or "*")
        and fnmatchcase(str(build.variant), args.variant or "*")
        and args.platform in {None, build.platform}
    )


def _grid(channel: Channel, offered: list[Build]) -> None:
    """A row for each package, platform, GPU and set of Pythons; a column for each CPU level; CUDA
    in the cells.
    """
    cells: dict[tuple[str, str, str, str], list[Build]] = {}
    for build in offered:
        cells.setdefault(
            (build.package, build.platform, build.variant.gpu, build.variant.cpu), []
        ).append(build)
    cpus = [cpu for cpu in channel.cpus if any(cpu == one for *_, one in cells)]
    rows: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for (package, where, gpu, cpu), builds in cells.items():
        pythons = " ".join(dict.fromkeys(build.variant.python for build in builds))
        versions = " ".join(dict.fromkeys(build.cuda or "yes" for build in builds))
        rows.setdefault((package, where, gpu, pythons), {})[cpu] = versions
    show.table(
        f"{channel.name}: {channel.text.summary} ({len(offered)} builds; cells: the CUDA versions)",
        ("package", "platform", "GPU", "Python", *cpus),
        [(*row, *(found.get(cpu, "-") for cpu in cpus)) for row, found in rows.items()],
    )
    for package in dict.fromkeys(build.package for build in offered if build.variant.sms):
        if not recipe(channel.text.recipe_of(package)).is_for_gpus:
            show.say(
                f"{package} has no code for a GPU: its builds are the same code for each, and as "
                "for cpu"
            )
    print()
