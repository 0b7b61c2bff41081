"""The Windows part of a plan: compiler, tools, Python packages and the environment that a build sees there.

Everything is below C:/farm, so that every build sees the same short paths without blanks: MSVC does not take long
paths in containers, and a compiler cache only hits where the paths are equal. Values are written with forward
slashes: CMake reads a backslash in a -D value as an escape.
"""

from farm import catalog
from farm.plan.compat import Stack
from farm.plan.compat.host import msc_ver
from farm.plan.compat.stack import effects
from farm.plan.compat.torch import numpy_end
from farm.plan.file import ToolPin, WheelPin, WindowsPlan
from farm.plan.recipe import Recipe
from farm.platforms.base import Variables
from farm.platforms.windows.tools import BuildTools, wheel, windows_tools

ROOT = "C:/farm"
MUTEX, MUTEX_SINCE = "/D_DISABLE_CONSTEXPR_MUTEX_CONSTRUCTOR", "14.40"
"""microsoft/STL#4730, pytorch/pytorch#169429."""
NVTX_BELOW = (12, 0)
"""From this CUDA on there is no NvToolsExt: NVTX is headers alone."""


def visual_studio(stack: Stack) -> tuple[str, BuildTools]:
    """The newest product whose pinned toolset CUDA and the release take; where none does, the oldest.

    Without CUDA, the oldest that the release takes.
    """
    toolkit = catalog.toolkits().get(stack.cuda or "")
    release = catalog.torch_releases().get(stack.torch or "")
    products = windows_tools().visual_studio
    newest_first = sorted(products.items(), key=lambda item: msc_ver(item[1].toolset), reverse=toolkit is not None)
    for name, product in newest_first:
        version = msc_ver(product.toolset)
        if toolkit and not toolkit.msvc_min <= version <= toolkit.msvc_max:
            continue
        if release and release.msvc_min is not None and version < release.msvc_min:
            continue
        return name, product
    return next(iter(products.items()))


def cuda_home(stack: Stack) -> str:
    """A folder for each toolkit: a host keeps more than one."""
    if stack.cuda:
        return f"{ROOT}/cuda-" + "-".join(filter(None, (stack.cuda, stack.cudnn)))
    return catalog.nvidia_provider().prefix if stack.toolkit == "nvidia" else "/usr"  # in no variable then


def pinned_msvc(stack: Stack) -> int:
    """`_MSC_VER` of the compiler that the plan will ask for."""
    return msc_ver(visual_studio(stack)[1].toolset)


def environment(stack: Stack) -> Variables:
    """Variables for the compilers and PyTorch's setup.py, by origin.

    The CPU's flags go to CFLAGS and CXXFLAGS, not to CL: nvcc's host compiler reads CL too. sccache stands before
    cl.exe alone: up to 0.17.0 it splits nvcc's command line wrongly on Windows and drops template instantiations
    without a word (mozilla/sccache#2811); and it is not on the PATH, where torch would see it and do without response
    files, whose command lines are then too long for Windows.
    """
    name, product = visual_studio(stack)
    toolkit = cuda_home(stack)
    level = catalog.cpu_levels()[stack.variant.cpu]
    flags = " ".join(level.msvc or [])
    # Else std::mutex needs a msvcp140.dll of 14.40 or newer, and import ends in WinError 1114 beside an older one.
    mutex = [MUTEX] if msc_ver(product.toolset) >= msc_ver(MUTEX_SINCE) else []
    parts = {
        f"Visual Studio {name}, toolset {product.toolset}": {
            "CC": "cl",
            "CXX": "cl",
            "CMAKE_GENERATOR": "Ninja",
            "DISTUTILS_USE_SDK": "1",  # else setuptools asks vswhere for the newest Visual Studio
        },
        "compiler cache": {
            "CMAKE_C_COMPILER_LAUNCHER": f"{ROOT}/tools/sccache/sccache.exe",
            "CMAKE_CXX_COMPILER_LAUNCHER": f"{ROOT}/tools/sccache/sccache.exe",
            "SCCACHE_DIR": f"{ROOT}/cache",
            "SCCACHE_IDLE_TIMEOUT": "0",
            "SCCACHE_IGNORE_SERVER_IO_ERROR": "1",
        },
        f"variant: {stack.variant.cpu}": {"CFLAGS": flags, "CXXFLAGS": " ".join([flags, *mutex])} if flags else {},
    }
    if mutex and not flags:
        parts["runtimes before 14.40"] = {"CXXFLAGS": MUTEX}
    if stack.cuda:
        parts["toolkit"] = {"CUDA_HOME": toolkit, "CUDA_PATH": toolkit}
        if catalog.number(stack.cuda) < NVTX_BELOW:
            parts["toolkit"]["NVTOOLSEXT_PATH"] = f"{toolkit}/NvToolsExt"
    return parts | {word.windows.origin: word.windows.env for word in effects(stack).values() if word.windows.env}


def windows_plan(recipe: Recipe, stack: Stack) -> WindowsPlan:
    """Compiler, tools and Python packages.

    Raises:
        UsageError: A package is not pinned for the variant's Python.
    """
    known, python = windows_tools(), stack.variant.python
    name, product = visual_studio(stack)
    words = [word.windows for word in effects(stack).values()]
    tools = ["sccache", *(tool for word in words for tool in word.tools)]
    tools += ["zlib"] if stack.cudnn and stack.cudnn.startswith("8.") else []  # it loads zlibwapi.dll by name
    wheels = [*known.frontend, *recipe.wheels, *(package for word in words for package in word.wheels)]
    wheels += known.frontend_before_311 if python in ("py39", "py310") else []
    release = catalog.torch_releases().get(stack.torch or "")
    pins = []
    for entry in sorted(set(wheels)):
        below = numpy_end(release, stack.variant.cpu) if release and entry == "numpy" else None
        version, digest = wheel(entry, python, below)
        pins.append(WheelPin(name=entry, version=version, sha256=digest))
    return WindowsPlan(
        visual_studio=name,
        toolset=product.toolset,
        openmp=next((word.openmp for word in words if word.openmp), "vcomp"),
        tools=[ToolPin(name=tool, **dict(known.tools[tool])) for tool in tools],
        wheels=pins,
    )


def floating(windows: WindowsPlan) -> list[str]:
    """Unpinned inputs: the compiler below the toolset's second number, and in a container what it is installed on."""
    tags = [tag for tag, core in catalog.windows().servercore.items() if "@sha256:" not in core.image]
    found = [f"Visual Studio {windows.visual_studio}: the machine's own {windows.toolset}.*, whichever it is"]
    if tags:
        found.append(f"container.cmd: the base image ({', '.join(tags)}), renewed each month; FARM_BASE pins it")
    return [*found, "container.cmd: Visual Studio's packages of the day; a VisualStudio.chman pins them"]
