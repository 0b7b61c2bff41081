"""Does PyTorch's own wheel run on a card? Answers from `farm/catalog/official.yaml`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from farm import catalog
from farm.catalog.binary import ptx_compiles, sass_runs
from farm.catalog.models import Dropped, OfficialWheel
from farm.plan.compat.stack import number, reaches

PYTORCH_INDEX = "https://download.pytorch.org/whl"


@dataclass(frozen=True)
class Answer:
    """Upstream's wheels of one torch release for a card.

    Args:
        torch: The release.
        row: The wheel that runs on the card; None: none does.
        others: The wheels of the release that do not run on it.
        driver: The lowest driver that the wheel needs; None: not known, or no wheel.
        problem: Why the driver or the Python that was asked about does not do for the wheel.
        update: The drivers with which there is no problem; None: another driver does not help, or none is needed.
    """

    torch: str
    row: OfficialWheel | None
    others: tuple[OfficialWheel, ...]
    driver: str | None = None
    problem: str | None = None
    update: str | None = None

    @property
    def runs(self) -> bool:
        return self.row is not None and self.problem is None

    @property
    def pip(self) -> str | None:
        """The command that installs it."""
        if self.row is None:
            return None
        line = f"pip install torch=={self.torch}"
        return line if self.row.index == "pypi" else f"{line} --index-url {PYTORCH_INDEX}/{flavour(self.row.cuda)}"


def flavour(cuda: str | None) -> str:
    """`cu126` for 12.6, `cpu` without CUDA."""
    return f"cu{cuda.replace('.', '')}" if cuda else "cpu"


@cache
def _by_release() -> dict[tuple[str, str], tuple[OfficialWheel, ...]]:
    found: dict[tuple[str, str], tuple[OfficialWheel, ...]] = {}
    for row in catalog.official_wheels():
        for torch in catalog.torch_releases():
            # A row may stand for all patch releases: `2.1` for 2.1.0, 2.1.1 and 2.1.2.
            if row.torch in (torch, torch.rpartition(".")[0]):
                found[torch, row.platform] = (*found.get((torch, row.platform), ()), row)
    return found


def rows(torch: str, platform: str) -> tuple[OfficialWheel, ...]:
    """Every wheel that upstream publishes of a release for a platform (`linux-x86_64`); empty: none is known."""
    return _by_release().get((torch, platform), ())


def source(row: OfficialWheel) -> str:
    """Where a row's facts come from."""
    text = catalog.official().sources[row.source]
    return f"{text} ({row.file})" if row.file else text


def runs(row: OfficialWheel, sm: int) -> bool:
    """True if a wheel has machine code that runs on a card, or PTX that its driver compiles."""
    return any(sass_runs(code, sm) for code in row.sm) or any(ptx_compiles(code, sm) for code in row.ptx)


def answer(torch: str, sm: int, platform: str, driver: str | None = None, python: str | None = None) -> Answer:
    """Upstream's wheel of a release for a card: that of the Python index before others, then of the newest CUDA."""
    published = [row for row in rows(torch, platform) if row.cuda]
    able = [row for row in published if runs(row, sm)]
    others = tuple(row for row in published if row not in able)
    if not able:
        return Answer(torch, None, others)
    judged = [(row, _problem(torch, row, sm, platform, driver, python)) for row in able]
    judged.sort(
        # Without a problem first, then from the Python index, then with the newest CUDA.
        key=lambda pair: (pair[1] is not None, pair[0].index != "pypi", [-n for n in number(pair[0].cuda or "0")])
    )
    row, problem = judged[0]
    driver_alone = problem is not None and _problem(torch, row, sm, platform, None, python) is None
    return Answer(torch, row, others, driver_needed(row, sm), problem, drivers(row, sm) if driver_alone else None)


def newest(sm: int, platform: str, driver: str | None = None, python: str | None = None) -> Answer | None:
    """The newest release that runs on a card, else the newest with code for it and a problem; None: none has code."""
    found = [each for each in answers(sm, platform, driver, python) if each.row]
    return next((each for each in found if each.runs), next(iter(found), None))


def answers(sm: int, platform: str, driver: str | None = None, python: str | None = None) -> Iterator[Answer]:
    """An answer for every release that has wheels for the platform, newest first."""
    for torch in reversed(list(catalog.torch_releases())):
        if rows(torch, platform):
            yield answer(torch, sm, platform, driver, python)


def driver_needed(row: OfficialWheel, sm: int) -> str | None:
    """The lowest driver that runs a wheel on a card: what its CUDA needs, and what knows the card."""
    if row.cuda is None:
        return None
    needed = catalog.cuda_majors()[row.cuda.split(".")[0]].driver(row.platform.split("-")[0])
    card = catalog.architectures().architectures.get(f"sm{sm}")
    first = str(card.first_driver) if card and card.first_driver else None
    toolkit = catalog.toolkits().get(row.cuda)
    full = toolkit.driver(row.platform.split("-")[0]) if toolkit else None
    # Without SASS the driver compiles PTX, which minor-version compatibility does not cover.
    jit = full if not any(sass_runs(code, sm) for code in row.sm) else None
    return max((each for each in (needed, first, jit) if each), key=number, default=None)


def last_driver(sm: int) -> int | None:
    """The last driver branch that knows a card; None: the newest does."""
    card = catalog.architectures().architectures.get(f"sm{sm}")
    return card.last_driver if card else None


def drivers(row: OfficialWheel, sm: int) -> str:
    """`525 or newer, up to branch 580`: the drivers that run a wheel on a card."""
    last = last_driver(sm)
    return f"{driver_needed(row, sm)} or newer" + (f", up to branch {last}" if last else "")


def _problem(
    torch: str, row: OfficialWheel, sm: int, platform: str, driver: str | None, python: str | None
) -> str | None:
    needed = driver_needed(row, sm)
    if driver is not None and needed is not None and not reaches(driver, needed):
        return f"driver {driver} is too old: torch with CUDA {row.cuda} needs {needed} or newer on {platform}"
    last = last_driver(sm)
    if driver is not None and last is not None and catalog.driver_branch(number(driver)[0]) > last:
        return f"driver {driver} does not know the card: branch {last} is the last that does"
    if python is not None and python not in pythons(row, torch):
        return f"there is no wheel of torch {torch} for {python}: {', '.join(pythons(row, torch))}"
    return None


def pythons(row: OfficialWheel, torch: str) -> list[str]:
    """The Pythons that a wheel is published for; where the index was not read, those of the release."""
    if row.pythons is not None:
        return row.pythons
    return catalog.torch_releases()[torch].pythons.on(row.platform.split("-")[0])


def left_behind(torch: str, cuda: str, sm: int) -> Dropped | None:
    """Upstream's latest announcement of dropping a card that it had code for, for a release and CUDA."""
    dropped = [each for each in catalog.dropped() if number(each.since) <= number(torch) and cuda in each.cuda]
    # Rows stand in the order of releases: the last one that counts is the latest word.
    return next((each for each in reversed(dropped) if each.sm_from <= sm < each.sm_below), None)
