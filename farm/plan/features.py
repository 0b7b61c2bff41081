"""The features of PyTorch that a build has or lacks, and why: by the catalogue, recipe, channel or user."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from farm import catalog
from farm.base.errors import UsageError
from farm.base.text import nearest
from farm.catalog import number
from farm.catalog.models import Feature
from farm.plan.compat.stack import sm_name, targets
from farm.plan.compat.torch import feature_off
from farm.plan.recipe import NcclSource
from farm.plan.selectors import Candidate


class Setting(NamedTuple):
    """State of a feature: on or off, who says so, and why it is off."""

    on: bool
    origin: str
    reason: str = ""


def settings(wanted: Candidate) -> dict[str, Setting]:
    """Of each feature that the recipe names, whether it is in the wheel; in the order of the catalogue.

    Raises:
        UsageError: `--without` names something else.
    """
    recipe, left_out = wanted.recipe, str(wanted.value("without") or "").split(",")
    named = [*recipe.features, *recipe.without]
    for name in filter(None, left_out):
        if name not in named:
            near = nearest(name, named)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(named) or 'none'}"
            raise UsageError(f"--without {name}: {wanted.package} has no such feature", hint=hint)
    found: dict[str, Setting] = {}
    for name, feature in catalog.features().items():
        if name in named:
            found[name] = _setting(wanted, name, feature, left_out, found)
    return found


def _setting(
    wanted: Candidate, name: str, feature: Feature, left_out: list[str], before: dict[str, Setting]
) -> Setting:
    if name in left_out:
        return Setting(on=False, origin=wanted.chosen["without"].origin, reason="left out")
    for other in feature.needs:
        if other in before and not before[other].on:
            return Setting(on=False, origin=before[other].origin, reason=f"needs {other}")
    explicit = feature.words and feature.words.items() <= dict(wanted.stack.words).items()
    if name in wanted.recipe.without and not explicit:
        reason = wanted.recipe.without[name]
        origin = f"recipe {wanted.recipe.package}: {reason}"
        return Setting(on=False, origin=origin, reason=_limit(wanted, feature) or reason)
    if feature.switch in wanted.pins.switches:
        on = wanted.pins.switches[feature.switch]
        return Setting(on, f"channel {wanted.channel.name}", "" if on else f"channel {wanted.channel.name}")
    if against := feature_off(wanted.stack, name) or _no_wheel(wanted, name):
        return Setting(on=False, origin=f"off: {against}", reason=_limit(wanted, feature) or against)
    return Setting(on=True, origin="rules: nothing against it")


def _limit(wanted: Candidate, feature: Feature) -> str | None:
    """The hardware that a feature needs, where that of the wheel is less."""
    cards, levels = targets(wanted.stack), list(catalog.cpu_levels())
    if feature.sm_min and cards and cards[-1] < feature.sm_min:
        return f"needs sm_{feature.sm_min}"
    if feature.cpu and levels.index(wanted.stack.variant.cpu) < levels.index(feature.cpu):
        return f"needs {feature.cpu.upper()}"
    return None


def _no_wheel(wanted: Candidate, name: str) -> str | None:
    """Why NVIDIA's wheel of NCCL does not serve, where the recipe takes it for this feature."""
    stack = wanted.stack
    if not any(isinstance(part.source, NcclSource) and part.feature == name for part in wanted.recipe.parts):
        return None
    wheel = catalog.nccl_wheel(stack.cuda, stack.variant.machine)
    if wheel is None:
        return f"no wheel of it is known for CUDA {stack.cuda} on {stack.variant.machine}"
    # Machine code runs on the later minor versions of its major one.
    lacks = [sm for sm in targets(stack) if not any(sm // 10 == own // 10 and own <= sm for own in wheel.sms)]
    return f"{wheel.package} {wheel.file.split('-')[1]} has no code for {sm_name(lacks[0])}" if lacks else None


def is_official(feature: Feature, platform: str, torch: str | None, *, gpu: bool) -> bool:
    """True if the official wheels of this release have the feature, those for the CPU or those with CUDA."""
    since = feature.official.get(platform)
    return since is not None and torch is not None and number(torch) >= number(since) and (gpu or not feature.gpu)


def rows(present: Iterable[str], lacking: Mapping[str, str]) -> list[tuple[str, str]]:
    """The features of a wheel, and those that the official one has beside them, with the reason, in words."""
    there = ", ".join(map(_title, present))
    return [(what, text) for what, text in (("with", there), ("without", absent(lacking))) if text]


def absent(lacking: Mapping[str, str]) -> str:
    """`FBGEMM (needs AVX2); MAGMA (left out)`; empty where nothing is lacking."""
    return "; ".join(f"{_title(name)} ({reason})" for name, reason in lacking.items())


def _title(name: str) -> str:
    feature = catalog.features().get(name)
    return feature.title if feature else name


def description(present: Iterable[str], lacking: Mapping[str, str]) -> str:
    """Features that are off as a paragraph of METADATA's description."""
    return "\n".join(f"This build is {what}: {text}." for what, text in rows(present, lacking))


def missing(wanted: Candidate, found: dict[str, Setting]) -> dict[str, str]:
    """The features that the official wheel has and this build lacks, with the reason."""
    stack = wanted.stack
    return {
        name: one.reason
        for name, one in found.items()
        if not one.on and is_official(catalog.features()[name], stack.platform, stack.torch, gpu=stack.cuda is not None)
    }
