"""Does a wheel hold what its name promises?

Every check gives its findings in words for the person who has to act (`findings.yaml`): what is
wrong, why it matters, what to do. A wheel from anywhere may be given: what is hostile or broken
gives a failed report.

Sources: PyPA specifications, "Binary distribution format" and "Core metadata"; CPython's
`_PyImport_DynLoadFiletab` (`Python/dynload_shlib.c`, `dynload_win.c`), `PLATFORM_TRIPLET` of its
`configure.ac` and `PC/pyconfig.h` (python311.dll, python3.dll); PEP 3149 and PEP 489
(`PyInit_NAME`), PEP 384 and PEP 803 (abi3, abi3t), PEP 425 (tags).
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase, translate
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.metadata import InvalidMetadata, Metadata, RawMetadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from farm.base import yamlfile
from farm.base.errors import UsageError, VerificationFailedError
from farm.base.hashes import sha256_and_size
from farm.base.requirement import read_requirement, serves
from farm.base.text import printable
from farm.platforms.facts import DEFAULT, PLATFORMS, WINDOWS, split_platform, unread
from farm.wheel.archive import Archive, check_is_file
from farm.wheel.elf import Symbols
from farm.wheel.fatbin import is_code_for, number, order, runs_on
from farm.wheel.library import Code, Contents, FatbinSet, Library, follow_calls, read_contents
from farm.wheel.metadata import (
    DistInfo,
    WheelName,
    compare_record,
    parse_wheel_name,
    read_dist_info,
    read_record,
    same_name,
    same_version,
)
from farm.wheel.needs import (
    TWO_OPENMP,
    Answer,
    DependencyWheel,
    Need,
    brings,
    foreign,
    read_dependencies,
    resolve,
    system_needs,
    two_openmp,
)
from farm.wheel.pe import is_brought_along, owner
from farm.wheel.policy import (
    Check,
    CheckId,
    Dependency,
    Finding,
    Forbidden,
    Policy,
    Report,
    Waiver,
    arm_level_names,
    defaults,
    level_names,
    waive,
)
from farm.wheel.symbols import missing_names
from farm.wheel.tags import (
    LOADER,
    SystemNeed,
    check_supported,
    earned_level,
    for_musl,
    level_of_tag,
    platform_of,
    unmet_needs,
)

_EMPTY_LINE = re.compile(rb"(?:\A|\n)\r?\n")
_MAX_FINDINGS = 50  # of one check: a report is read by people


@cache
def _texts() -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = yamlfile.plain(
        Path(__file__).with_name("findings.yaml")
    )
    return found


def finding(check: CheckId, kind: str, where: str = "", **seen: object) -> Finding:
    """A finding in the words of `findings.yaml`, filled with what was seen."""
    text = _texts()[check][kind]
    what, why, fix = (str(text[key]).format(**seen) for key in ("what", "why", "fix"))
    return Finding(
        check=check, where=where, what=what, why=why, fix=fix, waivable=text.get("waivable", True)
    )


def _outcome(check: CheckId, findings: Iterable[Finding], note: str = "") -> Check:
    found = tuple(findings)
    return Check(id=check, status="failed" if found else "passed", findings=found, note=note)


def verify(
    wheel: Path,
    policy: Policy,
    *,
    waivers: Sequence[Waiver] = (),
    dependencies: Sequence[Path] = (),
) -> Report:
    """Check a wheel against what its name promises (`policy`).

    `waivers` are accepted: such findings stay in the report, with the reason, and do not fail it.
    `dependencies`: wheels, or folders of wheels, that it requires and leaves libraries to: its
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
    checks, others = _checks(wheel, policy, dependencies)
    return Report(
        wheel=wheel.name,
        sha256=sha256,
        size=size,
        policy=policy,
        dependencies=tuple(Dependency(wheel=each.file, sha256=each.sha256) for each in others),
        checks=tuple(_bounded(waive(check, waivers)) for check in checks),
        waivers=tuple(waivers),
    )


def _checks(
    wheel: Path, policy: Policy, dependencies: Sequence[Path]
) -> tuple[list[Check], tuple[DependencyWheel, ...]]:
    def code_of(member: str) -> Code | None:
        """The level, for what runs on loading alone where the library chooses its code at run
        time.
        """
        known = policy.cpu in (*level_names(), *arm_level_names())
        if (
            not policy.cpu
            or not known
            or any(fnmatchcase(member, pattern) for pattern in policy.cpu_exempt)
        ):
            return None
        on_load = any(fnmatchcase(member, pattern) for pattern in policy.dispatching)
        chosen = next(
            (each for pattern, each in policy.chosen.items() if fnmatchcase(member, pattern)), None
        )
        return Code(policy.cpu, on_load=on_load, chosen=chosen)

    try:
        with Archive(wheel) as archive:
            contents = read_contents(archive, code_of, with_symbols=True)
            contents = contents._replace(libraries=follow_calls(archive, contents))
            info = read_dist_info(archive)
            tags = info.tags
            # pip decides by the file name's tags. Where WHEEL has others, `names` says so.
            with suppress(VerificationFailedError):
                tags = parse_wheel_name(wheel.name).tags
            # Nothing is promised, so the wheel is held to its own tags.
            if policy.platform is None:
                policy = policy.model_copy(update={"platform": platform_of(tags)})
            recorded = _guarded("record", lambda: _check_record(archive, info, contents))
            metadata = archive.read(f"{info.folder}/METADATA")
    except VerificationFailedError as error:
        return _not_read(error), ()
    others = read_dependencies(dependencies, info)
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


def _not_read(error: VerificationFailedError) -> list[Check]:
    note = "the archive cannot be read"
    others = [
        Check(id=each, status="not_run", note=note)
        for each in get_args(CheckId)
        if each != "archive"
    ]
    return [_outcome("archive", [finding("archive", "unreadable", error=error)]), *others]


def _guarded(check: CheckId, run: Callable[[], Check]) -> Check:
    """A check that cannot go on has failed."""
    try:
        return run()
    except VerificationFailedError as error:
        fix = error.hint or "build the wheel again"
        why = "the rest of this check was not made"
        return _outcome(
            check,
            [Finding(check=check, where="", what=str(error), why=why, fix=fix, waivable=False)],
        )


def _bounded(check: Check) -> Check:
    if len(check.findings) <= _MAX_FINDINGS:
        return check
    note = f"{check.note}; {len(check.findings)} findings, the first {_MAX_FINDINGS} shown".lstrip(
        "; "
    )
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
    if policy.python:
        wrong += _check_python(name, policy.python, contents)
    findings = [finding("names", "differ", info.folder, what=what) for what in wrong]
    if name.tags != info.tags and _by_level(name.tags) != _by_level(info.tags):
        differing = ", ".join(sorted(name.tags ^ info.tags)[:5])
        findings.append(finding("names", "tags", info.folder, tags=differing))
    return _outcome("names", findings, filename)


def _by_level(tags: frozenset[str]) -> set[str]:
    """The tags, each level of manylinux under one of its names: manylinux2014 is manylinux_2_17
    (PEP 600).
    """
    found = set()
    for tag in tags:
        start, _, platform = tag.rpartition("-")
        known = level_of_tag(platform)
        found.add(f"{start}-{known[0].name}_{known[1]}" if known else tag)
    return found


def _check_python(name: WheelName, python: str, contents: Contents) -> list[str]:
    # A library that is named after its Python: others would install `py3-none` in vain.
    for_some = any(
        each.is_loadable and _SUFFIX.search(posixpath.basename(each.path))
        for each in contents.libraries
    )

    def fits(tag: str, abi: str) -> bool:
        return serves(tag, abi, f"py{python.removeprefix('cp')}") and not (
            for_some and tag.startswith("py")
        )

    found = {(tag, abi) for tag, abi, _ in (each.split("-") for each in name.tags)}
    # `py2.py3-none`: the first does no harm beside the second.
    if any(fits(*pair) for pair in found if pair[1] == "none"):
        found -= {("py2", "none")}
    return [
        f"it is for {pair}; promised is {python}"
        for pair in sorted("-".join(each) for each in found if not fits(*each))
    ]


def _check_record(archive: Archive, info: DistInfo, contents: Contents) -> Check:
    record, rows = read_record(archive, info.record)
    wrong = compare_record(rows, info.record, contents.files)
    if _EMPTY_LINE.search(record):
        wrong.append((info.record, "an empty line, at which pip fails"))
    findings = [finding("record", "wrong", path, what=what) for path, what in wrong]
    return _outcome("record", findings, f"{len(contents.files)} hashes recomputed")


# The suffix of a module that is named after its Python.
_SUFFIX = re.compile(r"\.(cpython-\d{2,4}[tdmu]*|cp\d{2,4}[td]*|abi3t?)(-[\w-]+)?\.(so|pyd)$")
_PYTHON_TAG = re.compile(r"cp3(\d{1,2})")
_ANY_PYTHON_DLL = re.compile(r"python(?P<version>3\d{0,2})(?P<flags>t?(_d)?)\.dll", re.IGNORECASE)
_PYTHON_SO = re.compile(r"libpython3\.(?P<minor>\d{1,2})(?P<flags>[tdm]*)\.so(\.[\d.]+)?")
_API = re.compile(r"_?Py[A-Z_]")
_TRIPLETS = {"ppc64le": "powerpc64le"}  # the others are called as in platform tags
_LINUX = re.compile(r"(many)?linux(\d+|_\d+_\d+)?_")
_MANY = ("abi3", "abi3t")
_MAX_TAGS = 3


class _Module(NamedTuple):
    """A library that Python imports: its name, its suffix, and the PyInit_ functions that it
    exports.
    """

    library: Library
    name: str
    suffix: str
    entries: frozenset[str]
    takes_api: bool


def check_abi(contents: Contents, tags: frozenset[str]) -> Check:
    """Each extension module can be imported by each Python that a tag names, and loads no other
    Python.
    """
    rows = [tuple(tag.split("-")) for tag in sorted(tags)]
    real = [row for row in rows if _exists(row[0], row[1])]
    modules = [module for library in contents.libraries if (module := _module(library, contents))]
    found = [("", what) for what in _no_python(rows, real)]
    found += [("", what) for what in _without_abi(modules, real)]
    for module in modules:
        found += [(module.library.path, what) for what in (*_suffix(module, real), *_entry(module))]
    for library in contents.libraries:
        if library.is_loadable:
            found += [
                (library.path, what) for what in _python_of(library, {row[:2] for row in real})
            ]
    findings = [finding("abi", "wrong", where, what=what) for where, what in found]
    return _outcome("abi", findings, f"{len(modules)} extension modules")


def _module(library: Library, contents: Contents) -> _Module | None:
    """None for a library that no one imports: one without a Python's suffix and without PyInit_."""
    name, dot, rest = posixpath.basename(library.path).partition(".")
    if not library.is_loadable or not rest.endswith(("so", "pyd")):
        return None
    symbols = contents.symbols.get(library.path)
    exports = symbols.exports if symbols else ()
    entries = frozenset(each for each in exports if each.startswith(("PyInit_", "PyInitU_")))
    # Programs that embed Python, and libpython itself, export its built-in modules.
    if not _SUFFIX.search(dot + rest) and (not entries or name.startswith("lib")):
        return None
    if isinstance(symbols, Symbols):
        uses_api = any(map(_API.match, symbols.undefined))
    else:
        uses_api = any(map(_ANY_PYTHON_DLL.fullmatch, library.needed))
    return _Module(library, name, dot + rest, entries, uses_api)


def _exists(python: str, abi: str) -> bool:
    """True if some Python has this pair of tags."""
    if python.startswith("py"):
        return abi == "none"
    found = _PYTHON_TAG.fullmatch(python)
    if found is None or abi in ("none", *_MANY):
        return True
    minor = int(found[1])
    # m (pymalloc) and u (wide Unicode) ended with 3.8, t (free-threaded) began with 3.13.
    if minor < 8:
        flags = "d?m?u?"
    elif minor < 13:
        flags = "d?"
    else:
        flags = "t?d?"
    return re.fullmatch(python + flags, abi) is not None


def _no_python(rows: Sequence[tuple[str, ...]], real: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Tags that no Python has; one of a set such as `cp38.cp39-cp38.cp39`, where each has a
    partner, does no harm.
    """
    pairs = {row[:2] for row in real}
    for python, abi in sorted({row[:2] for row in rows} - pairs):
        if not any(python == each[0] for each in pairs) or not any(
            abi == each[1] for each in pairs
        ):
            yield f"no Python has the tag {python}-{abi}"


def _without_abi(modules: Sequence[_Module], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Modules that take Python's API in a wheel whose tag says that it depends on no ABI.

    Under `py3-none` a package may hold one module for several Pythons, and chooses.
    """
    by_name: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        by_name[module.library.path.removesuffix(module.suffix)].add(module.suffix)
    for python in sorted({row[0] for row in rows if row[1] == "none"}):
        wrong = [
            module.library.path
            for module in modules
            if (module.entries or module.takes_api)
            and not (
                python.startswith("py")
                and len(by_name[module.library.path.removesuffix(module.suffix)]) > 1
            )
        ]
        if wrong:
            if len(wrong) > 1:
                count = f"{len(wrong)} modules take"
            else:
                count = "a module takes"
            yield (
                f"{count} Python's API ({wrong[0]}), and the tag {python}-none says that it "
                "needs no ABI"
            )


def suffixes(python: str, abi: str, platform: str) -> tuple[str, ...]:
    """The suffixes of modules that the Pythons of a tag import; none where that is not known.

    Of `abi3` those that all of its Pythons import.
    """
    found = _PYTHON_TAG.fullmatch(python)
    linux = _LINUX.match(platform)
    windows = platform.startswith(PLATFORMS[WINDOWS].tag)
    if found is None or abi == "none" or not (linux or windows):
        return ()
    minor = int(found[1])
    tag = abi.removeprefix("cp")
    is_free = "t" in abi
    if not linux:
        if abi == "abi3t":
            return (".abi3t.pyd", f".abi3t-{platform}.pyd", ".pyd")
        if abi == "abi3":
            return (".pyd",)
        return (f".cp{tag}-{platform}.pyd", ".pyd")
    # Free-threaded Pythons import no abi3: their objects have another layout.
    shared = (
        *(() if is_free else (".abi3.so",)),
        *((".abi3t.so",) if abi == "abi3t" or minor >= 15 else ()),
        ".so",
    )
    if abi in _MANY:
        return shared
    machine = platform[linux.end() :]
    return (f".cpython-{tag}-{_TRIPLETS.get(machine, machine)}-linux-gnu.so", *shared)


def _suffix(module: _Module, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    wrong = []
    for python, abi, platform in rows:
        known = suffixes(python, abi, platform)
        if known and module.suffix not in known:
            wrong.append((f"{python}-{abi}-{platform}", known))
    if wrong:
        tags = ", ".join(tag for tag, _ in wrong[:_MAX_TAGS])
        yield (
            f"its suffix {module.suffix} is not one that {tags} imports, which are "
            f"{', '.join(wrong[0][1])}"
        )


def _entry(module: _Module) -> Iterator[str]:
    """A module that Python finds, and has no function to begin with."""
    wanted = f"PyInit_{module.name}"
    if not module.name.isascii():
        wanted = "PyInitU_" + module.name.encode("punycode").decode().replace("-", "_")
    # Without either it is a library that only has the name: for ctypes, or for
    # torch.ops.load_library.
    if wanted not in module.entries and (module.entries or module.takes_api):
        there = f" (it has {min(module.entries)})" if module.entries else ""
        yield f"has no {wanted}, which Python calls to import it{there}"


def _python_of(library: Library, pairs: set[tuple[str, ...]]) -> Iterator[str]:
    for name in (*library.needed, *library.delay_needed):
        dll = _ANY_PYTHON_DLL.fullmatch(name)
        so = _PYTHON_SO.fullmatch(name)
        if dll:
            version = dll["version"]
            flags = dll["flags"].lower()
        elif so:
            version = "3" + so["minor"]
            flags = so["flags"]
        else:
            continue
        for python, abi in sorted(pairs):
            if python.startswith("py") or abi == "none":
                continue
            if version == "3":
                if abi.endswith("t") != ("t" in flags):
                    yield f"loads {name}, which {python}-{abi} does not have"
            elif abi in _MANY:
                yield (
                    f"loads {name}, the library of one Python; {python}-{abi} is for many "
                    "(python3.dll)"
                )
            elif python.startswith("cp") and (version, "t" in flags) != (
                python.removeprefix("cp"),
                "t" in abi,
            ):
                yield f"loads {name}, another Python's library than that of {python}-{abi}"


# setuptools before 77 writes License-File into these (pypa/setuptools#4759).
_BEFORE_LICENSES = ("2.1", "2.2", "2.3")
_MICRO = (
    0,
    1,
    5,
    10,
    20,
    50,
)  # a bound may name a micro version (>=3.8.1), so a few of them are tried


def check_install(info: DistInfo, policy: Policy, metadata: bytes) -> Check:
    """Nothing in WHEEL and METADATA that installers or the Python index refuse."""
    findings = [
        finding("install", "wheel", f"{info.folder}/WHEEL", what=what) for what in _wheel_file(info)
    ]
    others = (
        *_core_metadata(metadata),
        *_direct_urls(info, policy),
        *_requires_python(info, policy),
    )
    findings += [
        finding("install", "metadata", f"{info.folder}/METADATA", what=what) for what in others
    ]
    return _outcome("install", findings)


def _wheel_file(info: DistInfo) -> Iterator[str]:
    versions = info.wheel_headers.get("wheel-version", [])
    if len(versions) != 1 or not re.fullmatch(r"1\.\d{1,4}", versions[0].strip(), re.ASCII):
        yield (
            f"Wheel-Version is {', '.join(versions)[:80] or 'missing'}; there must be one, and "
            "installers know 1.x"
        )
    pure = info.wheel_headers.get("root-is-purelib", [])
    # Installers take a missing one for false.
    if len(pure) > 1 or any(each.strip().lower() not in ("true", "false") for each in pure):
        yield f"Root-Is-Purelib is {', '.join(pure)[:80]}; there must be one, true or false"
    for line in info.no_tags:
        yield f"Tag is {line[:80]!r}, which is none (python-abi-platform)"


def _core_metadata(content: bytes) -> Iterator[str]:
    """Violations of the core metadata specification, of which the Python index refuses some and
    installers others.
    """
    raw, unparsed = parse_email(content)
    known = {name.replace("_", "-") for name in RawMetadata.__annotations__}
    for field in sorted(unparsed):
        if (
            field in known or f"{field}s" in known
        ):  # others are of a newer version, or someone's own
            yield f"{field.title()} is there twice, or is malformed"
    if raw.get("metadata_version") in _BEFORE_LICENSES:
        raw.pop("license_files", None)
    try:
        Metadata.from_raw(raw)
    except RecursionError:
        yield "a field is nested too deeply to be read"
    except ExceptionGroup as group:
        for error in group.exceptions:
            if isinstance(error, InvalidMetadata):
                field = error.field.title()
            else:
                field = "METADATA"
            yield f"{field}: {printable(str(error))[:200]}"


def _direct_urls(info: DistInfo, policy: Policy) -> Iterator[str]:
    for line in () if policy.direct_urls else info.requires_dist:
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
    if not any(allowed.contains(f"3.{minor}.{micro}") for micro in _MICRO):
        yield (
            f"Requires-Python {info.requires_python!r} excludes {policy.python}, which is promised"
        )


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
        return _outcome("metadata", (), f"requires {listed}")
    return _outcome(
        "metadata",
        [finding("metadata", "numpy", where, listed=listed, witness=witness, bound=policy.numpy)],
    )


def check_members(contents: Contents, policy: Policy) -> Check:
    """No file that the policy forbids."""
    reasons = {
        rule if isinstance(rule, str) else rule.pattern: _why_forbidden(rule)
        for rule in policy.forbidden
    }
    any_of = re.compile(
        "|".join(map(translate, reasons)) or r"\b\B"
    )  # ten thousand members, at one look each
    rules = (
        (name, next(each for each in reasons if fnmatchcase(name, each)))
        for name in filter(any_of.match, contents.files)
    )
    return _outcome(
        "members",
        (
            finding("members", "forbidden", name, pattern=rule, reason=reasons[rule])
            for name, rule in rules
        ),
    )


def _why_forbidden(rule: str | Forbidden) -> str:
    if not isinstance(rule, str):
        return rule.reason
    if rule in defaults("forbidden"):
        return defaults("forbidden_reason")[0]
    return "the policy forbids such files"


def _requirements(info: DistInfo, where: str) -> Iterator[Requirement]:
    if len(info.requires_dist) > _MAX_REQUIREMENTS:
        raise VerificationFailedError(
            f"{where}: more than {_MAX_REQUIREMENTS} Requires-Dist headers"
        )
    for line in info.requires_dist:
        try:
            yield read_requirement(line)
        except InvalidRequirement as error:
            raise VerificationFailedError(
                f"{where}: Requires-Dist {line[:80]!r} cannot be read"
            ) from error


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
        raise VerificationFailedError(
            f"{where}: the condition of {str(requirement)[:80]!r} is wrong"
        ) from error


def _outside(allowed: SpecifierSet, bound: SpecifierSet) -> Version | None:
    """The highest version, among those where a verdict can change, that is allowed and breaks the
    bound.

    A specifier changes its verdict at the version that it names or where one of that version's
    leading parts counts on (`==1.*`, `~=1.2`): it is enough to try those, their neighbours and the
    extremes.
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
    wrong = [
        v
        for v in tried
        if allowed.contains(v, prereleases=True) and not bound.contains(v, prereleases=True)
    ]
    return max(wrong, default=None)


# What a new build may call otherwise: auditwheel and delvewheel put a hash of its content into a
# name, and behind `.so` stands the version.
_CHANGING = re.compile(r"(-[0-9a-f]{8,32})*(\.so|\.dll|\.pyd)(?!.*/).*", re.IGNORECASE)


def check_platform(contents: Contents, policy: Policy, tags: frozenset[str]) -> Check:
    """Each platform tag must be a manylinux tag of the promised machine that the libraries really
    satisfy.
    """
    found = sorted({tag.rsplit("-", 1)[-1] for tag in tags})
    names = ", ".join(found)
    loadable = [library for library in contents.libraries if library.is_loadable]
    if (
        policy.platform is None
    ):  # its tags name no machine: nothing may be in it that a machine loads
        return _outcome(
            "platform",
            (
                finding(
                    "platform",
                    "not_pure",
                    each.path,
                    machine=each.machine or "no known machine",
                    tags=names,
                )
                for each in loadable
            ),
            names,
        )
    platform, machine = split_platform(policy.platform)
    if not platform.in_images:  # no level of manylinux to earn
        promised = f"{platform.tag}_{platform.tag_of(machine)}"
        wrong = (tag for tag in found if not platform.fits(tag, machine))
        return _outcome(
            "platform",
            (finding("platform", "other", tag=tag, promised=promised) for tag in wrong),
            names,
        )
    # What the wheel itself answers does not count: only what is asked of the system decides the
    # level.
    needs = system_needs(
        contents.libraries, resolve(contents.libraries, policy.exclude, contents.dependencies)
    )
    findings: list[Finding] = []
    for tag in found:
        if tag == "any" and not loadable:
            findings.append(finding("platform", "not_built"))
        elif not tag.startswith("musllinux"):  # beside another tag; nothing is said of musl
            findings += _unearned(tag, machine, needs, loadable)
    return _outcome(
        "platform", findings, "" if findings else f"earned: {earned_level(needs, machine).name}"
    )


def _unearned(
    tag: str, machine: str, needs: list[SystemNeed], libraries: Sequence[Library]
) -> Iterator[Finding]:
    """Promises of a platform tag that the libraries do not keep."""
    known = level_of_tag(tag)
    musl = [library.path for library in libraries if for_musl(library.path, library.needed)]
    if known is None or known[1] != machine:
        yield finding("platform", "no_manylinux", tag=tag, machine=machine)
    elif musl:
        yield from (finding("platform", "musl", path, tag=tag) for path in musl)
    else:
        for need in needs:
            if unmet := unmet_needs(known[0], need, machine):
                yield finding("platform", "unearned", need.who, unmet=", ".join(unmet[:5]), tag=tag)


def check_imports(contents: Contents, policy: Policy, tags: frozenset[str]) -> Check:
    """Every needed library must be in the wheel where the loader looks, on the system, or
    excluded.
    """
    machine = None
    if policy.platform is not None:
        platform, name = split_platform(policy.platform)
        machine = platform.tag_of(name)  # as `Library.machine` has it: Windows has names of its own
    findings = [
        finding("imports", "unreadable", one.path, error=one.error)
        for one in contents.libraries
        if one.error
    ]
    for library in contents.libraries:
        if machine and library.is_loadable and library.machine != machine:
            findings.append(
                finding("imports", "machine", library.path, there=library.machine, machine=machine)
            )
        if runtimes := two_openmp(library):
            findings.append(
                finding("imports", "two_openmp", library.path, runtimes=runtimes, fix=TWO_OPENMP)
            )
    if not contents.libraries and (reason := unread(tags)):
        return Check(id="imports", status="not_run", note=reason)
    needs = resolve(contents.libraries, policy.exclude, contents.dependencies)
    findings += [_not_reached(need) for need in needs if need.answer is Answer.UNREACHABLE]
    findings += _missing([need for need in needs if need.answer is Answer.MISSING], contents)
    beside = sum(need.answer is Answer.DEPENDENCY for need in needs)
    note = f"{len(needs)} imports of {len(contents.libraries)} libraries"
    return _outcome("imports", findings, note + (f", {beside} from dependencies" if beside else ""))


def _not_reached(need: Need) -> Finding:
    """A library that is there, where the loader does not find it: by its folder, or by its name."""
    there = str(need.by)
    kind = "not_on_runpath"
    if need.who.lower().endswith((".pyd", ".dll")):
        kind = "not_where_windows_looks"
    elif posixpath.basename(there) != posixpath.basename(need.name):
        kind = "by_soname"
    return finding("imports", kind, need.who, name=need.name, there=there)


def _missing(needs: Sequence[Need], contents: Contents) -> Iterator[Finding]:
    """Libraries that the wheel does not have, by the file that needs them and the requirement that
    brings them.
    """
    known = {library.path for library in contents.libraries}
    fakes = {posixpath.basename(path): path for path in contents.files if path not in known}
    for who, group in groupby(needs, key=lambda need: need.who):
        brought: dict[str, list[str]] = {}
        alone: list[Finding] = []
        for need in group:
            if requirement := brings(need.name, contents.requires):
                brought.setdefault(requirement, []).append(need.name)
            elif fake := fakes.get(posixpath.basename(need.name)):
                size = contents.files[fake][1]
                alone.append(
                    finding("imports", "no_library", who, names=need.name, fake=fake, size=size)
                )
            else:
                alone.append(finding("imports", "missing", who, names=need.name))
        for requirement, names in brought.items():
            yield finding(
                "imports", "of_another_wheel", who, names=", ".join(names), requirement=requirement
            )
        yield from alone


def check_cpu(contents: Contents, policy: Policy) -> Check:
    """No library that is not exempt may hold instructions beyond the promised CPU level."""
    if policy.cpu is None or policy.cpu not in (*level_names(), *arm_level_names()):
        if policy.cpu:
            note = f"CPU level {policy.cpu} cannot be checked"
        else:
            note = "no CPU level is promised"
        return Check(id="cpu", status="not_run", note=note)
    findings = []
    skipped = []
    decoded = [
        (library.path, library.instructions)
        for library in contents.libraries
        if library.instructions
    ]
    for path, code in decoded:
        if code.not_checked:
            skipped.append(f"{path}: {code.not_checked}")
            continue
        known = any(
            fnmatchcase(posixpath.basename(path), pattern) for pattern in defaults("ask_the_cpu")
        )
        if code.starts is not None:
            kind = "on_load"
        elif known:
            kind = "asks_the_cpu"
        else:
            kind = "code"
        seen = {"cpu": policy.cpu, "pattern": _CHANGING.sub("*", path)}
        findings += [
            finding(
                "cpu", kind, path, count=count, feature=feature, places=", ".join(places), **seen
            )
            for feature, (count, places) in code.beyond.items()
        ]
    findings += _left_out(contents, policy)
    if len(decoded) == len(skipped) and not findings:
        reason = "; ".join(skipped) or "no machine code besides exempt members"
        return Check(id="cpu", status="not_run", note=reason)
    note = f"{len(decoded) - len(skipped)} libraries decoded" + "".join(
        f"; {line}" for line in skipped
    )
    ends = tuple(path for path, code in decoded if code.open_ends)
    return _outcome("cpu", findings, note).model_copy(update={"undecided": ends})


def _left_out(contents: Contents, policy: Policy) -> Iterator[Finding]:
    """Code for other CPUs that a library chooses at run time: right by itself, and not what the
    variant promises.
    """
    if not policy.left_out:
        return
    # One expression for all patterns: a large library exports very many names.
    pattern = re.compile("|".join(map(translate, policy.left_out)))
    for path, symbols in contents.symbols.items():
        found = sorted(filter(pattern.match, symbols.exports))
        if found:
            yield finding(
                "cpu", "left_out", path, count=len(found), cpu=policy.cpu, first=found[0][:200]
            )


# The system's: a second copy in one process, or one that does not fit the kernel's or driver's
# version, crashes it.
_SYSTEM_ELF = re.compile(
    rf"{LOADER}|(libc|libm|libdl|librt|libpthread|libresolv|libutil|libnss_\w+|libcuda|libnvidia-[\w-]+)\.so(\.[\d.]+)?|"
    r"libc\.musl-\w+\.so\.1|ld-musl-\w+\.so\.1"
)
_STATIC_TLS = 1664  # glibc, elf/dl-tls.c: TLS_STATIC_SURPLUS with the default tunables
_INTERPRETER = re.compile(rf"/lib(32|64|x32)?/({LOADER}|ld-musl-\w+\.so\.1)")
_ARM_PAGES = 64 << 10
_PYTHON_DLL = re.compile(r"python3\d*t?(_d)?\.dll")
_WINDOWS_LIBRARY = re.compile(r"\.(pyd|dll)$", re.IGNORECASE)
_MODULE = re.compile(r"\.(abi3|cpython-3[^/]*)\.so$")  # others may be linker scripts


def check_link(contents: Contents, policy: Policy, tags: frozenset[str]) -> Check:
    """Each library must find every name that it takes, look nowhere else, and ask for nothing that
    loaders refuse.
    """
    needs = resolve(contents.libraries, policy.exclude, contents.dependencies)
    missing = missing_names(contents.libraries, needs, contents.symbols)
    findings = [finding("link", "symbols", where, what=what) for where, what in missing]
    for library in contents.libraries:
        if library.is_loadable:
            findings += [*_refused(library), *_shadows(library)]
    if policy.platform is not None:
        # Files with a library's name that are none: damaged, empty, or a link that was unpacked as
        # a file. On Linux only extension modules: other files called .so may be linker scripts,
        # which nothing loads.
        if split_platform(policy.platform)[0].in_images:
            pattern = _MODULE
        else:
            pattern = _WINDOWS_LIBRARY
        names = set(filter(pattern.search, contents.files)) - {
            library.path for library in contents.libraries
        }
        findings += [
            finding("link", "no_library", path) for path in contents.files if path in names
        ]
    if not findings and not contents.libraries and (reason := unread(tags)):
        return Check(id="link", status="not_run", note=reason)
    return _outcome("link", findings, f"{len(contents.symbols)} libraries looked into")


def _refused(library: Library) -> Iterator[Finding]:
    """RUNPATHs that lead out of the wheel, and requests of the file that loaders refuse."""
    for entry in dict.fromkeys(library.search_path):
        if what := foreign(library.path, entry):
            yield finding("link", "runpath", library.path, what=what)
    if library.executable_stack:
        yield finding("link", "stack", library.path)
    if library.static_tls > _STATIC_TLS:
        yield finding("link", "tls", library.path, size=library.static_tls)
    if library.interpreter and not _INTERPRETER.fullmatch(library.interpreter):
        yield finding("link", "interpreter", library.path, loader=library.interpreter)
    if library.machine == "aarch64" and library.page_size < _ARM_PAGES:
        yield finding("link", "pages", library.path, size=max(library.page_size, 1) / 1024)


def _shadows(library: Library) -> Iterator[Finding]:
    name = posixpath.basename(library.path)
    low = name.lower()
    if library.format == "elf":
        whose = "the system's" if _SYSTEM_ELF.fullmatch(name) else None
    elif is_brought_along(low):
        whose = None
    elif _PYTHON_DLL.fullmatch(low):
        whose = "Python's"
    else:
        whose = {"system": "Windows'", "driver": "the GPU driver's"}.get(owner(low) or "")
    if whose:
        yield finding("link", "shadow", library.path, whose=whose, name=name)


# Device code: cuDNN comes from NVIDIA as it is, and its releases drop GPUs without changing the
# CUDA version they are for. A wheel whose own kernels are right may still fail in its first
# convolution.
_Kind = Literal["sass", "ptx"]


def check_sass(contents: Contents, policy: Policy) -> Check:
    """Every fat binary of the wheel's own libraries must hold the promised machine code, and no
    other.
    """
    seen = _seen(contents, "sass")
    if policy.sass is None:
        return Check(id="sass", status="not_run", note=f"no machine code is promised; {seen}")
    promised = policy.sass
    theirs = [library for library in contents.libraries if _is(library, policy.foreign)]
    findings = [
        *_lacking(contents, policy, "sass", promised),
        *_not_running(promised, [*theirs, *contents.dependencies]),
    ]
    lowest = min(map(number, promised), default=None)
    for library in (*contents.libraries, *contents.dependencies):
        there = _codes(library)
        if (
            lowest is not None
            and there
            and _is_cudnn(library)
            and not any(runs_on(lowest, code) for code in there)
        ):
            findings.append(finding("sass", "cudnn", library.path, gpu=lowest, there=_sm(there)))
    for library in () if policy.allow_other_sass else _own(contents, policy):
        for group in _judged(library, policy):
            more = [
                code for code in group.sass if not any(is_code_for(sm, code) for sm in promised)
            ]
            if more:
                findings.append(
                    finding(
                        "sass", "others", library.path, containers=group.containers, more=_sm(more)
                    )
                )
    return _outcome("sass", findings, seen)


def check_ptx(contents: Contents, policy: Policy) -> Check:
    """Every fat binary of the wheel's own libraries must hold the promised PTX; more does no
    harm.
    """
    seen = _seen(contents, "ptx")
    if not policy.ptx:
        return Check(id="ptx", status="not_run", note=f"no PTX is promised; {seen}")
    return _outcome("ptx", _lacking(contents, policy, "ptx", policy.ptx), seen)


def _own(contents: Contents, policy: Policy) -> list[Library]:
    """The libraries with device code that was compiled here."""
    return [
        one
        for one in contents.libraries
        if one.fatbins and not _is_cudnn(one) and not _is(one, policy.foreign)
    ]


def _lacking(
    contents: Contents, policy: Policy, kind: _Kind, promised: tuple[int | str, ...]
) -> Iterator[Finding]:
    own = _own(contents, policy)
    # Without device code there is no group that could lack something: the loop below would find
    # nothing.
    if promised and not own:
        empty = sum(library.empty_fatbins for library in contents.libraries)
        beside = f" ({empty} fat binaries hold no kernel)" if empty else ""
        what = f"no library of the wheel's own holds device code{beside}; promised: {_sm(promised)}"
        yield finding(kind, "lacks", what=what)
    for library in own:
        for group in _judged(library, policy):
            there: tuple[int | str, ...] = getattr(group, kind)
            gaps = [sm for sm in promised if not any(is_code_for(sm, code) for code in there)]
            if gaps:
                what = f"{group.containers} fat binaries lack {_sm(gaps)}; they hold {_sm(there)}"
                yield finding(kind, "lacks", library.path, what=what)


def _not_running(
    promised: tuple[int | str, ...], libraries: Iterable[Library]
) -> Iterator[Finding]:
    """Libraries that come from elsewhere as they are: each needs some code that runs on every
    promised GPU.
    """
    for library in libraries:
        there = _codes(library)
        gaps = [sm for sm in promised if not any(runs_on(sm, code) for code in there)]
        # cuDNN has a check of its own.
        if gaps and there and not _is_cudnn(library):
            what = (
                f"no fat binary in it holds code that runs on {_sm(gaps)}; they hold {_sm(there)}"
            )
            yield finding("sass", "lacks", library.path, what=what)


def _codes(*libraries: Library, kind: _Kind = "sass") -> list[int | str]:
    return sorted(
        {sm for each in libraries for group in each.fatbins for sm in getattr(group, kind)},
        key=order,
    )


def _judged(library: Library, policy: Policy) -> tuple[FatbinSet, ...]:
    """All groups; of a library with others' code in it, the most frequent one."""
    if _is(library, policy.mixed):
        return library.fatbins[:1]
    return library.fatbins


def _is(library: Library, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(library.path, pattern) for pattern in patterns)


def _is_cudnn(library: Library) -> bool:
    return any(
        fnmatchcase(posixpath.basename(library.path), pattern) for pattern in defaults("cudnn")
    )


def _sm(numbers: Sequence[int | str]) -> str:
    return ", ".join(f"sm_{number}" for number in numbers) or "none"


def _seen(contents: Contents, kind: _Kind) -> str:
    return f"found: {_sm(_codes(*contents.libraries, kind=kind))}"
