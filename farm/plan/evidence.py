"""The wheels that were built to their end, and where they ran (`ci/evidence.yaml`).

An entry counts for one build alone, and only while the build is what the entry says; nothing is
concluded from it for other variants of the channel.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from farm.base import resources
from farm.base.yamlfile import Model, load
from farm.plan.channel_text import MatrixText
from farm.plan.file import Plan
from farm.plan.options import Value
from farm.platforms.shape import PlatformName

FILE = "ci/evidence.yaml"
_MATRIX = "ci/matrix.yaml"
Row = tuple[str, str, str]
"""What was or was not done, how, and where that is described."""
_CARD: dict[str, str] = {"native": "natively", "jit": "by JIT of its PTX, not its machine code"}

Date = Annotated[str, Field(pattern=r"^20\d\d-\d\d-\d\d$")]
Line = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Built(Model):
    """The build. `emulated`: its machine was, and so was that of every run."""

    date: Date
    where: Line
    emulated: bool = False


class Ran(Model):
    """One run; `card`: how the GPU part ran, None: none did; `part`: it was stopped before its
    end.
    """

    date: Date
    where: Line
    what: Line
    card: Literal["native", "jit"] | None = None
    part: bool = False

    @property
    def text(self) -> str:
        how = ""
        if self.card:
            how = f", {_CARD[self.card]}"
        return f"{self.where}{how}, {self.date}: {self.what}"


class ProvedWheel(Model):
    """A wheel that was built to its end. `page` describes it, a path in the farm's repository or an
    address.

    `options` are those of the plan that the proof depends on. `base` is the image that it was built
    on, None where the channel never had another. `sha256` None: the hash was not kept. A wheel that
    turned out to be wrong has no entry.
    """

    channel: Line
    package: Line
    platform: PlatformName
    variant: Line
    version: Line
    options: dict[str, Value]
    base: str | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None
    built: Built
    runs: list[Ran]
    not_run: list[Line]
    page: Annotated[str, Field(pattern=r"^(https://[!-~]{1,300}|[A-Za-z0-9._/-]{1,200})$")]

    @property
    def state(self) -> str:
        """How far the proof goes, in a few words."""
        if self.built.emulated:
            if self.runs:
                return "built and run on an emulated machine alone"
            return "built on an emulated machine alone"
        on_card = [run for run in self.runs if run.card]
        if on_card:
            # A whole run is worth more than one that was stopped.
            best = min(on_card, key=lambda run: run.part)
            extent = "run in part" if best.part else "run"
            place = best.where.partition(",")[0]
            return f"built and {extent} on {place}, {_CARD[best.card or '']}"
        if self.runs:
            return "built and run without a card"
        return "built, not run"

    @property
    def level(self) -> int:
        """How far the proof goes: 3 on a card, 2 without one, 1 built alone."""
        if not self.runs:
            return 1
        if any(run.card for run in self.runs):
            return 3
        return 2

    @property
    def summary(self) -> str:
        """When it was built, and how far the proof goes."""
        return f"{self.built.date}: {self.state}"

    def is_of(self, plan: Plan) -> bool:
        """True for the wheel of this plan."""
        return self.base in (None, plan.base) and self.is_of_stack(plan)

    def is_of_stack(self, plan: Plan) -> bool:
        """True for the wheel of this plan, built on any base image."""
        for name in ("channel", "package", "platform", "variant", "version"):
            if getattr(self, name) != getattr(plan, name):
                return False
        # Where an entry does not say that something was left out, nothing was.
        options = {"without": None, **self.options}
        return all(plan.options.get(name) == value for name, value in options.items())


class _File(Model):
    wheels: list[ProvedWheel]


@dataclass(frozen=True)
class Evidence:
    """The proofs that hold in a project."""

    wheels: tuple[ProvedWheel, ...]

    def of(self, plan: Plan) -> list[ProvedWheel]:
        """The proofs of exactly this build."""
        return [wheel for wheel in self.wheels if wheel.is_of(plan)]

    def of_channel(self, channel: str, package: str) -> list[ProvedWheel]:
        """The proofs of a channel's package, whatever the variant."""
        place = (channel, package)
        return [wheel for wheel in self.wheels if (wheel.channel, wheel.package) == place]

    def rows(self, plan: Plan) -> list[Row]:
        """(what, text, where it is described): a line a test of the build, and what was never
        run.
        """
        proofs = self.of(plan)
        if proofs:
            tested = [("tested", wheel.summary, wheel.page) for wheel in proofs]
            return [*tested, ("not tested", _never_run(proofs), proofs[0].page)]
        text, page = self._nearest_test(plan)
        return [("not tested", text, page)]

    def _nearest_test(self, plan: Plan) -> tuple[str, str]:
        """What was tested instead of a build that was not, and where that is described."""
        names = str(plan.options["without"] or "")
        if names:
            complete = plan.model_copy(update={"options": {**plan.options, "without": None}})
            proofs = self.of(complete)
            if proofs:
                suffix = "with it"
                if "," in names:
                    suffix = "with them"
                return f"without {names}; {suffix}, {proofs[0].summary}", proofs[0].page
        elsewhere = [wheel for wheel in self.wheels if wheel.is_of_stack(plan)]
        if elsewhere:
            last = elsewhere[-1]
            return f"on {plan.base}; on {last.base}, {last.summary}", last.page
        proofs = self.of_channel(plan.channel, plan.package)
        if proofs:
            variants = dict.fromkeys(wheel.variant for wheel in proofs)
            return f"this build; of its channel were tested: {', '.join(variants)}", FILE
        text = f"no build of {plan.package} from channel {plan.channel} has been run to its end"
        return text, FILE

    def details(self, plan: Plan) -> Iterator[Row]:
        """Every run of the build's wheels, as `rows`."""
        for wheel in self.of(plan):
            text = f"{wheel.built.date}, {wheel.built.where}"
            if wheel.sha256:
                text += f", sha256 {wheel.sha256[:12]}"
            yield "built", text, wheel.page
            for run in wheel.runs:
                yield "run", run.text, wheel.page
            yield "not run", ", ".join(wheel.not_run) or "nothing known", wheel.page


def load_evidence(project: Path) -> Evidence:
    """The proofs of a project's channels, its own and the farm's. Raises UsageError: a file is
    wrong.
    """
    project_file = project / FILE
    farm_file = resources.ROOT / FILE
    wheels = []
    if project_file.is_file():
        wheels = list(load(project_file, _File).wheels)
        # In the farm's own checkout both are one file: its proofs count once.
        if project_file.samefile(farm_file):
            return Evidence(tuple(wheels))
    matrix = project / _MATRIX
    project_channels: Collection[str] = ()
    if matrix.is_file():
        project_channels = load(matrix, MatrixText).channels
    for wheel in load(farm_file, _File).wheels:
        # A channel that the project writes itself is another stack: the farm's proofs are not of
        # it.
        if wheel.channel not in project_channels:
            wheels.append(wheel)
    return Evidence(tuple(wheels))


def _never_run(proofs: list[ProvedWheel]) -> str:
    """What no proof of a build ran; of the first proof, where each ran something else."""
    never = set(proofs[0].not_run)
    for wheel in proofs[1:]:
        never.intersection_update(wheel.not_run)
    names = [name for name in proofs[0].not_run if name in never]
    return ", ".join(names or proofs[0].not_run) or "nothing known"
