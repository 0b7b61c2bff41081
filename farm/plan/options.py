"""The table of a build's options: each is declared here, once.

From the table follow the command line (`--cuda`), the variables (`FARM_CUDA`), `options:` in
ci/farm.yaml, the keys of a channel in ci/matrix.yaml, the checks, the help and the table in
docs/reference/options.md. A new option is a new entry here; `ci/matrix.schema.json` and
docs/reference/options.md are then written anew with `make generate`.

Not in this module: which hardware a build is for (`farm.plan.variant`), and how a plan is made of
the values (`farm.plan`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from farm.base.errors import UsageError
from farm.base.text import nearest

if TYPE_CHECKING:
    from farm.plan.recipe import Recipe

Value = str | bool | int | None
"""The value of an option; None where a build has no such thing."""


class Choice(NamedTuple):
    """A value and where it was chosen: `--cuda`, `environment FARM_CUDA`, `ci/farm.yaml`, `channel
    main`.
    """

    value: Value
    origin: str


@dataclass(frozen=True)
class Option:
    """One option of a build."""

    name: str  # as it is typed: `--name`, and FARM_NAME in upper case
    help: str  # one line for `--help` and for the docs
    kind: type[str] | type[bool] | type[int] = (
        str  # what a value is: text, a truth value or a whole number
    )
    metavar: str = "VALUE"  # what stands for the value in the help, where there are no `choices`
    choices: tuple[str, ...] = ()  # the words that it takes; empty: any text that fits `pattern`
    pattern: str | None = None  # what ci/matrix.yaml may write (regular expression)
    maximum: int = 0  # the largest number
    # The value of a build that sets none, or for which the option means nothing. A plan leaves it
    # out.
    default: Value = None
    # A channel of ci/matrix.yaml has a key of this name. (`cuda` is an axis: it has one of its
    # own.)
    pinned: bool = True
    excepted: bool = False  # `exceptions:` of a channel may set it for some of the builds
    in_matrix: str | None = None  # what the key means there, where that is not what `help` says
    needs_gpu: bool = False  # means nothing to a wheel without device code
    applies: "Callable[[Recipe], bool]" = lambda _: True  # whether it means anything to a package
    catalogue: str | None = (
        None  # the function of `farm.catalog` that has its known versions: a short one is completed
    )
    # The variables that a value sets for the build. Beside these, the recipes and the platforms
    # take values by the option's name.
    environment: Callable[[Value], Mapping[str, str]] = lambda _: {}
    # The Debian packages that the toolchain image needs for a value.
    packages: Callable[[Value], Sequence[str]] = lambda _: ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def off_flag(self) -> str:
        """The flag that sets a truth value to false."""
        return "--no-" + self.name.replace("_", "-")

    def typed(self, value: Value) -> str:
        """The option with a value, as it is typed: `--cuda 12.8`, `--no-ptx`."""
        if value is True:
            return self.flag
        if value is False:
            return self.off_flag
        return f"{self.flag} {value}"

    @property
    def variable(self) -> str:
        return f"FARM_{self.name.upper()}"

    @property
    def placeholder(self) -> str:
        """`debian|nvidia`, or the metavar."""
        return "|".join(self.choices) or self.metavar

    def parse(self, text: str, where: str) -> Value:
        """The value of `text`, as in a variable of the environment. Raises UsageError: it is none;
        `where` is named.
        """
        if self.kind is bool:
            if text not in ("0", "1"):
                raise UsageError(f"{where}={text!r}: expected 0 or 1")
            return text == "1"
        if self.kind is int:
            if not re.fullmatch(rf"[0-9]{{1,{len(str(self.maximum))}}}", text):
                raise UsageError(f"{where}={text!r}: expected a number from 0 to {self.maximum}")
            return int(text)
        return text

    def check(self, choice: Choice) -> None:
        """Raise a UsageError for a value of another type, out of range, or of no known word; the
        nearest are given.
        """
        value, origin = choice
        if value is None:
            return
        # Not isinstance: True is an int to Python, and `rebuild: true` is a mistake.
        if type(value) is not self.kind:
            kinds: dict[type, str] = {bool: "true or false", int: "a whole number"}
            expected = kinds.get(self.kind, "text in quotes")
            raise UsageError(f"{self.name} = {value!r} (from {origin}): expected {expected}")
        if self.kind is int and not 0 <= int(value) <= self.maximum:
            raise UsageError(f"{self.name} = {value} (from {origin}): expected 0 to {self.maximum}")
        if self.choices and value not in self.choices:
            near = nearest(str(value), self.choices) or list(self.choices)
            raise UsageError(
                f"unknown {self.name} {value!r} (from {origin})", hint=f"nearest: {', '.join(near)}"
            )


def _of_torch(package: "Recipe") -> bool:
    return "torch" in (package.package, *package.needs)


FILE = "ci/farm.yaml"
VERSION = r"^\d{1,2}\.\d{1,2}\.\d{1,2}$"

_TABLE = (
    # A channel offers several: in ci/matrix.yaml `cuda` is an axis (farm/plan/matrix.py), the first
    # its default.
    Option(
        "cuda", "CUDA version", metavar="X.Y", pinned=False, needs_gpu=True, catalogue="toolkits"
    ),
    Option(
        "toolkit", "where CUDA comes from", choices=("debian", "nvidia", "wheels"), needs_gpu=True
    ),
    Option(
        "torch",
        "PyTorch release",
        metavar="VERSION",
        pattern=VERSION,
        applies=_of_torch,
        catalogue="torch_releases",
    ),
    Option(
        "cudnn",
        "cuDNN version",
        metavar="VERSION",
        pattern=VERSION,
        excepted=True,
        in_matrix="null: without cuDNN",
        needs_gpu=True,
        applies=lambda package: package.cudnn,
        catalogue="cudnn_releases",
    ),
    Option(
        "blas",
        "library for linear algebra on the CPU",
        choices=("mkl", "openblas"),
        excepted=True,
        in_matrix="null: the platform's own",
        applies=lambda package: package.package == "torch",
    ),
    Option(
        "without",
        "the recipe's features to leave out, such as nccl,kineto",
        metavar="NAMES",
        pattern=r"^[a-z0-9-]{1,30}(,[a-z0-9-]{1,30}){0,30}$",
        excepted=True,
        applies=lambda package: package.package == "torch",
    ),
    Option(
        "with",
        "features to build that the channel leaves out, such as kineto on Windows",
        metavar="NAMES",
        pattern=r"^[a-z0-9-]{1,30}(,[a-z0-9-]{1,30}){0,30}$",
        pinned=False,
        applies=lambda package: package.package == "torch",
    ),
    Option(
        "cuda_libraries",
        "Linux: need NVIDIA's wheels, the default where they are known, or vendor CUDA's libraries",
        choices=("wheels", "vendored"),
        needs_gpu=True,
    ),
    Option("ptx", "PTX for the highest SM as well", kind=bool, default=False, needs_gpu=True),
    Option(
        "rebuild",
        "rebuild number, appended to the version as .N",
        kind=int,
        metavar="N",
        maximum=9999,
        default=0,
        pinned=False,
    ),
)

OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}
"""Every option by its name, in the order in which plans list them."""


def option(name: str) -> Option:
    """The option called `name`. Raises UsageError: there is none; the known ones are given."""
    if name not in OPTIONS:
        raise UsageError(f"unknown option {name!r}", hint=f"known: {', '.join(OPTIONS)}")
    return OPTIONS[name]


def from_environment(environ: Mapping[str, str]) -> dict[str, Choice]:
    """Choices from FARM_<OPTION> variables that are not empty. Raises UsageError: one holds no
    value of its option.
    """
    choices = {}
    for name, entry in OPTIONS.items():
        # No valid value begins or ends with a blank.
        if text := environ.get(entry.variable, "").strip():
            origin = f"environment {entry.variable}"
            choices[name] = Choice(entry.parse(text, entry.variable), origin)
    return choices


def from_file(values: Mapping[str, Value], path: Path) -> dict[str, Choice]:
    """Choices from `options:` of ci/farm.yaml, each with its line; the file's model takes names of
    options alone.
    """
    from farm.base.yamlfile import where  # noqa: PLC0415 slow to import; few set options there

    choices = {}
    for name, value in values.items():
        line = where(path, "options", name).rpartition(":")[2]
        choices[name] = Choice(value, f"{FILE}:{line}")
    return choices


def from_arguments(values: Mapping[str, Any], words: Sequence[str] = ()) -> dict[str, Choice]:
    """Choices from a parsed command line (`vars(args)`), in the order of its `words`; None means
    not given.
    """
    choices = {}
    for name, entry in OPTIONS.items():
        value = values.get(name)
        if isinstance(value, list):
            value = ",".join(value)
        if value is not None:
            choices[name] = Choice(value, entry.flag)
    flags = [word.partition("=")[0].replace("--no-", "--", 1) for word in words]

    def place(name: str) -> int:
        flag = OPTIONS[name].flag
        if flag in flags:
            return flags.index(flag)
        return -1

    return {name: choices[name] for name in sorted(choices, key=place)}
