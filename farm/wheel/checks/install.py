"""The check `install`: nothing in WHEEL and METADATA that installers or the Python index refuse."""

import re
from collections.abc import Collection, Iterator

from packaging.metadata import InvalidMetadata, Metadata, RawMetadata, parse_email
from packaging.requirements import InvalidRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from farm.base.requirement import read_requirement
from farm.base.text import printable
from farm.platforms.facts import WINDOWS
from farm.policy.rules import Policy
from farm.wheel.checks.subject import Subject, outcome
from farm.wheel.metadata import DistInfo
from farm.wheel.report import Check, Finding

# setuptools before 77 writes License-File into these (pypa/setuptools#4759).
_BEFORE_LICENSES = ("2.1", "2.2", "2.3")
# A bound may name a micro version (>=3.8.1), so a few of them are tried.
_NEWEST_MINOR = 40
_DATA_KEYS = ("data", "headers", "platlib", "purelib", "scripts")
# A reference to an object, as importlib.metadata reads it, with the attribute that scripts need.
_CALLABLE = re.compile(r"[\w.]+\s*:\s*[\w.]+\s*(\[.*\])?")
_MICRO_VERSIONS = (0, 1, 5, 10, 20, 50)


def check(subject: Subject) -> Check:
    """Read WHEEL and METADATA as installers and the Python index do."""
    info = subject.info
    findings: list[Finding] = []
    for problem in _wheel_file(info):
        findings.append(_wheel(info, problem))
    for problem in _core_metadata(subject.metadata):
        findings.append(_metadata(info, problem))
    for problem in _direct_urls(info, subject.policy):
        findings.append(_metadata(info, problem))
    for problem in _requires_python(subject):
        findings.append(_metadata(info, problem))
    for problem in _entry_points(subject):
        findings.append(_script(info, problem))
    for path, problem in _data_folders(subject):
        findings.append(_data(path, problem))
    for_windows = (subject.policy.platform or "").startswith(WINDOWS)
    for path, problem in subject.archive.unportable.items():
        findings.append(_unportable(path, problem, waivable=not for_windows))
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


def _script(info: DistInfo, what: str) -> Finding:
    return _refused(
        f"{info.folder}/entry_points.txt",
        what,
        "correct the entry points in the package's pyproject.toml or setup.cfg and build the wheel "
        "again",
    )


def _data(where: str, what: str) -> Finding:
    return _refused(
        where,
        what,
        f"put the file into one of the folders {', '.join(_DATA_KEYS)} of .data, or into the "
        "package",
    )


def _unportable(where: str, what: str, *, waivable: bool) -> Finding:
    return Finding(
        check="install",
        where=where,
        what=what,
        why="Windows or macOS unpacks another file, or none; Linux unpacks it as it is",
        fix="rename it or leave it out; for Linux alone it can be waived",
        waivable=waivable,
    )


def _wheel_file(info: DistInfo) -> Iterator[str]:
    versions = info.wheel_headers.get("wheel-version", [])
    if len(versions) != 1 or not re.fullmatch(r"1\.\d{1,4}", versions[0].strip(), re.ASCII):
        yield (
            f"Wheel-Version is {', '.join(versions)[:80] or 'missing'}; there must be one, and "
            "installers know 1.x"
        )
    pure = info.wheel_headers.get("root-is-purelib", [])
    pure_values = {value.strip().lower() for value in pure}
    # Installers take a missing one for false.
    if len(pure) > 1 or not pure_values <= {"true", "false"}:
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


def _requires_python(subject: Subject) -> Iterator[str]:
    """A Requires-Python that excludes each Python of the tags, or the promised one."""
    text = subject.info.requires_python
    if text is None:
        return
    try:
        allowed = SpecifierSet(text)
    except InvalidSpecifier:
        return  # `_core_metadata` says so
    promised = subject.policy.python
    if promised and not _allows(allowed, 3, int(re.sub(r"\D", "", promised)[1:])):
        yield f"Requires-Python {text!r} excludes {promised}, which is promised"
        return
    pythons: list[tuple[int, int]] = []
    for tag in subject.tags:
        pythons += _pythons_of(tag)
    if pythons and not any(_allows(allowed, *python) for python in pythons):
        tags = sorted({tag.rpartition("-")[0] for tag in subject.tags})
        yield f"Requires-Python {text!r} excludes every Python of the tag {', '.join(tags)[:80]}"


def _allows(allowed: SpecifierSet, major: int, minor: int) -> bool:
    return any(allowed.contains(f"{major}.{minor}.{micro}") for micro in _MICRO_VERSIONS)


def _pythons_of(tag: str) -> list[tuple[int, int]]:
    """The versions that install a wheel with a tag; `py3` and `abi3` stand for many."""
    python, abi, _ = tag.split("-")
    match = re.fullmatch(r"(cp|py)(\d)(\d{0,2})", python)
    if match is None:
        return [(3, minor) for minor in range(_NEWEST_MINOR)]  # another interpreter's
    major = int(match[2])
    first = int(match[3] or 0)
    if match[1] == "cp" and match[3] and not abi.startswith("abi3"):
        return [(major, first)]
    return [(major, minor) for minor in range(first, _NEWEST_MINOR)]


def _entry_points(subject: Subject) -> Iterator[str]:
    """What pip or uv refuses in entry_points.txt."""
    path = f"{subject.info.folder}/entry_points.txt"
    if path not in subject.archive.members:
        return
    try:
        text = subject.archive.read(path).decode("utf-8")
    except UnicodeDecodeError:
        yield "is not UTF-8"
        return
    section = None
    scripts: set[str] = set()
    for number, raw_line in enumerate(text.splitlines(), 1):
        line = raw_line.strip()
        if not line or line.startswith(("#", ";")):
            continue
        if header := re.fullmatch(r"\[([^]]+)\]", line):
            section = header[1].strip()
            continue
        place = f"line {number} ({printable(line[:60])})"
        name_part, _, value_part = line.partition("=")
        key = name_part.strip()
        value = value_part.strip()
        if section is None or not key or not value:
            yield f"{place} is neither [section] nor name = value"
        elif section in ("console_scripts", "gui_scripts"):
            if problem := _problem_of_script(key, value, scripts):
                yield place + problem
            scripts.add(key)


def _problem_of_script(name: str, value: str, scripts: Collection[str]) -> str | None:
    """Why installers refuse a script; None where they take it."""
    if name in scripts:
        return ": a second script of this name"
    if "/" in name or "\\" in name or name in (".", ".."):
        return ": the name of a script is a path"
    if not _CALLABLE.fullmatch(value):
        return " is not name = module:function"
    return None


def _data_folders(subject: Subject) -> Iterator[tuple[str, str]]:
    """Files in .data that installers do not know where to put."""
    for path in subject.contents.files:
        folder, *parts = path.split("/", 2)
        if not folder.endswith(".data") or not parts:
            continue
        if len(parts) == 1:
            yield path, "is directly in the folder .data, not in one for its kind"
        elif parts[0] not in _DATA_KEYS:
            yield path, f"is in the folder {parts[0]} of .data, which installers do not know"
