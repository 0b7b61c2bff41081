"""Cards: what nvcc compiles for, what a driver runs, and what a wheel holds for a card."""

from collections.abc import Iterator

from farm import catalog
from farm.catalog import gpus, number
from farm.catalog.gpus import is_integrated
from farm.catalog.models import Architecture
from farm.plan.compat.reason import Ground, Reason, because, ground
from farm.plan.compat.stack import (
    Stack,
    arch_list,
    compiled,
    entries,
    has_code,
    reaches,
    sm_name,
    spell,
    targets,
)


def cuda_is_known(stack: Stack) -> Iterator[Reason]:
    """The CUDA version is one of the catalogue's."""
    if stack.cuda is not None and stack.cuda not in catalog.toolkits():
        yield because(
            "cuda",
            f"CUDA {stack.cuda} is not in the catalogue",
            f"known: {', '.join(catalog.toolkits())}",
            "farm/catalog/cuda.yaml",
            change=("cuda",),
        )


def _compiled_by(sm: int) -> str:
    """The CUDA versions that compile for an SM, as the end of a sentence."""
    able = [cuda for cuda, toolkit in catalog.toolkits().items() if sm in toolkit.sm]
    if not able:
        return "no CUDA of the catalogue can"
    if len(able) == 1:
        return f"CUDA {able[0]} alone can"
    return f"CUDA {able[0]} to {able[-1]} can"


def cuda_targets_gpu(stack: Stack) -> Iterator[Reason]:
    """Nvcc can compile for every SM of the variant, of the card and of the arch list."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    if toolkit is None:
        return
    required = set(compiled(stack))
    # The arch list may name SMs that no card of the variant has: nvcc is asked for those as well.
    for sm in sorted(required | {entry.sm for entry in entries(stack)}):
        if sm in toolkit.sm:
            continue
        source = toolkit.sources.get("sm", "sm")
        # An SM of which no one has seen whether this nvcc takes it is no error.
        if sm in toolkit.sm_unconfirmed:
            verb = "is not known to"
            rests_on = Ground(source, toolkit.sources["sm_unconfirmed"])
        else:
            verb = "cannot"
            rests_on = Ground(source)
        yield because(
            "cuda-sm",
            f"CUDA {stack.cuda} {verb} compile for {sm_name(sm)}: {_compiled_by(sm)}",
            f"nvcc of CUDA {toolkit.release} targets sm {', '.join(map(str, toolkit.sm))}",
            rests_on,
            # An SM of the variant cannot be given up; one of the arch list alone can.
            change=("cuda",) if sm in required else ("arch_list", "cuda"),
        )
    architectures = catalog.architectures()
    for entry in entries(stack):
        suffix = architectures.suffixes.get(entry.suffix)
        if suffix is None:
            continue
        if entry.sm < suffix.sm or number(str(stack.cuda)) < number(suffix.cuda):
            yield because(
                "cuda-sm",
                f"CUDA {stack.cuda} cannot compile for sm_{entry.sm}{entry.suffix}",
                f"the suffix {entry.suffix} is for sm_{suffix.sm} and newer, since CUDA "
                f"{suffix.cuda}",
                architectures.suffixes_source,
                change=("arch_list", "cuda"),
            )


def _cards(stack: Stack) -> Iterator[tuple[int, Architecture]]:
    """The cards that must run the wheel, those that the catalogue knows."""
    architectures = catalog.architectures().architectures
    for sm in targets(stack):
        if f"sm{sm}" in architectures:
            yield sm, architectures[f"sm{sm}"]


def driver_knows_gpu(stack: Stack) -> Iterator[Reason]:
    """The driver still supports the card."""
    if stack.driver is None:
        return
    # By branch: 472 and 473 are still branch 470, which knows Kepler.
    branch = catalog.driver_branch(number(stack.driver)[0])
    for sm, card in _cards(stack):
        if card.last_driver and branch > card.last_driver:
            yield because(
                "driver-gpu",
                f"driver {stack.driver} does not run {sm_name(sm)}",
                f"{card.last_driver} is the last driver branch for {card.name}",
                ground(card, "last_driver"),
                change=("driver",),
            )


def driver_sees_gpu(stack: Stack) -> Iterator[Reason]:
    """The driver is not older than the card."""
    if stack.driver is None:
        return
    branch = number(stack.driver)[0]
    for sm, card in _cards(stack):
        if card.first_driver is None:
            continue
        if branch < card.first_driver:
            yield because(
                "driver-gpu-old",
                f"driver {stack.driver} is too old for {sm_name(sm)}: it needs "
                f"{card.first_driver} or newer",
                f"{card.first_driver} is the first driver branch for {card.name} (sm_{sm})",
                ground(card, "first_driver"),
                change=("driver",),
            )
        elif card.wanted_driver and branch < card.wanted_driver:
            yield because(
                "driver-gpu-early",
                f"driver {stack.driver} is an early one for {sm_name(sm)}: {card.wanted_driver} "
                "or newer is advised",
                f"branch {card.first_driver} knows the card; guides ask for {card.wanted_driver}",
                ground(card, "wanted_driver"),
                severity="warning",
                change=("driver",),
            )


def a_driver_runs_both(stack: Stack) -> Iterator[Reason]:
    """There is a driver that runs the card and what this CUDA makes."""
    if stack.cuda not in catalog.toolkits():
        return
    major = stack.cuda.split(".")[0]
    # Minor-version compatibility: the first driver of a CUDA major runs all of its minor versions.
    floor = catalog.lowest_driver(stack.cuda, stack.platform)
    for sm, card in _cards(stack):
        if floor and card.last_driver and not reaches(str(card.last_driver), floor):
            yield because(
                "cuda-driver-gpu",
                f"no driver runs both CUDA {stack.cuda} and {sm_name(sm)}",
                f"CUDA {major} needs driver {floor} or newer, {card.last_driver} is the last for "
                "the card",
                catalog.cuda_majors_source(),
                change=("cuda",),
            )


def driver_runs_cuda(stack: Stack) -> Iterator[Reason]:
    """The driver runs what this CUDA makes, fully or by minor-version compatibility."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    if toolkit is None or stack.cuda is None or stack.driver is None:
        return
    source = catalog.cuda_majors_source()
    major = stack.cuda.split(".")[0]
    floor = catalog.lowest_driver(stack.cuda, stack.platform)
    full, doubt = catalog.full_driver(stack.cuda, stack.platform)
    if floor is not None and not reaches(stack.driver, floor):
        yield because(
            "driver-cuda",
            f"driver {stack.driver} does not run CUDA {stack.cuda}",
            f"CUDA {major} needs driver {floor} or newer on {stack.platform}",
            source,
            change=("cuda", "driver"),
        )
    elif full is not None and not reaches(stack.driver, full):
        yield because(
            "driver-limited",
            f"driver {stack.driver} runs CUDA {stack.cuda} with a limited feature set, and "
            "compiles none of its PTX",
            f"CUDA {toolkit.release} has every feature from driver {full} on; below it, a part",
            Ground(source, doubt),
            severity="warning",
            change=("driver", "cuda"),
        )


def _jit_driver(stack: Stack) -> str | None:
    """The driver that was asked about, else the last one that every card of the variant can
    have.
    """
    if stack.driver is not None:
        return stack.driver
    branches = []
    for _, card in _cards(stack):
        if card.last_driver is not None:
            branches.append(card.last_driver)
    # Only where every card of the variant has a last driver: a newer card can have a newer one.
    if branches and len(branches) == len(targets(stack)):
        return str(max(branches))
    return None


def ptx_needs_driver(stack: Stack) -> Iterator[Reason]:
    """PTX in the arch list can be compiled by the driver of the cards."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    driver = _jit_driver(stack)
    has_ptx = any(entry.ptx for entry in entries(stack))
    if toolkit is None or stack.cuda is None or driver is None or not has_ptx:
        return
    # Compiling PTX needs the driver of that very CUDA: minor-version compatibility does not cover
    # the JIT compiler.
    full, doubt = catalog.full_driver(stack.cuda, stack.platform)
    if full is None or reaches(driver, full):
        return
    # Cards that have SASS in the list run that; for the others the PTX is all that there is.
    sm = _first_without_sass(stack)
    effect = "only the SASS of the list runs, the PTX is dead weight"
    if sm is not None:
        effect = f"{sm_name(sm)} gets nothing to run"
    reason = because(
        "ptx-driver",
        f"driver {driver} cannot compile the PTX of {arch_list(stack)!r} from CUDA {stack.cuda}: "
        f"{effect}",
        f"PTX of CUDA {toolkit.release} needs driver {full} or newer (else error 222)",
        Ground(catalog.cuda_majors_source(), doubt),
        severity="warning",
        change=("ptx", "arch_list", "cuda", "driver"),
    )
    if sm is not None:
        yield reason.with_severity("error")
    elif stack.arch_list is None:  # no one wrote the PTX: it comes with the channel
        yield reason.with_severity("note")
    else:
        yield reason


def _first_without_sass(stack: Stack) -> int | None:
    """The first card that no SASS of the arch list runs on."""
    for sm in targets(stack):
        if not any(entry.runs_on(sm) for entry in entries(stack)):
            return sm
    return None


def wheel_has_code(stack: Stack) -> Iterator[Reason]:
    """The arch list makes code that the cards run: SASS of the same major version, or PTX of a
    lower one.
    """
    if stack.cuda is None or (stack.arch_list is None and stack.gpu is None):
        return
    change = "arch_list"
    if stack.arch_list is None:
        change = "gpu_of_variant"
    for sm in targets(stack):
        if has_code(stack, sm):
            continue
        name = sm_name(sm)
        if stack.gpu_name:
            name = f"{stack.gpu_name} (sm_{sm})"
        yield because(
            "arch-list-gpu",
            f"an arch list of {arch_list(stack)!r} makes no code that {name} can run: it needs "
            f"{spell([sm])}",
            "SASS runs on the same major version and no lower minor one; PTX is compiled for any "
            "higher one",
            "CUDA C++ Programming Guide, binary and PTX compatibility",
            change=(change,),
        )


def toolkit_is_for_jetson(stack: Stack) -> Iterator[Reason]:
    """CUDA's archives for Arm servers run on Jetson boards from the CUDA on where both are one."""
    boards = [sm for sm in targets(stack) if is_integrated(sm)]
    jetson = catalog.architectures().jetson
    if not boards or stack.cuda not in catalog.toolkits():
        return
    board = sm_name(boards[0])
    if number(stack.cuda) < number(jetson.cuda):
        yield because(
            "jetson-cuda",
            f"CUDA {stack.cuda} for Arm servers does not run on Jetson boards, {board} among them",
            f"servers and Jetson have one CUDA from {jetson.cuda} on, with {jetson.system}",
            jetson.source,
            change=("cuda",),
        )
    else:
        yield because(
            "jetson-system",
            f"on {board} this wheel needs {jetson.system} or newer",
            f"an older JetPack has CUDA below {jetson.cuda} and an older glibc; {jetson.elsewhere}",
            jetson.source,
            severity="warning",
        )


def machine_has_gpu(stack: Stack) -> Iterator[Reason]:
    """Integrated GPUs are parts of Arm chips, and some cards are beside Arm cores alone: no x86
    machine has them.
    """
    architectures = catalog.architectures()
    machine = stack.variant.machine
    on_arm = machine == "aarch64"
    if stack.gpu_name and not on_arm and gpus.beside_arm(stack.gpu_name):
        names = gpus.gpus()
        yield because(
            "gpu-machine",
            f"{stack.gpu_name} sits beside Arm cores: no {machine} machine has it",
            f"beside NVIDIA's Grace CPU alone: {', '.join(names.arm)}",
            names.arm_source,
            change=("cpu_of_arm",),
        )
    for sm in sorted({*stack.variant.sms, *targets(stack)}):
        if is_integrated(sm) and not on_arm:
            yield because(
                "gpu-machine",
                f"{sm_name(sm)} is part of an Arm chip: no {machine} machine has it",
                "integrated GPUs (Tegra) sit in 64-bit Arm systems alone",
                architectures.tegra_source,
                change=("cpu_of_arm",),
            )
        elif sm in architectures.armv8_0:
            chips = ", ".join(f"sm_{chip}" for chip in architectures.armv8_0)
            yield because(
                "gpu-machine",
                f"no wheel for {sm_name(sm)}: {gpus.without_variant(sm)}",
                f"beside cores of Armv8.0: {chips}",
                architectures.armv8_0_source,
            )
        elif sm in architectures.arm_alone and not on_arm:
            # That an x86 machine with this card is not known does not say that there can be none.
            yield because(
                "gpu-arm",
                f"no {machine} machine with {sm_name(sm)} is known: GB10 sits beside Arm cores",
                "the one chip with sm_121 is GB10",
                architectures.arm_alone_source,
                severity="warning",
                change=("cpu_of_arm",),
            )
