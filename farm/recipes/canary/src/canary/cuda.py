"""The CUDA part: what it was built for, and what this machine has. Nothing here needs a GPU driver
to be there.
"""

from __future__ import annotations

import warnings

from canary import _C


def device_count() -> int:
    """The number of devices; 0, with a warning that gives the reason, where a driver is there but
    unusable.
    """
    try:
        return _C.device_count()
    except RuntimeError as error:
        warnings.warn(str(error), stacklevel=2)
        return 0


def is_available() -> bool:
    return device_count() > 0


def get_device_name(device: int = 0) -> str:
    return _C.device_info(device)[0]


def get_device_capability(device: int = 0) -> tuple[int, int]:
    """Compute capability, (major, minor)."""
    _, major, minor = _C.device_info(device)
    return major, minor


def get_arch_list() -> list[str]:
    """Targets of the device code: `sm_35` is SASS, `compute_35` is PTX. Empty without CUDA."""
    return _C.build_info()[2]
