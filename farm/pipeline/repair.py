"""The repair step: adds libraries, version and requirements to a built wheel, as the plan says."""

import shutil
from pathlib import Path

from farm.pipeline.build import the_wheel
from farm.plan import Plan
from farm.wheel.library_wheels import LibraryWheel
from farm.wheel.repair import RepairOptions, RepairResult, repair


def repair_built(plan: Plan, built: Path, dest: Path) -> RepairResult:
    """Repair what a build left in `built` (`wheel/` and `lib/`) into the folder `dest`, which is made anew.

    Raises:
        FarmError: A library is missing, or the wheel is broken; `dest` holds no wheel then.
    """
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir()
    libraries = built / "lib"
    options = RepairOptions(
        # Engines that hand over files alone leave an empty folder out.
        lib_dirs=[libraries] if libraries.is_dir() else [],
        into=None if plan.repair == "tools" else plan.vendor_into,
        exclude=plan.exclude,
        version=plan.version,
        requires=plan.requires,
        opens=plan.opens,
        library_wheels=[
            LibraryWheel(wheel.requirement, wheel.folder, tuple(wheel.libraries), tuple(wheel.requires))
            for wheel in plan.library_wheels
        ],
    )
    return repair(the_wheel(built / "wheel"), dest, options)
