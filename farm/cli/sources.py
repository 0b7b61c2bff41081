"""What the sources of a package say about its build: requirements, libraries, CUDA, modules."""

import json
import re
import shlex
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, cast

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import AfterValidator, Field, ValidationError

from farm.base.errors import UsageError
from farm.base.requirement import read_requirement
from farm.base.text import short
from farm.base.yamlfile import Model, first_fault, pattern
from farm.cli.package_kind import HINTS, MAX_FILE, NATIVE, PackageKind, Tree, debian_packages

MAX_FILES = 50_000
FOR_ALL = "-mtune=generic"
"""What stands in place of -march=native: an option, since an empty one would be a file's name."""
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
    native_scripts: list[str] = field(default_factory=list)
    dispatching: list[str] = field(default_factory=list)
    torch: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def cuda(self) -> bool:
        return bool(self.components)

    @property
    def prepare(self) -> str:
        """The text of `job/prepare.sh`, which corrects the build's files; empty: nothing does."""
        if not self.native_scripts:
            return ""
        names = " ".join(shlex.quote(name) for name in self.native_scripts)
        return (
            "# Written by `farm recipe new`: a wheel is for the CPUs of its variant, not for the "
            f"one that builds it.\nsed -i 's/{NATIVE}/{FOR_ALL}/g' -- {names}\n"
        )

    def _variables(self) -> dict[str, str]:
        """The variables of the build."""
        env = {}
        if self.cmake:
            env["CMAKE_GENERATOR"] = "Ninja"
        env |= dict.fromkeys(self.no_native, "1")
        if self.cuda:
            env |= {"CUDAARCHS": "{cmake_architectures}", "CUDA_HOME": "{cuda_home}"}
        if "driver_stub" in self.components:
            env["LIBRARY_PATH"] = "/usr/lib/x86_64-linux-gnu/stubs"
        if self.cuda and self.torch:
            env |= {"TORCH_CUDA_ARCH_LIST": "{arch_list}", "FORCE_CUDA": "{use_cuda}"}
        return env

    def recipe(self, wheels: list[dict[str, str]]) -> str:
        """The text of `recipe.yaml`."""
        recipe: dict[str, Any] = {
            "package": self.package,
            "summary": self.summary or self.package,
            "version": self.version,
            "source": self.source,
            "components": self.components,
            "device_code": self.kernels,
            "apt": sorted({*HINTS["apt"], *self.apt}),
        }
        if self.torch:
            recipe |= {"needs": ["torch"], "requires": ["torch=={torch_version}"]}
            recipe["exclude"] = ["libc10*.so", "libtorch*.so"]  # torch loaded them
        if wheels:
            recipe["build_requires"] = wheels
        recipe["env"] = self._variables()
        recipe["memory_per_job_gb"] = 1.0
        if self.cuda or self.torch:
            recipe["memory_per_job_gb"] = 2.0
        recipe["vendor_into"] = f"{re.sub(r'[^A-Za-z0-9]+', '_', self.package)}.libs"
        recipe |= HINTS["recipe"]
        if self.dispatching:
            recipe["verify"] = {"dispatching": self.dispatching}
        recipe["smoke"] = {"imports": self.imports}
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
        text = ""
        if "pyproject.toml" in tree.names:
            text = tree.read_bytes("pyproject.toml").decode()
        data = tomllib.loads(text)
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
            members = {}
            for member in islice(filter(tarfile.TarInfo.isreg, archive), MAX_FILES):
                members[member.name.partition("/")[2]] = member

            def read(name: str) -> bytes:
                return cast(IO[bytes], archive.extractfile(members[name])).read(MAX_FILE)

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
    needs = list(map(str, metadata.get_all("Requires-Dist") or []))
    torch = "torch" in requires or any(re.match(r"torch\b(?![-_.])", need) for need in needs)
    if torch:
        requires |= set(HINTS["torch_imports"])
    if kind.needs_cython and not _has_cython(requires):
        requires.add("Cython")
    if not anyway:
        kind.refuse(package, requires)

    outside = _outside_headers(kind)
    components = _components(kind, outside)
    packages, unknown = kind.system_libraries
    apt = packages | _entries(HINTS["headers"], outside)
    if any(need.startswith("meson-python") for need in requires):
        apt.add("patchelf")
    notes += _notes(kind, needs, unknown, device_code=bool(components))
    # Its own variable against -march=native, which verify refuses: HNSWLIB_NO_NATIVE.
    no_native = re.findall(r"environ\S*[\"'](\w*NO_NATIVE\w*)[\"']", tree.text("setup.py"))
    native_scripts: list[str] = []
    if not no_native:
        native_scripts = kind.native_scripts
    dispatching = _dispatching(kind)
    imports = _modules(tree, package)
    notes += _notes_of_cpu(native_scripts, dispatching)
    if not imports:
        notes.append("no module was found: name one under smoke.imports, or a script")
    return Proposal(
        folder=canonicalize_name(package),
        package=package,
        version=version,
        summary=short(metadata["Summary"] or ""),
        licence=kind.licence(metadata),
        source=source,
        requires=requires,
        apt=apt,
        components=components,
        kernels=kind.has_device_code,
        imports=imports,
        cmake="CMakeLists.txt" in {PurePosixPath(name).name for name in kind.own_names},
        no_native=no_native,
        native_scripts=native_scripts,
        dispatching=dispatching,
        torch=torch,
        notes=notes,
    )


def _has_cython(requires: Iterable[str]) -> bool:
    return any(re.match(r"(?i)cython\b", need) for need in requires)


def _notes_of_cpu(native_scripts: list[str], dispatching: list[str]) -> Iterator[str]:
    """What the recipe does about code for other CPUs than the variant's."""
    if native_scripts:
        yield (
            f"{' and '.join(native_scripts)}: {NATIVE}, code for the CPU of the machine that "
            f"builds, which verify refuses: job/prepare.sh replaces it with {FOR_ALL}"
        )
    if dispatching:
        yield (
            "its code asks the CPU at run time and has parts for newer ones: of "
            f"{', '.join(dispatching)} only what runs on loading is held to the CPU level (verify: "
            "dispatching in the recipe); a smoke.script that calls it tries the rest on an "
            "emulated CPU"
        )


def _entries(table: Mapping[str, str], names: Iterable[str]) -> set[str]:
    """The entries of a table for those of the names that it has."""
    entries = set()
    for name in names:
        if name in table:
            entries.add(table[name])
    return entries


def _outside_headers(kind: PackageKind) -> set[str]:
    """The headers that the package's own code includes and its source does not hold."""
    tree = kind.tree
    includes = set(re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', kind.code, re.MULTILINE))
    cython = r"""^\s*cdef extern from ["']([^"']+)["']"""
    includes |= set(re.findall(cython, kind.code, re.MULTILINE))
    scripts = tree.text("setup.py") + tree.text("meson.build")
    includes |= set(re.findall(r"""["']([\w/]+\.h)["']""", scripts))
    ends: set[str] = set()
    for name in tree.names:
        if not OTHER_SYSTEMS.search(name):
            path = name
            while path:
                ends.add(path)
                path = path.partition("/")[2]
    return includes - ends


def _dispatching(kind: PackageKind) -> list[str]:
    """Patterns of the members with code that chooses by the CPU at run time.

    They are compiled from the package's own code, not its libraries.
    """
    if not kind.chooses_by_cpu:
        return []
    tree = kind.tree
    patterns = []
    for module in dict.fromkeys(_module_names(tree)):
        if any(f"/{name}".endswith(f"/{module}/__init__.py") for name in tree.names):
            patterns.append(f"{module}/*.so")
        else:
            patterns += [f"{module}.cpython-*.so", f"{module}.abi3.so"]
    return patterns


def _components(kind: PackageKind, outside: set[str]) -> list[str]:
    """The components of CUDA that the build needs; none where it is not about CUDA."""
    setup = kind.tree.text("setup.py")
    host_code = {"cuda.h", "cuda_runtime.h"} & outside and re.search(r"(?i)cuda", setup)
    if not (kind.has_device_code or host_code):
        return []
    components = sorted(_entries(HINTS["components"], outside))
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
    if unknown:
        yield (
            f"the build may ask for {', '.join(unknown)}: where the first submit misses one, add "
            "its Debian package to apt"
        )
    if kind.fetched:
        packages = sorted(_entries(debian_packages(), map(str.lower, kind.fetched)))
        apt = ""
        if packages:
            apt = f"; Debian has {', '.join(packages)}"
        yield (
            f"CMake may fetch {', '.join(kind.fetched)} while it configures, and a build has no "
            f"network: Debian's package in apt{apt}, the project's own option for an installed one "
            "in env (for scikit-build-core: SKBUILD_CMAKE_ARGS: "
            "-DFETCHCONTENT_TRY_FIND_PACKAGE_MODE=ALWAYS), or its source by job/prepare.sh"
        )


def _requirements(tree: Tree, imports: dict[str, str]) -> tuple[set[str], list[str]]:
    """Requirements of the build; without [build-system] those that setup.py imports."""
    notes: list[str] = []
    data = pyproject_of(tree)
    stated = data.build_system.requires
    names = set[str]()
    if stated is None:
        stated = ["setuptools", "wheel"]
        names |= _imported(tree.text("setup.py"), imports)
    for text in stated:
        need = read_requirement(text)
        if need.url:  # pip would fetch what it names, and run it
            notes.append(
                f"pyproject.toml requires {text!r}: add its wheel to build_requires by hand"
            )
        elif need.marker is None or need.marker.evaluate():
            names.add(_without_marker(need))
    if any(need.startswith("setuptools") for need in names):
        # A newer setuptools takes the image's else, which is too old for it.
        names.add("packaging>=24.2")
    if any(map(_takes_newest_setuptools, names)):
        # The image's old wheel would write its own version of METADATA over that of setuptools.
        names.add("wheel>=0.46")
    cmake = _least_cmake(tree, data)
    if cmake > Version(".".join(map(str, HINTS["debian_cmake"]))):
        names.add(f"cmake>={cmake}")
    return names, notes


def _imported(setup: str, imports: Mapping[str, str]) -> set[str]:
    """The requirements of what setup.py imports."""
    requirements = set()
    for name, requirement in imports.items():
        if re.search(rf"^\s*(from|import) {name}\b", setup, re.MULTILINE):
            requirements.add(requirement)
    return requirements


def _without_marker(need: Requirement) -> str:
    """A requirement as text; the channel decides the version of torch."""
    if need.name == "torch":
        return "torch"
    return str(need).partition(";")[0].strip()


def _least_cmake(tree: Tree, data: PyProject) -> Version:
    """The newest CMake that a source asks for."""
    versions = re.findall(
        r"(?i)cmake_minimum_required\s*\(\s*VERSION\s+(\d{1,4}\.\d{1,4})",
        tree.text("CMakeLists.txt"),
    )
    scikit = json.dumps(data.tool.get("scikit-build"), default=str)
    versions += re.findall(r'"cmake[^}]*?"[=><~ ]*(\d{1,4}\.\d{1,4})', scikit)
    return max(map(Version, versions), default=Version("0"))


def _takes_newest_setuptools(requirement: str) -> bool:
    need = read_requirement(requirement)
    return need.name == "setuptools" and need.specifier.contains("9999")


def _modules(tree: Tree, package: str) -> list[str]:
    """The module to import: the one called like the package, else the first of those that the
    source holds.
    """
    names = _module_names(tree)
    like = re.sub(r"[-_.]+", "", package).lower()
    same_name = [name for name in names if name.replace("_", "").lower() == like]
    public = [name for name in names if not name.startswith("_")]
    same_name.sort(key=lambda name: name not in public)  # an extension may be called _NAME
    return (same_name or public or names)[:1]


def _module_names(tree: Tree) -> list[str]:
    """The modules that the source's metadata names, and its packages."""
    names: list[str] = []
    for name in tree.names:
        if name.endswith(".egg-info/top_level.txt"):
            names += tree.text(name).split()
            break
    for name in tree.names:
        parts = PurePosixPath(name).parts
        if parts[0] in ("src", "python", "lib", "source"):
            parts = parts[1:]
        if len(parts) != 2:
            continue
        folder, file = parts
        if file in ("__init__.py", "__init__.pyi") and folder not in HINTS["no_package"]:
            names.append(folder)
    return [name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)]
