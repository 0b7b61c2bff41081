"""Channels debian-2.6.0 and debian-2.6.0-cu124: one recipe on two releases of Debian."""

import re
from pathlib import Path

import pytest

from farm import catalog
from farm.plan.matrix import load_matrix
from farm.plan.render import render
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
CHANNELS = {"debian-2.6.0": "py311", "debian-2.6.0-cu124": "py313"}


@pytest.mark.parametrize(
    ("channel", "gcc", "flatbuffers"),
    [
        ("debian-2.6.0", "gcc-10", "libflatbuffers-dev_1.12.1"),
        ("debian-2.6.0-arm", "gcc-11", "flatbuffers_2.0.8"),
        ("debian-2.6.0-cu124", "gcc-13", "flatbuffers_23.5.26"),
    ],
)
def test_each_base_has_its_compiler_and_the_headers_of_its_flatc(channel, gcc, flatbuffers):
    variants = ["cpu-armv8_2-py311"]
    if channel in CHANNELS:
        variants = [f"{gpu}-avx-{CHANNELS[channel]}" for gpu in ("cpu", "sm70")]
    for variant in variants:
        plan = plan_of(variant, channel=channel)
        assert plan.env["CC"] == gcc  # also without CUDA: such builds share the compiler cache
        [part] = [part for part in plan.parts if part.into == "third_party/flatbuffers"]
        assert str(part.source.file).startswith(flatbuffers)


OF_A_BASE = ("third_party/flatbuffers", "third_party/nccl")


def test_both_take_the_same_source_and_the_same_other_parts():
    one, two = (
        plan_of(f"sm70-avx-{python}", channel=channel) for channel, python in CHANNELS.items()
    )
    assert one.source == two.source
    assert one.job_files == two.job_files
    other = [[part for part in plan.parts if part.into not in OF_A_BASE] for plan in (one, two)]
    assert other[0] == other[1]
    assert len(other[0]) == 20


@pytest.mark.parametrize(
    ("variant", "channel", "flash", "efficient"),
    [
        ("sm35-avx-py311", "debian-2.6.0", "0", "0"),
        ("kepler-avx-py311", "debian-2.6.0", "0", "0"),
        ("sm50-avx-py313", "debian-2.6.0-cu124", "0", "1"),
        ("sm75-avx2-py313", "debian-2.6.0-cu124", "0", "1"),
        ("sm80-avx2-py313", "debian-2.6.0-cu124", "1", "1"),
        ("sm90-avx512-py313", "debian-2.6.0-cu124", "1", "1"),
        ("sm90-avx512-py311", "debian-2.6.0", "1", "1"),
        ("cpu-sse41-py313", "debian-2.6.0-cu124", None, None),
    ],
)
def test_attention_kernels_are_on_where_the_cards_have_them(variant, channel, flash, efficient):
    env = plan_of(variant, channel=channel).env
    assert (env.get("USE_FLASH_ATTENTION"), env.get("USE_MEM_EFF_ATTENTION")) == (flash, efficient)


def test_cuda_12_4_and_cudnn_9_1_come_from_debian_13_and_the_python_index():
    plan = plan_of("sm90-avx512-py313", channel="debian-2.6.0-cu124")
    image = render(ROOT, plan).image
    manifest = image["scripts/toolkit.json"]
    assert (plan.toolkit.provider, plan.toolkit.archives) == ("debian", [])
    assert [wheel.package for wheel in plan.toolkit.wheels] == ["nvidia-cudnn-cu12"]
    packages = re.findall(r'"package": "([^"]+)"', manifest)
    assert {
        "nvidia-cuda-toolkit",
        "libcublas12",
        "libcusparse12",
        "libnvjitlink12",
        "libnvrtc-builtins12.4",
    } < set(packages)
    assert not [name for name in packages if re.search(r"11\.|cublas11", name)]


def test_the_wheel_for_cuda_12_4_needs_upstreams_pins():
    """As METADATA of upstream's torch 2.6.0 for CUDA 12.4 has them, without what this build leaves
    out.
    """
    pins = {
        wheel.package: wheel.version
        for wheel in plan_of("sm90-avx512-py313", channel="debian-2.6.0-cu124").library_wheels
    }
    assert pins == {
        "nvidia-cublas-cu12": "12.4.5.8",
        "nvidia-cuda-cupti-cu12": "12.4.127",
        "nvidia-cuda-nvrtc-cu12": "12.4.127",
        "nvidia-cuda-runtime-cu12": "12.4.127",
        "nvidia-cudnn-cu12": "9.1.0.70",
        "nvidia-cufft-cu12": "11.2.1.3",
        "nvidia-curand-cu12": "10.3.5.147",
        "nvidia-cusolver-cu12": "11.6.1.9",
        "nvidia-cusparse-cu12": "12.3.1.170",
        "nvidia-nccl-cu12": "2.21.5",
        "nvidia-nvjitlink-cu12": "12.4.127",
        "nvidia-nvtx-cu12": "12.4.127",
    }


def test_wheels_that_others_require_are_in_the_catalogue():
    for cuda in ("11.8", "12.4"):
        known = catalog.library_wheels(cuda, None)
        names = {wheel.package for wheel in known}
        assert {package for wheel in known for package in wheel.requires} <= names


def test_every_build_of_the_channel_can_be_planned_and_holds_no_kepler():
    offered = list(load_matrix(ROOT).builds("debian-2.6.0-cu124"))
    assert {build.package for build in offered} == {"torch", "torchvision", "torchaudio"}
    builds = [build for build in offered if build.package == "torch"]
    assert {build.variant.gpu for build in builds} == {
        "cpu", "sm50", "sm52", "sm60", "sm61", "sm70", "sm75", "sm80", "sm86", "sm89", "sm90",
    }  # fmt: skip
    assert len(builds) == 11 * 4
    for build in builds:
        plan = plan_of(str(build.variant), channel="debian-2.6.0-cu124")
        assert plan.base == "debian-trixie"


@pytest.mark.parametrize(
    ("variant", "bound"), [("cpu-sse41-py311", "<2.4"), ("cpu-avx-py311", "<3")]
)
def test_numpy_is_one_that_the_cpu_can_run(variant, bound):
    """numpy 2.4's wheels need x86-64-v2, which a Penryn has not: there they do not import."""
    plan = plan_of(variant, channel="debian-2.6.0")
    assert plan.requires == [f"numpy{bound}", "setuptools"]
    assert plan.verify.numpy == bound
