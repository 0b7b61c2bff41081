"""What the log of a failed step says: the first error of the tool itself, the cause, and what to
do.
"""

from pathlib import Path

import pytest
import yaml

from farm.base import failures
from farm.base.failures import CONTEXT, WIDTH

CASES = yaml.safe_load(Path(__file__).with_name("failures.yaml").read_text(encoding="utf-8"))

NO_NETWORK = """\
Step 3/8 : RUN apt-get update && apt-get install -y gcc
Ign:1 http://mirror.example/debian bookworm InRelease
Err:1 http://mirror.example/debian bookworm InRelease
  Temporary failure resolving 'mirror.example'
Reading package lists...
W: Failed to fetch http://mirror.example/debian/dists/bookworm/InRelease  Temporary failure resolving 'mirror.example'
W: Some index files failed to download. They have been ignored, or old ones used instead.
Reading package lists...
E: Unable to locate package gcc
"""
"""As apt 2.6 of Debian 12 prints it in a container without network."""


def test_an_image_without_network():
    found = failures.read(NO_NETWORK.splitlines())
    assert found.lines[:2] == (
        "Err:1 http://mirror.example/debian bookworm InRelease",
        "  Temporary failure resolving 'mirror.example'",
    )
    assert "no network" in found.cause
    assert len(found.lines) <= CONTEXT
    assert "DNS" in found.hint(Path("image.log"))
    assert found.hint(Path("image.log")).endswith("the whole log: image.log")


@pytest.mark.parametrize(
    ("log", "first", "cause"),
    CASES["first_errors_and_causes"],
)  # fmt: skip
def test_first_errors_and_causes(log, first, cause):
    found = failures.read(
        ["-- Looking for x - not found", "[1/90] fine with -Werror", *log.splitlines()]
    )
    assert found.lines[0].startswith(first)
    assert (cause is None and found.cause is None) or cause in found.cause
    assert bool(found.advice) == bool(found.cause)


def test_what_went_well_before_ninja_stopped_is_no_error():
    log = [
        "conftest.c:1: error: tried and not there",
        "[3/9] cc",
        "FAILED: b.o",
        "cc -c b.c",
        "b.c:7:1: error: expected ';'",
    ]
    assert failures.read(log).lines == ("b.c:7:1: error: expected ';'",)
    assert failures.read(log[:4]).lines == ("FAILED: b.o", "cc -c b.c")


def test_a_step_that_writes_itself_is_read_from_its_own_line_on():
    """Of PyTorch 2.6.0 on a full disk: Ninja runs CMake's install in its console pool."""
    log = [
        "[1905/1907] Linking CXX shared library lib/libnnapi_backend.so",
        "error: of another step",
        "[1906/1907] Install the project...",
        '-- Install configuration: "Release"',
        "CMake Error at caffe2/cmake_install.cmake:157 (file):",
        '  file INSTALL cannot copy file "/farm/src/build/lib/libtorch_cpu.so" to',
        '  "/farm/src/torch/lib/libtorch_cpu.so": No space left on device.',
        "FAILED: CMakeFiles/install.util",
        "cd /farm/src/build && /usr/bin/cmake -P cmake_install.cmake",
        "ninja: build stopped: subcommand failed.",
        "ERROR Backend subprocess exited when trying to invoke build_wheel",
    ]
    found = failures.read(log)
    assert found.lines[0] == log[4]
    assert found.cause == "the disk is full"


def test_where_no_error_is_found_the_last_lines_are_shown():
    found = failures.read([str(n) for n in range(100)])
    assert found.lines == tuple(str(n) for n in range(100 - CONTEXT, 100))
    assert (found.cause, found.hint(Path("x.log"))) == (None, "the whole log: x.log")
    assert failures.read([]).text == ""


def test_a_log_is_untrusted():
    found = failures.read(["error: \x1b[31mno\x1b[0m " + "x" * 5000])
    assert found.text.startswith("    error: no xxx")
    assert len(found.lines[0]) <= WIDTH + 4


CARGO = """\
    Updating crates.io index
warning: spurious network error (1 try remaining): [6] Could not resolve hostname (Could not resolve host: index.crates.io)
error: failed to get `archery` as a dependency of package `a v0.1.0 (/farm/src)`

Caused by:
  download of config.json failed

Caused by:
  failed to download from `https://index.crates.io/config.json`

Caused by:
  [6] Could not resolve hostname (Could not resolve host: index.crates.io)
"""
"""As cargo 1.95 prints it in a network namespace without a network (`unshare -n cargo build`)."""


def test_a_build_that_fetches_is_not_told_to_look_at_its_network():
    found = failures.read(CARGO.splitlines(), build=True)
    assert found.lines[0].startswith("error: failed to get `archery`")
    assert "a build has no network" in found.advice
    assert "cargo vendor" in found.advice
    assert "Docker engine" in failures.read(NO_NETWORK.splitlines()).advice


@pytest.mark.parametrize(("log", "advice"), CASES["what_a_recipe_lacks"])
def test_what_a_recipe_lacks(log, advice):
    found = failures.read(log.splitlines(), build=True)
    assert (advice is None) == (found.advice is None)
    assert (advice or "") in (found.advice or "")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("error: package `clap v4.5` cannot be built because it requires rustc 1.74 or newer, while", "older than"),
        ("error: failed to parse lock file\nCaused by:\n  lock file version `4` was found, but this version of Cargo does not understand this lock file", "older than"),
        ("LookupError: setuptools-scm was unable to detect version for /farm/src.", "takes its version from git"),
        ("error: can't find Rust compiler", "does not have"),
        ("ERROR Cargo, the Rust package manager, is not installed or is not on PATH.", "does not have"),
    ],
)  # fmt: skip
def test_a_package_of_rust(log, cause):
    found = failures.read(log.splitlines(), build=True)
    assert cause in (found.cause or "")


def test_a_build_that_wants_a_wheel_is_told_where_wheels_come_from():
    log = ["ERROR: No matching distribution found for cppy>=1.2.0"]
    assert "build_requires" in failures.read(log, build=True).advice
    assert "no network" in failures.read(log, build=True).advice
    assert "no network" not in failures.read(log).advice
