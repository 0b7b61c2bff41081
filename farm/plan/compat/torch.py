"""Rules on PyTorch: CUDA, cuDNN, Python, numpy, compilers, the arch list's grammar, its switches."""

import re
from collections.abc import Iterator

from farm import catalog
from farm.catalog import number
from farm.catalog.models import TorchRelease
from farm.plan.compat import official
from farm.plan.compat.host import compiler, host_gcc
from farm.plan.compat.stack import Reason, Stack, arch_list, because, names_of, sm_name, targets, words
from farm.platforms.facts import facts


def _release(stack: Stack) -> TorchRelease | None:
    return catalog.torch_releases().get(stack.torch or "")


def numpy_end(release: TorchRelease, cpu: str) -> str:
    """The first numpy that a wheel cannot work with: of another ABI than its torch has, or for newer CPUs."""
    end = catalog.cpu_levels()[cpu].numpy_end
    return min(str(release.numpy_major_max + 1), *filter(None, [end]), key=number)


def torch_is_known(stack: Stack) -> Iterator[Reason]:
    """The PyTorch version is one of the catalogue's."""
    if stack.torch is not None and _release(stack) is None:
        yield because("torch", stack, known=", ".join(catalog.torch_releases()))


def torch_takes_cuda(stack: Stack) -> Iterator[Reason]:
    """The release takes this CUDA, and someone built it with that."""
    release = _release(stack)
    if release is None or stack.cuda not in catalog.toolkits():
        return
    # Where CMake refuses the CUDA, the doubts below have nothing to add.
    if number(stack.cuda) < number(release.cuda_min):
        yield because("torch-cuda", stack, release)
        return
    reported = release.cuda_reported_min
    if reported is not None and number(stack.cuda) < number(reported):
        yield because("torch-cuda-reported", stack, release)
    official = [combination.cuda for combination in release.official]
    if stack.cuda not in official:
        yield because("torch-official", stack, release, known=", ".join(official))


def upstream_left_gpu_behind(stack: Stack) -> Iterator[Reason]:
    """Upstream did not drop the cards from its own wheels of this release and CUDA."""
    if _release(stack) is None or stack.torch is None or stack.cuda is None or not facts(stack.platform).cuda:
        return
    lowest = min(targets(stack), default=None)
    left = official.left_behind(stack.torch, stack.cuda, lowest) if lowest is not None else None
    if left is not None:
        yield because("torch-official-gpu", stack, left, sm=sm_name(lowest or 0), source=left.source)


def torch_takes_python(stack: Stack) -> Iterator[Reason]:
    """The release is made for this Python on this platform."""
    release = _release(stack)
    if release and stack.variant.python not in (known := release.pythons.on(stack.platform)):
        yield because("torch-python", stack, release, known=", ".join(known))


def torch_takes_gpu(stack: Stack) -> Iterator[Reason]:
    """The release compiles for the lowest SM."""
    release, lowest = _release(stack), min(targets(stack), default=None)
    if release is None or stack.cuda is None or lowest is None or lowest >= release.sm_built:
        return
    if lowest < release.sm_min:
        yield because("torch-sm", stack, release, sm=sm_name(lowest), doubt=None)
    elif doubt := release.doubt("sm_min"):
        yield because("torch-sm/doubt", stack, release, sm=sm_name(lowest), doubt=doubt)
    else:
        yield because("torch-sm", stack, release, sm=sm_name(lowest), source=release.sources["sm_built"], doubt=None)


def torch_takes_compiler(stack: Stack) -> Iterator[Reason]:
    """The release takes the host compiler."""
    release, host = _release(stack), facts(stack.platform).compiler
    if release is None:
        return
    gcc = host_gcc(stack)
    if host == "gcc" and release.gcc_min is not None and gcc is not None and gcc < release.gcc_min:
        yield because("torch-gcc", stack, release, gcc=gcc)
    if host == "msvc" and stack.msvc is not None and release.msvc_min is not None and stack.msvc < release.msvc_min:
        yield because("torch-msvc", stack, release, compiler=compiler(stack.msvc))


def cudnn_fits(stack: Stack) -> Iterator[Reason]:
    """CuDNN has code for the SMs and is made for this CUDA."""
    if stack.cudnn is None or stack.cuda is None:
        return
    release, cards = catalog.cudnn_releases().get(stack.cudnn), targets(stack)
    if release is None:
        yield because("cudnn", stack, known=", ".join(catalog.cudnn_releases()))
        return
    if cards and cards[0] < release.sm_min:
        yield because("cudnn-sm", stack, release, sm=sm_name(cards[0]))
    # SASS runs on every later minor version of its major one: only a higher major has none.
    if cards and release.sm_max is not None and cards[-1] // 10 > release.sm_max // 10:
        doubt = "whether PTX in them makes up for it"
        yield because("cudnn-sm-max", stack, release, sm=sm_name(cards[-1]), doubt=doubt)
    if stack.cuda in catalog.toolkits() and number(stack.cuda)[0] not in release.cuda_majors:
        yield because("cudnn-cuda", stack, release, known=", ".join(map(str, release.cuda_majors)))


def torch_takes_cudnn(stack: Stack) -> Iterator[Reason]:
    """The release has sources for this cuDNN."""
    release = _release(stack)
    if release is None or stack.cuda is None or stack.cudnn not in catalog.cudnn_releases():
        return
    if release.cudnn_min is not None and number(stack.cudnn) < number(release.cudnn_min):
        yield because("torch-cudnn", stack, release)


def numpy_fits(stack: Stack) -> Iterator[Reason]:
    """PyTorch can use this numpy, and it has wheels for this Python."""
    release, python = _release(stack), catalog.pythons().versions.get(stack.variant.python)
    if stack.numpy is None:
        return
    numpy = number(stack.numpy)
    if release and numpy[0] > release.numpy_major_max:
        yield because("torch-numpy", stack, release, end=release.numpy_major_max + 1)
    # A major version alone means the newest of it.
    too_old = python and numpy < number(python.numpy_min)[: len(numpy)]
    # null in python.yaml: numpy still makes wheels for this Python.
    too_new = python and python.numpy_max is not None and numpy > number(python.numpy_max)
    if python and (too_old or too_new):
        source = python.sources["numpy_max" if too_new else "numpy_min"]
        yield because("numpy-python", stack, python, last=python.numpy_max or "today", source=source)


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
    grammar, names = catalog.arch_list_grammar(), names_of(stack.torch)
    # The newest grammar that is not newer than the release.
    pattern = [text for since, text in grammar.numbers.items() if number(since) <= number(stack.torch)][-1]
    for word in words(arch_list(stack)):
        plain = word.removesuffix("+PTX")
        details = {"word": word, "source": grammar.source}
        if plain in grammar.depends_on:
            yield because("arch-list/depends", stack, what=grammar.depends_on[plain], **details)
        elif plain not in names and not re.fullmatch(pattern, plain, re.ASCII):
            known = ", ".join(names)
            yield because("arch-list", stack, reader=_first_reader(plain), pattern=pattern, names=known, **details)


def torch_makes_of_cpu(stack: Stack) -> Iterator[Reason]:
    """PyTorch's use of a CPU level whose name promises more."""
    level = catalog.cpu_levels()[stack.variant.cpu]
    if stack.torch is not None and level.torch_effect is not None:
        yield because("torch-cpu", stack, level)


def switches_work(stack: Stack) -> Iterator[Reason]:
    """The switches that were asked for do something on this platform, GPU, CUDA and CPU."""
    for name in sorted(stack.switches):
        yield from _feature_works(stack, catalog.switches()[name])


def feature_off(stack: Stack, name: str) -> str | None:
    """Why a feature is off for the stack, also where that is in doubt; None: nothing is against it."""
    return next((reason.text for reason in _feature_works(stack, name)), None)


def _feature_works(stack: Stack, name: str) -> Iterator[Reason]:
    feature, levels, cards = catalog.features()[name], catalog.cpu_levels(), targets(stack)
    part = (feature.switch or name).removeprefix("USE_")
    machine, known = stack.variant.machine, stack.cuda in catalog.toolkits()

    def off(limit: str, **values: object) -> Reason:
        rule = f"switch-{part.lower().replace('_', '-')}"
        return because(f"switch/{limit}", stack, feature, rule=rule, part=part, **values)

    if stack.platform not in feature.platforms:
        yield off("platform", known=", ".join(feature.platforms))
    if feature.machines is not None and machine not in feature.machines:
        yield off("machine", known=" and ".join(feature.machines), listed=", ".join(feature.machines))
    if feature.gpu and feature.sm_min is None and not cards:
        yield off("gpu")
    for option, word in feature.words.items():
        if (chosen := dict(stack.words).get(option)) != word:
            yield off("word", option=option.upper(), chosen=chosen, wanted=f"--{option} {word}")
    if feature.sm_min is not None and (not cards or cards[0] < feature.sm_min):
        # Where only some of the cards are too old, the kernels are built for the others. Whether such a build
        # succeeds is in doubt.
        some = bool(cards) and cards[-1] >= feature.sm_min
        doubt = "that the build fails where only some SMs are lower" if some else None
        lowest = sm_name(cards[0]) if cards else stack.variant.gpu
        yield off("sm", sm=lowest, doubt=doubt, severity="warning" if some else "error")
    if feature.cuda_min is not None and known and number(str(stack.cuda)) < number(feature.cuda_min):
        yield off("cuda", severity="error")
    if feature.cpu is not None and name in levels[stack.variant.cpu].torch_off:
        yield off("cpu", known=", ".join(levels))


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
