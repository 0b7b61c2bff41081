"""Would installers and the Python index take it? WHEEL and METADATA.

Sources: PyPA specifications, "Binary distribution format" and "Core metadata".
"""

import re
from collections.abc import Iterator

from packaging.metadata import InvalidMetadata, Metadata, RawMetadata, parse_email
from packaging.requirements import InvalidRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from farm.base.requirement import read_requirement
from farm.base.text import printable
from farm.wheel.metadata import DistInfo
from farm.wheel.policy import Policy
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
            fix="correct the package's build configuration (pyproject.toml, setup.cfg) and build the wheel again",
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
