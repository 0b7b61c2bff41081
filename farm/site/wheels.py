"""The wheels of an index as pages show them: each statement is from a wheel's record, its page or a
kept smoke report.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from farm.base.requirement import python_of
from farm.base.text import plain
from farm.index.layout import json_key, record_key
from farm.index.pages import File, parse_page, read_catalogue
from farm.index.reader import withdrawn
from farm.index.records import Sha256, parse_record
from farm.index.stores import Store, get_many
from farm.plan.variant import Variant, gpu_words
from farm.site.smoke_reports import REQUESTS, Smoke, Tests, newest

STATES = {
    "smoked": "published, every part tested",
    "tested": "published, CPU part tested; GPU part not run",
    "published": "published, not tested",
    "broken": "published, its smoke test failed",
}
"""The words of the pages, and of `catalog.wheels.json`."""
MAX_TEXT = 1000
"""Characters of a text from a record."""


Arch = Annotated[str, StringConstraints(pattern=r"^[0-9]{2,3}[af]?$")]


class Report(BaseModel):
    """The part of verify's report in a wheel's record.

    Attributes:
        sha256: The digest of the report.
        sass: SMs whose machine code was verified; None where that was not checked.
        ptx: SMs whose PTX was verified.
        cpu: The CPU level that the code does not exceed; None where that was not checked.
    """

    model_config = ConfigDict(frozen=True)

    sha256: Sha256
    sass: tuple[Arch, ...] | None = None
    ptx: tuple[Arch, ...] = ()
    cpu: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.]{1,20}$")] | None = None

    @property
    def code(self) -> str:
        """`sm_35, compute_35; CPU: avx` in words."""
        if self.cpu:
            return f"{self._device_code}; CPU: at most {self.cpu}"
        return f"{self._device_code}; CPU: not checked"

    @property
    def _device_code(self) -> str:
        """The verified code for GPUs in words."""
        codes = [f"sm_{sm}" for sm in self.sass or ()]
        codes += [f"compute_{sm}" for sm in self.ptx]
        if codes:
            return ", ".join(codes)
        if self.sass is None:
            return "device code not checked"
        return "no device code"


@dataclass(frozen=True)
class Wheel:
    """A wheel in the index.

    Attributes:
        filename: Its file.
        project: Its normalised name.
        version: Its version.
        groups: The groups that list it.
        size: Bytes of the file.
        sha256: Digest of the file.
        uploaded: When it was published, ISO 8601.
        channel: The channel that it was built for.
        report: What its record has of verify's report; None: it was adopted, and not verified.
        without: What the official wheel has and it lacks, by its record.
        withdrawn: Why installers do not get it; None: they do.
        tests: The newest smoke test on each kind of machine.
    """

    filename: str
    project: str
    version: str
    groups: tuple[str, ...]
    size: int
    sha256: str
    uploaded: str
    channel: str | None = None
    report: Report | None = None
    without: str = ""
    withdrawn: str | None = None
    tests: tuple[Smoke, ...] = ()

    @cached_property
    def tags(self) -> tuple[str, str]:
        """Pythons and platforms, as the file name says: `py311`, `manylinux_2_28_x86_64`."""
        pythons = set()
        platforms = set()
        for tag in _tags_of(self.filename):
            platforms.add(tag.platform)
            if tag.abi == "none":
                pythons.add(tag.interpreter)
            elif tag.abi == "abi3":
                pythons.add(f"{tag.interpreter}-abi3")
            else:
                pythons.add(python_of(tag.interpreter, tag.abi))
        python_names = ", ".join(sorted(pythons))
        platform_names = ", ".join(sorted(platforms))
        return python_names, platform_names

    @property
    def serves_several_pythons(self) -> bool:
        """True for a wheel of the stable ABI, and for one without code for Python."""
        abis = {tag.abi for tag in _tags_of(self.filename)}
        return not abis.isdisjoint(("abi3", "none"))

    @property
    def sms(self) -> tuple[int, ...]:
        """The SMs of the machine code that was verified; of a wheel that was not, those of its
        groups' names.
        """
        if self.report and self.report.sass is not None:
            names = [sm.rstrip("af") for sm in self.report.sass]
            return tuple(map(int, names))
        sms = set[int]()
        for group in self.groups:
            gpu = group.partition("-")[0]
            if gpu in gpu_words():
                sms.update(Variant(gpu, "avx2", "py311").sms)
        return tuple(sorted(sms))

    @property
    def state(self) -> str:
        """A key of `STATES`; a wheel for a GPU counts as tested if its GPU part ran on a card."""
        passed = False
        passed_on_gpu = False
        for test in self.tests:
            if test.failed:
                return "broken"
            if test.passed:
                passed = True
                passed_on_gpu = passed_on_gpu or test.gpu
        if not passed:
            return "published"
        if self.sms and not passed_on_gpu:
            return "tested"
        return "smoked"

    @property
    def checked(self) -> str:
        """What verified it, in words."""
        if self.report:
            return f"verified: report {self.report.sha256[:12]}"
        if self.channel:
            return "published without a report: not verified"
        return "adopted and not verified"


def _tags_of(filename: str) -> frozenset[Tag]:
    """The tags of a wheel's file name."""
    _, _, _, tags = parse_wheel_filename(filename)
    return tags


def _report(document: Any) -> Report | None:
    """The part of verify's report that a record holds; None where it holds none."""
    try:
        return Report.model_validate(document)
    except ValidationError:
        return None  # of another version of the farm, or of somebody else


class _Page(NamedTuple):
    """The page of a project in a group."""

    group: str
    project: str
    files: tuple[File, ...]


def wheels(store: Store, projects: Collection[str] | None = None) -> Iterator[Wheel]:
    """Every wheel of the index, or of some of its projects, once.

    Costs a request for each project of each group, and one for each record.
    """
    files: dict[str, File] = {}
    projects_by_name: dict[str, str] = {}
    groups_by_name: dict[str, list[str]] = {}
    for page in _pages(store, projects):
        for file in page.files:
            name = file.filename
            projects_by_name[name] = page.project
            groups = groups_by_name.setdefault(name, [])
            groups.append(page.group)
            # A wheel may be in several groups, and withdrawn from one of them.
            if name not in files or withdrawn(file) is None:
                files[name] = file
    records = get_many(store, map(record_key, files), REQUESTS)
    for name, file in files.items():
        key = record_key(name)
        stored = records[key]
        provenance: Mapping[str, Any] = {}
        if stored is not None:
            record = parse_record(stored.data, key)
            provenance = record.provenance
        groups = groups_by_name[name]
        yield _wheel(projects_by_name[name], file, tuple(groups), provenance)


def _pages(store: Store, projects: Collection[str] | None) -> Iterator[_Page]:
    """The pages of the index, or of some of its projects."""
    places: dict[str, tuple[str, str]] = {}
    catalogue = read_catalogue(store)
    for group, names in sorted(catalogue.groups.items()):
        for name in names:
            if projects is None or name in projects:
                key = json_key(group, name)
                places[key] = (group, name)
    for key, stored in get_many(store, places, REQUESTS).items():
        if stored is not None:
            group, project = places[key]
            page = parse_page(stored.data, key)
            yield _Page(group, project, page.files)


def _wheel(
    project: str,
    file: File,
    groups: tuple[str, ...],
    provenance: Mapping[str, Any],
) -> Wheel:
    """A wheel by its entry in pages and by the provenance in its record."""
    _, version, _, _ = parse_wheel_filename(file.filename)
    without = str(provenance.get("without") or "")
    return Wheel(
        filename=file.filename,
        project=project,
        version=str(version),
        groups=groups,
        size=file.size or 0,
        sha256=file.hashes.sha256,
        uploaded=file.upload_time or "",
        channel=file.channel,
        report=_report(provenance.get("report")),
        without=plain(without, MAX_TEXT),
        withdrawn=withdrawn(file),
    )


def with_tests(index_wheels: Iterable[Wheel], tests_by_name: Tests) -> list[Wheel]:
    """The wheels, newest version first, each with the smoke tests that the index keeps of it."""
    tested = []
    for wheel in index_wheels:
        tests = tests_by_name.get(wheel.filename, ())
        if wheel.serves_several_pythons:  # the tag of any other wheel says it
            tests = [test.with_python() for test in tests]
        tested.append(replace(wheel, tests=newest(tests)))
    tested.sort(key=_newest_last, reverse=True)
    return tested


def _newest_last(wheel: Wheel) -> tuple[Version, str]:
    """A key to sort wheels by."""
    return Version(wheel.version), wheel.uploaded
