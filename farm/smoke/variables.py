"""The environment of a smoke test: the same few variables as of a build on a host (`farm.base.processes.environment`).

What the caller's environment says beyond that may force or hide code of a CPU or GPU: with `OPENBLAS_CORETYPE=Haswell`
a wheel ends by SIGILL on an emulated Nehalem that it runs on.
"""

import fnmatch
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from farm.base import processes
from farm.base.errors import UsageError
from farm.base.yamlfile import Model, load

COMPILER = ("INCLUDE", "LIB", "LIBPATH", "VCINSTALLDIR", "VCToolsInstallDir", "WindowsSdkDir", "WindowsSDKVersion")
"""Variables of a Visual Studio prompt: on Windows torch.compile needs them, as cl.exe finds no header without."""


class _Variable(Model):
    pattern: str
    what: str
    source: str


class _Data(Model):
    variables: list[_Variable]
    build_variables: list[_Variable]


@cache
def _data() -> _Data:
    return load(Path(__file__).with_name("variables.yaml"), _Data)


def for_probe(home: Path, passed: Iterable[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment for a probe.

    Args:
        home: Its HOME, a folder of its own: configuration files of the user force code as well.
        passed: Names of the caller's variables that it is to get, such as `CUDA_VISIBLE_DEVICES`.

    Returns:
        The environment, and the names of variables that are set here, change which code runs, and are not in it.

    Raises:
        UsageError: A name of `passed` is not set.
    """
    # Made from nothing, not the caller's with names taken out: what no one thought of would get through.
    made = processes.environment(str(home), tree=False)
    made |= {name: os.environ[name] for name in COMPILER if os.name == "nt" and name in os.environ}
    for name in passed:
        if name not in os.environ:
            raise UsageError(f"{name} is not set, so it cannot be passed to the smoke test")
        made[name] = os.environ[name]
    return made, _set_here(_data().variables, made)


def not_in_build(passed: Iterable[str]) -> tuple[str, ...]:
    """Names of variables that are set here and change what a build makes, and that a build on this host does not get.

    `passed`: the names that it does get.
    """
    return _set_here([*_data().variables, *_data().build_variables], passed)


def _set_here(variables: Iterable[_Variable], passed: Iterable[str]) -> tuple[str, ...]:
    patterns, known = [each.pattern for each in variables], set(passed)
    names = (name for name in os.environ if name not in known)
    return tuple(sorted(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)))
