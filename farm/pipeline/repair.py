"""The wheel as built becomes the wheel as published: its libraries, its version, its bounds, as the plan says."""

import shutil
from pathlib import Path

from farm.pipeline.build import the_wheel
from farm.plan import Plan
from farm.wheel.repair import RepairResult, opened, repair
from farm.wheel.tools import repair_by_tools


def repair_built(plan: Plan, built: Path, dest: Path) -> RepairResult:
    """Repair what a build left in `built` (`wheel/` and `lib/`) into the folder `dest`, which is made anew.

    Raises:
        FarmError: A library is missing, or the wheel is broken; `dest` holds no wheel then.
    """
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir()
    wheel, dirs = the_wheel(built / "wheel"), [built / "lib"]
    requires = [f"numpy{plan.verify.numpy}"] if plan.verify.numpy else []
    exclude, version, opens = plan.exclude, plan.version, opened(dirs, plan.opens)
    if plan.repair == "tools":
        return repair_by_tools(
            wheel, dest, lib_dirs=dirs, exclude=exclude, version=version, requires=requires, opens=opens
        )
    into = plan.vendor_into
    return repair(
        wheel, dest, lib_dirs=dirs, vendor_into=into, exclude=exclude, version=version, requires=requires, opens=opens
    )
