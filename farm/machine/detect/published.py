"""Which published wheel installs on this machine: the pip line is resolved against the index before it is shown."""

import re

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from farm.base.errors import FarmError
from farm.base.tags import serves
from farm.index.layout import json_key, without_rebuild
from farm.index.pages import File, parse_page
from farm.index.reader import WITHDRAWN, Reader, open_reader, standing, withdrawn
from farm.machine.detect.choose import Recommendation
from farm.machine.detect.hardware import driver_problem
from farm.machine.detect.readings import Os, Readings
from farm.plan.variant import Variant
from farm.platforms.facts import of_tag

PACKAGE = "torch"
UNTOLD = "published; the index does not say what was tested (farm site build writes that)"
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_")
_CUDA = re.compile(r"cu(\d+)(\d)(?:\.|$)")
_NO_GLIBC = (99, 0)
# The names of the first three policies (PEPs 513, 571, 599).
_OLD_NAMES = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}


def with_published(found: Recommendation, readings: Readings, index: str, root: str) -> Recommendation:
    """The recommendation with a pip line for a wheel that is there, or with the reason why there is none.

    `index`: the index as `farm.index.reader.open_reader` takes it; `root`: the same as pip sees it.
    """
    if found.variant is None:
        return found
    reasons, build = list(found.reasons), f"; it is built by: {found.submit}" if found.submit else ""
    try:
        reader = open_reader(index)
        # The best variant first: another one is only proposed where that has no wheel yet.
        names = [found.variant, *found.alternatives]
        there = [(name, newest(reader, Variant.parse(name), readings, found.submit)) for name in dict.fromkeys(names)]
    except FarmError as error:
        reasons.append(f"the index cannot be asked, so there is no pip command: {error}")
        return found.model_copy(update={"reasons": tuple(reasons)})
    chosen = next(((name, wheel) for name, (wheel, _) in there if wheel is not None), None)
    (_, why) = there[0][1]
    if chosen is None or chosen[0] != found.variant:
        reasons.append(why or f"no wheel for {found.variant} is published{build}")
    if chosen is None:
        return found.model_copy(update={"reasons": tuple(reasons)})
    name, wheel = chosen
    if name != found.variant:
        reasons.append(f"the command below installs {name}, which is published and runs here too")
    group = Variant.parse(name).group
    pip = f"pip install {PACKAGE}=={parse_wheel_filename(wheel.filename)[1]}"
    pip += f" --extra-index-url {root.rstrip('/')}/whl/{group}/simple/"
    record = standing(reader, wheel.filename)
    state = record.state if record else UNTOLD
    tests = tuple(f"{test.date}, {test.where}: {test.outcome}" for test in record.tests) if record else ()
    return found.model_copy(update={"pip": pip, "reasons": tuple(reasons), "state": state, "tests": tests})


def newest(reader: Reader, variant: Variant, readings: Readings, submit: str | None) -> tuple[File | None, str | None]:
    """The newest wheel of the variant that this system and its driver take; else None, and why if some are there.

    `submit`: the command that builds one.
    """
    os = readings.os
    key = json_key(variant.group, PACKAGE)
    data = reader.get(key)
    if data is None:
        return None, None
    page = parse_page(data, key)
    rising = sorted(
        (file for file in page.entries.values() if _for_python(file, variant)),
        key=lambda file: parse_wheel_filename(file.filename)[1],
    )
    offered = [file for file in rising if withdrawn(file) is None]
    fitting = [file for file in offered if _installs(file, os)]
    running = [file for file in fitting if _driver_refuses(file, readings) is None]
    if running:
        return running[-1], None
    if fitting:
        return None, f"{fitting[-1].filename}: {_driver_refuses(fitting[-1], readings)}"
    if offered and os.libc:
        return None, f"{offered[-1].filename} needs a newer C library than this machine's {os.libc}"
    if gone := [file for file in rising if _installs(file, os)]:
        why = f"{gone[-1].filename}: {WITHDRAWN}: {withdrawn(gone[-1])}"
        successor = f"; its successor is built by: {submit} --rebuild {_next_rebuild(gone[-1])}" if submit else ""
        return None, why + successor
    return None, None


def _driver_refuses(file: File, readings: Readings) -> str | None:
    """Why the driver does not run the wheel; its version says for which CUDA it was built: `2.10.0+cu130.sm75.avx2`."""
    label = _CUDA.match(parse_wheel_filename(file.filename)[1].local or "")
    return driver_problem(f"{label[1]}.{label[2]}", readings.driver, readings.os.system) if label else None


def _next_rebuild(file: File) -> int:
    version = str(parse_wheel_filename(file.filename)[1])
    number = version.removeprefix(without_rebuild(version)).removeprefix(".")
    return int(number or 0) + 1


def _for_python(file: File, variant: Variant) -> bool:
    return any(serves(tag.interpreter, tag.abi, variant.python) for tag in parse_wheel_filename(file.filename)[3])


def _installs(file: File, os: Os) -> bool:
    """True if one of the wheel's platforms is this system's; a glibc that is older than the tag's refuses it."""
    tags = {tag.platform for tag in parse_wheel_filename(file.filename)[3]}
    return any(of_tag(tag) is os.platform is not None and _floor(tag) <= glibc(os) for tag in tags)


def glibc(os: Os) -> tuple[int, int]:
    """`(2, 17)`; `(0, 0)` for another C library."""
    if not os.libc or not os.libc.startswith("glibc "):
        return 0, 0
    release = Version(os.libc.split()[1]).release
    return release[0], release[1] if len(release) > 1 else 0


def _floor(platform: str) -> tuple[int, int]:
    """The oldest glibc of a platform tag; one that names none takes any, and a wheel for musl takes no glibc."""
    if platform.startswith("musllinux"):
        return _NO_GLIBC
    match = _GLIBC.match(platform)
    if match:
        return int(match[1]), int(match[2])
    return next((version for name, version in _OLD_NAMES.items() if platform.startswith(name)), (0, 0))
