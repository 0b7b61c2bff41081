"""What dyld, the loader of macOS, says. Libraries for macOS are not read: the message holds what there is to know."""

import re

from farm.wheel.explained import Explanation, Files, given, undefined_symbol, where_from

_ROSETTA = "a Python or terminal that runs under Rosetta is x86_64 also on Apple silicon"


def other_machine(_: Files, match: re.Match[str]) -> Explanation:
    """`incompatible architecture (have 'x86_64', need 'arm64')`."""
    have, need = match["have"] or match["found"], match["need"] or match["required"]
    if not have or not need:
        return Explanation(
            message="wrong architecture",
            cause=f"the library is for another machine than the Python that loads it ({_ROSETTA})",
            cure="python -c 'import platform; print(platform.machine())' names Python's machine: install that wheel",
        )
    return Explanation(
        message="incompatible architecture",
        cause=f"the library is for {have.strip()}, and the Python that loads it runs as {need} ({_ROSETTA})",
        cure=f"with a Python for {need}: pip install --force-reinstall --no-cache-dir the package; or use a Python for "
        f"{have.strip()}",
    )


def macos_symbol(files: Files, match: re.Match[str]) -> Explanation:
    """`symbol not found in flat namespace '_name'`; Mach-O puts an underscore before C names."""
    return undefined_symbol(files, given(match))


def unloaded_library(_: Files, match: re.Match[str]) -> Explanation:
    """`Library not loaded: @rpath/libomp.dylib`."""
    path = given(match).strip("'\"")
    name = path.rpartition("/")[2]
    where = "where the RPATHs of the library that needs it lead" if path.startswith("@") else f"at {path}"
    return Explanation(message="library not loaded", cause=f"{name} is not {where}", cure=where_from(name))
