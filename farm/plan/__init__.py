"""Plans: one build, fully resolved. Pure data, JSON, content-addressed, with the origin of every value.

The way through, top to bottom:

- `selectors`: what was asked for, and the candidate that follows: channel, recipe, the choice of every option.
- `judgement`: what stands against building the candidate.
- `environment` and `inputs`: the variables of the build, its version, its source and toolkit.
- `build`: `resolve`, which goes that way and makes the plan.
- `file`: the shape of a plan, its digest, how it is read back.
"""

from farm.plan.build import judge, resolve
from farm.plan.environment import arch_list, wheel_version
from farm.plan.file import MAX_PLAN_BYTES, Plan, ToolkitPlan
from farm.plan.inputs import source_folder
from farm.plan.judgement import Judgement
from farm.plan.selectors import Selectors

__all__ = [
    "MAX_PLAN_BYTES",
    "Judgement",
    "Plan",
    "Selectors",
    "ToolkitPlan",
    "arch_list",
    "judge",
    "resolve",
    "source_folder",
    "wheel_version",
]
