"""A release of PyTorch: the CUDA, cuDNN, Python, numpy and compilers that it takes, and the grammar
of its arch list.
"""

import re
from collections.abc import Iterator

from farm import catalog
from farm.catalog import number
from farm.catalog.models import TorchRelease
from farm.plan.compat import official_wheels
from farm.plan.compat.compilers import compiler, host_gcc
from farm.plan.compat.reason import Ground, Reason, because, ground
from farm.plan.compat.stack import Stack, arch_list, names_of, sm_name, targets, words
from farm.platforms.facts import facts


def _release(stack: Stack) -> TorchRelease | None:
    return catalog.torch_releases().get(stack.torch or "")


def numpy_end(release: TorchRelease, cpu: str) -> str:
    """The first numpy that a wheel cannot work with: of another ABI than its torch has, or for
    newer CPUs.
    """
    end = catalog.cpu_levels()[cpu].numpy_end
    return min(str(release.numpy_major_max + 1), *filter(None, [end]), key=number)


def torch_is_known(stack: Stack) -> Iterator[Reason]:
    """The PyTorch version is one of the catalogue's."""
    if stack.torch is not None and _release(stack) is None:
        yield because(
            "torch",
            f"torch {stack.torch} is not in the catalogue",
            f"known: {', '.join(catalog.torch_releases())}",
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
        yield because(
            "torch-cuda",
            f"torch {stack.torch} needs CUDA {release.cuda_min} or newer, not {stack.cuda}",
            f"CMake of the release: PyTorch requires CUDA {release.cuda_min} or above",
            ground(release, "cuda_min"),
            change=("cuda", "torch"),
        )
        return
    reported = release.cuda_reported_min
    if reported is not None and number(stack.cuda) < number(reported):
        yield because(
            "torch-cuda-reported",
            f"torch {stack.torch} is reported to need CUDA {reported} or newer, not {stack.cuda}",
            f"reported lowest: {reported}",
            ground(release, "cuda_reported_min"),
            severity="warning",
            change=("cuda", "torch"),
        )
    yield from _someone_built(stack, release)


def _someone_built(stack: Stack, release: TorchRelease) -> Iterator[Reason]:
    published = release.official_cudas(stack.platform)
    if stack.cuda in published:
        return
    for build in release.also_built:
        if build.cuda == stack.cuda and build.platform in (None, stack.platform):
            yield because(
                "torch-official",
                f"upstream publishes no torch {stack.torch} with CUDA {stack.cuda}; it is compiled "
                f"{build.by}",
                "no wheel of upstream's has this CUDA",
                build.source,
                severity="note",
            )
            return
    yield because(
        "torch-official",
        f"upstream never built torch {stack.torch} with CUDA {stack.cuda}: expect to be the first",
        f"official CUDA of torch {stack.torch}: {', '.join(published)}",
        ground(release, "official"),
        severity="warning",
        change=("cuda", "torch"),
    )


def upstream_left_gpu_behind(stack: Stack) -> Iterator[Reason]:
    """Upstream did not drop the cards from its own wheels of this release and CUDA."""
    release = _release(stack)
    lowest = min(targets(stack), default=None)
    if release is None or stack.torch is None or stack.cuda is None or lowest is None:
        return
    # Where upstream has no wheels with this CUDA, there are none that leave a card behind.
    if stack.cuda not in release.official_cudas(stack.platform):
        return
    announcement = official_wheels.left_behind(stack.torch, stack.cuda, lowest)
    if announcement is not None and facts(stack.platform).cuda:
        yield because(
            "torch-official-gpu",
            f"upstream's own wheels of torch {stack.torch} with CUDA {stack.cuda} leave "
            f"{sm_name(lowest)} behind",
            announcement.text,
            announcement.source,
            severity="warning",
        )


def torch_takes_python(stack: Stack) -> Iterator[Reason]:
    """The release is made for this Python on this platform."""
    release = _release(stack)
    python = stack.variant.python
    if release is None or python in release.pythons.on(stack.platform):
        return
    yield because(
        "torch-python",
        f"torch {stack.torch} does not build for {python} on {stack.platform}",
        f"Pythons of the release on {stack.platform}: "
        f"{', '.join(release.pythons.on(stack.platform))}",
        ground(release, "pythons"),
        change=("python", "torch"),
    )


def torch_takes_gpu(stack: Stack) -> Iterator[Reason]:
    """The release compiles for the lowest SM."""
    release = _release(stack)
    lowest = min(targets(stack), default=None)
    if release is None or stack.cuda is None or lowest is None or lowest >= release.sm_built:
        return
    refused = f"torch {stack.torch} starts at sm_{release.sm_min}: it does not compile for "
    fact = f"lowest SM: {release.sm_min}"
    built = release.sources.get("sm_built", "sm_built")
    # Below sm_min the release's own sources refuse it; from there to sm_built no one has shown a
    # build.
    if lowest < release.sm_min:
        source = release.sources.get("sm_min", "sm_min")
        yield because("torch-sm", refused + sm_name(lowest), fact, source, change=("torch",))
    elif doubt := release.doubt("sm_min"):
        yield because(
            "torch-sm",
            f"torch {stack.torch} is not known to compile for {sm_name(lowest)}",
            fact,
            Ground(built, doubt),
            change=("torch",),
        )
    else:
        yield because("torch-sm", refused + sm_name(lowest), fact, built, change=("torch",))


def torch_takes_compiler(stack: Stack) -> Iterator[Reason]:
    """The release takes the host compiler."""
    release = _release(stack)
    if release is None:
        return
    host = facts(stack.platform).compiler
    gcc = host_gcc(stack) if host == "gcc" else None
    msvc = stack.msvc if host == "msvc" else None
    if gcc is not None and release.gcc_min is not None and gcc < release.gcc_min:
        yield because(
            "torch-gcc",
            f"torch {stack.torch} needs gcc {release.gcc_min} or newer, not gcc {gcc}",
            f"lowest gcc of the release: {release.gcc_min}",
            ground(release, "gcc_min"),
            change=("gcc", "torch"),
        )
    if msvc is not None and release.msvc_min is not None and msvc < release.msvc_min:
        yield because(
            "torch-msvc",
            f"torch {stack.torch} is not known to build with {compiler(msvc)}",
            "upstream builds it with VS 2022",
            ground(release, "msvc_min"),
            change=("msvc", "torch"),
        )


def cudnn_fits(stack: Stack) -> Iterator[Reason]:
    """CuDNN has code for the SMs and is made for this CUDA."""
    if stack.cudnn is None or stack.cuda is None:
        return
    release = catalog.cudnn_releases().get(stack.cudnn)
    cards = targets(stack)
    if release is None:
        yield because(
            "cudnn",
            f"cuDNN {stack.cudnn} is not in the catalogue",
            f"known: {', '.join(catalog.cudnn_releases())}",
            "farm/catalog/cudnn.yaml",
            change=("cudnn",),
        )
        return
    if cards and cards[0] < release.sm_min:
        yield because(
            "cudnn-sm",
            f"cuDNN {stack.cudnn} has no code for {sm_name(cards[0])}",
            f"lowest SM in the binaries of {release.version}: {release.sm_min}",
            ground(release, "sm_min"),
            change=("cudnn",),
        )
    # SASS runs on every later minor version of its major one: only a higher major has none.
    if cards and release.sm_max is not None and cards[-1] // 10 > release.sm_max // 10:
        source = release.sources.get("sm_max", "sm_max")
        yield because(
            "cudnn-sm-max",
            f"cuDNN {stack.cudnn} is older than {sm_name(cards[-1])}: it has no SASS for it",
            f"highest SM in the binaries of {release.version}: {release.sm_max}",
            Ground(source, "whether PTX in them makes up for it"),
            severity="warning",
            change=("cudnn",),
        )
    if stack.cuda in catalog.toolkits() and number(stack.cuda)[0] not in release.cuda_majors:
        yield because(
            "cudnn-cuda",
            f"cuDNN {stack.cudnn} is not made for CUDA {stack.cuda}",
            f"CUDA majors of {release.version}: {', '.join(map(str, release.cuda_majors))}",
            ground(release, "cuda_majors"),
            change=("cudnn", "cuda"),
        )


def torch_takes_cudnn(stack: Stack) -> Iterator[Reason]:
    """The release has sources for this cuDNN."""
    release = _release(stack)
    if release is None or stack.cuda is None or stack.cudnn not in catalog.cudnn_releases():
        return
    if release.cudnn_min is not None and number(stack.cudnn) < number(release.cudnn_min):
        yield because(
            "torch-cudnn",
            f"torch {stack.torch} needs cuDNN {release.cudnn_min} or newer, not {stack.cudnn}",
            f"lowest cuDNN of the release: {release.cudnn_min}",
            ground(release, "cudnn_min"),
            change=("cudnn", "torch"),
        )


def numpy_fits(stack: Stack) -> Iterator[Reason]:
    """PyTorch can use this numpy, and it has wheels for this Python."""
    release = _release(stack)
    python = catalog.pythons().versions.get(stack.variant.python)
    if stack.numpy is None:
        return
    numpy = number(stack.numpy)
    if release and numpy[0] > release.numpy_major_max:
        yield because(
            "torch-numpy",
            f"torch {stack.torch} cannot use numpy {stack.numpy}: it says 'Numpy is not available'",
            f"torch {stack.torch} takes numpy below {release.numpy_major_max + 1}",
            ground(release, "numpy_major_max"),
            change=("numpy", "torch"),
        )
    if python is None:
        return
    # A major version alone means the newest of it.
    too_old = numpy < number(python.numpy_min)[: len(numpy)]
    # null in python.yaml: numpy still makes wheels for this Python.
    too_new = python.numpy_max is not None and numpy > number(python.numpy_max)
    if too_old or too_new:
        yield because(
            "numpy-python",
            f"numpy {stack.numpy} has no wheels for Python {python.version}",
            f"numpy for Python {python.version}: {python.numpy_min} to "
            f"{python.numpy_max or 'today'}",
            Ground(
                python.sources["numpy_max" if too_new else "numpy_min"], python.doubt("numpy_max")
            ),
            change=("numpy", "python"),
        )


def _first_reader(word: str) -> str:
    """Which release of the catalogue is the first that reads an entry, as the end of a sentence."""
    grammar = catalog.arch_list_grammar()
    since = list(grammar.names.get(word, {}))
    for first, pattern in grammar.numbers.items():
        if re.fullmatch(pattern, word, re.ASCII):
            since.append(first)
    if since:
        return f"torch {since[0]} is the first that does"
    return "no release does"


def arch_list_is_read(stack: Stack) -> Iterator[Reason]:
    """The release reads every entry of the arch list."""
    if _release(stack) is None or stack.torch is None or stack.cuda is None:
        return
    # The grammar is that of the release's own cpp_extension: what one release reads another
    # refuses.
    grammar = catalog.arch_list_grammar()
    names = names_of(stack.torch)
    pattern = _number_pattern(stack.torch)
    for word in words(arch_list(stack)):
        plain = word.removesuffix("+PTX")
        if plain in grammar.depends_on:
            yield because(
                "arch-list",
                f"{word!r} in TORCH_CUDA_ARCH_LIST is not taken here: what it stands for depends "
                f"on {grammar.depends_on[plain]}",
                "a plan names every SM that a wheel has code for",
                grammar.source,
                change=("arch_list",),
            )
        elif plain not in names and not re.fullmatch(pattern, plain, re.ASCII):
            yield because(
                "arch-list",
                f"torch {stack.torch} does not read {word!r} in TORCH_CUDA_ARCH_LIST: "
                f"{_first_reader(plain)}",
                f"torch {stack.torch} takes {pattern} and {', '.join(names)}",
                grammar.source,
                change=("torch", "arch_list"),
            )


def _number_pattern(torch: str) -> str:
    """How numbers are written in the arch list of a release: the newest grammar that is not newer
    than the release.
    """
    pattern = ""
    for since, text in catalog.arch_list_grammar().numbers.items():
        if number(since) <= number(torch):
            pattern = text
    return pattern


def torch_makes_of_cpu(stack: Stack) -> Iterator[Reason]:
    """PyTorch's use of a CPU level whose name promises more."""
    level = catalog.cpu_levels()[stack.variant.cpu]
    if stack.torch is not None and level.torch_effect is not None:
        yield because(
            "torch-cpu",
            f"{stack.variant.cpu} is not a switch of PyTorch: it builds, but {level.torch_effect}",
            f"ATen has no tier for {stack.variant.cpu}",
            ground(level, "torch_effect"),
            severity="warning",
            change=("cpu",),
        )
