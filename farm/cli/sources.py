"""What the sources of a package say about its build: requirements, libraries, CUDA, modules."""

import json
import re
import tarfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, cast

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import AfterValidator, Field, ValidationError

from farm.base.errors import UsageError
from farm.base.requirement import read_requirement
from farm.base.text import short
from farm.base.yamlfile import Model, first_fault, pattern
from farm.cli.package_kind import HINTS, MAX_FILE, PackageKind, Tree

MAX_READ = 64 << 20
MAX_FILES = 50_000
OTHER_SYSTEMS = re.compile(
    r"(?:^|/)(?:win(?:32|64|dows)?|msvc[^/]*|mac(?:os)?|osx)/", re.IGNORECASE
)
"""Folders with a copy of a header that is not for Linux: pyFFTW has `include/win/fftw3.h`."""


@dataclass
class Proposal:
    """Facts of a build that a package's sources state."""

    folder: str
    package: str
    version: str
    summary: str
    licence: str
    source: dict[str, str]
    requires: set[str]
    apt: set[str]
    components: list[str]
    kernels: bool
    imports: list[str]
    cmake: bool = False
    no_native: list[str] = field(default_factory=list)
    torch: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def cuda(self) -> bool:
        return bool(self.components)

    def recipe(self, wheels: list[dict[str, str]]) -> str:
        """The text of `recipe.yaml`."""
        if self.cmake:
            env = {"CMAKE_GENERATOR": "Ninja"}
        else:
            env = {}
        env |= dict.fromkeys(self.no_native, "1")
        env |= (
            {"CUDAARCHS": "{cmake_architectures}", "CUDA_HOME": "{cuda_home}"} if self.cuda else {}
        )
        env |= (
            {"LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu/stubs"}
            if "driver_stub" in self.components
            else {}
        )
        env |= (
            {"TORCH_CUDA_ARCH_LIST": "{arch_list}", "FORCE_CUDA": "{use_cuda}"}
            if self.cuda and self.torch
            else {}
        )
        torch = {
            "requires": ["torch=={torch_version}"],
            "exclude": ["libc10*.so", "libtorch*.so"],
        }  # torch loaded them
        recipe = {
            "package": self.package,
            "summary": self.summary or self.package,
            "version": self.version,
            "source": self.source,
            "components": self.components,
            "device_code": self.kernels,
            "apt": sorted({*HINTS["apt"], *self.apt}),
            **({"needs": ["torch"], **torch} if self.torch else {}),
            **({"build_requires": wheels} if wheels else {}),
            "env": env,
            "memory_per_job_gb": 2.0 if self.cuda or self.torch else 1.0,
            "vendor_into": f"{re.sub(r'[^A-Za-z0-9]+', '_', self.package)}.libs",
            **HINTS["recipe"],
            "smoke": {"imports": self.imports},
        }
        text = yaml.safe_dump(
            recipe, default_flow_style=None, sort_keys=False, width=1000, allow_unicode=True
        )
        return (
            "# Written by `farm recipe new` from the sources. Licence: "
            f"{self.licence or 'not said'}.\n{text}"
        )


def _requirement(text: str) -> str:
    need = read_requirement(text)
    _ = need.marker is None or need.marker.evaluate()  # some compare what cannot be compared
    return text


Need = Annotated[str, AfterValidator(_requirement)]


class PyProject(Model, extra="ignore"):
    """A pyproject.toml, which is untrusted; further keys are for the build backend."""

    class About(Model, extra="ignore"):
        name: Annotated[
            str,
            pattern(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,59}[A-Za-z0-9])?$", "the name of a package"),
        ] = ""
        version: Annotated[str, AfterValidator(lambda text: Version(text).public)] = ""
        description: str = ""
        dependencies: list[Need] = []

    class BuildSystem(Model, extra="ignore"):
        requires: list[Need] | None = None

    project: About = About()
    build_system: BuildSystem = Field(default=BuildSystem(), alias="build-system")
    tool: dict[str, Any] = {}


def pyproject_of(tree: Tree) -> PyProject:
    """The pyproject.toml of a source, an empty one where there is none; UsageError: it is
    malformed.
    """
    try:
        data = tomllib.loads(
            tree.read_bytes("pyproject.toml").decode() if "pyproject.toml" in tree.names else ""
        )
        json.dumps(data, default=str)  # nothing below meets more levels than Python can go down
        return PyProject.model_validate(data)
    except ValidationError as error:
        fault = first_fault(error)
    except UnicodeDecodeError:
        fault = "not UTF-8 text"
    except (ValueError, RecursionError) as error:
        fault = f"not valid TOML: {short(error)}"
    raise UsageError(
        f"{tree.place}/pyproject.toml: {fault}", hint="pip refuses it, too: correct it"
    )


@contextmanager
def unpacked(packed: Path) -> Iterator[Tree]:
    """An sdist's files, read where they are: nothing is unpacked."""
    try:
        with tarfile.open(packed) as archive:
            files = islice((member for member in archive if member.isreg()), MAX_FILES)
            members = {member.name.partition("/")[2]: member for member in files}
            read = lambda name: cast(IO[bytes], archive.extractfile(members[name])).read(MAX_FILE)  # noqa: E731
            yield Tree(packed.name, tuple(members), read)
    except (tarfile.TarError, EOFError) as error:
        raise UsageError(f"{packed.name} cannot be read: {error}") from error


def read_sources(
    tree: Tree,
    package: str,
    version: str,
    source: dict[str, str],
    metadata: Message,
    *,
    anyway: bool = False,
) -> Proposal:
    """Read requirements, libraries, CUDA, modules and licence, as the sources state them.

    Args:
        tree: The files.
        package: The name of the package.
        version: Its version.
        source: Where the recipe takes the sources from.
        metadata: The sdist's PKG-INFO, or what stands for it.
        anyway: Write a recipe of what the farm cannot build, too.

    Raises:
        NotBuildableError: The farm cannot build such a package, unless `anyway`.
    """
    kind = PackageKind(tree)
    requires, notes = _requirements(tree, HINTS["imports"])
    needs = [str(need) for need in metadata.get_all("Requires-Dist") or []]
    torch = "torch" in requires or any(re.match(r"torch\b(?![-_.])", need) for need in needs)
    if not anyway:
        kind.refuse(package, requires)
    outside = _outside_headers(kind)
    components = _components(kind, outside)
    packages, unknown = kind.system_libraries
    apt = packages | {HINTS["headers"][name] for name in outside if name in HINTS["headers"]}
    if any(need.startswith("meson-python") for need in requires):
        apt.add("patchelf")
    notes += _notes(kind, needs, unknown, device_code=bool(components))
    imports = _modules(tree, package)
    if not imports:
        notes.append("no module was found: name one under smoke.imports, or a script")
    return Proposal(
        folder=canonicalize_name(package),
        package=package,
        version=version,
        summary=short(metadata["Summary"] or ""),
        licence=kind.licence(metadata),
        source=source,
        requires=requires | ({*HINTS["torch_imports"]} if torch else set()),
        apt=apt,
        components=components,
        kernels=kind.has_device_code,
        imports=imports,
        cmake=any(PurePosixPath(name).name == "CMakeLists.txt" for name in kind.own_names),
        # Its own variable against -march=native, which verify refuses: HNSWLIB_NO_NATIVE.
        no_native=re.findall(r"environ\S*[\"'](\w*NO_NATIVE\w*)[\"']", tree.text("setup.py")),
        torch=torch,
        notes=notes,
    )


def _outside_headers(kind: PackageKind) -> set[str]:
    """The headers that the package's own code includes and its source does not hold."""
    tree = kind.tree
    code = "\n".join(_code(tree, kind.own_names))
    includes = set(re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', code, re.MULTILINE))
    includes |= set(re.findall(r"""^\s*cdef extern from ["']([^"']+)["']""", code, re.MULTILINE))
    scripts = tree.text("setup.py") + tree.text("meson.build")
    includes |= set(re.findall(r"""["']([\w/]+\.h)["']""", scripts))
    ends: set[str] = set()
    for name in tree.names:
        if not OTHER_SYSTEMS.search(name):
            parts = name.split("/")
            ends |= {"/".join(parts[place:]) for place in range(len(parts))}
    return includes - ends


def _components(kind: PackageKind, outside: set[str]) -> list[str]:
    """The components of CUDA that the build needs; none where it is not about CUDA."""
    setup = kind.tree.text("setup.py")
    host_code = {"cuda.h", "cuda_runtime.h"} & outside and re.search(r"(?i)cuda", setup)
    if not (kind.has_device_code or host_code):
        return []
    components = sorted(
        {HINTS["components"][name] for name in outside if name in HINTS["components"]}
    )
    if "cuda.h" in outside and re.search(r"""["']cuda["']|-lcuda\b""", setup):
        # libcuda itself is the driver's, which no build machine has.
        components.append("driver_stub")
    return ["nvcc", "headers", "cudart", *components]


def _notes(
    kind: PackageKind, needs: list[str], unknown: list[str], *, device_code: bool
) -> Iterator[str]:
    """What the sources do not decide, each with what to do."""
    for need in needs:
        if " @ " in need:
            yield f"verify refuses {short(need)}: a patch or prepare.sh removes it"
    folder = kind.foreign_device_code
    if folder and not device_code:
        yield (
            f"CUDA was found under {folder} alone, which the build's own files do not name: the "
            "recipe is for the CPU"
        )
    if "-march=native" in kind.build_text + kind.build_scripts:
        yield (
            "the build compiles for the CPU of the machine (-march=native), which verify refuses: "
            "its own switch against it in env, or a patch"
        )
    if unknown:
        yield (
            f"the build may ask for {', '.join(unknown)}: where the first submit misses one, add "
            "its Debian package to apt"
        )
    if kind.fetched:
        packages_by_name = {key.lower(): package for key, package in HINTS["libraries"].items()}
        packages = sorted(
            {
                packages_by_name[name.lower()]
                for name in kind.fetched
                if name.lower() in packages_by_name
            }
        )
        apt = f"; Debian has {', '.join(packages)}" if packages else ""
        yield (
            f"CMake may fetch {', '.join(kind.fetched)} while it configures, and a build has no "
            f"network: Debian's package in apt{apt}, the project's own option for an installed one "
            "in env (for scikit-build-core: SKBUILD_CMAKE_ARGS: "
            "-DFETCHCONTENT_TRY_FIND_PACKAGE_MODE=ALWAYS), or its source by job/prepare.sh"
        )


def _code(tree: Tree, names: Iterable[str]) -> Iterator[str]:
    """The text of files of code, of a bounded size together."""
    remaining = MAX_READ
    for name in names:
        if name.endswith(tuple(HINTS["code"])) and remaining > 0:
            text = tree.text(name)
            remaining -= len(text)
            yield text


def _requirements(tree: Tree, imports: dict[str, str]) -> tuple[set[str], list[str]]:
    """Requirements of the build; without [build-system] those that setup.py imports."""
    notes: list[str] = []
    data = pyproject_of(tree)
    stated = data.build_system.requires
    names = set[str]()
    for text in ["setuptools", "wheel"] if stated is None else stated:
        need = read_requirement(text)
        if need.url:  # pip would fetch what it names, and run it
            notes.append(
                f"pyproject.toml requires {text!r}: add its wheel to build_requires by hand"
            )
        elif need.marker is None or need.marker.evaluate():
            names.add("torch" if need.name == "torch" else str(need).partition(";")[0].strip())
    if stated is None:
        setup = tree.text("setup.py")
        names |= {
            imports[name]
            for name in imports
            if re.search(rf"^\s*(from|import) {name}\b", setup, re.MULTILINE)
        }
    if any(need.startswith("setuptools") for need in names):
        names.add(
            "packaging>=24.2"
        )  # a newer setuptools takes the image's else, which is too old for it
    minimum = re.findall(
        r"(?i)cmake_minimum_required\s*\(\s*VERSION\s+(\d{1,4}\.\d{1,4})",
        tree.text("CMakeLists.txt"),
    )
    scikit = json.dumps(data.tool.get("scikit-build"), default=str)
    minimum += re.findall(r'"cmake[^}]*?"[=><~ ]*(\d{1,4}\.\d{1,4})', scikit)
    newest = max((tuple(map(int, version.split("."))) for version in minimum), default=(0, 0))
    if newest > tuple(HINTS["debian_cmake"]):
        names.add(f"cmake>={newest[0]}.{newest[1]}")
    return names, notes


def _modules(tree: Tree, package: str) -> list[str]:
    """The module to import: the one called like the package, else the first of those that the
    source holds.
    """
    modules_text = next(
        (tree.text(name) for name in tree.names if name.endswith(".egg-info/top_level.txt")), ""
    )
    names = modules_text.split()
    for name in tree.names:
        parts = PurePosixPath(name).parts
        if parts[0] in ("src", "python", "lib", "source"):
            inner = parts[1:]
        else:
            inner = parts
        if (
            len(inner) == 2
            and inner[1] in ("__init__.py", "__init__.pyi")
            and inner[0] not in HINTS["no_package"]
        ):
            names.append(inner[0])
    names = [name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)]
    like = re.sub(r"[-_.]+", "", package).lower()
    same_name = [name for name in names if name.replace("_", "").lower() == like]
    return (same_name or [name for name in names if not name.startswith("_")] or names)[:1]
