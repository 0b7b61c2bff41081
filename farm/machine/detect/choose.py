"""The wheel for a machine: readings in, a recommendation with its reasons out. Pure: nothing is read here.

The order of questions: macOS? a GPU, and which SM? which CPU features? which Python?
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from farm.base.yamlfile import Model
from farm.machine.detect.hardware import (
    compatible,
    cpu_levels,
    dotted,
    judge_gpu,
    last_driver,
    levels,
    machine_warnings,
    sets_with,
)
from farm.machine.detect.readings import Readings
from farm.plan.compat.stack import NUMBERS
from farm.plan.recommend import Machine, Own
from farm.plan.variant import Variant, sm_number


class Recommendation(Model):
    """A recommendation. `variant` is None if nothing is for the machine; the warnings then say why.

    Attributes:
        channel: The channel that builds it; None if there is none.
        submit: The command that builds it; None without a channel.
        python: Path of the Python to install into; None if it was not found.
        pip: The command that installs a published wheel; None where there is none (`farm.machine.detect.published`).
        state: What the site says of the wheel that the command installs; None without a command for a published one.
        tests: Its smoke tests, a line each.
        alternatives: Other variants that run on the machine, best first.
    """

    variant: str | None
    channel: str | None = None
    submit: str | None = None
    python: str | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...]
    alternatives: tuple[str, ...] = ()
    pip: str | None = None
    state: str | None = None
    tests: tuple[str, ...] = ()


def choose(readings: Readings, own: Sequence[Own] = ()) -> Recommendation:
    """The best variant for the machine.

    Args:
        readings: What is known of the machine.
        own: The builds for the machine, best first (`own_builds`); without one the hardware alone decides.
    """
    warnings = list(machine_warnings(readings))
    gpus, cpus = _gpus(readings, warnings), list(_cpus(readings, warnings))
    if not cpus:
        return Recommendation(variant=None, warnings=(_why_nothing(readings), *warnings))
    found = {python.name: python.path for python in readings.pythons}
    pythons = _newest_first(found) or [readings.running_python]
    runs = [Variant(gpu.word, cpu.word, python) for gpu in gpus for python in pythons for cpu in cpus]
    if gpus[0].word not in ("cpu", "mps"):
        runs += [Variant("cpu", cpu.word, python) for python in pythons for cpu in cpus]
    variant = own[0].variant if own else runs[0]
    where = found.get(variant.python)
    # The Python that runs the farm need not be on the PATH.
    python = f"Python {variant.python_version} is " + (f"at {where}" if where else "the one that runs this")
    reasons = [fit.why for fit in gpus if fit.word == variant.gpu][:1]
    reasons += [*([fit.why for fit in cpus if fit.word == variant.cpu][:1]), python]
    if own:
        reasons += _channels(own, f"{gpus[0].word}-{cpus[0].word}")
    else:
        warnings.append(f"no channel offers {variant}")
    return Recommendation(
        variant=str(variant),
        channel=own[0].channel if own else None,
        submit=f"farm submit {own[0].words}" if own else None,
        python=where,
        reasons=tuple(reasons),
        warnings=tuple(warnings),
        alternatives=tuple(dict.fromkeys(str(other) for other in runs if other != variant)),
    )


def _channels(own: Sequence[Own], best: str) -> Iterator[str]:
    """The channel of the first build, and the other builds; `best` is what the hardware alone would get."""
    first, *more = own
    if not first.proved and first.variant.group != best:
        yield f"no channel that fits offers {best} for a Python found here"
    lost = "".join(f"; no code for sm_{sm}" for sm in first.lost)
    yield f"channel {first.channel}: {first.release}; {first.standing}; {first.cost}{lost}"
    if more:
        listed = "; ".join(f"{other.release} ({other.channel}, {other.standing})" for other in more)
        yield f"other builds for it: {listed}"


def machine_of(readings: Readings) -> Machine:
    """The machine that a build is for; the card with the most memory first."""
    judged = [(gpu.memory_mb or 0, one.sm) for gpu in readings.gpus if (one := judge_gpu(gpu, readings.driver)).sm]
    sms = dict.fromkeys(sm_number(sm) for _, sm in sorted(judged, key=lambda pair: -pair[0]) if sm)
    known = cpu_levels(readings.cpu, readings.os.system)
    pythons = _newest_first({python.name for python in readings.pythons}) or [readings.running_python]
    return Machine(tuple(sms), tuple(known), readings.os.system, tuple(pythons), _version(readings.driver))


def _version(driver: str | None) -> str | None:
    """A driver's version, where what was read is one."""
    return driver if driver and NUMBERS.fullmatch(driver) else None


def _newest_first(pythons: Collection[str]) -> list[str]:
    """Free-threaded ones last: few packages have wheels for them."""
    return sorted(pythons, key=lambda name: (name.endswith("t"), -int(name[3:].removesuffix("t"))))


@dataclass(frozen=True)
class _Fit:
    """One axis value that would do, and why."""

    word: str
    why: str


def _gpus(readings: Readings, warnings: list[str]) -> list[_Fit]:
    """GPU words that run here, best first; what is wrong with cards and driver is added to `warnings`."""
    if readings.os.platform and not readings.os.platform.cuda:
        return [_Fit("mps", "macOS on Apple silicon: Metal (mps)")]
    judged = [judge_gpu(gpu, readings.driver) for gpu in readings.gpus]
    warnings += dict.fromkeys(text for gpu in judged for text in gpu.warnings)
    usable = [gpu for gpu in judged if gpu.sm]
    # Of several GPUs, the one whose driver support ended first sets the limit.
    lasts = [(last, gpu.name) for gpu in usable if gpu.sm and (last := last_driver(gpu.sm))]
    if lasts and readings.driver:
        last, name = min(lasts)
        warnings.append(f"{last} is the last driver branch for {name}: do not install a newer one")
    sms = sorted({gpu.sm for gpu in usable if gpu.sm}, key=sm_number)
    if not sms:
        why = "no GPU that a variant is for" if judged else "no NVIDIA GPU was found"
        return [_Fit("cpu", f"{why}: CPU only")]
    low, names = sms[0], ", ".join(dict.fromkeys(gpu.name for gpu in usable))
    if len(sms) == 1:
        many = f"{len(usable)} x " if len(usable) > 1 else ""
        exact = _Fit(low, f"{many}{names}: {dotted(low)} ({usable[0].source})")
        sets = [_Fit(name, f"{names}: {dotted(low)}, which the set {name} holds") for name in sets_with(sms)]
        return [
            exact,
            *sets,
            *(_Fit(sm, f"{names}: {dotted(low)}, which runs {dotted(sm)} code") for sm in compatible(low)),
        ]
    listed = "; ".join(f"{gpu.name} is {dotted(gpu.sm)}" for gpu in usable if gpu.sm)
    sets = [_Fit(name, f"{listed}: the set {name} holds code for all of them") for name in sets_with(sms)]
    left_out = [dotted(sm) for sm in sms[1:] if low not in compatible(sm)]
    text = f"{listed}: the lowest, {dotted(low)}, as no named set holds them all"
    text += f"; {', '.join(left_out)} cannot run it" if left_out else "; the others run it too"
    return [*sets, _Fit(low, text), *(_Fit(sm, f"{listed}: for one of them") for sm in sms[1:])]


def _cpus(readings: Readings, warnings: list[str]) -> Iterator[_Fit]:
    """CPU levels that the machine has, best first."""
    cpu = readings.cpu
    known = cpu_levels(cpu, readings.os.system)
    for level in known:
        needs = levels().levels[cpu.machine][level]
        yield _Fit(level, f"the CPU has {', '.join(needs)}: {level}" if needs else f"the CPU is {level}")
    if "sve" in cpu.features and "armv8_2" in known and "armv9" not in known:
        warnings.append("the CPU has SVE but not SVE2, as Graviton3 (Neoverse V1): armv9 code would stop with SIGILL")


def _why_nothing(readings: Readings) -> str:
    """The reason why no variant is for the machine."""
    cpu, platform = readings.cpu, readings.os.platform
    if platform and platform.cuda and cpu.machine == "x86_64" and not cpu.features:
        return "the CPU's features could not be read"
    if platform and platform.in_images and cpu.machine in levels().levels:
        lowest, needs = list(levels().levels[cpu.machine].items())[-1]
        return f"the CPU lacks {', '.join(sorted(set(needs) - set(cpu.features)))}, which {lowest} needs"
    return f"no variant is for {cpu.machine} on {readings.os.name}"
