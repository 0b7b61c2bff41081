"""Would installers take it? WHEEL, METADATA, entry points and the installed tree, held to what pip and uv refuse.

Sources: PyPA specifications, "Binary distribution format", "Core metadata", "Entry points"; the code of pip 22 to 26,
uv and installer, with which `tests/e2e/wheel` compares.
"""

import re
from collections.abc import Iterator, Sequence

from packaging.metadata import InvalidMetadata, Metadata, RawMetadata, parse_email
from packaging.requirements import InvalidRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from farm.base.requirement import read_requirement, stated_name
from farm.base.text import printable
from farm.wheel.contents import Contents
from farm.wheel.entrypoints import read_entry_points
from farm.wheel.installed import Problem, check_tree
from farm.wheel.metadata import DistInfo, same_name
from farm.wheel.policy import Policy
from farm.wheel.report import Check, Finding

# Core metadata specification, "Metadata-Version"; the Python index and packaging know no others.
METADATA_VERSIONS = ("1.0", "1.1", "1.2", "2.1", "2.2", "2.3", "2.4", "2.5")
# setuptools before 77 writes License-File into these (pypa/setuptools#4759), for files beside METADATA.
_BEFORE_LICENSES = ("2.1", "2.2", "2.3")
_NAME = re.compile(r"[A-Z0-9]|[A-Z0-9][A-Z0-9._-]*[A-Z0-9]", re.IGNORECASE)
_NOT_ON_WINDOWS = re.compile(r"[<>\"|?*]")  # Microsoft, "Naming Files, Paths, and Namespaces"
_OF_LOCKS = re.compile(r"\b(?:extras|dependency_groups)\b")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_NO_VERSIONS = re.compile(r"\(\s*\)")
_FILES = (
    "entry_points.txt",
    "direct_url.json",
    "INSTALLER",
    "REQUESTED",
)  # of .dist-info; installers read or write them
_MAX_REQUIREMENTS = 2000
# These are looked at here, with more to say than `packaging.metadata` has.
_OWN_FIELDS = ("metadata-version", "name", "version", "requires-python", "requires-dist", "provides-extra")
_NEWEST_MINOR = 99  # of Python 3, for a tag such as py3 or cp37-abi3 that goes on with newer ones


def check_install(
    info: DistInfo,
    contents: Contents,
    policy: Policy,
    metadata_file: bytes,
    entry_points: bytes | None,
    foreign: Sequence[Problem] = (),
) -> Check:
    """Nothing that an installer refuses, and nothing that is overwritten when it installs.

    `foreign`: what is wrong with metadata of other packages in the wheel.
    """
    commands, wrong = read_entry_points(entry_points) if entry_points is not None else ((), ())
    metadata, wheel = f"{info.folder}/METADATA", f"{info.folder}/WHEEL"
    found = [*((wheel, what) for what in _wheel_file(info)), *((metadata, what) for what in _metadata(info, policy))]
    found += [(metadata, what) for what in (*_core_metadata(metadata_file), *_license_files(info, contents))]
    found += [(f"{info.folder}/entry_points.txt", what) for what in wrong]
    folders = tuple(f"{info.folder}/{name}/" for name in _FILES)
    found += [
        (name, "lies in a folder with the name of a file of .dist-info")
        for name in contents.files
        if name.startswith(folders)
    ]
    findings = [
        Finding(
            check="install",
            where=where,
            what=what,
            why="pip, uv or the Python index refuses the wheel, or installs it without what it needs",
            fix="correct the package's build configuration (pyproject.toml, setup.cfg) and build the wheel again",
        )
        for where, what in found
    ]
    findings += [
        Finding(
            check="install",
            where=problem.member,
            what=problem.what,
            why="what is installed then depends on the order of unpacking, or replaces files of others",
            fix="install each file once, under the package's own names, by a scheme of the wheel format",
        )
        for problem in (*check_tree(contents.files, info.name, info.data_folder, commands), *foreign)
    ]
    findings += [
        Finding(
            check="install",
            where=name,
            what=f"its name holds {match[0]!r}, which no file on Windows may have",
            why="the tags let Windows install the wheel, where unpacking fails half-way",
            fix="rename the file, or give the wheel the tag of a platform",
        )
        for name in (contents.files if any(tag.endswith("-any") or "-win" in tag for tag in info.tags) else ())
        if (match := _NOT_ON_WINDOWS.search(name))
    ]
    note = f"{len(contents.files)} files in place" + (f", {len(commands)} commands" if commands else "")
    return Check(id="install", status="failed" if findings else "passed", findings=tuple(findings), note=note)


def _wheel_file(info: DistInfo) -> Iterator[str]:
    versions = info.wheel_headers.get("wheel-version", [])
    version = versions[0].strip() if len(versions) == 1 else ""
    if not re.fullmatch(r"\d{1,4}\.\d{1,4}", version, re.ASCII):
        yield f"Wheel-Version is {', '.join(versions)[:80] or 'missing'}; there must be one, such as 1.0"
    elif version.partition(".")[0] != "1":
        yield f"Wheel-Version {version}: installers know 1.x"
    pure = info.wheel_headers.get("root-is-purelib", [])
    # Installers take a missing one for false.
    if len(pure) > 1 or any(each.strip().lower() not in ("true", "false") for each in pure):
        yield f"Root-Is-Purelib is {', '.join(pure)[:80]}; there must be one, true or false"


def _metadata(info: DistInfo, policy: Policy) -> Iterator[str]:
    declared = info.headers.get("metadata-version", [])
    if len(declared) != 1 or declared[0] not in METADATA_VERSIONS:
        yield f"Metadata-Version is {', '.join(declared)[:80] or 'missing'}; known are {', '.join(METADATA_VERSIONS)}"
    if not _NAME.fullmatch(info.name):
        yield f"Name {info.name[:80]!r} is not a valid distribution name"
    if not _is_version(info.version):
        yield f"Version {info.version[:80]!r} is not a version (PEP 440)"
    yield from _requires_python(info, policy)
    extras = info.headers.get("provides-extra", [])
    yield from (
        f"Provides-Extra {each[:80]!r} is not a valid name" for each in extras if not _NAME.fullmatch(each.strip())
    )
    if len(info.requires_dist) > _MAX_REQUIREMENTS:
        yield f"more than {_MAX_REQUIREMENTS} Requires-Dist headers"
    for line in info.requires_dist[:_MAX_REQUIREMENTS]:
        try:
            requirement = read_requirement(line)
        except InvalidRequirement:
            yield f"Requires-Dist {line[:80]!r} cannot be read (PEP 508)"
            continue
        if _NO_VERSIONS.search(line.partition(";")[0]):
            yield f"Requires-Dist {line[:80]!r} cannot be read by uv: parentheses around nothing"
        if requirement.marker is not None and _OF_LOCKS.search(_QUOTED.sub("", str(requirement.marker))):
            yield f"Requires-Dist {line[:80]!r} cannot be read: extras, dependency_groups are for lock files (PEP 751)"
        if any(each.operator == "===" and not _is_version(each.version) for each in requirement.specifier):
            yield f"Requires-Dist {line[:80]!r} cannot be read by uv: what follows === is no version"
        if requirement.url is not None and not policy.direct_urls:
            yield f"Requires-Dist {line[:80]!r}: a direct URL, which an index cannot serve and a user cannot replace"
        if same_name(requirement.name, info.name) and not requirement.extras and requirement.marker is None:
            yield f"Requires-Dist {line[:80]!r}: it requires itself"


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _core_metadata(content: bytes) -> Iterator[str]:
    """What else the specification of core metadata forbids, which the Python index refuses and installers ignore."""
    raw, unparsed = parse_email(content)
    if (name := stated_name(content)) != name.strip():  # pip then finds no such package
        yield f"Name {name[:80]!r} is not a valid distribution name: blanks or line ends around it"
    known = {name.replace("_", "-") for name in RawMetadata.__annotations__}
    for field in sorted(unparsed.keys() - set(_OWN_FIELDS)):
        if field in known or f"{field}s" in known:  # others are of a newer version, or somebody's own
            yield f"{field.title()} is there twice, or is malformed"
    if raw.get("metadata_version") in _BEFORE_LICENSES:
        raw.pop("license_files", None)
    try:
        Metadata.from_raw(raw)
    except RecursionError:
        yield "a field is nested too deeply to be read"
    except ExceptionGroup as group:
        for error in group.exceptions:
            field = error.field.replace("_", "-") if isinstance(error, InvalidMetadata) else ""
            # packaging's word for a field that is newer than the declared Metadata-Version.
            if field not in _OWN_FIELDS or " introduced " in str(error):
                yield f"{field.title()}: {printable(str(error))[:200]}"


def _license_files(info: DistInfo, contents: Contents) -> Iterator[str]:
    """Files that METADATA names and that are not there: the Python index refuses the wheel (PEP 639)."""
    if info.headers.get("metadata-version", [""])[0] in _BEFORE_LICENSES:
        return
    for name in info.headers.get("license-file", []):
        member = f"{info.folder}/licenses/{name}"
        if member not in contents.files:
            yield f"License-File {name[:80]!r} is not at {member[:200]}"


def _requires_python(info: DistInfo, policy: Policy) -> Iterator[str]:
    lines = info.headers.get("requires-python", [])
    if len(lines) > 1:
        yield f"{len(lines)} Requires-Python headers; there must be at most one"
    if not lines:
        return
    try:
        allowed = SpecifierSet(lines[0])
    except InvalidSpecifier:
        yield f"Requires-Python {lines[0][:80]!r} cannot be read (PEP 440)"
        return
    tags = {tag.rpartition("-")[0] for tag in info.tags}
    # py2.py3 is left over in the names of many wheels for Python 3 alone: Requires-Python keeps Python 2 from them.
    for tag in sorted({tag for tag in tags if not tag.startswith("py2")} or tags):
        if not any(allowed.contains(version, prereleases=True) for version in _versions(tag)):
            yield f"Requires-Python {lines[0]!r} excludes every Python that the tag {tag} is for"
    if policy.python and not any(allowed.contains(version) for version in _versions(f"{policy.python}-none")):
        yield f"Requires-Python {lines[0]!r} excludes {policy.python}, which is promised"


def first_python(tag: str, requires_python: str | None) -> str | None:
    """The first version of Python that a tag is for and Requires-Python allows; None where there is none."""
    try:
        allowed = SpecifierSet(requires_python or "")
    except InvalidSpecifier:
        allowed = SpecifierSet()
    return next((version for version in _versions(tag) if allowed.contains(version)), None)


def _versions(tag: str) -> Iterator[str]:
    """Versions of Python that a tag such as `cp311-cp311`, `cp37-abi3` or `py2-none` is for, the likely ones first."""
    python, _, abi = tag.partition("-")
    match = re.fullmatch(r"[a-z]+(\d)(\d{0,3})t?", python, re.ASCII)
    if match is None:  # such as `graalpy`: nothing to compare with
        yield "3.11"
        return
    major, minor = match[1], match[2]
    if python.startswith("pp") and len(minor) > 2:
        minor = minor[:2]
    generic = abi in ("abi3", "abi3t") or python.startswith("py")
    last = _NEWEST_MINOR if generic or not minor else int(minor)
    for number in range(int(minor or 0), last + 1):
        # A bound may name a micro version (>=3.8.1), so a few of them are tried.
        yield from (f"{major}.{number}.{micro}" for micro in (0, 1, 5, 10, 20, 50))
