"""The wheel for a machine: readings in, a recommendation with its reasons out. Pure: nothing is read here.

The order of questions: macOS? a GPU, and which SM? which CPU features, for which work? which Python?
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from packaging.version import Version

from farm.base.yamlfile import Model
from farm.machine.detect.hardware import (
    Judged,
    compatible,
    cpu_levels,
    dotted,
    driver_problem,
    judge_gpu,
    last_driver,
    levels,
    machine_warnings,
    sets_with,
    workload_obstacle,
)
from farm.machine.detect.readings import Readings
from farm.plan.recommend import Machine, Own
from farm.plan.variant import Variant, sm_number

Work = Literal["general", "bf16", "int8"]


class Offer(NamedTuple):
    """A channel offers torch for a variant on the machine's platform. `cuda` is None for wheels without CUDA."""

    channel: str
    torch: str
    cuda: str | None
    variant: Variant


class Alternative(Model):
    variant: str
    why: str


class Recommendation(Model):
    """A recommendation. `variant` is None if nothing is for the machine; the warnings then say why.

    Attributes:
        channel: The first channel that offers the variant and whose CUDA the driver runs; None if there is none.
        python: Path of the Python to install into; None if it was not found.
        pip: The command; None without a variant or an index.
        state: What the site says of the wheel that the command installs; None without a command for a published one.
        tests: Its smoke tests, a line each.
    """

    variant: str | None
    channel: str | None
    python: str | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    pip: str | None
    state: str | None = None
    tests: tuple[str, ...] = ()


def choose(
    readings: Readings,
    *,
    workload: Work = "general",
    offers: Sequence[Offer] | None = None,
    index_url: str | None = None,
    tested: Own | None = None,
) -> Recommendation:
    """The best variant for the machine.

    Args:
        readings: What is known of the machine.
        workload: `bf16` and `int8` choose the CPU level for that work, if the CPU has it.
        offers: What the channels offer on the machine's platform, in their order; None if no channels are known, and
            then the hardware alone decides.
        index_url: Root of the wheel index, as pip sees it.
        tested: A build for the machine that was tested: it is preferred to what was never built.
    """
    return _Choice(readings, workload, offers, index_url, tested).made()


def machine_of(readings: Readings) -> Machine:
    """What a build must be for; the card with the most memory first."""
    judged = [(gpu.memory_mb or 0, one.sm) for gpu in readings.gpus if (one := judge_gpu(gpu, readings.driver)).sm]
    sms = dict.fromkeys(sm_number(sm) for _, sm in sorted(judged, key=lambda pair: -pair[0]) if sm)
    pythons = sorted((p.name for p in readings.pythons), key=lambda n: (n.endswith("t"), -int(n[3:].removesuffix("t"))))
    levels_ = tuple(cpu_levels(readings.cpu, readings.os.system))
    return Machine(tuple(sms), levels_, readings.os.system, tuple(pythons), readings.driver)


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
        offers: Sequence[Offer] | None,
        index_url: str | None,
        tested: Own | None,
    ) -> None:
        self.tested = tested
        self.readings = readings
        self.workload = workload
        self.index_url = index_url
        self.reasons: list[str] = []
        self.warnings: list[str] = list(machine_warnings(readings))
        self.judged = [judge_gpu(gpu, readings.driver) for gpu in readings.gpus]
        self.gpu_fits = self._gpus()
        self.cpu_fits = list(self._cpus())
        self.found = {python.name: python.path for python in readings.pythons}
        self.offers = offers
        problems = {o: driver_problem(o.cuda, readings.driver, readings.os.system) for o in offers or ()}
        self.problems = {offer: text for offer, text in problems.items() if text}

    def made(self) -> Recommendation:
        if not self.cpu_fits:
            return self._nothing()
        variant = self.tested.variant if self.tested else self._best()
        self.reasons += [fit.why for fit in self.gpu_fits if fit.word == variant.gpu][:1]
        self.reasons += [fit.why for fit in self.cpu_fits if fit.word == variant.cpu][:1]
        self._explain_steps_down(variant)
        self._explain_python(variant)
        channel, requirement = self._channel(variant)
        if self.tested:
            channel = self.tested.channel
            lost = ", ".join(f"sm_{sm}" for sm in self.tested.lost)
            self.reasons.append(
                f"channel {channel} was {self.tested.standing}" + (f"; no code for {lost}" if lost else "")
            )
        pip = None
        if self.index_url is not None:
            pip = f"pip install {requirement} --index-url {self.index_url.rstrip('/')}/whl/{variant.group}/simple/"
        else:
            self.reasons.append("no index is configured, so there is no pip command: name one with --index URL")
        return Recommendation(
            variant=str(variant),
            channel=channel,
            python=self.found.get(variant.python),
            reasons=tuple(self.reasons),
            warnings=tuple(self.warnings),
            alternatives=tuple(self._alternatives(variant)),
            pip=pip,
        )

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

    def _pythons(self) -> list[str]:
        """Newest first; free-threaded ones last: few packages have wheels for them."""
        return sorted(
            self.found, key=lambda name: (not name.endswith("t"), int(name[3:].removesuffix("t"))), reverse=True
        )

    # --- the choice -------------------------------------------------------------------------------------------------

    def _best(self) -> Variant:
        """The first that is offered and that the driver runs; else that is offered; else what the hardware says."""
        fallback = self.readings.running_python
        if self.offers is None:
            return Variant(self.gpu_fits[0].word, self.cpu_fits[0].word, next(iter(self._pythons()), fallback))
        for acceptable in (self._usable_offers(), {offer.variant for offer in self.offers}):
            for gpu in self.gpu_fits:
                for cpu in self.cpu_fits:
                    for python in self._pythons():
                        variant = Variant(gpu.word, cpu.word, python)
                        if variant in acceptable:
                            return variant
        return Variant(self.gpu_fits[0].word, self.cpu_fits[0].word, fallback)

    def _usable_offers(self) -> set[Variant]:
        return {offer.variant for offer in self.offers or () if offer not in self.problems}

    def _explain_steps_down(self, variant: Variant) -> None:
        if self.tested:  # the reason is that it was tested
            return
        best = self.gpu_fits[0].word, self.cpu_fits[0].word
        if self.offers is not None and (variant.gpu, variant.cpu) != best:
            self.reasons.append(f"no channel that fits offers {best[0]}-{best[1]} for a Python found here")

    def _explain_python(self, variant: Variant) -> None:
        version, where = variant.python_version, self.found.get(variant.python)
        if self.offers is None and where:
            self.reasons.append(f"Python {version} is the newest found: {where}")
        elif where and any(offer.variant == variant for offer in self.offers or ()):
            self.reasons.append(f"Python {version} is the newest found that a channel offers: {where}")
        else:  # it need not be on the PATH
            self.reasons.append(f"Python {version} is the one that runs this")

    def _channel(self, variant: Variant) -> tuple[str | None, str]:
        """The channel, and what to ask pip for: pinned if the newest torch there is for a newer driver."""
        if self.offers is None:
            self.warnings.append("no ci/matrix.yaml here: whether a channel offers the variant is not known")
            return None, "torch"
        offering = [offer for offer in self.offers if offer.variant == variant]
        usable = [offer for offer in offering if offer not in self.problems]
        if not offering:
            self.warnings.append(f"no channel offers {variant}")
            return None, "torch"
        refused = [offer for offer in offering if offer in self.problems]
        self.warnings += [f"channel {offer.channel}: {self.problems[offer]}" for offer in refused]
        if not usable:
            self.warnings.append(f"the driver is too old for every channel that offers {variant}: update the driver")
            return None, "torch"
        newest = max((offer.torch for offer in usable), key=Version)
        self.reasons.append(
            f"channel {usable[0].channel} offers it" + (f" (CUDA {usable[0].cuda})" if usable[0].cuda else "")
        )
        # Reversed, so that the first channel with a release is the one that is named.
        versions = {offer.torch: offer.channel for offer in reversed(usable)}
        if len(versions) > 1:
            listed = ", ".join(f"{release} ({versions[release]})" for release in sorted(versions, key=Version))
            self.reasons.append(f"channels offer torch {listed}; `--channel` of farm submit chooses what is built")
        # Without a pin, pip would take the newest torch of the group, for which the driver is too old.
        pinned = any(Version(offer.torch) > Version(newest) for offer in refused)
        return usable[0].channel, f"torch=={newest}" if pinned else "torch"

    def _alternatives(self, chosen: Variant) -> Iterator[Alternative]:
        """Other variants that run here; only offered ones, if channels are known."""
        usable = self._usable_offers()
        seen = {chosen}
        for variant, why in self._others(chosen):
            if variant not in seen and (self.offers is None or variant in usable):
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
        for other in self._pythons():
            yield Variant(gpu, cpu, other), f"for Python {other[2]}.{other[3:]}, found at {self.found[other]}"
        for offer in self.offers or ():
            if offer.variant.python not in self.found and (offer.variant.gpu, offer.variant.cpu) == (gpu, cpu):
                yield offer.variant, f"needs Python {offer.variant.python_version}, which was not found here"

    def _nothing(self) -> Recommendation:
        cpu, system = self.readings.cpu, self.readings.os
        why = f"no variant is for {cpu.machine} on {system.name}"
        platform = system.platform
        if platform and platform.in_images and cpu.machine in levels().levels:
            lowest, needs = list(levels().levels[cpu.machine].items())[-1]
            why = f"the CPU lacks {', '.join(sorted(set(needs) - set(cpu.features)))}, which {lowest} needs"
        if platform and platform.cuda and cpu.machine == "x86_64" and not cpu.features:
            why = "the CPU's features could not be read"
        return Recommendation(
            variant=None,
            channel=None,
            python=None,
            reasons=(),
            warnings=(why, *self.warnings),
            alternatives=(),
            pip=None,
        )
