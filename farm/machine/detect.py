"""The variant for a machine: readings in, a recommendation with its reasons out.

The order of questions: macOS? a GPU, and which SM? which CPU features? which Python? The published
wheel for it is found by published.py.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from farm import catalog
from farm.base.yamlfile import Model
from farm.machine.cards import compatible, dotted, judge_gpu, last_driver, sets_with
from farm.machine.readings import Cpu, Readings
from farm.plan.compat.stack import NUMBERS
from farm.plan.recommend import FarmBuild, Machine
from farm.plan.variant import Variant, sm_number
from farm.platforms.facts import PLATFORMS


def cpu_levels(cpu: Cpu, system: str) -> list[str]:
    """The levels of `farm/catalog/cpus.yaml` that the CPU has and that are built on this system,
    best first.
    """
    platform = PLATFORMS.get(system)
    if platform is None or cpu.machine not in platform.built_on:
        return []
    has = set(cpu.features)
    level_features = catalog.cpu_features().levels[cpu.machine]
    return [level for level, needs in level_features.items() if has.issuperset(needs)]


def machine_warnings(readings: Readings) -> Iterator[str]:
    """Obstacles to any wheel."""
    platform = readings.os.platform
    if any("version mismatch" in item.why for item in readings.missing):
        yield (
            "the NVIDIA driver and its libraries are of different versions, as after an update: "
            "restart the machine, "
            "then run farm detect again"
        )
    elif readings.unclaimed_gpus and readings.inside == "container":
        yield (
            f"{readings.unclaimed_gpus} NVIDIA display device(s) are on the PCI bus, but this "
            "container has no "
            "driver libraries: start it with --gpus all (NVIDIA Container Toolkit)"
        )
    elif readings.unclaimed_gpus:
        yield (
            f"{readings.unclaimed_gpus} NVIDIA display device(s) are on the PCI bus, but no "
            "NVIDIA driver tells of "
            "them: install the driver, then run farm detect again"
        )
    if readings.inside == "wsl" and not readings.gpus:
        yield (
            "this is WSL, which uses the driver of Windows: for an NVIDIA card install the driver "
            "there, not here, "
            "then run wsl --update"
        )
    if platform and platform.in_images and readings.os.libc is None:
        yield (
            "the C library is not glibc (Alpine?): the wheels are manylinux wheels and do not "
            "install here"
        )
    if readings.translated:
        yield "this Python is an x86_64 one under Rosetta 2: install into an arm64 Python"
    if platform and not platform.cuda:
        version = readings.os.version
        if NUMBERS.fullmatch(version) and catalog.number(version) < catalog.number(
            catalog.cpu_features().macos_min
        ):
            yield (
                f"macOS {readings.os.version} is too old for PyTorch on Metal: it needs "
                f"{catalog.cpu_features().macos_min} or newer"
            )


class Recommendation(Model):
    """A recommendation. `variant` is None if nothing is for the machine; the warnings then say why.

    `submit` builds it, from `channel`; `python` is the path of the one to install into. `pip`
    installs a published wheel, of which the site says `state` and `tests`. `alternatives` run here
    too, best first. None: there is none.
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


def choose(readings: Readings, own: Sequence[FarmBuild] = ()) -> Recommendation:
    """The best variant for the machine; `own` are its builds, best first: without one the hardware
    alone decides.
    """
    warnings = list(machine_warnings(readings))
    gpus = _gpus(readings, warnings)
    cpus = list(_cpus(readings, warnings))
    if not cpus:
        return Recommendation(variant=None, warnings=(_why_nothing(readings), *warnings))
    interpreters = {python.name: python.path for python in readings.pythons}
    pythons = _pythons(readings)
    runs = [
        Variant(gpu.word, cpu.word, python) for gpu in gpus for python in pythons for cpu in cpus
    ]
    if gpus[0].word not in ("cpu", "mps"):
        runs += [Variant("cpu", cpu.word, python) for python in pythons for cpu in cpus]
    variant = own[0].variant if own else runs[0]
    where = interpreters.get(variant.python)
    # The Python that runs the farm need not be on the PATH.
    python = f"Python {variant.python_version} is " + (
        f"at {where}" if where else "the one that runs this"
    )
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
        alternatives=tuple(
            dict.fromkeys(str(alternative) for alternative in runs if alternative != variant)
        ),
    )


def _channels(own: Sequence[FarmBuild], best: str) -> Iterator[str]:
    """The channel of the first build, and the other builds; `best` is what the hardware alone would
    get.
    """
    first, *further_builds = own
    if not first.proved and first.variant.group != best:
        yield f"no channel that fits offers {best} for a Python found here"
    missing_code = "".join(f"; no code for sm_{sm}" for sm in first.lost)
    yield f"channel {first.channel}: {first.release}; {first.standing}; {first.cost}{missing_code}"
    if further_builds:
        further_text = "; ".join(
            f"{build.release} ({build.channel}, {build.standing})" for build in further_builds
        )
        yield f"other builds for it: {further_text}"


def machine_of(readings: Readings) -> Machine:
    """The machine that a build is for; the card with the most memory first."""
    memory_and_sm = [
        (gpu.memory_mb or 0, verdict.sm)
        for gpu in readings.gpus
        if (verdict := judge_gpu(gpu, readings.driver)).sm
    ]
    sms = dict.fromkeys(
        sm_number(sm) for _, sm in sorted(memory_and_sm, key=lambda pair: -pair[0]) if sm
    )
    levels_here = cpu_levels(readings.cpu, readings.os.system)
    if NUMBERS.fullmatch(readings.driver or ""):
        driver = readings.driver
    else:
        driver = None
    return Machine(
        tuple(sms), tuple(levels_here), readings.os.system, tuple(_pythons(readings)), driver
    )


def _pythons(readings: Readings) -> list[str]:
    """The newest first, but free-threaded ones last: few packages have wheels for them."""
    names = [python.name for python in readings.pythons] or [readings.running_python]
    return sorted(names, key=lambda name: (name.endswith("t"), -int(name[3:].removesuffix("t"))))


class AxisChoice(NamedTuple):
    """A GPU word or CPU level that would do, and why."""

    word: str
    why: str


def _gpus(readings: Readings, warnings: list[str]) -> list[AxisChoice]:
    """GPU words that run here, best first; what is wrong with cards and driver is added to
    `warnings`.
    """
    if readings.os.platform and not readings.os.platform.cuda:
        return [AxisChoice("mps", "macOS on Apple silicon: Metal (mps)")]
    verdicts = [judge_gpu(gpu, readings.driver) for gpu in readings.gpus]
    warnings += dict.fromkeys(text for gpu in verdicts for text in gpu.warnings)
    usable = [gpu for gpu in verdicts if gpu.sm]
    # Of several GPUs, the one whose driver support ended first sets the limit.
    lasts = [(last, gpu.name) for gpu in usable if gpu.sm and (last := last_driver(gpu.sm))]
    if lasts and readings.driver:
        last, name = min(lasts)
        warnings.append(f"{last} is the last driver branch for {name}: do not install a newer one")
    sms = sorted({gpu.sm for gpu in usable if gpu.sm}, key=sm_number)
    if not sms:
        if verdicts:
            why = "no GPU that a variant is for"
        else:
            why = "no NVIDIA GPU was found"
        return [AxisChoice("cpu", f"{why}: CPU only")]
    low = sms[0]
    names = ", ".join(dict.fromkeys(gpu.name for gpu in usable))
    if len(sms) == 1:
        many = f"{len(usable)} x " if len(usable) > 1 else ""
        return [
            AxisChoice(low, f"{many}{names}: {dotted(low)} ({usable[0].source})"),
            *(
                AxisChoice(name, f"{names}: {dotted(low)}, which the set {name} holds")
                for name in sets_with(sms)
            ),
            *(
                AxisChoice(sm, f"{names}: {dotted(low)}, which runs {dotted(sm)} code")
                for sm in compatible(low)
            ),
        ]
    cards_text = "; ".join(f"{gpu.name} is {dotted(gpu.sm)}" for gpu in usable if gpu.sm)
    sets = [
        AxisChoice(name, f"{cards_text}: the set {name} holds code for all of them")
        for name in sets_with(sms)
    ]
    left_out = [dotted(sm) for sm in sms[1:] if low not in compatible(sm)]
    text = f"{cards_text}: the lowest, {dotted(low)}, as no named set holds them all"
    text += f"; {', '.join(left_out)} cannot run it" if left_out else "; the others run it too"
    return [
        *sets,
        AxisChoice(low, text),
        *(AxisChoice(sm, f"{cards_text}: for one of them") for sm in sms[1:]),
    ]


def _cpus(readings: Readings, warnings: list[str]) -> Iterator[AxisChoice]:
    """CPU levels that the machine has, best first."""
    cpu = readings.cpu
    supported_levels = cpu_levels(cpu, readings.os.system)
    for level in supported_levels:
        needs = catalog.cpu_features().levels[cpu.machine][level]
        yield AxisChoice(
            level, f"the CPU has {', '.join(needs)}: {level}" if needs else f"the CPU is {level}"
        )
    if "sve" in cpu.features and "armv8_2" in supported_levels and "armv9" not in supported_levels:
        warnings.append(
            "the CPU has SVE but not SVE2, as Graviton3 (Neoverse V1): armv9 code would stop with "
            "SIGILL"
        )


def _why_nothing(readings: Readings) -> str:
    """The reason why no variant is for the machine."""
    cpu = readings.cpu
    platform = readings.os.platform
    if platform and platform.cuda and cpu.machine == "x86_64" and not cpu.features:
        return "the CPU's features could not be read"
    if platform and platform.in_images and cpu.machine in catalog.cpu_features().levels:
        lowest, needs = list(catalog.cpu_features().levels[cpu.machine].items())[-1]
        return (
            f"the CPU lacks {', '.join(sorted(set(needs) - set(cpu.features)))}, which "
            f"{lowest} needs"
        )
    return f"no variant is for {cpu.machine} on {readings.os.name}"
