"""What became of the offers: wheels in the index, runs in the journal. All of it is untrusted text, and bounded."""

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from farm.errors import UsageError
from farm.index.catalogue import CATALOGUE_KEY, parse_catalogue, without_rebuild
from farm.index.pages import File, ProjectPage, json_key, parse_page
from farm.index.standing import WITHDRAWN, withdrawn
from farm.index.stores import Store
from farm.platforms.facts import of_tag
from farm.runs import EventKind, Journal, Phase, Run, state_of
from farm.runs.cache import FILE, read_counts, total
from farm.site.offers import Offer, wheel_key
from farm.text import short
from farm.variant import python_of

Wheels = Literal["smoked", "tested", "published", "broken", "withdrawn"]
Runs = Literal["running", "waiting", "failed", "cancelled"]
State = Literal[Wheels, Runs, "open", "blocked"]
STATES: dict[State, str] = {
    "smoked": "published, every part tested",
    "tested": "published, CPU part tested; GPU part not run",
    "published": "published, not tested",
    "broken": "published, its smoke test failed",
    "running": "being built",
    "waiting": "waiting",
    "withdrawn": WITHDRAWN,
    "failed": "the last run failed",
    "cancelled": "the last run was cancelled",
    "open": "not built yet",
    "blocked": "cannot be built",
}
"""The words of both pages and of badges and feed; selector.js gets them as data."""
MAX_RUNS = 200
MAX_REPORT = 1 << 20
REQUESTS = 8  # at a time
ANY = "any"
"""Stands for the Python of a wheel with the stable ABI, which serves several."""


@dataclass(frozen=True)
class Smoke:
    """One smoke test of a wheel.

    Attributes:
        where: The CPU, emulated or not, and the card where the GPU part ran.
        date: When, ISO 8601.
        outcome: What ran and how it ended: `CPU part passed; GPU part not run: no NVIDIA driver`.
        passed: Nothing failed, and something passed.
        gpu: The GPU part ran, and passed.
        failed: A part failed.
    """

    where: str
    date: str
    outcome: str
    passed: bool = False
    gpu: bool = False
    failed: bool = False


@dataclass(frozen=True)
class Wheel:
    """A wheel in the index. `size` in bytes, `uploaded` ISO 8601; the number of a rebuild is not part of `key`.

    `withdrawn` says why installers do not get it: it was yanked or quarantined. None: they do.
    """

    key: str
    filename: str
    project: str
    version: str
    size: int
    sha256: str
    uploaded: str
    withdrawn: str | None = None


@dataclass(frozen=True)
class Step:
    name: str
    seconds: float
    outcome: str


@dataclass(frozen=True)
class RunView:
    """One run as the site shows it.

    Attributes:
        why: Explains a wait or a failure.
        files: What can be linked.
        cached: Compiles that the compiler cache answered, and all; None where there was no cache.
    """

    id: str
    created: str
    phase: Phase
    key: str
    package: str
    variant: str
    version: str
    steps: tuple[Step, ...]
    why: str
    smokes: tuple[Smoke, ...] = ()
    files: tuple[Path, ...] = field(default=())
    cached: tuple[int, int] | None = None

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)


def wheels(store: Store) -> Iterator[Wheel]:
    """Every wheel of the index, once; `Known` keeps those apart that are withdrawn.

    One request for the catalogue and one for each project of each group, however many wheels there are.

    Raises:
        InfrastructureError: The store failed, or holds a page that is not one of ours.
    """
    # The catalogue lists groups and projects, so that the store need not be listed.
    stored = store.get(CATALOGUE_KEY)
    catalogue = parse_catalogue(stored.data if stored else None)
    keys = [json_key(group, project) for group, projects in sorted(catalogue.groups.items()) for project in projects]
    seen: dict[str, Wheel] = {}
    with ThreadPoolExecutor(REQUESTS) as pool:
        for key, page in zip(keys, pool.map(store.get, keys), strict=True):
            if page is None:
                continue
            shown = parse_page(page.data, key)
            for name, file in shown.entries.items():
                # A wheel may be in several groups, and withdrawn from one of them.
                if (made := _wheel(file, shown)).withdrawn is None or name not in seen:
                    seen[name] = made
    yield from seen.values()


def _wheel(file: File, page: ProjectPage) -> Wheel:
    name, version, _, tags = parse_wheel_filename(file.filename)
    # A wheel may have several tags. By name, so that the same one is taken each time.
    tag = min(tags, key=str)
    platform = of_tag(tag.platform)
    return Wheel(
        key=wheel_key(
            name,
            without_rebuild(str(version)),
            ANY if tag.abi == "abi3" else python_of(tag.interpreter, tag.abi),
            platform.name if platform else "any",
        ),
        filename=file.filename,
        project=name,
        version=str(version),
        size=file.size or 0,
        sha256=file.hashes.sha256,
        uploaded=file.upload_time or "",
        withdrawn=withdrawn(file, page),
    )


_LINKED = ("build.log", "image.log", "install.log", "verify.json", "smoke*.json")


def runs(journal: Journal, folder: Path, limit: int = MAX_RUNS) -> Iterator[RunView]:
    """The newest runs, newest first; `folder` holds one folder a run.

    Raises:
        InfrastructureError: The journal cannot be read.
    """
    for run in journal.runs(limit):
        yield _run(journal, run, folder / run.id)


def _run(journal: Journal, run: Run, folder: Path) -> RunView:
    steps = []
    for event in journal.events(run.id):
        if event.kind == EventKind.STEP:
            data = event.data
            steps.append(Step(short(data.get("name")), _seconds(data.get("seconds")), short(data.get("outcome"))))
    state = state_of(journal, run)
    plan = run.plan
    variant, package, version = (str(plan.get(name, "")) for name in ("variant", "package", "version"))
    files = tuple(sorted(path for pattern in _LINKED for path in folder.glob(pattern) if path.is_file()))
    return RunView(
        id=run.id,
        created=run.created,
        phase=state.phase,
        key=wheel_key(package, version, variant.rpartition("-")[2], str(plan.get("platform", ""))),
        package=package,
        variant=variant,
        version=version,
        steps=tuple(steps),
        why=short(state.text or ""),
        smokes=tuple(_smokes(run, files)),
        files=files,
        cached=_cached(folder / FILE),
    )


def _cached(path: Path) -> tuple[int, int] | None:
    try:
        whole = total(read_counts(path)) if path.is_file() else None
    except UsageError:
        return None  # a build machine wrote it
    return (whole.answered, whole.compiles) if whole and whole.compiles else None


def _seconds(value: Any) -> float:
    # The journal's own numbers, but of whichever version of the farm wrote them.
    return min(max(float(value), 0.0), 1e7) if isinstance(value, int | float) else 0.0


def _smokes(run: Run, files: Iterable[Path]) -> Iterator[Smoke]:
    for path in files:
        # A report was written by the machine that ran the test: it is bounded before it is read.
        if not path.name.startswith("smoke") or path.stat().st_size > MAX_REPORT:
            continue
        try:
            report = json.loads(path.read_bytes())
            yield _smoke(report, run.created[:10])
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            continue  # a report of another version tells nothing here


def _smoke(report: dict[str, Any], date: str) -> Smoke:
    """What ran, on what, and how it ended, of one report of the probe."""
    parts: dict[str, list[dict[str, Any]]] = {"CPU": [], "GPU": []}
    for check in report.get("checks") or ():
        parts["GPU" if check["group"] in ("cuda", "speed") else "CPU"].append(check)
    cards = [str(check["seen"]) for check in parts["GPU"] if check["name"] == "devices" and check["status"] == "passed"]
    machine = str((report.get("facts") or {}).get("machine") or "this machine")
    cpu = f"{report['emulated']} (emulated)" if report.get("emulated") else f"a real CPU ({machine})"
    outcomes = [f"{name} part {_ended(checks)}" for name, checks in parts.items() if checks]
    return Smoke(
        where=short(", ".join([cpu, *cards])),
        date=date,
        outcome=short("; ".join(outcomes) or report["outcome"]),
        passed=report["outcome"] == "passed",
        failed=report["outcome"] == "failed",
        gpu=report["outcome"] == "passed" and any(check["status"] == "passed" for check in parts["GPU"]),
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


@dataclass(frozen=True)
class Known:
    """Wheels and runs. `current` has the newest rebuild of each wheel by its key, `last` the newest run.

    `wheels` are those that installers get; `withdrawn` has, by key, why the newest of the others is not among them.
    """

    wheels: Sequence[Wheel]
    runs: Sequence[RunView]
    current: dict[str, Wheel]
    last: dict[str, RunView]
    withdrawn: dict[str, str]

    @classmethod
    def of(cls, wheels: Iterable[Wheel], runs: Iterable[RunView]) -> "Known":
        # In rising order the newest rebuild is the last that is put under the key.
        rising, listed = sorted(wheels, key=lambda wheel: Version(wheel.version)), list(runs)
        there = [wheel for wheel in rising if wheel.withdrawn is None]
        withdrawn = {wheel.key: wheel.withdrawn for wheel in rising if wheel.withdrawn is not None}
        # Runs come newest first: reversed, the newest is the last here as well.
        return cls(there, listed, {w.key: w for w in there}, {run.key: run for run in reversed(listed)}, withdrawn)

    def wheel(self, offer: Offer) -> Wheel | None:
        """The wheel of an offer: that of its own Python, or one with the stable ABI."""
        stable = wheel_key(offer.package, offer.version, ANY, offer.platform)
        return self.current.get(offer.key) or self.current.get(stable)

    def tested(self, offer: Offer) -> State:
        """Of a published wheel: one for a GPU counts as tested only if its GPU part ran on a card."""
        if any(smoke.failed for smoke in self.smokes(offer.key)):
            return "broken"
        passed = [smoke for smoke in self.smokes(offer.key) if smoke.passed]
        if not passed:
            return "published"
        return "smoked" if offer.cuda is None or any(smoke.gpu for smoke in passed) else "tested"

    def smokes(self, key: str) -> tuple[Smoke, ...]:
        return next((run.smokes for run in self.runs if run.key == key and run.smokes), ())

    def state(self, offer: Offer) -> tuple[State, str]:
        """The state, and why where it needs a reason."""
        if offer.blocked:
            return "blocked", short(offer.blocked)
        run = self.last.get(offer.key)
        # Before the wheel: a rebuild that is under way matters more than the wheel that it will replace.
        if run is not None and not run.phase.ended:
            return "waiting" if run.phase is Phase.QUEUED else "running", run.why
        if self.wheel(offer):
            return self.tested(offer), ""
        if run is not None and run.phase is not Phase.SUCCEEDED:
            return "cancelled" if run.phase is Phase.CANCELLED else "failed", run.why
        stable = wheel_key(offer.package, offer.version, ANY, offer.platform)
        if withdrawn := self.withdrawn.get(offer.key) or self.withdrawn.get(stable):
            return "withdrawn", withdrawn
        return "open", ""
