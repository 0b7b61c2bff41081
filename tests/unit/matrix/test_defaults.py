"""The stack that a build gets by default: no default is warned of while another plans without."""

from pathlib import Path

import pytest

from farm import catalog
from farm.plan.matrix import load_matrix
from farm.plan.options import Choice
from farm.plan.request import BuildRequest, resolve_options, verdict_on
from farm.plan.resolve import check_request
from farm.plan.variant import Variant
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
CARDS = [*catalog.architectures().architectures, *catalog.architectures().sets, "cpu"]
PYTHONS = ["py39", "py310", "py311", "py312", "py313", "py314", "py314t"]


def warned(judged):
    return {reason.rule for reason in judged.rules if reason.severity == "warning"}


def cpu_of(card):
    """A CPU level beside which the card is."""
    known = catalog.architectures()
    sms = {int(name[2:]) for name in known.sets.get(card, [card]) if name != "cpu"}
    return "armv8_2" if sms & {*known.tegra, *known.arm_alone} else "avx2"


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("card", CARDS)
def test_no_default_is_warned_of_while_another_channel_plans_without(card, platform):
    worse = []
    for python in PYTHONS:
        request = BuildRequest(Variant(card, cpu_of(card), python), platform=platform)
        default = check_request(ROOT, request)
        if not default.complete or not warned(default):
            continue
        for name, channel in load_matrix(ROOT).channels.items():
            if "torch" in channel.packages and platform in channel.platforms:
                other = verdict_on(resolve_options(ROOT, request, None, name))
                if other.complete and not warned(other):
                    worse.append((python, default.channel, warned(default), name))
    assert worse == []


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("card", ["sm50", "sm52", "sm60", "sm61", "sm70", "sm50to70"])
def test_torch_2_15_for_the_cards_that_upstream_left_takes_the_cuda_of_its_ci(card, platform):
    for python in ("py311", "py312", "py313"):
        request = BuildRequest(
            Variant(card, "avx2", python),
            platform=platform,
            options={"torch": Choice("2.15", "--torch")},
        )
        judged = check_request(ROOT, request)
        assert (judged.complete, judged.stack.cuda) == (True, "12.6"), (python, judged.channel)
        assert not warned(judged) & {"torch-official", "torch-official-gpu"}


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("torch", ["2.14.1", "2.15.0"])
def test_each_companion_of_the_legacy_channel_can_be_planned(torch, platform):
    channel = load_matrix(ROOT).channels["legacy-2.14.1"]
    builds = [build for build in channel.builds if build.platform == platform]
    assert {build.package for build in builds} == {"torch", "torchvision", "torchaudio"}
    for build in builds:
        # 2.15 ended Python 3.10.
        if build.variant.cpu == "avx2" and (torch, build.variant.python) != ("2.15.0", "py310"):
            plan = plan_of(
                str(build.variant), build.package, channel.name, platform=platform, torch=torch
            )
            assert plan.options["cuda"] == "12.6"
            # One old system for every Python, not the one that each Python has in a distribution.
            base = None if platform == "windows" else "debian-bullseye-gcc12"
            assert plan.base == base
            assert base is None or plan.env["CXX"] == "g++-12"


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("python", ["py310", "py312", "py314"])
@pytest.mark.parametrize("card", ["sm50", "sm61", "sm70", "sm50to70"])
def test_pascal_and_its_neighbours_get_the_last_official_release_without_a_warning(
    card, python, platform
):
    judged = check_request(ROOT, BuildRequest(Variant(card, "avx2", python), platform=platform))
    assert (judged.stack.torch, judged.stack.cuda, judged.rules) == ("2.14.1", "12.6", [])


@pytest.mark.parametrize(
    ("package", "variant", "platform", "channel"),
    [
        ("canary", "sm35-avx-py311", "linux", "kepler-debian"),
        ("torch", "sm35-avx-py311", "linux", "debian-2.6.0"),  # proved, and not warned of
        ("torch", "sm35-avx-py311", "windows", "kepler-2.0.1"),
        ("torch", "sm80-avx2-py311", "linux", "pytorch-2.9-python311"),
        ("torch", "sm90-avx512-py313", "linux", "pytorch-2.10-python313"),
        ("torch", "sm120-avx2-py312", "windows", "windows-2.10.0"),
        ("torch", "sm90-avx512-py312", "linux", "pytorch-2.9-vllm-0.14.0"),  # not the legacy one
    ],
)
def test_the_default_is_the_newest_release_that_is_not_warned_of(
    package, variant, platform, channel
):
    plan = plan_of(variant, package, platform=platform)
    assert (plan.channel, plan.origins["channel"]) == (channel, "default")
