"""Which Python a wheel's tags are for, as pip decides it (PEP 425, PEP 384): by the library that pip itself uses."""

from functools import cache

from packaging.tags import compatible_tags, cpython_tags


def python_of(interpreter: str, abi: str) -> str:
    """`py311` for the wheel tags `cp311-cp311`, `py314t` for `cp314-cp314t`: only the ABI tells a free-threaded one."""
    return f"py{interpreter[2:]}{'t' if abi == f'{interpreter}t' else ''}"


def serves(interpreter: str, abi: str, python: str) -> bool:
    """True if `python` (`py311`, `py314t`) installs a wheel with these tags, on a platform that is the wheel's."""
    return (interpreter, abi) in _installed(python)


@cache
def _installed(python: str) -> frozenset[tuple[str, str]]:
    version = (3, int(python[3:].rstrip("t")))
    tags = {*cpython_tags(version, [f"cp{python[2:]}"], ["any"]), *compatible_tags(version, f"cp{python[2:]}", ["any"])}
    return frozenset((tag.interpreter, tag.abi) for tag in tags)
