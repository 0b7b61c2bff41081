"""`farm recipe new` and `remove`: write a recipe from an sdist of the Python index or a folder.

The sources are read and none of them is run: what `setup.py` decides while it runs is not known. So
the recipe is a proposal, and the first `farm submit` shows what it lacks.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from farm.base import outputs
from farm.base.errors import BuildFailedError, InfrastructureError, UsageError
from farm.base.hashes import tree_files
from farm.base.requirement import read_requirement
from farm.base.safe_files import open_plain
from farm.base.text import nearest, short
from farm.base.yamlfile import checked
from farm.catalog import number
from farm.cli import show
from farm.cli.package_kind import HINTS, MAX_FILE, Tree
from farm.cli.selection import project_of
from farm.cli.sources import MAX_FILES, Proposal, pyproject_of, read_sources, unpacked
from farm.plan.channel import Channel
from farm.plan.file import SourcePlan
from farm.plan.matrix import Matrix, load_matrix
from farm.plan.recipe import Recipe, source_fault, use_project
from farm.plan.settings import Settings
from farm.plan.variant import dotted_python
from farm.run.download import fetch, index_files

NAMES = "name what to build: NAME, NAME==VERSION, or ./FOLDER"
RELEASE = r"\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?"


def run_recipe(args: argparse.Namespace) -> int:
    """Write `recipes/NAME/recipe.yaml`, add it to the channel and say what the sources leave
    open.
    """
    project, settings = project_of(args)
    use_project(project)
    if args.action == "remove":
        return _remove(project, args.source)
    channels = load_matrix(project)
    channel = channels.channels[_channel_name(project, args.channel)]
    python = channel.builds[0].variant.python
    proposal = _read_package(args, project, settings, python)
    target = project / "recipes" / proposal.folder / "recipe.yaml"
    if target.parent.exists():
        raise UsageError(
            f"{target.parent} is already there: nothing was written",
            hint=f"change it, or `farm recipe remove {proposal.folder}` first",
        )
    text = proposal.recipe(_resolved(sorted(proposal.requires - {"torch"}), python)).encode()
    checked(target, text, Recipe)
    files = {target.relative_to(project): text}
    if proposal.prepare:
        script = target.parent / "job" / "prepare.sh"
        files[script.relative_to(project)] = proposal.prepare.encode()
    matrix_text = _changed_matrix(project, proposal, channels, channel)
    if matrix_text is not None:
        files[Path("ci", "matrix.yaml")] = matrix_text.encode()
    outputs.write(project, files)

    show.say(target)
    for note in proposal.notes:
        show.say(f"note: {note}")
    variant = _variant(channel, proposal.cuda and not proposal.torch)
    show.say(f"next: farm submit --variant {variant} --package {proposal.folder}")
    return 0


def _read_package(
    args: argparse.Namespace, project: Path, settings: Settings, python: str
) -> Proposal:
    """Read the sources of a folder, or of a project of the Python index."""
    if re.match(r"[./~]", args.source) or Path(args.source).is_dir():
        return _of_folder(Path(args.source).expanduser(), project, anyway=args.anyway)
    return _of_index(
        args.source,
        python_version(python),
        project / settings.artifacts / "sources",
        show.note,
        anyway=args.anyway,
    )


def _changed_matrix(
    project: Path, proposal: Proposal, channels: Matrix, channel: Channel
) -> str | None:
    """ci/matrix.yaml with the package in its channel; None, with a note, where it is to be added
    by hand.
    """
    torch = None
    if proposal.torch:
        torch = _torch_for(channels, channel)
    if proposal.torch and not channel.text.official:
        release = torch or channel.text.options["torch"]
        proposal.notes.append(
            f"it is built against torch {release} of this farm, which takes hours; against "
            "PyTorch's own wheel with `official:` in the channel "
            "(docs/tutorials/your-package.md)"
        )
    text = (project / "ci" / "matrix.yaml").read_text(encoding="utf-8")
    changed = _with_package(text, channel.name, proposal.folder, torch)
    if changed is None:
        proposal.notes.append(
            f"add {proposal.folder} to `packages` of the channel {channel.name} in ci/matrix.yaml"
        )
    return changed


def python_version(python: str) -> str:
    """`3.11` of the variant's word `py311`."""
    return dotted_python(python).rstrip("t")


def _of_index(
    wanted: str, python: str, cache: Path, line: Callable[[str], None], *, anyway: bool = False
) -> Proposal:
    try:
        need = read_requirement(wanted)
    except InvalidRequirement as error:
        raise UsageError(f"{short(wanted)!r} is not the name of a package", hint=NAMES) from error
    file, version, sha256 = _newest_sdist(need, wanted, python)
    cache.mkdir(parents=True, exist_ok=True)
    plan = SourcePlan(kind="sdist", package=need.name, file=file, sha256=sha256)
    packed = fetch(plan, cache, mirror=None, line=line)
    with unpacked(packed) as tree:
        metadata = HeaderParser().parsestr(tree.text("PKG-INFO"))
        package = str(metadata["Name"] or "")
        # It is a stranger's text: neither another name nor lines.
        if canonicalize_name(package) != canonicalize_name(need.name):
            package = need.name
        source = plan.model_dump(exclude_none=True, exclude_defaults=True)
        return read_sources(tree, package, str(version), source, metadata, anyway=anyway)


def _newest_sdist(need: Requirement, wanted: str, python: str) -> tuple[str, Version, str]:
    """The newest sdist of the index that meets a requirement: its file, version and hash."""
    try:
        files = index_files(need.name, python)
    except BuildFailedError as error:  # its hint is about a recipe, and there is none yet
        problem = f"no folder and no package {need.name!r} was found: {error}"
        raise UsageError(problem, hint=_near_folder(need.name)) from error
    sdists = []
    for file, sha256 in files.items():
        try:
            version = parse_sdist_filename(file)[1]
        except InvalidSdistFilename:
            continue
        if sha256 and need.specifier.contains(version, prereleases=bool(need.specifier)):
            sdists.append((version, file, sha256))
    if not sdists:
        raise UsageError(
            f"the Python index has no sdist of {wanted} for Python {python}",
            hint="name another version",
        )
    version, file, sha256 = max(sdists)
    return file, version, sha256


def _near_folder(name: str) -> str:
    """What to type: a folder here whose name is like the one that was given, if there is one."""
    folders = [path.name for path in sorted(Path.cwd().iterdir()) if path.is_dir()]
    near = nearest(name, folders, 1)
    if near:
        return f"farm recipe new ./{near[0]}"
    return NAMES


def _beginning_of(file: Path) -> bytes:
    with open_plain(file, follow_links=True) as stream:
        return stream.read(MAX_FILE)


def _of_folder(folder: Path, project: Path, *, anyway: bool = False) -> Proposal:
    if fault := source_fault(folder.resolve(), project.resolve()):
        raise UsageError(fault[0], hint=fault[1])
    names = tuple(file.relative_to(folder).as_posix() for file in tree_files(folder)[:MAX_FILES])
    tree = Tree(str(folder), names, lambda name: _beginning_of(folder / name))
    if not {"pyproject.toml", "setup.py"} & {*names}:
        raise UsageError(
            f"{folder} has neither pyproject.toml nor setup.py",
            hint="name the package's own folder",
        )
    about = pyproject_of(tree).project
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
    proposal = read_sources(
        tree, package, version, {"kind": "path", "path": relative}, metadata, anyway=anyway
    )
    if not about.version and not written:
        proposal.notes.append(
            "no version in pyproject.toml, setup.cfg or setup.py: correct the recipe's 0.1.0"
        )
    return proposal


def _resolved(requirements: list[str], python: str) -> list[dict[str, str]]:
    """Wheels for these requirements and theirs, for a Python of Debian 12, as pip finds them; each
    with its sha256.
    """
    tags = [f"manylinux_2_{glibc}_x86_64" for glibc in range(HINTS["glibc"], 4, -1)]
    tags.append("manylinux2014_x86_64")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["--quiet", "--report", "-", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--target", "unused", "--implementation", "cp"]
    command.append(f"--python-version={python_version(python)}")
    command += [f"--platform={tag}" for tag in tags]
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
    channel_names: list[str] = []
    if path.is_file():
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        channel_names += map(str, document.get("channels") or ())
    if name in channel_names:
        return str(name)
    if name is None and len(channel_names) == 1:
        return channel_names[0]
    problem = f"{path} has {len(channel_names)} channels"
    if name:
        problem = f"{path} has no channel {name!r}"
    hint = "farm init writes one"
    if channel_names:
        hint = f"--channel {' or '.join(channel_names)}"
    raise UsageError(problem, hint=hint)


def _remove(project: Path, name: str) -> int:
    """Remove a recipe of the project, and its package from the channels that list it in one
    line.
    """
    folder = project / "recipes" / name
    if Path(name).name != name or not folder.is_dir():
        recipe_names = [path.name for path in sorted((project / "recipes").glob("*/"))]
        hint = "it has none: recipes/ is empty"
        if recipe_names:
            hint = f"it has {', '.join(recipe_names)}"
        raise UsageError(f"the project has no recipe {name!r}", hint=hint)
    matrix = project / "ci" / "matrix.yaml"
    text = matrix.read_text(encoding="utf-8")
    changed = _without_package(text, name)
    if changed != text:
        outputs.write(project, {matrix.relative_to(project): changed.encode()})
    shutil.rmtree(folder)
    show.say(f"removed {folder.relative_to(project)}")
    if changed != text:
        show.say(f"removed {name} from `packages` in ci/matrix.yaml")
    if re.search(rf"\b{re.escape(name)}\b", changed):
        show.note(f"farm: ci/matrix.yaml still names {name}: look at it")
    return 0


def _without_package(text: str, package: str) -> str:
    """ci/matrix.yaml without a package in the lists that are written in one line."""

    def shortened(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[2].split(",")]
        remaining = [name for name in names if name.strip("'\"") != package]
        return f"{match[1]}[{', '.join(remaining)}]"

    return re.sub(r"^(    packages: )\[([^\]\n]*)\]", shortened, text, flags=re.MULTILINE)


def _with_package(text: str, channel: str, package: str, torch: str | None) -> str | None:
    """ci/matrix.yaml with the package, and a release of PyTorch, in its channel.

    None where the channel's packages are not written in one line.
    """
    head = rf"^  {re.escape(channel)}:.*\n(?:    .*\n|\n)*?"
    block = re.search(rf"{head}(    packages: \[)([^\]\n]*)\]", text, re.MULTILINE)
    if block is None:
        return None
    line = ""
    if torch:
        line = f'    torch: "{torch}"\n'
    packages = block[2].strip()
    if packages:
        packages += ", "
    packages += yaml.safe_dump([package], default_flow_style=True)[1:-2]
    return text[: block.start(1)] + line + block[1] + packages + text[block.end(2) :]


def _torch_for(matrix: Matrix, channel: Channel) -> str | None:
    """The release of PyTorch for a channel that names none: the newest that another channel has
    with its CUDA.
    """
    if channel.text.options.get("torch"):
        return None
    releases = []
    for candidate in matrix.channels.values():
        release = candidate.text.options.get("torch")
        if release and set(candidate.cuda) & set(channel.cuda):
            releases.append(str(release))
    return max(releases, key=number, default=None)


def _variant(channel: Channel, cuda: bool) -> str:
    """A variant to begin with: without a GPU, unless the package is about one."""
    variants = [build.variant for build in channel.builds]
    fitting = [variant for variant in variants if (variant.gpu == "cpu") != cuda] or variants
    for variant in fitting:
        if variant.cpu == "avx":
            return str(variant)
    return str(fitting[0])
