"""The toolchain of this very machine, for builds without an image."""

import subprocess
import sys
from pathlib import Path
from platform import machine

from farm.base import processes
from farm.base.errors import NoRunnerError, UsageError
from farm.base.temporary import temporary_folder
from farm.plan.file import Plan
from farm.platforms.base import Platform
from farm.platforms.facts import PLATFORMS, here
from farm.platforms.registry import platform
from farm.run.report import Outcomes
from farm.run.workspace import Workspace
from farm.smoke.variables import not_in_build

PROVE_S = 300
LOOK = """
import importlib.util, sys
version = "%d.%d" % sys.version_info[:2] + "t" * ("t" in sys.abiflags)
print(version, *(m for m in ("build", "setuptools", "wheel") if not importlib.util.find_spec(m)))
"""


def this_machine() -> tuple[Platform, str]:
    """The platform that this Python runs on, and the machine by the farm's name.

    Raises:
        NoRunnerError: The farm does not build for this platform.
    """
    found = here()
    if found is None:
        known = ", ".join(each.title for each in PLATFORMS.values())
        raise NoRunnerError(f"the farm does not build on {sys.platform}", hint=f"it builds on {known}")
    return platform(found.name), found.machine(machine())


def prove_host(workspace: Workspace, plan: Plan, script: Path, outcomes: Outcomes) -> None:
    """This machine has the plan's Python and compilers, and they work; a self-contained script looks for its own.

    Raises:
        NoRunnerError: Something is missing; the message says what.
        UsageError: The plan is for another platform.
    """
    system, _ = this_machine()
    if plan.platform != system.facts.name:
        raise UsageError(f"the plan is for {plan.platform}, this machine runs {system.facts.name}")
    with outcomes.timed("toolchain", workspace.watcher) as step, temporary_folder() as home:
        environment = processes.environment(str(home), tree=False)  # what the build gets
        found = f"{system.entry} looks for it" if system.self_contained else _prove(plan, script, environment)
        unused = not_in_build([*environment, *system.variables])
        step.result = found + (f"; not passed to the build: {', '.join(unused)}" if unused else "")


def _prove(plan: Plan, script: Path, environment: dict[str, str]) -> str:
    """Returns what was found.

    Raises:
        NoRunnerError: See prove_host.
    """
    wanted = plan.parsed_variant.python_version
    # The `python3` of the build's own PATH, not this interpreter: it is the one that builds.
    version, *absent = _run(["python3", "-c", LOOK], environment).split()
    if version != wanted:
        raise NoRunnerError(
            f"the plan is for Python {wanted}; python3 here is {version}",
            hint=f"put a python3 that is {wanted} first into PATH, with python3-dev, build, setuptools and wheel",
        )
    if absent:
        names = " ".join(absent)
        raise NoRunnerError(
            f"python3 here lacks {', '.join(absent)}",
            # A distribution's own Python refuses `pip install` (PEP 668); a virtual environment never does.
            hint=f"python3 -m venv ~/farm-python && ~/farm-python/bin/pip install {names}, then put "
            "~/farm-python/bin first into PATH; or Debian's packages: apt-get install "
            + " ".join(f"python3-{name}" for name in absent),
        )
    command = ["python3", str(script), "--cxx", plan.env["CXX"]]
    if plan.toolkit:
        # The lowest is the first that a newer nvcc no longer knows. The variant's: `device_code: false` promises none.
        command += ["--sm", str(min(plan.parsed_variant.sms))]
    _run(command, environment)
    return f"Python {wanted}, {plan.env['CXX']}" + (f", CUDA {plan.toolkit.cuda}" if plan.toolkit else "")


def _run(command: list[str], environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROVE_S, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoRunnerError(f"{command[0]} cannot be run here: {error}") from error
    if done.returncode:
        raise NoRunnerError(
            f"this machine's toolchain does not work: {(done.stderr or done.stdout).strip()[-500:]}",
            hint="install the compilers that `farm plan` names, or build in a container: --on docker",
        )
    return done.stdout
