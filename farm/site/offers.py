"""Offers: every build of the matrix with its wheel's version, its switches and its driver."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from packaging.utils import canonicalize_name, canonicalize_version

from farm import catalog
from farm.base.errors import NotBuildableError
from farm.plan.build import resolve
from farm.plan.evidence import load_evidence
from farm.plan.file import Plan
from farm.plan.matrix import Build, load_matrix
from farm.plan.options import Choice
from farm.plan.selectors import Selectors


@dataclass(frozen=True)
class Offer:
    """One build that a user can choose.

    Attributes:
        version: Of the wheel, with its local label.
        torch: The PyTorch release; None for packages that have none.
        off: Switches of PyTorch that this wheel is built without.
        driver: The lowest driver that runs it, by minor-version compatibility; None without CUDA.
        blocked: Why it cannot be built after all; None for all that the rules allow.
        proved: What has been proved of exactly this build; empty where nothing has.
    """

    channel: str
    package: str
    gpu: str
    cpu: str
    python: str
    platform: str
    cuda: str | None
    torch: str | None
    version: str
    off: tuple[str, ...]
    driver: str | None
    blocked: str | None
    proved: str = ""

    @property
    def variant(self) -> str:
        return f"{self.gpu}-{self.cpu}-{self.python}"

    @property
    def group(self) -> str:
        return f"{self.gpu}-{self.cpu}"

    @property
    def key(self) -> str:
        """The key that ties a build to its runs and its wheel, unique in the whole index."""
        return wheel_key(self.package, self.version, self.python, self.platform)


def by_builds(offers: Iterable["Offer"]) -> list[str]:
    """The packages in the order in which the site shows them: the one with the most builds first."""
    return [package for package, _ in Counter(offer.package for offer in offers).most_common()]


def wheel_key(package: str, version: str, python: str, platform: str) -> str:
    """`torch|2.0.1+cu117.sm35.avx|py311|linux`; name and version as file names of wheels have them."""
    return "|".join((*_in_file_name(package, version), python, platform))


@lru_cache(maxsize=4096)  # few pairs, each asked for in every state of every offer
def _in_file_name(package: str, version: str) -> tuple[str, str]:
    return canonicalize_name(package), canonicalize_version(version, strip_trailing_zero=False)


def offers(project: Path) -> Iterator[Offer]:
    """Every build of `ci/matrix.yaml`, in its order.

    Raises:
        UsageError: A configuration file is wrong.
    """
    evidence = load_evidence(project)
    for build in load_matrix(project).builds():
        options = {"cuda": Choice(build.cuda, "matrix")} if build.cuda else {}
        selectors = Selectors(build.variant, build.package, build.platform, build.channel, options)
        try:
            plan = resolve(project, selectors)
        # Shown all the same, with the reason: a user looks for it, and would not know why it is missing.
        except NotBuildableError as error:
            yield _offer(build, None, str(error), "")
        else:
            yield _offer(build, plan, None, evidence.line(plan))


def _offer(build: Build, plan: Plan | None, blocked: str | None, proved: str) -> Offer:
    variant, off, driver, torch = build.variant, [], None, None
    if plan is not None:
        off = sorted(name for name in catalog.switches() if plan.env.get(name) == "0")
        torch = plan.options.get("torch")
    if build.cuda:
        driver = catalog.cuda_majors()[build.cuda.split(".")[0]].driver(build.platform)
    return Offer(
        channel=build.channel,
        package=build.package,
        gpu=variant.gpu,
        cpu=variant.cpu,
        python=variant.python,
        platform=build.platform,
        cuda=build.cuda,
        torch=None if torch is None else str(torch),
        version=plan.version if plan else "",
        off=tuple(off),
        driver=driver,
        blocked=blocked,
        proved=proved,
    )
