"""The wheels of an index as pages show them: each statement is from its record, its page or a kept
smoke report.

Reports are untrusted and bounded.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from packaging.utils import parse_wheel_filename
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from farm.base.requirement import python_of
from farm.base.text import plain, short
from farm.index.layout import CATALOGUE, SMOKE, json_key, record_key
from farm.index.pages import File, parse_catalogue, parse_page
from farm.index.reader import withdrawn
from farm.index.records import Sha256, parse_record
from farm.index.stores import Store
from farm.plan.variant import Variant, gpu_words
from farm.smoke.runner import TESTED_AT, TESTED_WHEEL

STATES = {
    "smoked": "published, every part tested",
    "tested": "published, CPU part tested; GPU part not run",
    "published": "published, not tested",
    "broken": "published, its smoke test failed",
}
"""The words of the pages, and of `catalog.wheels.json`."""
MAX_REPORT = 1 << 20
MAX_REPORTS = 200
"""Of one wheel; each is a request."""
REQUESTS = 8  # at a time


@dataclass(frozen=True)
class Smoke:
    """One smoke test of a wheel."""

    where: str  # the CPU, emulated or not, and the card where the GPU part ran
    time: str  # when, ISO 8601; empty where the report does not say
    outcome: str  # what ran and how it ended: `CPU part passed; GPU part not run: no NVIDIA driver`
    # nothing failed, and something passed; `gpu`: the GPU part too; `gpu_ran`: however it ended
    passed: bool = False
    gpu: bool = False
    failed: bool = False
    gpu_ran: bool = False
    python: str = ""  # the Python that imported it, `3.11.2`; empty where the report does not say

    @property
    def date(self) -> str:
        return self.time[:10] or "date not recorded"

    def with_python(self) -> "Smoke":
        if self.python:
            return replace(self, where=f"{self.where}, Python {self.python}")
        return self


Tests = Mapping[str, Sequence[Smoke]]
"""Name of a wheel's file -> its smoke tests."""


def kept_tests(store: Store, wanted: Mapping[str, str]) -> dict[str, list[Smoke]]:
    """The smoke tests that the index keeps of these wheels (sha256 by file name). One request for
    each report.
    """
    keys: dict[str, list[str]] = {}
    for key in store.list(SMOKE):
        name = key.removeprefix(SMOKE).partition("/")[0]
        if name in wanted and len(keys.setdefault(name, [])) < MAX_REPORTS:
            keys[name].append(key)
    pairs = [(name, key) for name, several in sorted(keys.items()) for key in sorted(several)]
    tests_by_name: dict[str, list[Smoke]] = {}
    with ThreadPoolExecutor(REQUESTS) as pool:
        for (name, _), stored in zip(
            pairs, pool.map(store.get, [key for _, key in pairs]), strict=True
        ):
            if stored is not None and len(stored.data) <= MAX_REPORT:
                tests_by_name.setdefault(name, []).extend(_tests_in(stored.data, wanted[name]))
    return tests_by_name


def tests_of(store: Store, filename: str, sha256: str) -> list[Smoke]:
    """The smoke tests that the index keeps of one wheel."""
    tests: list[Smoke] = []
    for key in sorted(store.list(f"{SMOKE}{filename}/"))[:MAX_REPORTS]:
        stored = store.get(key)
        if stored is not None and len(stored.data) <= MAX_REPORT:
            tests += _tests_in(stored.data, sha256)
    return tests


def _tests_in(data: bytes, wheel: str) -> Iterator[Smoke]:
    """The test that a report tells of; none if it is no report, or about another file than the one
    with this sha256.
    """
    try:
        report = json.loads(data)
        facts = report.get("facts") or {}
        if facts.get(TESTED_WHEEL, wheel) == wheel:
            yield _smoke(report, facts, str(facts.get(TESTED_AT) or ""))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return  # a report of another version tells nothing here


def newest(smokes: Iterable[Smoke]) -> tuple[Smoke, ...]:
    """One test for each kind of machine, the newest: a wheel that failed there and then passed
    works there.

    Where the GPU part, or all of it, did not run, that takes nothing back of one that ran.
    """
    rising = sorted(smokes, key=lambda smoke: (smoke.passed or smoke.failed, smoke.time))
    latest = {(smoke.where, smoke.gpu_ran): smoke for smoke in rising}
    return tuple(latest[kind] for kind in sorted(latest))


def _smoke(report: dict[str, Any], facts: dict[str, Any], time: str) -> Smoke:
    """Summary of one report of the probe: what ran, where, and how it ended."""
    parts: dict[str, list[dict[str, Any]]] = {"CPU": [], "GPU": []}
    for check in report.get("checks") or ():
        parts["GPU" if check["group"] in ("cuda", "speed") else "CPU"].append(check)
    cards = [
        str(check["seen"])
        for check in parts["GPU"]
        if check["name"] == "devices" and check["status"] == "passed"
    ]
    machine = str(facts.get("machine") or "this machine")
    if report.get("emulated"):
        cpu = f"{report['emulated']} (emulated)"
    else:
        cpu = f"a real CPU ({machine})"
    outcomes = [f"{name} part {_ended(checks)}" for name, checks in parts.items() if checks]
    # A crash fails no check: the one that was running is not in the list.
    if report["outcome"] == "failed" and not any(
        c["status"] == "failed" for c in [*parts["CPU"], *parts["GPU"]]
    ):
        outcomes.append(str(report.get("reason") or "failed"))
    return Smoke(
        where=short(", ".join([cpu, *cards])),
        time=short(time),
        outcome=short("; ".join(outcomes) or report["outcome"]),
        passed=report["outcome"] == "passed",
        failed=report["outcome"] == "failed",
        gpu=report["outcome"] == "passed"
        and any(check["status"] == "passed" for check in parts["GPU"]),
        gpu_ran=any(check["status"] != "not_run" for check in parts["GPU"]),
        python=short(str(facts.get("python") or "")),
    )


def _ended(checks: list[dict[str, Any]]) -> str:
    """`passed`, `failed: devices`, or `not run` with the first reason."""
    failed = [str(check["name"]) for check in checks if check["status"] == "failed"]
    if failed:
        return f"failed: {', '.join(failed)}"
    if any(check["status"] == "passed" for check in checks):
        return "passed"
    reason = next((check.get("reason") for check in checks if check.get("reason")), None)
    return f"not run: {reason}" if reason else "not run"


Arch = Annotated[str, StringConstraints(pattern=r"^[0-9]{2,3}[af]?$")]


class Report(BaseModel):
    """The part of verify's report in a wheel's record: its sha256, and the promises about code that
    hold.
    """

    model_config = ConfigDict(frozen=True)

    sha256: Sha256
    sass: tuple[Arch, ...] | None = None
    ptx: tuple[Arch, ...] = ()
    cpu: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.]{1,20}$")] | None = None

    @property
    def code(self) -> str:
        """`sm_35, compute_35; CPU: avx` in words."""
        names = [f"sm_{sm}" for sm in self.sass or ()] + [f"compute_{sm}" for sm in self.ptx]
        device = ", ".join(names) or (
            "no device code" if self.sass is not None else "device code not checked"
        )
        return f"{device}; CPU: {f'at most {self.cpu}' if self.cpu else 'not checked'}"


@dataclass(frozen=True)
class Wheel:
    """A wheel in the index."""

    filename: str
    project: str
    version: str
    groups: tuple[str, ...]
    size: int
    sha256: str
    uploaded: str
    channel: str | None = None
    report: "Report | None" = (
        None  # what its record has of verify's report; None: it was adopted, and not verified
    )
    without: str = (
        ""  # what the official wheel has beside it, by its record; empty: nothing, or nobody says
    )
    withdrawn: str | None = None  # why installers do not get it; None: they do
    tests: tuple[Smoke, ...] = ()  # the newest smoke test on each kind of machine

    @cached_property
    def tags(self) -> tuple[str, str]:
        """Pythons and platforms, as the file name says: `cp311`, `manylinux_2_28_x86_64`."""
        tags = parse_wheel_filename(self.filename)[3]
        pythons = {
            python_of(tag.interpreter, tag.abi) for tag in tags if tag.abi not in ("abi3", "none")
        }
        pythons |= {tag.interpreter for tag in tags if tag.abi == "none"}
        pythons |= {f"{tag.interpreter}-abi3" for tag in tags if tag.abi == "abi3"}
        return ", ".join(sorted(pythons)), ", ".join(sorted({tag.platform for tag in tags}))

    @property
    def several(self) -> bool:
        """True where it serves several Pythons: by the stable ABI, or since it has no code for
        Python.
        """
        return any(tag.abi in ("abi3", "none") for tag in parse_wheel_filename(self.filename)[3])

    @property
    def sms(self) -> tuple[int, ...]:
        """The SMs of the machine code that was verified; of a wheel that was not, those of its
        groups' names.
        """
        if self.report and self.report.sass is not None:
            return tuple(int(sm.rstrip("af")) for sm in self.report.sass)
        words = {word for group in self.groups if (word := group.partition("-")[0]) in gpu_words()}
        return tuple(sorted({sm for word in words for sm in Variant(word, "avx2", "py311").sms}))

    @property
    def state(self) -> str:
        """A key of `STATES`; a wheel for a GPU counts as tested if its GPU part ran on a card."""
        if any(smoke.failed for smoke in self.tests):
            return "broken"
        passed = [smoke for smoke in self.tests if smoke.passed]
        if not passed:
            return "published"
        if not self.sms or any(smoke.gpu for smoke in passed):
            return "smoked"
        return "tested"

    @property
    def checked(self) -> str:
        if self.report:
            return f"verified: report {self.report.sha256[:12]}"
        if self.channel:
            return "published without a report: not verified"
        return "adopted and not verified"


def _report(document: Any) -> Report | None:
    try:
        return Report.model_validate(document)
    except ValidationError:
        return None  # of another version of the farm, or of somebody else


def wheels(store: Store) -> Iterator[Wheel]:
    """Every wheel of the index, once: a request for each project of each group, and one for each
    record.
    """
    stored_catalogue = store.get(CATALOGUE)
    catalogue = parse_catalogue(stored_catalogue.data if stored_catalogue else None)
    places = [
        (group, project)
        for group, projects in sorted(catalogue.groups.items())
        for project in projects
    ]
    groups: dict[str, list[str]] = {}
    files: dict[str, tuple[str, File]] = {}
    with ThreadPoolExecutor(REQUESTS) as pool:
        keys = [json_key(*place) for place in places]
        for (group, project), key, page in zip(
            places, keys, pool.map(store.get, keys), strict=True
        ):
            for name, file in parse_page(page.data, key).entries.items() if page else ():
                groups.setdefault(name, []).append(group)
                # A wheel may be in several groups, and withdrawn from one of them.
                if name not in files or withdrawn(file) is None:
                    files[name] = project, file
        stored = pool.map(store.get, map(record_key, files))
        for (name, (project, file)), record in zip(files.items(), stored, strict=True):
            if record:
                provenance = parse_record(record.data, record_key(name)).provenance
            else:
                provenance = {}
            yield _wheel(project, file, tuple(groups[name]), provenance)


def _wheel(
    project: str, file: File, groups: tuple[str, ...], provenance: Mapping[str, Any]
) -> Wheel:
    return Wheel(
        filename=file.filename,
        project=project,
        version=str(parse_wheel_filename(file.filename)[1]),
        groups=groups,
        size=file.size or 0,
        sha256=file.hashes.sha256,
        uploaded=file.upload_time or "",
        channel=file.channel,
        report=_report(provenance.get("report")),
        without=plain(str(provenance.get("without") or ""), 1000),
        withdrawn=withdrawn(file),
    )


def with_tests(found: Iterable[Wheel], kept: Tests) -> list[Wheel]:
    """The wheels, newest version first, each with the smoke tests that the index keeps of it."""
    tested = []
    for wheel in found:
        tests = kept.get(wheel.filename, ())
        # With its Python only where that is news: the tag says it of all other wheels.
        tested.append(
            replace(
                wheel,
                tests=newest([test.with_python() for test in tests] if wheel.several else tests),
            )
        )
    return sorted(tested, key=lambda wheel: (Version(wheel.version), wheel.uploaded), reverse=True)
