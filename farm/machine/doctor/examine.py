"""All checks of `farm doctor` that apply to a machine: for its system, for building or for use alone."""

from farm.machine.detect.readings import Readings
from farm.machine.doctor.common import BUILD, USE
from farm.machine.doctor.findings import Finding, Patient, run_checks
from farm.machine.doctor.site import Site
from farm.machine.doctor.unix import LINUX_BUILD, LINUX_USE, MACOS_BUILD
from farm.machine.doctor.windows import WINDOWS_BUILD, WINDOWS_USE
from farm.plan.file import Plan


def examine(site: Site, readings: Readings, plan: Plan | None, *, build: bool = True) -> list[Finding]:
    """Every finding about the machine; `plan` is the build that it shall be fit for, if one is known.

    Without `build`, only what installing and using wheels needs is looked at.
    """
    platform = readings.os.platform
    use = {"msvc": WINDOWS_USE, "clang": (), "gcc": LINUX_USE}[platform.compiler] if platform else ()
    own = {"msvc": WINDOWS_BUILD, "clang": MACOS_BUILD, "gcc": LINUX_BUILD}[platform.compiler] if platform else ()
    checks = (*own, *BUILD, *USE, *use) if build else (*USE, *use)
    return run_checks(Patient(site, readings, plan), checks)
