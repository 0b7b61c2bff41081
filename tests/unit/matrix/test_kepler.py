"""The channels of the Kepler guide, and which channel is the default."""

from pathlib import Path

import pytest
import yaml

from farm.base.errors import UsageError
from farm.plan.variant import Variant

CASES = yaml.safe_load(Path(__file__).with_name("kepler.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("package", "variant", "platform", "channel"), CASES["default_channel"])
def test_default_channel(shipped, package, variant, platform, channel):
    assert shipped.default_channel(package, Variant.parse(variant), platform) == channel


def test_no_channel_for_the_platform(shipped):
    with pytest.raises(
        UsageError, match=r"no channel of ci/matrix\.yaml builds 'canary' for macos"
    ):
        shipped.default_channel("canary", Variant("sm61", "avx", "py313"), "macos")


@pytest.mark.parametrize(
    ("channel", "variant", "platform", "torch", "cuda", "cudnn", "blas"),
    CASES["stacks_of_the_guide"],
)
def test_stacks_of_the_guide(shipped, channel, variant, platform, torch, cuda, cudnn, blas):
    one, parsed = shipped.channel(channel), Variant.parse(variant)
    assert one.cudas("torch", parsed, platform) == (cuda,)
    pins = one.pins("torch", parsed, platform)
    assert [pins.options[name] for name in ("toolkit", "torch", "cuda", "cudnn", "blas")] == [
        "nvidia",
        torch,
        cuda,
        cudnn,
        blas,
    ]
    assert pins.base == ("debian-bookworm" if platform == "linux" else None)


def test_unknown_channel_gets_the_nearest(shipped):
    with pytest.raises(UsageError) as caught:
        shipped.channel("kepler-2.0.2")
    assert caught.value.hint.startswith("nearest: kepler-2.0.1")
