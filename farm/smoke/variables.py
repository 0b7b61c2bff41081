"""The environment of a smoke test: the same few variables as a build's (`farm.processes.environment`).

What the caller's environment says beyond that may force or hide code of a CPU or GPU: with `OPENBLAS_CORETYPE=Haswell`
a wheel ends by SIGILL on an emulated Nehalem that it runs on.
"""

import fnmatch
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from farm import processes
from farm.errors import UsageError
from farm.yamlfile import Model, load


class _Variable(Model):
    pattern: str
    what: str
    source: str


class _Data(Model):
    variables: list[_Variable]


@cache
def _patterns() -> tuple[str, ...]:
    return tuple(each.pattern for each in load(Path(__file__).with_name("variables.yaml"), _Data).variables)


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
    made = processes.environment(str(home), tree=False)
    for name in passed:
        if name not in os.environ:
            raise UsageError(f"{name} is not set, so it cannot be passed to the smoke test")
        made[name] = os.environ[name]
    return made, tuple(sorted(name for name in os.environ if name not in made and _changes_code(name)))


def _changes_code(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _patterns())
