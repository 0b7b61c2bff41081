"""Which build of one's own is for a machine: detect, `farm why`, `farm plan` and the site ask this
one function.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from farm import catalog
from farm.base.errors import FarmError
from farm.catalog.gpus import sass_runs
from farm.plan.build_variables import absent_features
from farm.plan.evidence import Evidence, ProvedWheel, load_evidence
from farm.plan.file import Plan
from farm.plan.matrix import Matrix, load_matrix
from farm.plan.options import OPTIONS, Choice
from farm.plan.recipe import recipe
from farm.plan.request import BuildRequest
from farm.plan.resolve import check_request, resolve
from farm.plan.variant import PYTHONS, Variant
from farm.platforms.facts import DEFAULT

MAX_TRIED = 12  # variants of a channel whose plan is tried before the channel is given up


@dataclass(frozen=True)
class Machine:
    """The target of a build: its cards, the one that computes most first, its CPU levels and
    Pythons, best first.
    """

    sms: tuple[int, ...]
    cpus: tuple[str, ...]
    platform: str = DEFAULT
    pythons: tuple[str, ...] = PYTHONS
    driver: str | None = None
    together: bool = False  # a build must have code for each of the cards, not for some


NEWER_ARM = 90
"""The first SM beside cores of Armv9: Grace; Orin's are Armv8.2."""


def _newest_first(python: str) -> tuple[bool, int]:
    """A key that sorts the newest Python first, and free-threaded ones last."""
    return python.endswith("t"), -int(python[3:].removesuffix("t"))


NEWEST_FIRST = tuple(sorted(PYTHONS, key=_newest_first))


def machine_of(
    sms: tuple[int, ...],
    place: str,
    python: str | None = None,
    cpu: str | None = None,
    driver: str | None = None,
) -> Machine:
    """A machine of which the cards are known, and where: `linux-x86_64`; its CPU is not known."""
    platform, _, machine = place.partition("-")
    cpus: tuple[str, ...] = ("armv8_2",)
    if machine == "x86_64":
        cpus = ("avx2", "avx", "sse41")
    elif min(sms) >= NEWER_ARM:
        cpus = ("armv9", "armv8_2")
    if cpu:
        cpus = (cpu,)
    # A free-threaded Python that the farm builds nothing for counts as the one with the lock.
    locked_python = (python or "").removesuffix("t")
    pythons = NEWEST_FIRST
    if locked_python in PYTHONS:
        pythons = (locked_python,)
    return Machine(sms, cpus, platform, pythons, driver)


@dataclass(frozen=True)
class FarmBuild:
    """A build that can be planned: how far it was proved, cards without code, official features
    that it lacks.
    """

    variant: Variant
    channel: str
    torch: str
    cuda: str | None
    proved: str
    words: str
    cost: str
    lost: tuple[int, ...] = ()
    without: str = ""
    platform: str = DEFAULT

    @property
    def standing(self) -> str:
        if self.proved:
            return f"tested: {self.proved}"
        return "never built"

    @property
    def driver(self) -> str | None:
        """The first driver that runs it; None: no CUDA, or none is known."""
        if self.cuda:
            return catalog.lowest_driver(self.cuda, self.platform)
        return None

    @property
    def release(self) -> str:
        if self.cuda:
            return f"torch {self.torch}, CUDA {self.cuda}"
        return f"torch {self.torch}"


class Candidate(NamedTuple):
    """A build of the matrix that some card of a machine runs; the smallest rank is the best."""

    rank: tuple[object, ...]
    channel: str
    variant: Variant
    proof: ProvedWheel | None


def buildable_here(
    project: Path, machine: Machine, torch: str | None = None, limit: int | None = 3
) -> list[FarmBuild]:
    """The builds that are for a machine, at most `limit` (None: all), each of which can be planned
    with its own words.

    Proved ones first, and of them those that ran on a card; then those with code for every card,
    for just these cards, with the newest torch.
    """
    matrix = load_matrix(project)
    evidence = load_evidence(project)
    candidates = _candidates(matrix, evidence, machine, torch)
    builds: dict[str, FarmBuild] = {}
    tries: Counter[str] = Counter()
    for candidate in sorted(candidates, key=lambda candidate: candidate.rank):
        channel = candidate.channel
        # Of a channel that is there already this is another GPU word, CPU level or Python.
        if channel in builds or tries[channel] == MAX_TRIED:
            continue
        tries[channel] += 1
        build = _planned(project, machine, candidate)
        if build:
            builds[channel] = build
        if len(builds) == limit:
            break
    return sorted(builds.values(), key=lambda build: (not build.proved, len(build.lost)))


def _candidates(
    matrix: Matrix, evidence: Evidence, machine: Machine, torch: str | None
) -> Iterator[Candidate]:
    """Builds of the matrix that some card runs, and how good each is."""
    proofs = _proofs(evidence, machine.platform)
    for channel, variant in _builds_of_torch(matrix, machine.platform):
        release = str(matrix.channels[channel].text.options["torch"])
        if torch not in (None, release) or not _runs(variant, machine):
            continue
        proof = proofs.get((channel, str(variant)))
        rank = _rank(variant, machine, release, proof)
        yield Candidate(rank, channel, variant, proof)


def _proofs(evidence: Evidence, platform: str) -> dict[tuple[str, str], ProvedWheel]:
    """The proofs of torch by channel and variant; of several the one that went furthest."""
    proofs = {}
    for wheel in sorted(evidence.wheels, key=lambda wheel: wheel.level):
        if wheel.package == "torch" and wheel.platform == platform:
            proofs[wheel.channel, wheel.variant] = wheel
    return proofs


def _builds_of_torch(matrix: Matrix, platform: str) -> list[tuple[str, Variant]]:
    """The channels and variants of a platform, each once, in the order of the file."""
    builds: dict[tuple[str, Variant], None] = {}
    for build in matrix.builds():
        if build.package == "torch" and build.platform == platform:
            builds[build.channel, build.variant] = None
    return list(builds)


def _runs(variant: Variant, machine: Machine) -> bool:
    """True if a machine runs a variant, and some card of it, or each, has code in it."""
    if variant.cpu not in machine.cpus or variant.python not in machine.pythons:
        return False
    if bool(machine.sms) != bool(variant.sms):
        return False
    without_code = _lost(variant, machine.sms)
    if machine.together:
        return not without_code
    return not without_code or len(without_code) < len(machine.sms)


def _rank(
    variant: Variant, machine: Machine, release: str, proof: ProvedWheel | None
) -> tuple[object, ...]:
    """How good a build is for a machine: the smallest is the best."""
    without_code = _lost(variant, machine.sms)
    loses_the_first = bool(machine.sms) and machine.sms[0] in without_code
    level = 0
    if proof:
        level = proof.level
    return (
        -level,
        loses_the_first,
        len(without_code),
        sum(sm not in variant.sms for sm in machine.sms),
        tuple(-int(part) for part in release.split(".")),
        len(variant.sms),
        machine.cpus.index(variant.cpu),
        machine.pythons.index(variant.python),
    )


def _lost(variant: Variant, sms: Sequence[int]) -> tuple[int, ...]:
    """The cards that a variant has no code for."""
    without_code = []
    for sm in sms:
        if not any(sass_runs(code, sm) for code in variant.sms):
            without_code.append(sm)
    return tuple(without_code)


def _planned(project: Path, machine: Machine, candidate: Candidate) -> FarmBuild | None:
    """The build, where a plan can be made of it and the driver runs it."""
    variant = candidate.variant
    request = BuildRequest(variant, platform=machine.platform, channel=candidate.channel)
    without_code = _lost(variant, machine.sms)
    try:
        if not _runs_everywhere(project, request, machine, without_code):
            return None
        plan = resolve(project, request)
        extra = _options_of_proof(candidate.proof, plan)
        if extra:
            plan = resolve(project, replace(request, options=extra))
    except FarmError:
        return None
    cuda = plan.options.get("cuda")
    return FarmBuild(
        variant,
        candidate.channel,
        torch=str(plan.options["torch"]),
        cuda=str(cuda) if cuda else None,
        proved=_proved(candidate.proof, plan),
        words=_typed(request, extra),
        cost=_cost(plan),
        lost=without_code,
        without=absent_features(plan.without),
        platform=machine.platform,
    )


def _runs_everywhere(
    project: Path, request: BuildRequest, machine: Machine, without_code: tuple[int, ...]
) -> bool:
    """True if the driver runs a build on each card that it has code for."""
    fields: dict[str, object] = {}
    if machine.driver:
        fields["driver"] = machine.driver
    for sm in machine.sms:
        if sm in without_code:
            continue
        if not check_request(project, request, fields | {"gpu": sm}).complete:
            return False
    return True


def _options_of_proof(proof: ProvedWheel | None, plan: Plan) -> dict[str, Choice]:
    """The options of what was proved that a plan of today has not by default."""
    options = {}
    if proof is not None:
        for name, value in proof.options.items():
            if value is not None and plan.options.get(name) != value:
                options[name] = Choice(value, OPTIONS[name].flag)
    return options


def _typed(request: BuildRequest, options: Mapping[str, Choice]) -> str:
    """The words of a command that plans a build."""
    words = [f"--variant {request.variant} --channel {request.channel}"]
    if request.platform != DEFAULT:
        words.append(f"--platform {request.platform}")
    words += [OPTIONS[name].typed(choice.value) for name, choice in options.items()]
    return " ".join(words)


def _proved(proof: ProvedWheel | None, plan: Plan) -> str:
    """How far the proof of a plan's wheel goes; empty: there is none."""
    if proof is None or not proof.is_of_stack(plan):
        return ""
    if proof.is_of(plan):
        return proof.state
    return f"{proof.state}, as built on {proof.base}"


def _cost(plan: Plan) -> str:
    cost = recipe(plan.recipe).cost_for(plan.parsed_variant.sms)
    if cost is None:
        return "cost not measured"
    extent, hours = cost
    return f"{extent} {hours:g} CPU hours"
