"""The channels of the Kepler guide, and which channel is the default."""

import pytest

from farm.base.errors import UsageError
from farm.plan.variant import Variant


@pytest.mark.parametrize(
    ("package", "variant", "platform", "channel"),
    [
        ("canary", "sm35-avx-py311", "linux", "kepler-debian"),
        ("torch", "sm35-avx-py311", "linux", "debian-2.6.0"),
        ("torch", "sm35-avx-py39", "windows", "kepler-2.0.1"),
        ("torch", "legacy-avx2-py310", "windows", "kepler-2.0.1"),
        ("torch", "sm35-sse41-py311", "linux", "debian-2.6.0"),
        ("torch", "sm90-avx512-py313", "linux", "main"),
        ("torch", "sm90-avx512-py312", "linux", "pytorch-2.8-python312"),
        ("torch", "sm103-armv9-py313", "linux", "pytorch-2.9-python313"),
        ("torch", "sm70-avx2-py311", "linux", "debian-2.6.0"),
        ("torch", "sm121-armv9-py313", "linux", "pytorch-2.10-python313"),
        ("torch", "mps-arm64-py311", "macos", "pytorch-2.8-python311"),
        ("torchvision", "sm61-avx-py313", "linux", "main"),
        # Offered nowhere: the nearest channel, whose rules then say why not.
        ("torch", "sm35-avx-py313", "linux", "debian-2.6.0"),
        ("torch", "sm90-avx512-py314", "linux", "debian-2.6.0"),
        ("torch", "sm121-avx-py311", "linux", "pytorch-2.10-python313"),
        ("torch", "sm120-avx2-py311", "windows", "rtx50-windows"),
    ],
)
def test_default_channel(shipped, package, variant, platform, channel):
    assert shipped.default_channel(package, Variant.parse(variant), platform) == channel


def test_no_channel_for_the_platform(shipped):
    with pytest.raises(UsageError, match=r"no channel of ci/matrix\.yaml builds 'canary' for macos"):
        shipped.default_channel("canary", Variant("sm61", "avx", "py313"), "macos")


@pytest.mark.parametrize(
    ("channel", "variant", "platform", "torch", "cuda", "cudnn", "blas"),
    [
        ("kepler-2.0.1", "sm35-avx-py311", "windows", "2.0.1", "11.4", "8.7.0", "mkl"),
        ("kepler-2.0.1", "sm35-avx-py311", "linux", "2.0.1", "11.7", "8.7.0", "openblas"),
        ("kepler-compat", "legacy-sse41-py310", "windows", "2.0.1", "11.4", "8.7.0", "openblas"),
        ("kepler-compat", "kepler-sse41-py311", "linux", "2.0.1", "11.7", "8.7.0", "openblas"),
        ("kepler-2.7.1", "sm35-avx-py311", "windows", "2.7.1", "11.7", "8.7.0", "mkl"),
        ("kepler-1.12.1", "sm35-avx-py39", "windows", "1.12.1", "11.4", "8.7.0", "mkl"),
    ],
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
