"""Rules on GPUs: what nvcc compiles for, what a driver runs, what a wheel holds for a card."""

from collections.abc import Iterator, Sequence

from farm import catalog
from farm.catalog import gpus
from farm.catalog.binary import is_integrated
from farm.plan.compat.stack import (
    Entry,
    Reason,
    Stack,
    arch_list,
    compiled,
    doubted,
    entries,
    number,
    reaches,
    sm_name,
    spell,
    targets,
    with_doubt,
)


def cuda_is_known(stack: Stack) -> Iterator[Reason]:
    """The CUDA version is one of the catalogue's."""
    known = catalog.toolkits()
    if stack.cuda is not None and stack.cuda not in known:
        yield Reason(
            "cuda",
            f"CUDA {stack.cuda} is not in the catalogue",
            f"known: {', '.join(known)}",
            "farm/catalog/cuda.yaml",
            change=("cuda",),
        )


def cuda_targets_gpu(stack: Stack) -> Iterator[Reason]:
    """Nvcc can compile for every SM of the variant, of the card and of the arch list."""
    toolkits = catalog.toolkits()
    toolkit = toolkits.get(stack.cuda or "")
    if toolkit is None:
        return
    must = set(compiled(stack))
    # The arch list may name SMs that no card of the variant has: nvcc is asked for those as well.
    for sm in sorted(must | {entry.sm for entry in entries(stack)}):
        if sm in toolkit.sm:
            continue
        able = [version for version, other in toolkits.items() if sm in other.sm]
        span = "no CUDA of the catalogue can"
        if able:
            span = f"CUDA {able[0]} to {able[-1]} can" if len(able) > 1 else f"CUDA {able[0]} alone can"
        # An SM of which no one has seen whether this nvcc takes it is no error.
        doubt = toolkit.sources["sm_unconfirmed"] if sm in toolkit.sm_unconfirmed else None
        yield Reason(
            "cuda-sm",
            f"CUDA {stack.cuda} {'is not known to' if doubt else 'cannot'} compile for {sm_name(sm)}: {span}",
            with_doubt(f"nvcc of CUDA {toolkit.release} targets sm {', '.join(map(str, toolkit.sm))}", doubt),
            toolkit.sources["sm"],
            severity=doubted(doubt),
            # An SM of the variant cannot be given up; one of the arch list alone can.
            change=("cuda",) if sm in must else ("arch_list", "cuda"),
        )
    for entry in entries(stack):
        suffix = catalog.architectures().suffixes.get(entry.suffix)
        if suffix is None or (entry.sm >= suffix.sm and number(str(stack.cuda)) >= number(suffix.cuda)):
            continue
        yield Reason(
            "cuda-sm",
            f"CUDA {stack.cuda} cannot compile for sm_{entry.sm}{entry.suffix}",
            f"the suffix {entry.suffix} is for sm_{suffix.sm} and newer, since CUDA {suffix.cuda}",
            catalog.architectures().suffixes_source,
            change=("arch_list", "cuda"),
        )


def _last_driver(sm: int) -> int | None:
    card = catalog.architectures().architectures.get(f"sm{sm}")
    return card.last_driver if card else None


def driver_knows_gpu(stack: Stack) -> Iterator[Reason]:
    """The driver still supports the card."""
    if stack.driver is None:
        return
    for sm in targets(stack):
        # By branch: 472 and 473 are still branch 470, which knows Kepler.
        last = _last_driver(sm)
        if last is not None and catalog.driver_branch(number(stack.driver)[0]) > last:
            card = catalog.architectures().architectures[f"sm{sm}"]
            yield Reason(
                "driver-gpu",
                f"driver {stack.driver} does not run {sm_name(sm)}",
                f"{last} is the last driver branch for {card.name}",
                card.sources["last_driver"],
                change=("driver",),
            )


def driver_sees_gpu(stack: Stack) -> Iterator[Reason]:
    """The driver is not older than the card."""
    if stack.driver is None:
        return
    branch = number(stack.driver)[0]
    for sm in targets(stack):
        card = catalog.architectures().architectures.get(f"sm{sm}")
        if card is None or card.first_driver is None:
            continue
        if branch < card.first_driver:
            yield Reason(
                "driver-gpu-old",
                f"driver {stack.driver} is too old for {sm_name(sm)}: it needs {card.first_driver} or newer",
                f"{card.first_driver} is the first driver branch for {card.name} (sm_{sm})",
                card.sources["first_driver"],
                change=("driver",),
            )
        elif card.wanted_driver is not None and branch < card.wanted_driver:
            yield Reason(
                "driver-gpu-early",
                f"driver {stack.driver} is an early one for {sm_name(sm)}: {card.wanted_driver} or newer is advised",
                f"branch {card.first_driver} knows the card; guides ask for {card.wanted_driver}",
                card.sources["wanted_driver"],
                severity="warning",
                change=("driver",),
            )


def a_driver_runs_both(stack: Stack) -> Iterator[Reason]:
    """There is a driver that runs the card and what this CUDA makes."""
    if stack.cuda not in catalog.toolkits():
        return
    major = stack.cuda.split(".")[0]
    # Minor-version compatibility: the first driver of a CUDA major runs all of its minor versions.
    floor = catalog.cuda_majors()[major].driver(stack.platform)
    for sm in targets(stack):
        last = _last_driver(sm)
        if floor is not None and last is not None and not reaches(str(last), floor):
            yield Reason(
                "cuda-driver-gpu",
                f"no driver runs both CUDA {stack.cuda} and {sm_name(sm)}",
                f"CUDA {major} needs driver {floor} or newer, {last} is the last for the card",
                catalog.cuda_majors_source(),
                change=("cuda",),
            )


def driver_runs_cuda(stack: Stack) -> Iterator[Reason]:
    """The driver runs what this CUDA makes, fully or by minor-version compatibility."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    if toolkit is None or stack.cuda is None or stack.driver is None:
        return
    major = stack.cuda.split(".")[0]
    floor = catalog.cuda_majors()[major].driver(stack.platform)
    full, doubt = catalog.full_driver(stack.cuda, stack.platform)
    if floor is not None and not reaches(stack.driver, floor):
        yield Reason(
            "driver-cuda",
            f"driver {stack.driver} does not run CUDA {stack.cuda}",
            f"CUDA {major} needs driver {floor} or newer on {stack.platform}",
            catalog.cuda_majors_source(),
            change=("cuda", "driver"),
        )
    elif full is not None and not reaches(stack.driver, full):
        yield Reason(
            "driver-limited",
            f"driver {stack.driver} runs CUDA {stack.cuda} with a limited feature set, and compiles none of its PTX",
            with_doubt(f"CUDA {toolkit.release} has every feature from driver {full} on; below it, a part", doubt),
            catalog.cuda_majors_source(),
            severity="warning",
            change=("driver", "cuda"),
        )


def _jit_driver(stack: Stack) -> str | None:
    """The driver that was asked about, or else the last one that every card of the variant can have."""
    if stack.driver is not None:
        return stack.driver
    last = [_last_driver(sm) for sm in targets(stack)]
    # Only where every card of the variant has a last driver: a newer card can have a newer one.
    known = [branch for branch in last if branch is not None]
    return str(max(known)) if known and len(known) == len(last) else None


def ptx_needs_driver(stack: Stack) -> Iterator[Reason]:
    """PTX in the arch list can be compiled by the driver of the cards."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    driver = _jit_driver(stack)
    listed = entries(stack)
    if toolkit is None or stack.cuda is None or driver is None or not any(entry.ptx for entry in listed):
        return
    # Compiling PTX needs the driver of that very CUDA: minor-version compatibility does not cover the JIT compiler.
    full, doubt = catalog.full_driver(stack.cuda, stack.platform)
    if full is None or reaches(driver, full):
        return
    # Cards that have SASS in the list run that; for the others the PTX is all that there is.
    lost = [sm for sm in targets(stack) if not any(entry.runs_on(sm) for entry in listed)]
    effect = (
        f"{sm_name(lost[0])} gets nothing to run" if lost else "only the SASS of the list runs, the PTX is dead weight"
    )
    yield Reason(
        "ptx-driver",
        f"driver {driver} cannot compile the PTX of {arch_list(stack)!r} from CUDA {stack.cuda}: {effect}",
        with_doubt(f"PTX of CUDA {toolkit.release} needs driver {full} or newer (else error 222)", doubt),
        catalog.cuda_majors_source(),
        severity="error" if lost else "warning",
        change=("ptx", "arch_list", "cuda", "driver"),
    )


def _missing(cards: Sequence[int], listed: Sequence[Entry]) -> list[int]:
    return [sm for sm in cards if not any(entry.runs_on(sm) or entry.compiles_on(sm) for entry in listed)]


def wheel_has_code(stack: Stack) -> Iterator[Reason]:
    """The arch list makes code that the cards run: SASS of the same major version, or PTX of a lower one."""
    if stack.cuda is None or (stack.arch_list is None and stack.gpu is None):
        return
    for sm in _missing(targets(stack), entries(stack)):
        name = f"{stack.gpu_name} (sm_{sm})" if stack.gpu_name else sm_name(sm)
        yield Reason(
            "arch-list-gpu",
            f"an arch list of {arch_list(stack)!r} makes no code that {name} can run: it needs {spell([sm])}",
            "SASS runs on the same major version and no lower minor one; PTX is compiled for any higher one",
            "CUDA C++ Programming Guide, binary and PTX compatibility",
            change=("arch_list",) if stack.arch_list is not None else ("gpu_of_variant",),
        )


def toolkit_is_for_jetson(stack: Stack) -> Iterator[Reason]:
    """CUDA's archives for Arm servers run on Jetson boards from the CUDA on where both are one."""
    boards = [sm for sm in targets(stack) if is_integrated(sm)]
    known = catalog.architectures().jetson
    if not boards or stack.cuda not in catalog.toolkits() or stack.cuda is None:
        return
    if number(stack.cuda) < number(known.cuda):
        yield Reason(
            "jetson-cuda",
            f"CUDA {stack.cuda} for Arm servers does not run on Jetson boards, {sm_name(boards[0])} among them",
            f"servers and Jetson have one CUDA from {known.cuda} on, with {known.system}",
            known.source,
            change=("cuda",),
        )
    else:
        yield Reason(
            "jetson-system",
            f"on {sm_name(boards[0])} this wheel needs {known.system} or newer",
            f"an older JetPack has CUDA below {known.cuda} and an older glibc; {known.elsewhere}",
            known.source,
            severity="warning",
        )


def machine_has_gpu(stack: Stack) -> Iterator[Reason]:
    """Integrated GPUs are parts of Arm chips, and some cards are beside Arm cores alone: no x86 machine has them."""
    if stack.gpu_name and stack.variant.machine != "aarch64" and gpus.beside_arm(stack.gpu_name):
        yield Reason(
            "gpu-machine",
            f"{stack.gpu_name} sits beside Arm cores: no {stack.variant.machine} machine has it",
            f"beside NVIDIA's Grace CPU alone: {', '.join(gpus.gpus().arm)}",
            gpus.gpus().arm_source,
            change=("cpu_of_arm",),
        )
    for sm in sorted({*stack.variant.sms, *targets(stack)}):
        if is_integrated(sm) and stack.variant.machine != "aarch64":
            yield Reason(
                "gpu-machine",
                f"{sm_name(sm)} is part of an Arm chip: no {stack.variant.machine} machine has it",
                "integrated GPUs (Tegra) sit in 64-bit Arm systems alone",
                catalog.architectures().tegra_source,
                change=("cpu_of_arm",),
            )
        elif sm in catalog.architectures().armv8_0:
            yield Reason(
                "gpu-machine",
                f"no wheel for {sm_name(sm)}: {gpus.without_variant(sm)}",
                f"beside cores of Armv8.0: {', '.join(f'sm_{each}' for each in catalog.architectures().armv8_0)}",
                catalog.architectures().armv8_0_source,
            )
        # A warning only: an x86 machine with this card is not known, which does not say that there can be none.
        elif sm in catalog.architectures().arm_alone and stack.variant.machine != "aarch64":
            yield Reason(
                "gpu-arm",
                f"no {stack.variant.machine} machine with {sm_name(sm)} is known: GB10 sits beside Arm cores",
                "the one chip with sm_121 is GB10",
                catalog.architectures().arm_alone_source,
                severity="warning",
                change=("cpu_of_arm",),
            )


RULES = (
    cuda_is_known,
    machine_has_gpu,
    toolkit_is_for_jetson,
    driver_sees_gpu,
    cuda_targets_gpu,
    a_driver_runs_both,
    driver_knows_gpu,
    driver_runs_cuda,
    wheel_has_code,
    ptx_needs_driver,
)
