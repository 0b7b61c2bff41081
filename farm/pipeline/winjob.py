"""The build job of a Windows plan: `build.cmd` on a Windows host, which sees to its compilers and its source itself.

`build.cmd` has its folders below C:/farm, so the host engine's root is C:/ there. It was run so under Wine, with
stand-ins for the tools, never on Windows.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from farm.engines.base import Capacity, Job, Observation
from farm.errors import InfrastructureError, NoRunnerError
from farm.pipeline import build
from farm.plan import Plan

ROOT = Path("C:/")
NEEDS = "/farm/job/needs"
FOLLOW = "/farm/scripts/follow_cmd.py"
KEPT = ("FARM_PYTHON",)
"""What build.cmd may be told by who submits."""
LACKS, ELSEWHERE = 3, 9
"""Exit codes of build.cmd: the machine lacks something; network, disk or a held file."""


def make_job(plan: Plan, *, inputs: dict[str, Path], capacity: Capacity, labels: dict[str, str]) -> Job:
    """The job of a Windows plan. `inputs`: the rendered job as /farm/job, the scripts as /farm/scripts."""
    job = build.make_job(plan, image="", inputs=inputs, capacity=capacity, labels=labels)
    output = f"/farm/out/{plan.digest[:12]}"
    return replace(
        job,
        command=(sys.executable, FOLLOW, "/farm/job/build.cmd", f"{output}/build.log"),
        output=output,
        environment=job.environment | {name: os.environ[name] for name in KEPT if name in os.environ},
    )


def judge(seen: Observation, log: Path) -> None:
    """Raise what the end of build.cmd means; a success returns.

    Raises:
        NoRunnerError: The machine lacks something; the text is build.cmd's own.
        InfrastructureError: Network, disk or a held file.
        FarmError: As `farm.pipeline.build.judge`.
    """
    if seen.state == "done" and seen.cause is None and seen.exit_code in (LACKS, ELSEWHERE):
        text = "\n".join("    " + line for line in build.failing_lines(log)[-5:])
        failure = NoRunnerError if seen.exit_code == LACKS else InfrastructureError
        raise failure(f"build.cmd ended with {seen.exit_code}; its last lines:\n{text}", hint=f"the whole log: {log}")
    build.judge(seen, log)
