"""The wheel for a machine: readings in, a recommendation with its reasons out.

The order of questions: macOS? a GPU, and which SM? which CPU features? which Python? Last, which
published wheel installs here: the pip line is resolved against the index before it is shown.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from packaging.utils import parse_wheel_filename

from farm import catalog
from farm.base.errors import FarmError
from farm.base.requirement import serves
from farm.base.yamlfile import Model
from farm.catalog import gpus
from farm.catalog.gpus import sass_runs
from farm.index.layout import json_key, without_rebuild
from farm.index.pages import File, parse_page
from farm.index.pins import install_words
from farm.index.reader import WITHDRAWN, Reader, open_reader, standing, withdrawn
from farm.machine.readings import Cpu, Gpu, Os, Readings
from farm.plan.compat.stack import NUMBERS
from farm.plan.recommend import FarmBuild, Machine
from farm.plan.variant import Variant, sm_number
from farm.platforms.facts import PLATFORMS, of_tag


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


class Judged(NamedTuple):
    """One GPU with its SM, and where that comes from; None: no wheel is for it, and `warnings` say
    why.
    """

    name: str
    sm: str | None
    source: str
    warnings: tuple[str, ...]


def judge_gpu(gpu: Gpu, driver: str | None) -> Judged:
    """The SM of a GPU: what the driver says, else by name."""
    # The driver's word counts more than the name: some names were sold with several chips.
    if gpu.capability:
        sm = f"sm{gpu.capability.replace('.', '')}"
        source = f"compute capability {gpu.capability}, from {gpu.source}"
        return _usable(gpu.name, gpus.gpus().renamed.get(sm, sm), source, [], driver)
    cards = gpus.find(gpu.name)
    if not cards:
        near = gpus.nearest_names(gpu.name)
        hint = f"; nearest names: {', '.join(near)}" if near else ""
        text = (
            f"{gpu.name} is not in the catalogue and the driver does not tell its compute "
            f"capability{hint}"
        )
        return Judged(gpu.name, None, "unknown", (text,))
    notes = [f"{gpu.name}: {card.unconfirmed}; not confirmed" for card in cards if card.unconfirmed]
    sms = sorted({card.sm for card in cards}, key=sm_number)
    if len(sms) > 1:
        buildable = [sm for sm in sms if sm in catalog.architectures().architectures] or sms
        notes.append(
            f"{gpu.name} was sold with {' and '.join(map(dotted, sms))}, and the driver does not "
            "tell which this is: "
            f"taken for {dotted(buildable[0])}"
        )
        sms = buildable
    return _usable(gpu.name, sms[0], "by its name, from the catalogue", notes, driver)


def _usable(name: str, sm: str, source: str, notes: list[str], driver: str | None) -> Judged:
    architectures = catalog.architectures().architectures
    old = gpus.gpus().too_old
    branch = driver_branch(driver)
    last = last_driver(sm)
    if sm in old:
        note = f"{name} is {dotted(sm)} ({old[sm].name}), too old for every variant: {old[sm].why}"
        return Judged(name, None, source, (*notes, note))
    if branch and last and branch > last:
        notes.append(
            f"driver {driver} is newer than {last}, the last branch for {name} ({dotted(sm)}): "
            f"install {last}"
        )
    first = architectures[sm].first_driver if sm in architectures else None
    if branch and first and branch < first:
        notes.append(
            f"driver {driver} is too old for {name} ({dotted(sm)}): install {first} or newer, or "
            "no wheel sees the card"
        )
    if sm in architectures:
        return Judged(name, sm, source, tuple(notes))
    lower = [*compatible(sm), None][0]
    if lower:
        code = f"; it runs {dotted(lower)} code"
    else:
        code = " and no variant's code runs on"
    return Judged(
        name, lower, source, (*notes, f"{name} is {dotted(sm)}, which no variant is for{code}")
    )


def compatible(sm: str) -> list[str]:
    """Other SMs whose code runs on this one, nearest first."""
    card = sm_number(sm)
    architectures = (
        candidate for candidate in catalog.architectures().architectures if candidate != sm
    )
    return sorted(
        (candidate for candidate in architectures if sass_runs(sm_number(candidate), card)),
        key=sm_number,
        reverse=True,
    )


def sets_with(sms: list[str]) -> list[str]:
    """The named sets that hold all the SMs, smallest first."""
    sets = catalog.architectures().sets
    return sorted(
        (name for name in sets if set(sms) <= set(sets[name])), key=lambda name: len(sets[name])
    )


def dotted(sm: str) -> str:
    """`sm_35` for `sm35`."""
    return sm.replace("sm", "sm_")


def last_driver(sm: str) -> int | None:
    architectures = catalog.architectures().architectures
    old = gpus.gpus().too_old
    if sm in old:
        return old[sm].last_driver
    return architectures[sm].last_driver if sm in architectures else None


def driver_branch(driver: str | None) -> int | None:
    """470 for `470.256.02`, and for `472.50` of Windows."""
    match = re.match(r"\d{3,4}(?=\.|$)", driver or "")
    return catalog.driver_branch(int(match[0])) if match else None


def driver_problem(cuda: str | None, driver: str | None, system: str) -> str | None:
    """Why a driver cannot run wheels of a CUDA version; None if it can, or if one of them is not
    known.
    """
    major = catalog.cuda_majors().get(cuda.split(".")[0]) if cuda else None
    floor = major.driver(system) if major else None
    if floor is None or driver is None or not NUMBERS.fullmatch(driver):
        return None
    too_old = catalog.number(driver) < catalog.number(floor)
    if too_old:
        return f"driver {driver} is too old for CUDA {cuda}, which needs {floor} or newer"
    return None


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


PACKAGE = "torch"
UNTOLD = "published; the index does not say what was tested (farm site build writes that)"
_CUDA = re.compile(r"cu(\d+)(\d)(?:\.|$)")
_GLIBC = {
    "manylinux1_": (2, 5),
    "manylinux2010_": (2, 12),
    "manylinux2014_": (2, 17),
    "musllinux": (99, 0),
}
"""The names of the first three policies (PEPs 513, 571, 599), and what no glibc serves."""


def with_published(
    found: Recommendation, readings: Readings, index: str, root: str
) -> Recommendation:
    """The recommendation with a pip line, or with the reason why there is none; `root`: the index
    as pip sees it.
    """
    if found.variant is None:
        return found
    reasons = list(found.reasons)
    build = f"; it is built by: {found.submit}" if found.submit else ""
    try:
        reader = open_reader(index)
        # The best variant first: another one is only proposed where that has no wheel yet.
        names = [found.variant, *found.alternatives]
        newest_by_variant = [
            (name, newest(reader, Variant.parse(name), readings, found.submit))
            for name in dict.fromkeys(names)
        ]
    except FarmError as error:
        reasons.append(f"the index cannot be asked, so there is no pip command: {error}")
        return found.model_copy(update={"reasons": tuple(reasons)})
    name, wheel = next(
        ((name, wheel) for name, (wheel, _) in newest_by_variant if wheel), (None, None)
    )
    if name != found.variant:
        reasons.append(
            newest_by_variant[0][1][1] or f"no wheel for {found.variant} is published{build}"
        )
    if wheel is None or name is None:
        return found.model_copy(update={"reasons": tuple(reasons)})
    if name != found.variant:
        reasons.append(f"the command below installs {name}, which is published and runs here too")
    group = Variant.parse(name).group
    words = install_words(reader.get, f"{root.rstrip('/')}/", group, wheel.filename)
    pip = shlex.join(["pip", "install", *words])
    record = standing(reader, wheel.filename)
    state = record.state if record else UNTOLD
    if record:
        tests = tuple(f"{test.date}, {test.where}: {test.outcome}" for test in record.tests)
    else:
        tests = ()
    return found.model_copy(
        update={"pip": pip, "reasons": tuple(reasons), "state": state, "tests": tests}
    )


def newest(
    reader: Reader, variant: Variant, readings: Readings, submit: str | None
) -> tuple[File | None, str | None]:
    """The newest wheel of the variant that this system and driver take, else why not; `submit`
    builds one.
    """
    os = readings.os
    key = json_key(variant.group, PACKAGE)
    data = reader.get(key)
    files = parse_page(data, key).entries.values() if data else ()
    served = [file for file in files if _for_python(file, variant)]
    rising = sorted(served, key=lambda file: parse_wheel_filename(file.filename)[1])
    offered = [file for file in rising if withdrawn(file) is None]
    fitting = [file for file in offered if _installs(file, os)]
    running = [file for file in fitting if _driver_refuses(file, readings) is None]
    if running:
        return running[-1], None
    if fitting:
        return None, f"{fitting[-1].filename}: {_driver_refuses(fitting[-1], readings)}"
    if offered and os.libc:
        return None, f"{offered[-1].filename} needs a newer C library than this machine's {os.libc}"
    if withdrawn_files := [file for file in rising if _installs(file, os)]:
        why = f"{withdrawn_files[-1].filename}: {WITHDRAWN}: {withdrawn(withdrawn_files[-1])}"
        version = str(parse_wheel_filename(withdrawn_files[-1].filename)[1])
        rebuild = int(version.removeprefix(without_rebuild(version)).removeprefix(".") or 0) + 1
        return None, why + (
            f"; its successor is built by: {submit} --rebuild {rebuild}" if submit else ""
        )
    return None, None


def _for_python(file: File, variant: Variant) -> bool:
    return any(
        serves(tag.interpreter, tag.abi, variant.python)
        for tag in parse_wheel_filename(file.filename)[3]
    )


def _driver_refuses(file: File, readings: Readings) -> str | None:
    """Why the driver does not run the wheel; its version says for which CUDA it was built:
    `2.10.0+cu130.sm75.avx2`.
    """
    label = _CUDA.match(parse_wheel_filename(file.filename)[1].local or "")
    if label:
        return driver_problem(f"{label[1]}.{label[2]}", readings.driver, readings.os.system)
    return None


def _installs(file: File, os: Os) -> bool:
    """True if one of the wheel's platforms is this system's; a glibc that is older than the tag's
    refuses it.
    """
    tags = {tag.platform for tag in parse_wheel_filename(file.filename)[3]}
    return any(of_tag(tag) is os.platform is not None and _floor(tag) <= glibc(os) for tag in tags)


def glibc(os: Os) -> tuple[int, int]:
    """`(2, 17)`; `(0, 0)` for another C library."""
    match = re.match(r"glibc (\d+)(?:\.(\d+))?", os.libc or "")
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def _floor(platform: str) -> tuple[int, int]:
    """The oldest glibc of a platform tag; one that names none takes any, and a wheel for musl takes
    no glibc.
    """
    if match := re.match(r"manylinux_(\d+)_(\d+)_", platform):
        return int(match[1]), int(match[2])
    return next((version for name, version in _GLIBC.items() if platform.startswith(name)), (0, 0))
