"""The machine that builds: operating system, base image, CUDA toolkit, compilers, CPU level and
Python.
"""

from collections.abc import Iterable, Iterator

from farm import catalog
from farm.catalog import number, redist
from farm.catalog.models import DebianRelease, PinnedWheel
from farm.plan.compat.compilers import compiler, host_gcc, msc_ver, toolset
from farm.plan.compat.reason import Reason, because, ground
from farm.plan.compat.stack import Stack, effects
from farm.plan.variant import PYTHONS
from farm.platforms.facts import facts


def platform_of(stack: Stack) -> str:
    """Platform and machine as the catalogue names them: `linux-x86_64`."""
    return f"{stack.platform}-{stack.variant.machine}"


def redist_platform(stack: Stack) -> redist.Platform | None:
    """NVIDIA's name for the platform and machine; None: it has no archives for it."""
    return catalog.nvidia_provider().platforms.get(platform_of(stack))


def _base(stack: Stack) -> DebianRelease | None:
    return catalog.debian_releases().get(stack.base or "")


def platform_has_gpu(stack: Stack) -> Iterator[Reason]:
    """CUDA is for Linux and Windows, MPS for macOS."""
    platform = facts(stack.platform)
    gpu = stack.variant.gpu
    if gpu == "mps" and gpu not in platform.gpus:
        yield because(
            "mps",
            f"mps is not for {stack.platform}",
            "Metal Performance Shaders are part of macOS 12.3 and newer",
            "PyTorch's CMakeLists.txt: MPS needs the macOS SDK 12.3 and "
            "MetalPerformanceShadersGraph",
        )
    if stack.variant.sms and not platform.cuda:
        yield because(
            "cuda-macos",
            f"there is no CUDA for macOS: {gpu} cannot be built there",
            "CUDA 10.2 was the last with macOS support",
            "CUDA 10.2 release notes",
        )


def machine_of_cpu(stack: Stack) -> Iterator[Reason]:
    """The CPU level is one of the machine that the farm builds on."""
    machines = facts(stack.platform).built_on
    machine = stack.variant.machine
    if machine not in machines:
        text = (
            f"{stack.variant.cpu} is for {machine}; the farm's {stack.platform} builds are for "
            f"{' and '.join(machines)}"
        )
        for place in catalog.official().cpu_wheels:
            if place.last and place.platform == f"{stack.platform}-{machine}":
                text += f"; PyTorch's own last release for {place.platform} is {place.last}"
        yield because(
            "machine",
            text,
            "Linux is built on x86_64 and aarch64, Windows on x86_64, macOS on arm64",
            "farm/catalog/debian.yaml",
        )


def toolkit_has_cuda(stack: Stack) -> Iterator[Reason]:
    """The toolkit provider has this CUDA version."""
    if stack.cuda is None:
        return
    if stack.toolkit == "wheels":
        yield from _wheels_have_cuda(stack)
    elif stack.toolkit == "debian":
        yield from _debian_has_cuda(stack)


def _wheels_have_cuda(stack: Stack) -> Iterator[Reason]:
    toolkits = catalog.wheel_toolkits()
    source = "farm/catalog/toolkit_wheels.yaml"
    if stack.cuda not in toolkits:
        yield because(
            "toolkit-cuda",
            f"the wheels toolkit has CUDA {', '.join(toolkits)}, not {stack.cuda}",
            "from CUDA 13.0 on NVIDIA's wheels hold the whole compiler; those of older versions "
            "lack cicc or headers",
            source,
            change=("toolkit", "cuda"),
        )
    elif platform_of(stack) not in toolkits[stack.cuda].wheels:
        platforms = " and ".join(toolkits[stack.cuda].wheels)
        yield because(
            "toolkit-machine",
            f"the wheels toolkit is for {platforms}, not for {platform_of(stack)}",
            "NVIDIA's wheels are published by platform",
            source,
            change=("toolkit",),
        )


def _debian_has_cuda(stack: Stack) -> Iterator[Reason]:
    base = _base(stack)
    if not facts(stack.platform).in_images:
        yield because(
            "toolkit-platform",
            f"the debian toolkit is for Linux, not for {stack.platform}",
            "it is taken out of Debian's packages, whose compilers and libraries are ELF files",
            "farm/catalog/debian.yaml",
            change=("toolkit",),
        )
    elif base and base.cuda is None:
        yield because(
            "toolkit-cuda",
            f"the farm takes no CUDA from the packages of {stack.base}",
            f"nvidia-cuda-toolkit of {base.suite} is not used",
            base.source,
            change=("toolkit", "cuda"),
        )
    elif base and stack.cuda != base.cuda:
        yield because(
            "toolkit-cuda",
            f"the debian toolkit of {stack.base} has CUDA {base.cuda}, not {stack.cuda}",
            f"nvidia-cuda-toolkit of {base.suite} is {base.cuda}",
            base.source,
            change=("toolkit", "cuda"),
        )
    elif base and stack.variant.machine != base.cuda_machine:
        yield because(
            "toolkit-machine",
            f"the debian toolkit of {stack.base} is for {base.cuda_machine}, not "
            f"{stack.variant.machine}",
            "what the catalogue takes out of its packages is what they hold for that machine",
            base.source,
            change=("toolkit",),
        )


def toolkit_has_components(stack: Stack) -> Iterator[Reason]:
    """The toolkit provider has every component that the recipe names, and cuDNN where it is
    wanted.
    """
    provided = _provided(stack)
    if provided is None or not stack.components:
        return
    components, source = provided
    required = list(stack.components)
    # NVIDIA's archives of cuDNN are files of their own: `toolkit_is_pinned` asks for them.
    if stack.cudnn and stack.toolkit != "nvidia":
        required.append(f"cuDNN {stack.cudnn}")
    if missing := ", ".join(name for name in required if name not in components):
        yield because(
            "toolkit-components",
            f"the {stack.toolkit} toolkit with CUDA {stack.cuda} has no {missing}, which "
            f"{stack.package} needs",
            f"components: {', '.join(components) or 'none'}",
            source,
            change=("toolkit", "cuda"),
        )


def _provided(stack: Stack) -> tuple[list[str], str] | None:
    """What the toolkit provider of a stack has, and the source of that; None: another rule says
    that it has no such CUDA.
    """
    if stack.cuda not in catalog.toolkits():
        return None
    if stack.toolkit == "debian":
        return _provided_by_debian(stack, stack.cuda)
    if stack.toolkit == "wheels":
        return _provided_by_wheels(stack, stack.cuda)
    if stack.toolkit == "nvidia":
        return _provided_by_archives(stack, stack.cuda)
    return None


def _provided_by_debian(stack: Stack, cuda: str) -> tuple[list[str], str] | None:
    base = _base(stack)
    if base is None:
        return None
    components = list(base.components)
    release = catalog.toolkits()[cuda].release
    if stack.cudnn and base.cudnn and catalog.cudnn_wheel(stack.cudnn, release):
        components.append(f"cuDNN {stack.cudnn}")
    return components, base.source


def _provided_by_wheels(stack: Stack, cuda: str) -> tuple[list[str], str] | None:
    wheels = catalog.wheel_toolkits().get(cuda)
    if wheels is None:
        return None
    components = list(wheels.components)
    for release, files in wheels.cudnn.items():
        if platform_of(stack) in files:
            components.append(f"cuDNN {release}")
    return components, "farm/catalog/toolkit_wheels.yaml"


def _provided_by_archives(stack: Stack, cuda: str) -> tuple[list[str], str] | None:
    platform = redist_platform(stack)
    release = catalog.toolkits()[cuda].release
    if platform is None or release not in redist.versions("cuda"):
        return None
    provider = catalog.nvidia_provider()
    archives = set(redist.components("cuda", release, platform))
    components = []
    for name, parts in provider.parts(cuda, platform).items():
        # A component is there only where every archive that makes it up is.
        if archives.issuperset(parts):
            components.append(name)
    return components, provider.source


def toolkit_is_pinned(stack: Stack) -> Iterator[Reason]:
    """The farm has the archives of this CUDA and a file of this cuDNN, each with its sha256."""
    platform = redist_platform(stack)
    if stack.toolkit != "nvidia" or not stack.components or platform is None:
        return
    if stack.cuda not in catalog.toolkits():
        return
    release = catalog.toolkits()[stack.cuda].release
    if release not in redist.versions("cuda"):
        yield because(
            "toolkit-unpinned",
            f"no archive of CUDA {release} is pinned here, so a build cannot fetch it",
            f"archives are pinned of CUDA {', '.join(redist.versions('cuda'))}",
            "farm/catalog/redist; add it from NVIDIA's redistrib manifest with "
            "tools/import_redist.py",
            severity="unpinned",
            change=("cuda",),
        )
    yield from _cudnn_has_a_file(stack, stack.cuda, platform)


def _cudnn_has_a_file(stack: Stack, cuda: str, platform: redist.Platform) -> Iterator[Reason]:
    """The farm has a file of the cuDNN, where that is one for this CUDA."""
    release = catalog.cudnn_releases().get(stack.cudnn or "")
    if stack.cudnn is None or release is None or number(cuda)[0] not in release.cuda_majors:
        return
    pinned = []
    for name in catalog.cudnn_releases():
        if cudnn_is_pinned(name, cuda, platform):
            pinned.append(name)
    if not cudnn_is_pinned(stack.cudnn, cuda, platform):
        yield because(
            "cudnn-unpinned",
            f"no file of cuDNN {stack.cudnn} for CUDA {cuda} is pinned here, so a build "
            "cannot fetch it",
            f"files are pinned of cuDNN {', '.join(pinned) or 'none'}",
            "farm/catalog/redist and cudnn.yaml; add it with tools/import_redist.py or "
            "tools/refresh-catalogue",
            severity="unpinned",
            change=("cudnn",),
        )


def cudnn_is_pinned(cudnn: str, cuda: str, platform: redist.Platform) -> bool:
    """True if there is an archive of a cuDNN release for a CUDA and platform, or (Linux on x86-64)
    a wheel.
    """
    if platform == "linux-x86_64" and catalog.cudnn_wheel(cudnn, cuda):
        return True
    major = number(cuda)[0]
    return redist.has_archive("cudnn", cudnn, platform, "cudnn", cuda_major=major)


def words_have_their_feature(stack: Stack) -> Iterator[Reason]:
    """The machine has what the word of an option asks for, and the recipe can build it."""
    machine = stack.variant.machine
    for name, word in effects(stack).items():
        if not word.feature:
            continue
        feature = catalog.features()[word.feature]
        if feature.machines is not None and machine not in feature.machines:
            machines = ", ".join(feature.machines)
            yield because(
                name,
                f"{feature.title} is for {machines}, not {machine}",
                f"machines of {feature.title}: {machines}",
                ground(feature, "machines"),
                change=(name,),
            )
        elif facts(stack.platform).in_images and word.feature not in stack.features:
            source = "recipe.yaml, farm/catalog/words.yaml"
            yield because(name, word.lacks, word.fact, source, change=(name,))


def nvcc_takes_gcc(stack: Stack) -> Iterator[Reason]:
    """Nvcc accepts the host's gcc."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    gcc = host_gcc(stack)
    if facts(stack.platform).compiler != "gcc" or toolkit is None or gcc is None:
        return
    if gcc > toolkit.gcc_max:
        yield because(
            "cuda-gcc",
            f"CUDA {stack.cuda} takes gcc up to {toolkit.gcc_max}, not gcc {gcc}",
            f"newest gcc of CUDA {toolkit.release}: {toolkit.gcc_max}",
            ground(toolkit, "gcc_max"),
            change=("gcc", "cuda"),
        )


def gcc_has_level(stack: Stack) -> Iterator[Reason]:
    """The host's gcc knows the flags of the CPU level."""
    level = catalog.cpu_levels()[stack.variant.cpu]
    gcc = host_gcc(stack)
    if facts(stack.platform).compiler != "gcc" or gcc is None or level.gcc_min is None:
        return
    if gcc < level.gcc_min:
        yield because(
            "gcc-cpu",
            f"gcc {gcc} does not know {' '.join(level.gcc)}, the flags of {stack.variant.cpu}",
            f"first gcc that does: {level.gcc_min}",
            ground(level, "gcc_min"),
            change=("gcc", "cuda", "cpu"),
        )


def nvcc_takes_msvc(stack: Stack) -> Iterator[Reason]:
    """Nvcc accepts the host's MSVC."""
    toolkit = catalog.toolkits().get(stack.cuda or "")
    if facts(stack.platform).compiler != "msvc" or toolkit is None or stack.msvc is None:
        return
    if toolkit.msvc_min <= stack.msvc <= toolkit.msvc_max:
        return
    yield because(
        "cuda-msvc",
        f"CUDA {stack.cuda} does not take {compiler(stack.msvc)}",
        f"CUDA {toolkit.release} takes _MSC_VER {toolkit.msvc_min} to {toolkit.msvc_max}, toolsets "
        f"{toolset(toolkit.msvc_min)} to {toolset(toolkit.msvc_max)}",
        ground(toolkit, "msvc_min" if stack.msvc < toolkit.msvc_min else "msvc_max"),
        change=("msvc", "cuda"),
    )


def msvc_keeps_avx2(stack: Stack) -> Iterator[Reason]:
    """The compiler does not put AVX-512 registers into the AVX2 tier of a wheel for AVX2
    machines.
    """
    fault = catalog.msvc().avx512_leak
    if facts(stack.platform).compiler != "msvc" or stack.msvc is None:
        return
    if stack.variant.cpu == "avx2" and msc_ver(fault.first) <= stack.msvc <= msc_ver(fault.last):
        yield because(
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
    if facts(stack.platform).compiler != "msvc" or level.msvc_as is None:
        return
    flags = " ".join(level.msvc or []) or "no /arch switch"
    yield because(
        "msvc-cpu",
        f"MSVC has no switch for {stack.variant.cpu}: the wheel is really {level.msvc_as} "
        f"({flags})",
        "/arch for x64 knows SSE2 (default), SSE4.2, AVX, AVX2, AVX512 and AVX10.x",
        ground(level, "msvc_as"),
        severity="warning",
        change=("cpu",),
    )


def python_of_base(stack: Stack) -> Iterator[Reason]:
    """The base image has this Python, or a standalone one is there with the packages that the build
    imports.
    """
    base = _base(stack)
    python = stack.variant.python
    if not facts(stack.platform).in_images:
        if python.endswith("t"):
            yield because(
                "free-threaded",
                f"no Python {stack.variant.python_version} is pinned here for {stack.platform}, "
                "only for Linux",
                "the pinned installers are of Pythons with the lock",
                "farm/plan/platforms/windows.yaml, farm/catalog/standalone_pythons.yaml",
                severity="unpinned",
                change=("python",),
            )
    elif base and stack.standalone is not None:
        yield from _standalone_python_has_wheels(stack, base, stack.standalone)
    elif base and python != base.python:
        yield because(
            "base-python",
            f"{stack.base} has {base.python}, not {python}",
            f"python3 of {base.suite}",
            base.source,
            change=("base", "python"),
        )


def _standalone_python_has_wheels(
    stack: Stack, base: DebianRelease, packages: tuple[str, ...]
) -> Iterator[Reason]:
    python = stack.variant.python
    missing = _not_pinned(stack, packages, python)
    if not missing:
        return
    able = [name for name in PYTHONS if not _not_pinned(stack, missing, name)]
    # Refreshing pins what the index has for each of these: what is missing for one, it does not
    # have.
    why = f"{base.suite} has {base.python}: a standalone {python} needs wheels"
    if able:
        why = f"its project publishes wheels for {', '.join(able)}, none for {python}"
    yield because(
        "python-packages",
        f"no wheel of {', '.join(missing)} for {python} is pinned, which the build of "
        f"{stack.package} imports",
        why,
        "farm/catalog/standalone_pythons.yaml",
        severity="unpinned",
        change=("python", "torch"),
    )


def _not_pinned(stack: Stack, packages: Iterable[str], python: str) -> list[str]:
    """The packages of which no wheel is pinned for a standalone Python."""
    return [name for name in packages if standalone_wheel(stack, name, python) is None]


def standalone_wheel(stack: Stack, package: str, python: str = "") -> PinnedWheel | None:
    """The wheel of a package that a build with a standalone Python imports, or another Python;
    None: none is pinned.
    """
    major = None
    release = catalog.torch_releases().get(stack.torch or "")
    if release and package == "numpy":
        major = release.numpy_major_max
    return catalog.standalone_wheel(
        package, python or stack.variant.python, stack.variant.machine, major
    )
