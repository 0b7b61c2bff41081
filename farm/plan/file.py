"""The shape of a plan: what a plan file may hold, its digest, and how it is read back."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from farm.base.errors import UsageError, unreadable
from farm.base.text import json_lines
from farm.base.yamlfile import Model, first_fault
from farm.catalog.models import LibraryWheel
from farm.catalog.redist import Archive
from farm.plan.options import OPTIONS
from farm.plan.recipe import Address, AptName, Inside, Name, VariableName
from farm.plan.variant import Variant
from farm.platforms.facts import WINDOWS, facts
from farm.platforms.shape import Machine, PlatformName
from farm.policy.rules import Policy

MAX_PLAN_BYTES = 1 << 20

Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=4000)]
"""One line: what goes into a script or a Dockerfile."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FEATURE = r"^[a-z0-9-]{1,30}$"
_STEP = "[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,99}"
RELATIVE = rf"^{_STEP}(/{_STEP}){{0,12}}$"
"""A path below a folder: no step of it begins with a dot."""
WANTED = {
    "path": ("digest",),
    "git": ("url", "tag", "commit"),
    "archive": ("url", "sha256"),
    "debian-source": ("package", "section", "file", "sha256"),
    "debian-package": ("package", "section", "file", "sha256"),
    "sdist": ("package", "file", "sha256"),
    "wheel": ("package", "file", "sha256"),
}
"""Kind of source -> what names it for good."""


class SourcePlan(Model):
    """The source: a folder by the digest of its files, a commit of a git repository, or a file by
    its sha256.
    """

    kind: Literal["path", "git", "archive", "debian-source", "debian-package", "sdist", "wheel"]
    digest: Sha256 | None = None
    url: Address | None = None
    tag: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,100}$")
    commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    package: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_-]{0,60}$")
    section: Literal["main", "contrib", "non-free"] | None = None
    file: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!_~-]{0,160}$")
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        required = WANTED[self.kind]
        if any(getattr(self, name) is None for name in required):
            raise ValueError(f"a {self.kind} source needs {', '.join(required)}")
        return self


class ToolkitPlan(Model):
    """Where CUDA comes from: archives (`nvidia`), Debian's packages and wheels for what it lacks,
    or `wheels` alone.
    """

    provider: Literal["debian", "nvidia", "wheels"]
    cuda: str = Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")
    components: list[Text]
    archives: list[Archive] = []
    wheels: list[SourcePlan] = []


class LibraryWheelPlan(LibraryWheel):
    """A wheel that holds libraries which the built wheel needs."""

    version: str = Field(pattern=r"^[0-9a-z.]{1,30}$")

    @property
    def requirement(self) -> str:
        """As METADATA says it; the marker is that of upstream's wheels."""
        marker = "platform_system == 'Linux' and platform_machine == 'x86_64'"
        return f"{self.package}=={self.version}; {marker}"


class PartPlan(Model):
    """Code that goes into the folder `into` of the source tree: `members` of a tar file, or all of
    it.
    """

    into: str = Field(pattern=RELATIVE)
    source: SourcePlan
    strip: int = Field(ge=0, le=16)
    members: list[Annotated[str, Field(pattern=RELATIVE)]]


class PythonPlan(Model):
    """A standalone Python, which the image gets since its base has another one."""

    version: str = Field(pattern=r"^3\.[0-9]{1,2}\.[0-9]{1,2}$")
    url: str = Field(pattern=r"^https://[!-~]{1,400}$")
    sha256: Sha256


class WheelPin(Model):
    """A Python package of the build environment, by version and sha256."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,60}$")
    version: str = Field(pattern=r"^[0-9a-z.]{1,30}$")
    sha256: Sha256


class ToolPin(Model):
    """An archive of which `members` (pattern to place) are unpacked."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")
    version: Text
    url: str = Field(pattern=r"^https?://[!-~]{1,300}$")
    sha256: Sha256
    max_mb: int = Field(gt=0, le=1024)
    members: dict[Text, Annotated[str, Field(pattern=r"^[a-z0-9]+(/[a-z0-9_.]+)*/?$")]]
    mirrors: list[Annotated[str, Field(pattern=r"^https?://[!-~]{1,300}$")]] = []


class WindowsPlan(Model):
    """Tools of a Windows build: Visual Studio and toolset, archives, Python packages."""

    visual_studio: str = Field(pattern=r"^20\d\d$")
    toolset: str = Field(pattern=r"^14\.\d\d$")
    openmp: str = Field(
        pattern=r"^[A-Za-z0-9_./:-]{1,100}$", description="the OpenMP library that CMake links"
    )
    tools: list[ToolPin]
    wheels: list[WheelPin]


_LEFT_OUT = frozenset(
    {
        "build_requires",
        "cmake",
        "features",
        "library_wheels",
        "opens",
        "python",
        "subdirectory",
        "without",
        WINDOWS,
    }
)
"""Fields that are left out of a plan file where they say nothing: plans without them are older than
they are.
"""
_NOT_BUILT = frozenset({"features", "origins", "library_wheels", "requires", "verify", "without"})
"""Fields that no build reads: a new rule of verify must not orphan what was built, here or on
another machine.
"""


class Plan(Model):
    """One build, fully resolved."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    package: Name
    version: str = Field(pattern=r"^[0-9a-z.+!]{1,60}$")
    variant: str = Field(pattern=r"^[a-z0-9_]{1,20}-[a-z0-9_]{1,20}-py[0-9]{2,3}t?$")
    platform: PlatformName
    machine: Machine
    channel: Text
    options: dict[str, str | bool | int | None]
    base: Text | None = Field(description="None: built on the host itself")
    python: PythonPlan | None = Field(
        default=None, description="None: that of the base image, or of the host"
    )
    toolkit: ToolkitPlan | None
    apt: list[AptName]
    env: dict[VariableName, Text]
    recipe: Name
    source: SourcePlan
    subdirectory: Inside | None = Field(
        default=None, description="the folder of the source that is built"
    )
    parts: list[PartPlan]
    patch_files: list[Annotated[str, Field(pattern=r"^patches/[A-Za-z0-9._-]{1,120}$")]]
    job_files: Sha256 | None = Field(description="what the recipe brings beside the source")
    tiers_off: list[Annotated[str, Field(pattern=r"^[A-Z0-9]{1,20}$")]]
    cmake: dict[VariableName, Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,60}$")]] = Field(
        default={}, description="variables that are set after CMake's project()"
    )
    memory_per_job_gb: float = Field(gt=0)
    timeout_minutes: int = Field(gt=0)
    needs: list[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}==[0-9a-z.+!]{1,60}$")]
    ]
    build_requires: list[SourcePlan] = Field(
        default=[], description="wheels of the Python index, for the build alone"
    )
    vendor_into: Text
    repair: Literal["beside", "tools"]
    exclude: list[str]
    opens: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._+*-]{0,80}$")]] = Field(
        default=[], description="what a vendored library opens by name: no library names it"
    )
    library_wheels: list[LibraryWheelPlan] = Field(
        default=[],
        description="wheels whose libraries are needed, not vendored; the build is the same either "
        "way",
    )
    features: list[Annotated[str, Field(pattern=FEATURE)]] = Field(
        default=[], description="what of PyTorch is in the wheel, where the recipe says what can be"
    )
    without: dict[Annotated[str, Field(pattern=FEATURE)], Text] = Field(
        default={}, description="what the official wheel has and this one lacks, with the reason"
    )
    verify: Policy
    requires: list[str]
    windows: WindowsPlan | None = Field(default=None, description="set where platform is windows")
    origins: dict[str, str]

    @field_validator("options")
    @classmethod
    def _every_option(
        cls, options: dict[str, str | bool | int | None]
    ) -> dict[str, str | bool | int | None]:
        return {name: option.default for name, option in OPTIONS.items()} | options

    @model_validator(mode="after")
    def _windows_is_complete(self) -> Self:
        if (facts(self.platform).compiler == "msvc") != (self.windows is not None):
            raise ValueError("windows is set exactly where platform is windows")
        return self

    @property
    def parsed_variant(self) -> Variant:
        """The hardware and Python of `variant`."""
        return Variant.parse(self.variant)

    @property
    def installs(self) -> list[str]:
        """Packages that the build needs installed, as requirements of pip: the farm's own wheels,
        then the index's.
        """
        # Slow to import; few builds install wheels.
        from packaging.utils import parse_wheel_filename  # noqa: PLC0415

        requirements = list(self.needs)
        for wheel in self.build_requires:
            name, version, _, _ = parse_wheel_filename(str(wheel.file))
            requirements.append(f"{name}=={version}")
        return requirements

    @property
    def never_vendored(self) -> list[str]:
        """Name patterns of libraries that repair leaves out: the driver's, and those of other
        wheels.
        """
        patterns = list(self.exclude)
        for wheel in self.library_wheels:
            patterns += wheel.libraries
        return patterns

    @property
    def cuda_libraries(self) -> str | None:
        """Where CUDA's libraries are: in NVIDIA's `wheels`, or `vendored`; None: the wheel is for
        the CPU alone.
        """
        if self.library_wheels:
            return "wheels"
        if self.toolkit:
            return "vendored"
        return None

    @property
    def digest(self) -> str:
        """Sha256 of what is built: origins, how the wheel is packed and what verify holds it to do
        not count.
        """
        return self._digest(self._whole())

    def _whole(self) -> dict[str, Any]:
        complete = self.model_dump(mode="json", by_alias=True)
        # Options at their default are left out, so that plans stay what they are when the table
        # gets another option.
        for name, option in OPTIONS.items():
            if self.options[name] == option.default:
                complete["options"].pop(name, None)
                complete["origins"].pop(name, None)
        for name in _LEFT_OUT:
            if not complete[name]:
                del complete[name]
        return complete

    @staticmethod
    def _digest(whole: Mapping[str, Any]) -> str:
        data = {name: value for name, value in whole.items() if name not in _NOT_BUILT}
        # It changes which wheels are needed beside the built one, and nothing of the build: both
        # forms share what was compiled. What is published, or resumed, is compared by
        # `cuda_libraries` too.
        data["options"] = dict(data["options"])
        data["options"].pop("cuda_libraries", None)
        # Sorted keys and no spaces: the one form in which equal plans have equal bytes.
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> str:
        """The text of the plan file, which ends with the digest."""
        document = self._whole()
        return json_lines({**document, "digest": self._digest(document)})

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Read a plan file. Raises UsageError: it is absent, no plan of this schema, or was changed
        by hand.
        """
        hint = "make it again with `farm plan --json`, by this version of the farm"
        try:
            with path.open("rb") as stream:
                # One byte more than allowed shows that there is more, however large the file.
                raw = stream.read(MAX_PLAN_BYTES + 1)
            if len(raw) > MAX_PLAN_BYTES:
                raise UsageError(f"{path}: larger than {MAX_PLAN_BYTES >> 20} MiB", hint=hint)
            data = json.loads(raw)
            # It is of the rest: a file cannot hold the digest of itself.
            if isinstance(data, dict):
                digest = data.pop("digest", None)
            else:
                digest = None
            plan = cls.model_validate(data)
        except OSError as error:
            raise unreadable(path, error) from error
        except ValidationError as error:
            raise UsageError(f"{path}: not a plan: {first_fault(error)}", hint=hint) from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not a plan: {error}", hint=hint) from error
        # After the shape: the digest of the parsed plan is asked for, so the file may be indented
        # in any way.
        if digest != plan.digest:
            raise UsageError(f"{path}: its content and its digest differ", hint=hint)
        return plan
