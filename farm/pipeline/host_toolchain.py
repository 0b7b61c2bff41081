"""The toolchain of this very machine, for builds without an image."""

import subprocess
import sys
from pathlib import Path

from farm.errors import NoRunnerError, UsageError
from farm.pipeline.report import Outcomes
from farm.pipeline.workspace import Workspace
from farm.plan import Plan
from farm.variant import Variant

PROVE_S = 300
SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
"""The platform of a plan, by what Python calls the system."""
LOOK = """
import importlib.util, sys
print("%d.%d" % sys.version_info[:2], *(m for m in ("build", "setuptools", "wheel") if not importlib.util.find_spec(m)))
"""


def prove_host(workspace: Workspace, plan: Plan, script: Path, outcomes: Outcomes) -> None:
    """This machine has the plan's Python and compilers, and they work; on Windows, `build.cmd` sees to that.

    Raises:
        NoRunnerError: Something is missing; the message says what.
        UsageError: The plan is for another platform.
    """
    if plan.platform != SYSTEMS.get(sys.platform):
        raise UsageError(f"the plan is for {plan.platform}, this machine runs {sys.platform}")
    if plan.windows:
        with outcomes.timed("toolchain", workspace.watcher) as step:
            step.result = "build.cmd looks for it"
        return
    wanted = Variant.parse(plan.variant).python_version
    with outcomes.timed("toolchain", workspace.watcher) as step:
        told, *absent = _run(["python3", "-c", LOOK]).split()
        if told != wanted:
            raise NoRunnerError(
                f"the plan is for Python {wanted}; python3 here is {told}",
                hint=f"put a python3 that is {wanted} first into PATH, with python3-dev, build, setuptools and wheel",
            )
        if absent:
            raise NoRunnerError(
                f"python3 here lacks {', '.join(absent)}", hint=f"python3 -m pip install {' '.join(absent)}"
            )
        command = ["python3", str(script), "--cxx", plan.env["CXX"]]
        if plan.toolkit:
            command += ["--sm", str(min(plan.verify.sass))]
        _run(command)
        step.result = f"Python {wanted}, {plan.env['CXX']}" + (f", CUDA {plan.toolkit.cuda}" if plan.toolkit else "")


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROVE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoRunnerError(f"{command[0]} cannot be run here: {error}") from error
    if done.returncode:
        raise NoRunnerError(
            f"this machine's toolchain does not work: {(done.stderr or done.stdout).strip()[-500:]}",
            hint="install the compilers that `farm plan` names, or build in a container: --on docker",
        )
    return done.stdout
