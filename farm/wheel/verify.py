"""Does a wheel hold what its name promises?

A wheel from anywhere may be given: what is hostile or broken gives a failed report.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from farm.base.errors import UsageError, VerificationFailedError
from farm.base.hashes import sha256_and_size
from farm.policy.levels import arm_level_names, level_names
from farm.policy.rules import CheckId, Chosen, Policy, Waiver
from farm.wheel.archive import Archive, check_is_file
from farm.wheel.checks.cpu import held_to
from farm.wheel.checks.registry import CHECKS
from farm.wheel.checks.subject import Subject, fits_any, not_run, outcome
from farm.wheel.library import Code, Contents, Library, read_contents, with_open_calls
from farm.wheel.metadata import parse_wheel_name, read_dist_info
from farm.wheel.needs import DependencyWheel, read_dependencies
from farm.wheel.report import Check, Dependency, Finding, Report, waive
from farm.wheel.tags import check_supported, platform_of

_MAX_FINDINGS = 50  # of one check: a report is read by people


def verify(
    wheel: Path,
    policy: Policy,
    *,
    waivers: Sequence[Waiver] = (),
    dependencies: Sequence[Path] = (),
) -> Report:
    """Check a wheel against what its name promises.

    Args:
        wheel: The file.
        policy: What it is held to.
        waivers: Findings that are accepted: they stay in the report, with the reason, and do not
            fail it.
        dependencies: Wheels, or folders of wheels, that it requires and leaves libraries to. Its
            imports are followed into them, and their device code must run on the promised GPUs too.

    Raises:
        UsageError: The file or a dependency cannot be read, or one that is given is not required.
    """
    check_supported(wheel.name)
    try:
        check_is_file(wheel)
        sha256, size = sha256_and_size(wheel)
    except OSError as error:
        raise UsageError(f"{wheel}: cannot be read ({error.strerror})") from error
    checks, required = _run_checks(wheel, policy, dependencies)
    read_with_it = []
    for dependency in required:
        read_with_it.append(Dependency(wheel=dependency.file, sha256=dependency.sha256))
    return Report(
        wheel=wheel.name,
        sha256=sha256,
        size=size,
        policy=policy,
        dependencies=tuple(read_with_it),
        checks=tuple(_bounded(waive(check, waivers)) for check in checks),
        waivers=tuple(waivers),
    )


def findings_of(wheel: Path, policy: Policy, contents: Contents) -> list[Finding]:
    """Check a wheel whose members are known, and are not read again.

    Args:
        wheel: The file, as repair wrote it.
        policy: What it is held to; it promises nothing of machine code.
        contents: What is known of its members.
    """
    checks, _ = _run_checks(wheel, policy, (), contents)
    findings: list[Finding] = []
    for check in checks:
        findings += _bounded(check).findings
    return findings


def _run_checks(
    wheel: Path,
    policy: Policy,
    dependencies: Sequence[Path],
    contents: Contents | None = None,
) -> tuple[list[Check], tuple[DependencyWheel, ...]]:
    """Run all checks; the wheels that were read with it."""
    try:
        archive = Archive(wheel)
    except VerificationFailedError as error:
        return _not_read(error), ()
    with archive:
        try:
            if contents is None:
                contents = _read_contents(archive, policy)
            info = read_dist_info(archive)
            metadata = archive.read(f"{info.folder}/METADATA")
        except VerificationFailedError as error:
            return _not_read(error), ()
        tags = info.tags
        # pip goes by the file name's tags. Where WHEEL has others, `names` says so.
        with suppress(VerificationFailedError):
            tags = parse_wheel_name(wheel.name).tags
        # Nothing is promised, so the wheel is held to its own tags.
        if policy.platform is None:
            policy = policy.model_copy(update={"platform": platform_of(tags)})
        required = read_dependencies(dependencies, info)
        libraries: list[Library] = []
        for dependency in required:
            libraries += dependency.libraries
        contents = contents._replace(dependencies=tuple(libraries), requires=info.requires_dist)
        subject = Subject(
            filename=wheel.name,
            archive=archive,
            info=info,
            metadata=metadata,
            tags=tags,
            contents=contents,
            policy=policy,
        )
        checks = []
        for name, run in CHECKS.items():
            check = _guarded(name, run, subject)
            checks.append(check)
        return checks, required


def _read_contents(archive: Archive, policy: Policy) -> Contents:
    """Read all members, and decode the machine code that is held to the promised CPU level."""
    can_be_checked = policy.cpu in (*level_names(), *arm_level_names())

    def code_of(member: str) -> Code | None:
        level = held_to(policy, member)
        if level is None or not can_be_checked or fits_any(member, policy.cpu_exempt):
            return None
        # Where a library chooses its code at run time, what runs on loading alone is checked.
        on_load = fits_any(member, policy.dispatching)
        return Code(level, on_load=on_load, chosen=_chosen_in(policy, member))

    contents = read_contents(archive, code_of, with_symbols=True)
    return contents._replace(libraries=with_open_calls(archive, contents))


def _chosen_in(policy: Policy, member: str) -> Chosen | None:
    """The functions of a member that are called behind a choice at run time."""
    for pattern, functions in policy.chosen.items():
        if fnmatchcase(member, pattern):
            return functions
    return None


def _not_read(error: VerificationFailedError) -> list[Check]:
    """The checks of a wheel that cannot be read."""
    unreadable = Finding(
        check="archive",
        where="",
        what=str(error),
        why="installers would refuse it, or unpack something else than was checked",
        fix="build or download the wheel again; do not install this file",
        waivable=False,  # nothing else was checked
    )
    checks = []
    for name in CHECKS:
        if name == "archive":
            checks.append(outcome("archive", [unreadable]))
        else:
            checks.append(not_run(name, "the archive cannot be read"))
    return checks


def _guarded(name: CheckId, run: Callable[[Subject], Check], subject: Subject) -> Check:
    """Run a check; one that cannot go on has failed."""
    try:
        return run(subject)
    except VerificationFailedError as error:
        broken_off = Finding(
            check=name,
            where="",
            what=str(error),
            why="the rest of this check did not run",
            fix=error.hint or "build the wheel again",
            waivable=False,
        )
        return outcome(name, [broken_off])


def _bounded(check: Check) -> Check:
    """A check with the first of its findings, where there are very many."""
    if len(check.findings) <= _MAX_FINDINGS:
        return check
    count = f"{len(check.findings)} findings, the first {_MAX_FINDINGS} shown"
    note = f"{check.note}; {count}" if check.note else count
    findings = check.findings[:_MAX_FINDINGS]
    return check.model_copy(update={"findings": findings, "note": note})
