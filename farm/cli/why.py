"""`farm why`: explain why a combination can or cannot be built, and name the nearest that can."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm.base.errors import ExitCode, UsageError
from farm.cli import show
from farm.cli.arguments import SWITCHES, switch
from farm.cli.cards import example, sm_of
from farm.cli.official import run_official
from farm.cli.selection import project_of, selectors_of
from farm.cli.wheel_lines import print_builds
from farm.plan.compat.compilers import parse_msvc
from farm.plan.compat.stack import parse_driver, parse_gcc
from farm.plan.evidence import load_evidence
from farm.plan.file import Plan
from farm.plan.platforms.base import platform
from farm.plan.recommend import FarmBuild, Machine, buildable_here
from farm.plan.request import BuildRequest, Verdict
from farm.plan.resolve import check_request, resolve
from farm.plan.variant import Variant
from farm.platforms.facts import facts

ONE_OPENMP = "two in one DLL compute wrong numbers (pytorch/pytorch#193784)"


@dataclass(frozen=True)
class Explanation:
    """Why a combination can or cannot be built.

    Attributes:
        verdict: What the rules say.
        platform: The system that was asked about.
        alternatives: Options of the nearest builds that the rules allow.
        plan: The plan, where one can be made.
        evidence: What was tested of it: what, text, source.
        not_pinned: Parts of the build whose version is not fixed.
        instead: Builds for the same cards and CPU, where this one cannot be built.
    """

    verdict: Verdict
    platform: str
    alternatives: tuple[str, ...]
    plan: Plan | None
    evidence: tuple[tuple[str, str, str], ...]
    not_pinned: tuple[str, ...]
    instead: tuple[FarmBuild, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        evidence = []
        for label, text, source in self.evidence:
            evidence.append({"what": label, "text": text, "source": source})
        return {
            "buildable": self.verdict.buildable,
            "reasons": [reason.to_json() for reason in self.verdict.reasons_with_nearest()],
            "nearest": next(iter(self.alternatives), None),
            "alternatives": list(self.alternatives),
            "evidence": evidence,
            "not_pinned": list(self.not_pinned),
        }

    @property
    def headline(self) -> str:
        """Whether it can be built, in one sentence."""
        verdict = self.verdict
        return f"{verdict.what} on {self.platform} {self._can_be_built()}"

    def _can_be_built(self) -> str:
        if not self.verdict.buildable:
            return "cannot be built"
        reasons = self.verdict.reasons_with_nearest()
        if any(reason.severity == "unpinned" for reason in reasons):
            return "goes together, but the farm has no pinned file for a part of it"
        if any(reason.rule.endswith("-reported") for reason in reasons):
            return "may not build: somebody who tried it says so"
        if self.alternatives:
            return f"can be built with {', or '.join(self.alternatives)}"
        return "can be built"


def run_why(args: argparse.Namespace) -> int:
    """Explain a combination; with `--official` answer about PyTorch's own wheels.

    Returns:
        0 if it can be built, else 3; `--official` has its own.
    """
    if args.driver is not None:
        args.driver = parse_driver(args.driver)
    if args.official:
        return run_official(args)
    _require_variant(args)
    explanation = explain(args)
    if args.json:
        show.json_document(explanation.to_json())
    else:
        _print(explanation, verbose=args.verbose)
    if explanation.verdict.buildable:
        return 0
    return ExitCode.NOT_BUILDABLE


def _require_variant(args: argparse.Namespace) -> None:
    if args.python is not None:
        raise UsageError(
            "--python belongs to --official",
            hint="a variant names its Python: --variant sm35-avx-py311",
        )
    if args.variant is None:
        hint = "an example: --variant sm35-avx-py311"
        if args.gpu:
            hint = f"an example: --variant {example(args.gpu[0])}"
            hint += "; about PyTorch's own wheels: --official"
        raise UsageError("--variant GPU-CPU-PYTHON is missing", hint=hint)


def explain(args: argparse.Namespace) -> Explanation:
    """Ask the rules about the combination that the arguments name."""
    project, settings = project_of(args)
    request = selectors_of(args, project, settings)
    verdict = check_request(project, request, questions(args, request.variant))
    alternatives = verdict.alternatives()
    # Another channel than a plan takes by itself has to be named.
    if verdict.buildable and verdict.channel != check_request(project, request).channel:
        alternatives = [f"--channel {verdict.channel}"]
    plan = None
    evidence: list[tuple[str, str, str]] = []
    not_pinned: list[str] = []
    if verdict.complete:
        plan = resolve(project, replace(request, channel=verdict.channel))
        evidence += load_evidence(project).rows(plan)
        not_pinned += platform(plan.platform).floating(plan)
    instead: list[FarmBuild] = []
    if not verdict.buildable:
        instead = _instead(args, project, request)
    return Explanation(
        verdict=verdict,
        platform=request.platform,
        alternatives=tuple(alternatives),
        plan=plan,
        evidence=tuple(evidence),
        not_pinned=tuple(not_pinned),
        instead=tuple(instead),
    )


def _print(explanation: Explanation, *, verbose: bool) -> None:
    """Print an explanation for a person."""
    verdict = explanation.verdict
    show.say(explanation.headline)
    for reason in verdict.reasons_with_nearest():
        text = f"  {reason.severity}: {reason.text}"
        if reason.nearest:
            text += f" (instead: {reason.nearest})"
        show.prose(text)
        if verbose:
            show.prose(f"    {reason.fact} ({reason.source})")
    if explanation.alternatives and not verdict.buildable:
        show.say(f"nearest that the rules allow: {', or '.join(explanation.alternatives)}")
    if explanation.plan and explanation.plan.windows:
        show.say(f"openmp: {explanation.plan.windows.openmp} alone; {ONE_OPENMP}")
    for text in explanation.not_pinned:
        show.prose(f"not pinned: {text}")
    _print_evidence(explanation.evidence, verbose=verbose)
    if not verdict.buildable:
        print_builds(explanation.instead, None)


def _print_evidence(rows: Sequence[tuple[str, str, str]], *, verbose: bool) -> None:
    """Print what was tested; of several proofs the last, which says the most, unless `verbose`."""
    proofs = [row for row in rows if row[0] == "tested"]
    if not verbose:
        rows = [*proofs[-1:], *rows[len(proofs) :]]
    for label, text, source in rows:
        show.prose(f"{label}: {text} ({source})")


def _instead(args: argparse.Namespace, project: Path, request: BuildRequest) -> list[FarmBuild]:
    """Builds of torch for the same cards and CPU, which can be planned."""
    variant = request.variant
    if request.package != "torch" or not variant.sms:
        return []
    sms = variant.sms
    if args.gpu:
        sms = (sm_of(args.gpu[0], variant.architectures),)
    machine = Machine(
        sms, (variant.cpu,), request.platform, (variant.python,), args.driver, together=True
    )
    return buildable_here(project, machine)


def questions(args: argparse.Namespace, variant: Variant) -> dict[str, Any]:
    """The fields of a stack that were asked about."""
    _refuse_elsewhere(args, variant)
    fields = show.fields(args, "driver", "arch_list", "numpy")
    if args.gcc is not None:
        fields["gcc"] = parse_gcc(args.gcc)
    if args.msvc is not None:
        fields["msvc"] = parse_msvc(args.msvc)
    if args.gpu is not None:
        if len(args.gpu) > 1:
            hint = "about PyTorch's own wheels for several cards: --official"
            raise UsageError("--gpu is given twice: a build is asked about one card", hint=hint)
        fields["gpu"] = sm_of(args.gpu[0], variant.architectures)
        fields["gpu_name"] = args.gpu[0]
    # None where nothing was said, False for `--no-…`: both ask nothing.
    on = frozenset(switch(name) for name in SWITCHES if getattr(args, name.replace("-", "_")))
    known_fields = {name: value for name, value in fields.items() if value is not None}
    return {**known_fields, "switches": on}


def _refuse_elsewhere(args: argparse.Namespace, variant: Variant) -> None:
    """Refuse questions about parts that the build has not."""
    compiler = facts(args.platform).compiler
    about = {"gcc": compiler == "gcc", "msvc": compiler == "msvc"}
    about |= dict.fromkeys(("gpu", "driver", "arch_list"), bool(variant.sms))
    for name, has in about.items():
        if getattr(args, name) is not None and not has:
            text = f"--{name.replace('_', '-')} does not apply to {variant} on {args.platform}"
            raise UsageError(text, hint="leave it out")
