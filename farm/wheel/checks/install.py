"""The check `install`: nothing in WHEEL and METADATA that installers or the Python index refuse."""

import re
from collections.abc import Iterator

from packaging.metadata import InvalidMetadata, Metadata, RawMetadata, parse_email
from packaging.requirements import InvalidRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from farm.base.requirement import read_requirement
from farm.base.text import printable
from farm.wheel.checks.subject import Subject, outcome
from farm.wheel.metadata import DistInfo
from farm.wheel.policy import Check, Finding, Policy

# setuptools before 77 writes License-File into these (pypa/setuptools#4759).
_BEFORE_LICENSES = ("2.1", "2.2", "2.3")
# A bound may name a micro version (>=3.8.1), so a few of them are tried.
_MICRO_VERSIONS = (0, 1, 5, 10, 20, 50)


def check(subject: Subject) -> Check:
    """Read WHEEL and METADATA as installers and the Python index do."""
    info = subject.info
    findings = [_wheel(info, problem) for problem in _wheel_file(info)]
    problems = [
        *_core_metadata(subject.metadata),
        *_direct_urls(info, subject.policy),
        *_requires_python(info, subject.policy),
    ]
    findings += [_metadata(info, problem) for problem in problems]
    return outcome("install", findings)


def _refused(where: str, what: str, fix: str) -> Finding:
    return Finding(
        check="install",
        where=where,
        what=what,
        why="pip, uv or the Python index refuses the wheel, or installs it without what it needs",
        fix=fix,
    )


def _wheel(info: DistInfo, what: str) -> Finding:
    return _refused(f"{info.folder}/WHEEL", what, "farm repair writes this file anew")


def _metadata(info: DistInfo, what: str) -> Finding:
    return _refused(
        f"{info.folder}/METADATA",
        what,
        "correct the package's build configuration (pyproject.toml, setup.cfg) and build the "
        "wheel again",
    )


def _wheel_file(info: DistInfo) -> Iterator[str]:
    versions = info.wheel_headers.get("wheel-version", [])
    if len(versions) != 1 or not re.fullmatch(r"1\.\d{1,4}", versions[0].strip(), re.ASCII):
        yield (
            f"Wheel-Version is {', '.join(versions)[:80] or 'missing'}; there must be one, and "
            "installers know 1.x"
        )
    pure = info.wheel_headers.get("root-is-purelib", [])
    # Installers take a missing one for false.
    if len(pure) > 1 or any(value.strip().lower() not in ("true", "false") for value in pure):
        yield f"Root-Is-Purelib is {', '.join(pure)[:80]}; there must be one, true or false"
    for line in info.no_tags:
        yield f"Tag is {line[:80]!r}, which is not python-abi-platform"


def _core_metadata(content: bytes) -> Iterator[str]:
    """Violations of the core metadata specification, of which the Python index refuses some and
    installers others.
    """
    raw, unparsed = parse_email(content)
    names = {name.replace("_", "-") for name in RawMetadata.__annotations__}
    for field in sorted(unparsed):
        # Other fields are of a newer version, or someone's own.
        if field in names or f"{field}s" in names:
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
    if policy.direct_urls:
        return
    for line in info.requires_dist:
        try:
            url = read_requirement(line).url
        except InvalidRequirement:
            continue  # `_core_metadata` says so
        if url is not None:
            yield (
                f"Requires-Dist {line[:80]!r}: a direct URL, which an index cannot serve and a "
                "user cannot replace"
            )


def _requires_python(info: DistInfo, policy: Policy) -> Iterator[str]:
    if policy.python is None or info.requires_python is None:
        return
    minor = re.sub(r"\D", "", policy.python)[1:]
    try:
        allowed = SpecifierSet(info.requires_python)
    except InvalidSpecifier:
        return  # as above
    if not any(allowed.contains(f"3.{minor}.{micro}") for micro in _MICRO_VERSIONS):
        yield (
            f"Requires-Python {info.requires_python!r} excludes {policy.python}, which is promised"
        )
