"""cuDNN and cuBLAS inside a wheel, and the GPUs that they themselves support.

They come from NVIDIA as they are, and their releases drop GPUs without changing the CUDA version they are for: a
wheel whose own kernels are right may still fail in its first convolution.
"""

import posixpath
from collections.abc import Iterable
from fnmatch import fnmatchcase

from farm.wheel.arch import order
from farm.wheel.library import Library
from farm.wheel.models import Frozen
from farm.wheel.policy import defaults

_COMPONENTS = {"cuDNN": "cudnn", "cuBLAS": "cublas"}  # to lists of `verify_defaults.yaml`


class Component(Frozen):
    """One of NVIDIA's components as it is in a wheel (not one that is linked into another library).

    Attributes:
        name: `cuDNN` or `cuBLAS`.
        libraries: Its members; cuDNN 8 and 9 are split into several.
        sass: Architectures (35 for sm_35) that each of them with device code has machine code for. A GPU runs code of
            its own major version and an equal or lower minor one.
        ptx: The same of PTX.
    """

    name: str
    libraries: tuple[str, ...]
    sass: tuple[int | str, ...]
    ptx: tuple[int | str, ...]


def components(libraries: Iterable[Library]) -> tuple[Component, ...]:
    """The components that are there."""
    found = []
    for name, patterns in _COMPONENTS.items():
        its = [library for library in libraries if is_part(library, patterns)]
        if its:
            members = tuple(library.path for library in its)
            found.append(Component(name=name, libraries=members, sass=_common(its, "sass"), ptx=_common(its, "ptx")))
    return tuple(found)


def is_part(library: Library, patterns: str) -> bool:
    """True if a library's file name fits the list of `verify_defaults.yaml` with this key."""
    name = posixpath.basename(library.path)
    return any(fnmatchcase(name, pattern) for pattern in defaults(patterns))


def _common(libraries: list[Library], kind: str) -> tuple[int | str, ...]:
    sets = [
        {sm for group in library.fatbins for sm in getattr(group, kind)} for library in libraries if library.fatbins
    ]
    # Of all parts: a GPU needs code in each part that it calls.
    return tuple(sorted(set.intersection(*sets), key=order)) if sets else ()
