"""Plans: one build, fully resolved. Pure data, JSON, content-addressed, with the origin of every choice."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from farm import catalog
from farm.catalog import redist
from farm.catalog.models import TorchRelease
from farm.compat import Reason, Stack, advise, check, difference, solve
from farm.compat.host import host_gcc, redist_platform
from farm.compat.torch import switch_off
from farm.errors import NotBuildableError, UsageError
from farm.matrix import Channel, Matrix, Pins, load_matrix
from farm.options import OPTIONS, Choice, option
from farm.planfile import MAX_PLAN_BYTES, ArchivePlan, PartPlan, Plan, SourcePlan, ToolkitPlan
from farm.recipe import (
    AnySource,
    GitSource,
    PathSource,
    Recipe,
    folder,
    job_digest,
    job_files,
    recipe,
    tree_digest,
)
from farm.variant import Variant
from farm.wheel.policy import Policy
from farm.winplan import pinned_msvc, windows_environment, windows_plan

__all__ = ["MAX_PLAN_BYTES", "Plan", "Selectors", "ToolkitPlan", "judge", "resolve"]


@dataclass(frozen=True)
class Selectors:
    """What was asked for: `options` has what was chosen, and where."""

    variant: Variant
    package: str = "torch"
    platform: Literal["linux", "windows", "macos"] = "linux"
    channel: str | None = None
    options: Mapping[str, Choice] = field(default_factory=dict)


def _choose(
    recipe_: Recipe, variant: Variant, pins: Pins, origin: str, given: Mapping[str, Choice]
) -> dict[str, Choice]:
    """The value of every option: what was asked for, else what the channel pins, else the option's default.

    Raises:
        UsageError: What was asked for is no value of its option, or no option is called so.
    """
    chosen = {}
    for name, choice in given.items():
        option(name).check(Choice(*choice))
    for name, one in OPTIONS.items():
        if one.needs_gpu and not variant.sms:
            choice = Choice(one.unset, f"variant {variant}")
        elif not one.applies(recipe_):
            choice = Choice(one.unset, f"recipe {recipe_.package}")  # whatever was asked for
        elif name in given:
            choice = Choice(*given[name])
        elif name in pins.options:
            choice = Choice(pins.options[name], origin)
        else:
            choice = Choice(one.default, "default")
        if one.catalogue and isinstance(choice.value, str):
            known = getattr(catalog, one.catalogue)()
            choice = choice._replace(value=catalog.find(known, choice.value) or choice.value)
        chosen[name] = choice
    return chosen


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
    pins = channel.pins(recipe_.package, variant, platform, _cuda(selectors))
    recipe_ = recipe(pins.recipe)
    origins = {"channel": "--channel" if selectors.channel else "default"}
    chosen = _choose(recipe_, variant, pins, f"channel {name}", selectors.options)
    origins |= {key: choice.origin for key, choice in chosen.items()}
    values: dict[str, Any] = {key: choice.value for key, choice in chosen.items()}
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
    if platform == "windows" and stack.msvc is None:
        stack = replace(stack, msvc=pinned_msvc(stack))
    offer = [*_not_offered(name, channel, recipe_, variant, platform), *_no_source(recipe_, values["torch"])]
    judged = Judgement(stack, offer, check(stack))
    if not judged.buildable:
        return None, judged
    return _plan(recipe_, stack, platform, name, pins, values, origins), judged


def _cuda(selectors: Selectors) -> str | None:
    """The CUDA version that was asked for."""
    asked = selectors.options.get("cuda")
    return asked[0] if asked and isinstance(asked[0], str) else None


def _not_offered(name: str, channel: Channel, recipe_: Recipe, variant: Variant, platform: str) -> list[Reason]:
    """What the channel does not offer, apart from what the rules explain better."""
    source, found = "ci/matrix.yaml", []
    if recipe_.package not in channel.packages:
        fact = f"packages of {name}: {', '.join(channel.packages)}"
        found.append(Reason("channel", f"channel {name} does not build {recipe_.package}", fact, source))
    if platform not in channel.platforms or platform not in recipe_.platforms:
        both = [p for p in channel.platforms if p in recipe_.platforms]
        fact = f"platforms of {recipe_.package} in {name}: {', '.join(both) or 'none'}"
        found.append(Reason("channel", f"{recipe_.package} in {name} is not built for {platform}", fact, source))
    if variant.gpu not in channel.gpus and not variant.sms:
        fact = f"GPUs of {name}: {', '.join(channel.gpus)}"
        found.append(Reason("channel", f"channel {name} does not offer {variant.gpu}", fact, source))
    return found


def _no_source(recipe_: Recipe, torch: str | None) -> list[Reason]:
    """A companion of a torch release whose commit is not known cannot be built, nor another release of a tarball."""
    if recipe_.package == "torch" and not isinstance(recipe_.source, GitSource) and torch != recipe_.version:
        text = f"this channel builds torch {recipe_.version} from a tarball, not {torch}"
        return [Reason("source", text, f"source: {recipe_.source.kind}", "farm/recipes")]
    release = catalog.torch_releases().get(torch or "")
    if not isinstance(recipe_.source, GitSource) or release is None or _commit(recipe_.source, release):
        return []
    known = [name for name, other in catalog.torch_releases().items() if _commit(recipe_.source, other)]
    text = f"the commit of {recipe_.package} for torch {torch} is not in the catalogue"
    return [Reason("source", text, f"known for torch {', '.join(known)}", "farm/catalog/torch.yaml")]


def _commit(source: GitSource, release: TorchRelease) -> str | None:
    return {"torch": release.commit, "vision": release.vision_commit, "audio": release.audio_commit}[source.release]


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
    stack: Stack,
    platform: Literal["linux", "windows", "macos"],
    channel_name: str,
    pins: Pins,
    values: Mapping[str, Any],
    origins: dict[str, str],
) -> Plan:
    cuda, variant = stack.cuda, stack.variant
    level = catalog.cpu_levels()[variant.cpu]
    source_version = _source_version(recipe_, stack.torch)
    version = wheel_version(source_version, cuda, variant, values["rebuild"])
    release = catalog.torch_releases().get(stack.torch or "")
    sms = sorted(variant.sms)
    rules = _verify_rules(recipe_, pins)
    fill = {
        "version": version,
        "torch_version": wheel_version(stack.torch, cuda, variant, 0) if stack.torch else "",
        "numpy_end": str(release.numpy_major_max + 1) if release else "",
        "use_cuda": "1" if cuda else "0",
        "use_cudnn": "1" if values["cudnn"] else "0",
        "blas": {"mkl": "MKL", "openblas": "OpenBLAS"}.get(values["blas"], "vecLib" if platform == "macos" else ""),
        "cuda_home": _cuda_home(stack),
    }
    gcc = host_gcc(stack)
    if gcc and recipe_.gcc:
        gcc = min(gcc, recipe_.gcc)
    cc, cxx = (f"gcc-{gcc}", f"g++-{gcc}") if gcc else ("clang", "clang++")
    own = recipe_.env | (recipe_.env_cuda if cuda else {}) | recipe_.env_platform.get(platform, {})
    parts = (
        windows_environment(stack, values["blas"], fill["cuda_home"])
        if platform == "windows"
        else _unix_environment(stack, pins.base, cc, cxx)
    ) | {f"recipe {recipe_.package}": own}
    if cuda:
        parts[f"variant: {variant.gpu}"] = {"TORCH_CUDA_ARCH_LIST": arch_list(variant, ptx=values["ptx"])}
    for name in recipe_.switches:
        if name in pins.switches:
            parts.setdefault(f"channel {channel_name}", {})[name] = str(int(pins.switches[name]))
        elif cuda or catalog.switches()[name].sm_min is None:
            against = switch_off(stack, name)
            parts.setdefault(f"off: {against}" if against else "rules: nothing against it", {})[name] = str(
                int(not against)
            )
    for option_ in OPTIONS.values():
        if variables := option_.environment(values[option_.name]):
            parts.setdefault(origins[option_.name], {}).update(variables)
    env = {}
    for origin, variables in parts.items():
        for key, value in variables.items():
            env[key] = _fill(value, fill, f"recipe {recipe_.package}: env {key}")
            origins[f"env.{key}"] = origin
    packages = {cc, cxx, *recipe_.apt} if gcc else set()
    if values["toolkit"] == "nvidia":
        packages.add("ca-certificates")  # its archives come over https
    return Plan(
        package=recipe_.package,
        version=version,
        variant=str(variant),
        platform=platform,
        machine=variant.machine,
        channel=channel_name,
        options=dict(values),
        base=pins.base,
        toolkit=_toolkit(recipe_, stack) if cuda else None,
        apt=sorted(packages),
        env=dict(sorted(env.items())),
        recipe=pins.recipe,
        source=_source(pins.recipe, recipe_, source_version, stack.torch),
        parts=[
            PartPlan(into=part.into, source=_fixed(part.source), strip=part.strip, members=part.members)
            for part in recipe_.parts
        ],
        patch_files=[name for name in job_files(pins.recipe) if name.startswith("patches/")],
        job_files=job_digest(pins.recipe),
        tiers_off=level.without,
        memory_per_job_gb=recipe_.memory_per_job_gb,
        timeout_minutes=recipe_.timeout_minutes,
        needs=[f"{name}=={fill['torch_version']}" for name in recipe_.needs],
        vendor_into=recipe_.vendor_into,
        repair=recipe_.repair,
        exclude=recipe_.exclude,
        opens=_opens(recipe_, stack) if platform == "linux" else [],
        verify=Policy(
            **rules
            | {
                "name": recipe_.package,
                "version": version,
                "python": "cp" + variant.python.removeprefix("py"),
                "platform": f"{platform}_{variant.machine}",
                "sass": sms,
                "ptx": sms[-1:] if values["ptx"] else [],
                "cpu": variant.cpu,
                "exclude": recipe_.exclude,
                "numpy": _numpy_bound(release) if rules["numpy"] else None,
            }
        ),
        requires=[_fill(text, fill, f"recipe {recipe_.package}: requires") for text in recipe_.requires],
        windows=windows_plan(recipe_, stack, values["blas"]) if platform == "windows" else None,
        origins=origins,
    )


def _opens(recipe_: Recipe, stack: Stack) -> list[str]:
    """What is opened by name, of the libraries that this build has."""
    there = {"cuda": stack.cuda, "cudnn": stack.cudnn}
    return [name for part, names in recipe_.opens.items() if there[part] for name in names]


def _verify_rules(recipe_: Recipe, pins: Pins) -> dict[str, Any]:
    """What the wheel is held to: the recipe's rules, those that the channel names in their place."""
    return recipe_.verify.model_dump() | (pins.verify.model_dump(exclude_unset=True) if pins.verify else {})


def _numpy_bound(release: TorchRelease | None) -> str | None:
    """`<2` for a release that cannot use the newest numpy; pip would install that one."""
    newest = max(int(version.partition(".")[0]) for version in catalog.pythons().numpy_choices)
    return f"<{release.numpy_major_max + 1}" if release and release.numpy_major_max < newest else None


def _cuda_home(stack: Stack) -> str:
    """Where the toolkit lies. On Windows each toolkit has a folder of its own: a host keeps more than one."""
    if stack.platform == "windows" and stack.cuda:
        return "C:/farm/cuda-" + "-".join(filter(None, (stack.cuda, stack.cudnn)))
    return catalog.nvidia_provider().prefix if stack.toolkit == "nvidia" else "/usr"


def _unix_environment(stack: Stack, base: str | None, cc: str, cxx: str) -> dict[str, dict[str, str]]:
    """Compilers and their flags, by origin."""
    flags = " ".join(catalog.cpu_levels()[stack.variant.cpu].gcc)
    compilers = {"CC": cc, "CXX": cxx} | ({"CUDAHOSTCXX": f"/usr/bin/{cxx}"} if stack.cuda else {})
    return {
        f"base {base or 'of the host'}": compilers,
        f"variant: {stack.variant.cpu}": {"CFLAGS": flags, "CXXFLAGS": flags} if flags else {},
    }


def _fill(text: str, fill: Mapping[str, str], where: str) -> str:
    for key, value in fill.items():
        text = text.replace("{" + key + "}", value)
    if "{" in text:
        raise UsageError(f"{where}: {text!r} holds an unknown name; known: {', '.join(fill)}")
    return text


def _toolkit(recipe_: Recipe, stack: Stack) -> ToolkitPlan:
    assert stack.cuda
    if stack.toolkit == "debian":
        wheels = []
        if stack.cudnn:
            pinned = catalog.cudnn_wheel(stack.cudnn, stack.cuda)
            assert pinned  # the rules saw to it
            wheels.append(SourcePlan(kind="wheel", **pinned.model_dump()))
        return ToolkitPlan(provider="debian", cuda=stack.cuda, components=recipe_.components, wheels=wheels)
    platform = redist_platform(stack)
    assert platform
    archives = _archives(platform, stack.cuda, stack.cudnn, tuple(recipe_.components))
    return ToolkitPlan(provider="nvidia", cuda=stack.cuda, components=recipe_.components, archives=archives)


@cache
def _archives(
    platform: redist.Platform, cuda: str, cudnn: str | None, components: tuple[str, ...]
) -> list[ArchivePlan]:
    parts = catalog.nvidia_provider().parts(cuda, platform)
    names = sorted({part for component in components for part in parts[component]})
    found = redist.archives("cuda", catalog.toolkits()[cuda].release, platform, names)
    if cudnn:
        found += redist.archives("cudnn", cudnn, platform, ["cudnn"], cuda_major=int(cuda.partition(".")[0]))
    return [
        ArchivePlan(component=a.component, version=a.version, url=a.url, sha256=a.sha256, size=a.size) for a in found
    ]


def _source_version(recipe_: Recipe, torch: str | None) -> str:
    if not isinstance(recipe_.source, GitSource) or torch is None:
        return recipe_.version
    release = catalog.torch_releases()[torch]
    return {"torch": torch, "vision": release.vision, "audio": release.audio}[recipe_.source.release]


def _source(name: str, recipe_: Recipe, version: str, torch: str | None) -> SourcePlan:
    source = recipe_.source
    if isinstance(source, GitSource):
        assert torch
        commit = _commit(source, catalog.torch_releases()[torch])
        return SourcePlan(kind="git", url=source.url, tag=source.tag.replace("{version}", version), commit=commit)
    if isinstance(source, PathSource):
        return SourcePlan(kind="path", digest=tree_digest(folder(name) / source.path))
    return _fixed(source)


def _fixed(source: AnySource) -> SourcePlan:
    return SourcePlan.model_validate(source.model_dump())


def source_folder(plan: Plan) -> Path:
    """Where the source of a plan with a `path` source stands.

    Raises:
        UsageError: The package has no such source, or the folder is not what the plan was made from.
    """
    source = recipe(plan.recipe).source
    if not isinstance(source, PathSource):
        raise UsageError(f"the plan says that {plan.package} has its source beside its recipe; it has not")
    found = folder(plan.recipe) / source.path
    if tree_digest(found) != plan.source.digest:
        raise UsageError(f"{found}: changed since the plan was made", hint="make the plan again")
    return found
