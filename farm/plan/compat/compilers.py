"""The compilers of a build: the names and numbers of MSVC, and the gcc that a base image gives."""

import re

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog.models import DebianRelease
from farm.plan.compat.stack import Stack
from farm.platforms.facts import facts

MSVC_BASE = 1900
"""`_MSC_VER` is 1900 plus the minor version of the toolset (learn.microsoft.com, predefined
macros).
"""


def toolset(msc_ver: int) -> str:
    """`14.29` for the `_MSC_VER` 1929."""
    return f"14.{msc_ver - MSVC_BASE}"


def msc_ver(toolset_: str) -> int:
    """1929 for the toolset `14.29`."""
    return MSVC_BASE + int(toolset_.split(".")[1])


def compiler(msc_ver_: int) -> str:
    """`MSVC 19.29 (VS 2019, toolset 14.29)`."""
    for name, product in catalog.msvc().products.items():
        if msc_ver(product.first) <= msc_ver_ <= msc_ver(product.last):
            return f"MSVC 19.{msc_ver_ - MSVC_BASE} (VS {name}, toolset {toolset(msc_ver_)})"
    return f"MSVC 19.{msc_ver_ - MSVC_BASE}"


def parse_msvc(text: str) -> int:
    """Read the `_MSC_VER` of a compiler.

    Args:
        text: A Visual Studio (`2022`: its newest toolset), a toolset (`14.29`), a compiler
            (`19.29.30148`) or `_MSC_VER` itself (`1929`).

    Raises:
        UsageError: It is none of them.
    """
    products = catalog.msvc().products
    short = text.lower().removeprefix("vs").strip()
    if short in products:
        return msc_ver(products[short].last)
    # Toolset 14.29, compiler 19.29 and _MSC_VER 1929 are the same: two digits tell.
    match = re.fullmatch(r"(?:14\.|19\.?)([1-5]\d)(?:\.\d{1,6})*", short, re.ASCII)
    if match:
        return MSVC_BASE + int(match[1])
    names = [f"{name} ({product.first} to {product.last})" for name, product in products.items()]
    raise UsageError(
        f"{text!r} is neither a Visual Studio nor an MSVC version",
        hint=f"known: {', '.join(names)}",
    )


def host_gcc(stack: Stack) -> int | None:
    """The gcc that compiles a stack; None: it is not built by gcc, or has no base image.

    It is the one that was asked about, else the newest of the base image that the CUDA toolkit
    takes. Where the toolkit takes none of them it is the oldest, and a rule says so.
    """
    if facts(stack.platform).compiler != "gcc" or stack.gcc is not None:
        return stack.gcc
    base = catalog.debian_releases().get(stack.base or "")
    if base is None:
        return None
    return newest_gcc(base, stack.cuda)


def newest_gcc(base: DebianRelease, cuda: str | None) -> int:
    """The base image's newest gcc that a CUDA takes, else its oldest."""
    toolkit = catalog.toolkits().get(cuda or "")
    accepted = [gcc for gcc in base.gccs if toolkit is None or gcc <= toolkit.gcc_max]
    return max(accepted, default=min(base.gccs))
