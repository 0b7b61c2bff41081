"""Windows: MSVC on the machine itself or in a Server container, CUDA from NVIDIA's archives, a
batch file that builds.

`windows.yaml` has the pinned downloads: compilers, tools and Python packages, each with its sha256.
Everything of a build is below C:/farm, so that every build sees the same short paths without
blanks: MSVC does not take long paths in containers, and a compiler cache only hits where the paths
are equal. Values are written with forward slashes: CMake reads a backslash in a -D value as an
escape. Batch files have CRLF line ends: cmd misses labels in files without.

The host engine's root is C:/. It was run so under Wine, with stand-ins for the compilers, never on
Windows.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from packaging.version import Version
from pydantic import Field, model_validator

from farm import catalog
from farm.base import causes, failures
from farm.base import text as cleaning
from farm.base.errors import (
    FarmError,
    InfrastructureError,
    NoRunnerError,
    NotBuildableError,
    UsageError,
)
from farm.base.hashes import read_tree
from farm.base.yamlfile import Model, load
from farm.catalog import redist
from farm.plan.compat.compilers import msc_ver
from farm.plan.compat.rules.pytorch import numpy_end
from farm.plan.compat.stack import Stack, effects
from farm.plan.file import Plan, ToolkitPlan, ToolPin, WheelPin, WindowsPlan
from farm.plan.materials import source_folder
from farm.plan.platforms.base import Files, Platform, Templates, Variables
from farm.plan.recipe import Recipe, recipe
from farm.platforms.facts import PLATFORMS

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Url = Annotated[str, Field(pattern=r"^https?://[!-~]{1,300}$")]
Place = Annotated[str, Field(pattern=r"^[a-z0-9]+(/[a-z0-9_.]+)*/?$")]


class Download(Model):
    """One file of the network."""

    version: str
    url: Url
    sha256: Sha256


class Tool(Download):
    """An archive of which some members are unpacked: pattern (fnmatch) to a place; one that ends in
    / is a folder.
    """

    max_mb: int = Field(gt=0, le=1024)
    members: dict[str, Place]
    mirrors: list[Url] = []


class BuildTools(Model):
    """A Visual Studio product: the toolset that vcvars is asked for, what adds it, the pinned
    bootstrapper.
    """

    toolset: str = Field(pattern=r"^14\.\d\d$")
    cuda_build: int | None = None
    cuda_build_reason: str = ""
    component: str = Field(pattern=r"^Microsoft\.[A-Za-z0-9.]+$")
    url: Url
    sha256: Sha256
    components: list[Annotated[str, Field(pattern=r"^Microsoft\.[A-Za-z0-9.]+$")]]


class Wheel(Model):
    """A Python package of the build environment: one file for every Python, or one a Python."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    version: str = Field(pattern=r"^[0-9a-z.]+$")
    sha256: Sha256 | None = None
    by_python: dict[str, Sha256] = {}

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if (self.sha256 is None) == (not self.by_python):
            raise ValueError("give either sha256 or by_python")
        return self

    def digest(self, python: str) -> str | None:
        return self.sha256 or self.by_python.get(python)


class WindowsTools(Model):
    """The whole file."""

    sources: dict[str, str]
    visual_studio: dict[str, BuildTools]
    python: dict[str, Download]
    git: Download
    tools: dict[str, Tool]
    cpu_hours: dict[str, float]
    frontend: list[str]
    frontend_before_311: list[str]
    wheels: list[Wheel]


@cache
def windows_tools() -> WindowsTools:
    return load(Path(__file__).with_suffix(".yaml"), WindowsTools)


def wheel(name: str, python: str, below: str | None = None) -> tuple[str, str]:
    """Version and sha256 of the newest `name` for a Python, before `below`. Raises
    NotBuildableError: none is.
    """
    candidates = []
    pinned: set[str] = set()
    for entry in windows_tools().wheels:
        if entry.name != name:
            continue
        pinned.update(entry.by_python)
        digest = entry.digest(python)
        if digest and (below is None or Version(entry.version) < Version(below)):
            candidates.append((entry.version, digest))
    if candidates:
        return max(candidates, key=lambda pair: Version(pair[0]))
    limit = ""
    if below:
        limit = f" below {below}"
    raise NotBuildableError(
        f"the farm has no pinned {name}{limit} for {python} on Windows",
        hint=f"it has one for {', '.join(sorted(pinned))}; others go into "
        "farm/plan/platforms/windows.yaml, with sha256",
    )


ROOT = "C:/farm"
MUTEX = "/D_DISABLE_CONSTEXPR_MUTEX_CONSTRUCTOR"
MUTEX_SINCE = "14.40"
"""microsoft/STL#4730, pytorch/pytorch#169429."""
NVTX_BELOW = (12, 0)
"""From this CUDA on there is no NvToolsExt: NVTX is headers alone."""


def visual_studio(stack: Stack) -> tuple[str, BuildTools]:
    """The newest product that CUDA and the release take, the oldest without CUDA, or where none is
    taken.
    """
    toolkit = catalog.toolkits().get(stack.cuda or "")
    release = catalog.torch_releases().get(stack.torch or "")
    products = windows_tools().visual_studio
    newest_first = sorted(
        products.items(), key=lambda item: msc_ver(item[1].toolset), reverse=toolkit is not None
    )
    for name, product in newest_first:
        version = msc_ver(product.toolset)
        if toolkit and not toolkit.msvc_min <= version <= toolkit.msvc_max:
            continue
        if release and release.msvc_min is not None and version < release.msvc_min:
            continue
        return name, product
    return next(iter(products.items()))


JOB_TEMPLATES = ("build.cmd", "container.cmd", "prepare.cmd", "report.cmd", "tiers.cmake")
IMAGE_TEMPLATES = ("get.cmd", "visual_studio.cmd", "install.cmd", "prove.cmd", "prepare.cmd")
SCRIPTS = ("install_toolkit.py", "fetch_tools.py", "logged.py")
TOOLKIT_SCRIPTS = ("import_libraries.py",)
JOB_SCRIPTS = ("follow_cmd.py", "check_machine.py", "count_jobs.py", "long_paths.py", "report.py")


def cmd_text(value: str) -> str:
    """A value between quotes in a batch file. Raises UsageError: it holds a quote, or a character
    beyond ASCII.
    """
    # A batch file has no escape for a quote inside quotes, and is read in the machine's own code
    # page.
    if '"' in value or not value.isascii() or not value.isprintable():
        raise UsageError(
            f"{value!r} cannot be in a batch file", hint="quotes and letters beyond ASCII cannot"
        )
    return value.replace("%", "%%")


def _source(plan: Plan) -> Files:
    """The files of a source beside the recipe. Raises UsageError: it changed, or holds a link or
    what is no text.
    """
    if plan.source.kind != "path":
        return {}
    folder = source_folder(plan)
    tree = read_tree(folder)
    for link in tree.links:
        if link.is_dir():
            raise UsageError(
                f"{link} is a link to a folder: a build on Windows gets files alone",
                hint="put a copy in its place",
            )
    files = {}
    try:
        for path in tree.files:
            files[f"source/{path.relative_to(folder).as_posix()}"] = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{folder}: a file is not UTF-8 text", hint="put the source into a git repository"
        ) from error
    return files


def _common(templates: Templates, plan: Plan, windows: WindowsPlan) -> Files:
    """Files of both the image and a host's build: scripts, and lists of files to fetch."""
    files = _scripts(templates, SCRIPTS)
    files["text.py"] = templates.module(cleaning)  # logged.py imports it
    lines = []
    for pin in windows.wheels:
        lines.append(_requirement(pin.name, pin.version, pin.sha256))
    files["requirements.txt"] = "".join(lines)
    files["tools.json"] = _indented([tool.model_dump() for tool in windows.tools])
    toolkit = plan.toolkit
    if toolkit and toolkit.wheels:
        files |= _scripts(templates, TOOLKIT_SCRIPTS)
        lines = []
        for wheel in toolkit.wheels:
            version = catalog.version_in(str(wheel.file))
            lines.append(_requirement(str(wheel.package), version, str(wheel.sha256)))
        files["toolkit.txt"] = "".join(lines)
    if toolkit and toolkit.archives:
        nvidias_name = catalog.nvidia_provider().platforms[f"{plan.platform}-{plan.machine}"]
        manifest = redist.install_manifest(toolkit.archives, nvidias_name)
        files["toolkit.json"] = _indented(manifest)
    return files


def _scripts(templates: Templates, names: Iterable[str]) -> Files:
    return {name: templates.script(name) for name in names}


def _requirement(name: str, version: str, sha256: str) -> str:
    """A line for pip, which with a hash in each refuses what is not pinned here."""
    return f"{name}=={version} --hash=sha256:{sha256}\n"


def _indented(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"


def _toolkit_folders(toolkit: ToolkitPlan | None) -> list[str]:
    """The folders of NVIDIA's wheels that make up the toolkit, as cmd writes them."""
    if toolkit is None or not toolkit.wheels:
        return []
    layout = catalog.wheel_toolkits()[toolkit.cuda]
    folders = []
    for wheel in toolkit.wheels:
        folder = layout.folder_in(str(wheel.package))
        folders.append(folder.replace("/", "\\"))
    return list(dict.fromkeys(folders))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _values(plan: Plan, windows: WindowsPlan, files: Files) -> dict[str, Any]:
    """Values that the templates of Windows alone name."""
    tools = windows_tools()
    titles = []
    for name in plan.without:
        feature = catalog.features().get(name)
        if feature:
            titles.append(feature.title)
    cuda_folder = ""
    lowest_sm = None
    if plan.toolkit:
        cuda_folder = plan.env["CUDA_HOME"].replace("/", "\\")
        lowest_sm = min(catalog.toolkits()[plan.toolkit.cuda].sm)
    return {
        "disk_gb": recipe(plan.recipe).disk_gb,
        "cpu_minutes": round(tools.cpu_hours.get(plan.package, 0) * 60),
        "lacks": ", ".join(titles),
        "cuda_folder": cuda_folder,
        "requirements_digest": _digest(files["requirements.txt"]),
        "toolkit_folders": _toolkit_folders(plan.toolkit),
        "toolkit_digest": _digest(files.get("toolkit.txt", "")),
        "build_tools": tools.visual_studio[windows.visual_studio],
        "python_download": tools.python[plan.parsed_variant.python],
        "git": tools.git,
        "lowest_sm": lowest_sm,
        "hosts": _hosts(),
        "images": {tag: core.image for tag, core in catalog.windows().servercore.items()},
    }


def _hosts() -> list[dict[str, Any]]:
    """The builds of Windows that a container runs on, the newest first, each with its images."""
    hosts = []
    for build in _builds_of_hosts():
        hosts.append({"build": build, "tags": catalog.windows().hosts[str(build)].tags})
    return hosts


def _builds_of_hosts() -> list[int]:
    """The builds of Windows that a container runs on, the newest first."""
    return sorted(map(int, catalog.windows().hosts), reverse=True)


FOLLOW = "/farm/scripts/follow_cmd.py"


class Windows(Platform):
    facts = PLATFORMS["windows"]
    entry = "build.cmd"
    self_contained = True
    needs_folder = "/farm/job/needs"
    variables: tuple[str, ...] = ("FARM_PYTHON", "FARM_ARCHIVES")
    failures: Mapping[int, type[FarmError]] = {
        3: NoRunnerError,
        9: InfrastructureError,
    }  # build.cmd's own

    def with_platform(self, stack: Stack) -> Stack:
        if stack.msvc is not None:
            return stack
        return replace(stack, msvc=msc_ver(visual_studio(stack)[1].toolset))

    def cuda_home(self, stack: Stack) -> str:
        # A folder for each toolkit: a host keeps more than one.
        if stack.cuda and stack.cudnn:
            return f"{ROOT}/cuda-{stack.cuda}-{stack.cudnn}"
        if stack.cuda:
            return f"{ROOT}/cuda-{stack.cuda}"
        if stack.toolkit == "nvidia":
            return catalog.nvidia_provider().prefix
        return "/usr"  # in no variable then

    def environment(self, _recipe: Recipe, stack: Stack) -> Variables:
        """Variables for the compilers and PyTorch's setup.py, by origin.

        The CPU's flags go to CFLAGS and CXXFLAGS, not to CL: nvcc's host compiler reads CL too.
        sccache stands before cl.exe alone: up to 0.17.0 it splits nvcc's command line wrongly on
        Windows and drops template instantiations without a word (mozilla/sccache#2811); and it is
        not on the PATH, where torch would see it and do without response files, whose command lines
        are then too long for Windows.
        """
        name, product = visual_studio(stack)
        # Else std::mutex needs a msvcp140.dll of 14.40 or newer, and import ends in WinError 1114
        # beside an older one.
        needs_mutex = msc_ver(product.toolset) >= msc_ver(MUTEX_SINCE)
        parts = {
            f"Visual Studio {name}, toolset {product.toolset}": {
                "CC": "cl",
                "CXX": "cl",
                "CMAKE_GENERATOR": "Ninja",
                # else setuptools asks vswhere for the newest Visual Studio
                "DISTUTILS_USE_SDK": "1",
            },
            "compiler cache": {
                "CMAKE_C_COMPILER_LAUNCHER": f"{ROOT}/tools/sccache/sccache.exe",
                "CMAKE_CXX_COMPILER_LAUNCHER": f"{ROOT}/tools/sccache/sccache.exe",
                "SCCACHE_DIR": f"{ROOT}/cache",
                "SCCACHE_IDLE_TIMEOUT": "0",
                "SCCACHE_IGNORE_SERVER_IO_ERROR": "1",
            },
        }
        parts |= _cpu_flags(stack, needs_mutex=needs_mutex)
        if stack.cuda:
            home = self.cuda_home(stack)
            parts["toolkit"] = _toolkit_variables(stack.cuda, home, needs_mutex=needs_mutex)
        for word in effects(stack).values():
            if word.windows.env:
                parts[word.windows.origin] = word.windows.env
        return parts

    def details(self, recipe: Recipe, stack: Stack) -> WindowsPlan:
        """Compiler, tools and Python packages. Raises UsageError: a package is not pinned for the
        variant's Python.
        """
        pinned = windows_tools()
        python = stack.variant.python
        name, product = visual_studio(stack)
        tools = ["sccache"]
        packages = {*pinned.frontend, *recipe.wheels}
        openmp: str | None = None
        for word in effects(stack).values():
            tools += word.windows.tools
            packages.update(word.windows.wheels)
            openmp = openmp or word.windows.openmp
        if stack.cudnn and stack.cudnn.startswith("8."):
            tools.append("zlib")  # it loads zlibwapi.dll by name
        if python in ("py39", "py310"):
            packages.update(pinned.frontend_before_311)
        release = catalog.torch_releases().get(stack.torch or "")
        pins = []
        for package in sorted(packages):
            numpy_below = None
            if release and package == "numpy":
                numpy_below = numpy_end(release, stack.variant.cpu)
            version, digest = wheel(package, python, numpy_below)
            pins.append(WheelPin(name=package, version=version, sha256=digest))
        return WindowsPlan(
            visual_studio=name,
            toolset=product.toolset,
            openmp=openmp or "vcomp",
            tools=[ToolPin(name=tool, **dict(pinned.tools[tool])) for tool in tools],
            wheels=pins,
        )

    def floating(self, plan: Plan) -> list[str]:
        """Unpinned: the compiler below the toolset's second number, and in a container what it is
        installed on.
        """
        texts = []
        if plan.windows:
            texts.append(
                f"Visual Studio {plan.windows.visual_studio}: the machine's own "
                f"{plan.windows.toolset}.*, whichever it is"
            )
        servercore = catalog.windows().servercore
        tags = [tag for tag, core in servercore.items() if "@sha256:" not in core.image]
        if tags:
            texts.append(
                f"container.cmd: the base image ({', '.join(tags)}), renewed each month; "
                "FARM_BASE pins it"
            )
        texts.append(
            "container.cmd: Visual Studio's packages of the day; a VisualStudio.chman pins them"
        )
        return texts

    def render(
        self, templates: Templates, plan: Plan, values: Mapping[str, Any]
    ) -> tuple[Files, Files]:
        """The files of the image and of the job. Raises UsageError: the source or a value cannot be
        in a batch file.
        """
        if plan.windows is None or plan.source.kind not in ("git", "path"):
            raise UsageError(
                f"{plan.package} has no repository to build from on Windows",
                hint="--platform linux",
            )
        templates.filters["cmd"] = cmd_text
        common = _common(templates, plan, plan.windows)
        filled = {**values, **_values(plan, plan.windows, common)}
        image = {"Dockerfile": _from_template(templates, "Dockerfile", filled)}
        for name in IMAGE_TEMPLATES:
            image[f"scripts/{name}"] = _from_template(templates, name, filled)
        for name, text in common.items():
            image[f"scripts/{name}"] = text
        # Before image.cmd is made, which holds the digest itself, of all that it builds from.
        image_text = json.dumps(image, sort_keys=True)
        filled["image_digest"] = hashlib.sha256(image_text.encode()).hexdigest()
        image["image.cmd"] = _from_template(templates, "image.cmd", filled)
        job = dict(common)
        for name in JOB_TEMPLATES:
            job[name] = _from_template(templates, name, filled)
        archives = str(values["archives"])
        if archives:
            job["archives.txt"] = f"{archives}\r\n"
            # A build of an image sees no folder of the host.
            if archives.startswith("http"):
                image["archives.txt"] = job["archives.txt"]
        # The farm's own reader of logs: build.cmd says the cause where the farm is not installed.
        job["causes.py"] = templates.module(causes)
        job[causes.PATTERNS] = failures.document()
        return image, job | _scripts(templates, JOB_SCRIPTS) | _source(plan)

    # Not the build tree: builds on mounts hang or lose files (docker/for-win#3274, #13502).
    cache_folders = ("/farm/cache", "/farm/sources")
    container_variables: Mapping[str, str] = {
        "FARM_SOURCES": f"{PLATFORMS['windows'].drive}\\farm\\sources"
    }

    def container_command(self, output: str, limit_s: int) -> tuple[str, ...]:
        path = self.facts.path
        scripts = (path("/farm/job/follow_cmd.py"), path(f"/farm/job/{self.entry}"))
        log = path(f"{output}/build.log")
        return (path("/farm/python/python.exe"), *scripts, log, str(limit_s))

    def container_bases(self, _plan: Plan, host_version: str) -> tuple[str, ...]:
        # Process isolation: the image's build must fit the host's, as image.cmd says.
        host_build = _build_number(host_version)
        hosts = catalog.windows().hosts
        cores = catalog.windows().servercore
        for build in _builds_of_hosts():
            if build <= host_build:
                return tuple(cores[tag].image for tag in hosts[str(build)].tags)
        oldest = min(hosts, key=int)
        raise NoRunnerError(
            f"Windows {host_version} cannot build in a container: {oldest} "
            f"({hosts[oldest].name}) is the oldest that can",
            hint="submit on that machine itself, with --on host",
        )

    def host_root(self, _artifacts: Path) -> Path:
        return Path("C:/")

    def host_command(self, output: str) -> tuple[str, ...]:
        return (sys.executable, FOLLOW, f"/farm/job/{self.entry}", f"{output}/build.log")

    def host_output(self, plan: Plan) -> str:
        return f"/farm/out/{plan.digest[:12]}"


def _build_number(version: str) -> int:
    """Return the build of a version such as 10.0.20348.2582; 0 if it names none."""
    parts = version.split(".")
    if len(parts) > 2 and parts[2].isdecimal():
        return int(parts[2])
    return 0


PLATFORM = Windows()


def _from_template(templates: Templates, name: str, values: Mapping[str, Any]) -> str:
    """A file with its values; a batch file with the line ends of Windows."""
    text = templates.fill(f"{name}.j2", values)
    # cmd.exe mistakes labels and long blocks in files with bare line feeds.
    if name.endswith(".cmd"):
        return text.replace("\n", "\r\n")
    return text


def _cpu_flags(stack: Stack, *, needs_mutex: bool) -> Variables:
    """Flags of MSVC for the CPU level, by origin."""
    flags = list(catalog.cpu_levels()[stack.variant.cpu].msvc or [])
    if not flags and not needs_mutex:
        return {}
    if not flags:
        return {"runtimes before 14.40": {"CXXFLAGS": MUTEX}}
    variables = {"CFLAGS": " ".join(flags), "CXXFLAGS": " ".join(flags)}
    if needs_mutex:
        variables["CXXFLAGS"] += f" {MUTEX}"
    return {f"variant: {stack.variant.cpu}": variables}


def _toolkit_variables(cuda: str, home: str, *, needs_mutex: bool) -> dict[str, str]:
    """Where CUDA is, and flags of nvcc."""
    # nvcc starts vcvars64.bat by itself, without the toolset that build.cmd asked for, unless it is
    # told not to (conda-forge/nvcc-feedstock#88).
    flags = "--use-local-env"
    if needs_mutex:  # host code of .cu files sees no CXXFLAGS
        flags += f" {MUTEX.replace('/D', '-D', 1)}"
    variables = {"CUDA_HOME": home, "CUDA_PATH": home, "NVCC_APPEND_FLAGS": flags}
    if catalog.number(cuda) < NVTX_BELOW:
        variables["NVTOOLSEXT_PATH"] = f"{home}/NvToolsExt"
    return variables
