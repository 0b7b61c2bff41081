"""The best of PyTorch's own wheels for a set of cards: the rules are data, and `best` reads nothing
else.

`facts` is that data as JSON, with the grammar of names and pasted text. The page's `answers.js` is
the same algorithm over the same document, sentence for sentence; `tests/unit/site/test_answers.py`
asks both the same questions.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from farm import catalog
from farm.catalog import number, paste
from farm.catalog.gpus import gpus, jetson_note, sass_runs, without_variant
from farm.plan.compat import other_makers
from farm.plan.compat.answer import Answer, Question
from farm.plan.compat.official_wheels import (
    PLATFORMS,
    PYTORCH_INDEX,
    Wheel,
    end_of_support,
    faults_text,
    has_code,
    pythons,
    wheels,
)
from farm.plan.compat.stack import reaches


@dataclass(frozen=True)
class CardAnswer(Answer):
    """The best wheel for a question about cards; None: no wheel has code for any of them.

    Attributes:
        wheel: The wheel.
        drivers: The drivers that run it on the cards, but for the `lost` ones.
        lost: The cards that it has no code for.
        update: The drivers with which it runs, where the driver is the `problem`.
        without: What it cannot do on the cards.
    """

    wheel: Wheel | None
    drivers: str | None = None
    lost: tuple[int, ...] = ()
    update: str | None = None
    without: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        return super().runs and not self.lost

    def to_json(self) -> dict[str, Any]:
        document = super().to_json()
        if self.wheel is not None:
            document["cuda"] = self.wheel.cuda
        document["drivers"] = self.drivers
        document["lost"] = list(self.lost)
        document["update"] = self.update
        document["without"] = list(self.without)
        return document


@cache
def facts() -> dict[str, Any]:
    """Everything that `best` reads, as JSON."""
    cards = catalog.architectures()
    return {
        "wheels": [asdict(wheel) for wheel in wheels()],
        "index": PYTORCH_INDEX,
        "cards": {
            name[2:]: [card.first_driver, card.last_driver]
            for name, card in cards.architectures.items()
        },
        "tegra": cards.tegra,
        "arm_alone": cards.arm_alone,
        "no_variant": _cards_without_variant(),
        "jetson": jetson_note(),
        "platforms": PLATFORMS,
        "pythons": pythons(),
        "branches": catalog.NEXT_BRANCH,
        "floors": _driver_floors(),
        "compilers": {cuda: list(toolkit.sm) for cuda, toolkit in catalog.toolkits().items()},
        "faults": _faults(),
        "old_cpus": catalog.official().old_cpus,
        "doubts": [row.model_dump() for row in catalog.official().doubts],
        "ends": _ends_of_support(),
        **other_makers.facts(),
        **paste.facts(),
    }


def _cards_without_variant() -> dict[int, str]:
    """Why the farm has no variant for a card, by SM."""
    reasons = {}
    for name in (*catalog.architectures().architectures, *gpus().too_old):
        sm = int(name[2:])
        reason = without_variant(sm)
        if reason:
            reasons[sm] = reason
    return reasons


def _driver_floors() -> dict[str, dict[str, str | None]]:
    """The first driver of each CUDA major, by operating system."""
    floors: dict[str, dict[str, str | None]] = {}
    for system in sorted({place.split("-")[0] for place in PLATFORMS}):
        floors[system] = {}
        for name, major in catalog.cuda_majors().items():
            floors[system][name] = major.driver(system)
    return floors


def _faults() -> dict[str, str]:
    """The known security faults of each release that has some."""
    texts = {}
    for torch in catalog.torch_releases():
        text = faults_text(torch)
        if text:
            texts[torch] = text
    return texts


def _ends_of_support() -> dict[int, dict[str, str]]:
    """Upstream's announcement for each card that it makes no wheels for any more."""
    ends = {}
    for name in catalog.architectures().architectures:
        sm = int(name[2:])
        end = end_of_support(sm)
        if end:
            ends[sm] = {"text": end.text, "source": end.source}
    return ends


def best(question: Question) -> CardAnswer:
    """The wheel that answers a question best.

    One that runs on all cards before one that has a problem with the driver or the Python, and that
    before one that some card has no code in; then the newest release, from the Python index, with
    the newest CUDA.
    """
    answers = [judge(wheel, question) for wheel in _asked_for(question)]
    if not answers and question.cuda:
        return CardAnswer(None, unknown=_no_such_wheel(question))
    usable = (answer for answer in answers if len(answer.lost) < len(question.sms))
    # The order of the wheels decides between equals: the first one stays.
    return min(
        usable,
        key=lambda answer: (len(answer.lost), answer.problem is not None),
        default=CardAnswer(None),
    )


def _asked_for(question: Question) -> Iterator[Wheel]:
    """The wheels for the platform, of the release and the CUDA that a question names."""
    for wheel in wheels():
        asked_for = question.torch in (None, wheel.torch) and question.cuda in (None, wheel.cuda)
        if wheel.platform == question.platform and asked_for:
            yield wheel


def _no_such_wheel(question: Question) -> str:
    """Why nothing is said of a release and CUDA that the catalogue has no wheel of."""
    place = question.platform
    if question.torch is None:
        return f"the catalogue has no wheel with CUDA {question.cuda} on {place}"
    cudas = set()
    for wheel in wheels():
        if wheel.torch == question.torch and wheel.platform == place:
            cudas.add(wheel.cuda)
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
        if self.last is None:
            return f"{self.first} or newer"
        return f"{self.first} or newer, up to branch {self.last}"

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


def judge(wheel: Wheel, question: Question) -> CardAnswer:
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
        if problem:
            update = drivers.text
    without = []
    for sm in served:
        if wheel.cudnn is not None and sm < wheel.cudnn:
            without.append(
                f"cuDNN on sm_{sm}: its cuDNN begins at sm_{wheel.cudnn}, so convolutions fail "
                "until torch.backends.cudnn.enabled = False"
            )
    return CardAnswer(
        wheel,
        problem=problem,
        but=tuple(_caveats(wheel, served, question)),
        drivers=drivers.text,
        lost=without_code,
        update=update,
        without=tuple(without),
    )


def _caveats(wheel: Wheel, served: list[int], question: Question) -> Iterator[str]:
    """What to know of a wheel that has code for the cards."""
    compiled = catalog.toolkits()[wheel.cuda].sm
    for sm in served:
        if sm not in compiled:
            yield (
                f"NVRTC and ptxas of CUDA {wheel.cuda} do not know sm_{sm}: what is compiled at "
                "run time (torch.compile, some operations) can fail"
            )
    for row in catalog.official().doubts:
        if number(row.since) <= number(wheel.torch) and not set(served).isdisjoint(row.sm):
            yield row.text
    old_cpu = catalog.official().old_cpus.get(question.cpu or "")
    if old_cpu is not None:
        yield old_cpu
    if wheel.unconfirmed:
        yield f"not confirmed: {wheel.unconfirmed}"
    faults = faults_text(wheel.torch)
    if faults:
        yield faults


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


def driver_branch(driver: str) -> int:
    return catalog.driver_branch(number(driver)[0])
