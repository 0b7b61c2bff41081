"""Reads what other makers of PyTorch build from a checkout of their recipes, and compares it with
`makers.yaml`.

conda-forge's feedstock has the matrix of its builds in `.ci_support` and the GPUs of each in
`recipe/build.sh` and `recipe/bld.bat`; Spack has versions and their CUDA in its package of PyTorch.
The checkout may be a bare repository. Nothing in it is run.
"""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import number
from farm.plan.compat.other_makers import Maker, makers

MAKERS = ("conda-forge", "Spack")
"""As `--checkout` names them, and as `maker` of the rows begins."""
MATRIX = ".ci_support"
SPACK_PACKAGE = "repos/spack_repo/builtin/packages/py_torch/package.py"
CONDA_PLATFORMS = {
    "linux-64": "linux-x86_64",
    "linux-aarch64": "linux-aarch64",
    "win-64": "windows-x86_64",
}
TEGRA = "tegra"
TIMEOUT_S = 60
ROW = "  - {maker:"

Note = Callable[[str], None]


@dataclass(frozen=True)
class Checkout:
    """A repository that was fetched before, read at the commit that it is at."""

    folder: Path

    @property
    def commit(self) -> str:
        return self._git("rev-parse", "HEAD").strip()

    def text(self, path: str) -> str:
        return self._git("show", f"HEAD:{path}")

    def names(self, folder: str) -> list[str]:
        return self._git("ls-tree", "--name-only", "HEAD", f"{folder}/").splitlines()

    def _git(self, *words: str) -> str:
        command = ["git", "-C", str(self.folder), "-c", "safe.directory=*", *words]
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["git failed"]
            raise UsageError(
                f"{self.folder}: {reason[0]}", hint="--checkout conda-forge=FOLDER, a git clone"
            )
        return done.stdout


@dataclass(frozen=True)
class CondaBuild:
    """One build of conda-forge with CUDA: where it is for, and the GPUs that it has code for.

    `sm` is empty where the recipe leaves them open.
    """

    platform: str
    cuda: str
    tegra: bool
    sm: tuple[int, ...]
    ptx: tuple[int, ...]

    @property
    def maker(self) -> str:
        return "conda-forge for Jetson" if self.tegra else "conda-forge"

    def __str__(self) -> str:
        gpus = ", ".join(map(str, self.sm))
        return f"{self.maker}, {self.platform}, CUDA {self.cuda}: sm {gpus}, ptx {list(self.ptx)}"


# --- conda-forge ---


def conda_builds(checkout: Checkout) -> tuple[str, list[CondaBuild]]:
    """The release that a feedstock builds, and its builds with CUDA."""
    version = re.search(r'set version = "([0-9.]+)"', checkout.text("recipe/meta.yaml"))
    if version is None:
        raise UsageError(f"{checkout.folder}: recipe/meta.yaml has no version that is a release")
    builds = []
    for name in checkout.names(MATRIX):
        if not name.endswith(".yaml"):
            continue
        settings = _settings(checkout.text(name))
        platform = CONDA_PLATFORMS.get(settings.get("target_platform", ""))
        cuda = settings.get("cuda_compiler_version", "None")
        if platform is None or cuda == "None":
            continue
        gpus = arch_list(checkout.text(_script(platform)), settings)
        tegra = settings["arm_variant_type"] == TEGRA
        build = CondaBuild(platform, cuda, tegra, *spelled_out(gpus or ""))
        if build not in builds:  # one for each BLAS
            builds.append(build)
    return version[1], builds


def _script(platform: str) -> str:
    return "recipe/bld.bat" if platform.startswith("windows") else "recipe/build.sh"


def _settings(text: str) -> dict[str, str]:
    """The variables of one build; those with several values are left out."""
    document = yaml.safe_load(text)
    # Builds for other machines than Arm do not have it.
    return {"arm_variant_type": ""} | {
        name: str(values[0])
        for name, values in document.items()
        if isinstance(values, list) and len(values) == 1
    }


def spelled_out(arches: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The SMs with machine code and with PTX of `7.5;8.0;12.0+PTX`."""
    sms = []
    ptx = []
    for entry in filter(None, arches.split(";")):
        sm = int(entry.removesuffix("+PTX").replace(".", ""))
        sms.append(sm)
        if entry.endswith("+PTX"):
            ptx.append(sm)
    return tuple(sms), tuple(ptx)


def arch_list(script: str, settings: Mapping[str, str]) -> str | None:
    """The TORCH_CUDA_ARCH_LIST that a shell script or batch file sets for one build.

    Its branches are followed as far as the settings decide them.

    Returns:
        None where branches that stay open set several.
    """
    lists = {
        value: certain
        for line, certain in reached(script.splitlines(), settings)
        if (value := _assigned(line))
    }
    sure = [value for value, certain in lists.items() if certain]
    values = sure or list(lists)
    return values[-1] if len(values) == 1 else None


def _assigned(line: str) -> str | None:
    match = re.search(r'\bTORCH_CUDA_ARCH_LIST="?([0-9.;]+(?:\+PTX)?)"?\s*$', line)
    return match[1] if match else None


def reached(lines: Sequence[str], settings: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """The lines that may run, each with whether it certainly does.

    `if` and `case` of a shell script, and `if (…) else (…)` of a batch file, are followed. A
    condition is true, false, or None where the settings do not decide it.
    """
    branches: list[Branches] = []
    for raw in lines:
        line = raw.strip()
        if not line or line.startswith(("#", "@rem", "@REM", "rem ", "REM ")):
            continue
        if _is_branch(line, branches, settings):
            continue
        states = [branch.state for branch in branches]
        if False not in states:
            yield line, None not in states


class Branches:
    """The branches of one `if` or `case`, of which the current one is in `state`."""

    def __init__(
        self, state: bool | None, *, is_case: bool = False, word: str | None = None
    ) -> None:
        self.state = state
        self.is_case = is_case
        self.word = word
        """The value that the patterns of a `case` are compared with; None: it is not known."""
        self.before: list[bool | None] = []

    def enter(self, condition: bool | None) -> None:
        """Begin the next branch: it runs if its condition holds and none did before."""
        self.before.append(self.state)
        if True in self.before or condition is False:
            self.state = False
        elif None in self.before:
            self.state = None
        else:
            self.state = condition


def _is_branch(line: str, branches: list[Branches], settings: Mapping[str, str]) -> bool:
    """Follow a line that begins or ends a branch; False for another line."""
    if match := re.match(r"case (\S+) in$", line):
        word = _value(match[1], settings)
        branches.append(Branches(False, is_case=True, word=word))
    elif match := re.match(r"if (.*?);? ?(?:then|\()$", line):
        branches.append(Branches(holds(match[1], settings)))
    elif match := re.match(r"(?:elif|\) else if) (.*?);? ?(?:then|\()$", line):
        _current(branches).enter(holds(match[1], settings))
    elif line in ("else", ") else ("):
        _current(branches).enter(True)
    elif line in ("fi", "esac", ")"):
        _current(branches)
        branches.pop()
    elif line.endswith("("):  # a loop of a batch file, an array of a shell script
        branches.append(Branches(None))
    elif branches and branches[-1].is_case and re.match(r"[^\s()]+\)$", line):
        word = branches[-1].word
        pattern = line[:-1].strip("\"'")
        branches[-1].enter(None if word is None else fnmatchcase(word, pattern))
    else:
        return line == ";;"
    return True


def _current(branches: list[Branches]) -> Branches:
    if not branches:
        raise UsageError("a branch of the script ends that has not begun", hint="read it by hand")
    return branches[-1]


def _value(word: str, settings: Mapping[str, str]) -> str | None:
    """The value of `${name}`, `$name`, `%name%` or `%name:~0,2%`; None: it is not known."""
    match = re.fullmatch(r'"?(?:\$\{?(\w+)\}?|%(\w+)(?::~0,(\d+))?%)"?', word)
    if match is None:
        return None
    value = settings.get(match[1] or match[2])
    return value[: int(match[3])] if value is not None and match[3] else value


def holds(condition: str, settings: Mapping[str, str]) -> bool | None:
    """Whether a comparison of a variable holds; None: the settings do not decide it."""
    match = re.fullmatch(
        r'(?:\[\[? )?("?[$%][^\s"=!]+"?) ?(==|!=|=) ?("?)([^\s"\]]+)"?\*?(?: \]\]?)?', condition
    )
    value = _value(match[1], settings) if match else None
    if match is None or value is None:
        return None
    same = value == match[4] if match[3] else fnmatchcase(value, match[4])
    return same if match[2] != "!=" else not same


def _conda_rows(text: str, checkout: Checkout, note: Note) -> str:
    version, builds = conda_builds(checkout)
    left = {place: row for row in makers().makers for place in _places(row)}
    newest = {place: row for place, row in left.items() if row.source == "conda_head"}
    for build in builds:
        row = newest.pop((build.maker, build.platform, build.cuda), None)
        if not build.sm:
            note(f"{build}: {_script(build.platform)} leaves its GPUs open")
            continue
        if row is None:
            note(f"{build}: makers.yaml has no row of it")
            continue
        for title in _built_all_the_same(row, checkout.text(_script(build.platform))):
            note(f"{build}: its row says that it lacks {title}, which the recipe does not turn off")
        text = _changed(text, row, version, checkout.commit, build)
    for maker, platform, cuda in newest:
        note(f"{maker}, {platform}, CUDA {cuda}: is no longer built at {checkout.commit[:8]}")
    return text


def _built_all_the_same(row: Maker, script: str) -> Iterator[str]:
    """Features that a row says to be lacking and that a script does not turn off."""
    for feature in catalog.features().values():
        mentioned = re.search(rf"\b{re.escape(feature.title)}\b", row.lacks)
        off = re.search(rf"\b{feature.switch}=\"?(?:0|OFF)\b", script)
        if feature.switch and mentioned and not off:
            yield feature.title


def _places(row: Maker) -> Iterator[tuple[str, str, str]]:
    for platform in row.platforms:
        yield row.maker, platform, row.cuda


# --- Spack ---


@dataclass(frozen=True)
class SpackPackage:
    """Spack's package of PyTorch: its versions, newest first, and the CUDA of each.

    Attributes:
        versions: By version, whether it is deprecated.
        ranges: Ranges of CUDA, and the versions that each is for.
    """

    versions: dict[str, bool]
    ranges: tuple[tuple[str, str], ...]

    def newest_with(self, cuda: str) -> str | None:
        """The newest version that takes a CUDA."""
        for version in self.versions:
            needed = [span for span, when in self.ranges if within(version, when)]
            if needed and all(within(cuda, span) for span in needed):
                return version
        return None


def within(version: str, span: str) -> bool:
    """True if a version is in a range as Spack writes it: `2.4:`, `11:12.3`, `1.10`, `:1`.

    An end includes everything below it: 1.10.2 is in `1.10`, and 12.3.1 in `11:12.3`.
    """
    begin, colon, end = span.partition(":")
    numbers = number(version)
    if begin and numbers < number(begin):
        return False
    last = end if colon else begin
    return not last or numbers[: len(number(last))] <= number(last)


def spack_package(text: str) -> SpackPackage:
    """What a `package.py` says of versions and CUDA; it is parsed, never run."""
    versions: dict[str, bool] = {}
    ranges = []
    for call, deprecated in _calls(ast.parse(text).body, deprecated=False):
        first = call.args[0] if call.args else None
        if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
            continue
        name = getattr(call.func, "id", "")
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if name == "version" and re.fullmatch(r"[0-9.]+", first.value):
            versions[first.value] = deprecated or _is_true(keywords.get("deprecated"))
        when = keywords.get("when")
        span = re.fullmatch(r"cuda@([0-9.:]+)", first.value)
        if name == "depends_on" and span and isinstance(when, ast.Constant):
            releases = re.fullmatch(r"@([0-9.:]+)\+cuda", str(when.value))
            if releases:
                ranges.append((span[1], releases[1]))
    newest_first = sorted(versions, key=number, reverse=True)
    return SpackPackage({name: versions[name] for name in newest_first}, tuple(ranges))


def _calls(body: Sequence[ast.stmt], *, deprecated: bool) -> Iterator[tuple[ast.Call, bool]]:
    """The calls of a class, each with whether `default_args` around it says `deprecated`."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _calls(statement.body, deprecated=deprecated)
        elif isinstance(statement, ast.With):
            inside = deprecated
            for item in statement.items:
                keywords = getattr(item.context_expr, "keywords", [])
                if any(word.arg == "deprecated" and _is_true(word.value) for word in keywords):
                    inside = True
            yield from _calls(statement.body, deprecated=inside)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield statement.value, deprecated


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _spack_rows(text: str, checkout: Checkout, note: Note) -> str:
    package = spack_package(checkout.text(SPACK_PACKAGE))
    if not package.versions:
        raise UsageError(f"{checkout.folder}: {SPACK_PACKAGE} has no versions")
    for row in makers().makers:
        if row.maker != "Spack":
            continue
        newest = package.newest_with(row.cuda)
        if newest is None:
            note(f"Spack: no version of py-torch takes CUDA {row.cuda} any more")
            continue
        text = _changed(text, row, newest, checkout.commit)
        if package.versions[newest] != ("--deprecated" in row.install):
            state = "is" if package.versions[newest] else "is not"
            note(f"Spack: py-torch@{newest} {state} deprecated: mend --deprecated in its line")
    return text


# --- makers.yaml ---


def _changed(
    text: str, row: Maker, torch: str, commit: str, build: CondaBuild | None = None
) -> str:
    """The text of makers.yaml with a row's new values."""
    # As text: a YAML library would lose the comments and the layout.
    place = makers().makers.index(row)
    chunks = text.split(ROW)
    chunk = chunks[place + 1]
    chunk = chunk.replace(f'torch: "{row.torch}"', f'torch: "{torch}"', 1)
    chunk = chunk.replace(f"torch={row.torch}", f"torch={torch}")
    chunk = chunk.replace(f"torch@{row.torch}", f"torch@{torch}")
    chunk = re.sub(r"commit: \w+", f"commit: {commit}", chunk, count=1)
    if build:
        chunk = re.sub(r"\bsm: \[[^]]*\]", f"sm: {list(build.sm)}", chunk, count=1)
        chunk = re.sub(r"\bptx: \[[^]]*\]", f"ptx: {list(build.ptx)}", chunk, count=1)
    chunks[place + 1] = chunk
    return ROW.join(chunks)


def refreshed(text: str, checkouts: Mapping[str, Path], note: Note) -> str:
    """The text of makers.yaml with what the checkouts have now.

    Args:
        text: The file as it is.
        checkouts: Folders by maker.
        note: Takes what a person must do.

    Raises:
        UsageError: A folder is no checkout of the maker's recipes.
    """
    readers = {"conda-forge": _conda_rows, "Spack": _spack_rows}
    for maker, folder in checkouts.items():
        text = readers[maker](text, Checkout(folder), note)
    return text
