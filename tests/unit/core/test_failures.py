# ruff: noqa: E501 - one case a line
"""What the log of a failed step says: the first error of the tool itself, the cause, and what to do."""

from pathlib import Path

import pytest

from farm.base import failures
from farm.base.failures import CONTEXT, WIDTH

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
    [
        ("[1/2] cc\nFAILED: a.o \ncc -c a.c\na.c:1:10: fatal error: x.h: No such file or directory\n    1 | #include <x.h>", "a.c:1:10", "header"),
        ("a.cu(12): error: identifier \"x\" is undefined\n1 error detected", "a.cu(12)", None),
        ("a.cpp(3): error C2065: 'x': undeclared identifier", "a.cpp(3)", None),
        ("LINK : fatal error LNK1181: cannot open input file 'x.lib'", "LINK", "library"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_35'", "nvcc fatal", "cannot compile for this GPU"),
        ("collect2: fatal error: Killed signal terminated program cc1plus", "collect2", "out of memory"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "c++", "out of memory"),
        ("/usr/bin/ld: cannot find -lfoo: No such file or directory", "/usr/bin/ld", "library"),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "/usr/bin/ld", "driver"),
        ("/usr/bin/ld: cannot find -lcudart: No such file or directory", "/usr/bin/ld", "a library to link with"),
        ("a.cpp:(.text+0x1): undefined reference to `f()'", "a.cpp", None),
        ("Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'skbuild'", "ModuleNotFoundError", "Python module"),
        ("ERROR Backend 'scikit_build_core.build' is not available.", "ERROR Backend", "Python module"),
        ("CMake Error at CMakeLists.txt:3 (find_package):\n  Could not find a package configuration file", "CMake Error", "CMake"),
        ("CMake Error: CMake was unable to find a build program corresponding to \"Unix Makefiles\".  CMAKE_MAKE_PROGRAM is not set.", "CMake Error", "neither make"),
        ("CMake Error at CMakeLists.txt:3 (add_subdirectory):\n  add_subdirectory given source \"third_party/fmt\" which is not an existing\n  directory.", "CMake Error", "submodule"),
        ("../meson.build:5:0: ERROR: Dependency \"fftw3\" not found, tried pkgconfig and cmake", "../meson.build:5:0", "Meson"),
        ("src/meson.build:1:9: ERROR: C++ shared or static library 'fftw3' not found", "src/meson.build", "Meson"),
        ("../meson.build:2:0: ERROR: Nonexistent build file 'vendor/meson.build'", "../meson.build", "submodule"),
        ("../meson.build:1:0: ERROR: Unknown compiler(s): [['gfortran']]", "../meson.build", None),
        ("E: Failed to fetch http://m/x.deb  404  Not Found [IP: 1.2.3.4 80]", "E: ", "do not fit together"),
        ("E: You don't have enough free space in /var/cache/apt/archives/.", "E: ", "disk is full"),
        ("tar: x: Cannot write: No space left on device", "tar:", "disk is full"),
        ("E: Failed getting release file http://m/dists/bookworm/Release", "E: ", "mirror"),
        ("cp: cannot create regular file '/x': Permission denied", "cp:", "no permission"),
        ("E: Release file for http://m/InRelease is not valid yet (invalid for another 3h).", "E: ", "clock"),
        ("E: Release file for http://m/dists/forky/InRelease is expired (invalid since 16d). Updates", "E: ", "no longer renewed"),
        ("mkdir: cannot create directory '/x': Read-only file system", "mkdir:", "read-only"),
        ("FAILED: a.cu.o \nnvcc -c a.cu\nKilled\nninja: build stopped: subcommand failed.", "Killed", "out of memory"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "nvcc error", "out of memory"),
        ("nvcc error   : 'cudafe++' died due to signal 11 (Invalid memory reference)", "nvcc error", "crashed"),
        ("nvcc error   : 'cicc' died with status 0xC0000005 (ACCESS_VIOLATION)", "nvcc error", "crashed"),
        ("error: command 'C:\\\\VC\\\\cl.exe' failed with exit code 3221225477", "error: ", "crashed"),
        ("error: command '/usr/bin/gcc' failed with exit code -11", "error: ", "crashed"),
        ("error: command '/usr/bin/gcc' failed with exit code -1", "error: ", None),
        ("FAILED: [code=3221226505] a.obj\ncl.exe a.cpp\nninja: build stopped: subcommand failed.", "FAILED: ", "crashed"),
        ("a.c:1:1: internal compiler error: Segmentation fault", "a.c:1:1", "crashed"),
        ("a.c:3:1: error: 'SIGSEGV' was not declared in this scope", "a.c:3:1", None),
        ("error: could not compile `x` (signal: 11, SIGSEGV: invalid memory reference)", "error: ", "crashed"),
        ("a.cpp(9): fatal error C1001: Internal compiler error.", "a.cpp(9)", "crashed"),
        ("subprocess.CalledProcessError: Command '['gen.exe']' returned non-zero exit status 3221225501.", "subprocess.", "instruction"),
        ("error: command 'protoc.exe' failed with exit code 3221225781", "error: ", "a DLL"),
        ("nvcc error   : 'ptxas' died with status 0xC0000142 ", "nvcc error", "a DLL"),
        ("error: command 'cl.exe' failed with exit code 3221225495", "error: ", "out of memory"),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", "collect2", "out of memory"),
        ("subprocess.CalledProcessError: Command '['cmake']' died with <Signals.SIGKILL: 9>.", "subprocess.", "out of memory"),
        ("clang++: error: unable to execute command: Killed", "clang++", "out of memory"),
        ("/usr/bin/ld: final link failed: memory exhausted", "/usr/bin/ld", "out of memory"),
        ("bash: line 7:  4711 Killed                  python3 -m build", "bash: ", "out of memory"),
        ("a.cpp(1) : fatal error C1002: compiler is out of heap space in pass 2", "a.cpp(1)", "out of memory"),
        ("write /var/lib/docker/tmp/x: no space left on device", "write ", "disk is full"),
        ("OSError: [WinError 112] Es steht nicht genug Speicherplatz auf dem Datenträger zur Verfügung", "OSError", "disk is full"),
        ("ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'", "ptxas fatal", "cannot compile for this GPU"),
        ("nvlink fatal   : Value 'sm_35' is not defined for option 'arch'", "nvlink fatal", "cannot compile for this GPU"),
        ("C:\\MSVC\\14.41\\include\\yvals_core.h(902): error STL1002: Unexpected compiler version, expected CUDA 12.4 or newer.", "C:", "does not take this host compiler"),
        ("LINK : fatal error LNK1189: library limit of 65535 objects exceeded", "LINK", "65,535 objects"),
        ("LINK : fatal error LNK1201: error writing to program database 'D:\\build\\torch_cpu.pdb'; check for insufficient disk space, invalid path, or insufficient privilege", "LINK", "debugging information"),
        ("ERROR: Could not find a version that satisfies the requirement cppy>=1.2.0 (from versions: none)\nERROR: No matching distribution found for cppy>=1.2.0", "ERROR: Could", "no such release"),
        ("LINK : fatal error LNK1104: cannot open file 'python311.lib'", "LINK", "a library to link with"),
        ("LINK : fatal error LNK1104: cannot open file 'bin\\torch_cuda.dll'", "LINK", "its own output"),
        ("/usr/bin/ld: a.o: in function `f':\n(.text+0x1): relocation truncated to fit: R_X86_64_PC32 against `.bss'\ncollect2: error: ld returned 1 exit status", "(.text+0x1)", "2 GiB"),
        ("sh: line 1:    12 Illegal instruction     (core dumped) ./gen", "sh: ", "instruction"),
        ("sh: /lib/libc.so.6: version `GLIBC_2.38' not found (required by cmake)", "sh: ", "newer system"),
        ("CMake Error at CMakeLists.txt:2 (cmake_minimum_required):\n  Compatibility with CMake < 3.5 has been removed from CMake.", "CMake Error", "older than this CMake"),
        ("CMake Error at CMakeLists.txt:1 (cmake_minimum_required):\n  CMake 3.27 or higher is required.  You are running version 3.25.1", "CMake Error", "older than the package"),
        ("CMake Error at a.cmake:3 (message):\n  no such option\n-- Could NOT find OpenMP_C (missing: OpenMP_C_FLAGS)", "CMake Error", None),
        ("a.cc:3:1: error: 'ENOSPC' was not declared in this scope", "a.cc", None),
        ("a.cc:3:1: error: 'EACCES' was not declared in this scope", "a.cc", None),
        ("Error: EACCES: permission denied, mkdir '/x'", "Error: ", "no permission"),
        ("cc1plus: fatal error: /farm/src/a.cpp: No such file or directory", "cc1plus", None),
    ],
)  # fmt: skip
def test_first_errors_and_causes(log, first, cause):
    found = failures.read(["-- Looking for x - not found", "[1/90] fine with -Werror", *log.splitlines()])
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


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        ("Exception: ERROR: The 'make' utility is missing from PATH", "add the Debian package"),  # PyNaCl
        ("FileNotFoundError: [Errno 2] No such file or directory: 'make'", "add the Debian package"),  # pysam
        ("error: command 'swig' failed: No such file or directory", "add the Debian package"),
        ("ERROR x\n/bin/sh: 1: autoreconf: not found", "add the Debian package"),
        ("ERROR x\n./build.sh: line 3: autoreconf: command not found", "add the Debian package"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'VERSION'", None),
        (
            "ERROR Source . does not appear to be a Python project: no pyproject.toml or setup.py",
            "subdirectory: python",
        ),
        ("error: externally-managed-environment", "take the call out"),
        ("ERROR Source python is not a directory", "correct subdirectory"),
        # setuptools-scm 7.1 of Debian 12, alone and behind hatch-vcs; pbr 7
        ("OSError: 'git' was not found", "SETUPTOOLS_SCM_PRETEND_VERSION"),
        (
            "OSError: Error getting the version from source `vcs`: 'git' was not found",
            "SETUPTOOLS_SCM_PRETEND_VERSION",
        ),
        (
            "Exception: Versioning for this project requires either an sdist tarball, or access to an upstream git repository.",
            "PBR_VERSION",
        ),
        (
            "ModuleNotFoundError: Error getting the version from source `vcs`: No module named 'setuptools_scm'",  # hatchling
            "build_requires",
        ),
        (
            'ImportError: Cannot import `packaging.licenses`.\n        Setuptools>=77.0.0 requires "packaging>=24.2" to work',
            "add packaging to build_requires",
        ),
    ],
)
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
