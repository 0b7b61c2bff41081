"""The published wheel for a machine: the newest of its variant that its system and driver take, and
the pip line, resolved against the index before it is shown.
"""

import re
import shlex
from typing import NamedTuple

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from farm.base.errors import FarmError
from farm.base.requirement import serves
from farm.index.layout import json_key, without_rebuild
from farm.index.pages import File, parse_page
from farm.index.pins import install_words
from farm.index.reader import WITHDRAWN, Reader, open_reader, standing, withdrawn
from farm.machine.cards import driver_problem
from farm.machine.detect import Recommendation
from farm.machine.readings import Os, Readings
from farm.plan.variant import Variant
from farm.platforms.facts import of_tag

PACKAGE = "torch"
UNTOLD = "published; the index does not say what was tested (farm site build writes that)"
_CUDA = re.compile(r"cu(\d+)(\d)(?:\.|$)")
_GLIBC = {
    "manylinux1_": (2, 5),
    "manylinux2010_": (2, 12),
    "manylinux2014_": (2, 17),
    "musllinux": (99, 0),
}
"""The names of the first three policies (PEPs 513, 571, 599), and what no glibc serves."""


def with_published(
    found: Recommendation, readings: Readings, index: str, root: str
) -> Recommendation:
    """The recommendation with a pip line, or with the reason why there is none.

    Args:
        found: What the machine alone asks for.
        readings: What was read of the machine.
        index: The index to look in.
        root: The index as pip sees it.
    """
    if found.variant is None:
        return found
    reasons = list(found.reasons)
    try:
        reader = open_reader(index)
        choice = _best_published(reader, found, found.variant, readings)
    except FarmError as error:
        reasons.append(f"the index cannot be asked, so there is no pip command: {error}")
        return found.model_copy(update={"reasons": tuple(reasons)})

    name = choice.variant
    if choice.why_not_best:
        reasons.append(choice.why_not_best)
    if choice.wheel is None:
        return found.model_copy(update={"reasons": tuple(reasons)})
    if name != found.variant:
        reasons.append(f"the command below installs {name}, which is published and runs here too")

    group = Variant.parse(name).group
    words = install_words(reader.get, f"{root.rstrip('/')}/", group, choice.wheel.filename)
    update = {
        "pip": shlex.join(["pip", "install", *words]),
        "reasons": tuple(reasons),
        "state": UNTOLD,
        "tests": (),
    }
    record = standing(reader, choice.wheel.filename)
    if record:
        tests = [f"{test.date}, {test.where}: {test.outcome}" for test in record.tests]
        update |= {"state": record.state, "tests": tuple(tests)}
    return found.model_copy(update=update)


class _Choice(NamedTuple):
    """The wheel to install and its variant; `why_not_best` where it is not the best one's."""

    variant: str
    wheel: File | None
    why_not_best: str | None


def _best_published(
    reader: Reader, found: Recommendation, best: str, readings: Readings
) -> _Choice:
    """The newest wheel of the best variant; another's is only proposed where that has none yet."""
    wheel, why = newest(reader, Variant.parse(best), readings, found.submit)
    if wheel:
        return _Choice(best, wheel, None)
    if why is None:
        why = f"no wheel for {best} is published"
        if found.submit:
            why += f"; it is built by: {found.submit}"
    for name in dict.fromkeys(found.alternatives):
        wheel, _ = newest(reader, Variant.parse(name), readings, found.submit)
        if wheel:
            return _Choice(name, wheel, why)
    return _Choice(best, None, why)


def newest(
    reader: Reader, variant: Variant, readings: Readings, submit: str | None
) -> tuple[File | None, str | None]:
    """The newest wheel of a variant that this system and driver take.

    Args:
        reader: The index.
        variant: The variant whose wheels are looked at.
        readings: What was read of the machine.
        submit: The command that builds one, if the project can.

    Returns:
        The wheel, else why none of the published ones does; two None if none is published.
    """
    key = json_key(variant.group, PACKAGE)
    data = reader.get(key)
    if not data:
        return None, None
    served = [file for file in parse_page(data, key).entries.values() if _for_python(file, variant)]
    served.sort(key=_version)
    offered = [file for file in served if withdrawn(file) is None]
    fitting = [file for file in offered if _installs(file, readings.os)]
    for file in reversed(fitting):
        if _driver_refuses(file, readings) is None:
            return file, None

    if fitting:
        return None, f"{fitting[-1].filename}: {_driver_refuses(fitting[-1], readings)}"
    if offered and readings.os.libc:
        libc = readings.os.libc
        return None, f"{offered[-1].filename} needs a newer C library than this machine's {libc}"
    for file in reversed(served):
        if _installs(file, readings.os):
            return None, _why_withdrawn(file, submit)
    return None, None


def _version(file: File) -> Version:
    return parse_wheel_filename(file.filename)[1]


def _why_withdrawn(file: File, submit: str | None) -> str:
    """Why a wheel is not offered any more, and what builds the next one of its version."""
    text = f"{file.filename}: {WITHDRAWN}: {withdrawn(file)}"
    if submit is None:
        return text
    version = str(_version(file))
    rebuild = version.removeprefix(without_rebuild(version)).removeprefix(".")
    return f"{text}; its successor is built by: {submit} --rebuild {int(rebuild or 0) + 1}"


def _for_python(file: File, variant: Variant) -> bool:
    return any(
        serves(tag.interpreter, tag.abi, variant.python)
        for tag in parse_wheel_filename(file.filename)[3]
    )


def _driver_refuses(file: File, readings: Readings) -> str | None:
    """Why the driver does not run the wheel; its version says for which CUDA it was built:
    `2.10.0+cu130.sm75.avx2`.
    """
    label = _CUDA.match(_version(file).local or "")
    if label:
        return driver_problem(f"{label[1]}.{label[2]}", readings.driver, readings.os.system)
    return None


def _installs(file: File, os: Os) -> bool:
    """True if one of the wheel's platforms is this system's; a glibc that is older than the tag's
    refuses it.
    """
    if os.platform is None:
        return False
    for tag in parse_wheel_filename(file.filename)[3]:
        if of_tag(tag.platform) is os.platform and _floor(tag.platform) <= glibc(os):
            return True
    return False


def glibc(os: Os) -> tuple[int, int]:
    """`(2, 17)`; `(0, 0)` for another C library."""
    match = re.match(r"glibc (\d+)(?:\.(\d+))?", os.libc or "")
    if match is None:
        return 0, 0
    return int(match[1]), int(match[2] or 0)


def _floor(platform: str) -> tuple[int, int]:
    """The oldest glibc of a platform tag; one that names none takes any, and a wheel for musl takes
    no glibc.
    """
    if match := re.match(r"manylinux_(\d+)_(\d+)_", platform):
        return int(match[1]), int(match[2])
    for prefix, version in _GLIBC.items():
        if platform.startswith(prefix):
            return version
    return 0, 0
