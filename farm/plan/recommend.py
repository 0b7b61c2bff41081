"""Which build of one's own is for a machine: detect, `farm why`, `farm plan` and the site ask this
one function.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from farm import catalog
from farm.base.errors import FarmError
from farm.catalog.gpus import sass_runs
from farm.plan.build_variables import absent_features
from farm.plan.evidence import Evidence, ProvedWheel, load_evidence
from farm.plan.matrix import Matrix, load_matrix
from farm.plan.options import OPTIONS, Choice
from farm.plan.recipe import recipe
from farm.plan.request import BuildRequest
from farm.plan.resolve import check_request, resolve
from farm.plan.variant import PYTHONS, Variant
from farm.platforms.facts import DEFAULT

MAX_TRIED = 12  # candidates whose plan is made before the search gives up


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
NEWEST_FIRST = tuple(
    sorted(PYTHONS, key=lambda word: (word.endswith("t"), -int(word[3:].removesuffix("t"))))
)


def machine_of(
    sms: tuple[int, ...],
    place: str,
    python: str | None = None,
    cpu: str | None = None,
    driver: str | None = None,
) -> Machine:
    """A machine of which the cards are known, and where: `linux-x86_64`; its CPU is not known."""
    platform, _, machine = place.partition("-")
    arm = ("armv9", "armv8_2") if min(sms) >= NEWER_ARM else ("armv8_2",)
    cpus = ("avx2", "avx", "sse41") if machine == "x86_64" else arm
    # A free-threaded Python that the farm builds nothing for counts as the one with the lock.
    locked_python = (python or "").removesuffix("t")
    return Machine(
        sms,
        (cpu,) if cpu else cpus,
        platform,
        (locked_python,) if locked_python in PYTHONS else NEWEST_FIRST,
        driver,
    )


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
        return f"tested: {self.proved}" if self.proved else "never built"

    @property
    def driver(self) -> str | None:
        """The first driver that runs it; None: no CUDA, or none is known."""
        if self.cuda:
            return catalog.cuda_majors()[self.cuda.split(".")[0]].driver(self.platform)
        return None

    @property
    def release(self) -> str:
        return f"torch {self.torch}" + (f", CUDA {self.cuda}" if self.cuda else "")


def buildable_here(
    project: Path, machine: Machine, torch: str | None = None, limit: int = 3
) -> list[FarmBuild]:
    """The builds that are for a machine, at most `limit`, each of which can be planned with its own
    words.

    Proved ones first, and of them those that ran on a card; then those with code for every card,
    for just these cards, with the newest torch.
    """
    matrix = load_matrix(project)
    evidence = load_evidence(project)
    builds: list[FarmBuild] = []
    tried = sorted(_candidates(matrix, evidence, machine, torch), key=lambda each: each[0])[
        :MAX_TRIED
    ]
    for _, channel, variant, proof in tried:
        # Of a channel that is there already this is another GPU word, CPU level or Python.
        if len(builds) < limit and not any(build.channel == channel for build in builds):
            build = _planned(project, machine, channel, variant, proof)
            if build:
                builds.append(build)
    return sorted(builds, key=lambda build: (not build.proved, len(build.lost)))


Candidate = tuple[tuple[object, ...], str, Variant, ProvedWheel | None]
"""Rank, channel, variant and its proof."""


def _candidates(
    matrix: Matrix, evidence: Evidence, machine: Machine, torch: str | None
) -> Iterator[Candidate]:
    """Builds of the matrix that some card runs, and how good each is; the smallest rank is the
    best.
    """
    # Of several proofs the one that went furthest counts.
    proofs = {
        (wheel.channel, wheel.variant): wheel
        for wheel in sorted(evidence.wheels, key=lambda wheel: wheel.level)
        if wheel.package == "torch" and wheel.platform == machine.platform
    }
    builds = (b for b in matrix.builds() if b.package == "torch" and b.platform == machine.platform)
    for channel, variant in dict.fromkeys((build.channel, build.variant) for build in builds):
        release = str(matrix.channels[channel].text.options["torch"])
        if (
            torch not in (None, release)
            or variant.cpu not in machine.cpus
            or variant.python not in machine.pythons
        ):
            continue
        without_code = _lost(variant, machine.sms)
        if (without_code and (machine.together or len(without_code) == len(machine.sms))) or bool(
            machine.sms
        ) != bool(variant.sms):
            continue
        proof = proofs.get((channel, str(variant)))
        first = not machine.sms or machine.sms[0] not in without_code
        inexact = sum(sm not in variant.sms for sm in machine.sms)
        place = machine.cpus.index(variant.cpu), machine.pythons.index(variant.python)
        newest = tuple(-int(part) for part in release.split("."))
        rank = (
            -proof.level if proof else 0,
            not first,
            len(without_code),
            inexact,
            newest,
            len(variant.sms),
            *place,
        )
        yield rank, channel, variant, proof


def _lost(variant: Variant, sms: Sequence[int]) -> tuple[int, ...]:
    return tuple(sm for sm in sms if not any(sass_runs(code, sm) for code in variant.sms))


def _planned(
    project: Path, machine: Machine, channel: str, variant: Variant, proof: ProvedWheel | None
) -> FarmBuild | None:
    """The build, where a plan can be made of it and the driver runs it."""
    request = BuildRequest(variant, platform=machine.platform, channel=channel)
    without_code = _lost(variant, machine.sms)
    try:
        for sm in machine.sms:
            fields = {"gpu": sm} | ({"driver": machine.driver} if machine.driver else {})
            if sm not in without_code and not check_request(project, request, fields).complete:
                return None
        plan = resolve(project, request)
        # What was proved may have other options than a plan of today has by default: then they are
        # in the words.
        extra = {
            name: Choice(value, OPTIONS[name].flag)
            for name, value in (proof.options.items() if proof else ())
            if value is not None and plan.options.get(name) != value
        }
        if extra:
            plan = resolve(project, replace(request, options=extra))
    except FarmError:
        return None
    words = [f"--variant {variant} --channel {channel}"]
    if machine.platform != DEFAULT:
        words.append(f"--platform {machine.platform}")
    words += [_spelled(name, choice) for name, choice in extra.items()]
    state = ""
    if proof and proof.is_of_stack(plan):
        state = proof.state if proof.is_of(plan) else f"{proof.state}, as built on {proof.base}"
    cuda = plan.options.get("cuda")
    lacks = absent_features(plan.without)
    hours = recipe(plan.recipe).cost_for(variant.sms)
    if hours:
        cost = f"{hours[0]} {hours[1]:g} CPU hours"
    else:
        cost = "cost not measured"
    release = str(plan.options["torch"]), str(cuda) if cuda else None
    return FarmBuild(
        variant,
        channel,
        *release,
        state,
        " ".join(words),
        cost,
        without_code,
        lacks,
        machine.platform,
    )


def _spelled(name: str, choice: Choice) -> str:
    flag = OPTIONS[name].flag
    if isinstance(choice.value, bool):
        return flag if choice.value else flag.replace("--", "--no-", 1)
    return f"{flag} {choice.value}"
