"""Rules on GPUs: what nvcc compiles for, what a driver runs, what a wheel holds for a card."""

from collections.abc import Iterator

from farm import catalog
from farm.catalog import gpus, number
from farm.catalog.binary import is_integrated
from farm.catalog.models import Architecture
from farm.plan.compat.stack import (
    Reason,
    Stack,
    arch_list,
    because,
    compiled,
    entries,
    reaches,
    sm_name,
    spell,
    targets,
)


def cuda_is_known(stack: Stack) -> Iterator[Reason]:
    """The CUDA version is one of the catalogue's."""
    if stack.cuda is not None and stack.cuda not in catalog.toolkits():
        yield because("cuda", stack, known=", ".join(catalog.toolkits()))


def cuda_targets_gpu(stack: Stack) -> Iterator[Reason]:
    """Nvcc can compile for every SM of the variant, of the card and of the arch list."""
    toolkits, known = catalog.toolkits(), catalog.architectures()
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
        details = {"verb": "is not known to" if doubt else "cannot", "sm": sm_name(sm), "span": span}
        # An SM of the variant cannot be given up; one of the arch list alone can.
        change = None if sm in must else ("arch_list", "cuda")
        listed = ", ".join(map(str, toolkit.sm))
        yield because("cuda-sm", stack, toolkit, listed=listed, doubt=doubt, change=change, **details)
    for entry in entries(stack):
        suffix = known.suffixes.get(entry.suffix)
        if suffix and (entry.sm < suffix.sm or number(str(stack.cuda)) < number(suffix.cuda)):
            yield because("cuda-sm/suffix", stack, entry=entry, suffix=suffix, source=known.suffixes_source)


def _cards(stack: Stack) -> Iterator[tuple[int, Architecture]]:
    """The cards that must run the wheel, those that the catalogue knows."""
    known = catalog.architectures().architectures
    return ((sm, known[f"sm{sm}"]) for sm in targets(stack) if f"sm{sm}" in known)


def driver_knows_gpu(stack: Stack) -> Iterator[Reason]:
    """The driver still supports the card."""
    for sm, card in _cards(stack) if stack.driver else ():
        # By branch: 472 and 473 are still branch 470, which knows Kepler.
        if card.last_driver and catalog.driver_branch(number(str(stack.driver))[0]) > card.last_driver:
            yield because("driver-gpu", stack, card, sm=sm_name(sm))


def driver_sees_gpu(stack: Stack) -> Iterator[Reason]:
    """The driver is not older than the card."""
    for sm, card in _cards(stack) if stack.driver else ():
        branch = number(str(stack.driver))[0]
        if card.first_driver and branch < card.first_driver:
            yield because("driver-gpu-old", stack, card, sm=sm_name(sm), number=sm)
        elif card.first_driver and card.wanted_driver and branch < card.wanted_driver:
            yield because("driver-gpu-early", stack, card, sm=sm_name(sm))


def a_driver_runs_both(stack: Stack) -> Iterator[Reason]:
    """There is a driver that runs the card and what this CUDA makes."""
    if stack.cuda not in catalog.toolkits():
        return
    major = stack.cuda.split(".")[0]
    # Minor-version compatibility: the first driver of a CUDA major runs all of its minor versions.
    floor = catalog.cuda_majors()[major].driver(stack.platform)
    for sm, card in _cards(stack):
        if floor and card.last_driver and not reaches(str(card.last_driver), floor):
            details = {"sm": sm_name(sm), "major": major, "floor": floor, "last": card.last_driver}
            yield because("cuda-driver-gpu", stack, source=catalog.cuda_majors_source(), **details)


def driver_runs_cuda(stack: Stack) -> Iterator[Reason]:
    """The driver runs what this CUDA makes, fully or by minor-version compatibility."""
    toolkit, source = catalog.toolkits().get(stack.cuda or ""), catalog.cuda_majors_source()
    if toolkit is None or stack.cuda is None or stack.driver is None:
        return
    major = stack.cuda.split(".")[0]
    floor = catalog.cuda_majors()[major].driver(stack.platform)
    full, doubt = catalog.full_driver(stack.cuda, stack.platform)
    if floor is not None and not reaches(stack.driver, floor):
        yield because("driver-cuda", stack, source=source, major=major, floor=floor)
    elif full is not None and not reaches(stack.driver, full):
        yield because("driver-limited", stack, toolkit, source=source, full=full, doubt=doubt)


def _jit_driver(stack: Stack) -> str | None:
    """The driver that was asked about, or else the last one that every card of the variant can have."""
    if stack.driver is not None:
        return stack.driver
    last = [card.last_driver for _, card in _cards(stack)]
    # Only where every card of the variant has a last driver: a newer card can have a newer one.
    known = [branch for branch in last if branch is not None]
    return str(max(known)) if known and len(known) == len(targets(stack)) else None


def ptx_needs_driver(stack: Stack) -> Iterator[Reason]:
    """PTX in the arch list can be compiled by the driver of the cards."""
    toolkit, driver, listed = catalog.toolkits().get(stack.cuda or ""), _jit_driver(stack), entries(stack)
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
    details = {"driver": driver, "listed": arch_list(stack), "effect": effect, "full": full, "doubt": doubt}
    severity = "error" if lost else "warning"
    yield because("ptx-driver", stack, toolkit, severity=severity, source=catalog.cuda_majors_source(), **details)


def wheel_has_code(stack: Stack) -> Iterator[Reason]:
    """The arch list makes code that the cards run: SASS of the same major version, or PTX of a lower one."""
    if stack.cuda is None or (stack.arch_list is None and stack.gpu is None):
        return
    for sm in targets(stack):
        if not any(entry.runs_on(sm) or entry.compiles_on(sm) for entry in entries(stack)):
            name = f"{stack.gpu_name} (sm_{sm})" if stack.gpu_name else sm_name(sm)
            change = None if stack.arch_list is not None else ("gpu_of_variant",)
            yield because("arch-list-gpu", stack, listed=arch_list(stack), name=name, needed=spell([sm]), change=change)


def toolkit_is_for_jetson(stack: Stack) -> Iterator[Reason]:
    """CUDA's archives for Arm servers run on Jetson boards from the CUDA on where both are one."""
    boards = [sm for sm in targets(stack) if is_integrated(sm)]
    known = catalog.architectures().jetson
    if boards and stack.cuda in catalog.toolkits():
        name = "jetson-cuda" if number(stack.cuda) < number(known.cuda) else "jetson-system"
        yield because(name, stack, known, sm=sm_name(boards[0]), source=known.source)


def machine_has_gpu(stack: Stack) -> Iterator[Reason]:
    """Integrated GPUs are parts of Arm chips, and some cards are beside Arm cores alone: no x86 machine has them."""
    known, names = catalog.architectures(), gpus.gpus()
    on_arm = stack.variant.machine == "aarch64"
    if stack.gpu_name and not on_arm and gpus.beside_arm(stack.gpu_name):
        yield because("gpu-machine/name", stack, known=", ".join(names.arm), source=names.arm_source)
    for sm in sorted({*stack.variant.sms, *targets(stack)}):
        if is_integrated(sm) and not on_arm:
            yield because("gpu-machine/tegra", stack, sm=sm_name(sm), source=known.tegra_source)
        elif sm in known.armv8_0:
            cores = ", ".join(f"sm_{each}" for each in known.armv8_0)
            details = {"sm": sm_name(sm), "why": gpus.without_variant(sm), "known": cores}
            yield because("gpu-machine/armv8-0", stack, source=known.armv8_0_source, **details)
        elif sm in known.arm_alone and not on_arm:
            yield because("gpu-arm", stack, sm=sm_name(sm), source=known.arm_alone_source)


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
