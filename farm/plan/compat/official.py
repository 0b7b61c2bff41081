"""PyTorch's own wheels and those of other makers for a set of cards: the rules are data, and `best`
reads nothing else.

`facts` is that data as JSON, with the grammar of names and pasted text. The page's `answers.js` is
the same algorithm over the same document, sentence for sentence; `tests/unit/site/test_answers.py`
asks both the same questions.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

from pydantic import Field

from farm import catalog
from farm.base.yamlfile import Model, load
from farm.catalog import FOLDER, number, paste
from farm.catalog.gpus import gpus, jetson_note, ptx_compiles, sass_runs, without_variant
from farm.catalog.models import VERSION, Dropped, OfficialWheel, SecurityFault
from farm.plan.compat.stack import reaches


class Maker(Model):
    """One kind of build by someone else (`makers.yaml`). `install` may hold `{arch}`, the SM of the
    card; `commit` is that of the recipes at which the row was read, None where it was no repository.
    """

    maker: str
    torch: str = Field(pattern=VERSION)
    since: str = Field(pattern=VERSION)
    cuda: str = Field(pattern=VERSION)
    platforms: list[str]
    sm: list[int]
    ptx: list[int]
    cudnn_sm: int | None
    pythons: list[str] | None
    install: str
    has: str
    lacks: str
    source: str
    commit: str | None = Field(pattern=r"^[0-9a-f]{40}$")
    unconfirmed: str


class MakerBeside(Model):
    """Someone who makes packages that old cards need beside torch."""

    maker: str
    sm: list[int]
    has: str
    lacks: str
    source: str
    unconfirmed: str


class Makers(Model):
    """Other makers of PyTorch with CUDA, the newest release of each first; `beside`: of what goes
    with it.
    """

    sources: dict[str, str]
    makers: list[Maker]
    beside: list[MakerBeside]


@cache
def makers() -> Makers:
    return load(FOLDER / "makers.yaml", Makers)


PYTORCH_INDEX = "https://download.pytorch.org/whl"
PLATFORMS = ("linux-x86_64", "linux-aarch64", "windows-x86_64")
"""Where PyTorch publishes wheels with CUDA."""


@dataclass(frozen=True)
class Wheel:
    """One release of PyTorch with one CUDA on one platform.

    `needed`: the lowest driver for its machine code, `full` for its PTX; `cudnn`: the lowest SM in
    its cuDNN; `glibc`: the oldest that it runs with; None: not known, or none. `unconfirmed`: what
    no one has seen of it.
    """

    torch: str
    platform: str
    cuda: str
    index: str
    sm: tuple[int, ...]
    ptx: tuple[int, ...]
    pythons: tuple[str, ...]
    needed: str
    full: str
    cudnn: int | None
    glibc: str | None
    unconfirmed: str | None

    @property
    def pip(self) -> str:
        """The command that installs it."""
        line = f"pip install torch=={self.torch}"
        if self.index == "pypi":
            return line
        return f"{line} --index-url {PYTORCH_INDEX}/cu{self.cuda.replace('.', '')}"


@dataclass(frozen=True)
class Question:
    """The cards that one wheel must run on, and what is known of the machine; None: not asked."""

    sms: tuple[int, ...]
    platform: str
    driver: str | None = None
    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    glibc: str | None = None
    cpu: str | None = None


@dataclass(frozen=True)
class Answer:
    """The best wheel for a question; None: no wheel has code for any of the cards.

    `drivers` run it on the cards, but for the `lost` ones, which it has no code for; `update`:
    those with which it runs where a driver is the `problem`; `without`: what it cannot do on the
    cards; `but`: what to know before it is used; `unknown`: why the catalogue has no answer.
    """

    wheel: Wheel | None
    drivers: str | None = None
    lost: tuple[int, ...] = ()
    problem: str | None = None
    update: str | None = None
    without: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    unknown: str | None = None

    @property
    def runs(self) -> bool:
        return self.wheel is not None and self.problem is None and not self.lost

    @property
    def verdict(self) -> Literal["yes", "no", "not known"]:
        if self.unknown:
            return "not known"
        return "yes" if self.runs else "no"

    def to_json(self) -> dict[str, Any]:
        wheel = self.wheel
        return {
            "runs": self.runs,
            "verdict": self.verdict,
            "torch": wheel.torch if wheel else None,
            "cuda": wheel.cuda if wheel else None,
            "pip": wheel.pip if wheel else None,
            "pythons": list(wheel.pythons) if wheel else [],
            "glibc": wheel.glibc if wheel else None,
            "drivers": self.drivers,
            "lost": list(self.lost),
            "problem": self.problem,
            "update": self.update,
            "without": list(self.without),
            "but": list(self.but),
            "unknown": self.unknown,
        }


@cache
def wheels() -> tuple[Wheel, ...]:
    """Every wheel with CUDA: the newest release first, then the Python index's, then the newest
    CUDA.
    """
    all_wheels = [
        _wheel(torch, row) for torch in catalog.torch_releases() for row in rows(torch) if row.cuda
    ]
    all_wheels.sort(
        key=lambda wheel: (
            number(wheel.torch),
            wheel.index == "pypi",
            wheel.unconfirmed is None,
            number(wheel.cuda),
        ),
        reverse=True,
    )
    return tuple(all_wheels)


def rows(torch: str) -> list[OfficialWheel]:
    """The rows of the catalogue for a release; one may stand for all patch releases: `2.1` for
    2.1.0 to 2.1.2.
    """
    return [
        row for row in catalog.official().wheels if row.torch in (torch, torch.rpartition(".")[0])
    ]


def pythons() -> list[str]:
    """The Pythons that some wheel of the catalogue is for, oldest first."""
    words = {python for wheel in wheels() for python in wheel.pythons}
    return sorted(words, key=lambda word: (int(word[3:].removesuffix("t")), word))


def source(wheel: Wheel) -> str:
    """Where a wheel's facts are from."""
    place = (wheel.platform, wheel.cuda, wheel.index)
    row = next(row for row in rows(wheel.torch) if (row.platform, row.cuda, row.index) == place)
    text = catalog.official().sources[row.source]
    return f"{text} ({row.file})" if row.file else text


def _wheel(torch: str, row: OfficialWheel) -> Wheel:
    cuda = row.cuda or ""
    system = row.platform.split("-")[0]
    release = catalog.torch_releases()[torch]
    # Several rows with one CUDA: the one with the fewest cards counts.
    versions = [entry.cudnn for entry in release.official if entry.cuda == cuda and entry.cudnn]
    sm_floors = {entry.version: entry.sm_min for entry in catalog.cudnn_releases().values()}
    floors = [sm_floors[version] for version in versions if version in sm_floors]
    needed = catalog.cuda_majors()[cuda.split(".")[0]].driver(system)
    full, _ = catalog.full_driver(cuda, system)
    glibc = [
        entry.glibc
        for entry in catalog.official().glibc
        if row.platform in entry.platforms
        if number(entry.since) <= number(torch) and number(entry.cuda) <= number(cuda)
    ]
    return Wheel(
        torch,
        row.platform,
        cuda,
        row.index,
        tuple(row.sm),
        tuple(row.ptx),
        tuple(release.pythons.on(system) if row.pythons is None else row.pythons),
        needed or "0",
        full or "0",
        max(floors, default=None),
        glibc[-1] if glibc else None,
        row.unconfirmed,
    )


@cache
def facts() -> dict[str, Any]:
    """Everything that `best` reads, as JSON."""
    cards = catalog.architectures()
    known_sms = [int(name[2:]) for name in (*cards.architectures, *gpus().too_old)]
    return {
        "wheels": [asdict(row) for row in wheels()],
        "index": PYTORCH_INDEX,
        "cards": {
            name[2:]: [card.first_driver, card.last_driver]
            for name, card in cards.architectures.items()
        },
        "tegra": cards.tegra,
        "arm_alone": cards.arm_alone,
        "no_variant": {sm: why for sm in known_sms if (why := without_variant(sm))},
        "jetson": jetson_note(),
        "platforms": PLATFORMS,
        "pythons": pythons(),
        "branches": catalog.NEXT_BRANCH,
        "floors": {
            system: {name: major.driver(system) for name, major in catalog.cuda_majors().items()}
            for system in sorted({place.split("-")[0] for place in PLATFORMS})
        },
        "compilers": {cuda: list(toolkit.sm) for cuda, toolkit in catalog.toolkits().items()},
        "faults": {
            torch: text for torch in catalog.torch_releases() if (text := faults_text(torch))
        },
        "old_cpus": catalog.official().old_cpus,
        "doubts": [row.model_dump() for row in catalog.official().doubts],
        "ends": {
            sm: {"text": end.text, "source": end.source}
            for name in cards.architectures
            if (end := end_of_support(sm := int(name[2:])))
        },
        "makers": [
            row.model_dump() | {"source": makers().sources[row.source]} for row in makers().makers
        ],
        "beside": [row.model_dump() for row in makers().beside],
        **paste.facts(),
    }


def best(question: Question) -> Answer:
    """The wheel that answers a question best.

    One that runs on all cards before one that has a problem with the driver or the Python, and that
    before one that some card has no code in; then the newest release, from the Python index, with
    the newest CUDA.
    """
    answers = [
        judge(wheel, question)
        for wheel in wheels()
        if wheel.platform == question.platform
        and question.torch in (None, wheel.torch)
        and question.cuda in (None, wheel.cuda)
    ]
    if not answers and question.cuda:
        return Answer(None, unknown=_no_such_wheel(question))
    usable = (answer for answer in answers if len(answer.lost) < len(question.sms))
    # The order of the wheels decides between equals: the first one stays.
    return min(
        usable,
        key=lambda answer: (len(answer.lost), answer.problem is not None),
        default=Answer(None),
    )


def _no_such_wheel(question: Question) -> str:
    """Why nothing is said of a release and CUDA that the catalogue has no wheel of."""
    place = question.platform
    if question.torch is None:
        return f"the catalogue has no wheel with CUDA {question.cuda} on {place}"
    cudas = {
        wheel.cuda
        for wheel in wheels()
        if wheel.torch == question.torch and wheel.platform == place
    }
    cudas_text = ", ".join(f"CUDA {cuda}" for cuda in sorted(cudas, key=number))
    return (
        f"the catalogue has no such wheel: on {place} torch {question.torch} came with "
        f"{cudas_text or 'no CUDA'}"
    )


@dataclass(frozen=True)
class _DriverRange:
    """The drivers that run a wheel: the first one, the last branch, the card that ends there."""

    first: str
    last: int | None
    last_sm: int | None

    @property
    def text(self) -> str:
        end = f", up to branch {self.last}" if self.last else ""
        return f"{self.first} or newer{end}"

    @property
    def empty(self) -> bool:
        """True if the first driver that runs the wheel knows one of the cards no more."""
        return self.last is not None and driver_branch(self.first) > self.last


def _drivers(wheel: Wheel, served: list[int]) -> _DriverRange:
    """The drivers that run a wheel on cards that it has code for."""
    architectures = catalog.architectures().architectures
    needed = [wheel.needed]
    last: int | None = None
    last_sm: int | None = None
    for sm in served:
        card = architectures.get(f"sm{sm}")
        if card and card.first_driver:
            needed.append(str(card.first_driver))
        # Without machine code the driver compiles PTX, which minor-version compatibility does not
        # cover.
        if not any(sass_runs(code, sm) for code in wheel.sm):
            needed.append(wheel.full)
        if card and card.last_driver:
            ends_first = last is None or (card.last_driver, sm) < (last, last_sm or 0)
            if ends_first:
                last = card.last_driver
                last_sm = sm
    return _DriverRange(max(needed, key=number), last, last_sm)


def _driver_problem(wheel: Wheel, question: Question, drivers: _DriverRange) -> str | None:
    """What is wrong with the driver of a question; None: nothing, or none was named."""
    driver = question.driver
    if driver is None:
        return None
    if not reaches(driver, drivers.first):
        return (
            f"driver {driver} is too old: torch {wheel.torch} with CUDA {wheel.cuda} needs "
            f"{drivers.first} or newer"
        )
    if drivers.last is not None and driver_branch(driver) > drivers.last:
        return (
            f"driver {driver} does not know sm_{drivers.last_sm}: branch {drivers.last} is the "
            "last that does"
        )
    return None


def _other_problem(wheel: Wheel, question: Question) -> str | None:
    """What is wrong with the Python or the C library of a question."""
    if question.python is not None and question.python not in wheel.pythons:
        pythons = ", ".join(wheel.pythons)
        return f"there is no wheel of torch {wheel.torch} for {question.python}: {pythons}"
    if question.glibc and wheel.glibc and number(question.glibc) < number(wheel.glibc):
        return (
            f"torch {wheel.torch} with CUDA {wheel.cuda} needs glibc {wheel.glibc} or newer, not "
            f"{question.glibc}"
        )
    return None


def judge(wheel: Wheel, question: Question) -> Answer:
    """A wheel's use for the cards of a question."""
    without_code = tuple(sm for sm in question.sms if not has_code(wheel, sm))
    served = [sm for sm in question.sms if sm not in without_code]
    drivers = _drivers(wheel, served)
    problem = _other_problem(wheel, question)
    update = None
    if problem is None and drivers.empty:
        problem = (
            f"no driver runs it: it needs {drivers.first} or newer, and {drivers.last} is the "
            f"last branch for sm_{drivers.last_sm}"
        )
    elif problem is None:
        problem = _driver_problem(wheel, question, drivers)
        update = drivers.text if problem else None
    without = []
    for sm in served:
        if wheel.cudnn is not None and sm < wheel.cudnn:
            without.append(
                f"cuDNN on sm_{sm}: its cuDNN begins at sm_{wheel.cudnn}, so convolutions fail "
                "until torch.backends.cudnn.enabled = False"
            )
    return Answer(
        wheel,
        drivers.text,
        without_code,
        problem,
        update,
        tuple(without),
        _caveats(wheel, served, question),
    )


def _caveats(wheel: Wheel, served: list[int], question: Question) -> tuple[str, ...]:
    """What to know of a wheel that has code for the cards."""
    compiled = catalog.toolkits()[wheel.cuda].sm
    texts = [
        f"NVRTC and ptxas of CUDA {wheel.cuda} do not know sm_{sm}: what is compiled at run time "
        "(torch.compile, some operations) can fail"
        for sm in served
        if sm not in compiled
    ]
    texts += [
        row.text
        for row in catalog.official().doubts
        if number(row.since) <= number(wheel.torch) and not set(served).isdisjoint(row.sm)
    ]
    if (old := catalog.official().old_cpus.get(question.cpu or "")) is not None:
        texts.append(old)
    if wheel.unconfirmed:
        texts.append(f"not confirmed: {wheel.unconfirmed}")
    if faults := faults_text(wheel.torch):
        texts.append(faults)
    return tuple(texts)


def faults_text(torch: str, patches: Collection[str] = ()) -> str | None:
    """The known security faults of a release, in a line; None: it has none.

    Args:
        torch: The release.
        patches: Names of the recipe's patches: one with the id of a fault in its name mends it.
    """
    faults = catalog.security_faults(torch)
    if not faults:
        return None
    patched: list[SecurityFault] = []
    open_: list[SecurityFault] = []
    for fault in faults:
        mended = any(fault.id in patch for patch in patches)
        (patched if mended else open_).append(fault)
    texts = []
    if open_:
        fixed = max((fault.fixed for fault in open_), key=number)
        texts.append(f"files of others can run code: {_ids(open_)}; fixed in torch {fixed}")
    if patched:
        texts.append(f"patched by the recipe: {_ids(patched)}")
    return "; ".join(texts)


def _ids(faults: Collection[SecurityFault]) -> str:
    return ", ".join(fault.id for fault in faults)


def why_not_newer(question: Question, wheel: Wheel) -> str | None:
    """Why no newer release runs on the cards of a question; None: there is none with code for them.

    Args:
        question: What was asked.
        wheel: The wheel that answers it best.
    """
    for newer in wheels():
        if number(newer.torch) <= number(wheel.torch):
            return None
        if newer.platform != question.platform or question.torch or question.cuda:
            continue
        answer = judge(newer, question)
        if not answer.lost:
            return answer.problem
    return None


def end_of_support(sm: int) -> Dropped | None:
    """Upstream's announcement that ends its wheels for a card; None: the newest release has
    some, or none ever had.
    """
    if not any(has_code(wheel, sm) for wheel in wheels()):
        return None
    rows = [row for row in catalog.dropped() if row.sm_from <= sm < row.sm_below]
    if not rows:
        return None
    last = rows[-1]
    still = any(
        has_code(wheel, sm) and number(wheel.torch) >= number(last.since) for wheel in wheels()
    )
    return None if still else last


def driver_branch(driver: str) -> int:
    return catalog.driver_branch(number(driver)[0])


def has_code(wheel: Wheel | Maker | OfficialWheel, sm: int) -> bool:
    """True if a wheel has machine code that runs on a card, or PTX that its driver compiles."""
    return any(sass_runs(code, sm) for code in wheel.sm) or any(
        ptx_compiles(code, sm) for code in wheel.ptx
    )


def left_behind(torch: str, cuda: str, sm: int) -> Dropped | None:
    """Upstream's latest announcement of dropping a card that it had code for, for a release and
    CUDA.
    """
    dropped = [
        row for row in catalog.dropped() if number(row.since) <= number(torch) and cuda in row.cuda
    ]
    # Rows are in the order of releases: the last one that counts is the latest word.
    return next((row for row in reversed(dropped) if row.sm_from <= sm < row.sm_below), None)


def others(question: Question) -> list[Maker]:
    """Builds of other makers with code for all cards, the newest of each kind that the driver
    runs.
    """
    newest: dict[tuple[str, str], Maker] = {}
    for row in makers().makers:
        if _answers(row, question):
            newest.setdefault((row.maker, row.cuda.split(".")[0]), row)
    return list(newest.values())


def _answers(row: Maker, question: Question) -> bool:
    """True if a maker's build is what a question asks for, and runs on its machine."""
    has_all_code = all(has_code(row, sm) for sm in question.sms)
    if question.platform not in row.platforms or not has_all_code:
        return False
    torch = question.torch
    if torch and not number(row.since) <= number(torch) <= number(row.torch):
        return False
    other_python = row.pythons and question.python not in (None, *row.pythons)
    if question.cuda not in (None, row.cuda) or other_python:
        return False
    system = question.platform.split("-")[0]
    needed = catalog.cuda_majors()[row.cuda.split(".")[0]].driver(system) or "0"
    architectures = catalog.architectures().architectures
    for sm in question.sms:
        card = architectures.get(f"sm{sm}")
        if card and card.last_driver and number(needed)[0] > card.last_driver:
            return False
    return question.driver is None or reaches(question.driver, needed)


def install(row: Maker, question: Question) -> str:
    """The line that installs a build of another maker."""
    return row.install.replace("{arch}", ",".join(map(str, question.sms)))


def makers_beside(question: Question) -> list[MakerBeside]:
    """Who makes packages beside torch for some card of a question."""
    return [row for row in makers().beside if any(sm in row.sm for sm in question.sms)]
