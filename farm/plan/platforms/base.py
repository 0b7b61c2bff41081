"""The interface of platforms, with what holds where none says otherwise: a shell script that
builds, gcc and clang.

The stages of a build ask in this order: `completed` and `environment` while a plan is made,
`render` for the text of the toolchain image and of the job, the rest where a job runs on the
machine itself.
"""

import shlex
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from farm import catalog
from farm.base.errors import FarmError
from farm.plan.compat.stack import Stack
from farm.plan.file import Plan, WindowsPlan
from farm.plan.recipe import Recipe
from farm.platforms.facts import Facts, facts

Variables = dict[str, dict[str, str]]
"""Variables of the build, by where they come from."""
Files = dict[str, str]
"""Relative path -> text."""
DOCKERFILE = "Dockerfile.j2"


class Templates:
    """The templates of one platform's `folder`, and the `scripts` that are copied as they are."""

    def __init__(self, folder: Path, scripts: Path) -> None:
        import jinja2  # noqa: PLC0415 only what renders waits for it

        self.scripts = scripts
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            # A value that a template names and no one gives is an error, not an empty word in a
            # script.
            undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
            autoescape=False,  # noqa: S701 - Dockerfiles and shell, quoted by the filter `quote`
        )
        self.filters = self._environment.filters
        self.filters["quote"] = shlex.quote

    def names(self) -> list[str]:
        return self._environment.list_templates()

    def fill(self, name: str, values: Mapping[str, Any]) -> str:
        """The template `name` with its values. Raises jinja2.TemplateError: it is wrong, or a value
        is missing.
        """
        return self._environment.get_template(name).render(values)

    def script(self, name: str) -> str:
        """The text of a script that is copied as it is."""
        return (self.scripts / name).read_text(encoding="utf-8")

    def module(self, module: ModuleType) -> str:
        """The text of a module of the farm, for the scripts of a build that import it."""
        return Path(str(module.__file__)).read_text(encoding="utf-8")


class Platform:
    """One platform."""

    facts: Facts

    # --- while a plan is made

    def with_platform(self, stack: Stack) -> Stack:
        """The stack with what follows from the platform, such as the compiler that the plan will
        ask for.
        """
        return stack

    def cuda_home(self, stack: Stack) -> str:
        """Where the CUDA toolkit is during the build."""
        # Archives and wheels are unpacked below a prefix of the farm's; Debian's packages install
        # into /usr.
        if stack.toolkit in ("nvidia", "wheels"):
            return catalog.nvidia_provider().prefix
        return "/usr"

    def environment(self, recipe: Recipe, stack: Stack) -> Variables:
        """Compilers, their flags, caches and libraries."""
        raise NotImplementedError

    def packages(self, _recipe: Recipe, _stack: Stack) -> list[str]:
        """The Debian packages of the toolchain image."""
        return []

    def opens(self, _recipe: Recipe, _stack: Stack) -> list[str]:
        """Libraries that vendored ones open by name, of those that this build has."""
        return []

    def details(self, _recipe: Recipe, _stack: Stack) -> WindowsPlan | None:
        """The part of a plan that this platform alone has. Raises UsageError: something is not
        pinned.
        """
        return None

    def floating(self, _plan: Plan) -> list[str]:
        """Inputs of a build that are not pinned: another day's may differ."""
        return []

    # --- rendering

    def render(
        self, templates: Templates, _plan: Plan, values: Mapping[str, Any]
    ) -> tuple[Files, Files]:
        """The files of the image's context (none without an image), and of the job. Raises
        UsageError.
        """
        names = (name for name in templates.names() if name != DOCKERFILE)
        return {}, {name.removesuffix(".j2"): templates.fill(name, values) for name in names}

    # --- a job on the machine itself

    entry = "build.sh"
    """The rendered script that builds."""
    self_contained = False
    """True if that script fetches its source, looks for its compilers and keeps its build tree;
    else the farm does.
    """
    needs_folder = "/farm/needs"
    """Where the wheels that a build needs are put for it."""
    variables: tuple[str, ...] = ()
    """The variables of whoever submits that the build may see."""
    failures: Mapping[int, type[FarmError]] = {}
    """Exit codes of the build that are no fault of what is built."""

    def host_root(self, artifacts: Path) -> Path:
        """The folder that stands for `/` in the paths of a job on this machine."""
        return artifacts / "host"

    def host_command(self, _output: str) -> tuple[str, ...]:
        """The command of the build; `_output` is the job's output folder."""
        return ("bash", f"/farm/job/{self.entry}")

    def container_command(self, output: str, _limit_s: int) -> tuple[str, ...]:
        """The command of the build in a container, which ends with 124 after `_limit_s` seconds.

        Where it is no `own_init`, the engine itself sees to that, by `timeout` of coreutils.
        """
        return self.host_command(output)

    own_init = False
    """True if `container_command` can be process 1 of a container, see `Job.own_init`."""
    cache_folders: tuple[str, ...] = ()
    """Folders of a container that volumes keep from build to build. Platforms whose build tree
    itself is in a volume need none.
    """
    container_variables: Mapping[str, str] = {}
    """Variables of a build in a container alone."""

    def container_bases(self, _plan: Plan, _host_version: str) -> tuple[str, ...]:
        """Names of base images for containers on a host, best first; empty: the farm makes one.

        Args:
            _plan: The build.
            _host_version: The host's version as its Docker engine reports it (`OSVersion`).

        Raises:
            NoRunnerError: No base image runs on that host.
        """
        return ()

    def host_output(self, _plan: Plan) -> str:
        """The folder where the build leaves its wheel."""
        return "/farm/out"


def compilers(stack: Stack, where: str, cc: str, cxx: str) -> Variables:
    """Compilers of Unix and the flags of the CPU level; `where` says whose compilers they are.

    The flags reach host C and C++ only: nvcc gets the GPU's architectures and nothing of the CPU.
    """
    words = {"CC": cc, "CXX": cxx}
    # Else CMake's nvcc takes the first g++ of the PATH, which may be newer than CUDA allows.
    if stack.cuda:
        words["CUDAHOSTCXX"] = f"/usr/bin/{cxx}"
    flags = " ".join(catalog.cpu_levels()[stack.variant.cpu].gcc)
    flag_variables = {}
    if flags:
        flag_variables = {"CFLAGS": flags, "CXXFLAGS": flags}
    return {f"base {where}": words, f"variant: {stack.variant.cpu}": flag_variables}


@cache
def platform(name: str) -> Platform:
    """The PLATFORM of the module `farm.plan.platforms.<name>`. Raises UsageError: there is none;
    with the nearest names.
    """
    module = import_module(
        f"{__package__}.{facts(name).name}"
    )  # late: a command needs one of them, or none
    return cast("Platform", module.PLATFORM)
