"""The steps on a wheel that was built: repair as the plan says, then verify."""

import json
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import Version

from farm.base.errors import BuildFailedError, InfrastructureError, UsageError, VerificationFailedError
from farm.plan.environment import feature_text
from farm.plan.file import Plan
from farm.plan.recipe import folder
from farm.run.build import the_wheel
from farm.wheel.metadata import parse_wheel_name
from farm.wheel.policy import Report
from farm.wheel.repair import LibraryWheel, RepairOptions, RepairResult, repair
from farm.wheel.verify import verify

if TYPE_CHECKING:
    from farm.plan.file import Plan


def repair_built(plan: Plan, built: Path, dest: Path) -> RepairResult:
    """Repair what a build left in `built` (`wheel/` and `lib/`) into the folder `dest`, which is made anew.

    Raises:
        BuildFailedError: The source is another release than the recipe says.
        FarmError: A library is missing, or the wheel is broken; `dest` holds no wheel then.
    """
    wheel = the_wheel(built / "wheel")
    libraries = built / "lib"
    # Engines that hand over files alone leave an empty folder out.
    options = repair_options(plan, wheel, [libraries] if libraries.is_dir() else [])
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir()
    return repair(wheel, dest, options)


def repair_options(plan: Plan, wheel: Path, lib_dirs: list[Path]) -> RepairOptions:
    """Options of the repair of a wheel, as the plan has them, with the folders where libraries are searched for.

    Raises:
        BuildFailedError: The wheel is of another package or release than the plan.
    """
    _check_promise(plan, wheel)
    return RepairOptions(
        lib_dirs=lib_dirs,
        into=None if plan.repair == "tools" else plan.vendor_into,
        exclude=plan.exclude,
        version=plan.version,
        requires=plan.requires,
        opens=plan.opens,
        description=feature_text(plan.features, plan.without),
        library_wheels=[
            LibraryWheel(wheel.requirement, wheel.folder, tuple(wheel.libraries), tuple(wheel.requires))
            for wheel in plan.library_wheels
        ],
    )


def _check_promise(plan: Plan, wheel: Path) -> None:
    """Refuse another package, and another release, as after one whose recipe still has the old number.

    Its number would be written over. A build that does not know its release says 0 or one of development, without git
    for instance; the files of PyTorch and of its companions say a0 in every release.
    """
    name = parse_wheel_name(wheel.name)
    if name.name != canonicalize_name(plan.package):
        raise BuildFailedError(
            f"the build made {name.parts[0]}, and the recipe's package is {plan.package}",
            hint=f"correct package or source of {folder(plan.recipe) / 'recipe.yaml'}",
        )
    built, wanted = Version(name.version), Version(plan.version)
    parts = [each.base_version if built.pre == ("a", 0) else each.public for each in (built, wanted)]
    version, expected = map(canonicalize_version, parts)
    known = any(built.release) and not built.is_devrelease
    if known and version != expected:
        raise BuildFailedError(
            f"the build made {plan.package} {built}, and the recipe's version is {wanted.public}",
            hint=f"correct version or source of {folder(plan.recipe) / 'recipe.yaml'}",
        )


def check_wheel(wheel: Path, plan: "Plan", report_file: Path, dependencies: Sequence[Path] = ()) -> Report:
    """Verify a wheel against its plan and leave the report in `report_file`.

    `dependencies`: wheels, or folders of wheels, that it leaves libraries to.

    Raises:
        VerificationFailedError: It does not hold what it promises; every finding is in the text.
    """
    report = _decided(verify(wheel, plan.verify, dependencies=dependencies), wheel)
    # Written before it is judged: a wheel that is refused needs its report most.
    report_file.write_text(report_text(report), encoding="utf-8")
    if not report.passed:
        raise refusal(report, report_file)
    return report


def _decided(report: Report, wheel: Path) -> Report:
    """The report, with what it leaves open decided by loading those libraries on an emulated CPU."""
    cpu = report.check("cpu")
    if not cpu.undecided:
        return report
    from farm.smoke.emulation import emulate  # noqa: PLC0415 (slow to import, and seldom needed)

    try:
        return emulate(report, wheel, only=cpu.undecided)
    except (UsageError, InfrastructureError) as error:
        return report.replaced(cpu.model_copy(update={"emulated": f"not emulated: {error}"}))


def report_text(report: Report) -> str:
    """The text of `verify.json`."""
    return json.dumps(report.to_json(), indent=1) + "\n"


def refusal(report: Report, report_file: Path | None = None) -> VerificationFailedError:
    """The error that says everything that a report found."""
    lines: list[str] = []
    held = [finding for finding in report.findings if finding.waived is None]
    # Said once of findings in a row that have it in common: a CPU's extensions are ten.
    for (why, fix), findings in groupby(held, key=lambda finding: (finding.why, finding.fix)):
        lines += [f"  - {finding.text}" for finding in findings]
        lines.append(f"    why: {why}\n    fix: {fix}")
    return VerificationFailedError(
        f"{report.wheel} does not hold what its name promises:\n" + "\n".join(lines),
        hint=f"the whole report: {report_file}" if report_file else None,
    )


def summary(report: Report) -> str:
    """`archive, names, record … passed`, what was not run, and what an emulated CPU showed."""
    by_status: dict[str, list[str]] = {}
    for check in report.checks:
        by_status.setdefault(check.status.replace("_", " "), []).append(check.id)
    cpu = report.check("cpu")
    emulated = [cpu.seen] if cpu.emulated else []
    return "; ".join([*(f"{', '.join(ids)} {status}" for status, ids in by_status.items()), *emulated])
