"""Rules on PyTorch: CUDA, cuDNN, Python, numpy, compilers, the arch list's grammar, its switches."""

import re
from collections.abc import Iterator

from farm import catalog
from farm.catalog.models import TorchRelease
from farm.plan.compat import official
from farm.plan.compat.host import compiler, host_gcc
from farm.plan.compat.stack import (
    Reason,
    Stack,
    arch_list,
    doubted,
    names_of,
    number,
    sm_name,
    targets,
    with_doubt,
    words,
)
from farm.platforms.facts import facts


def _release(stack: Stack) -> TorchRelease | None:
    return catalog.torch_releases().get(stack.torch or "")


def numpy_end(release: TorchRelease, cpu: str) -> str:
    """The first numpy that a wheel cannot work with: of another ABI than its torch has, or for newer CPUs."""
    end = catalog.cpu_levels()[cpu].numpy_end
    return min(str(release.numpy_major_max + 1), *filter(None, [end]), key=number)


def torch_is_known(stack: Stack) -> Iterator[Reason]:
    """The PyTorch version is one of the catalogue's."""
    known = catalog.torch_releases()
    if stack.torch is not None and stack.torch not in known:
        yield Reason(
            "torch",
            f"torch {stack.torch} is not in the catalogue",
            f"known: {', '.join(known)}",
            "farm/catalog/torch.yaml",
            change=("torch",),
        )


def torch_takes_cuda(stack: Stack) -> Iterator[Reason]:
    """The release takes this CUDA, and someone built it with that."""
    release = _release(stack)
    if release is None or stack.cuda not in catalog.toolkits():
        return
    # Where CMake refuses the CUDA, the doubts below have nothing to add.
    if number(stack.cuda) < number(release.cuda_min):
        yield Reason(
            "torch-cuda",
            f"torch {stack.torch} needs CUDA {release.cuda_min} or newer, not {stack.cuda}",
            f"CMake of the release: PyTorch requires CUDA {release.cuda_min} or above",
            release.sources["cuda_min"],
            change=("cuda", "torch"),
        )
        return
    reported = release.cuda_reported_min
    if reported is not None and number(stack.cuda) < number(reported):
        yield Reason(
            "torch-cuda-reported",
            f"torch {stack.torch} is reported to need CUDA {reported} or newer, not {stack.cuda}",
            with_doubt(f"reported lowest: {reported}", release.doubt("cuda_reported_min")),
            release.sources["cuda_reported_min"],
            severity="warning",
            change=("cuda", "torch"),
        )
    official = [combination.cuda for combination in release.official]
    if stack.cuda not in official:
        yield Reason(
            "torch-official",
            f"upstream never built torch {stack.torch} with CUDA {stack.cuda}: expect to be the first",
            f"official CUDA of torch {stack.torch}: {', '.join(official)}",
            release.sources["official"],
            severity="warning",
            change=("cuda", "torch"),
        )


def upstream_left_gpu_behind(stack: Stack) -> Iterator[Reason]:
    """Upstream did not drop the cards from its own wheels of this release and CUDA."""
    if _release(stack) is None or stack.torch is None or stack.cuda is None or not facts(stack.platform).cuda:
        return
    lowest = min(targets(stack), default=None)
    left = official.left_behind(stack.torch, stack.cuda, lowest) if lowest is not None else None
    if left is not None:
        yield Reason(
            "torch-official-gpu",
            f"upstream's own wheels of torch {stack.torch} with CUDA {stack.cuda} leave {sm_name(lowest or 0)} behind",
            left.text,
            left.source,
            severity="warning",
        )


def torch_takes_python(stack: Stack) -> Iterator[Reason]:
    """The release is made for this Python on this platform."""
    release = _release(stack)
    if release and stack.variant.python not in release.pythons.on(stack.platform):
        yield Reason(
            "torch-python",
            f"torch {stack.torch} does not build for {stack.variant.python} on {stack.platform}",
            f"Pythons of the release on {stack.platform}: {', '.join(release.pythons.on(stack.platform))}",
            release.sources["pythons"],
            change=("python", "torch"),
        )


def torch_takes_gpu(stack: Stack) -> Iterator[Reason]:
    """The release compiles for the lowest SM."""
    release = _release(stack)
    lowest = min(targets(stack), default=None)
    if release is None or stack.cuda is None or lowest is None or lowest >= release.sm_built:
        return
    # Below sm_min the release's own sources refuse it. From there to sm_built no one has shown a build: it only warns.
    doubt = None if lowest < release.sm_min else release.doubt("sm_min")
    yield Reason(
        "torch-sm",
        f"torch {stack.torch} is not known to compile for {sm_name(lowest)}"
        if doubt
        else f"torch {stack.torch} starts at sm_{release.sm_min}: it does not compile for {sm_name(lowest)}",
        with_doubt(f"lowest SM: {release.sm_min}", doubt),
        release.sources["sm_min" if lowest < release.sm_min else "sm_built"],
        severity=doubted(doubt),
        change=("torch",),
    )


def torch_takes_compiler(stack: Stack) -> Iterator[Reason]:
    """The release takes the host compiler."""
    release = _release(stack)
    if release is None:
        return
    gcc = host_gcc(stack)
    host = facts(stack.platform).compiler
    if host == "gcc" and release.gcc_min is not None and gcc is not None and gcc < release.gcc_min:
        yield Reason(
            "torch-gcc",
            f"torch {stack.torch} needs gcc {release.gcc_min} or newer, not gcc {gcc}",
            f"lowest gcc of the release: {release.gcc_min}",
            release.sources["gcc_min"],
            change=("gcc", "torch"),
        )
    wanted = release.msvc_min
    if host == "msvc" and stack.msvc is not None and wanted is not None and stack.msvc < wanted:
        doubt = release.doubt("msvc_min")
        yield Reason(
            "torch-msvc",
            f"torch {stack.torch} is not known to build with {compiler(stack.msvc)}",
            with_doubt("upstream builds it with VS 2022", doubt),
            release.sources["msvc_min"],
            severity=doubted(doubt),
            change=("msvc", "torch"),
        )


def cudnn_fits(stack: Stack) -> Iterator[Reason]:
    """CuDNN has code for the SMs and is made for this CUDA."""
    if stack.cudnn is None or stack.cuda is None:
        return
    release = catalog.cudnn_releases().get(stack.cudnn)
    if release is None:
        known = ", ".join(catalog.cudnn_releases())
        yield Reason(
            "cudnn",
            f"cuDNN {stack.cudnn} is not in the catalogue",
            f"known: {known}",
            "farm/catalog/cudnn.yaml",
            change=("cudnn",),
        )
        return
    cards = targets(stack)
    if cards and cards[0] < release.sm_min:
        yield Reason(
            "cudnn-sm",
            f"cuDNN {stack.cudnn} has no code for {sm_name(cards[0])}",
            f"lowest SM in the binaries of {release.version}: {release.sm_min}",
            release.sources["sm_min"],
            change=("cudnn",),
        )
    # SASS runs on every later minor version of its major one: only a higher major has none.
    if cards and release.sm_max is not None and cards[-1] // 10 > release.sm_max // 10:
        yield Reason(
            "cudnn-sm-max",
            f"cuDNN {stack.cudnn} is older than {sm_name(cards[-1])}: it has no SASS for it",
            with_doubt(
                f"highest SM in the binaries of {release.version}: {release.sm_max}",
                "whether PTX in them makes up for it",
            ),
            release.sources["sm_max"],
            severity="warning",
            change=("cudnn",),
        )
    if stack.cuda in catalog.toolkits() and number(stack.cuda)[0] not in release.cuda_majors:
        yield Reason(
            "cudnn-cuda",
            f"cuDNN {stack.cudnn} is not made for CUDA {stack.cuda}",
            f"CUDA majors of {release.version}: {', '.join(map(str, release.cuda_majors))}",
            release.sources["cuda_majors"],
            change=("cudnn", "cuda"),
        )


def torch_takes_cudnn(stack: Stack) -> Iterator[Reason]:
    """The release has sources for this cuDNN."""
    release = _release(stack)
    if release is None or stack.cuda is None or stack.cudnn not in catalog.cudnn_releases():
        return
    if release.cudnn_min is not None and number(stack.cudnn) < number(release.cudnn_min):
        yield Reason(
            "torch-cudnn",
            f"torch {stack.torch} needs cuDNN {release.cudnn_min} or newer, not {stack.cudnn}",
            f"lowest cuDNN of the release: {release.cudnn_min}",
            release.sources["cudnn_min"],
            change=("cudnn", "torch"),
        )


def numpy_fits(stack: Stack) -> Iterator[Reason]:
    """PyTorch can use this numpy, and it has wheels for this Python."""
    if stack.numpy is None:
        return
    release = _release(stack)
    if release and number(stack.numpy)[0] > release.numpy_major_max:
        yield Reason(
            "torch-numpy",
            f"torch {stack.torch} cannot use numpy {stack.numpy}: it says 'Numpy is not available'",
            f"torch {stack.torch} takes numpy below {release.numpy_major_max + 1}",
            release.sources["numpy_major_max"],
            change=("numpy", "torch"),
        )
    python = catalog.pythons().versions.get(stack.variant.python)
    if python is None:
        return
    # null in python.yaml: numpy still makes wheels for this Python.
    last = python.numpy_max
    asked = number(stack.numpy)
    # A major version alone means the newest of it.
    too_old = asked < number(python.numpy_min)[: len(asked)]
    too_new = last is not None and asked > number(last)
    if too_old or too_new:
        yield Reason(
            "numpy-python",
            f"numpy {stack.numpy} has no wheels for Python {python.version}",
            f"numpy for Python {python.version}: {python.numpy_min} to {last or 'today'}",
            python.sources["numpy_max" if too_new else "numpy_min"],
            change=("numpy", "python"),
        )


def _first_reader(word: str) -> str:
    """Which release of the catalogue is the first that reads an entry."""
    grammar = catalog.arch_list_grammar()
    since = [*grammar.names.get(word, {})]
    since += [first for first, text in grammar.numbers.items() if re.fullmatch(text, word, re.ASCII)]
    return f"torch {since[0]} is the first that does" if since else "no release does"


def arch_list_is_read(stack: Stack) -> Iterator[Reason]:
    """The release reads every entry of the arch list."""
    if _release(stack) is None or stack.torch is None or stack.cuda is None:
        return
    # The grammar is that of the release's own cpp_extension: what one release reads another refuses.
    grammar = catalog.arch_list_grammar()
    # The newest grammar that is not newer than the release.
    pattern = [text for since, text in grammar.numbers.items() if number(since) <= number(stack.torch)][-1]
    names = names_of(stack.torch)
    for word in words(arch_list(stack)):
        plain = word.removesuffix("+PTX")
        if plain in grammar.depends_on:
            yield Reason(
                "arch-list",
                f"{word!r} in TORCH_CUDA_ARCH_LIST is not taken here: what it stands for depends on "
                f"{grammar.depends_on[plain]}",
                "a plan names every SM that a wheel has code for",
                grammar.source,
                change=("arch_list",),
            )
        elif plain not in names and not re.fullmatch(pattern, plain, re.ASCII):
            yield Reason(
                "arch-list",
                f"torch {stack.torch} does not read {word!r} in TORCH_CUDA_ARCH_LIST: {_first_reader(plain)}",
                f"torch {stack.torch} takes {pattern} and {', '.join(names)}",
                grammar.source,
                change=("torch", "arch_list"),
            )


def torch_makes_of_cpu(stack: Stack) -> Iterator[Reason]:
    """PyTorch's use of a CPU level whose name promises more."""
    level = catalog.cpu_levels()[stack.variant.cpu]
    if stack.torch is not None and level.torch_effect is not None:
        yield Reason(
            "torch-cpu",
            f"{stack.variant.cpu} is not a switch of PyTorch: it builds, but {level.torch_effect}",
            f"ATen has no tier for {stack.variant.cpu}",
            level.sources["torch_effect"],
            severity="warning",
            change=("cpu",),
        )


def switches_work(stack: Stack) -> Iterator[Reason]:
    """The switches that were asked for do something on this platform, GPU, CUDA and CPU."""
    for name in sorted(stack.switches):
        yield from _feature_works(stack, catalog.switches()[name])


def feature_off(stack: Stack, name: str) -> str | None:
    """Why a feature is off for the stack, also where that is in doubt; None: nothing is against it."""
    return next((reason.text for reason in _feature_works(stack, name)), None)


def _feature_works(stack: Stack, name: str) -> Iterator[Reason]:
    levels = catalog.cpu_levels()
    level = levels[stack.variant.cpu]
    switch = catalog.features()[name]
    part = (switch.switch or name).removeprefix("USE_")
    rule = f"switch-{part.lower().replace('_', '-')}"

    if stack.platform not in switch.platforms:
        yield Reason(
            rule,
            f"{part} is not for {stack.platform}: CMake turns it off there",
            f"{part} works on {', '.join(switch.platforms)}",
            switch.sources["platforms"],
            change=("switches",),
        )
    machine = stack.variant.machine
    if switch.machines is not None and machine not in switch.machines:
        doubt = switch.doubt("machines")
        yield Reason(
            rule,
            f"{part} is for {' and '.join(switch.machines)}, not {machine}",
            with_doubt(f"machines of {part}: {', '.join(switch.machines)}", doubt),
            switch.sources["machines"],
            severity=doubted(doubt),
            change=("switches",),
        )
    cards = targets(stack)
    if switch.gpu and switch.sm_min is None and not cards:
        yield Reason(
            rule,
            f"{part} is for GPUs, and the wheel is for the CPU alone",
            f"{part} depends on CUDA",
            switch.sources["gpu"],
            change=("switches",),
        )
    if switch.blas is not None and stack.blas != switch.blas:
        yield Reason(rule, f"BLAS is {stack.blas}", f"{part}: --blas {switch.blas}", switch.sources["blas"])
    if switch.sm_min is not None and (not cards or cards[0] < switch.sm_min):
        # Where only some of the cards are too old, the kernels are built for the others. Whether such a build
        # succeeds is in doubt.
        some = bool(cards) and cards[-1] >= switch.sm_min
        yield Reason(
            rule,
            f"{part} needs sm_{switch.sm_min} or newer, not {sm_name(cards[0]) if cards else stack.variant.gpu}",
            with_doubt(
                f"lowest SM of its kernels: {switch.sm_min}",
                "that the build fails where only some SMs are lower" if some else None,
            ),
            switch.sources["sm_min"],
            severity="warning" if some else "error",
            change=("switches",),
        )
    known = stack.cuda is not None and stack.cuda in catalog.toolkits()
    if switch.cuda_min is not None and known and number(str(stack.cuda)) < number(switch.cuda_min):
        yield Reason(
            rule,
            f"{part} needs CUDA {switch.cuda_min} or newer, not {stack.cuda}",
            f"lowest CUDA of {part}: {switch.cuda_min}",
            switch.sources["cuda_min"],
            change=("switches", "cuda"),
        )
    if switch.cpu is not None and name in level.torch_off:
        doubt = switch.doubt("cpu")
        yield Reason(
            rule,
            f"{part} needs {switch.cpu} or newer, {stack.variant.cpu} CPUs have less: it is turned off for them",
            with_doubt(f"lowest of {', '.join(levels)} with {part}: {switch.cpu}", doubt),
            switch.sources["cpu"],
            severity=doubted(doubt),
            change=("switches", "cpu"),
        )


RULES = (
    torch_is_known,
    torch_takes_cuda,
    upstream_left_gpu_behind,
    torch_takes_python,
    torch_takes_gpu,
    torch_takes_compiler,
    cudnn_fits,
    torch_takes_cudnn,
    arch_list_is_read,
    numpy_fits,
    torch_makes_of_cpu,
    switches_work,
)
