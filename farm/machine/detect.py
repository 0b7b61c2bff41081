"""The variant for a machine: readings in, a recommendation with its reasons out.

The order of questions: macOS? a GPU, and which SM? which CPU features? which Python? The published
wheel for it is found by published.py.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from farm import catalog
from farm.base.yamlfile import Model
from farm.machine.cards import Judged, compatible, dotted, judge_gpu, last_driver, sets_with
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
    yield from _driver_warnings(readings)
    platform = readings.os.platform
    if platform and platform.in_images and readings.os.libc is None:
        yield (
            "the C library is not glibc (Alpine?): the wheels are manylinux wheels and do not "
            "install here"
        )
    if readings.translated:
        yield "this Python is an x86_64 one under Rosetta 2: install into an arm64 Python"
    if platform and not platform.cuda:
        yield from _macos_warnings(readings)


def _driver_warnings(readings: Readings) -> Iterator[str]:
    """What keeps the driver from being used."""
    if any("version mismatch" in item.why for item in readings.missing):
        yield (
            "the NVIDIA driver and its libraries are of different versions, as after an update: "
            "restart the machine, then run farm detect again"
        )
    elif readings.unclaimed_gpus and readings.inside == "container":
        yield (
            f"{readings.unclaimed_gpus} NVIDIA display device(s) are on the PCI bus, but this "
            "container has no driver libraries: start it with --gpus all (NVIDIA Container Toolkit)"
        )
    elif readings.unclaimed_gpus:
        yield (
            f"{readings.unclaimed_gpus} NVIDIA display device(s) are on the PCI bus, but no "
            "NVIDIA driver reports them: install the driver, then run farm detect again"
        )
    if readings.inside == "wsl" and not readings.gpus:
        yield (
            "this is WSL, which uses the driver of Windows: for an NVIDIA card install the driver "
            "there, not here, then run wsl --update"
        )


def _macos_warnings(readings: Readings) -> Iterator[str]:
    """The version of macOS, if it is too old for PyTorch on Metal."""
    version = readings.os.version
    least = catalog.cpu_features().macos_min
    if NUMBERS.fullmatch(version) and catalog.number(version) < catalog.number(least):
        yield f"macOS {version} is too old for PyTorch on Metal: it needs {least} or newer"


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
    """The best variant for the machine.

    Args:
        readings: What was read of the machine.
        own: The builds of the project that are for it, best first; without one the hardware alone
            decides.

    Returns:
        The variant and what installs it, or the warnings that say why there is none.
    """
    warnings = list(machine_warnings(readings))
    gpus = _gpus(readings, warnings)
    cpus = list(_cpus(readings, warnings))
    if not cpus:
        return Recommendation(variant=None, warnings=(_why_nothing(readings), *warnings))

    runs = list(_variants(gpus, _pythons(readings), cpus))
    if not own:
        warnings.append(f"no channel offers {runs[0]}")
        return _recommendation(readings, runs[0], runs, _why_axes(runs[0], gpus, cpus), warnings)

    build = own[0]
    hardware_choice = f"{gpus[0].word}-{cpus[0].word}"
    reasons = _why_axes(build.variant, gpus, cpus)
    recommendation = _recommendation(readings, build.variant, runs, reasons, warnings)
    return recommendation.model_copy(
        update={
            "channel": build.channel,
            "submit": f"farm submit {build.words}",
            "reasons": (*recommendation.reasons, *_channels(own, hardware_choice)),
        }
    )


def _recommendation(
    readings: Readings,
    variant: Variant,
    runs: Sequence[Variant],
    reasons: Iterable[str],
    warnings: Iterable[str],
) -> Recommendation:
    """The recommendation of a variant; `runs` are all that run here, best first."""
    interpreters = {python.name: python.path for python in readings.pythons}
    path = interpreters.get(variant.python)
    # The Python that runs the farm need not be on the PATH.
    place = "the one that runs this"
    if path:
        place = f"at {path}"
    alternatives = [str(alternative) for alternative in runs if alternative != variant]
    return Recommendation(
        variant=str(variant),
        python=path,
        reasons=(*reasons, f"Python {variant.python_version} is {place}"),
        warnings=tuple(warnings),
        alternatives=tuple(dict.fromkeys(alternatives)),
    )


def _variants(
    gpus: Sequence["AxisChoice"], pythons: Sequence[str], cpus: Sequence["AxisChoice"]
) -> Iterator[Variant]:
    """Every variant that runs here, best first; those for the CPU alone last."""
    words = [gpu.word for gpu in gpus]
    if words[0] not in ("cpu", "mps"):
        words.append("cpu")
    for word, python, cpu in itertools.product(words, pythons, cpus):
        yield Variant(word, cpu.word, python)


def _why_axes(
    variant: Variant, gpus: Sequence["AxisChoice"], cpus: Sequence["AxisChoice"]
) -> Iterator[str]:
    """Why the GPU word and the CPU level of a variant do for this machine."""
    for axis, word in ((gpus, variant.gpu), (cpus, variant.cpu)):
        for choice in axis:
            if choice.word == word:
                yield choice.why
                break


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
    sms = []
    for gpu in sorted(readings.gpus, key=lambda gpu: -(gpu.memory_mb or 0)):
        sm = judge_gpu(gpu, readings.driver).sm
        if sm:
            sms.append(sm_number(sm))
    driver = readings.driver
    if not NUMBERS.fullmatch(driver or ""):
        driver = None
    return Machine(
        tuple(dict.fromkeys(sms)),
        tuple(cpu_levels(readings.cpu, readings.os.system)),
        readings.os.system,
        tuple(_pythons(readings)),
        driver,
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
    for verdict in verdicts:
        warnings += [text for text in verdict.warnings if text not in warnings]
    usable = [gpu for gpu in verdicts if gpu.sm]
    if not usable:
        return [_cpu_only(readings)]

    if readings.driver:
        warnings += _driver_limit(usable)
    sms = sorted({gpu.sm for gpu in usable if gpu.sm}, key=sm_number)
    if len(sms) == 1:
        return list(_for_one_sm(usable, sms[0]))
    return list(_for_several_sms(usable, sms))


def _cpu_only(readings: Readings) -> AxisChoice:
    if readings.gpus:
        return AxisChoice("cpu", "no GPU that a variant is for: CPU only")
    return AxisChoice("cpu", "no NVIDIA GPU was found: CPU only")


def _driver_limit(usable: Sequence[Judged]) -> Iterator[str]:
    """The warning of the card whose driver support ended first: it sets the limit for all."""
    lasts = []
    for gpu in usable:
        last = last_driver(gpu.sm) if gpu.sm else None
        if last:
            lasts.append((last, gpu.name))
    if lasts:
        last, name = min(lasts)
        yield f"{last} is the last driver branch for {name}: do not install a newer one"


def _for_one_sm(usable: Sequence[Judged], sm: str) -> Iterator[AxisChoice]:
    """The words for one card, or several of one kind: its own SM, sets with it, older SMs."""
    names = ", ".join(dict.fromkeys(gpu.name for gpu in usable))
    counted = names
    if len(usable) > 1:
        counted = f"{len(usable)} x {names}"
    yield AxisChoice(sm, f"{counted}: {dotted(sm)} ({usable[0].source})")
    for name in sets_with([sm]):
        yield AxisChoice(name, f"{names}: {dotted(sm)}, which the set {name} holds")
    for older in compatible(sm):
        yield AxisChoice(older, f"{names}: {dotted(sm)}, which runs {dotted(older)} code")


def _for_several_sms(usable: Sequence[Judged], sms: list[str]) -> Iterator[AxisChoice]:
    """The words for cards of several SMs, lowest first: sets that hold all, then one of them."""
    cards_text = "; ".join(f"{gpu.name} is {dotted(gpu.sm)}" for gpu in usable if gpu.sm)
    for name in sets_with(sms):
        yield AxisChoice(name, f"{cards_text}: the set {name} holds code for all of them")

    low = sms[0]
    cannot_run = [dotted(sm) for sm in sms[1:] if low not in compatible(sm)]
    others_text = "the others run it too"
    if cannot_run:
        others_text = f"{', '.join(cannot_run)} cannot run it"
    yield AxisChoice(
        low,
        f"{cards_text}: the lowest, {dotted(low)}, as no named set holds them all; {others_text}",
    )
    for sm in sms[1:]:
        yield AxisChoice(sm, f"{cards_text}: for one of them")


def _cpus(readings: Readings, warnings: list[str]) -> Iterator[AxisChoice]:
    """CPU levels that the machine has, best first."""
    cpu = readings.cpu
    supported_levels = cpu_levels(cpu, readings.os.system)
    for level in supported_levels:
        needs = catalog.cpu_features().levels[cpu.machine][level]
        why = f"the CPU is {level}"
        if needs:
            why = f"the CPU has {', '.join(needs)}: {level}"
        yield AxisChoice(level, why)
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
