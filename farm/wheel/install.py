"""Checks of installability: WHEEL, METADATA, requirements and members.

Sources: PyPA specifications, "Binary distribution format" and "Core metadata".
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase, translate

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.metadata import InvalidMetadata, Metadata, RawMetadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from farm.base.errors import VerificationFailedError
from farm.base.requirement import read_requirement
from farm.base.text import printable
from farm.platforms.facts import DEFAULT, split_platform
from farm.wheel.library import Contents
from farm.wheel.metadata import DistInfo, same_name
from farm.wheel.policy import Forbidden, Policy, defaults
from farm.wheel.report import Check, Finding

# setuptools before 77 writes License-File into these (pypa/setuptools#4759).
_BEFORE_LICENSES = ("2.1", "2.2", "2.3")
_MICRO = (0, 1, 5, 10, 20, 50)  # a bound may name a micro version (>=3.8.1), so a few of them are tried


def check_install(info: DistInfo, policy: Policy, metadata: bytes) -> Check:
    """Nothing in WHEEL and METADATA that installers or the Python index refuse."""
    found = [(f"{info.folder}/WHEEL", what) for what in _wheel_file(info)]
    found += [
        (f"{info.folder}/METADATA", what)
        for what in (*_core_metadata(metadata), *_direct_urls(info, policy), *_requires_python(info, policy))
    ]
    findings = tuple(
        Finding(
            check="install",
            where=where,
            what=what,
            why="pip, uv or the Python index refuses the wheel, or installs it without what it needs",
            fix="farm repair writes this file anew"
            if where.endswith("/WHEEL")
            else "correct the package's build configuration (pyproject.toml, setup.cfg) and build the wheel again",
        )
        for where, what in found
    )
    return Check(id="install", status="failed" if findings else "passed", findings=findings)


def _wheel_file(info: DistInfo) -> Iterator[str]:
    versions = info.wheel_headers.get("wheel-version", [])
    if len(versions) != 1 or not re.fullmatch(r"1\.\d{1,4}", versions[0].strip(), re.ASCII):
        yield f"Wheel-Version is {', '.join(versions)[:80] or 'missing'}; there must be one, and installers know 1.x"
    pure = info.wheel_headers.get("root-is-purelib", [])
    # Installers take a missing one for false.
    if len(pure) > 1 or any(each.strip().lower() not in ("true", "false") for each in pure):
        yield f"Root-Is-Purelib is {', '.join(pure)[:80]}; there must be one, true or false"
    for line in info.no_tags:
        yield f"Tag is {line[:80]!r}, which is none (python-abi-platform)"


def _core_metadata(content: bytes) -> Iterator[str]:
    """Violations of the core metadata specification, of which the Python index refuses some and installers others."""
    raw, unparsed = parse_email(content)
    known = {name.replace("_", "-") for name in RawMetadata.__annotations__}
    for field in sorted(unparsed):
        if field in known or f"{field}s" in known:  # others are of a newer version, or someone's own
            yield f"{field.title()} is there twice, or is malformed"
    if raw.get("metadata_version") in _BEFORE_LICENSES:
        raw.pop("license_files", None)
    try:
        Metadata.from_raw(raw)
    except RecursionError:
        yield "a field is nested too deeply to be read"
    except ExceptionGroup as group:
        for error in group.exceptions:
            field = error.field.title() if isinstance(error, InvalidMetadata) else "METADATA"
            yield f"{field}: {printable(str(error))[:200]}"


def _direct_urls(info: DistInfo, policy: Policy) -> Iterator[str]:
    for line in () if policy.direct_urls else info.requires_dist:
        try:
            url = read_requirement(line).url
        except InvalidRequirement:
            continue  # `_core_metadata` says so
        if url is not None:
            yield f"Requires-Dist {line[:80]!r}: a direct URL, which an index cannot serve and a user cannot replace"


def _requires_python(info: DistInfo, policy: Policy) -> Iterator[str]:
    if policy.python is None or info.requires_python is None:
        return
    minor = re.sub(r"\D", "", policy.python)[1:]
    try:
        allowed = SpecifierSet(info.requires_python)
    except InvalidSpecifier:
        return  # as above
    if not any(allowed.contains(f"3.{minor}.{micro}") for micro in _MICRO):
        yield f"Requires-Python {info.requires_python!r} excludes {policy.python}, which is promised"


_MAX_REQUIREMENTS = 2000


def check_metadata(info: DistInfo, policy: Policy) -> Check:
    """METADATA must keep pip from installing a numpy that the wheel cannot work with."""
    if policy.numpy is None:
        return Check(id="metadata", status="not_run", note="no bound on numpy is promised")
    where = f"{info.folder}/METADATA"
    declared = [each for each in _requirements(info, where) if same_name(each.name, "numpy")]
    # pip heeds all that apply, so what is allowed is what all of them allow.
    allowed = SpecifierSet()
    for each in declared:
        if each.url is None and _applies(each, policy, where):
            allowed &= each.specifier
    witness = _outside(allowed, SpecifierSet(policy.numpy))
    listed = ", ".join(str(each) for each in declared) or "nothing about numpy"
    if witness is None:
        return Check(id="metadata", status="passed", note=f"requires {listed}")
    finding = Finding(
        check="metadata",
        where=where,
        what=f"requires {listed}, which allows numpy {witness}; it must stay within {policy.numpy}",
        why="pip installs or keeps a numpy of another ABI: 'Numpy is not available', or a crash on import",
        fix=f"declare numpy{policy.numpy} in the package's install requirements",
    )
    return Check(id="metadata", status="failed", findings=(finding,))


def check_members(contents: Contents, policy: Policy) -> Check:
    """No file that the policy forbids."""
    reasons = {rule if isinstance(rule, str) else rule.pattern: _why_forbidden(rule) for rule in policy.forbidden}
    any_of = re.compile("|".join(map(translate, reasons)) or r"\b\B")  # ten thousand members, at one look each
    findings = tuple(
        Finding(
            check="members",
            where=name,
            what=f"has no place in the wheel (policy: {pattern})",
            why=reasons[pattern],
            fix="leave it out of the build, or build from a clean folder; PyTorch: BUILD_TEST=0, INSTALL_TEST=0",
        )
        for name in filter(any_of.match, contents.files)
        for pattern in [next(each for each in reasons if fnmatchcase(name, each))]
    )
    return Check(id="members", status="failed" if findings else "passed", findings=findings)


def _why_forbidden(rule: str | Forbidden) -> str:
    if not isinstance(rule, str):
        return rule.reason
    return defaults("forbidden_reason")[0] if rule in defaults("forbidden") else "the policy forbids such files"


def _requirements(info: DistInfo, where: str) -> Iterator[Requirement]:
    if len(info.requires_dist) > _MAX_REQUIREMENTS:
        raise VerificationFailedError(f"{where}: more than {_MAX_REQUIREMENTS} Requires-Dist headers")
    for line in info.requires_dist:
        try:
            yield read_requirement(line)
        except InvalidRequirement as error:
            raise VerificationFailedError(f"{where}: Requires-Dist {line[:80]!r} cannot be read") from error


def _applies(requirement: Requirement, policy: Policy, where: str) -> bool:
    """True if pip heeds it where the wheel is for, without extras."""
    if requirement.marker is None:
        return True
    digits = (policy.python or "cp311").removeprefix("cp").removesuffix("t")
    python = f"{digits[:1]}.{digits[1:]}"
    # A wheel for any platform is judged as on Linux.
    platform, machine = split_platform(policy.platform or f"{DEFAULT}_")
    os_name, sys_platform, platform_system = platform.markers
    environment = {
        "extra": "",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": os_name,
        "sys_platform": sys_platform,
        "platform_system": platform_system,
        "platform_machine": platform.marker_machines.get(machine, machine),
    }
    try:
        return requirement.marker.evaluate(environment)
    except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion) as error:
        raise VerificationFailedError(f"{where}: the condition of {str(requirement)[:80]!r} is wrong") from error


def _outside(allowed: SpecifierSet, bound: SpecifierSet) -> Version | None:
    """The highest version, among those where a verdict can change, that is allowed and breaks the bound.

    A specifier changes its verdict at the version that it names or where one of that version's leading parts
    counts on (`==1.*`, `~=1.2`): it is enough to try those, their neighbours and the extremes.
    """
    tried = {Version("0.1"), Version("9999")}
    for specifier in (*allowed, *bound):
        try:
            version = Version(specifier.version.removesuffix(".*"))
        except InvalidVersion:  # `===` takes any text
            continue
        tried.add(version)
        for length in range(1, len(version.release) + 1):
            head = version.release[:length]
            tried.add(Version(".".join(map(str, (*head[:-1], head[-1] + 1)))))
            tried.add(Version(".".join(map(str, (*head, 0, 1)))))
            if head[-1]:
                tried.add(Version(".".join(map(str, (*head[:-1], head[-1] - 1, 9999)))))
    wrong = [v for v in tried if allowed.contains(v, prereleases=True) and not bound.contains(v, prereleases=True)]
    return max(wrong, default=None)
