"""`farm why`: can it be built? Also with a card, a driver, compilers, an arch list, numpy or PyTorch's switches."""

import argparse
from typing import TYPE_CHECKING, Any

from farm.cli.options import add_selectors

if TYPE_CHECKING:
    from pathlib import Path

    from farm.plan.recommend import Own
    from farm.plan.selectors import Selectors
    from farm.plan.variant import Variant

SWITCHES = ("flash-attention", "mem-eff-attention", "fbgemm", "mkldnn", "nnpack")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selectors(parser, required=False)
    parser.add_argument(
        "--official", action="store_true", help="ask whether PyTorch's own wheel runs on --gpu; needs no --variant"
    )
    group = parser.add_argument_group("what else to ask")
    group.add_argument(
        "--gpu",
        action="append",
        metavar="NAME",
        help="a card that must run it: 'RTX 5070', 'Tesla K40', sm_120, 12.0; with --official several, or - for what "
        "nvidia-smi prints",
    )
    group.add_argument("--python", metavar="NAME", help="with --official, the Python to install it for: py312, py313t")
    group.add_argument("--driver", metavar="VERSION", help="the installed driver: 470 or 470.82.01")
    group.add_argument("--arch-list", metavar="LIST", help="TORCH_CUDA_ARCH_LIST: '3.5;3.7+PTX'")
    group.add_argument("--msvc", metavar="VERSION", help="Visual Studio, toolset or compiler: 2022, 14.29, 19.29")
    group.add_argument("--gcc", metavar="MAJOR", help="the host compiler on Linux")
    group.add_argument("--numpy", metavar="VERSION", help="the numpy that is installed beside the wheel")
    group.add_argument("-v", "--verbose", action="store_true", help="print facts and sources too")
    for name in SWITCHES:
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=f"with {switch(name)}=1")


def run(args: argparse.Namespace) -> int:
    from farm.plan.compat.stack import parse_driver

    if args.driver is not None:
        args.driver = parse_driver(args.driver)
    from farm.base.errors import UsageError
    from farm.cli import official, show

    if args.official:
        return official.run(args)
    from farm.cli.project import project_of
    from farm.cli.selection import selectors_of
    from farm.plan.build import judge, resolve
    from farm.plan.evidence import load_evidence
    from farm.platforms.base import platform

    if args.python is not None:
        raise UsageError("--python belongs to --official", hint="a variant names its Python: --variant sm35-avx-py311")
    if args.variant is None:
        example = official.example(args.gpu[0]) if args.gpu else "sm35-avx-py311"
        hint = f"an example: --variant {example}"
        official_too = "; about PyTorch's own wheels: --official" if args.gpu else ""
        raise UsageError("--variant GPU-CPU-PYTHON is missing", hint=hint + official_too)
    project, settings = project_of(args)
    selectors = selectors_of(args, project, settings)
    judged = judge(project, selectors, questions(args, selectors.variant))
    found, nearest = judged.advised(), judged.nearest()
    plan = resolve(project, selectors) if judged.complete else None
    evidence = load_evidence(project).rows(plan) if plan else []
    floating = platform(plan.platform).floating(plan) if plan else []
    if args.json:
        reasons = [reason.to_json() for reason in found]
        proved = [dict(zip(("what", "text", "source"), row, strict=True)) for row in evidence]
        document = {"buildable": judged.buildable, "reasons": reasons, "nearest": nearest, "evidence": proved}
        document["not_pinned"] = floating
        show.json_document(document)
    else:
        can = "can be built" if judged.buildable else "cannot be built"
        if judged.buildable and any(reason.severity == "unpinned" for reason in found):
            can = "goes together, but the farm has no pinned file for a part of it"
        elif judged.buildable and any(reason.rule.endswith("-reported") for reason in found):
            can = "may not build: who tried it says so"
        show.say(f"{selectors.package} for {selectors.variant} on {selectors.platform} {can}")
        for reason in found:
            without = f" (without it: {reason.nearest})" if reason.nearest else ""
            show.prose(f"  {reason.severity}: {reason.text}{without}")
            if args.verbose:
                show.prose(f"    {reason.fact} ({reason.source})")
        if nearest:
            show.say(f"nearest that the rules allow: {nearest}")
        if plan and plan.windows:
            show.say(
                f"openmp: {plan.windows.openmp} alone; two in one DLL compute wrong numbers (pytorch/pytorch#193784)"
            )
        for text in floating:
            show.prose(f"not pinned: {text}")
        tested = [row for row in evidence if row[0] == "tested"]
        for what, text, source in evidence if args.verbose else (*tested[-1:], *evidence[len(tested) :]):
            show.prose(f"{what}: {text} ({source})")
        if not judged.buildable:
            official.print_own(_instead(args, project, selectors), None)
    return 0 if judged.buildable else 3


def _instead(args: argparse.Namespace, project: "Path", selectors: "Selectors") -> "list[Own]":
    """Builds of torch for the same cards and CPU, which can be planned."""
    from farm.cli import official
    from farm.plan.recommend import Machine, own_builds

    variant = selectors.variant
    if selectors.package != "torch" or not variant.sms:
        return []
    sms = (official.sm_of(args.gpu[0], variant.architectures),) if args.gpu else variant.sms
    machine = Machine(sms, (variant.cpu,), selectors.platform, (variant.python,), args.driver)
    return own_builds(project, machine)


def questions(args: argparse.Namespace, variant: "Variant") -> dict[str, Any]:
    """The fields of a stack that were asked about.

    Raises:
        UsageError: A card, a compiler or a version is not known.
    """
    from farm.base.errors import UsageError
    from farm.cli.official import sm_of
    from farm.plan.compat.rules import parse_msvc
    from farm.plan.compat.stack import parse_gcc

    _refuse_elsewhere(args, variant)
    fields: dict[str, Any] = {name: getattr(args, name) for name in ("driver", "arch_list", "numpy")}
    fields["gcc"] = parse_gcc(args.gcc) if args.gcc is not None else None
    fields["msvc"] = parse_msvc(args.msvc) if args.msvc is not None else None
    if args.gpu is not None:
        if len(args.gpu) > 1:
            raise UsageError(
                "--gpu is given twice: a build is asked about one card",
                hint="about PyTorch's own wheels for several cards: --official",
            )
        fields["gpu"] = sm_of(args.gpu[0], variant.architectures)
        fields["gpu_name"] = args.gpu[0]
    # None where nothing was said, False for `--no-…`: both ask nothing.
    on = {switch(name) for name in SWITCHES if getattr(args, name.replace("-", "_"))}
    return {name: value for name, value in fields.items() if value is not None} | {"switches": frozenset(on)}


def _refuse_elsewhere(args: argparse.Namespace, variant: "Variant") -> None:
    """Refuse questions about parts that the build has not.

    Raises:
        UsageError: There is one.
    """
    from farm.base.errors import UsageError
    from farm.platforms.facts import facts

    compiler = facts(args.platform).compiler
    about = {"gcc": compiler == "gcc", "msvc": compiler == "msvc"}
    about |= dict.fromkeys(("gpu", "driver", "arch_list"), bool(variant.sms))
    for name, has in about.items():
        if getattr(args, name) is not None and not has:
            raise UsageError(
                f"--{name.replace('_', '-')} means nothing to {variant} on {args.platform}", hint="leave it out"
            )


def switch(name: str) -> str:
    """USE_FLASH_ATTENTION for `flash-attention`."""
    return "USE_" + name.upper().replace("-", "_")
