"""All checks that apply to a machine."""

from farm.detect.readings import Readings
from farm.doctor.common import COMMON
from farm.doctor.findings import Finding, Patient, run_checks
from farm.doctor.site import Site
from farm.doctor.unix import LINUX, MACOS
from farm.doctor.windows import WINDOWS
from farm.plan import Plan


def examine(site: Site, readings: Readings, plan: Plan | None) -> list[Finding]:
    """Every finding about the machine; `plan` is the build that it shall be fit for, if one is known."""
    platform = readings.os.platform
    own = {"msvc": WINDOWS, "clang": MACOS, "gcc": LINUX}[platform.compiler] if platform else ()
    return run_checks(Patient(site, readings, plan), (*own, *COMMON))
