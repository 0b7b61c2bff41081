"""Values derived from a resolved request, each with its origin: features of PyTorch, its version,
needs, variables of the build.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from farm import catalog
from farm.base.errors import UsageError
from farm.base.text import nearest
from farm.base.yamlfile import where
from farm.catalog import number
from farm.catalog.models import Feature
from farm.plan import materials
from farm.plan.compat.rules.features import feature_off
from farm.plan.compat.rules.pytorch import numpy_end
from farm.plan.compat.stack import Stack, arch_list, effects, sm_name, targets
from farm.plan.materials import source_version
from farm.plan.options import FILE, OPTIONS, Choice
from farm.plan.platforms.base import Variables, platform
from farm.plan.recipe import NcclSource, Recipe, folder, names, near, recipe
from farm.plan.request import ResolvedRequest
from farm.plan.variant import Variant

LEFT_OUT = "--without"


class Setting(NamedTuple):
    """State of a feature: on or off, who says so, and why it is off."""

    on: bool
    origin: str
    reason: str = ""


def _off(origin: str, reason: str) -> Setting:
    return Setting(on=False, origin=origin, reason=reason)


def feature_settings(wanted: ResolvedRequest) -> dict[str, Setting]:
    """State of each feature that the recipe names. Raises UsageError: `--without` names what it
    cannot leave out.
    """
    left_out = _left_out(wanted)
    settings: dict[str, Setting] = {}
    for name, feature in catalog.features().items():
        if name not in wanted.recipe.features and name not in wanted.recipe.without:
            continue
        setting = _setting(wanted, name, feature, settings)
        if setting.on and name in left_out:
            setting = _without(name, feature, left_out[name])
        settings[name] = setting
    return settings


def _without(name: str, feature: Feature, origin: str) -> Setting:
    """The state of a feature that is left out. Raises UsageError: another option chooses it."""
    for option, word in feature.words.items():
        alternatives = []
        for choice in OPTIONS[option].choices:
            if choice != word:
                alternatives.append(f"--{option} {choice}")
        raise UsageError(
            f"{name} (from {origin}) is chosen by --{option}", hint=" or ".join(alternatives)
        )
    reason = LEFT_OUT
    if origin.startswith("channel "):
        reason = f"{LEFT_OUT} of the {origin}; --with {name} builds it"
    return _off(origin, reason)


def _left_out(wanted: ResolvedRequest) -> dict[str, str]:
    """Return the origins of the features that are left out, by id.

    They are those of `--without` and of the channel, but for those of `--with`.

    Raises:
        UsageError: A name is no feature of the recipe.
    """
    left_out: dict[str, str] = {}
    pinned = wanted.pins.options.get("without")
    if pinned is not None:
        channel = f"channel {wanted.channel.name}"
        for name in _feature_names(wanted, str(pinned), channel):
            left_out[name] = channel
    value, origin = wanted.chosen["without"]
    if value is not None:
        for name in _feature_names(wanted, str(value), origin):
            left_out[name] = origin
    value, origin = wanted.chosen["with"]
    if value is not None:
        for name in _feature_names(wanted, str(value), origin):
            left_out.pop(name, None)
    return left_out


def _feature_names(wanted: ResolvedRequest, value: str, origin: str) -> list[str]:
    """Return the ids of the features in a list of ids or titles.

    Raises:
        UsageError: A name is no feature of the recipe.
    """
    recipe_features = [*wanted.recipe.features, *wanted.recipe.without]
    # These are there for all builds that know them; a command is about this one.
    if not recipe_features and origin.startswith((FILE, "channel ")):
        return []
    ids = {}
    for name in recipe_features:
        ids[catalog.features()[name].title.lower()] = name
    ids.update(zip(recipe_features, recipe_features, strict=True))
    words = [word.strip().lower() for word in value.split(",")]
    if "" in words:
        raise UsageError(
            f"{value!r} (from {origin}): an empty name", hint="write names and commas: nccl,kineto"
        )
    unknown = [word for word in words if word not in ids]
    if not unknown:
        return [ids[word] for word in words]
    fault = f"{', '.join(unknown)} (from {origin}): recipe {wanted.pins.recipe} has no"
    if not recipe_features:
        raise UsageError(
            f"{fault} features to leave out",
            hint="leave it out, or take a channel whose recipe names features "
            "(docs/reference/features.md)",
        )
    raise UsageError(f"{fault} such feature to leave out", hint=_meant_features(unknown, ids))


def _meant_features(unknown: list[str], ids: Mapping[str, str]) -> str:
    """The features that may be meant by words that are none, else all of them."""
    near = []
    for word in unknown:
        for title in nearest(word, [*ids], 1):
            near.append(repr(ids[title]))
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"known: {', '.join(dict.fromkeys(ids.values()))}"


def _setting(
    wanted: ResolvedRequest, name: str, feature: Feature, before: dict[str, Setting]
) -> Setting:
    for needed in feature.needs:
        if needed in before and not before[needed].on:
            return _off(before[needed].origin, f"needs {_title(needed)}")
    recipe = wanted.recipe
    channel = f"channel {wanted.channel.name}"
    explicit = feature.words and feature.words.items() <= dict(wanted.stack.words).items()
    if name in recipe.without and not explicit:
        reason = recipe.without[name]
        origin = f"recipe {recipe.package}: {reason}"
        return _off(origin, _limit(wanted.stack, feature) or reason)
    if feature.switch in wanted.pins.switches:
        if wanted.pins.switches[feature.switch]:
            return Setting(on=True, origin=channel)
        return _off(channel, channel)
    against = feature_off(wanted.stack, name) or _no_wheel(wanted, name)
    if against:
        return _off(f"off: {against}", _limit(wanted.stack, feature) or against)
    return Setting(on=True, origin="rules: nothing against it")


def _limit(stack: Stack, feature: Feature) -> str | None:
    """What a feature needs and the wheel's platform or hardware lacks."""
    cards = targets(stack)
    if feature.sm_min and cards and cards[-1] < feature.sm_min:
        return f"needs sm_{feature.sm_min}"
    if feature.cpu:
        levels = list(catalog.cpu_levels())
        level = levels.index(stack.variant.cpu)
        if level < levels.index(feature.cpu):
            return f"needs {feature.cpu.upper()}"
    return feature.elsewhere.get(stack.platform)


def _no_wheel(wanted: ResolvedRequest, name: str) -> str | None:
    """Why NVIDIA's wheel of NCCL does not serve, where the recipe takes it for this feature."""
    stack = wanted.stack
    parts = [part for part in wanted.recipe.parts if part.feature == name]
    if not any(isinstance(part.source, NcclSource) for part in parts):
        return None
    wheel = catalog.nccl_wheel(stack.cuda, stack.variant.machine)
    if wheel is None:
        return f"no wheel of it is known for CUDA {stack.cuda} on {stack.variant.machine}"
    for sm in targets(stack):
        # Machine code runs on the later minor versions of its major one.
        if not any(sm // 10 == code // 10 and code <= sm for code in wheel.sms):
            return f"{wheel.package} {wheel.file.split('-')[1]} has no code for {sm_name(sm)}"
    return None


def is_official(feature: Feature, platform: str, torch: str | None, *, gpu: bool) -> bool:
    """True if the official wheels of this release have the feature, those for the CPU or those with
    CUDA.
    """
    since = feature.official.get(platform)
    if since is None or torch is None or number(torch) < number(since):
        return False
    return gpu or not feature.gpu


def feature_rows(present: Iterable[str], lacking: Mapping[str, str]) -> list[tuple[str, str]]:
    """The features of a wheel, and those that the official one has beside them, with the reason, in
    words.
    """
    rows = []
    titles = ", ".join(map(_title, present))
    if titles:
        rows.append(("with", titles))
    if lacking:
        rows.append(("without", absent_features(lacking)))
    return rows


def absent_features(lacking: Mapping[str, str]) -> str:
    """`FBGEMM (needs AVX2); MAGMA (--without)`; empty where nothing is lacking."""
    texts = []
    for name, reason in lacking.items():
        texts.append(f"{_title(name)} ({reason})")
    return "; ".join(texts)


def _title(name: str) -> str:
    feature = catalog.features().get(name)
    if feature is None:
        return name
    return feature.title


def feature_text(present: Iterable[str], lacking: Mapping[str, str]) -> str:
    """Features that are off as a paragraph of METADATA's description."""
    lines = []
    for label, text in feature_rows(present, lacking):
        lines.append(f"This build is {label}: {text}.")
    return "\n".join(lines)


def missing_features(wanted: ResolvedRequest, found: dict[str, Setting]) -> dict[str, str]:
    """The features that the official wheel for this kind of machine has and this build lacks, with
    the reason.
    """
    stack = wanted.stack
    with_gpu = stack.cuda is not None
    lacking = {}
    for name, setting in found.items():
        feature = catalog.features()[name]
        if setting.on:
            continue
        if feature.machines is not None and stack.variant.machine not in feature.machines:
            continue
        if is_official(feature, stack.platform, stack.torch, gpu=with_gpu):
            lacking[name] = setting.reason
    return lacking


def wheel_version(base: str, cuda: str | None, variant: Variant, rebuild: int) -> str:
    """`0.1.0+cu118.sm35.avx`; `0.1.0+cpu.avx` without a GPU; `.N` appended for a rebuild."""
    if cuda:
        parts = [f"cu{cuda.replace('.', '')}", variant.gpu]
    else:
        parts = [variant.gpu]
    # The index and pip know a local version in its normal form only, in which `_` is a dot (PEP
    # 440).
    parts.append(variant.cpu.replace("_", "."))
    if rebuild:
        parts.append(str(rebuild))
    return f"{base}+{'.'.join(parts)}"


def placeholders(resolved: ResolvedRequest) -> dict[str, str]:
    """The values of `{version}`, `{cuda_home}`, … in a recipe, for this build."""
    stack = resolved.stack
    base = source_version(resolved.recipe, stack.torch)
    rebuild = int(resolved.value("rebuild") or 0)
    values = {
        "version": wheel_version(base, stack.cuda, stack.variant, rebuild),
        "torch_version": _torch_version(resolved),
        "numpy_end": _numpy_end(resolved),
        "use_cuda": "1" if stack.cuda else "0",
        "use_cudnn": "1" if stack.cudnn else "0",
    }
    for name, word in effects(stack).items():
        values[name] = word.value
    values["cuda_home"] = platform(stack.platform).cuda_home(stack)
    values["arch_list"] = arch_list(stack)
    return values | _device_flags(stack)


def _device_flags(stack: Stack) -> dict[str, str]:
    """CMAKE_CUDA_ARCHITECTURES (`35-real;37-real`, with `-virtual` of the highest for PTX), and
    flags of nvcc.
    """
    architectures = []
    flags = []
    if stack.cuda:
        for sm in stack.variant.sms:
            architectures.append(f"{sm}-real")
            flags.append(f"-gencode=arch=compute_{sm},code=sm_{sm}")
    if architectures and stack.ptx:
        highest = stack.variant.sms[-1]
        architectures.append(f"{highest}-virtual")
        flags.append(f"-gencode=arch=compute_{highest},code=compute_{highest}")
    return {"cmake_architectures": ";".join(architectures), "gencode": " ".join(flags)}


def _torch_version(resolved: ResolvedRequest) -> str:
    """The release of PyTorch's own wheel; the version of the farm's."""
    stack = resolved.stack
    if stack.torch and not materials.official_torch(resolved.pins.official, resolved.recipe, stack):
        return wheel_version(stack.torch, stack.cuda, stack.variant, 0)
    return stack.torch or ""


def _numpy_end(resolved: ResolvedRequest) -> str:
    """The first numpy that the wheel cannot work with; empty where no torch says it.

    What was compiled against numpy 1's headers does not work with numpy 2 (NumPy 2.0 migration
    guide, "Downstream packages").
    """
    release = catalog.torch_releases().get(resolved.stack.torch or "")
    if release is None:
        return ""
    end_of_torch = numpy_end(release, resolved.stack.variant.cpu)
    # A package that compiles nothing against numpy, as torchvision: what torch says holds.
    if not resolved.recipe.verify.numpy:
        return end_of_torch
    major = _numpy_of_build(resolved)
    if major is not None and major < 2:
        return min(end_of_torch, "2", key=number)
    return end_of_torch


def _numpy_of_build(resolved: ResolvedRequest) -> int | None:
    """The major version of the numpy whose headers a build has; None: not known.

    It is that of a wheel that the recipe or a standalone Python brings, else the base image's.
    """
    base = resolved.pins.base
    parts = materials.parts(resolved.recipe, resolved.stack, base, ())
    wheels = [part.source for part in parts] + materials.standalone_wheels(resolved.stack)
    for source in wheels:
        if source.package == "numpy":
            return number(catalog.version_in(str(source.file)))[0]
    if base is not None and resolved.stack.standalone is None:
        return catalog.debian_releases()[base].numpy_major
    return None


def needs(resolved: ResolvedRequest) -> list[str]:
    """The farm's own wheels that the build imports. Raises UsageError: one has no recipe, or needs
    itself.
    """
    stack = resolved.stack
    requirements = []
    for name in resolved.recipe.needs:
        _check_need(resolved, name)
        needed = recipe(resolved.channel.text.recipe_of(name))
        base = source_version(needed, stack.torch)
        if needed.package == "torch":
            if materials.official_torch(resolved.pins.official, resolved.recipe, stack):
                continue  # it is fetched, not built
            # The torch of this stack, not the recipe's default: `--torch` counts for what needs
            # torch as well.
            base = stack.torch or base
        # Rebuild 0: what is needed is the wheel as it was first published.
        version = wheel_version(base, stack.cuda, stack.variant, 0)
        requirements.append(f"{needed.package}=={version}")
    cycle = _cycle(resolved, (resolved.pins.recipe,))
    if cycle:
        steps = [f"{package} needs {needed}" for package, needed in pairwise(cycle)]
        raise UsageError(
            f"{where(folder(cycle[0]) / 'recipe.yaml', 'needs')}: needs: a cycle, none of which "
            f"can be built first: {', '.join(steps)}"
        )
    return requirements


def _check_need(resolved: ResolvedRequest, name: str) -> None:
    """Raise a UsageError for a needed package that has no recipe or is the one that needs it."""
    if name not in names():
        fault = f"no recipe for package {name!r}"
    elif name in (resolved.package, resolved.pins.recipe):
        fault = "cannot need itself"
    else:
        return
    hint = None
    near_names = [package for package in near(name) if package != resolved.package]
    if near_names:
        hint = f"nearest: {', '.join(near_names)}"
    file = folder(resolved.pins.recipe) / "recipe.yaml"
    raise UsageError(f"{where(file, 'needs')}: needs: {fault}", hint=hint)


def _cycle(resolved: ResolvedRequest, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return a cycle of needs that `path` leads into, its first recipe repeated at its end; else
    ().

    Args:
        resolved: The build.
        path: Names of recipes, each needed by the one before.
    """
    for name in recipe(path[-1]).needs:
        if name in names():  # else the build of that recipe says so
            needed = resolved.channel.text.recipe_of(name)
            if needed in path:
                cycle = (*path[path.index(needed) :], needed)
            else:
                cycle = _cycle(resolved, (*path, needed))
            if cycle:
                return cycle
    return ()


def filled(text: str, values: Mapping[str, str], file: Path, *key: int | str) -> str:
    """`text` with its placeholders filled. Raises UsageError: one is unknown; the line of `key` in
    `file` is named.
    """
    if "{" not in text:
        return text
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    # What is left in braces is a name that no one knows: in a script it would be taken literally.
    if "{" in text:
        key_text = ".".join(map(str, key))
        unknown = text.partition("{")[2].partition("}")[0]
        near = nearest(unknown, list(values))
        if near:
            hint = f"did you mean {near[0]!r}?"
        else:
            hint = f"known: {', '.join(values)}"
        raise UsageError(
            f"{where(file, *key)}: {key_text}: unknown placeholder {unknown!r} in {text!r}; {hint}"
        )
    return text


COMPILER_FLAGS = ("CFLAGS", "CXXFLAGS")
"""The variables with the variant's own flags, such as -mavx2: they are added to, never replaced."""


def environment(resolved: ResolvedRequest, values: Mapping[str, str]) -> dict[str, Choice]:
    """The variables of the build, each with its origin.

    A later one replaces an earlier one, or is appended where it holds compiler flags: the
    platform's compilers, the recipe, the GPU's architectures, the switches, the options.

    Args:
        resolved: The build.
        values: What stands for the placeholders of the recipe.

    Raises:
        UsageError: A placeholder of the recipe is unknown.
    """
    variables: dict[str, Choice] = {}
    file = folder(resolved.pins.recipe) / "recipe.yaml"
    for origin, texts in _sources(resolved).items():
        for name, text in texts.items():
            text_filled = filled(text, values, file, *_place(resolved.recipe, name))
            variables[name] = _combined(name, variables.get(name), text_filled, origin)
    for option in OPTIONS.values():
        choice = resolved.chosen[option.name]
        for name, text in option.environment(choice.value).items():
            before = variables.get(name)
            origin = choice.origin
            if before and before.value != text and name not in COMPILER_FLAGS:
                origin += f", in place of {before.value!r} of {before.origin}"
            variables[name] = _combined(name, before, text, origin)
    return variables


def _place(recipe: Recipe, variable: str) -> tuple[str, ...]:
    """Where a recipe sets a variable, as a path of keys."""
    if variable in recipe.env_cuda:
        return "env_cuda", variable
    if variable in recipe.env:
        return "env", variable
    return (variable,)


def _combined(name: str, before: Choice | None, text: str, origin: str) -> Choice:
    """A variable that is set again: replaced, or appended to where it holds compiler flags."""
    if before is None or name not in COMPILER_FLAGS:
        return Choice(text, origin)
    if text == before.value:
        return before
    return Choice(f"{before.value} {text}", f"{before.origin}, with {text!r} of {origin}")


def _sources(resolved: ResolvedRequest) -> Variables:
    """Variables by origin, in the order in which one overrules another."""
    stack = resolved.stack
    recipe = resolved.recipe
    recipe_origin = f"recipe {recipe.package}"
    variables = dict(recipe.env)
    if stack.cuda:
        variables |= recipe.env_cuda
    variables |= recipe.env_platform.get(stack.platform, {})
    # A dict keeps the place of a key that is set again: an origin that comes twice overrules at its
    # first place.
    by_origin = platform(stack.platform).environment(recipe, stack)
    by_origin = by_origin | {recipe_origin: variables}
    if stack.cuda:
        by_origin[f"variant: {stack.variant.gpu}"] = {"TORCH_CUDA_ARCH_LIST": arch_list(stack)}
    for name, setting in feature_settings(resolved).items():
        feature = catalog.features()[name]
        # CMake asks nothing about GPUs where there is no CUDA.
        if feature.switch and (stack.cuda or not feature.gpu):
            by_origin.setdefault(setting.origin, {})[feature.switch] = str(int(setting.on))
        if setting.on:
            by_origin.setdefault(recipe_origin, {}).update(recipe.env_feature.get(name, {}))
    return by_origin
