"""What the log of a failed step says: the first error of the tool itself, the cause, and what to
do.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from farm.base import causes, failures
from farm.base.failures import CONTEXT, WIDTH
from farm.cli.main import main

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


def test_a_build_that_fetches_gets_no_advice_about_its_network():
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
        (("error: package `clap v4.5` cannot be built because it requires rustc 1.74 or newer, "
    "while"), "older than"),
        (("error: failed to parse lock file\nCaused by:\n  lock file version `4` was found, but "
    "this version of Cargo does not understand this lock file"), "older than"),
        ("LookupError: setuptools-scm was unable to detect version for /farm/src.", "takes its version from git"),
        ("error: can't find Rust compiler", "does not have"),
        ("ERROR Cargo, the Rust package manager, is not installed or is not on PATH.", "does not have"),
    ],
)  # fmt: skip
def test_a_package_of_rust(log, cause):
    found = failures.read(log.splitlines(), build=True)
    assert cause in (found.cause or "")


def test_the_error_for_a_missing_wheel_says_where_wheels_come_from():
    log = ["ERROR: No matching distribution found for cppy>=1.2.0"]
    assert "build_requires" in failures.read(log, build=True).advice
    assert "no network" in failures.read(log, build=True).advice
    assert "no network" not in failures.read(log).advice


BUILD_LOGS = yaml.safe_load(Path(__file__).with_name("build_logs.yaml").read_text(encoding="utf-8"))
BEFORE = r"""11/28/2026 14:01:02.11 farm: torch 2.0.1 for sm35-avx-py311, plan 0123456789ab; log: C:\farm\out\build.log
11/28/2026 14:01:03.11 farm: step checks
error: C1060: of a step that ended well
11/28/2026 14:01:04.11 farm: step {step}
-- Performing Test HAVE_X - Failed
C:\farm\src\b.cpp(9): warning C4996: 'f': was declared deprecated
b.obj : warning LNK4217: symbol 'f' defined in 'c.obj' is imported by 'b.obj'
"""
AFTER = r"""28.11.2026  9:03:02,11 farm: step {step} FAILED (exit code 1); log: C:\farm\out\build.log; C:\farm: 20 Dir(s) 9 bytes free
28.11.2026  9:03:02,12 farm: next: the first line with FAILED: or error: C1060: in the log is the cause
"""


def log_of_a_build(row):
    step = row.get("step", "build")
    text = BEFORE.format(step=step) + row["log"] + AFTER.format(step=step)
    return text.splitlines()


@pytest.mark.parametrize("row", BUILD_LOGS, ids=lambda row: row["name"])
def test_a_build_on_windows_says_its_cause(row):
    failure = failures.read(log_of_a_build(row), build=True, machine=True)
    assert failure.lines[0].startswith(row["first"])
    assert row.get("cause", "") in (failure.cause or "")
    assert row.get("advice", "") in (failure.advice or "")
    if "cause" not in row:
        assert failure.cause is None


@pytest.mark.parametrize("row", BUILD_LOGS, ids=lambda row: row["name"])
def test_every_error_line_of_a_build_is_listed_and_none_of_the_farm(row):
    lines = failures.errors(log_of_a_build(row))
    assert [line for line in lines if line.startswith(row["first"])]
    assert not [line for line in lines if " farm: " in line or "warning C4996" in line]


def test_the_build_reads_its_own_log_as_the_farm_does(tmp_path):
    """causes.py alone, as a rendered build has it, in Microsoft's own encoding."""
    (tmp_path / "causes.py").write_bytes(Path(causes.__file__).read_bytes())
    (tmp_path / causes.PATTERNS).write_text(failures.document(), encoding="utf-8")
    [row] = (row for row in BUILD_LOGS if row["name"] == "a header of cuDNN, in German")
    (tmp_path / "build.log").write_bytes("\r\n".join(log_of_a_build(row)).encode("cp1252"))
    command = [sys.executable, "-I", tmp_path / "causes.py", "build.log", "next.txt"]
    done = subprocess.run(
        command, cwd=tmp_path, check=False, capture_output=True, encoding="utf-8", timeout=60
    )
    expected = failures.read(log_of_a_build(row), build=True, machine=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{expected.text}\n", "")
    assert (tmp_path / "next.txt").read_text() == f"{expected.advice}\n"


@pytest.mark.parametrize(
    ("log", "cause", "cure"),
    [
        (
            "nvcc error   : 'cl.exe' died with status 0xC0000005 (ACCESS_VIOLATION)",
            "crashed",
            "take another CUDA or toolset",
        ),
        (
            (
                "a.h(3): fatal error C1083: Cannot open include file: 'cudnn.h': No such file or "
                "directory"
            ),
            "a header of CUDA or cuDNN is missing",
            "the folder of CUDA",
        ),
        (
            "x.obj : error LNK2001: unresolved external symbol f",
            "no file of the link has",
            "--without",
        ),
        ("FAILED: a.obj\na.cpp(3): error C2065: 'x'", "not known", "farm-report.zip"),
    ],
)
def test_inspect_explains_the_log_of_a_build_as_one(log, cause, cure, tmp_path, capsys):
    assert main(["inspect", str(tmp_path), "--explain", log]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert cause in out
    assert cure in out
    assert "Redistributable" not in out
    assert "INCLUDE is not set" not in out


def test_inspect_explains_what_torch_compile_starts_as_before(tmp_path, capsys):
    log = (
        "torch._inductor.exc.InductorError: CppCompileError: C++ compile error\n"
        "cpp_prefix.h(3): fatal error C1083: Cannot open include file: 'omp.h': No such file or "
        "directory"
    )
    assert main(["inspect", str(tmp_path), "--explain", log]) == 0
    assert "INCLUDE is not set" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("sccache: 0.16.0 is there already", False),  # fetch_tools.py, of a tool that it keeps
        ("git: 2.47.1 is there already", False),
        ("sccache: error: failed to execute compile", True),
        ("sccache: caused by: Failed to send data to or receive data from server", True),
    ],
)
def test_a_tool_that_is_there_already_is_no_error(line, is_error):
    assert failures.errors([line]) == ([line] if is_error else [])
