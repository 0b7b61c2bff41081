"""The rules: what stands against a stack on its cards, on the machine that builds and in PyTorch
itself.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import gpus, number, redist
from farm.catalog.gpus import is_integrated
from farm.catalog.models import Architecture, DebianRelease, PinnedWheel, TorchRelease
from farm.plan.compat import official
from farm.plan.compat.stack import (
    Reason,
    Rule,
    Stack,
    arch_list,
    because,
    compiled,
    effects,
    entries,
    names_of,
    reaches,
    sm_name,
    spell,
    targets,
    words,
)
from farm.plan.variant import PYTHONS
from farm.platforms.facts import facts

# --- GPUs: what nvcc compiles for, what a driver runs, what a wheel holds for a card


def cuda_is_known(stack: Stack) -> Iterator[Reason]:
    """The CUDA version is one of the catalogue's."""
    if stack.cuda is not None and stack.cuda not in catalog.toolkits():
        yield because("cuda", stack, known=", ".join(catalog.toolkits()))


def cuda_targets_gpu(stack: Stack) -> Iterator[Reason]:
    """Nvcc can compile for every SM of the variant, of the card and of the arch list."""
    toolkits = catalog.toolkits()
    known = catalog.architectures()
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
            if len(able) > 1:
                span = f"CUDA {able[0]} to {able[-1]} can"
            else:
                span = f"CUDA {able[0]} alone can"
        # An SM of which no one has seen whether this nvcc takes it is no error.
        if sm in toolkit.sm_unconfirmed:
            doubt = toolkit.sources["sm_unconfirmed"]
        else:
            doubt = None
        details = {
            "verb": "is not known to" if doubt else "cannot",
            "sm": sm_name(sm),
            "span": span,
        }
        # An SM of the variant cannot be given up; one of the arch list alone can.
        if sm in must:
            change = None
        else:
            change = ("arch_list", "cuda")
        listed = ", ".join(map(str, toolkit.sm))
        yield because(
            "cuda-sm", stack, toolkit, listed=listed, doubt=doubt, change=change, **details
        )
    for entry in entries(stack):
        suffix = known.suffixes.get(entry.suffix)
        if suffix and (entry.sm < suffix.sm or number(str(stack.cuda)) < number(suffix.cuda)):
            yield because(
                "cuda-sm/suffix", stack, entry=entry, suffix=suffix, source=known.suffixes_source
            )


def _cards(stack: Stack) -> Iterator[tuple[int, Architecture]]:
    """The cards that must run the wheel, those that the catalogue knows."""
    known = catalog.architectures().architectures
    return ((sm, known[f"sm{sm}"]) for sm in targets(stack) if f"sm{sm}" in known)


def driver_knows_gpu(stack: Stack) -> Iterator[Reason]:
    """The driver still supports the card."""
    for sm, card in _cards(stack) if stack.driver else ():
        # By branch: 472 and 473 are still branch 470, which knows Kepler.
        if (
            card.last_driver
            and catalog.driver_branch(number(str(stack.driver))[0]) > card.last_driver
        ):
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
    toolkit = catalog.toolkits().get(stack.cuda or "")
    source = catalog.cuda_majors_source()
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
    """The driver that was asked about, or else the last one that every card of the variant can
    have.
    """
    if stack.driver is not None:
        return stack.driver
    last = [card.last_driver for _, card in _cards(stack)]
    # Only where every card of the variant has a last driver: a newer card can have a newer one.
    known = [branch for branch in last if branch is not None]
    if known and len(known) == len(targets(stack)):
        return str(max(known))
    return None


def ptx_needs_driver(stack: Stack) -> Iterator[Reason]:
    """PTX in the arch list can be compiled by the driver of the cards."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    driver = _jit_driver(stack)
    listed = entries(stack)
    if (
        toolkit is None
        or stack.cuda is None
        or driver is None
        or not any(entry.ptx for entry in listed)
    ):
        return
    # Compiling PTX needs the driver of that very CUDA: minor-version compatibility does not cover
    # the JIT compiler.
    full, doubt = catalog.full_driver(stack.cuda, stack.platform)
    if full is None or reaches(driver, full):
        return
    # Cards that have SASS in the list run that; for the others the PTX is all that there is.
    lost = [sm for sm in targets(stack) if not any(entry.runs_on(sm) for entry in listed)]
    if lost:
        effect = f"{sm_name(lost[0])} gets nothing to run"
    else:
        effect = "only the SASS of the list runs, the PTX is dead weight"
    details = {
        "driver": driver,
        "listed": arch_list(stack),
        "effect": effect,
        "full": full,
        "doubt": doubt,
    }
    if lost:
        severity = "error"
    elif stack.arch_list is not None:
        severity = "warning"
    else:  # no one wrote the PTX: it comes with the channel, and does no harm
        severity = "note"
    yield because(
        "ptx-driver",
        stack,
        toolkit,
        severity=severity,
        source=catalog.cuda_majors_source(),
        **details,
    )


def wheel_has_code(stack: Stack) -> Iterator[Reason]:
    """The arch list makes code that the cards run: SASS of the same major version, or PTX of a
    lower one.
    """
    if stack.cuda is None or (stack.arch_list is None and stack.gpu is None):
        return
    for sm in targets(stack):
        if not any(entry.runs_on(sm) or entry.compiles_on(sm) for entry in entries(stack)):
            name = f"{stack.gpu_name} (sm_{sm})" if stack.gpu_name else sm_name(sm)
            change = None if stack.arch_list is not None else ("gpu_of_variant",)
            yield because(
                "arch-list-gpu",
                stack,
                listed=arch_list(stack),
                name=name,
                needed=spell([sm]),
                change=change,
            )


def toolkit_is_for_jetson(stack: Stack) -> Iterator[Reason]:
    """CUDA's archives for Arm servers run on Jetson boards from the CUDA on where both are one."""
    boards = [sm for sm in targets(stack) if is_integrated(sm)]
    known = catalog.architectures().jetson
    if boards and stack.cuda in catalog.toolkits():
        if number(stack.cuda) < number(known.cuda):
            name = "jetson-cuda"
        else:
            name = "jetson-system"
        yield because(name, stack, known, sm=sm_name(boards[0]), source=known.source)


def machine_has_gpu(stack: Stack) -> Iterator[Reason]:
    """Integrated GPUs are parts of Arm chips, and some cards are beside Arm cores alone: no x86
    machine has them.
    """
    known = catalog.architectures()
    names = gpus.gpus()
    on_arm = stack.variant.machine == "aarch64"
    if stack.gpu_name and not on_arm and gpus.beside_arm(stack.gpu_name):
        yield because(
            "gpu-machine/name", stack, known=", ".join(names.arm), source=names.arm_source
        )
    for sm in sorted({*stack.variant.sms, *targets(stack)}):
        if is_integrated(sm) and not on_arm:
            yield because("gpu-machine/tegra", stack, sm=sm_name(sm), source=known.tegra_source)
        elif sm in known.armv8_0:
            cores = ", ".join(f"sm_{each}" for each in known.armv8_0)
            details = {"sm": sm_name(sm), "why": gpus.without_variant(sm), "known": cores}
            yield because("gpu-machine/armv8-0", stack, source=known.armv8_0_source, **details)
        elif sm in known.arm_alone and not on_arm:
            yield because("gpu-arm", stack, sm=sm_name(sm), source=known.arm_alone_source)


# --- the machine that builds: operating system, base image, compilers, CPU level, Python

MSVC_BASE = 1900
"""`_MSC_VER` is 1900 plus the minor version of the toolset (learn.microsoft.com, predefined
macros).
"""


def toolset(msc_ver: int) -> str:
    """`14.29` for the `_MSC_VER` 1929."""
    return f"14.{msc_ver - MSVC_BASE}"


def msc_ver(toolset_: str) -> int:
    """1929 for the toolset `14.29`."""
    return MSVC_BASE + int(toolset_.split(".")[1])


def compiler(msc_ver_: int) -> str:
    """`MSVC 19.29 (VS 2019, toolset 14.29)`."""
    for product, known in catalog.msvc().products.items():
        if msc_ver(known.first) <= msc_ver_ <= msc_ver(known.last):
            return f"MSVC 19.{msc_ver_ - MSVC_BASE} (VS {product}, toolset {toolset(msc_ver_)})"
    return f"MSVC 19.{msc_ver_ - MSVC_BASE}"


def parse_msvc(text: str) -> int:
    """`_MSC_VER` of a compiler: `2022` (its newest toolset), `14.29`, `19.29.30148`, `1929`; else a
    UsageError.
    """
    products = catalog.msvc().products
    short = text.lower().removeprefix("vs").strip()
    if short in products:
        return msc_ver(products[short].last)
    # Toolset 14.29, compiler 19.29 and _MSC_VER 1929 are one and the same: two digits tell.
    match = re.fullmatch(r"(?:14\.|19\.?)([1-5]\d)(?:\.\d{1,6})*", short, re.ASCII)
    if match:
        return MSVC_BASE + int(match[1])
    known = [f"{name} ({product.first} to {product.last})" for name, product in products.items()]
    raise UsageError(
        f"{text!r} is neither a Visual Studio nor an MSVC version",
        hint=f"known: {', '.join(known)}",
    )


def platform_of(stack: Stack) -> str:
    """Platform and machine as the catalogue names them: `linux-x86_64`."""
    return f"{stack.platform}-{stack.variant.machine}"


def redist_platform(stack: Stack) -> redist.Platform | None:
    """NVIDIA's name for the platform and machine; None: it has no archives for it."""
    return catalog.nvidia_provider().platforms.get(platform_of(stack))


def host_gcc(stack: Stack) -> int | None:
    """The gcc that compiles: what was asked about, else the base image's newest that the CUDA
    toolkit takes.

    None: no Linux, or no base image. Where the toolkit takes none of them it is the oldest; a rule
    says so.
    """
    if facts(stack.platform).compiler != "gcc" or stack.gcc is not None:
        return stack.gcc
    base = catalog.debian_releases().get(stack.base or "")
    if base is None:
        return None
    return newest_gcc(base, stack.cuda)


def newest_gcc(base: DebianRelease, cuda: str | None) -> int:
    """The base image's newest gcc that a CUDA takes, else its oldest."""
    toolkit = catalog.toolkits().get(cuda or "")
    return max(
        (gcc for gcc in base.gccs if toolkit is None or gcc <= toolkit.gcc_max),
        default=min(base.gccs),
    )


def platform_has_gpu(stack: Stack) -> Iterator[Reason]:
    """CUDA is for Linux and Windows, MPS for macOS."""
    platform = facts(stack.platform)
    if stack.variant.gpu == "mps" and stack.variant.gpu not in platform.gpus:
        yield because("mps", stack)
    if stack.variant.sms and not platform.cuda:
        yield because("cuda-macos", stack)


def machine_of_cpu(stack: Stack) -> Iterator[Reason]:
    """The CPU level is one of the machine that the farm builds on."""
    machines = facts(stack.platform).built_on
    if stack.variant.machine not in machines:
        yield because("machine", stack, machines=" and ".join(machines))


def toolkit_has_cuda(stack: Stack) -> Iterator[Reason]:
    """The toolkit provider has this CUDA version."""
    base = catalog.debian_releases().get(stack.base or "")
    if stack.cuda is None:
        return
    if stack.toolkit == "wheels":
        known = catalog.wheel_toolkits()
        if stack.cuda not in known:
            yield because("toolkit-cuda/wheels", stack, known=", ".join(known))
        elif platform_of(stack) not in (wheels := known[stack.cuda].wheels):
            yield because(
                "toolkit-machine/wheels",
                stack,
                known=" and ".join(wheels),
                place=platform_of(stack),
            )
    elif stack.toolkit == "debian" and not facts(stack.platform).in_images:
        yield because("toolkit-platform", stack)
    elif stack.toolkit == "debian" and base and stack.cuda != base.cuda:
        yield because(
            f"toolkit-cuda/{'debian' if base.cuda else 'none'}", stack, base, source=base.source
        )
    elif stack.toolkit == "debian" and base and stack.variant.machine != base.cuda_machine:
        yield because("toolkit-machine/debian", stack, base, source=base.source)


def toolkit_has_components(stack: Stack) -> Iterator[Reason]:
    """The toolkit provider has every component that the recipe names, and cuDNN where it is
    wanted.
    """
    toolkit = catalog.toolkits().get(stack.cuda or "")
    base = catalog.debian_releases().get(stack.base or "")
    if toolkit is None or stack.cuda is None or not stack.components:
        return
    wanted = list(stack.components)
    if stack.toolkit == "debian" and base:
        have = list(base.components)
        source = base.source
        if stack.cudnn:
            wanted.append(f"cuDNN {stack.cudnn}")
            if base.cudnn and catalog.cudnn_wheel(stack.cudnn, toolkit.release):
                have += wanted[-1:]
    elif stack.toolkit == "wheels" and (known := catalog.wheel_toolkits().get(stack.cuda)):
        have = list(known.components)
        source = "farm/catalog/toolkit_wheels.yaml"
        have += [
            f"cuDNN {release}"
            for release, files in known.cudnn.items()
            if platform_of(stack) in files
        ]
        if stack.cudnn:
            wanted.append(f"cuDNN {stack.cudnn}")
    elif (
        stack.toolkit == "nvidia"
        and (platform := redist_platform(stack))
        and toolkit.release in redist.versions("cuda")
    ):
        provider = catalog.nvidia_provider()
        # A component is there only where every archive that makes it up is.
        archives = set(redist.components("cuda", toolkit.release, platform))
        have = [
            name
            for name, parts in provider.parts(stack.cuda, platform).items()
            if archives.issuperset(parts)
        ]
        source = provider.source
    else:
        return  # `toolkit_has_cuda` or `toolkit_is_pinned` says so
    if missing := ", ".join(name for name in wanted if name not in have):
        yield because(
            "toolkit-components",
            stack,
            missing=missing,
            have=", ".join(have) or "none",
            source=source,
        )


def toolkit_is_pinned(stack: Stack) -> Iterator[Reason]:
    """The farm has the archives of this CUDA and a file of this cuDNN, each with its sha256."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    platform = redist_platform(stack)
    if (
        toolkit is None
        or stack.cuda is None
        or stack.toolkit != "nvidia"
        or platform is None
        or not stack.components
    ):
        return
    if toolkit.release not in redist.versions("cuda"):
        yield because("toolkit-unpinned", stack, toolkit, known=", ".join(redist.versions("cuda")))
    release = catalog.cudnn_releases().get(stack.cudnn or "")
    fits = release is not None and int(stack.cuda.partition(".")[0]) in release.cuda_majors
    if stack.cudnn and fits and not cudnn_is_pinned(stack.cudnn, stack.cuda, platform):
        pinned = [
            name for name in catalog.cudnn_releases() if cudnn_is_pinned(name, stack.cuda, platform)
        ]
        yield because("cudnn-unpinned", stack, known=", ".join(pinned) or "none")


def cudnn_is_pinned(cudnn: str, cuda: str, platform: redist.Platform) -> bool:
    """True if there is an archive of a cuDNN release for a CUDA and platform, or (Linux on x86-64)
    a wheel.
    """
    if platform == "linux-x86_64" and catalog.cudnn_wheel(cudnn, cuda):
        return True
    return redist.has_archive(
        "cudnn", cudnn, platform, "cudnn", cuda_major=int(cuda.partition(".")[0])
    )


def words_have_their_feature(stack: Stack) -> Iterator[Reason]:
    """The machine has what the word of an option asks for, and the recipe can build it."""
    for name, word in effects(stack).items():
        feature = catalog.features()[word.feature] if word.feature else None
        if (
            feature
            and feature.machines is not None
            and stack.variant.machine not in feature.machines
        ):
            listed = ", ".join(feature.machines)
            named = {"part": feature.title, "known": listed, "listed": listed}
            yield because("switch/machine", stack, feature, rule=name, change=(name,), **named)
        elif (
            word.feature and facts(stack.platform).in_images and word.feature not in stack.features
        ):
            yield Reason(
                name, word.lacks, word.fact, "recipe.yaml, farm/catalog/words.yaml", change=(name,)
            )


def nvcc_takes_gcc(stack: Stack) -> Iterator[Reason]:
    """Nvcc accepts the host's gcc."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    gcc = host_gcc(stack)
    if (
        facts(stack.platform).compiler == "gcc"
        and toolkit
        and gcc is not None
        and gcc > toolkit.gcc_max
    ):
        yield because("cuda-gcc", stack, toolkit, gcc=gcc)


def gcc_has_level(stack: Stack) -> Iterator[Reason]:
    """The host's gcc knows the flags of the CPU level."""
    level = catalog.cpu_levels()[stack.variant.cpu]
    gcc = host_gcc(stack)
    compiles = facts(stack.platform).compiler == "gcc"
    if compiles and gcc is not None and level.gcc_min is not None and gcc < level.gcc_min:
        yield because("gcc-cpu", stack, level, gcc=gcc, flags=" ".join(level.gcc))


def nvcc_takes_msvc(stack: Stack) -> Iterator[Reason]:
    """Nvcc accepts the host's MSVC."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    if facts(stack.platform).compiler != "msvc" or toolkit is None or stack.msvc is None:
        return
    if not toolkit.msvc_min <= stack.msvc <= toolkit.msvc_max:
        limit = "msvc_min" if stack.msvc < toolkit.msvc_min else "msvc_max"
        details = {
            "compiler": compiler(stack.msvc),
            "first": toolset(toolkit.msvc_min),
            "last": toolset(toolkit.msvc_max),
        }
        yield because(
            "cuda-msvc",
            stack,
            toolkit,
            source=toolkit.sources[limit],
            doubt=toolkit.doubt(limit),
            **details,
        )


def msvc_keeps_avx2(stack: Stack) -> Iterator[Reason]:
    """The compiler does not put AVX-512 registers into the AVX2 tier of a wheel for AVX2
    machines.
    """
    fault = catalog.msvc().avx512_leak
    if (
        facts(stack.platform).compiler != "msvc"
        or stack.msvc is None
        or stack.variant.cpu != "avx2"
    ):
        return
    if msc_ver(fault.first) <= stack.msvc <= msc_ver(fault.last):
        yield because(
            "msvc-avx512-leak", stack, fault, compiler=compiler(stack.msvc), source=fault.source
        )


def msvc_has_level(stack: Stack) -> Iterator[Reason]:
    """MSVC has a switch for the CPU level."""
    level = catalog.cpu_levels()[stack.variant.cpu]
    if facts(stack.platform).compiler == "msvc" and level.msvc_as is not None:
        yield because(
            "msvc-cpu", stack, level, flags=" ".join(level.msvc or []) or "no /arch switch"
        )


def python_of_base(stack: Stack) -> Iterator[Reason]:
    """The base image has this Python, or a standalone one is there with the packages that the build
    imports.
    """
    base = catalog.debian_releases().get(stack.base or "")
    python = stack.variant.python
    if not facts(stack.platform).in_images:
        if python.endswith("t"):
            yield because("free-threaded", stack)
    elif base and stack.standalone is not None:
        if missing := [name for name in stack.standalone if standalone_wheel(stack, name) is None]:
            others = [
                other
                for other in PYTHONS
                if all(standalone_wheel(stack, name, other) for name in missing)
            ]
            # Refreshing pins what the index has for each of these: what is missing for one, it does
            # not have.
            why = f"{base.suite} has {base.python}: a standalone {python} needs wheels"
            if others:
                why = f"its project publishes wheels for {', '.join(others)}, none for {python}"
            yield because("python-packages", stack, missing=", ".join(missing), why=why)
    elif base and python != base.python:
        yield because("base-python", stack, base, source=base.source)


def standalone_wheel(stack: Stack, package: str, python: str = "") -> PinnedWheel | None:
    """The wheel of a package that a build with a standalone Python imports, or another Python;
    None: none is pinned.
    """
    release = catalog.torch_releases().get(stack.torch or "")
    major = release.numpy_major_max if release and package == "numpy" else None
    return catalog.standalone_wheel(
        package, python or stack.variant.python, stack.variant.machine, major
    )


# --- PyTorch: CUDA, cuDNN, Python, numpy, compilers, the arch list's grammar, its switches


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
    official = release.official_cudas(stack.platform)
    if stack.cuda in official:
        return
    also = [
        build
        for build in release.also_built
        if build.cuda == stack.cuda and build.platform in (None, stack.platform)
    ]
    if also:
        yield because("torch-official/also", stack, also[0], source=also[0].source)
    else:
        yield because("torch-official", stack, release, known=", ".join(official))


def upstream_left_gpu_behind(stack: Stack) -> Iterator[Reason]:
    """Upstream did not drop the cards from its own wheels of this release and CUDA."""
    release = _release(stack)
    if (
        release is None
        or stack.torch is None
        or stack.cuda is None
        or not facts(stack.platform).cuda
    ):
        return
    lowest = min(targets(stack), default=None)
    # Where upstream has no wheels with this CUDA, there are none that leave a card behind.
    published = release.official_cudas(stack.platform)
    if lowest is not None and stack.cuda in published:
        left = official.left_behind(stack.torch, stack.cuda, lowest)
    else:
        left = None
    if left is not None:
        yield because(
            "torch-official-gpu", stack, left, sm=sm_name(lowest or 0), source=left.source
        )


def torch_takes_python(stack: Stack) -> Iterator[Reason]:
    """The release is made for this Python on this platform."""
    release = _release(stack)
    if release and stack.variant.python not in (known := release.pythons.on(stack.platform)):
        yield because("torch-python", stack, release, known=", ".join(known))


def torch_takes_gpu(stack: Stack) -> Iterator[Reason]:
    """The release compiles for the lowest SM."""
    release = _release(stack)
    lowest = min(targets(stack), default=None)
    if release is None or stack.cuda is None or lowest is None or lowest >= release.sm_built:
        return
    if lowest < release.sm_min:
        yield because("torch-sm", stack, release, sm=sm_name(lowest), doubt=None)
    elif doubt := release.doubt("sm_min"):
        yield because("torch-sm/doubt", stack, release, sm=sm_name(lowest), doubt=doubt)
    else:
        yield because(
            "torch-sm",
            stack,
            release,
            sm=sm_name(lowest),
            source=release.sources["sm_built"],
            doubt=None,
        )


def torch_takes_compiler(stack: Stack) -> Iterator[Reason]:
    """The release takes the host compiler."""
    release = _release(stack)
    host = facts(stack.platform).compiler
    if release is None:
        return
    gcc = host_gcc(stack)
    if host == "gcc" and release.gcc_min is not None and gcc is not None and gcc < release.gcc_min:
        yield because("torch-gcc", stack, release, gcc=gcc)
    if (
        host == "msvc"
        and stack.msvc is not None
        and release.msvc_min is not None
        and stack.msvc < release.msvc_min
    ):
        yield because("torch-msvc", stack, release, compiler=compiler(stack.msvc))


def cudnn_fits(stack: Stack) -> Iterator[Reason]:
    """CuDNN has code for the SMs and is made for this CUDA."""
    if stack.cudnn is None or stack.cuda is None:
        return
    release = catalog.cudnn_releases().get(stack.cudnn)
    cards = targets(stack)
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
    release = _release(stack)
    python = catalog.pythons().versions.get(stack.variant.python)
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
        yield because(
            "numpy-python", stack, python, last=python.numpy_max or "today", source=source
        )


def _first_reader(word: str) -> str:
    """Which release of the catalogue is the first that reads an entry."""
    grammar = catalog.arch_list_grammar()
    since = [*grammar.names.get(word, {})]
    since += [
        first for first, text in grammar.numbers.items() if re.fullmatch(text, word, re.ASCII)
    ]
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
    # The newest grammar that is not newer than the release.
    pattern = [
        text for since, text in grammar.numbers.items() if number(since) <= number(stack.torch)
    ][-1]
    for word in words(arch_list(stack)):
        plain = word.removesuffix("+PTX")
        details = {"word": word, "source": grammar.source}
        if plain in grammar.depends_on:
            yield because("arch-list/depends", stack, what=grammar.depends_on[plain], **details)
        elif plain not in names and not re.fullmatch(pattern, plain, re.ASCII):
            known = ", ".join(names)
            yield because(
                "arch-list",
                stack,
                reader=_first_reader(plain),
                pattern=pattern,
                names=known,
                **details,
            )


def torch_makes_of_cpu(stack: Stack) -> Iterator[Reason]:
    """PyTorch's use of a CPU level whose name promises more."""
    level = catalog.cpu_levels()[stack.variant.cpu]
    if stack.torch is not None and level.torch_effect is not None:
        yield because("torch-cpu", stack, level)


def switches_work(stack: Stack) -> Iterator[Reason]:
    """The switches that were asked for do something on this platform, GPU, CUDA and CPU."""
    for name in sorted(stack.switches):
        yield from feature_works(stack, catalog.switches()[name])


def feature_off(stack: Stack, name: str) -> str | None:
    """Why a feature is off for the stack, also where that is in doubt; None: nothing is against
    it.
    """
    return next((reason.text for reason in feature_works(stack, name)), None)


def feature_works(stack: Stack, name: str) -> Iterator[Reason]:
    """The feature does something on the platform, GPU, CUDA and CPU of the stack."""
    feature = catalog.features()[name]
    levels = catalog.cpu_levels()
    cards = targets(stack)
    part = (feature.switch or name).removeprefix("USE_")
    machine = stack.variant.machine
    known = stack.cuda in catalog.toolkits()

    def off(limit: str, **values: object) -> Reason:
        rule = f"switch-{part.lower().replace('_', '-')}"
        return because(f"switch/{limit}", stack, feature, rule=rule, part=part, **values)

    if stack.platform not in feature.platforms:
        why = feature.elsewhere.get(stack.platform, "CMake turns it off there")
        yield off("platform", known=", ".join(feature.platforms), why=why)
    if feature.machines is not None and machine not in feature.machines:
        yield off(
            "machine", known=" and ".join(feature.machines), listed=", ".join(feature.machines)
        )
    if feature.gpu and feature.sm_min is None and not cards:
        yield off("gpu")
    for option, word in feature.words.items():
        if (chosen := dict(stack.words).get(option)) != word:
            yield off("word", option=option.upper(), chosen=chosen, wanted=f"--{option} {word}")
    if feature.sm_min is not None and (not cards or cards[0] < feature.sm_min):
        # Where only some of the cards are too old, the kernels are built for the others. Whether
        # such a build succeeds is in doubt.
        some = bool(cards) and cards[-1] >= feature.sm_min
        if some:
            doubt = "that the build fails where only some SMs are lower"
        else:
            doubt = None
        lowest = sm_name(cards[0]) if cards else stack.variant.gpu
        yield off("sm", sm=lowest, doubt=doubt, severity="warning" if some else "error")
    if (
        feature.cuda_min is not None
        and known
        and number(str(stack.cuda)) < number(feature.cuda_min)
    ):
        yield off("cuda", severity="error")
    if feature.cpu is not None and name in levels[stack.variant.cpu].torch_off:
        yield off("cpu", known=", ".join(levels))


RULES: tuple[Rule, ...] = (
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
    platform_has_gpu,
    machine_of_cpu,
    toolkit_has_cuda,
    toolkit_has_components,
    toolkit_is_pinned,
    words_have_their_feature,
    nvcc_takes_gcc,
    gcc_has_level,
    nvcc_takes_msvc,
    msvc_has_level,
    msvc_keeps_avx2,
    python_of_base,
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


@lru_cache(maxsize=1 << 14)  # the search for the nearest stack judges the same ones again and again
def _check(stack: Stack) -> tuple[Reason, ...]:
    return tuple(reason for rule in RULES for reason in rule(stack))


def check(stack: Stack) -> list[Reason]:
    """The reasons of the rules against the stack, in their order, without a nearest stack."""
    return list(_check(stack))
