"""Repair: a wheel as built becomes one that carries its libraries and says truly where it runs.

Two ways lead there, and `RepairOptions.into` chooses: `farm.wheel.vendor` puts libraries where the package looks
already and changes none; `farm.wheel.tools` has auditwheel or delvewheel change them.
"""

from pathlib import Path

from farm.base.errors import UsageError
from farm.wheel.archive import Limits
from farm.wheel.metadata import check_supported
from farm.wheel.vendor import RepairOptions, RepairResult, opened, vendor

__all__ = ["RepairOptions", "RepairResult", "repair"]


def repair(wheel: Path, dest: Path, options: RepairOptions, *, limits: Limits | None = None) -> RepairResult:
    """Write a wheel that needs nothing but the system: with its libraries and, for Linux, true tags.

    Args:
        wheel: The wheel as built.
        dest: An existing folder; the new wheel's name follows from its version and tags.
        options: What to do.
        limits: What the wheel may ask of this machine.

    Raises:
        UsageError: A path, the version or a requirement is wrong.
        VerificationFailedError: A library is not found or would not be found at run time, the wheel is damaged,
            a tool refuses it, or no manylinux level fits. Nothing is left behind in `dest`.
        InfrastructureError: A tool is wanted and not installed, or takes more than an hour.
    """
    check_supported(wheel.name)
    for folder in options.lib_dirs:
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder of libraries", hint="give --lib-dir a folder that is there")
    patterns = options.opens
    if options.library_wheels:
        from farm.wheel.library_wheels import without_wheel_libraries  # noqa: PLC0415 (as below)

        patterns = without_wheel_libraries(patterns, options.library_wheels)
    opens = opened(options.lib_dirs, patterns)
    if options.into is not None:
        return vendor(wheel, dest, options, options.into, opens, limits=limits)
    from farm.wheel.tools import repair_by_tools  # noqa: PLC0415 (slow to import, and not always needed)

    return repair_by_tools(wheel, dest, options, opens)
