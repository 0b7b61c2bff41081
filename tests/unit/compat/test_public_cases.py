"""Compatibility as public sources state it: each case has its source; none is a copy of the rules.

Sources: R = PyTorch's RELEASE.md; N = CUDA Toolkit release notes (drivers, dropped architectures); M = NVIDIA, Minor
Version Compatibility; D = NVIDIA, Data Center Drivers, architecture matrix; G = a question in a forum or an issue;
H = crt/host_config.h of the toolkit ("unsupported GNU version", "unsupported Microsoft Visual Studio version").
"""

import pytest

from farm import catalog
from farm.plan.compat import check
from farm.plan.compat.host import parse_msvc

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
    ("sm86-avx2-py311", {"cuda": "12.1", "torch": "2.2.2", "numpy": "2.0.2"}, "torch-numpy"),
    ("sm86-avx2-py313", {"cuda": "12.4", "torch": "2.5.1", "numpy": "1.26.4"}, "numpy-python"),  # names of its wheels
    ("sm86-avx2-py311", {"cuda": "12.1", "torch": "2.4.1", "gcc": 13}, "cuda-gcc"),  # G: pytorch#136556
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "gcc": 12}, "cuda-gcc"),  # G: ninja#2595
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "gcc": 14}, "cuda-gcc"),  # H
    ("sm86-avx2-py311", {"cuda": "12.8", "torch": "2.7.1", "gcc": 15}, "cuda-gcc"),  # H
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "gcc": 8}, "torch-gcc"),  # pytorch#120126: gcc 9
    ("sm86-avx2-py311", {"cuda": "13.0", "torch": "2.15.0", "gcc": 10}, "torch-gcc"),  # README: C++20, gcc 11.3.0
    ("sm86-avx2-py311", {"cuda": "13.0", "torch": "2.12.0", "gcc": 9}, "torch-gcc"),
    ("sm86-avx2-py312", {"cuda": "12.1", "torch": "2.1.2"}, "torch-python"),  # R: 3.12 since 2.2
    ("sm86-avx2-py313", {"cuda": "12.4", "torch": "2.4.1"}, "torch-python"),  # R: 3.13 since 2.5
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.4.1", "cudnn": "8.3.2"}, "torch-cudnn"),  # pytorch#118193: 8.5
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.3.1", "cudnn": "8.3.2"}, "torch-cudnn"),
    ("sm86-avx2-py311", {"cuda": "13.0", "torch": "2.9.1", "cudnn": "8.9.7"}, "cudnn-cuda"),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.6.0", "cudnn": "9.13.0"}, "cudnn-cuda"),
    ("sm120-avx2-py311", {"cuda": "12.6", "torch": "2.6.0", "arch_list": "12.0"}, "cuda-sm"),  # G: pytorch#150733
    ("sm61-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "arch_list": "3.5;6.1"}, "cuda-sm"),
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "arch_list": "9.0a"}, "arch-list-gpu"),
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "arch_list": "All"}, "arch-list"),
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "arch_list": "Auto"}, "arch-list"),
    ("sm100-avx2-py312", {"cuda": "12.9", "torch": "2.9.1", "arch_list": "10.0a", "gpu": 103}, "arch-list-gpu"),
    ("sm86-avx2-py311", {"cuda": "12.1", "torch": "2.1.2", "gpu": 80}, "arch-list-gpu"),  # G: no kernel image, A100
    ("sm75-avx2-py311", {"cuda": "12.1", "torch": "2.1.2", "gpu": 86}, "arch-list-gpu"),
    ("sm61-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "gpu": 60}, "arch-list-gpu"),
    ("sm72-armv8_2-py310", {"cuda": "13.0"}, "cuda-sm"),  # N: 13.0 dropped Xavier
    ("sm110-armv9-py312", {"cuda": "12.9"}, "cuda-sm"),  # N: sm_110 is the name since 13.0
    ("sm75-avx2-py311", {"torch": "2.6.0", "switches": frozenset({"USE_FLASH_ATTENTION"})}, "switch-flash-attention"),
    ("sm86-avx2-py311", {"cuda": "12.0", "gcc": 13}, "cuda-gcc"),  # H, this and the next four
    ("sm86-avx2-py311", {"cuda": "12.6", "gcc": 14}, "cuda-gcc"),
    ("sm86-avx2-py313", {"cuda": "13.0", "gcc": 16}, "cuda-gcc"),
    ("sm61-avx2-py39", {"cuda": "10.2", "gcc": 9}, "cuda-gcc"),
    ("sm86-avx2-py39", {"cuda": "11.3", "gcc": 11}, "cuda-gcc"),
    ("sm75-avx2-py39", {"cuda": "10.2", "driver": "418.40.04", "gpu": 75}, "driver-cuda"),  # N: 10.2, 440.33
    ("sm70-avx512-py312", {"cuda": "12.8", "driver": "590.48.01", "gpu": 70}, "driver-gpu"),  # D: 580 is the last
    ("sm37-avx-py310", {"cuda": "11.4", "driver": "495.44", "gpu": 37}, "driver-gpu"),  # D: 470 is the last
    ("sm80-avx2-py311", {"cuda": "11.8", "driver": "450.51.06", "gpu": 80}, "driver-cuda"),  # M: 11.x needs 450.80.02
    ("sm103-avx512-py313", {"cuda": "12.9", "driver": "570.133.20", "gpu": 103}, "driver-gpu-old"),  # N: 12.9, 575
    ("sm121-armv9-py313", {"cuda": "13.0", "driver": "570.86.10", "gpu": 121}, "driver-cuda"),
    ("sm86-avx2-py311", {"torch": "1.12.1", "cuda": "11.6"}, "torch-python"),  # R: 1.12 is for 3.7 to 3.10
    ("sm120-avx2-py311", {"torch": "2.1.2", "cuda": "12.8"}, "arch-list"),
    ("sm90-avx2-py312", {"torch": "2.7.1", "cuda": "12.8", "arch_list": "9.0a+PTX", "gpu": 120}, "arch-list-gpu"),
    ("sm70-armv8_2-py310", {"torch": "2.0.1", "cuda": "11.8", "arch_list": "7.0", "gpu": 72}, "arch-list-gpu"),  # Tegra
    ("sm80-armv8_2-py310", {"torch": "2.1.2", "cuda": "12.1", "arch_list": "8.0", "gpu": 87}, "arch-list-gpu"),
    ("sm120-armv9-py313", {"torch": "2.9.1", "cuda": "13.0", "arch_list": "12.0", "gpu": 110}, "arch-list-gpu"),
    ("sm100-avx2-py313", {"torch": "2.9.1", "cuda": "13.0", "arch_list": "10.0", "gpu": 120}, "arch-list-gpu"),
    ("sm103-avx2-py313", {"torch": "2.9.1", "cuda": "13.0", "arch_list": "10.3", "gpu": 100}, "arch-list-gpu"),
    ("sm52-avx2-py311", {"cuda": "11.8", "arch_list": "5.2+PTX", "gpu": 61, "driver": "470.256"}, "ptx-driver"),
    ("cpu-avx2-py311", {"torch": "2.0.1", "numpy": "1.19.5"}, "numpy-python"),
    ("sm86-avx-py311", {"torch": "2.6.0", "cuda": "12.4", "switches": frozenset({"USE_FBGEMM"})}, "switch-fbgemm"),
    ("sm89-avx2-py310", {"torch": "1.12.1", "cuda": "11.4"}, "cuda-sm"),
    ("sm90-avx2-py310", {"torch": "2.0.1", "cuda": "11.7", "arch_list": "9.0"}, "cuda-sm"),
    ("sm75-avx2-py311", {"cuda": "11.8", "gpu": 75, "driver": "418.226.00"}, "driver-cuda"),
    ("sm80-avx2-py311", {"cuda": "12.0", "gpu": 80, "driver": "515.105.01"}, "driver-cuda"),
    ("sm89-avx2-py311", {"cuda": "13.0", "gpu": 89, "driver": "575.57.08"}, "driver-cuda"),
    ("sm50-avx2-py311", {"cuda": "12.6", "gpu": 50, "driver": "590.48.01"}, "driver-gpu"),
    ("sm60-avx2-py311", {"cuda": "13.0", "gpu": 60}, "cuda-sm"),
    ("sm120-avx2-py312", {"cuda": "13.0", "gpu": 120, "driver": "570.172.08"}, "driver-cuda"),
    ("sm80-avx2-py312", {"cuda": "12.4", "gpu": 80, "driver": "470.223.02"}, "driver-cuda"),
    ("sm61-avx2-py310", {"cuda": "11.7", "torch": "1.13.1", "gpu": 61, "driver": "390.157"}, "driver-cuda"),
    ("sm86-avx2-py39", {"cuda": "12.8", "torch": "2.9.0"}, "torch-python"),
    ("sm86-avx2-py312", {"cuda": "11.8", "torch": "2.0.1"}, "torch-python"),
    ("cpu-avx2-py313", {"torch": "2.4.1"}, "torch-python"),
    ("cpu-avx2-py312", {"torch": "2.1.0"}, "torch-python"),
    ("sm50-avx2-py311", {"cuda": "12.6", "torch": "2.9.1", "cudnn": "9.11.0"}, "cudnn-sm"),
    ("sm60-avx2-py311", {"cuda": "12.8", "torch": "2.9.1", "cudnn": "9.15.1"}, "cudnn-sm"),
    ("sm37-avx-py311", {"cuda": "11.8", "torch": "2.0.1", "cudnn": "8.8.0"}, "cudnn-sm"),
    ("sm86-avx2-py311", {"cuda": "12.3", "gcc": 13}, "cuda-gcc"),
    ("sm86-avx2-py311", {"cuda": "12.2", "gcc": 13}, "cuda-gcc"),
    ("sm86-avx2-py311", {"cuda": "12.9", "gcc": 15}, "cuda-gcc"),
    ("sm86-avx2-py311", {"cuda": "11.6", "gcc": 12}, "cuda-gcc"),
    ("sm86-avx2-py311", {"cuda": "12.1", "torch": "2.1.2", "arch_list": "Turing"}, "arch-list-gpu"),
    ("sm35-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "arch_list": "3.5,6.1"}, "arch-list"),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "arch_list": "sm_86"}, "arch-list"),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "arch_list": "86"}, "arch-list"),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "arch_list": "8.9", "gpu": 86}, "arch-list-gpu"),
    ("sm87-armv8_2-py310", {"cuda": "12.6", "torch": "2.6.0", "arch_list": "8.6", "gpu": 87}, "arch-list-gpu"),
    ("cpu-avx2-py313", {"torch": "2.6.0", "numpy": "2.0.2"}, "numpy-python"),
    ("cpu-avx2-py312", {"torch": "2.6.0", "numpy": "1.25.2"}, "numpy-python"),
    ("cpu-avx2-py39", {"torch": "2.6.0", "numpy": "2.1.3"}, "numpy-python"),
    ("cpu-avx2-py310", {"torch": "2.6.0", "numpy": "2.3.0"}, "numpy-python"),
    ("cpu-avx2-py314", {"torch": "2.9.1", "numpy": "2.2.6"}, "numpy-python"),
    (
        "sm37-avx2-py311",
        {"cuda": "11.8", "torch": "2.0.1", "switches": frozenset({"USE_MEM_EFF_ATTENTION"})},
        "switch-mem-eff-attention",
    ),
    ("sm90-avx512-py311", {"cuda": "11.8", "torch": "2.5.1", "arch_list": "9.0a"}, "cuda-sm"),  # ptxas --help of 11.8
    ("sm100-avx2-py312", {"cuda": "12.8", "torch": "2.9.1", "arch_list": "10.0f"}, "cuda-sm"),  # ptxas --help of 12.8
    ("sm120-avx2-py312", {"cuda": "12.8", "torch": "2.9.1", "arch_list": "12.0f"}, "cuda-sm"),
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "arch_list": "8.6a"}, "cuda-sm"),
    ("sm90-avx2-py312", {"cuda": "12.9", "torch": "2.9.1", "arch_list": "9.0f"}, "cuda-sm"),
]
WINDOWS_ERRORS = [
    ("sm86-avx2-py311", {"cuda": "12.1", "torch": "2.1.2", "msvc": "14.40"}, "cuda-msvc"),  # H: below 1940
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "msvc": "14.44"}, "cuda-msvc"),
    ("sm86-avx2-py313", {"cuda": "12.4", "torch": "2.5.1"}, "torch-python"),  # R: 3.13 on Windows since 2.6
    ("sm120-avx2-py312", {"cuda": "12.8", "driver": "566.36", "gpu": 120}, "driver-gpu-old"),
    ("sm86-avx2-py312", {"cuda": "13.0", "driver": "576.57", "gpu": 86}, "driver-cuda"),
    ("sm86-avx2-py311", {"cuda": "12.4", "switches": frozenset({"USE_FLASH_ATTENTION"})}, "switch-flash-attention"),
    ("sm61-avx2-py311", {"cuda": "13.0"}, "cuda-sm"),
    ("sm61-avx2-py39", {"cuda": "10.2", "msvc": "2022"}, "cuda-msvc"),  # H
    ("sm86-avx2-py311", {"cuda": "13.0", "msvc": "14.16"}, "cuda-msvc"),  # H: VS 2017 was dropped
    ("sm89-avx2-py311", {"cuda": "11.8", "driver": "516.94", "gpu": 89}, "driver-gpu-old"),  # N: 11.8, 520
    ("sm75-avx2-py311", {"cuda": "11.8", "driver": "451.82", "gpu": 75}, "driver-cuda"),  # M: 11.x needs 452.39
    ("sm75-avx2-py311", {"cuda": "12.1", "driver": "516.94", "gpu": 75}, "driver-cuda"),  # M: 12.x needs 528.33
    ("sm120-avx2-py312", {"cuda": "12.8", "gpu": 120, "driver": "561.09"}, "driver-gpu-old"),
    ("sm35-avx-py310", {"cuda": "11.4", "gpu": 35, "driver": "496.13"}, "driver-gpu"),
    ("sm61-avx2-py311", {"cuda": "12.6", "gpu": 61, "driver": "591.44"}, "driver-gpu"),
    ("sm70-avx512-py311", {"cuda": "12.6", "gpu": 70, "driver": "595.79"}, "driver-gpu"),
    ("sm89-avx2-py313", {"cuda": "13.0", "gpu": 89, "driver": "577.00"}, "driver-cuda"),
    ("sm86-avx2-py311", {"cuda": "11.7", "torch": "1.13.1"}, "torch-python"),
    ("sm86-avx2-py311", {"cuda": "11.8", "msvc": "14.40"}, "cuda-msvc"),
    ("sm86-avx2-py313", {"cuda": "12.9", "msvc": "2026"}, "cuda-msvc"),
]
WINDOWS_CLEAN = [
    ("sm86-avx2-py39", {"cuda": "11.6", "msvc": "14.31"}),  # H: the first for VS 2022
    ("sm86-avx2-py311", {"cuda": "12.8", "msvc": "14.29"}),
    ("sm89-avx2-py311", {"cuda": "11.8", "driver": "528.49", "gpu": 89}),
    ("sm86-avx2-py313", {"cuda": "13.0", "driver": "581.15", "gpu": 86}),
    ("sm61-avx2-py312", {"cuda": "12.6", "driver": "576.02", "gpu": 61}),
    ("sm35-avx-py310", {"cuda": "11.4", "driver": "474.30", "gpu": 35}),
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "msvc": "14.40"}),
    ("sm86-avx2-py311", {"cuda": "11.7", "torch": "2.0.1", "msvc": "2019"}),
    ("sm86-avx2-py313", {"cuda": "12.4", "torch": "2.6.0"}),
    ("sm89-avx2-py312", {"cuda": "12.8", "torch": "2.8.0", "driver": "566.36", "gpu": 89}),  # M: limited
    ("sm120-avx2-py312", {"cuda": "12.8", "torch": "2.7.1", "driver": "572.16", "gpu": 120}),
    ("sm61-avx2-py311", {"cuda": "11.8", "torch": "2.1.2", "driver": "473.47", "gpu": 61}),
    ("sm120-avx2-py312", {"cuda": "12.9", "gpu": 120, "driver": "576.02"}),
    ("sm86-avx2-py311", {"cuda": "11.8", "gpu": 86, "driver": "522.06"}),
    ("sm86-avx2-py311", {"cuda": "11.7", "gpu": 86, "driver": "516.01"}),
    ("sm86-avx2-py311", {"cuda": "12.0", "gpu": 86, "driver": "527.41"}),
    ("sm35-avx-py310", {"cuda": "11.4", "gpu": 35, "driver": "475.14"}),
    ("sm61-avx2-py311", {"cuda": "12.6", "gpu": 61, "driver": "581.80"}),
    ("sm61-avx2-py311", {"cuda": "12.6", "gpu": 61, "driver": "582.28"}),
    ("sm75-avx2-py313", {"cuda": "13.0", "gpu": 75, "driver": "580.88"}),
    ("sm86-avx2-py312", {"cuda": "12.1", "torch": "2.2.2"}),
    ("sm86-avx2-py314", {"cuda": "12.8", "torch": "2.9.1"}),
    ("sm86-avx2-py311", {"cuda": "11.8", "msvc": "14.34"}),
    ("sm86-avx2-py311", {"cuda": "12.4", "msvc": "14.44"}),
    ("sm86-avx2-py311", {"cuda": "12.1", "msvc": "14.39"}),
    ("sm86-avx2-py310", {"cuda": "11.6", "msvc": "2017"}),
    ("sm86-avx2-py311", {"cuda": "12.6", "msvc": "2017"}),
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
    ("sm87-armv8_2-py312", {"cuda": "13.0", "torch": "2.10.0", "gpu": 87}),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "gcc": 11}),  # H
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "gcc": 13}),
    ("sm86-avx2-py311", {"cuda": "12.8", "torch": "2.7.1", "gcc": 14}),
    ("sm86-avx2-py311", {"cuda": "13.0", "torch": "2.9.1", "gcc": 15}),
    ("sm86-avx2-py311", {"cuda": "13.0", "torch": "2.15.0", "gcc": 11}),
    ("sm86-avx2-py312", {"cuda": "12.1", "torch": "2.2.0"}),
    ("sm86-avx2-py313", {"cuda": "12.4", "torch": "2.5.0"}),
    ("sm86-avx2-py39", {"cuda": "12.8", "torch": "2.8.0"}),
    ("sm86-avx2-py311", {"cuda": "12.1", "torch": "2.3.0", "numpy": "2.0.2"}),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.4.0", "cudnn": "9.1.0"}),
    ("sm86-avx2-py311", {"cuda": "13.0", "torch": "2.9.1", "driver": "580.65.06"}),
    ("sm75-avx2-py311", {"cuda": "12.1", "torch": "2.1.2", "gpu": 86, "arch_list": "7.5+PTX", "driver": "535.104.05"}),
    ("sm60-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "gpu": 61}),
    ("sm100-avx2-py312", {"cuda": "12.9", "torch": "2.9.1", "arch_list": "10.0f", "gpu": 103}),
    ("sm120-avx2-py311", {"cuda": "12.8", "torch": "2.7.1", "arch_list": "6.1;12.0"}),
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "arch_list": "Ampere"}),
    ("sm121-armv9-py312", {"cuda": "13.0", "torch": "2.9.1", "driver": "580.95.05"}),
    ("sm70-avx2-py313", {"cuda": "12.8", "torch": "2.9.1", "cudnn": "9.10.2", "driver": "580.95.05"}),
    ("sm86-avx2-py311", {"cuda": "12.0", "gcc": 12}),  # H
    ("sm70-avx512-py312", {"cuda": "12.8", "driver": "580.82.07", "gpu": 70}),
    ("sm52-avx2-py312", {"cuda": "12.6", "driver": "580.82.07", "gpu": 52}),
    ("sm37-avx-py310", {"cuda": "11.4", "driver": "470.256.02", "gpu": 37}),
    ("sm90-avx512-py311", {"cuda": "11.8", "driver": "520.61.05", "gpu": 90}),
    ("sm120-avx2-py312", {"cuda": "12.8", "driver": "570.86.16", "gpu": 120}),
    ("sm86-avx2-py311", {"torch": "1.13.1", "cuda": "11.7"}),
    ("sm86-avx2-py313", {"torch": "2.6.0", "cuda": "11.8"}),
    ("sm86-avx2-py312", {"torch": "2.7.1", "cuda": "12.8", "arch_list": "8.6+PTX", "gpu": 120, "driver": "570.133"}),
    ("sm70-avx2-py311", {"torch": "2.0.1", "cuda": "11.8", "arch_list": "7.0", "gpu": 75}),
    ("sm90-avx512-py312", {"torch": "2.6.0", "cuda": "12.4", "switches": frozenset({"USE_FLASH_ATTENTION"})}),
    ("sm86-avx2-py313t", {"cuda": "12.6", "torch": "2.7.1"}),  # names of the published wheels, this and the next three
    ("sm86-avx2-py313t", {"cuda": "12.8", "torch": "2.8.0"}),
    ("sm86-avx2-py314t", {"cuda": "12.8", "torch": "2.9.1"}),
    ("sm86-avx2-py314t", {"cuda": "13.0", "torch": "2.10.0"}),
    ("sm86-avx2-py311", {"torch": "2.6.0", "cuda": "12.4", "switches": frozenset({"USE_FLASH_ATTENTION"})}),
    ("sm89-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "gpu": 89, "driver": "525.60.11"}),
    ("sm103-avx512-py312", {"cuda": "12.9", "gpu": 103, "driver": "575.51.03"}),
    ("sm86-avx2-py311", {"cuda": "12.1", "gpu": 86, "driver": "530.30.02"}),
    ("sm86-avx2-py311", {"cuda": "12.6", "gpu": 86, "driver": "535.183.01"}),
    ("sm100-avx512-py312", {"cuda": "13.0", "gpu": 100, "driver": "580.65.06"}),
    ("sm75-avx2-py39", {"cuda": "10.2", "gpu": 75, "driver": "440.33.01"}),
    ("sm50-avx2-py311", {"cuda": "12.6", "gpu": 50, "driver": "580.119.02"}),
    ("sm80-avx2-py39", {"cuda": "11.3", "gpu": 80, "driver": "450.80.02"}),
    ("sm120-avx2-py312", {"cuda": "12.8", "gpu": 120, "driver": "570.86.15"}),
    ("sm90-avx512-py312", {"cuda": "12.4", "gpu": 90, "driver": "525.147.05"}),
    ("sm86-avx2-py310", {"cuda": "11.6", "torch": "1.13.1", "gpu": 86, "driver": "470.256.02"}),
    ("sm86-avx2-py311", {"cuda": "11.7", "torch": "1.13.1"}),
    ("sm86-avx2-py314", {"cuda": "12.8", "torch": "2.9.0"}),
    ("cpu-avx2-py310", {"torch": "2.11.0"}),
    ("sm120-avx2-py312", {"cuda": "12.8", "torch": "2.7.0"}),
    ("sm121-armv9-py312", {"cuda": "13.0", "torch": "2.9.0"}),
    ("sm89-avx2-py310", {"cuda": "11.8", "torch": "2.0.0", "arch_list": "8.9"}),
    ("sm89-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "cudnn": "8.7.0"}),
    ("sm120-avx2-py312", {"cuda": "12.8", "torch": "2.7.1", "cudnn": "9.7.1"}),
    ("sm50-avx2-py311", {"cuda": "12.6", "torch": "2.9.1", "cudnn": "9.10.2"}),
    ("sm35-avx-py311", {"cuda": "11.8", "torch": "2.0.1", "cudnn": "8.7.0"}),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.7.1", "cudnn": "9.1.0"}),
    ("sm86-avx2-py311", {"cuda": "12.4", "torch": "2.3.1", "cudnn": "8.9.7"}),
    ("sm86-avx2-py311", {"cuda": "13.0", "torch": "2.9.1", "cudnn": "9.13.0"}),
    ("sm86-avx2-py311", {"cuda": "12.5", "gcc": 13}),
    ("sm86-avx2-py311", {"cuda": "12.9", "gcc": 14}),
    ("sm86-avx2-py311", {"cuda": "11.7", "gcc": 11}),
    ("sm86-avx2-py311", {"cuda": "12.1", "gcc": 12}),
    ("sm86-avx2-py39", {"cuda": "11.3", "gcc": 10}),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "arch_list": "8.6+PTX", "gpu": 89}),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "arch_list": "5.2 7.5 8.6"}),
    ("sm120-avx2-py312", {"cuda": "12.8", "torch": "2.7.1", "arch_list": "12.0a"}),
    ("sm86-avx2-py311", {"cuda": "12.1", "torch": "2.1.2", "arch_list": "8.6;8.9;9.0"}),
    ("sm75-avx2-py311", {"cuda": "12.1", "torch": "2.1.2", "arch_list": "Turing"}),
    ("sm61-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "arch_list": "Pascal"}),
    ("sm90-avx2-py311", {"cuda": "12.4", "torch": "2.5.1", "arch_list": "9.0a", "gpu": 90}),
    ("sm86-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "arch_list": "8.0", "gpu": 86}),
    ("sm75-avx2-py311", {"cuda": "11.8", "torch": "2.0.1", "arch_list": "7.0", "gpu": 75}),
    ("cpu-avx2-py314", {"torch": "2.9.1", "numpy": "2.3.3"}),
    ("cpu-avx2-py312", {"torch": "2.6.0", "numpy": "1.26.4"}),
    ("cpu-avx2-py311", {"torch": "2.0.1", "numpy": "1.26.4"}),
    ("sm80-avx2-py311", {"cuda": "12.1", "torch": "2.2.2", "switches": frozenset({"USE_FLASH_ATTENTION"})}),
    ("sm50-avx2-py311", {"cuda": "12.4", "torch": "2.6.0", "switches": frozenset({"USE_MEM_EFF_ATTENTION"})}),
    ("sm120-avx2-py312", {"cuda": "12.9", "torch": "2.9.1", "arch_list": "12.0f"}),  # ptxas --help of 12.9
    ("sm90-avx2-py312", {"cuda": "12.1", "torch": "2.5.1", "arch_list": "9.0a"}),
]
LIMITED = [
    # M: "minor version compatibility": it runs, with a limited feature set
    ("sm86-avx2-py311", {"cuda": "11.8", "driver": "470.82.01", "gpu": 86}),
    ("sm75-avx2-py311", {"cuda": "12.8", "driver": "535.104.05", "gpu": 75}),
    ("sm90-avx512-py312", {"cuda": "12.8", "driver": "550.54.15", "gpu": 90}),
    ("sm89-avx2-py312", {"cuda": "13.2", "driver": "580.65.06", "gpu": 89}),
    ("sm86-avx2-py311", {"cuda": "12.9", "driver": "570.86", "gpu": 86}),
    ("sm75-avx2-py311", {"cuda": "11.8", "driver": "460.91.03", "gpu": 75}),  # G: trak#68
    ("sm70-avx2-py310", {"cuda": "11.7", "driver": "510.47.03", "gpu": 70}),  # G: GeneFacePlusPlus#192
    ("sm75-avx2-py312", {"cuda": "12.8", "driver": "525.60.13", "gpu": 75}),
    ("sm80-avx2-py311", {"cuda": "11.8", "driver": "450.80.02", "gpu": 80}),
    ("sm80-avx2-py311", {"cuda": "11.8", "driver": "450.80", "gpu": 80}),  # as people write 450.80.02
    ("sm90-avx512-py312", {"cuda": "12.8", "driver": "525.60.13", "gpu": 90}),
]
DRIVERS = {
    # N, table 3 (13.2 Update 2): the row of the release that the catalogue has; 13.0: of its GA, whose PTX is the same
    "10.2": ("440.33", "441.22"), "11.3": ("465.19.01", "465.89"), "11.4": ("470.82.01", "472.50"),
    "11.6": ("510.47.03", "511.65"), "11.7": ("515.48.07", "516.31"), "11.8": ("520.61.05", "520.06"),
    "12.0": ("525.85.12", "528.33"), "12.1": ("530.30.02", "531.14"), "12.2": ("535.104.05", "537.13"),
    "12.3": ("545.23.08", "546.12"), "12.4": ("550.54.15", "551.78"), "12.5": ("555.42.06", "555.85"),
    "12.6": ("560.35.05", "561.17"), "12.8": ("570.124.06", "572.61"), "12.9": ("575.57.08", "576.57"),
    "13.0": ("580.65.06", None), "13.1": ("590.48.01", None), "13.2": ("595.58.03", None),
}  # fmt: skip


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


@pytest.mark.parametrize(("variant", "fields", "rule"), WINDOWS_ERRORS)
def test_no_on_windows(stack, variant, fields, rule):
    fields = fields | ({"msvc": parse_msvc(fields["msvc"])} if "msvc" in fields else {})
    assert rules(stack, variant, "windows", **fields).get(rule) == "error"


@pytest.mark.parametrize(("variant", "fields"), WINDOWS_CLEAN)
def test_yes_on_windows(stack, variant, fields):
    fields = fields | ({"msvc": parse_msvc(fields["msvc"])} if "msvc" in fields else {})
    assert "error" not in rules(stack, variant, "windows", **fields).values()


@pytest.mark.parametrize(("cuda", "drivers"), DRIVERS.items())
def test_drivers_are_those_of_nvidias_table(cuda, drivers):
    toolkit = catalog.toolkits()[cuda]
    assert (toolkit.driver_linux, toolkit.driver_windows) == drivers


def test_windows_needs_580_for_cuda_13(stack):
    assert rules(stack, "sm86-avx2-py312", "windows", cuda="13.0", driver="572.16", gpu=86)["driver-cuda"] == "error"
    assert "driver-cuda" not in rules(stack, "sm86-avx2-py312", "windows", cuda="13.0", driver="581.15", gpu=86)


def test_visual_studio_2026_from_cuda_13_2_on(stack):
    """crt/host_config.h: _MSC_VER below 1960 since 13.2, below 1950 before."""
    msvc = parse_msvc("2026")
    assert rules(stack, "sm86-avx2-py312", "windows", cuda="13.0", msvc=msvc)["cuda-msvc"] == "error"
    assert "cuda-msvc" not in rules(stack, "sm86-avx2-py312", "windows", cuda="13.2", msvc=msvc)


def test_mkl_is_not_in_linux_images(stack):
    assert rules(stack, "cpu-avx2-py311", words=(("blas", "mkl"),))["blas"] == "error"
    assert "blas" not in rules(stack, "cpu-avx2-py311", "windows", words=(("blas", "mkl"),))
