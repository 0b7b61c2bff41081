"""Does a wheel hold what its name promises?

Every check gives its findings in words for the person who has to act: what is wrong, why it matters, what to do.
A wheel from anywhere may be given: what is hostile or broken gives a failed report.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

from farm.base.errors import UsageError, VerificationFailedError
from farm.base.hashes import sha256_and_size
from farm.base.tags import serves
from farm.wheel.abi import SUFFIX, check_abi
from farm.wheel.archive import Archive, Limits, check_is_file
from farm.wheel.calls import follow_calls
from farm.wheel.dependencies import DependencyWheel, read_dependencies
from farm.wheel.device import check_ptx, check_sass
from farm.wheel.host import check_cpu, check_imports, check_platform
from farm.wheel.install import check_install, check_members, check_metadata
from farm.wheel.isalevels import arm_level_names, level_names
from farm.wheel.library import Contents, read_contents
from farm.wheel.link import check_link
from farm.wheel.metadata import DistInfo, WheelName, parse_wheel_name, read_dist_info, same_name, same_version
from farm.wheel.policy import CheckId, Policy, Waiver
from farm.wheel.record import compare_record, read_record
from farm.wheel.report import Check, Dependency, Finding, Report, waive
from farm.wheel.tags import check_supported, level_of_tag, platform_of

_EMPTY_LINE = re.compile(rb"(?:\A|\n)\r?\n")
_MAX_FINDINGS = 50  # of one check: a report is read by people


def verify(
    wheel: Path,
    policy: Policy,
    *,
    waivers: Sequence[Waiver] = (),
    dependencies: Sequence[Path] = (),
    limits: Limits | None = None,
) -> Report:
    """Check a wheel against what it promises.

    Args:
        wheel: The file.
        policy: What its name promises.
        waivers: Findings that are accepted: they stay in the report, with the reason, and do not fail it.
        dependencies: Wheels, or folders of wheels, that it requires and leaves libraries to: its imports are
            followed into them, and their device code must run on the promised GPUs too.
        limits: What the wheel may ask of this machine.

    Raises:
        UsageError: The file or a dependency cannot be read, or one that is given is not required.
    """
    check_supported(wheel.name)
    sha256, size = _hash(wheel)
    checks, others = _checks(wheel, policy, dependencies, limits)
    return Report(
        wheel=wheel.name,
        sha256=sha256,
        size=size,
        policy=policy,
        dependencies=tuple(Dependency(wheel=each.file, sha256=each.sha256) for each in others),
        checks=tuple(_bounded(waive(check, waivers)) for check in checks),
        waivers=tuple(waivers),
    )


def _hash(wheel: Path) -> tuple[str, int]:
    try:
        check_is_file(wheel)
        return sha256_and_size(wheel)
    except OSError as error:
        raise UsageError(f"{wheel}: cannot be read ({error.strerror})") from error


def _checks(
    wheel: Path, policy: Policy, dependencies: Sequence[Path], limits: Limits | None
) -> tuple[list[Check], tuple[DependencyWheel, ...]]:
    def level_of(member: str) -> str | None:
        exempt = any(fnmatchcase(member, pattern) for pattern in policy.cpu_exempt)
        known = policy.cpu in (*level_names(), *arm_level_names())
        return policy.cpu if known and not exempt else None

    try:
        with Archive(wheel, limits) as archive:
            contents = read_contents(archive, level_of, policy.dispatching, chosen=policy.chosen, with_symbols=True)
            contents = contents._replace(
                libraries=follow_calls(archive, contents.libraries, contents.symbols, contents.dispatching)
            )
            info = read_dist_info(archive)
            tags = _promised(wheel.name, info)
            # Nothing is promised, so the wheel is held to its own tags.
            if policy.platform is None:
                policy = policy.model_copy(update={"platform": platform_of(tags)})
            recorded = _guarded("record", lambda: _check_record(archive, info, contents))
            metadata = archive.read(f"{info.folder}/METADATA")
    except VerificationFailedError as error:
        return _unreadable(error), ()
    others = read_dependencies(dependencies, info, limits)
    theirs = tuple(library for other in others for library in other.libraries)
    contents = contents._replace(dependencies=theirs, requires=info.requires_dist)
    return [
        Check(id="archive", status="passed", note=f"{len(contents.files)} files"),
        _guarded("names", lambda: _check_names(wheel.name, info, policy, contents)),
        _guarded("abi", lambda: check_abi(contents, tags)),
        _guarded("install", lambda: check_install(info, policy, metadata)),
        _guarded("metadata", lambda: check_metadata(info, policy)),
        recorded,
        _guarded("members", lambda: check_members(contents, policy)),
        _guarded("platform", lambda: check_platform(contents, policy, tags)),
        _guarded("imports", lambda: check_imports(contents, policy, tags)),
        _guarded("link", lambda: check_link(contents, policy, tags)),
        _guarded("sass", lambda: check_sass(contents, policy)),
        _guarded("ptx", lambda: check_ptx(contents, policy)),
        _guarded("cpu", lambda: check_cpu(contents, policy)),
    ], others


def _promised(filename: str, info: DistInfo) -> frozenset[str]:
    """The tags by which pip decides: the file name's. Where WHEEL has others, `names` says so."""
    try:
        return parse_wheel_name(filename).tags
    except VerificationFailedError:
        return info.tags


def _unreadable(error: VerificationFailedError) -> list[Check]:
    finding = Finding(
        check="archive",
        where="",
        what=str(error),
        why="installers would refuse it, or unpack something else than was checked",
        fix="build or download the wheel again; do not install this file",
        waivable=False,
    )
    ids: tuple[CheckId, ...] = get_args(CheckId)
    note = "the archive cannot be read"
    failed = Check(id="archive", status="failed", findings=(finding,))
    return [failed, *(Check(id=each, status="not_run", note=note) for each in ids if each != "archive")]


def _guarded(check: CheckId, run: Callable[[], Check]) -> Check:
    """A check that cannot go on has failed."""
    try:
        return run()
    except VerificationFailedError as error:
        fix = error.hint or "build the wheel again"
        why = "the rest of this check was not made"
        finding = Finding(check=check, where="", what=str(error), why=why, fix=fix, waivable=False)
        return Check(id=check, status="failed", findings=(finding,))


def _bounded(check: Check) -> Check:
    if len(check.findings) <= _MAX_FINDINGS:
        return check
    note = f"{check.note}; {len(check.findings)} findings, the first {_MAX_FINDINGS} shown".lstrip("; ")
    return check.model_copy(update={"findings": check.findings[:_MAX_FINDINGS], "note": note})


def _check_names(filename: str, info: DistInfo, policy: Policy, contents: Contents) -> Check:
    name = parse_wheel_name(filename)
    folder_name, _, folder_version = info.stem.partition("-")
    claims = [
        ("METADATA", info.name, info.version),
        ("the .dist-info folder", folder_name, folder_version),
        ("the policy", policy.name or name.name, policy.version or name.version),
    ]
    wrong = []
    for who, its_name, its_version in claims:
        if not same_name(name.name, its_name):
            wrong.append(f"the file name says {name.name}, {who} says {its_name}")
        if not same_version(name.version, its_version):
            wrong.append(f"the file name says version {name.version}, {who} says {its_version}")
    if (written := "-".join(name.parts[-3:])) != written.lower():
        wrong.append(f"the tags {written} are not in lower case, and uv knows no others")
    wrong += _check_python(name, policy.python, for_some=_is_for_some(contents)) if policy.python else []
    why = "pip refuses such a wheel, or installs it for a Python or under a version that it is not for"
    found = [(what, why) for what in wrong]
    if name.tags != info.tags and _by_level(name.tags) != _by_level(info.tags):
        differing = ", ".join(sorted(name.tags ^ info.tags)[:5])
        why = "pip goes by the file name; `wheel pack`, and what else reads WHEEL, take it for another wheel"
        found.append((f"the tags in the file name and in WHEEL differ: {differing}", why))
    fix = "repair the wheel with the right version; never rename a wheel by hand"
    findings = tuple(Finding(check="names", where=info.folder, what=what, why=why, fix=fix) for what, why in found)
    return Check(id="names", status="failed" if findings else "passed", findings=findings, note=filename)


def _by_level(tags: frozenset[str]) -> set[str]:
    """The tags, each level of manylinux under one of its names: manylinux2014 is manylinux_2_17 (PEP 600)."""
    found = set()
    for tag in tags:
        start, _, platform = tag.rpartition("-")
        known = level_of_tag(platform)
        found.add(f"{start}-{known[0].name}_{known[1]}" if known else tag)
    return found


def _is_for_some(contents: Contents) -> bool:
    """True if a library is named after the Pythons that import it."""
    return any(each.is_loadable and SUFFIX.search(each.path.rpartition("/")[2]) for each in contents.libraries)


def _check_python(name: WheelName, python: str, *, for_some: bool) -> list[str]:
    found = {(tag, abi) for tag, abi, _ in (each.split("-") for each in name.tags)}
    # `py2.py3-none`: the first does no harm beside the second.
    if any(_serves(*pair, python, for_some=for_some) for pair in found if pair[1] == "none"):
        found -= {("py2", "none")}
    wrong = sorted("-".join(pair) for pair in found if not _serves(*pair, python, for_some=for_some))
    return [f"it is for {pair}; promised is {python}" for pair in wrong]


def _serves(tag: str, abi: str, python: str, *, for_some: bool) -> bool:
    """As pip decides; but where a library is `for_some` Pythons alone, others would install `py3-none` in vain."""
    return serves(tag, abi, f"py{python.removeprefix('cp')}") and not (for_some and tag.startswith("py"))


def _check_record(archive: Archive, info: DistInfo, contents: Contents) -> Check:
    record, rows = read_record(archive, info.record)
    wrong = compare_record(rows, info.record, contents.files)
    if _EMPTY_LINE.search(record):
        wrong.append((info.record, "an empty line, at which pip fails"))
    findings = tuple(
        Finding(
            check="record",
            where=path,
            what=what,
            why="installers that check RECORD refuse the wheel; a file may have been exchanged",
            fix="repair the wheel, which rebuilds RECORD, or build it again if the file should not have changed",
        )
        for path, what in wrong
    )
    note = f"{len(contents.files)} hashes recomputed"
    return Check(id="record", status="failed" if findings else "passed", findings=findings, note=note)
