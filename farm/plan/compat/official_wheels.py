"""PyTorch's own wheels with CUDA: what each holds, which cards it has code for, when they end."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from farm import catalog
from farm.catalog import number
from farm.catalog.gpus import ptx_compiles, sass_runs
from farm.catalog.models import Dropped, OfficialWheel, SecurityFault

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


@cache
def wheels() -> tuple[Wheel, ...]:
    """Every wheel with CUDA: the newest release first, then the Python index's, then the newest
    CUDA.
    """
    all_wheels = []
    for torch in catalog.torch_releases():
        for row in rows(torch):
            if row.cuda:
                all_wheels.append(_wheel(torch, row, row.cuda))
    return tuple(sorted(all_wheels, key=_preference, reverse=True))


def _preference(wheel: Wheel) -> tuple[object, ...]:
    """A key that sorts the wheel that is advised first to the end."""
    confirmed = wheel.unconfirmed is None
    return number(wheel.torch), wheel.index == "pypi", confirmed, number(wheel.cuda)


def rows(torch: str) -> list[OfficialWheel]:
    """The rows of the catalogue for a release; one may stand for all patch releases: `2.1` for
    2.1.0 to 2.1.2.
    """
    series = torch.rpartition(".")[0]
    return [row for row in catalog.official().wheels if row.torch in (torch, series)]


def pythons() -> list[str]:
    """The Pythons that some wheel of the catalogue is for, oldest first."""
    words: set[str] = set()
    for wheel in wheels():
        words.update(wheel.pythons)
    return sorted(words, key=lambda word: (int(word[3:].removesuffix("t")), word))


def source(wheel: Wheel) -> str:
    """Where a wheel's facts are from."""
    row = _row(wheel)
    text = catalog.official().sources[row.source]
    if row.file:
        return f"{text} ({row.file})"
    return text


def _row(wheel: Wheel) -> OfficialWheel:
    """The row of the catalogue that a wheel was read from."""
    for row in rows(wheel.torch):
        if row.platform != wheel.platform:
            continue
        if row.cuda == wheel.cuda and row.index == wheel.index:
            return row
    raise KeyError(wheel)


def _wheel(torch: str, row: OfficialWheel, cuda: str) -> Wheel:
    system = row.platform.split("-")[0]
    needed = catalog.lowest_driver(cuda, system)
    full, _ = catalog.full_driver(cuda, system)
    pythons = row.pythons
    if pythons is None:
        pythons = catalog.torch_releases()[torch].pythons.on(system)
    return Wheel(
        torch,
        row.platform,
        cuda,
        row.index,
        sm=tuple(row.sm),
        ptx=tuple(row.ptx),
        pythons=tuple(pythons),
        needed=needed or "0",
        full=full or "0",
        cudnn=_cudnn_floor(torch, cuda),
        glibc=_glibc(torch, cuda, row.platform),
        unconfirmed=row.unconfirmed,
    )


def _cudnn_floor(torch: str, cuda: str) -> int | None:
    """The lowest SM in the cuDNN of a wheel; None: not known."""
    sm_floors = {entry.version: entry.sm_min for entry in catalog.cudnn_releases().values()}
    floors = []
    for entry in catalog.torch_releases()[torch].official:
        if entry.cuda == cuda and entry.cudnn in sm_floors:
            floors.append(sm_floors[entry.cudnn])
    # Several rows with one CUDA: the one with the fewest cards counts.
    return max(floors, default=None)


def _glibc(torch: str, cuda: str, platform: str) -> str | None:
    """The oldest glibc that a wheel runs with; None: not known, or none is needed."""
    glibc = None
    for entry in catalog.official().glibc:
        is_reached = number(entry.since) <= number(torch) and number(entry.cuda) <= number(cuda)
        # Rows are in the order of releases: the last one that counts is the latest word.
        if platform in entry.platforms and is_reached:
            glibc = entry.glibc
    return glibc


class HasCode(Protocol):
    """What machine code (`sm`) and PTX a build holds."""

    @property
    def sm(self) -> Sequence[int]: ...

    @property
    def ptx(self) -> Sequence[int]: ...


def has_code(build: HasCode, sm: int) -> bool:
    """True if a build has machine code that runs on a card, or PTX that its driver compiles."""
    for code in build.sm:
        if sass_runs(code, sm):
            return True
    return any(ptx_compiles(code, sm) for code in build.ptx)


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


def end_of_support(sm: int) -> Dropped | None:
    """Upstream's announcement that ends its wheels for a card; None: the newest release has
    some, or none ever had.
    """
    able = [wheel for wheel in wheels() if has_code(wheel, sm)]
    announcements = [row for row in catalog.dropped() if row.sm_from <= sm < row.sm_below]
    if not able or not announcements:
        return None
    last = announcements[-1]
    newest = max(number(wheel.torch) for wheel in able)
    if newest >= number(last.since):
        return None
    return last


def left_behind(torch: str, cuda: str, sm: int) -> Dropped | None:
    """Upstream's latest announcement of dropping a card that it had code for, for a release and
    CUDA.
    """
    latest = None
    for row in catalog.dropped():
        is_reached = number(row.since) <= number(torch) and cuda in row.cuda
        # Rows are in the order of releases: the last one that counts is the latest word.
        if is_reached and row.sm_from <= sm < row.sm_below:
            latest = row
    return latest
