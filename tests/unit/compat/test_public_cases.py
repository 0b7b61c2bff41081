"""Compatibility as public sources state it: each case has its source; none is a copy of the rules.

Sources: R = PyTorch's RELEASE.md; N = CUDA Toolkit release notes (drivers, dropped architectures); M = NVIDIA, Minor
Version Compatibility; D = NVIDIA, Data Center Drivers, architecture matrix; G = a question in a forum or an issue.
"""

import pytest

from farm.compat import check
from farm.compat.host import parse_msvc

ERRORS = [
    # variant, fields, the rule that says no
    ("sm120-avx2-py313", {"cuda": "12.8", "driver": "550.54", "gpu": 120}, "driver-gpu-old"),  # N: 12.8 brought 570
    ("sm120-avx2-py313", {"cuda": "12.8", "driver": "565.90", "gpu": 120}, "driver-gpu-old"),
    ("sm89-avx2-py311", {"cuda": "11.8", "driver": "470.82.01", "gpu": 89}, "driver-gpu-old"),  # N: 11.8 brought 520
    ("sm89-avx2-py311", {"cuda": "12.1", "driver": "515.65.01", "gpu": 89}, "driver-gpu-old"),
    ("sm86-avx2-py311", {"cuda": "11.8", "driver": "450.80.02", "gpu": 86}, "driver-gpu-old"),  # N: 11.1 brought 455
    ("sm90-avx512-py311", {"cuda": "11.8", "driver": "515.65.01", "gpu": 90}, "driver-gpu-old"),  # N: 11.8, 520
    ("sm100-avx512-py311", {"cuda": "12.8", "driver": "550.90", "gpu": 100}, "driver-gpu-old"),  # N: 12.8, 570
    ("sm80-avx2-py311", {"cuda": "11.3", "driver": "440.33", "gpu": 80}, "driver-gpu-old"),  # N: 11.0, 450
    ("sm35-avx-py311", {"cuda": "11.7", "driver": "535", "gpu": 35}, "driver-gpu"),  # D: 470 is the last for Kepler
    ("sm61-avx2-py311", {"cuda": "12.6", "driver": "590.44", "gpu": 61}, "driver-gpu"),  # D: 580 is the last for Pascal
    ("sm70-avx2-py311", {"cuda": "12.6", "driver": "595", "gpu": 70}, "driver-gpu"),
    ("sm75-avx2-py311", {"cuda": "13.0", "driver": "570.86", "gpu": 75}, "driver-cuda"),  # M: 13.x needs 580
    ("sm86-avx2-py311", {"cuda": "12.4", "driver": "520.61.05", "gpu": 86}, "driver-cuda"),  # M: 12.x needs 525
    ("sm86-avx2-py311", {"cuda": "13.2", "driver": "575", "gpu": 86}, "driver-cuda"),
    ("sm35-avx-py311", {"cuda": "12.0"}, "cuda-sm"),  # N: 12.0 dropped Kepler
    ("sm37-avx-py311", {"cuda": "12.6"}, "cuda-sm"),
    ("sm61-avx2-py311", {"cuda": "13.0"}, "cuda-sm"),  # N: 13.0 dropped Maxwell, Pascal and Volta
    ("sm70-avx2-py311", {"cuda": "13.2"}, "cuda-sm"),
    ("sm52-avx2-py311", {"cuda": "13.5"}, "cuda-sm"),
    ("sm89-avx2-py311", {"cuda": "11.7"}, "cuda-sm"),  # N: 11.8 brought Ada and Hopper
    ("sm90-avx2-py311", {"cuda": "11.6"}, "cuda-sm"),
    ("sm120-avx2-py311", {"cuda": "12.6"}, "cuda-sm"),  # N: 12.8 brought Blackwell
    ("sm103-avx512-py311", {"cuda": "12.8"}, "cuda-sm"),  # N: 12.9 brought sm_103 and sm_121
    ("sm121-armv9-py313", {"cuda": "12.8"}, "cuda-sm"),
    ("sm87-avx2-py310", {"cuda": "11.8"}, "gpu-machine"),  # NVIDIA: Orin has Arm Cortex-A78AE cores
    ("sm110-avx2-py313", {"cuda": "13.0"}, "gpu-machine"),  # NVIDIA: Thor has Arm Neoverse cores
    ("sm53-avx-py311", {"cuda": "10.2"}, "gpu-machine"),
    ("sm86-avx2-py313", {"cuda": "11.8", "torch": "2.0.1"}, "torch-python"),  # R: 2.0 is for 3.8 to 3.11
    ("sm86-avx2-py314", {"cuda": "12.8", "torch": "2.8.0"}, "torch-python"),  # R: 3.14 since 2.9
    ("sm86-avx2-py310", {"cuda": "13.0", "torch": "2.15.0"}, "torch-python"),  # names of the wheels of 2.15.0
    ("sm86-avx2-py39", {"cuda": "12.8", "torch": "2.9.1"}, "torch-python"),
    ("sm35-avx-py311", {"cuda": "11.7", "torch": "2.0.1", "cudnn": "8.9.7"}, "cudnn-sm"),  # cuDNN 8.8 left Kepler
    ("sm61-avx2-py311", {"cuda": "12.8", "torch": "2.8.0", "cudnn": "9.13.0"}, "cudnn-sm"),  # G: "SM < 7.5" since 9.11
    ("sm70-avx2-py311", {"cuda": "12.8", "torch": "2.11.0", "cudnn": "9.17.1"}, "cudnn-sm"),  # pytorch#172351
    ("sm75-avx2-py311", {"cuda": "13.0", "cudnn": "9.10.2"}, "cudnn-cuda"),  # PyPI: 9.12 is the first for CUDA 13
    ("sm86-avx2-py311", {"cuda": "11.6", "torch": "2.9.1"}, "torch-cuda"),  # cuda.cmake of 2.9: CUDA 12.0 or above
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.15.0"}, "torch-cuda"),  # cuda.cmake of 2.15: CUDA 12.6 or above
    ("sm61-avx2-py311", {"cuda": "10.2", "torch": "2.0.1"}, "torch-cuda"),
    ("sm89-avx2-py311", {"cuda": "12.1", "torch": "2.1.2", "arch_list": "9.0a"}, "arch-list"),  # G: unknown arch 9.0a
    ("sm120-avx2-py311", {"cuda": "12.8", "torch": "2.5.1", "arch_list": "12.0"}, "arch-list"),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "numpy": "2.0.2"}, "torch-numpy"),  # pytorch#132179
]
CLEAN = [
    (
        "sm86-avx2-py311",
        {"cuda": "12.1", "torch": "2.1.2", "cudnn": "8.9.2", "gpu": 89, "driver": "535.104.05"},
    ),  # 8.6 on 8.9
    ("sm80-avx2-py311", {"cuda": "11.7", "torch": "2.0.1", "gpu": 86, "driver": "515.65.01"}),
    ("sm120-armv9-py313", {"cuda": "12.8", "torch": "2.9.1", "gpu": 121, "driver": "580.95"}),  # 12.0 on 12.1
    ("sm100-avx512-py312", {"cuda": "12.8", "torch": "2.9.1", "gpu": 103, "driver": "580.65.06"}),
    (
        "sm61-avx2-py311",
        {"cuda": "12.6", "torch": "2.14.1", "cudnn": "9.10.2", "driver": "580.95.05"},
    ),  # R: 2.14, cu126
    ("sm70-avx512-py312", {"cuda": "12.6", "torch": "2.14.1", "cudnn": "9.10.2"}),
    ("sm52-avx2-py310", {"cuda": "12.6", "torch": "2.13.0", "cudnn": "9.10.2"}),
    ("sm75-avx2-py311", {"cuda": "13.0", "torch": "2.14.1", "cudnn": "9.24.0"}),  # R
    ("sm89-avx2-py314", {"cuda": "13.2", "torch": "2.14.0", "cudnn": "9.24.0"}),
    ("sm90-avx512-py314", {"cuda": "13.2", "torch": "2.15.0", "cudnn": "9.26.0", "driver": "595.71.05"}),
    ("sm35-avx-py39", {"cuda": "11.4", "torch": "1.12.1", "cudnn": "8.3.2", "driver": "470.82.01"}),
    ("sm37-avx2-py310", {"cuda": "11.8", "torch": "2.0.1", "cudnn": "8.7.0", "driver": "470.256.02"}),
    ("sm86-avx2-py311", {"cuda": "11.3", "torch": "1.12.1", "driver": "465.19.01", "python": "py310"}),
    ("sm75-avx2-py311", {"cuda": "12.1", "torch": "2.3.1", "cudnn": "8.9.2"}),
    ("sm110-armv9-py313", {"cuda": "13.0", "torch": "2.14.1", "gpu": 110}),
    ("sm87-armv8_2-py310", {"cuda": "12.6", "torch": "2.6.0", "gpu": 87}),
]
LIMITED = [
    # M: "minor version compatibility": it runs, with a limited feature set
    ("sm86-avx2-py311", {"cuda": "11.8", "driver": "470.82.01", "gpu": 86}),
    ("sm75-avx2-py311", {"cuda": "12.8", "driver": "535.104.05", "gpu": 75}),
    ("sm90-avx512-py312", {"cuda": "12.8", "driver": "550.54.15", "gpu": 90}),
    ("sm89-avx2-py312", {"cuda": "13.2", "driver": "580.65.06", "gpu": 89}),
]


def rules(stack, variant, platform="linux", **fields):
    python = fields.pop("python", None)
    name = "-".join([*variant.split("-")[:2], python]) if python else variant
    return {reason.rule: reason.severity for reason in check(stack(name, platform, **fields))}


@pytest.mark.parametrize(("variant", "fields", "rule"), ERRORS)
def test_no_with_its_rule(stack, variant, fields, rule):
    assert rules(stack, variant, **fields).get(rule) == "error"


@pytest.mark.parametrize(("variant", "fields"), CLEAN)
def test_yes(stack, variant, fields):
    assert "error" not in rules(stack, variant, **fields).values()


@pytest.mark.parametrize(("variant", "fields"), LIMITED)
def test_minor_version_compatibility(stack, variant, fields):
    found = rules(stack, variant, **fields)
    assert "error" not in found.values()
    assert "driver-limited" in found


def test_windows_needs_580_for_cuda_13(stack):
    assert rules(stack, "sm86-avx2-py312", "windows", cuda="13.0", driver="572.16", gpu=86)["driver-cuda"] == "error"
    assert "driver-cuda" not in rules(stack, "sm86-avx2-py312", "windows", cuda="13.0", driver="581.15", gpu=86)


def test_visual_studio_2026_from_cuda_13_2_on(stack):
    """crt/host_config.h: _MSC_VER below 1960 since 13.2, below 1950 before."""
    msvc = parse_msvc("2026")
    assert rules(stack, "sm86-avx2-py312", "windows", cuda="13.0", msvc=msvc)["cuda-msvc"] == "error"
    assert "cuda-msvc" not in rules(stack, "sm86-avx2-py312", "windows", cuda="13.2", msvc=msvc)


def test_mkl_is_not_in_linux_images(stack):
    assert rules(stack, "cpu-avx2-py311", blas="mkl")["blas"] == "error"
    assert "blas" not in rules(stack, "cpu-avx2-py311", "windows", blas="mkl")
