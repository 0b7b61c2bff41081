"""farm/catalog/standalone_pythons.yaml: Pythons that need no distribution, and the wheels that
builds with them import.

The releases of python-build-standalone come with their hashes in the package pbs-installer of the
Python index: its `versions.json` is read, the package is never run. The wheels are those of the
same index.
"""

import json
import re
from collections.abc import Iterable, Iterator

from farm.catalog.models import PinnedWheel
from farm.plan.platforms.windows import windows_tools
from farm.plan.variant import PYTHONS
from tools.package_index import RemoteWheel, Wheel, release_key, wheels

MACHINES = ("x86_64", "aarch64")
FRONTEND = (
    "build",
    "importlib-metadata",
    "packaging",
    "pyproject-hooks",
    "setuptools",
    "tomli",
    "wheel",
    "zipp",
)
PURE = (
    "astunparse",
    "filelock",
    "fsspec",
    "jinja2",
    "mpmath",
    "networkx",
    "six",
    "sympy",
    "typing-extensions",
)
BUILD = ("build", "1.2.2")  # Windows has a post-release of it
PROGRAMS = ("cmake",)
"""For any Python, where the base image's own is too old; of Windows builds' version."""
COMPILED = ("markupsafe", "numpy", "pillow", "pyyaml")
"""For one Python each."""
GLIBC = (2, 28)
"""The newest glibc that their wheels may need: every base image has a newer one."""
HEAD = """\
# Written by tools/refresh-catalogue pythons; do not edit. `pythons`: for builds whose base image has another Python.
# `wheels`: what a build with one of these imports; setuptools and the other pure ones are those of Windows builds.
sources:
  pythons: "python-build-standalone, URLs and sha256 as pbs-installer {version} of the Python index lists them"
  wheels: "the Python index; numpy 2 of the oldest minor version for the Python: what it builds runs with newer ones"
"""


def text(index: str) -> str:
    """The whole file.

    Raises:
        InfrastructureError: The index does not answer.
    """
    newest = max(wheels(index, "pbs-installer"), key=lambda wheel: release_key(wheel.version))
    listing = json.loads(RemoteWheel(newest).text("pbs_installer/versions.json"))
    lines = [HEAD.format(version=newest.version), "pythons:\n"]
    for name in PYTHONS:
        lines += _python(name, listing)
    lines.append("wheels:\n")
    for wheel in [*_pure(index), *_programs(index), *_compiled(index)]:
        lines.append(
            f"  - {{package: {wheel.package}, file: {wheel.file}, sha256: {wheel.sha256}}}\n"
        )
    return "".join(lines)


def _python(name: str, listing: list[dict[str, object]]) -> Iterator[str]:
    """The newest release of a Python that has an archive for every machine."""
    best: dict[str, dict[str, str]] = {}
    micro = -1
    for each in listing:
        version: dict[str, object] = each["python_version"]  # type: ignore[assignment]
        threads = "t" if version["freethreaded"] else ""
        if (
            version["implementation"] != "cpython"
            or f"py{version['major']}{version['minor']}{threads}" != name
        ):
            continue
        files: list[dict[str, str]] = each["files"]  # type: ignore[assignment]
        found = {
            file["arch"]: file
            for file in files
            # `install_only`: what is needed to run it; the other archives hold what is needed to
            # build it.
            if file["install_only"]
            and file["platform"] == "linux"
            and file["sha256"]
            and file["arch"] in MACHINES
        }
        # A release without an archive for one of the machines is passed over: both build with the
        # same Python.
        if len(found) == len(MACHINES) and int(str(version["micro"])) > micro:
            micro = int(str(version["micro"]))
            best = found
    yield f'  {name}:\n    version: "3.{name[3:].removesuffix("t")}.{micro}"\n    files:\n'
    for machine in MACHINES:
        yield (
            f"      {machine}:\n        url: {best[machine]['url']}\n        sha256: "
            f"{best[machine]['sha256']}\n"
        )


def _pure(index: str) -> Iterator[PinnedWheel]:
    pinned = {wheel.sha256 for wheel in windows_tools().wheels}
    for package in sorted((*FRONTEND, *PURE)):
        for wheel in wheels(index, package):
            # The wheels that Windows builds use: one set to renew, not two.
            if wheel.sha256 in pinned or (package, wheel.version) == BUILD:
                yield PinnedWheel(package=package, file=wheel.file, sha256=wheel.sha256)


def _programs(index: str) -> Iterator[PinnedWheel]:
    versions = {wheel.name: wheel.version for wheel in windows_tools().wheels}
    for package in PROGRAMS:
        fitting = [wheel for wheel in wheels(index, package) if wheel.version == versions[package]]
        for machine in MACHINES:
            for wheel in fitting:
                if _fits(wheel.platform, machine):
                    yield PinnedWheel(package=package, file=wheel.file, sha256=wheel.sha256)


def _compiled(index: str) -> Iterator[PinnedWheel]:
    for package in COMPILED:
        names = list(wheels(index, package))
        for python in PYTHONS:
            for machine in MACHINES:
                fitting = [w for w in names if w.python == python and _fits(w.platform, machine)]
                for wheel in _chosen(package, fitting):
                    yield PinnedWheel(package=package, file=wheel.file, sha256=wheel.sha256)


def _fits(platform: str, machine: str) -> bool:
    levels = re.findall(rf"manylinux_(\d+)_(\d+)_{machine}\b", platform)
    return any((int(major), int(minor)) <= GLIBC for major, minor in levels)


def _chosen(package: str, fitting: Iterable[Wheel]) -> list[Wheel]:
    """The newest; of numpy 2 that of the oldest minor version, and the last numpy 1."""
    in_order = sorted(fitting, key=lambda wheel: release_key(wheel.version))
    if package != "numpy":
        return in_order[-1:]
    builds: dict[int, Wheel] = {}
    for wheel in in_order:
        major, minor = release_key(wheel.version)[:2]
        old = builds.get(major)
        if old is None or major == 1 or release_key(old.version)[1] == minor:
            builds[major] = wheel
    return list(builds.values())
