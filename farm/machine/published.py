"""The published wheel for a machine: the newest of its variant that its system and driver take, and
the pip line, resolved against the index before it is shown.
"""

import re
import shlex

from packaging.utils import parse_wheel_filename

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
    """The recommendation with a pip line, or with the reason why there is none; `root`: the index
    as pip sees it.
    """
    if found.variant is None:
        return found
    reasons = list(found.reasons)
    build = f"; it is built by: {found.submit}" if found.submit else ""
    try:
        reader = open_reader(index)
        # The best variant first: another one is only proposed where that has no wheel yet.
        names = [found.variant, *found.alternatives]
        newest_by_variant = [
            (name, newest(reader, Variant.parse(name), readings, found.submit))
            for name in dict.fromkeys(names)
        ]
    except FarmError as error:
        reasons.append(f"the index cannot be asked, so there is no pip command: {error}")
        return found.model_copy(update={"reasons": tuple(reasons)})
    name, wheel = next(
        ((name, wheel) for name, (wheel, _) in newest_by_variant if wheel), (None, None)
    )
    if name != found.variant:
        reasons.append(
            newest_by_variant[0][1][1] or f"no wheel for {found.variant} is published{build}"
        )
    if wheel is None or name is None:
        return found.model_copy(update={"reasons": tuple(reasons)})
    if name != found.variant:
        reasons.append(f"the command below installs {name}, which is published and runs here too")
    group = Variant.parse(name).group
    words = install_words(reader.get, f"{root.rstrip('/')}/", group, wheel.filename)
    pip = shlex.join(["pip", "install", *words])
    record = standing(reader, wheel.filename)
    state = record.state if record else UNTOLD
    if record:
        tests = tuple(f"{test.date}, {test.where}: {test.outcome}" for test in record.tests)
    else:
        tests = ()
    return found.model_copy(
        update={"pip": pip, "reasons": tuple(reasons), "state": state, "tests": tests}
    )


def newest(
    reader: Reader, variant: Variant, readings: Readings, submit: str | None
) -> tuple[File | None, str | None]:
    """The newest wheel of the variant that this system and driver take, else why not; `submit`
    builds one.
    """
    os = readings.os
    key = json_key(variant.group, PACKAGE)
    data = reader.get(key)
    files = parse_page(data, key).entries.values() if data else ()
    served = [file for file in files if _for_python(file, variant)]
    rising = sorted(served, key=lambda file: parse_wheel_filename(file.filename)[1])
    offered = [file for file in rising if withdrawn(file) is None]
    fitting = [file for file in offered if _installs(file, os)]
    running = [file for file in fitting if _driver_refuses(file, readings) is None]
    if running:
        return running[-1], None
    if fitting:
        return None, f"{fitting[-1].filename}: {_driver_refuses(fitting[-1], readings)}"
    if offered and os.libc:
        return None, f"{offered[-1].filename} needs a newer C library than this machine's {os.libc}"
    if withdrawn_files := [file for file in rising if _installs(file, os)]:
        why = f"{withdrawn_files[-1].filename}: {WITHDRAWN}: {withdrawn(withdrawn_files[-1])}"
        version = str(parse_wheel_filename(withdrawn_files[-1].filename)[1])
        rebuild = int(version.removeprefix(without_rebuild(version)).removeprefix(".") or 0) + 1
        return None, why + (
            f"; its successor is built by: {submit} --rebuild {rebuild}" if submit else ""
        )
    return None, None


def _for_python(file: File, variant: Variant) -> bool:
    return any(
        serves(tag.interpreter, tag.abi, variant.python)
        for tag in parse_wheel_filename(file.filename)[3]
    )


def _driver_refuses(file: File, readings: Readings) -> str | None:
    """Why the driver does not run the wheel; its version says for which CUDA it was built:
    `2.10.0+cu130.sm75.avx2`.
    """
    label = _CUDA.match(parse_wheel_filename(file.filename)[1].local or "")
    if label:
        return driver_problem(f"{label[1]}.{label[2]}", readings.driver, readings.os.system)
    return None


def _installs(file: File, os: Os) -> bool:
    """True if one of the wheel's platforms is this system's; a glibc that is older than the tag's
    refuses it.
    """
    tags = {tag.platform for tag in parse_wheel_filename(file.filename)[3]}
    return any(of_tag(tag) is os.platform is not None and _floor(tag) <= glibc(os) for tag in tags)


def glibc(os: Os) -> tuple[int, int]:
    """`(2, 17)`; `(0, 0)` for another C library."""
    match = re.match(r"glibc (\d+)(?:\.(\d+))?", os.libc or "")
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def _floor(platform: str) -> tuple[int, int]:
    """The oldest glibc of a platform tag; one that names none takes any, and a wheel for musl takes
    no glibc.
    """
    if match := re.match(r"manylinux_(\d+)_(\d+)_", platform):
        return int(match[1]), int(match[2])
    return next((version for name, version in _GLIBC.items() if platform.startswith(name)), (0, 0))
