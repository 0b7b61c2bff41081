"""States of the offers: wheels in the index, runs in the journal. All of it is untrusted text, and bounded."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from farm.base.errors import UsageError
from farm.base.tags import python_of
from farm.base.text import short
from farm.index.layout import json_key, without_rebuild
from farm.index.pages import File, parse_page, read_catalogue
from farm.index.standing import WITHDRAWN, withdrawn
from farm.index.stores import Store
from farm.platforms.facts import of_tag
from farm.run.journal import EventKind, Journal, Phase, Run, state_of
from farm.run.journal.cache import FILE, read_counts, total
from farm.site.offers import Offer, wheel_key
from farm.site.tested import REQUESTS, Smoke, Tests, newest, smokes_in

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
STABLE = "abi3"
ANY = "any"
"""Both stand for the Python of a wheel that serves several: by the stable ABI, and since it has no code for Python."""


@dataclass(frozen=True)
class Wheel:
    """A wheel in the index. `size` in bytes, `uploaded` ISO 8601; the number of a rebuild is not part of `key`.

    `withdrawn` says why installers do not get it: it was yanked. None: they do.
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
    def python(self) -> str:
        return self.variant.rpartition("-")[2]

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
    catalogue, _ = read_catalogue(store)
    keys = [json_key(group, project) for group, projects in sorted(catalogue.groups.items()) for project in projects]
    seen: dict[str, Wheel] = {}
    with ThreadPoolExecutor(REQUESTS) as pool:
        for key, page in zip(keys, pool.map(store.get, keys), strict=True):
            if page is None:
                continue
            shown = parse_page(page.data, key)
            for name, file in shown.entries.items():
                # A wheel may be in several groups, and withdrawn from one of them.
                if (made := _wheel(file)).withdrawn is None or name not in seen:
                    seen[name] = made
    yield from seen.values()


def _wheel(file: File) -> Wheel:
    name, version, _, tags = parse_wheel_filename(file.filename)
    # A wheel may have several tags. By name, so that the same one is taken each time.
    tag = min(tags, key=str)
    platform = of_tag(tag.platform)
    return Wheel(
        key=wheel_key(
            name,
            without_rebuild(str(version)),
            _python(tag),
            platform.name if platform else "any",
        ),
        filename=file.filename,
        project=name,
        version=str(version),
        size=file.size or 0,
        sha256=file.hashes.sha256,
        uploaded=file.upload_time or "",
        withdrawn=withdrawn(file),
    )


def _python(tag: Tag) -> str:
    if tag.abi == "abi3":
        return f"{tag.interpreter}-{STABLE}"  # with the oldest Python that loads it
    return ANY if tag.interpreter.startswith("py") else python_of(tag.interpreter, tag.abi)


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
        key=wheel_key(package, without_rebuild(version), variant.rpartition("-")[2], str(plan.get("platform", ""))),
        package=package,
        variant=variant,
        version=version,
        steps=tuple(steps),
        why=short(state.text or ""),
        smokes=tuple(smokes_in(files, run.created)),
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


@dataclass(frozen=True)
class Known:
    """Wheels and runs. `current` has the newest rebuild of each wheel by its key, `last` the newest run.

    `wheels` are those that installers get; `withdrawn` has, by key, why the newest of the others is not among them.
    `tests` are the smoke tests that the index keeps, by the name of the wheel's file.
    """

    wheels: Sequence[Wheel]
    runs: Sequence[RunView]
    current: dict[str, Wheel]
    last: dict[str, RunView]
    withdrawn: dict[str, str]
    tests: Tests

    @classmethod
    def of(cls, wheels: Iterable[Wheel], runs: Iterable[RunView], tests: Tests | None = None) -> "Known":
        # In rising order the newest rebuild is the last that is put under the key.
        rising, listed = sorted(wheels, key=lambda wheel: Version(wheel.version)), list(runs)
        there = [wheel for wheel in rising if wheel.withdrawn is None]
        withdrawn = {wheel.key: wheel.withdrawn for wheel in rising if wheel.withdrawn is not None}
        # Runs come newest first: reversed, the newest is the last here as well.
        last = {run.key: run for run in reversed(listed)}
        return cls(there, listed, {w.key: w for w in there}, last, withdrawn, tests or {})

    def wheel(self, offer: Offer) -> Wheel | None:
        """The wheel of an offer: that of its own Python, or one that serves several."""
        return next((self.current[key] for key in _keys(offer) if key in self.current), None)

    def tested(self, offer: Offer) -> State:
        """Of a published wheel: one for a GPU counts as tested only if its GPU part ran on a card."""
        smokes = self.smokes(offer)
        if any(smoke.failed for smoke in smokes):
            return "broken"
        passed = [smoke for smoke in smokes if smoke.passed]
        if not passed:
            return "published"
        return "smoked" if offer.cuda is None or any(smoke.gpu for smoke in passed) else "tested"

    def smokes(self, offer: Offer) -> tuple[Smoke, ...]:
        """The newest test of the offer's wheel on each kind of machine: of the reports in the index and of our runs.

        A test of an earlier rebuild says nothing of this one.
        """
        wheel = self.wheel(offer)
        if wheel is None:
            return ()
        _, _, python, platform = wheel.key.split("|")
        several = python == ANY or python.endswith(STABLE)
        runs = self._runs_of.get(wheel_key(wheel.project, wheel.version, "", platform), ())
        found = [*self.tests.get(wheel.filename, ())]
        found += [smoke for run in runs if several or run.python == python for smoke in run.smokes]
        # With its Python only where that is news: the variant says it of all other wheels.
        return newest([smoke.with_python() for smoke in found] if several else found)

    @cached_property
    def _runs_of(self) -> dict[str, list[RunView]]:
        """Runs that tested something, by package, exact version and platform of their wheel."""
        found: dict[str, list[RunView]] = {}
        for run in self.runs:
            if run.smokes:
                key = wheel_key(run.package, run.version, "", run.key.rpartition("|")[2])
                found.setdefault(key, []).append(run)
        return found

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
        if withdrawn := next((self.withdrawn[key] for key in _keys(offer) if key in self.withdrawn), None):
            return "withdrawn", withdrawn
        return "open", ""


def _keys(offer: Offer) -> tuple[str, ...]:
    """The keys of the wheels that serve an offer, its own first."""
    return _keys_of(offer.package, offer.version, offer.python, offer.platform)


@lru_cache(maxsize=4096)  # every page asks for the state of every offer
def _keys_of(package: str, version: str, python: str, platform: str) -> tuple[str, ...]:
    pythons = [python, ANY]
    if not python.endswith("t"):  # a free-threaded Python does not load the stable ABI
        pythons += [f"cp3{minor}-{STABLE}" for minor in range(int(python[3:]), 1, -1)]
    return tuple(wheel_key(package, version, each, platform) for each in pythons)
