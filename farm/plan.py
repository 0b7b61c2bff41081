"""Plans: one build, fully resolved. Pure data, JSON, content-addressed, with the origin of every choice."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from farm import catalog
from farm.catalog import redist
from farm.compat import Reason, Stack, advise, check, difference, solve
from farm.errors import NotBuildableError, UsageError
from farm.matrix import Channel, Matrix, Pins, load_matrix
from farm.recipe import GitSource, PathSource, Recipe, folder, recipe, tree_digest
from farm.variant import Variant
from farm.yamlfile import Model, nearest

OPTIONS = ("cuda", "toolkit", "torch", "cudnn", "blas", "ptx", "rebuild")
"""What a channel decides and an override may change; the same names on the command line and in FARM_<NAME>."""

MAX_PLAN_BYTES = 1 << 20
MAX_REBUILD = 9999

Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=4000)]
"""One line: what goes into a script or a Dockerfile."""


class ArchivePlan(Model):
    """One archive to install: `size` in bytes, `sha256` in lower-case hex."""

    component: Text
    version: Text
    url: str = Field(pattern=r"^https://[!-~]{1,400}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(gt=0)


class ToolkitPlan(Model):
    """Where CUDA comes from; `archives` are set for the `nvidia` provider."""

    provider: Literal["debian", "nvidia"]
    cuda: str = Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")
    components: list[Text]
    archives: list[ArchivePlan] = []


class SourcePlan(Model):
    """The source: a folder by the digest of its files, or a commit of a git repository."""

    kind: Literal["path", "git"]
    digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    url: str | None = Field(default=None, pattern=r"^(https|ssh|file)://[!-~]{1,400}$")
    tag: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,100}$")
    commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        wanted = {"path": ("digest",), "git": ("url", "tag", "commit")}[self.kind]
        if any(getattr(self, name) is None for name in wanted):
            raise ValueError(f"a {self.kind} source needs {', '.join(wanted)}")
        return self


class VerifyPlan(Model):
    """What the wheel promises. `sass` and `ptx` are SM numbers."""

    python_tag: str
    sass: list[int]
    ptx: list[int]
    cpu: str
    cpu_exempt: list[str]
    exclude: list[str]


class Plan(Model):
    """One build, fully resolved."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    package: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")
    version: str = Field(pattern=r"^[0-9a-z.+]{1,60}$")
    variant: str = Field(pattern=r"^[a-z0-9_]{1,20}-[a-z0-9_]{1,20}-py[0-9]{2,3}$")
    platform: Literal["linux", "windows", "macos"]
    channel: Text
    options: dict[str, str | bool | int | None]
    base: Text
    toolkit: ToolkitPlan | None
    apt: list[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]{1,80}$")]]
    env: dict[Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9_]{0,60}$")], Text]
    source: SourcePlan
    tiers_off: list[Annotated[str, Field(pattern=r"^[A-Z0-9]{1,20}$")]]
    memory_per_job_gb: float = Field(gt=0)
    timeout_minutes: int = Field(gt=0)
    vendor_into: Text
    exclude: list[str]
    verify: VerifyPlan
    requires: list[str]
    origins: dict[str, str]

    @property
    def digest(self) -> str:
        """Sha256 of what is built; where a value came from does not change it."""
        data = self.model_dump(mode="json", by_alias=True, exclude={"origins"})
        return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps({**self.model_dump(mode="json", by_alias=True), "digest": self.digest}, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Read a plan file and check it against its own digest.

        Raises:
            UsageError: The file is absent, is no plan of this schema, or was changed by hand.
        """
        hint = "make one with `farm plan --json`"
        try:
            with path.open("rb") as stream:
                raw = stream.read(MAX_PLAN_BYTES + 1)
            if len(raw) > MAX_PLAN_BYTES:
                raise UsageError(f"{path}: larger than {MAX_PLAN_BYTES >> 20} MiB", hint=hint)
            data = json.loads(raw)
            if not isinstance(data, dict):
                raise UsageError(f"{path}: not a plan: no JSON object", hint=hint)
            digest = data.pop("digest", None)
            plan = cls.model_validate(data)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{path}: not a plan: {where}: {first['msg']}", hint=hint) from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not a plan: {error}", hint=hint) from error
        if digest != plan.digest:
            raise UsageError(f"{path}: its content and its digest differ", hint="make it again with `farm plan --json`")
        return plan


@dataclass(frozen=True)
class Selectors:
    """What was asked for, by where it was asked: `options` maps an option to (value, origin)."""

    variant: Variant
    package: str = "torch"
    platform: Literal["linux", "windows", "macos"] = "linux"
    channel: str | None = None
    options: Mapping[str, tuple[Any, str]] = field(default_factory=dict)


def environment_options(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Overrides from FARM_<OPTION> variables."""
    found = {}
    for name in OPTIONS:
        variable = f"FARM_{name.upper()}"
        if environ.get(variable):
            found[name] = (_typed(name, environ[variable], variable), f"environment {variable}")
    return found


def _typed(name: str, text: str, where: str) -> Any:
    if name == "ptx":
        if text not in ("0", "1"):
            raise UsageError(f"{where}={text!r}: expected 0 or 1")
        return text == "1"
    if name == "rebuild":
        if not re.fullmatch(r"[0-9]{1,4}", text):
            raise UsageError(f"{where}={text!r}: expected a number from 0 to {MAX_REBUILD}")
        return int(text)
    return text


def _choose(recipe_: Recipe, name: str, pins: Pins, overrides: Mapping[str, tuple[Any, str]]) -> tuple[Any, str]:
    if (name in ("torch", "blas") and recipe_.package != "torch") or (name == "cudnn" and not recipe_.cudnn):
        return None, f"recipe {recipe_.package}"  # not an axis of this package, whatever was asked for
    if name in overrides:
        return overrides[name]
    if name == "rebuild":
        return 0, "default"
    return getattr(pins, name), "channel"


def resolve(project: Path, selectors: Selectors) -> Plan:
    """Resolve selectors into a plan; `project` is the folder that holds `ci/`.

    Raises:
        UsageError: A name is unknown or a configuration file is wrong.
        NotBuildableError: The combination cannot be built; every reason is in the message.
    """
    matrix = load_matrix(project)
    chosen = recipe(selectors.package)
    plan, judged = _resolve(matrix, chosen, selectors)
    if plan is None:
        why_not = [reason for reason in judged.advised() if reason.severity == "error"]
        what = f"{selectors.package} for {selectors.variant}"
        raise NotBuildableError(
            "\n".join([f"{what} cannot be built:", *(f"  - {reason.text}" for reason in why_not)]),
            hint=judged.hint(why_not),
        )
    return plan


@dataclass(frozen=True)
class Judgement:
    """What stands against a build: `offer` is the channel's part, `rules` what the rules found in the stack."""

    stack: Stack
    offer: list[Reason]
    rules: list[Reason]

    @property
    def buildable(self) -> bool:
        return not any(reason.severity == "error" for reason in (*self.offer, *self.rules))

    def advised(self) -> list[Reason]:
        """Every reason, those of the rules with the nearest that would do away with each."""
        return [*self.offer, *advise(self.stack, self.rules)]

    def nearest(self) -> str | None:
        """The options that would do away with all errors of the rules; None: they have none, or nothing was found."""
        found = solve(self.stack)
        return difference(self.stack, found) or None if found else None

    def hint(self, why_not: list[Reason]) -> str | None:
        nearest = self.nearest()
        told = [reason.nearest for reason in why_not if reason.nearest]
        return f"nearest that can: {nearest}" if nearest else "; ".join(told) or None


def judge(project: Path, selectors: Selectors, asked: Mapping[str, Any] | None = None) -> Judgement:
    """What stands against building the selectors; `asked` are further fields of the stack.

    Raises:
        UsageError: A name is unknown or a configuration file is wrong.
    """
    return _resolve(load_matrix(project), recipe(selectors.package), selectors, asked)[1]


def _resolve(
    matrix: Matrix, recipe_: Recipe, selectors: Selectors, asked: Mapping[str, Any] | None = None
) -> tuple[Plan | None, Judgement]:
    variant, platform = selectors.variant, selectors.platform
    name = selectors.channel or matrix.default_channel(recipe_.package, variant, platform)
    channel = matrix.channel(name)
    pins = channel.pins(recipe_.package, variant, platform, selectors.options.get("cuda", (None, ""))[0])
    origins = {"channel": "--channel" if selectors.channel else "default"}
    values: dict[str, Any] = {}
    for option in OPTIONS:
        values[option], origin = _choose(recipe_, option, pins, selectors.options)
        origins[option] = f"channel {name}" if origin == "channel" else origin
    if not variant.sms:
        for option in ("cuda", "toolkit", "cudnn", "ptx"):
            values[option], origins[option] = None, f"variant {variant}"
        values["ptx"] = False
    _check_values(values, origins)
    known = (("cuda", catalog.toolkits()), ("torch", catalog.torch_releases()), ("cudnn", catalog.cudnn_releases()))
    for option, versions in known:
        if values[option] is not None:
            values[option] = catalog.find(versions, values[option]) or values[option]
    stack = Stack(
        package=recipe_.package,
        variant=variant,
        platform=platform,
        base=pins.base,
        toolkit=values["toolkit"],
        cuda=values["cuda"],
        torch=values["torch"],
        cudnn=values["cudnn"],
        ptx=values["ptx"],
        components=tuple(recipe_.components),
        **(asked or {}),
    )
    offer = _not_offered(name, channel, pins, recipe_, variant, platform)
    judged = Judgement(stack, offer, check(stack))
    if not judged.buildable or pins.base is None:
        return None, judged
    return _plan(recipe_, variant, platform, name, pins.base, values, origins), judged


def _check_values(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    for option, value in values.items():
        wanted: type = {"ptx": bool, "rebuild": int}.get(option, str)
        if value is not None and type(value) is not wanted:
            kind = {bool: "true or false", int: "a whole number"}.get(wanted, "text in quotes")
            raise UsageError(f"{option} = {value!r} (from {origins[option]}): expected {kind}")
    if not 0 <= values["rebuild"] <= MAX_REBUILD:
        raise UsageError(f"rebuild = {values['rebuild']} (from {origins['rebuild']}): expected 0 to {MAX_REBUILD}")
    known: dict[str, tuple[str, ...]] = {"toolkit": ("debian", "nvidia"), "blas": ("mkl", "openblas")}
    for option, words in known.items():
        if values[option] is not None and values[option] not in words:
            near = nearest(str(values[option]), words) or list(words)
            raise UsageError(f"unknown {option} {values[option]!r}", hint=f"nearest: {', '.join(near)}")


def _not_offered(
    name: str, channel: Channel, pins: Pins, recipe_: Recipe, variant: Variant, platform: str
) -> list[Reason]:
    """What the channel does not offer, apart from what the rules explain better."""
    source, found = "ci/matrix.yaml", []
    if recipe_.package not in channel.packages:
        fact = f"packages of {name}: {', '.join(channel.packages)}"
        found.append(Reason("channel", f"channel {name} does not build {recipe_.package}", fact, source))
    if platform not in channel.platforms or platform not in recipe_.platforms:
        both = [p for p in channel.platforms if p in recipe_.platforms]
        fact = f"platforms of {recipe_.package} in {name}: {', '.join(both) or 'none'}"
        found.append(Reason("channel", f"{recipe_.package} in {name} is not built for {platform}", fact, source))
    elif pins.base is None:
        fact = f"base images of {name}: {channel.text.base or 'none'}, for Linux"
        found.append(Reason("channel", f"channel {name} has no base image for {platform}", fact, source))
    if variant.gpu not in channel.gpus and not variant.sms:
        fact = f"GPUs of {name}: {', '.join(channel.gpus)}"
        found.append(Reason("channel", f"channel {name} does not offer {variant.gpu}", fact, source))
    return found


def wheel_version(base: str, cuda: str | None, variant: Variant, rebuild: int) -> str:
    """`0.1.0+cu118.sm35.avx`; `0.1.0+cpu.avx` without a GPU; `.N` appended for a rebuild."""
    parts = [f"cu{cuda.replace('.', '')}", variant.gpu] if cuda else [variant.gpu]
    parts.append(variant.cpu.replace("_", "."))
    if rebuild:
        parts.append(str(rebuild))
    return f"{base}+{'.'.join(parts)}"


def arch_list(variant: Variant, *, ptx: bool) -> str:
    """TORCH_CUDA_ARCH_LIST: `3.5;3.7`, with `+PTX` on the highest where PTX is wanted."""
    known = catalog.architectures().architectures
    entries = [known[name].arch_list for name in variant.architectures]
    if entries and ptx:
        entries[-1] += "+PTX"
    return ";".join(entries)


def _plan(
    recipe_: Recipe,
    variant: Variant,
    platform: Literal["linux", "windows", "macos"],
    channel_name: str,
    base_name: str,
    values: Mapping[str, Any],
    origins: dict[str, str],
) -> Plan:
    cuda: str | None = values["cuda"]
    base = catalog.debian_releases()[base_name]
    level = catalog.cpu_levels()[variant.cpu]
    source_version = values["torch"] or recipe_.version
    version = wheel_version(source_version, cuda, variant, values["rebuild"])
    sms = sorted(variant.sms)
    fill = {
        "version": version,
        "use_cuda": "1" if cuda else "0",
        "use_cudnn": "1" if values["cudnn"] else "0",
        "blas": {"mkl": "MKL", "openblas": "OpenBLAS"}.get(values["blas"], ""),
        "cuda_home": catalog.nvidia_provider().prefix if values["toolkit"] == "nvidia" else "/usr",
    }
    flags = " ".join(level.gcc)
    parts = {
        f"base {base_name}": {"CC": f"gcc-{base.gcc}", "CXX": f"g++-{base.gcc}"},
        f"variant: {variant.cpu}": {"CFLAGS": flags, "CXXFLAGS": flags},
        f"recipe {recipe_.package}": recipe_.env | (recipe_.env_cuda if cuda else {}),
    }
    if cuda:
        parts[f"base {base_name}"]["CUDAHOSTCXX"] = f"/usr/bin/g++-{base.gcc}"
        parts[f"variant: {variant.gpu}"] = {"TORCH_CUDA_ARCH_LIST": arch_list(variant, ptx=values["ptx"])}
    env = {}
    for origin, variables in parts.items():
        for key, value in variables.items():
            env[key] = _fill(value, fill, f"recipe {recipe_.package}: env {key}")
            origins[f"env.{key}"] = origin
    packages = {f"gcc-{base.gcc}", f"g++-{base.gcc}", *recipe_.apt}
    if values["toolkit"] == "nvidia":
        packages.add("ca-certificates")  # its archives come over https
    return Plan(
        package=recipe_.package,
        version=version,
        variant=str(variant),
        platform=platform,
        channel=channel_name,
        options=dict(values),
        base=base_name,
        toolkit=_toolkit(recipe_, values) if cuda else None,
        apt=sorted(packages),
        env=dict(sorted(env.items())),
        source=_source(recipe_, source_version),
        tiers_off=level.without,
        memory_per_job_gb=recipe_.memory_per_job_gb,
        timeout_minutes=recipe_.timeout_minutes,
        vendor_into=recipe_.vendor_into,
        exclude=recipe_.exclude,
        verify=VerifyPlan(
            python_tag="cp" + variant.python.removeprefix("py"),
            sass=sms,
            ptx=sms[-1:] if values["ptx"] else [],
            cpu=variant.cpu,
            cpu_exempt=recipe_.cpu_exempt,
            exclude=recipe_.exclude,
        ),
        requires=recipe_.requires,
        origins=origins,
    )


def _fill(text: str, fill: Mapping[str, str], where: str) -> str:
    for key, value in fill.items():
        text = text.replace("{" + key + "}", value)
    if "{" in text:
        raise UsageError(f"{where}: {text!r} holds an unknown name; known: {', '.join(fill)}")
    return text


def _toolkit(recipe_: Recipe, values: Mapping[str, Any]) -> ToolkitPlan:
    if values["toolkit"] == "debian":
        return ToolkitPlan(provider="debian", cuda=values["cuda"], components=recipe_.components)
    provider = catalog.nvidia_provider()
    release = catalog.toolkits()[values["cuda"]].release
    names = sorted({part for component in recipe_.components for part in provider.components[component]})
    found = redist.archives("cuda", release, "linux-x86_64", names)
    if values["cudnn"]:
        major = int(values["cuda"].split(".")[0])
        found += redist.archives("cudnn", values["cudnn"], "linux-x86_64", ["cudnn"], cuda_major=major)
    archives = [
        ArchivePlan(component=a.component, version=a.version, url=a.url, sha256=a.sha256, size=a.size) for a in found
    ]
    return ToolkitPlan(provider="nvidia", cuda=values["cuda"], components=recipe_.components, archives=archives)


def _source(recipe_: Recipe, version: str) -> SourcePlan:
    source = recipe_.source
    if isinstance(source, GitSource):
        commit = catalog.torch_releases()[version].commit
        return SourcePlan(kind="git", url=source.url, tag=source.tag.replace("{version}", version), commit=commit)
    return SourcePlan(kind="path", digest=tree_digest(folder(recipe_.package) / source.path))


def source_folder(plan: Plan) -> Path:
    """Where the source of a plan with a `path` source stands.

    Raises:
        UsageError: The package has no such source, or the folder is not what the plan was made from.
    """
    source = recipe(plan.package).source
    if not isinstance(source, PathSource):
        raise UsageError(f"the plan says that {plan.package} has its source beside its recipe; it has not")
    found = folder(plan.package) / source.path
    if tree_digest(found) != plan.source.digest:
        raise UsageError(f"{found}: changed since the plan was made", hint="make the plan again")
    return found
