"""The wheel for a machine: readings in, a recommendation with its reasons out. Pure: nothing is read here.

The order of questions: macOS? a GPU, and which SM? which CPU features, for which work? which Python?
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.version import InvalidVersion, Version

from farm.base.yamlfile import Model
from farm.machine.detect.hardware import (
    Judged,
    compatible,
    cpu_levels,
    dotted,
    judge_gpu,
    last_driver,
    levels,
    machine_warnings,
    sets_with,
    workload_obstacle,
)
from farm.machine.detect.readings import OTHER, Readings
from farm.plan.recommend import Machine, Own
from farm.plan.variant import Variant, sm_number
from farm.platforms.facts import DEFAULT

Work = Literal["general", "bf16", "int8"]


class Alternative(Model):
    variant: str
    why: str


class Recommendation(Model):
    """A recommendation. `variant` is None if nothing is for the machine; the warnings then say why.

    Attributes:
        channel: The channel that builds it; None if there is none.
        submit: The command that builds it.
        python: Path of the Python to install into; None if it was not found.
        pip: The command; None without a variant or an index.
        state: What the site says of the wheel that the command installs; None without a command for a published one.
        tests: Its smoke tests, a line each.
    """

    variant: str | None
    channel: str | None = None
    submit: str | None = None
    python: str | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()
    pip: str | None = None
    state: str | None = None
    tests: tuple[str, ...] = ()


def choose(
    readings: Readings,
    *,
    workload: Work = "general",
    own: Sequence[Own] | None = None,
    offered: Collection[Variant] | None = None,
    index_url: str | None = None,
) -> Recommendation:
    """The best variant for the machine.

    Args:
        readings: What is known of the machine.
        workload: `bf16` and `int8` choose the CPU level for that work, if the CPU has it.
        own: The builds for the machine, best first (`own_builds`); None: no project, the hardware alone decides.
        offered: The variants that channels offer and the driver runs, for the alternatives; None: not known.
        index_url: Root of the wheel index, as pip sees it.
    """
    return _Choice(readings, workload, own, offered, index_url).made()


def machine_of(readings: Readings, workload: Work = "general") -> Machine:
    """What a build must be for; the card with the most memory first."""
    judged = [(gpu.memory_mb or 0, one.sm) for gpu in readings.gpus if (one := judge_gpu(gpu, readings.driver)).sm]
    sms = dict.fromkeys(sm_number(sm) for _, sm in sorted(judged, key=lambda pair: -pair[0]) if sm)
    special = levels().workloads.get(workload)
    known = cpu_levels(readings.cpu, readings.os.system)
    if special and workload_obstacle(readings.cpu, special) is None:
        known = [special.level]
    pythons = _newest_first({python.name for python in readings.pythons}) or [readings.running_python]
    return Machine(tuple(sms), tuple(known), readings.os.system, tuple(pythons), _version(readings.driver))


def _version(driver: str | None) -> str | None:
    """A driver's version, where what was read is one."""
    try:
        return str(Version(driver)) and driver if driver else None
    except InvalidVersion:
        return None


def _newest_first(pythons: Collection[str]) -> list[str]:
    """Free-threaded ones last: few packages have wheels for them."""
    return sorted(pythons, key=lambda name: (name.endswith("t"), -int(name[3:].removesuffix("t"))))


@dataclass(frozen=True)
class _Fit:
    """One axis value that would do, and why."""

    word: str
    why: str


class _Choice:
    def __init__(
        self,
        readings: Readings,
        workload: Work,
        own: Sequence[Own] | None,
        offered: Collection[Variant] | None,
        index_url: str | None,
    ) -> None:
        self.readings = readings
        self.workload = workload
        self.own = own
        self.offered = offered
        self.index_url = index_url
        self.reasons: list[str] = []
        self.warnings: list[str] = list(machine_warnings(readings))
        self.judged = [judge_gpu(gpu, readings.driver) for gpu in readings.gpus]
        self.gpu_fits = self._gpus()
        self.cpu_fits = list(self._cpus())
        self.found = {python.name: python.path for python in readings.pythons}

    def made(self) -> Recommendation:
        if not self.cpu_fits:
            return self._nothing()
        variant = self.own[0].variant if self.own else self._of_hardware()
        self.reasons += [fit.why for fit in self.gpu_fits if fit.word == variant.gpu][:1]
        self.reasons += [fit.why for fit in self.cpu_fits if fit.word == variant.cpu][:1]
        where = self.found.get(variant.python)
        # The Python that runs the farm need not be on the PATH.
        self.reasons.append(
            f"Python {variant.python_version} is " + (f"at {where}" if where else "the one that runs this")
        )
        self._explain_channel(variant)
        pip = None
        if self.index_url is not None:
            pip = f"pip install torch --extra-index-url {self.index_url.rstrip('/')}/whl/{variant.group}/simple/"
        else:
            self.reasons.append("no index is configured, so there is no pip command: name one with --index URL")
        system = self.readings.os.system
        words = f"--variant {variant}" + ("" if system in (DEFAULT, OTHER) else f" --platform {system}")
        return Recommendation(
            variant=str(variant),
            channel=self.own[0].channel if self.own else None,
            submit=f"farm submit {self.own[0].words if self.own else words}",
            python=where,
            reasons=tuple(self.reasons),
            warnings=tuple(self.warnings),
            alternatives=tuple(self._alternatives(variant)),
            pip=pip,
        )

    def _of_hardware(self) -> Variant:
        pythons = _newest_first(self.found) or [self.readings.running_python]
        return Variant(self.gpu_fits[0].word, self.cpu_fits[0].word, pythons[0])

    def _explain_channel(self, variant: Variant) -> None:
        if self.own is None:
            self.warnings.append("no ci/matrix.yaml here: whether a channel offers the variant is not known")
            return
        if not self.own:
            self.warnings.append(f"no channel offers {variant}")
            return
        first, *more = self.own
        best = self.gpu_fits[0].word, self.cpu_fits[0].word
        if not first.proved and (variant.gpu, variant.cpu) != best:
            self.reasons.append(f"no channel that fits offers {best[0]}-{best[1]} for a Python found here")
        lost = "".join(f"; no code for sm_{sm}" for sm in first.lost)
        self.reasons.append(f"channel {first.channel}: {first.release}; {first.standing}; {first.cost}{lost}")
        if more:
            listed = "; ".join(f"{own.release} ({own.channel}, {own.standing})" for own in more)
            self.reasons.append(f"other builds for it: {listed}")

    # --- the axes -------------------------------------------------------------------------------------------------

    def _gpus(self) -> list[_Fit]:
        """GPU words that run here, best first."""
        platform = self.readings.os.platform
        if platform and not platform.cuda:
            return [_Fit("mps", "macOS on Apple silicon: Metal (mps)")]
        for gpu in self.judged:
            self.warnings += [text for text in gpu.warnings if text not in self.warnings]
        usable = [gpu for gpu in self.judged if gpu.sm]
        self._warn_of_last_driver(usable)
        sms = sorted({gpu.sm for gpu in usable if gpu.sm}, key=sm_number)
        if not sms:
            why = "no GPU that a variant is for" if self.judged else "no NVIDIA GPU was found"
            return [_Fit("cpu", f"{why}: CPU only")]
        if len(sms) == 1:
            return self._one(usable, sms[0])
        return self._several(usable, sms)

    def _warn_of_last_driver(self, usable: list[Judged]) -> None:
        """Of several GPUs, the one whose driver support ended first sets the limit."""
        lasts = [(last, gpu.name) for gpu in usable if gpu.sm and (last := last_driver(gpu.sm))]
        if lasts and self.readings.driver:
            last, name = min(lasts)
            self.warnings.append(f"{last} is the last driver branch for {name}: do not install a newer one")

    def _one(self, usable: list[Judged], sm: str) -> list[_Fit]:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in usable))
        many = f"{len(usable)} x " if len(usable) > 1 else ""
        exact = _Fit(sm, f"{many}{names}: {dotted(sm)} ({usable[0].source})")
        sets = [_Fit(name, f"{names}: {dotted(sm)}, which the set {name} holds") for name in sets_with([sm])]
        lower = [_Fit(low, f"{names}: {dotted(sm)}, which runs {dotted(low)} code") for low in compatible(sm)]
        return [exact, *sets, *lower]

    def _several(self, usable: list[Judged], sms: list[str]) -> list[_Fit]:
        listed = "; ".join(f"{gpu.name} is {dotted(gpu.sm)}" for gpu in usable if gpu.sm)
        sets = [_Fit(name, f"{listed}: the set {name} holds code for all of them") for name in sets_with(sms)]
        low = sms[0]
        left_out = [sm for sm in sms[1:] if low not in compatible(sm)]
        text = f"{listed}: the lowest, {dotted(low)}, as no named set holds them all"
        text += f"; {', '.join(map(dotted, left_out))} cannot run it" if left_out else "; the others run it too"
        return [*sets, _Fit(low, text)]

    def _cpus(self) -> Iterator[_Fit]:
        """CPU levels that the machine has, best first for the workload."""
        cpu, system = self.readings.cpu, self.readings.os.system
        known = cpu_levels(cpu, system)
        special = levels().workloads.get(self.workload)
        if special and known:
            obstacle = workload_obstacle(cpu, special)
            if obstacle is None:
                yield _Fit(special.level, f"the CPU has {special.needs[-1]}: {special.level}, for {special.what}")
            else:
                self.warnings.append(f"--workload {self.workload} asks for {special.level}, but {obstacle}")
        for level in known:
            needs = levels().levels[cpu.machine][level]
            yield _Fit(level, f"the CPU has {', '.join(needs)}: {level}" if needs else f"the CPU is {level}")
        if "sve" in cpu.features and "armv8_2" in known and "armv9" not in known:
            self.warnings.append(
                "the CPU has SVE but not SVE2, as Graviton3 (Neoverse V1): armv9 code would stop with SIGILL"
            )

    def _alternatives(self, chosen: Variant) -> Iterator[Alternative]:
        """Other variants that run here; only offered ones, if channels are known."""
        seen = {chosen}
        for variant, why in self._others(chosen):
            if variant not in seen and (self.offered is None or variant in self.offered):
                seen.add(variant)
                yield Alternative(variant=str(variant), why=why)

    def _others(self, chosen: Variant) -> Iterator[tuple[Variant, str]]:
        gpu, cpu, python = chosen.gpu, chosen.cpu, chosen.python
        for name, special in levels().workloads.items():
            if workload_obstacle(self.readings.cpu, special) is None:
                yield Variant(gpu, special.level, python), f"for {special.what} (--workload {name})"
        ranked = [fit.word for fit in self.cpu_fits]
        for lower in ranked[ranked.index(cpu) + 1 :][:1]:
            yield Variant(gpu, lower, python), f"runs here too; for sharing with CPUs that lack {cpu}"
        for judged in self.judged:
            if judged.sm:
                yield Variant(judged.sm, cpu, python), f"exactly for the {judged.name}"
        for fit in self.gpu_fits:
            yield Variant(fit.word, cpu, python), fit.why
        if gpu not in ("cpu", "mps"):
            yield Variant("cpu", cpu, python), "leaves the GPU alone"
        for other in _newest_first(self.found):
            yield Variant(gpu, cpu, other), f"for Python {other[2]}.{other[3:]}, found at {self.found[other]}"

    def _nothing(self) -> Recommendation:
        cpu, system = self.readings.cpu, self.readings.os
        why = f"no variant is for {cpu.machine} on {system.name}"
        platform = system.platform
        if platform and platform.in_images and cpu.machine in levels().levels:
            lowest, needs = list(levels().levels[cpu.machine].items())[-1]
            why = f"the CPU lacks {', '.join(sorted(set(needs) - set(cpu.features)))}, which {lowest} needs"
        if platform and platform.cuda and cpu.machine == "x86_64" and not cpu.features:
            why = "the CPU's features could not be read"
        return Recommendation(variant=None, warnings=(why, *self.warnings))
