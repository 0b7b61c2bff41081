"""Rules on the machine that builds: operating system, base image, compilers, CPU level, Python."""

import re
from collections.abc import Iterator

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import redist
from farm.catalog.models import DebianRelease, PinnedWheel, Toolkit
from farm.plan.compat.stack import Reason, Stack, because, effects
from farm.plan.variant import PYTHONS
from farm.platforms.facts import facts

MSVC_BASE = 1900
"""`_MSC_VER` is 1900 plus the minor version of the toolset (learn.microsoft.com, predefined macros)."""


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
    """`_MSC_VER` of a compiler as people name it: `2022` (its newest toolset), `14.29`, `19.29.30148`, `1929`.

    Raises:
        UsageError: No compiler of the catalogue is called so.
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
    raise UsageError(f"{text!r} is neither a Visual Studio nor an MSVC version", hint=f"known: {', '.join(known)}")


def platform_of(stack: Stack) -> str:
    """Platform and machine as the catalogue names them: `linux-x86_64`."""
    return f"{stack.platform}-{stack.variant.machine}"


def redist_platform(stack: Stack) -> redist.Platform | None:
    """NVIDIA's name for the platform and machine; None: it has no archives for it."""
    return catalog.nvidia_provider().platforms.get(platform_of(stack))


def host_gcc(stack: Stack) -> int | None:
    """The gcc that compiles: what was asked about, else the base image's newest that the CUDA toolkit takes.

    None: no Linux, or no base image. Where the toolkit takes none of them it is the oldest; a rule says so.
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
    return max((gcc for gcc in base.gccs if toolkit is None or gcc <= toolkit.gcc_max), default=min(base.gccs))


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
            yield because("toolkit-machine/wheels", stack, known=" and ".join(wheels), place=platform_of(stack))
    elif stack.toolkit == "debian" and not facts(stack.platform).in_images:
        yield because("toolkit-platform", stack)
    elif stack.toolkit == "debian" and base and stack.cuda != base.cuda:
        yield because(f"toolkit-cuda/{'debian' if base.cuda else 'none'}", stack, base, source=base.source)
    elif stack.toolkit == "debian" and base and stack.variant.machine != base.cuda_machine:
        yield because("toolkit-machine/debian", stack, base, source=base.source)


def toolkit_has_components(stack: Stack) -> Iterator[Reason]:
    """The toolkit provider has every component that the recipe names, and cuDNN where it is wanted."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    base = catalog.debian_releases().get(stack.base or "")
    if toolkit is None or stack.cuda is None or not stack.components:
        return
    wanted = list(stack.components)
    if stack.toolkit == "debian" and base:
        have, source = list(base.components), base.source
        if stack.cudnn:
            wanted.append(f"cuDNN {stack.cudnn}")
            have += wanted[-1:] if base.cudnn and catalog.cudnn_wheel(stack.cudnn, toolkit.release) else []
    elif stack.toolkit == "wheels" and (known := catalog.wheel_toolkits().get(stack.cuda)):
        have, source = list(known.components), "farm/catalog/toolkit_wheels.yaml"
        have += [f"cuDNN {release}" for release, files in known.cudnn.items() if platform_of(stack) in files]
        wanted += [f"cuDNN {stack.cudnn}"] if stack.cudnn else []
    elif stack.toolkit == "nvidia" and (platform := redist_platform(stack)) and _is_pinned(toolkit):
        provider = catalog.nvidia_provider()
        # A component is there only where every archive that makes it up is.
        archives = set(redist.components("cuda", toolkit.release, platform))
        have = [name for name, parts in provider.parts(stack.cuda, platform).items() if archives.issuperset(parts)]
        source = provider.source
    else:
        return  # `toolkit_has_cuda` or `toolkit_is_pinned` says so
    if missing := ", ".join(name for name in wanted if name not in have):
        yield because("toolkit-components", stack, missing=missing, have=", ".join(have) or "none", source=source)


def _is_pinned(toolkit: Toolkit) -> bool:
    return toolkit.release in redist.versions("cuda")


def toolkit_is_pinned(stack: Stack) -> Iterator[Reason]:
    """The farm has the archives of this CUDA and a file of this cuDNN, each with its sha256."""
    toolkit, platform = catalog.toolkits().get(stack.cuda or ""), redist_platform(stack)
    if toolkit is None or stack.cuda is None or stack.toolkit != "nvidia" or platform is None or not stack.components:
        return
    if not _is_pinned(toolkit):
        yield because("toolkit-unpinned", stack, toolkit, known=", ".join(redist.versions("cuda")))
    release = catalog.cudnn_releases().get(stack.cudnn or "")
    fits = release is not None and int(stack.cuda.partition(".")[0]) in release.cuda_majors
    if stack.cudnn and fits and not cudnn_is_pinned(stack.cudnn, stack.cuda, platform):
        pinned = [name for name in catalog.cudnn_releases() if cudnn_is_pinned(name, stack.cuda, platform)]
        yield because("cudnn-unpinned", stack, known=", ".join(pinned) or "none")


def cudnn_is_pinned(cudnn: str, cuda: str, platform: redist.Platform) -> bool:
    """True if there is an archive of a cuDNN release for a CUDA and platform, or (Linux on x86-64) a wheel."""
    if platform == "linux-x86_64" and catalog.cudnn_wheel(cudnn, cuda):
        return True
    return redist.has_archive("cudnn", cudnn, platform, "cudnn", cuda_major=int(cuda.partition(".")[0]))


def words_have_their_feature(stack: Stack) -> Iterator[Reason]:
    """The machine has what the word of an option asks for, and the recipe can build it."""
    for name, word in effects(stack).items():
        feature = catalog.features()[word.feature] if word.feature else None
        if feature and feature.machines is not None and stack.variant.machine not in feature.machines:
            listed = ", ".join(feature.machines)
            named = {"part": feature.title, "known": listed, "listed": listed}
            yield because("switch/machine", stack, feature, rule=name, change=(name,), **named)
        elif word.feature and facts(stack.platform).in_images and word.feature not in stack.features:
            yield Reason(name, word.lacks, word.fact, "recipe.yaml, farm/catalog/words.yaml", change=(name,))


def nvcc_takes_gcc(stack: Stack) -> Iterator[Reason]:
    """Nvcc accepts the host's gcc."""
    toolkit, gcc = catalog.toolkits().get(stack.cuda or ""), host_gcc(stack)
    if facts(stack.platform).compiler == "gcc" and toolkit and gcc is not None and gcc > toolkit.gcc_max:
        yield because("cuda-gcc", stack, toolkit, gcc=gcc)


def gcc_has_level(stack: Stack) -> Iterator[Reason]:
    """The host's gcc knows the flags of the CPU level."""
    level, gcc = catalog.cpu_levels()[stack.variant.cpu], host_gcc(stack)
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
        yield because("cuda-msvc", stack, toolkit, source=toolkit.sources[limit], doubt=toolkit.doubt(limit), **details)


def msvc_keeps_avx2(stack: Stack) -> Iterator[Reason]:
    """The compiler does not put AVX-512 registers into the AVX2 tier of a wheel for AVX2 machines."""
    fault = catalog.msvc().avx512_leak
    if facts(stack.platform).compiler != "msvc" or stack.msvc is None or stack.variant.cpu != "avx2":
        return
    if msc_ver(fault.first) <= stack.msvc <= msc_ver(fault.last):
        yield because("msvc-avx512-leak", stack, fault, compiler=compiler(stack.msvc), source=fault.source)


def msvc_has_level(stack: Stack) -> Iterator[Reason]:
    """MSVC has a switch for the CPU level."""
    level = catalog.cpu_levels()[stack.variant.cpu]
    if facts(stack.platform).compiler == "msvc" and level.msvc_as is not None:
        yield because("msvc-cpu", stack, level, flags=" ".join(level.msvc or []) or "no /arch switch")


def python_of_base(stack: Stack) -> Iterator[Reason]:
    """The base image has this Python, or a standalone one is there with the packages that the build imports."""
    base, python = catalog.debian_releases().get(stack.base or ""), stack.variant.python
    if not facts(stack.platform).in_images:
        if python.endswith("t"):
            yield because("free-threaded", stack)
    elif base and stack.standalone is not None:
        if missing := [name for name in stack.standalone if standalone_wheel(stack, name) is None]:
            others = [other for other in PYTHONS if all(standalone_wheel(stack, name, other) for name in missing)]
            # Refreshing pins what the index has for each of these: what is missing for one, it does not have.
            why = f"{base.suite} has {base.python}: a standalone {python} needs wheels"
            if others:
                why = f"its project publishes wheels for {', '.join(others)}, none for {python}"
            yield because("python-packages", stack, missing=", ".join(missing), why=why)
    elif base and python != base.python:
        yield because("base-python", stack, base, source=base.source)


def standalone_wheel(stack: Stack, package: str, python: str = "") -> PinnedWheel | None:
    """The wheel of a package that a build with a standalone Python imports, or another Python; None: none is pinned."""
    release = catalog.torch_releases().get(stack.torch or "")
    major = release.numpy_major_max if release and package == "numpy" else None
    return catalog.standalone_wheel(package, python or stack.variant.python, stack.variant.machine, major)


RULES = (
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
)
