"""Versions of this build: `cuda` is None in a build without CUDA."""

from canary import _C

__version__, cuda = _C.build_info()[:2]
