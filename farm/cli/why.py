"""`farm why`: explain why a combination can or cannot be built, and name the nearest that can."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.base.errors import UsageError
from farm.cli import show
from farm.cli.arguments import SWITCHES, switch
from farm.cli.cards import example, sm_of
from farm.cli.official import print_builds, run_official
from farm.cli.selection import project_of, selectors_of
from farm.plan.build import judge, resolve
from farm.plan.compat.compilers import parse_msvc
from farm.plan.compat.stack import parse_driver, parse_gcc
from farm.plan.evidence import load_evidence
from farm.plan.platforms.base import platform
from farm.plan.recommend import FarmBuild, Machine, buildable_here
from farm.plan.selectors import Selectors
from farm.plan.variant import Variant
from farm.platforms.facts import facts


def run_why(args: argparse.Namespace) -> int:
    if args.driver is not None:
        args.driver = parse_driver(args.driver)
    if args.official:
        return run_official(args)
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
    alternatives = judged.alternatives()
    if (
        judged.buildable and judged.channel != judge(project, selectors).channel
    ):  # another than a plan takes by itself
        alternatives = [f"--channel {judged.channel}"]
    nearest = ", or ".join(alternatives)
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
            "nearest": next(iter(alternatives), None),
            "alternatives": alternatives,
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
            print_builds(_instead(args, project, selectors), None)
    return 0 if judged.buildable else 3


def _instead(args: argparse.Namespace, project: Path, selectors: Selectors) -> list[FarmBuild]:
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
    return buildable_here(project, machine)


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
