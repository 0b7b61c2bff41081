"""Which machine code runs on which GPU: the one place that why, detect, verify and smoke ask.

Source: CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility" and "Architecture-Specific and
Family-Specific Features"; the SMs of integrated GPUs are in `architectures.yaml`.
"""

from farm import catalog

MAJOR = 10
"""The SM number of a major version: sm_86 is 8 x 10 + 6."""


def sass_runs(code: int, card: int, suffix: str = "") -> bool:
    """True if machine code for sm_`code` runs on a card of sm_`card`.

    It runs on the same major version and the same or a higher minor one: 8.6 on 8.9, 8.0 on 8.6, 12.0 on 12.1. Code
    with the suffix `a` runs on its own SM alone; `f` (a family) keeps to the rule. Code of cards and of integrated
    GPUs (Tegra) does not run on each other.
    """
    if suffix == "a" or is_integrated(code) or is_integrated(card):
        return code == card
    return code // MAJOR == card // MAJOR and code <= card


def ptx_compiles(code: int, card: int, suffix: str = "") -> bool:
    """True if a driver can compile PTX for compute_`code` on a card: any card that is not older, without a suffix."""
    return not suffix and card >= code


def is_integrated(sm: int) -> bool:
    """True if an SM is that of an integrated GPU (Tegra), which sits in a 64-bit Arm chip alone."""
    return sm in catalog.architectures().tegra
