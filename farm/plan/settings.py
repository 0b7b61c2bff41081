"""The farm's own configuration: `ci/farm.yaml` (paths, overrides) and `ci/runners.yaml`
(machines).
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.request import url2pathname

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from farm import catalog
from farm.base import resources
from farm.base.errors import UsageError
from farm.base.text import parse_age
from farm.base.yamlfile import Model, load, pattern, read_bounded, word_of
from farm.catalog import gpus
from farm.plan.options import OPTIONS
from farm.plan.variant import Variant, cpu_words
from farm.platforms.facts import DEFAULT
from farm.platforms.shape import Machine, PlatformMachine, PlatformName

_WEB = "the address of a folder, such as https://wheels.example.org"
_MIRROR = "the address of a mirror as apt writes it, such as http://mirror.example.org/debian"

JobKind = Literal["build", "smoke"]
Positive = Annotated[float, Field(gt=0)]
SlurmWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,:=&|*+()\[\]-]{1,200}$")] | None


class Swarm(Model):
    """How the `swarm` engine is reached.

    `url` is a manager (null: DOCKER_HOST or this machine). `exchange` is a bucket for what jobs
    send back, apart from the index. `registry` is where nodes pull toolchain images from, `push`
    the same registry as this machine calls it (null: the same name); without a registry every image
    must be loaded on every node beforehand. `cpus` and `memory_gb` are what one job gets; null:
    what the largest node has.
    """

    url: str | None = None
    exchange: str
    registry: str | None = None
    push: str | None = None
    cpus: Positive | None = None
    memory_gb: Positive | None = None


class SlurmCard(Model):
    """Options of `sbatch` of the same names."""

    partition: SlurmWord = None
    account: SlurmWord = None
    qos: SlurmWord = None
    constraint: SlurmWord = None
    gres: SlurmWord = None


class Slurm(SlurmCard):
    """How the `slurm` engine is reached.

    `folder` is one that the login node and the nodes share, under the same path. `ssh` is the login
    node, as the command `ssh` knows it (null: this machine). `cpus` and `memory_gb` are what one
    job gets; null: what the largest node has. `minutes` is the longest time of a job; null: what
    partition, QOS and association allow. `jobs` is how many are in Slurm's queue at a time. `smoke`
    is asked for by smoke tests, which then run on a node; null: they run on this machine.
    """

    folder: Annotated[
        str, pattern(r"^/[A-Za-z0-9_.,+@/-]{1,200}$", "an absolute path, such as /scratch/me/farm")
    ]
    ssh: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@:-]{0,200}$")] | None = None
    cpus: Positive | None = None
    memory_gb: Positive | None = None
    minutes: Annotated[int, Field(gt=0)] | None = None
    jobs: int = Field(default=16, ge=1, le=1000)
    smoke: SlurmCard | None = None


def _without_scheme(index: str) -> str:
    """A folder by its path; `file:///…` is another spelling of it."""
    folder = re.fullmatch(r"file://(?:localhost)?(/[^?#]+)", index)
    if folder is None:
        return index
    return url2pathname(folder[1])


def _index(index: str) -> str:
    place = _without_scheme(index)
    if not place or (
        "://" in place and not place.startswith("s3://")
    ):  # what is written may hold a password
        raise PydanticCustomError(
            "index", "a folder, file:///path/to/index or s3://bucket/prefix is needed here"
        )
    return place


class AskAbove(Model):
    """How much one command may queue without `--yes` where there is no terminal to ask in."""

    builds: int = Field(default=20, ge=0)
    cpu_hours: float = Field(default=50.0, ge=0)


def _age(text: str) -> str:
    try:
        parse_age(text)
    except ValueError as error:
        raise PydanticCustomError("age", "{problem}", {"problem": str(error)}) from error
    return text


Age = Annotated[str, AfterValidator(_age)]


class Retention(Model):
    """How old what `farm clean` removes must be: `12h`, `90d` or `12w`; null: it stays.

    `runs` are the folders of runs that ended and their containers, without what the others name;
    `caches` are sources, packed toolchains, images and build trees; `logs` are those of runs that
    failed; `unpublished` are wheels that are in no index.
    """

    runs: Age | None = None
    caches: Age | None = None
    logs: Age | None = None
    unpublished: Age | None = None
    compiler_caches: Age | None = None


class Settings(Model):
    """`ci/farm.yaml`. Paths are relative to the project folder; `index` may be a path or an s3://
    URL.

    `index_public_url` is where a web server shows the same index, answering folders with their
    index.html. `grace_s` is how long a detached run waits for a runner that fits it, before it is
    given up. `signing_key` is a file with an ed25519 private key in PEM, or `env:NAME` for a
    variable that holds its text. `archives` is a folder, or the URL of one, with the archives that
    builds download (CUDA, standalone Pythons, tools of Windows): each is looked for there first, by
    its file name, and checked like any other. Images take a URL alone. `ask_above`: how many builds
    and CPU hours one command queues without `--yes` where there is no terminal to ask in.
    `notify`: a command, as a list of words, that is started when a run ends and reads what became
    of it as JSON. `retention`: the ages from which `farm clean` removes what it finds, where its
    command line says nothing of age or kind.
    """

    artifacts: str = "artifacts"
    index: Annotated[str, AfterValidator(_index)] = "artifacts/index"
    index_public_url: (
        Annotated[str, pattern(r"^(https?|file)://[^\s/?#]*/?[^\s?#]*$", _WEB)] | None
    ) = None
    signing_key: str | None = None
    archives: Annotated[str, Field(pattern=r"^[^@\"%\x00-\x1f]{1,300}$")] | None = None
    pull_timeout_s: int = Field(default=20, gt=0, le=600)
    debian_mirror: Annotated[str, pattern(r"^[a-z+]{2,20}:/[!-~]+$", _MIRROR)] | None = None
    smoke_timeout_s: int = Field(default=300, gt=0, le=7200)
    options: dict[Annotated[str, word_of("option", lambda: list(OPTIONS))], str | bool | int] = {}
    swarm: Swarm | None = None
    slurm: Slurm | None = None
    grace_s: int = Field(default=600, ge=0)
    ask_above: AskAbove = AskAbove()
    notify: list[Annotated[str, Field(min_length=1, max_length=1000)]] = []
    retention: Retention | None = None

    def index_at(self, project: Path) -> str:
        """The index: a URL, or a folder of the project."""
        if "://" in self.index:
            return self.index
        return str(project / self.index)

    def with_index(self, index: str) -> "Settings":
        """With the index of a command line (a path, file:// or s3://), and without the public
        address of the file's.
        """
        place = _without_scheme(index)
        if "://" not in place:
            place = str(Path(place).absolute())
        return self.model_copy(update={"index": place, "index_public_url": None})

    @property
    def archives_url(self) -> str | None:
        """`archives` where it is a URL: an image that is built sees no folder of this machine."""
        if self.archives and self.archives.startswith(("http://", "https://")):
            return self.archives
        return None


Cpu = Annotated[
    str,
    word_of("CPU level", cpu_words),
    Field(json_schema_extra=lambda made: made.update(enum=list(cpu_words()))),
]
Sm = Annotated[str, word_of("SM", lambda: list(catalog.architectures().architectures))]


class Card(Model):
    """A GPU of a runner. `driver` is what nvidia-smi says; without it no rule on drivers is
    asked.
    """

    name: str = Field(min_length=1, max_length=80)
    sm: Sm
    driver: Annotated[str | None, Field(pattern=r"^\d{3,4}(\.\d{1,4}){0,2}$")] = None

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        # A name that the catalogue does not know contradicts nothing.
        chips = gpus.variant_sms(gpus.find(self.name))
        if chips and self.sm not in chips:
            chips_text = " or ".join(sorted(chips))
            details = {"name": self.name, "chips": chips_text, "sm": self.sm}
            raise PydanticCustomError("sm", "{name} is {chips}, not {sm}", details)
        return self


FOUND_BY: Mapping[str, Literal["url", "labels"]] = {"docker": "url", "github": "labels"}
"""How a job gets to a runner of each engine. `Traits` of engines are a layer above, and a file is
checked here.
"""


class Runner(Model):
    """A machine and what it can do.

    `cpus`, `memory_gb` and `disk_gb` are what one job may use; null: what the machine has, and
    nothing is held against a job. `cpu_levels` and `gpus` say which wheels it can run; what is not
    written there it cannot. `slots` is how many jobs it takes at a time.
    """

    engine: Literal["docker", "github"]
    url: str | None = Field(
        default=None, description="the Docker engine: ssh://, tcp://, npipe://; null: this machine"
    )
    summary: str = Field(default="", max_length=200)
    jobs: list[JobKind] = Field(default=["build"], min_length=1)
    platform: PlatformName = DEFAULT
    machine: Machine = "x86_64"
    os_version: str | None = Field(
        default=None, max_length=60, description="as the engine reports it: 12, 10.0.20348"
    )
    cpus: Positive | None = None
    memory_gb: Positive | None = None
    disk_gb: Positive | None = None
    slots: int = Field(default=1, ge=1, le=64)
    cpu_levels: list[Cpu] = []
    gpus: list[Card] = []
    labels: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,60}$")]] = Field(
        default=[], max_length=60
    )

    @property
    def by_labels(self) -> bool:
        """True if a job finds it by its labels; else it is reached by `url`."""
        return FOUND_BY[self.engine] == "labels"

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.by_labels and not self.labels:
            raise PydanticCustomError(
                "labels", "a runner of GitHub Actions is found by its labels: write them here"
            )
        machines = {catalog.cpu_levels()[level].machine for level in self.cpu_levels}
        if wrong := machines - {self.machine}:
            raise PydanticCustomError(
                "levels",
                "CPU levels of {wrong}, but machine is {machine}",
                {"wrong": min(wrong), "machine": self.machine},
            )
        return self


Label = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.-]{1,60}|\{gpu\}|\{cpu\}|\{device\})$")]
Labels = Annotated[list[Label], Field(min_length=1, max_length=16)]


class Github(Model):
    """GitHub Actions: the repository whose workflows run, and the `runs-on` labels by
    `<platform>-<machine>`.

    `{gpu}` and `{cpu}` stand for the words of the variant, `{device}` for `gpu`, or `cpu` or `mps`
    without one. `ref` is the branch or tag whose workflows and files a dispatched run takes.
    """

    repository: (
        Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,39}/[A-Za-z0-9._-]{1,100}$")] | None
    ) = None
    api_url: str = Field(
        default="https://api.github.com", pattern=r"^https?://[A-Za-z0-9.:/_-]{1,200}$"
    )
    ref: str = Field(default="main", pattern=r"^[A-Za-z0-9._/-]{1,200}$")
    build: dict[PlatformMachine, Labels]
    smoke: dict[PlatformMachine, Labels]

    @model_validator(mode="after")
    def _token_stays_secret(self) -> Self:
        # Plain http only to this machine, where a stand-in for GitHub may run.
        place = self.api_url.removeprefix("http://").split("/")[0]
        host = place.split(":")[0]
        if self.api_url.startswith("http://") and host not in {"127.0.0.1", "localhost"}:
            raise PydanticCustomError(
                "api_url", "the token would go over http in the clear: use https"
            )
        return self

    def runs_on(self, job: JobKind, variant: Variant, platform: str) -> list[str]:
        """The labels that a job asks a runner for. Raises UsageError: none are named for the
        platform and machine.
        """
        labels: dict[str, list[str]] = dict(getattr(self, job))
        kind = f"{platform}-{variant.machine}"
        if kind not in labels:
            raise UsageError(
                f"ci/runners.yaml: github.{job} has no labels for {kind}, which {variant} needs",
                hint=f"add {kind}: [self-hosted, ...]; there are labels for: {', '.join(labels)}",
            )
        device = variant.gpu
        if variant.sms:
            device = "gpu"
        words = []
        for label in labels[kind]:
            word = label.format(gpu=variant.gpu, cpu=variant.cpu, device=device)
            # Two placeholders may stand for one word, such as `cpu`: GitHub gets it once.
            if word not in words:
                words.append(word)
        return words


MAX_RUNNERS = 1000  # each is asked, and compared with every build of the matrix


class Runners(Model):
    """`ci/runners.yaml`."""

    runners: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")], Runner] = (
        Field(max_length=MAX_RUNNERS)
    )
    github: Github | None = None


def load_settings(project: Path) -> Settings:
    """Read `ci/farm.yaml`; a file whose content is unchanged is not read again."""
    path = resources.default(project, "ci/farm.yaml")
    return _settings(path, read_bounded(path))


@lru_cache(maxsize=4)
def _settings(path: Path, content: bytes) -> Settings:  # noqa: ARG001 the cache goes by it
    return load(path, Settings)


def load_runners(project: Path) -> dict[str, Runner]:
    """The machines by name. Raises UsageError: the file is wrong."""
    return load(resources.default(project, "ci/runners.yaml"), Runners).runners


def load_github(project: Path) -> Github:
    """The labels that jobs on GitHub ask for. Raises UsageError: `ci/runners.yaml` is wrong or has
    none.
    """
    github = github_if_any(project)
    if github is None:
        raise UsageError(
            f"{project / 'ci' / 'runners.yaml'}: no key 'github': the labels of build and smoke "
            "jobs are not known",
            hint="write there, with the labels of your runners: github: {repository: OWNER/NAME, "
            "build: {linux-x86_64: [self-hosted, farm-build]}, smoke: {linux-x86_64: "
            "[self-hosted, farm-smoke]}}",
        )
    return github


def github_if_any(project: Path) -> Github | None:
    """The settings of GitHub; None where nothing runs there."""
    return load(resources.default(project, "ci/runners.yaml"), Runners).github
