"""A driver that is older or newer than the card is named, with what to install."""

import pytest

from farm.machine.cards import judge_gpu
from farm.machine.readings import Gpu


def gpu(name, capability):
    return Gpu(name=name, capability=capability, memory_mb=None, source="nvml")


@pytest.mark.parametrize(
    ("name", "capability", "driver", "message"),
    [
        ("NVIDIA GeForce RTX 5090", "12.0", "550.54.14", "install 570 or newer"),
        ("NVIDIA GeForce RTX 4090", "8.9", "515.65.01", "install 520 or newer"),
        ("NVIDIA GeForce RTX 3090", "8.6", "450.80.02", "install 455 or newer"),
        ("NVIDIA H100 PCIe", "9.0", "515.65.01", "install 520 or newer"),
        ("Tesla K40c", "3.5", "535.104.05", "install 470"),
        ("NVIDIA GeForce GTX 1080 Ti", "6.1", "595.58.03", "install 580"),
    ],
)
def test_mismatching_driver_versions_are_reported(name, capability, driver, message):
    assert any(message in warning for warning in judge_gpu(gpu(name, capability), driver).warnings)


@pytest.mark.parametrize(
    ("name", "capability", "driver"),
    [
        ("NVIDIA GeForce RTX 5090", "12.0", "570.86.10"),
        ("NVIDIA GeForce RTX 3090", "8.6", "470.82.01"),
        ("Tesla K40c", "3.5", "470.256.02"),
        ("Tesla T4", "7.5", "418.67"),
    ],
)
def test_matching_driver_versions_are_not_reported(name, capability, driver):
    assert judge_gpu(gpu(name, capability), driver).warnings == ()
