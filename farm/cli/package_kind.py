"""What a package is, before a recipe is written: which files are its own, what it is compiled from,
which libraries of the system it asks for, and why the farm cannot build it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from pathlib import Path, PurePosixPath

from farm.base.errors import NotBuildableError
from farm.base.text import short
from farm.base.yamlfile import plain

HINTS = plain(Path(__file__).with_name("recipe_hints.yaml"))
MAX_FILE = 1 << 20
"""Bytes that are read of a file."""
MAX_READ = 64 << 20
"""Bytes that are read of all code."""
BUILD_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "meson.build", "CMakeLists.txt")
"""Files at the top of a source that say what is built."""
PROGRAMS = {"setup.py", "meson.build", "CMakeLists.txt"}
"""Those of them that can say it step by step."""
MAX_DEPTH = 3
"""Folders below the top in which CMake's and Meson's files are the package's own."""
NATIVE_WORDS = re.compile(
    r"ext_modules|cffi_modules|Extension\(|rust_extensions|rust-extensions|ext-modules"
)
"""What setup.py or pyproject.toml says of a package that compiles something."""
FETCHED = re.compile(
    r"\b(?:FetchContent_Declare|ExternalProject_Add|CPMAddPackage)\s*\(\s*(?:NAME\s+)?[\"']?"
    r"([A-Za-z][\w.-]{0,59})",
    re.IGNORECASE,
)
ASKED = (
    re.compile(r"\bfind_package\s*\(\s*(\w{1,40})", re.IGNORECASE),
    re.compile(r"\bpkg_(?:check|search)_module[s]?\s*\(\s*\w+\s+(?:[A-Z_]+\s+)*([\w.-]{1,40})"),
    re.compile(r"\bdependency\s*\(\s*['\"]([\w.-]{1,40})['\"]"),
)
"""How CMake and Meson ask for a library of the system."""
ASKS_THE_CPU = re.compile(
    r"\b(?:__get_cpuid\w*|__cpuid(?:ex|_count)?|__builtin_cpu_(?:init|is|supports)|_?xgetbv)\b"
)
"""How code in C asks the CPU at run time what it can do."""
NEWER_CODE = re.compile(
    r"\b(?:[a-z]mm|x86)intrin\.h\b|\b__target__\b|\btarget(?:_clones)?\s*\(\s*\"|-mavx|-msse[34]"
)
"""How a part of the code is compiled for newer CPUs than the rest."""
NATIVE = "-march=native"
RUST_BACKENDS = ("maturin", "setuptools-rust", "setuptools_rust")
LICENCE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "COPYING", "COPYING.txt")
MAX_LICENCE = 80


@dataclass(frozen=True)
class Tree:
    """The files of a source by their paths below its top, which `place` names in errors."""

    place: str
    names: tuple[str, ...]
    read_bytes: Callable[[str], bytes]

    def text(self, name: str) -> str:
        if name in self.names:
            return self.read_bytes(name)[:MAX_FILE].decode("utf-8", "replace")
        return ""


@dataclass(frozen=True)
class PackageKind:
    """The files of a source, told apart."""

    tree: Tree

    @cached_property
    def build_text(self) -> str:
        """The text of the build's files at the top, without comments."""
        return "\n".join(map(self._without_comments, BUILD_FILES))

    @cached_property
    def own_names(self) -> tuple[str, ...]:
        """The files that the build may compile.

        Copies of other projects, tests and examples count where the build's files name them.
        """
        return tuple(filter(self._is_own, self.tree.names))

    def _is_own(self, name: str) -> bool:
        folders = PurePosixPath(name).parts[:-1]
        for place, folder in enumerate(folders):
            if folder.lower() not in HINTS["vendored"]:
                continue
            copy = "/".join(folders[place : place + 2])
            if not re.search(rf"(?<![\w-]){re.escape(copy)}(?![\w-])", self.build_text):
                return False
        return True

    @cached_property
    def script_names(self) -> tuple[str, ...]:
        """The package's own CMake and Meson files."""
        names = []
        for name in self.own_names:
            is_script = name.endswith(("CMakeLists.txt", ".cmake", "meson.build"))
            if is_script and name.count("/") < MAX_DEPTH:
                names.append(name)
        return tuple(names)

    @cached_property
    def build_scripts(self) -> str:
        """The text of the package's own CMake and Meson files, without comments."""
        return "\n".join(map(self._without_comments, self.script_names))

    @cached_property
    def code(self) -> str:
        """The text of the package's own code, of a bounded size."""
        remaining = MAX_READ
        texts = []
        for name in self.own_names:
            if name.endswith(tuple(HINTS["code"])) and remaining > 0:
                texts.append(self.tree.text(name))
                remaining -= len(texts[-1])
        return "\n".join(texts)

    @property
    def needs_cython(self) -> bool:
        """True if a file of Cython comes without the C that it becomes."""
        names = set(self.own_names)
        for name in self.own_names:
            stem, _, ending = name.rpartition(".")
            if ending == "pyx" and not names & {f"{stem}.c", f"{stem}.cpp", f"{stem}.cc"}:
                return True
        return False

    @property
    def chooses_by_cpu(self) -> bool:
        """True if its code asks the CPU at run time, and has parts for newer ones."""
        if not ASKS_THE_CPU.search(self.code):
            return False
        return bool(NEWER_CODE.search(self.code + self.build_text + self.build_scripts))

    @property
    def native_scripts(self) -> list[str]:
        """The build's own files that ask for code for the CPU of the machine."""
        names = dict.fromkeys((*BUILD_FILES, *self.script_names))
        return [name for name in names if NATIVE in self._without_comments(name)]

    @property
    def has_device_code(self) -> bool:
        """True if files of CUDA are its own, and its build speaks of CUDA."""
        return self.wants_cuda and any(map(_is_cuda, self.own_names))

    @property
    def wants_cuda(self) -> bool:
        """True if the build's scripts speak of CUDA, or there are none that could."""
        if not PROGRAMS.intersection(self.tree.names):
            return True
        return bool(re.search(r"(?i)cuda|nvcc|\.cu\b", self.build_text + self.build_scripts))

    @property
    def foreign_device_code(self) -> str | None:
        """A folder with files of CUDA that are not its own."""
        own_names = set(self.own_names)
        for name in self.tree.names:
            if _is_cuda(name) and (name not in own_names or not self.wants_cuda):
                return "/".join(PurePosixPath(name).parts[:2])
        return None

    @property
    def fetched(self) -> list[str]:
        """Downloads that the package's own CMake files declare."""
        return sorted(set(FETCHED.findall(self.build_scripts)))[:5]

    @property
    def system_libraries(self) -> tuple[set[str], list[str]]:
        """Debian's packages of the libraries that the build asks for, and libraries without an
        entry in the list.
        """
        packages_by_name = debian_packages()
        packages = set()
        unknown = set()
        for pattern in ASKED:
            for name in pattern.findall(self.build_scripts):
                key = name.lower()
                if key in packages_by_name:
                    packages.add(packages_by_name[key])
                elif key not in HINTS["no_library"]:
                    unknown.add(name)
        return packages, sorted(unknown)[:5]

    def refuse(self, package: str, requires: set[str]) -> None:
        """Refuse a package that the farm cannot build, before anything is written.

        Raises:
            NotBuildableError: It is in Rust, in Python alone, or finished libraries.
        """
        hint = "farm recipe new --anyway writes the recipe all the same"
        if self._is_rust(requires):
            raise NotBuildableError(
                f"{package} is built from Rust: its crates come from the network, which a build "
                "does not have, and Debian's rustc is too old for most",
                hint=f"take its own wheel: pip install {package}; {hint}",
            )
        compiled = tuple(HINTS["compiled"])
        if any(name.endswith(compiled) for name in self.own_names):
            return
        endings = (".so", ".dll", ".pyd", ".dylib")
        libraries = [name for name in self.tree.names if name.endswith(endings)]
        if libraries:
            raise NotBuildableError(
                f"{package} holds {len(libraries)} finished libraries, such as {libraries[0]}, and "
                "no source of them: there is nothing to build",
                hint=f"build from its repository: `source: {{kind: git, …}}` in a recipe; {hint}",
            )
        if not NATIVE_WORDS.search(self.build_text) and not self.build_scripts:
            raise NotBuildableError(
                f"{package} is Python alone: there is nothing to compile, and its own wheel runs "
                "on every machine",
                hint=f"pip install {package}; {hint}",
            )

    def _is_rust(self, requires: set[str]) -> bool:
        if any(need.lower().startswith(RUST_BACKENDS) for need in requires):
            return True
        # zstandard's sdist has a crate beside its extension in C.
        endings = {PurePosixPath(name).suffix for name in self.own_names}
        return "Cargo.toml" in self.tree.names and not endings & {*HINTS["compiled"]} - {".rs"}

    def licence(self, metadata: Message) -> str:
        """The licence, in a few words: of the metadata, else of a licence file's first line."""
        stated = str(metadata["License-Expression"] or "") or str(metadata["License"] or "")
        title = _first_line(stated)
        if title and title.upper() != "UNKNOWN" and len(title) <= MAX_LICENCE:
            return short(title)
        for text in metadata.get_all("Classifier") or []:
            if text.startswith("License ::") and text.count("::") > 1:
                return short(text.rpartition(" :: ")[2])
        return self._title_of_licence()

    def _title_of_licence(self) -> str:
        """The first line of a licence file."""
        for name in LICENCE_FILES:
            head = self.tree.text(name).splitlines()[:20]
            title = _first_line("\n".join(head), also=" #\t")
            if title:
                return short(title)[:MAX_LICENCE]
        return ""

    def _without_comments(self, name: str) -> str:
        """The text of a build's file."""
        return re.sub(r"(?m)#.*$", "", self.tree.text(name))


def debian_packages() -> dict[str, str]:
    """Debian's packages by the names of libraries, in lower case."""
    return {name.lower(): package for name, package in HINTS["libraries"].items()}


def _is_cuda(name: str) -> bool:
    return name.endswith((".cu", ".cuh"))


def _first_line(text: str, also: str | None = None) -> str:
    """The first line that is not empty; `also`: what is cut off at both ends."""
    for line in text.splitlines():
        stripped = line.strip(also)
        if stripped:
            return stripped
    return ""
