"""Commands that write into a project: `farm init` a small one to start from, `farm recipe new` a
recipe.

`recipe new` reads an sdist of the Python index or a folder and runs none of it: what `setup.py`
decides while it runs is not known. So the recipe is a proposal, and the first `farm submit` shows
what it lacks.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser
from importlib import metadata
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, cast
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import yaml
from packaging.requirements import InvalidRequirement
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version
from pydantic import AfterValidator, Field, ValidationError

from farm.base import outputs, resources
from farm.base.errors import BuildFailedError, InfrastructureError, UsageError
from farm.base.hashes import tree_files
from farm.base.requirement import read_requirement
from farm.base.text import nearest, short
from farm.base.yamlfile import Model, checked, first_fault, pattern, plain
from farm.cli import show
from farm.cli.selection import project_of
from farm.plan.file import SourcePlan
from farm.plan.matrix import Channel, Matrix, load_matrix
from farm.plan.recipe import Recipe, source_fault, use_project
from farm.run.inputs import fetch, index_files

WORKFLOW = Path(".github", "workflows", "wheels.yml")
_REACHABLE = re.compile(r"(https|ssh)://(git@)?[A-Za-z0-9.-]+(:[0-9]{1,5})?/[A-Za-z0-9._~/%+-]+")
"""An address that another machine can fetch, without a password in it."""
HINTS = plain(Path(__file__).with_name("recipe_hints.yaml"))
NAMES = "name what to build: NAME, NAME==VERSION, or ./FOLDER"
RELEASE = r"\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?"
MAX_FILE = 1 << 20
MAX_READ = 64 << 20
MAX_FILES = 50_000
OTHER_SYSTEMS = re.compile(
    r"(?:^|/)(?:win(?:32|64|dows)?|msvc[^/]*|mac(?:os)?|osx)/", re.IGNORECASE
)
"""Folders with a copy of a header that is not for Linux: pyFFTW has `include/win/fftw3.h`."""


def run_init(args: argparse.Namespace) -> int:
    """Copy the example; a file that is already there is an error. Nothing is left if it fails."""
    files = sorted(
        path.relative_to(resources.EXAMPLE)
        for path in resources.EXAMPLE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    if os.path.lexists(args.folder / "README.md"):
        files.remove(Path("README.md"))  # a repository has its own
    for file in files:
        # All are looked at before the first is written: a half-made project would be the user's to
        # clean up.
        if taken := _taken(args.folder / file):
            raise UsageError(
                f"{taken} is already there: nothing was written",
                hint="farm init DIR, with a new folder",
            )
    contents = {file: (resources.EXAMPLE / file).read_bytes() for file in files}
    farm = _this_farm()
    if farm:
        contents[WORKFLOW] = contents[WORKFLOW].replace(
            b'FARM: ""', f"FARM: {json.dumps(farm)}".encode()
        )
    outputs.write(args.folder, contents)
    if str(args.folder).startswith("-"):
        folder = f"./{args.folder}"
    else:
        folder = str(args.folder)
    enter = "" if args.folder == Path() else f"cd {shlex.quote(folder)} && "
    lines: list[object] = [args.folder / file for file in files]
    if not farm:
        lines.append(
            f"{args.folder / WORKFLOW}: write into FARM which farm it installs, with its commit "
            "or hash"
        )
    lines += [
        "",
        f"next: {enter}farm doctor && farm submit --variant cpu-avx-py311 --package hello",
    ]
    document = {"folder": str(args.folder.absolute()), "files": [file.as_posix() for file in files]}
    show.answer(args, document, lines)
    return 0


def _this_farm() -> str | None:
    """The requirement by which pip installs this very farm elsewhere; None where that is not known.

    From PEP 610's record of the installation: a commit, an archive with its hash, or a clone
    without changes.
    """
    try:
        text = metadata.distribution("torch-farm").read_text("direct_url.json")
        record = json.loads(text or "{}")
        url = record["url"]
        commit = record.get("vcs_info", {}).get("commit_id")
        sha256 = record.get("archive_info", {}).get("hashes", {}).get("sha256")
        if "dir_info" in record:
            url, commit = _clone(Path(url2pathname(urlsplit(url).path)))
    except (
        metadata.PackageNotFoundError,
        ValueError,
        KeyError,
        OSError,
        subprocess.SubprocessError,
    ):
        return None
    if not _REACHABLE.fullmatch(url):
        return None
    if commit and re.fullmatch(r"[0-9a-f]{40}", commit):
        return f"git+{url}@{commit}"
    if sha256 and re.fullmatch(r"[0-9a-f]{64}", sha256):
        return f"torch-farm @ {url}#sha256={sha256}"
    return None


def _clone(folder: Path) -> tuple[str, str]:
    """The address that a clone came from and its commit; of one with changes of its own neither."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()

    if not (folder / ".git").exists() or git("status", "--porcelain", "--untracked-files=no"):
        return "", ""
    return git("remote", "get-url", "origin"), git("rev-parse", "HEAD")


def _taken(target: Path) -> str | None:
    """The path that is in the way of the file or one of its folders, a link that leads nowhere
    included.
    """
    if os.path.lexists(target):
        return str(target)
    return next(
        (
            f"the file {part}"
            for part in target.parents
            if os.path.lexists(part) and not part.is_dir()
        ),
        None,
    )


def run_recipe(args: argparse.Namespace) -> int:
    """Write `recipes/NAME/recipe.yaml`, add it to the channel and say what the sources do not
    tell.
    """
    project, settings = project_of(args)
    use_project(project)
    channels = load_matrix(project)
    channel = channels.channels[_channel_name(project, args.channel)]
    python = channel.builds[0].variant.python
    if re.match(r"[./~]", args.source) or Path(args.source).is_dir():
        proposal = _of_folder(Path(args.source).expanduser(), project)
    else:
        proposal = _of_index(
            args.source, _version(python), project / settings.artifacts / "sources", show.note
        )
    target = project / "recipes" / proposal.folder / "recipe.yaml"
    if target.parent.exists():
        raise UsageError(
            f"{target.parent} is already there: nothing was written",
            hint="change it, or remove it first",
        )
    text = proposal.recipe(_resolved(sorted(proposal.requires - {"torch"}), python)).encode()
    checked(target, text, Recipe)
    files = {target.relative_to(project): text}
    matrix = project / "ci" / "matrix.yaml"
    torch = _torch_for(channels, channel) if proposal.torch else None
    if proposal.torch and not channel.text.official:
        release = torch or channel.text.options["torch"]
        proposal.notes.append(
            f"it is built against torch {release} of this farm, which takes hours; against "
            "PyTorch's own wheel with "
            "`official:` in the channel (docs/your-package.md)"
        )
    changed = _with_package(
        matrix.read_text(encoding="utf-8"), channel.name, proposal.folder, torch
    )
    if changed is None:
        proposal.notes.append(
            f"add {proposal.folder} to `packages` of the channel {channel.name} in ci/matrix.yaml"
        )
    else:
        files[Path("ci", "matrix.yaml")] = changed.encode()
    outputs.write(project, files)
    show.say(target)
    for note in proposal.notes:
        show.say(f"note: {note}")
    variant = _variant(channel, proposal.cuda and not proposal.torch)
    show.say(f"next: farm submit --variant {variant} --package {proposal.folder}")
    return 0


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


def _pyproject(tree: Tree) -> PyProject:
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


def _version(python: str) -> str:
    """`3.11` of the variant's word `py311`."""
    return f"{python[2]}.{python[3:].rstrip('t')}"


def _of_index(wanted: str, python: str, cache: Path, line: Callable[[str], None]) -> Proposal:
    try:
        need = read_requirement(wanted)
    except InvalidRequirement as error:
        raise UsageError(f"{short(wanted)!r} is not the name of a package", hint=NAMES) from error
    sdists = {}
    try:
        files = index_files(need.name, python)
    except BuildFailedError as error:  # its hint is about a recipe, and there is none yet
        near = nearest(
            need.name, [path.name for path in sorted(Path.cwd().iterdir()) if path.is_dir()], 1
        )
        what = f"no folder and no package {need.name!r} was found: {error}"
        raise UsageError(what, hint=f"farm recipe new ./{near[0]}" if near else NAMES) from error
    for file, sha256 in files.items():
        try:
            version = parse_sdist_filename(file)[1]
        except InvalidSdistFilename:
            continue
        if sha256 and need.specifier.contains(version, prereleases=bool(need.specifier)):
            sdists[version] = (file, sha256)
    if not sdists:
        raise UsageError(
            f"the Python index has no sdist of {wanted} for Python {python}",
            hint="name another version",
        )
    version, (file, sha256) = max(sdists.items())
    cache.mkdir(parents=True, exist_ok=True)
    plan = SourcePlan(kind="sdist", package=need.name, file=file, sha256=sha256)
    packed = fetch(plan, cache, mirror=None, line=line)
    with _unpacked(packed) as tree:
        metadata = HeaderParser().parsestr(tree.text("PKG-INFO"))
        package = str(metadata["Name"] or "")
        if canonicalize_name(package) != canonicalize_name(
            need.name
        ):  # a stranger's text: no other name, nor lines
            package = need.name
        return _read(
            tree,
            package,
            str(version),
            plan.model_dump(exclude_none=True, exclude_defaults=True),
            metadata,
        )


def _of_folder(folder: Path, project: Path) -> Proposal:
    if fault := source_fault(folder.resolve(), project.resolve()):
        raise UsageError(fault[0], hint=fault[1])
    names = tuple(file.relative_to(folder).as_posix() for file in tree_files(folder)[:MAX_FILES])
    tree = Tree(str(folder), names, lambda name: (folder / name).read_bytes())
    if not {"pyproject.toml", "setup.py"} & {*names}:
        raise UsageError(
            f"{folder} has neither pyproject.toml nor setup.py",
            hint="name the package's own folder",
        )
    about = _pyproject(tree).project
    package = (
        about.name
        or re.sub(r"[^A-Za-z0-9]+", "-", folder.resolve().name)[:60].strip("-")
        or "package"
    )
    relative = os.path.relpath(
        folder.resolve(), project.resolve() / "recipes" / canonicalize_name(package)
    )
    metadata = HeaderParser().parsestr("")
    metadata["Summary"] = about.description
    for need in about.dependencies:
        metadata["Requires-Dist"] = need
    files = f"{tree.text('pyproject.toml')}\n{tree.text('setup.cfg')}"
    head = r"^\[(?:metadata|tool\.poetry)\][^\[]*?^version\s*=\s*[\"']?"
    written = re.findall(rf"(?m){head}({RELEASE})[\"']?\s*$", files)
    written += re.findall(
        rf"(?m)^[^#\n]*\bversion\s*=\s*[\"']({RELEASE})[\"']", tree.text("setup.py")
    )
    version = about.version or next(iter(written), "0.1.0")
    proposal = _read(tree, package, version, {"kind": "path", "path": relative}, metadata)
    if not about.version and not written:
        proposal.notes.append(
            "no version in pyproject.toml, setup.cfg or setup.py: correct the recipe's 0.1.0"
        )
    return proposal


@contextmanager
def _unpacked(packed: Path) -> Iterator[Tree]:
    """An sdist's files, read where they are: nothing is unpacked."""
    try:
        with tarfile.open(packed) as archive:
            files = islice((member for member in archive if member.isreg()), MAX_FILES)
            members = {member.name.partition("/")[2]: member for member in files}
            read = lambda name: cast(IO[bytes], archive.extractfile(members[name])).read(MAX_FILE)  # noqa: E731
            yield Tree(packed.name, tuple(members), read)
    except (tarfile.TarError, EOFError) as error:
        raise UsageError(f"{packed.name} cannot be read: {error}") from error


def _read(
    tree: Tree, package: str, version: str, source: dict[str, str], metadata: Message
) -> Proposal:
    """Requirements, libraries, CUDA, modules and licence, as the sources state them."""
    code = "\n".join(_code(tree))
    includes = set(re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', code, re.MULTILINE))
    includes |= set(re.findall(r"""^\s*cdef extern from ["']([^"']+)["']""", code, re.MULTILINE))
    includes |= set(
        re.findall(r"""["']([\w/]+\.h)["']""", tree.text("setup.py") + tree.text("meson.build"))
    )
    here = [f"/{own}" for own in tree.names if not OTHER_SYSTEMS.search(own)]
    outside = {name for name in includes if not any(own.endswith(f"/{name}") for own in here)}
    requires, notes = _requirements(tree, HINTS["imports"])
    needs = [str(need) for need in metadata.get_all("Requires-Dist") or []]
    torch = "torch" in requires or any(re.match(r"torch\b(?![-_.])", need) for need in needs)
    kernels = any(name.endswith((".cu", ".cuh")) for name in tree.names)
    cuda = kernels or bool(
        {"cuda.h", "cuda_runtime.h"} & outside and re.search(r"(?i)cuda", tree.text("setup.py"))
    )
    if cuda:
        components = sorted(
            {HINTS["components"][name] for name in outside if name in HINTS["components"]}
        )
    else:
        components = []
    if (
        cuda
        and "cuda.h" in outside
        and re.search(r"""["']cuda["']|-lcuda\b""", tree.text("setup.py"))
    ):
        components.append(
            "driver_stub"
        )  # libcuda itself is the driver's, which no build machine has
    notes += [
        f"verify refuses {short(need)}: a patch or prepare.sh removes it"
        for need in needs
        if " @ " in need
    ]
    if any(PurePosixPath(name).name == "Cargo.toml" for name in tree.names):
        notes.append(
            "it has Rust code: a build has no network for crates, and Debian's rustc is 1.63"
        )
    if fetched := _fetched(tree):
        notes.append(
            f"CMake may fetch {fetched} while it configures, and a build has no network: Debian's "
            "package in apt, "
            "the project's own option for an installed one in env, or its source by job/prepare.sh"
        )
    imports = _modules(tree, package)
    if not imports:
        notes.append("no module was found: name one under smoke.imports, or a script")
    classes = [
        text for text in metadata.get_all("Classifier") or [] if text.startswith("License ::")
    ] or [""]
    licence = (
        metadata["License-Expression"] or metadata["License"] or classes[0].rpartition(" :: ")[2]
    )
    apt = {HINTS["headers"][name] for name in outside if name in HINTS["headers"]}
    if any(need.startswith("meson-python") for need in requires):
        apt.add("patchelf")
    return Proposal(
        folder=canonicalize_name(package),
        package=package,
        version=version,
        summary=short(metadata["Summary"] or ""),
        licence=short(licence or "")[:80],
        source=source,
        requires=requires | ({*HINTS["torch_imports"]} if torch else set()),
        apt=apt,
        components=["nvcc", "headers", "cudart", *components] if cuda else [],
        kernels=kernels,
        imports=imports,
        cmake=any(PurePosixPath(name).name == "CMakeLists.txt" for name in tree.names),
        # Its own variable against -march=native, which verify refuses: HNSWLIB_NO_NATIVE.
        no_native=re.findall(r"environ\S*[\"'](\w*NO_NATIVE\w*)[\"']", tree.text("setup.py")),
        torch=torch,
        notes=notes,
    )


def _fetched(tree: Tree) -> str:
    """Downloads that the package's own CMake files declare."""
    files = [
        name
        for name in tree.names
        if name.endswith(("CMakeLists.txt", ".cmake")) and name.count("/") < 3
    ]
    code = re.sub("#.*", "", "\n".join(map(tree.text, files)))
    names = re.findall(
        r"(?i)\b(?:FetchContent_Declare|ExternalProject_Add|CPMAddPackage)\s*\(\s*([\w.-]{1,60})",
        code,
    )
    return ", ".join(sorted({*names})[:5])


def _code(tree: Tree) -> Iterator[str]:
    left = MAX_READ
    for name in tree.names:
        if name.endswith(tuple(HINTS["code"])) and left > 0:
            text = tree.text(name)
            left -= len(text)
            yield text


def _requirements(tree: Tree, imports: dict[str, str]) -> tuple[set[str], list[str]]:
    """Requirements of the build; without [build-system] those that setup.py imports."""
    notes: list[str] = []
    data = _pyproject(tree)
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
    listed = next(
        (tree.text(name) for name in tree.names if name.endswith(".egg-info/top_level.txt")), ""
    )
    names = listed.split()
    for name in tree.names:
        parts = PurePosixPath(name).parts
        if parts[0] in ("src", "python", "lib", "source"):
            below = parts[1:]
        else:
            below = parts
        if (
            len(below) == 2
            and below[1] in ("__init__.py", "__init__.pyi")
            and below[0] not in HINTS["no_package"]
        ):
            names.append(below[0])
    names = [name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)]
    like = re.sub(r"[-_.]+", "", package).lower()
    named = [name for name in names if name.replace("_", "").lower() == like]
    return (named or [name for name in names if not name.startswith("_")] or names)[:1]


def _resolved(requirements: list[str], python: str) -> list[dict[str, str]]:
    """Wheels for these requirements and theirs, for a Python of Debian 12, as pip finds them; each
    with its sha256.
    """
    tags = [f"manylinux_2_{n}_x86_64" for n in range(HINTS["glibc"], 4, -1)] + [
        "manylinux2014_x86_64"
    ]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
    ]
    command += [
        "--disable-pip-version-check",
        "--only-binary=:all:",
        "--target",
        "unused",
        "--implementation",
        "cp",
    ]
    command += [f"--python-version={_version(python)}", *(f"--platform={tag}" for tag in tags)]
    if not requirements:
        return []
    answer = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if answer.returncode:
        text = "\n".join(f"    {line}" for line in answer.stderr.strip().splitlines()[-5:])
        raise InfrastructureError(
            f"pip finds no wheels for {', '.join(requirements)}:\n{text}",
            hint="check that the index can be reached, and that it has wheels of these for Linux",
        )
    wheels = []
    for item in json.loads(answer.stdout)["install"]:
        file = unquote(urlsplit(item["download_info"]["url"]).path.rpartition("/")[2])
        sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
        wheels.append({"package": item["metadata"]["name"], "file": file, "sha256": sha256})
    return sorted(wheels, key=lambda wheel: wheel["package"].lower())


def _channel_name(project: Path, name: str | None) -> str:
    """The channel that gets the package: one of the project's own file."""
    path = project / "ci" / "matrix.yaml"
    if path.is_file():
        own = list((yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("channels") or {})
    else:
        own = []
    if name in own:
        return str(name)
    if name is None and len(own) == 1:
        return str(own[0])
    if name:
        what = f"{path} has no channel {name!r}"
    else:
        what = f"{path} has {len(own)} channels"
    raise UsageError(
        what, hint=f"--channel {' or '.join(map(str, own))}" if own else "farm init writes one"
    )


def _with_package(text: str, channel: str, package: str, torch: str | None) -> str | None:
    """ci/matrix.yaml with the package, and a release of PyTorch, in its channel.

    None where the channel's packages are not written in one line.
    """
    head = rf"^  {re.escape(channel)}:.*\n(?:    .*\n|\n)*?"
    block = re.search(rf"{head}(    packages: \[)([^\]\n]*)\]", text, re.MULTILINE)
    if block is None:
        return None
    line = f'    torch: "{torch}"\n' if torch else ""
    listed = ", ".join(
        filter(None, [block[2].strip(), yaml.safe_dump([package], default_flow_style=True)[1:-2]])
    )
    return text[: block.start(1)] + line + block[1] + listed + text[block.end(2) :]


def _torch_for(matrix: Matrix, channel: Channel) -> str | None:
    """The release of PyTorch for a channel that names none: the newest that another channel has
    with its CUDA.
    """
    if channel.text.options.get("torch"):
        return None
    fitting = [
        c.text.options.get("torch")
        for c in matrix.channels.values()
        if set(c.cuda) & set(channel.cuda)
    ]
    return max(
        (str(r) for r in fitting if r),
        key=lambda release: [int(n) for n in release.split(".")],
        default=None,
    )


def _variant(channel: Channel, cuda: bool) -> str:
    """A variant to begin with: without a GPU, unless the package is about one."""
    variants = [build.variant for build in channel.builds]
    fitting = [v for v in variants if (v.gpu == "cpu") != cuda] or variants
    return str(next((v for v in fitting if v.cpu == "avx"), fitting[0]))
