"""Rules on the machine that builds: operating system, base image, compilers, CPU level, Python."""

import re
from collections.abc import Iterator

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import redist
from farm.catalog.models import PinnedWheel
from farm.plan.compat.stack import Reason, Stack, doubted, with_doubt
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


def newest_gcc(base: catalog.DebianRelease, cuda: str | None) -> int:
    """The base image's newest gcc that a CUDA takes, else its oldest."""
    toolkit = catalog.toolkits().get(cuda or "")
    return max((gcc for gcc in base.gccs if toolkit is None or gcc <= toolkit.gcc_max), default=min(base.gccs))


def platform_has_gpu(stack: Stack) -> Iterator[Reason]:
    """CUDA is for Linux and Windows, MPS for macOS."""
    platform = facts(stack.platform)
    if stack.variant.gpu == "mps" and stack.variant.gpu not in platform.gpus:
        yield Reason(
            "mps",
            f"mps is not for {stack.platform}",
            "Metal Performance Shaders are part of macOS 12.3 and newer",
            "PyTorch's CMakeLists.txt: MPS needs the macOS SDK 12.3 and MetalPerformanceShadersGraph",
        )
    if stack.variant.sms and not platform.cuda:
        yield Reason(
            "cuda-macos",
            f"there is no CUDA for macOS: {stack.variant.gpu} cannot be built there",
            "CUDA 10.2 was the last with macOS support",
            "CUDA 10.2 release notes",
        )


def machine_of_cpu(stack: Stack) -> Iterator[Reason]:
    """The CPU level is one of the machine that the farm builds on."""
    machines = facts(stack.platform).built_on
    if stack.variant.machine not in machines:
        yield Reason(
            "machine",
            f"{stack.variant.cpu} is for {stack.variant.machine}; "
            f"the farm's {stack.platform} builds are for {' and '.join(machines)}",
            "Linux is built on x86_64 and aarch64, Windows on x86_64, macOS on arm64",
            "farm/catalog/debian.yaml",
        )


def toolkit_has_cuda(stack: Stack) -> Iterator[Reason]:
    """The toolkit provider has this CUDA version."""
    base = catalog.debian_releases().get(stack.base or "")
    if stack.toolkit == "wheels" and stack.cuda is not None:
        yield from _wheels_have_cuda(stack, stack.cuda)
    if not facts(stack.platform).in_images and stack.toolkit == "debian" and stack.cuda is not None:
        yield Reason(
            "toolkit-platform",
            f"the debian toolkit is for Linux, not for {stack.platform}",
            "it is taken out of Debian's packages, whose compilers and libraries are ELF files",
            "farm/catalog/debian.yaml",
            change=("toolkit",),
        )
    elif base and stack.toolkit == "debian" and stack.cuda is not None and stack.cuda != base.cuda:
        yield Reason(
            "toolkit-cuda",
            f"the debian toolkit of {stack.base} has CUDA {base.cuda}, not {stack.cuda}"
            if base.cuda
            else f"the farm takes no CUDA from the packages of {stack.base}",
            f"nvidia-cuda-toolkit of {base.suite} is {base.cuda or 'not used'}",
            base.source,
            change=("toolkit", "cuda"),
        )
    elif base and stack.toolkit == "debian" and stack.cuda is not None and stack.variant.machine != base.cuda_machine:
        yield Reason(
            "toolkit-machine",
            f"the debian toolkit of {stack.base} is for {base.cuda_machine}, not {stack.variant.machine}",
            "what the catalogue takes out of its packages is what they hold for that machine",
            base.source,
            change=("toolkit",),
        )


def _wheels_have_cuda(stack: Stack, cuda: str) -> Iterator[Reason]:
    known = catalog.wheel_toolkits()
    if cuda not in known:
        yield Reason(
            "toolkit-cuda",
            f"the wheels toolkit has CUDA {', '.join(known)}, not {cuda}",
            "from CUDA 13.0 on NVIDIA's wheels hold the whole compiler; those of older versions lack cicc or headers",
            "farm/catalog/toolkit_wheels.yaml",
            change=("toolkit", "cuda"),
        )
    elif platform_of(stack) not in known[cuda].wheels:
        yield Reason(
            "toolkit-machine",
            f"the wheels toolkit is for {' and '.join(known[cuda].wheels)}, not for {platform_of(stack)}",
            "NVIDIA's wheels are published by platform",
            "farm/catalog/toolkit_wheels.yaml",
            change=("toolkit",),
        )


def toolkit_has_components(stack: Stack) -> Iterator[Reason]:
    """The toolkit provider has every component that the recipe names, and cuDNN where it is wanted."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    base = catalog.debian_releases().get(stack.base or "")
    if toolkit is None or not stack.components:
        return
    wanted = list(stack.components)
    if stack.toolkit == "debian" and base:
        have, source = list(base.components), base.source
        if stack.cudnn:
            wanted.append(f"cuDNN {stack.cudnn}")
            have += wanted[-1:] if base.cudnn and catalog.cudnn_wheel(stack.cudnn, toolkit.release) else []
    elif stack.toolkit == "wheels":
        if stack.cuda not in catalog.wheel_toolkits():
            return  # `toolkit_has_cuda` says so
        known = catalog.wheel_toolkits()[stack.cuda]
        have, source = list(known.components), "farm/catalog/toolkit_wheels.yaml"
        have += [f"cuDNN {release}" for release, files in known.cudnn.items() if platform_of(stack) in files]
        wanted += [f"cuDNN {stack.cudnn}"] if stack.cudnn else []
    elif stack.toolkit == "nvidia" and (platform := redist_platform(stack)) and stack.cuda:
        provider = catalog.nvidia_provider()
        if toolkit.release not in redist.versions("cuda"):
            return  # `toolkit_is_pinned` says so
        # A component is there only where every archive that makes it up is.
        archives = set(redist.components("cuda", toolkit.release, platform))
        have = [name for name, parts in provider.parts(stack.cuda, platform).items() if archives.issuperset(parts)]
        source = provider.source
    else:
        return
    missing = ", ".join(name for name in wanted if name not in have)
    if missing:
        yield Reason(
            "toolkit-components",
            f"the {stack.toolkit} toolkit with CUDA {stack.cuda} has no {missing}, which {stack.package} needs",
            f"components: {', '.join(have) or 'none'}",
            source,
            change=("toolkit", "cuda"),
        )


def toolkit_is_pinned(stack: Stack) -> Iterator[Reason]:
    """The farm has the archives of this CUDA and a file of this cuDNN, each with its sha256."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    platform = redist_platform(stack)
    if toolkit is None or stack.cuda is None or stack.toolkit != "nvidia" or platform is None or not stack.components:
        return
    if toolkit.release not in redist.versions("cuda"):
        yield Reason(
            "toolkit-unpinned",
            f"no archive of CUDA {toolkit.release} is pinned here, so a build cannot fetch it",
            f"archives are pinned of CUDA {', '.join(redist.versions('cuda'))}",
            "farm/catalog/redist; add it from NVIDIA's redistrib manifest with tools/import_redist.py",
            severity="unpinned",
            change=("cuda",),
        )
    release = catalog.cudnn_releases().get(stack.cudnn or "")
    fits = release is not None and int(stack.cuda.partition(".")[0]) in release.cuda_majors
    if stack.cudnn and fits and not cudnn_is_pinned(stack.cudnn, stack.cuda, platform):
        pinned = [name for name in catalog.cudnn_releases() if cudnn_is_pinned(name, stack.cuda, platform)]
        yield Reason(
            "cudnn-unpinned",
            f"no file of cuDNN {stack.cudnn} for CUDA {stack.cuda} is pinned here, so a build cannot fetch it",
            f"files are pinned of cuDNN {', '.join(pinned) or 'none'}",
            "farm/catalog/redist and cudnn.yaml; add it with tools/import_redist.py or tools/refresh-catalogue",
            severity="unpinned",
            change=("cudnn",),
        )


def cudnn_is_pinned(cudnn: str, cuda: str, platform: redist.Platform) -> bool:
    """True if there is an archive of a cuDNN release for a CUDA and platform, or (Linux on x86-64) a wheel."""
    if platform == "linux-x86_64" and catalog.cudnn_wheel(cudnn, cuda):
        return True
    return redist.has_archive("cudnn", cudnn, platform, "cudnn", cuda_major=int(cuda.partition(".")[0]))


def blas_is_installed(stack: Stack) -> Iterator[Reason]:
    """The recipe installs the BLAS that was asked for."""
    if stack.blas == "mkl" and facts(stack.platform).in_images and "mkl" not in stack.features:
        yield Reason(
            "blas",
            "this recipe takes OpenBLAS on Linux, not MKL",
            "its features have no mkl; on Windows MKL is among the tools",
            "recipe.yaml, farm/catalog/windows_tools.yaml",
            change=("blas",),
        )


def nvcc_takes_gcc(stack: Stack) -> Iterator[Reason]:
    """Nvcc accepts the host's gcc."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    gcc = host_gcc(stack)
    if facts(stack.platform).compiler == "gcc" and toolkit and gcc is not None and gcc > toolkit.gcc_max:
        doubt = toolkit.doubt("gcc_max")
        yield Reason(
            "cuda-gcc",
            f"CUDA {stack.cuda} takes gcc up to {toolkit.gcc_max}, not gcc {gcc}",
            with_doubt(f"newest gcc of CUDA {toolkit.release}: {toolkit.gcc_max}", doubt),
            toolkit.sources["gcc_max"],
            severity=doubted(doubt),
            change=("gcc", "cuda"),
        )


def gcc_has_level(stack: Stack) -> Iterator[Reason]:
    """The host's gcc knows the flags of the CPU level."""
    level, gcc = catalog.cpu_levels()[stack.variant.cpu], host_gcc(stack)
    compiles = facts(stack.platform).compiler == "gcc"
    if compiles and gcc is not None and level.gcc_min is not None and gcc < level.gcc_min:
        yield Reason(
            "gcc-cpu",
            f"gcc {gcc} does not know {' '.join(level.gcc)}, the flags of {stack.variant.cpu}",
            f"first gcc that does: {level.gcc_min}",
            level.sources["gcc_min"],
            change=("gcc", "cuda", "cpu"),
        )


def nvcc_takes_msvc(stack: Stack) -> Iterator[Reason]:
    """Nvcc accepts the host's MSVC."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    if facts(stack.platform).compiler != "msvc" or toolkit is None or stack.msvc is None:
        return
    if toolkit.msvc_min <= stack.msvc <= toolkit.msvc_max:
        return
    limit = "msvc_min" if stack.msvc < toolkit.msvc_min else "msvc_max"
    doubt = toolkit.doubt(limit)
    yield Reason(
        "cuda-msvc",
        f"CUDA {stack.cuda} does not take {compiler(stack.msvc)}",
        with_doubt(
            f"CUDA {toolkit.release} takes _MSC_VER {toolkit.msvc_min} to {toolkit.msvc_max}, "
            f"toolsets {toolset(toolkit.msvc_min)} to {toolset(toolkit.msvc_max)}",
            doubt,
        ),
        toolkit.sources[limit],
        severity=doubted(doubt),
        change=("msvc", "cuda"),
    )


def msvc_keeps_avx2(stack: Stack) -> Iterator[Reason]:
    """The compiler does not put AVX-512 registers into the AVX2 tier of a wheel for AVX2 machines."""
    fault = catalog.msvc().avx512_leak
    if facts(stack.platform).compiler != "msvc" or stack.msvc is None or stack.variant.cpu != "avx2":
        return
    if msc_ver(fault.first) <= stack.msvc <= msc_ver(fault.last):
        yield Reason(
            "msvc-avx512-leak",
            f"{compiler(stack.msvc)} may make AVX2 code that crashes on CPUs without AVX-512",
            fault.text,
            fault.source,
            severity="warning",
            change=("msvc",),
        )


def msvc_has_level(stack: Stack) -> Iterator[Reason]:
    """MSVC has a switch for the CPU level."""
    level = catalog.cpu_levels()[stack.variant.cpu]
    if facts(stack.platform).compiler == "msvc" and level.msvc_as is not None:
        flags = " ".join(level.msvc or []) or "no /arch switch"
        yield Reason(
            "msvc-cpu",
            f"MSVC has no switch for {stack.variant.cpu}: the wheel is really {level.msvc_as} ({flags})",
            "/arch for x64 knows SSE2 (default), SSE4.2, AVX, AVX2, AVX512 and AVX10.x",
            level.sources["msvc_as"],
            severity="warning",
            change=("cpu",),
        )


def python_of_base(stack: Stack) -> Iterator[Reason]:
    """The base image has this Python, or a standalone one is there with the packages that the build imports."""
    base, python = catalog.debian_releases().get(stack.base or ""), stack.variant.python
    if not facts(stack.platform).in_images:
        if python.endswith("t"):
            yield Reason(
                "free-threaded",
                f"no Python {stack.variant.python_version} is pinned here for {stack.platform}, only for Linux",
                "the pinned installers are of Pythons with the lock",
                "farm/platforms/windows/tools.yaml, farm/catalog/standalone_pythons.yaml",
                severity="unpinned",
                change=("python",),
            )
    elif base and stack.standalone is not None:
        if missing := [name for name in stack.standalone if standalone_wheel(stack, name) is None]:
            others = [other for other in PYTHONS if all(standalone_wheel(stack, name, other) for name in missing)]
            yield Reason(
                "python-packages",
                f"no wheel of {', '.join(missing)} for {python} is pinned, which the build of {stack.package} imports",
                # Refreshing pins what the index has for each of these: what is missing for one, it does not have.
                f"its project publishes wheels for {', '.join(others)}, none for {python}"
                if others
                else f"{base.suite} has {base.python}: a standalone {python} needs wheels",
                "farm/catalog/standalone_pythons.yaml",
                severity="unpinned",
                change=("python", "torch"),
            )
    elif base and python != base.python:
        yield Reason(
            "base-python",
            f"{stack.base} has {base.python}, not {stack.variant.python}",
            f"python3 of {base.suite}",
            base.source,
            change=("base", "python"),
        )


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
    blas_is_installed,
    nvcc_takes_gcc,
    gcc_has_level,
    nvcc_takes_msvc,
    msvc_has_level,
    msvc_keeps_avx2,
    python_of_base,
)
