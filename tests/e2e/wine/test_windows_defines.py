"""What reaches CMake on Windows: PyTorch's own build scripts under Windows' Python, in the
environment of build.cmd.

The scripts are those of Debian's source trees of 1.13.1 and 2.6.0. The environment is made by
Wine's cmd from the lines of the rendered build.cmd. Windows gives Python every name in upper case;
CMake tells upper from lower case.
"""

import functools
import json
import re
import subprocess
import tarfile
import zipfile

import pytest

from farm.catalog import cpu_levels
from farm.plan.matrix import load_matrix
from farm.plan.render import render
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from tests.e2e.wheels.debian_trees import TREES, sources  # noqa: F401 a fixture
from tests.e2e.wine.windows_python import PARTS, pip, windows_path
from tests.e2e.wine.windows_toolchain import ROOT

TIMEOUT_S = 300
# What the scripts say by themselves, whatever the environment, and the compiler that build.cmd finds on the machine.
OWN = {
    "BUILD_PYTHON", "CUDA_HOST_COMPILER", "CMAKE_BUILD_TYPE", "CMAKE_GENERATOR", "CMAKE_INSTALL_PREFIX", "CMAKE_PREFIX_PATH",
    "NUMPY_INCLUDE_DIR",
    "PYTHON_EXECUTABLE", "PYTHON_INCLUDE_DIR", "PYTHON_LIBRARY", "Python_EXECUTABLE", "TORCH_BUILD_VERSION",
    "USE_NUMPY",
}  # fmt: skip
# What setup.py and the compilers read themselves: no setting of CMake.
ELSEWHERE = {
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "CUDA_HOME", "CUDA_PATH", "DISTUTILS_USE_SDK", "NVTOOLSEXT_PATH",
    "OpenBLAS_HOME", "PYTORCH_BUILD_VERSION", "PYTORCH_BUILD_NUMBER", "SCCACHE_DIR", "SCCACHE_IDLE_TIMEOUT",
    "SCCACHE_IGNORE_SERVER_IO_ERROR", "TORCH_NVCC_FLAGS", "NVCC_APPEND_FLAGS", "CMAKE_GENERATOR",
}  # fmt: skip
# Newer than 1.13.1, whose CMake takes no notice of them.
NEWER = {"USE_CUFILE", "USE_CUSPARSELT", "USE_MEM_EFF_ATTENTION"}
OFF = {"0": "False", "1": "True"}


def builds():
    """One torch of each channel and CPU level; of levels with AVX the channel's lowest."""
    chosen = {}
    for build in load_matrix(ROOT).builds():
        if (build.package, build.platform) == ("torch", "windows"):
            chosen[build.channel, build.variant.cpu] = build
    lowest = {
        channel: min(cpu for name, cpu in chosen if name == channel and cpu != "sse41")
        for channel, cpu in chosen
        if cpu != "sse41"
    }
    return {key: build for key, build in chosen.items() if key[1] in ("sse41", lowest.get(key[0]))}


BUILDS = builds()


def plan_of(key):
    build = BUILDS[key]
    return resolve(ROOT, BuildRequest(build.variant, "torch", "windows", build.channel))


@pytest.fixture(scope="module")
def trees(sources, tmp_path_factory):  # noqa: F811
    """The build scripts and CMake files of both trees, by version."""
    found = {}
    for version, (name, _) in TREES.items():
        folder = tmp_path_factory.mktemp("tree")
        with tarfile.open(sources / name) as archive:
            wanted = re.compile(
                r"[^/]+/(tools/.*\.py|version\.txt|(.*/)?CMakeLists\.txt|cmake/.*|.*\.cmake)"
            )
            for member in archive:
                if member.isfile() and wanted.fullmatch(member.name):
                    place = folder / member.name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(archive.extractfile(member).read())
        [found[version]] = folder.iterdir()
    return found


@functools.cache
def cmake_text(tree):
    """All that CMake reads of a tree."""
    patterns = ("CMakeLists.txt", "*.cmake", "*.cmake.in")
    return "\n".join(
        path.read_text(errors="replace") for pattern in patterns for path in tree.rglob(pattern)
    )


@pytest.fixture(scope="module")
def cmakes_names(require, tmp_path_factory):
    """The variables that the pinned CMake documents; `<LANG>` in a name is any language."""
    folder = tmp_path_factory.mktemp("cmake")
    done = pip("download", "cmake==3.31.6", "-d", str(folder))
    if done.returncode:
        require("CMake from the Python index", done.stderr.strip()[-300:])
    [wheel] = folder.glob("cmake-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = re.findall(r"/Help/variable/(\w+)\.rst", "\n".join(archive.namelist()))
    assert "CMAKE_PROJECT_INCLUDE" in names
    return re.compile(
        "|".join(
            name.replace("LANG", "(C|CXX|CUDA)").replace("PROJECT-NAME", r"\w+") for name in names
        )
    )


@pytest.fixture(scope="module")
def defines(trees, windows_python, require, tmp_path_factory):
    """What CMake gets for each of BUILDS, by the version of the tree.

    Wine's cmd makes each environment, and one Python takes them all.
    """
    windows_python.install(require, "setuptools==72.1.0", "numpy==1.26.4")
    folder = tmp_path_factory.mktemp("defines")
    (folder / "ninja.exe").touch()  # 1.13.1 looks whether it is there
    lines = ["@echo off"]
    for key in BUILDS:
        script = render(ROOT, plan_of(key)).job["build.cmd"].replace("\r\n", "\n")
        text = script[
            script.index("rem --- what the compilers see") : script.index('set "FARM_STEP=jobs"')
        ]
        seen = [
            line
            for line in text.splitlines()
            if line.startswith('set "') and not line.startswith('set "PATH=')
        ]
        lines += ["setlocal", *seen, f"set > {'-'.join(key)}.txt", "endlocal"]
    cases = " ".join(f"{'-'.join(key)}.txt" for key in BUILDS)
    python, program, *folders = (
        f'"{windows_path(path)}"'
        for path in (windows_python.exe, PARTS / "defines.py", *trees.values())
    )
    lines.append(f"{python} {program} {cases} -- {' '.join(folders)}")
    (folder / "ask.cmd").write_bytes("\r\n".join(lines).encode() + b"\r\n")
    done = subprocess.run(
        ["wine", "cmd", "/d", "/c", "ask.cmd"],
        cwd=folder,
        env={**windows_python.wine, "WINEPATH": windows_path(folder)},
        stdin=subprocess.PIPE,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
    answers = json.loads(done.stdout.splitlines()[-1])
    return {key: dict(zip(trees, answers["-".join(key)], strict=True)) for key in BUILDS}


@pytest.mark.parametrize("key", BUILDS, ids=["-".join(key) for key in BUILDS])
def test_cmake_gets_every_switch_of_the_plan_and_no_other(key, defines, trees):
    plan = plan_of(key)
    meant = {name: value for name, value in plan.env.items() if name not in ELSEWHERE}
    for version, arguments in defines[key].items():
        assert "-GNinja" in arguments
        given = dict(word[2:].split("=", 1) for word in arguments if word.startswith("-D"))
        seen = {name: value for name, value in given.items() if name in meant or name not in OWN}
        # 1.13.1's CMake takes the architectures out of the environment by itself.
        lost = {
            name
            for name in meant
            if name not in given and f"$ENV{{{name}}}" not in cmake_text(trees[version])
        }
        assert not lost
        assert seen == {name: value for name, value in meant.items() if name in given} | {
            "BUILD_TEST": OFF[meant["BUILD_TEST"]]
        }
        assert given["TORCH_BUILD_VERSION"] == plan.version


@pytest.mark.parametrize("version", TREES)
def test_every_switch_is_known_to_the_tree_or_to_cmake(version, trees, cmakes_names):
    text = cmake_text(trees[version])
    unknown = {}
    for key in BUILDS:
        for name in set(plan_of(key).env) - ELSEWHERE:
            if not (cmakes_names.fullmatch(name) or re.search(rf"\b{name}\b", text)):
                unknown.setdefault(name, []).append(" ".join(key))
    assert set(unknown) <= (NEWER if version == "1.13.1" else set()), unknown


def test_tiers_above_the_level_are_left_out(trees):
    """tiers.cmake sets the very variables by which each tree chooses its tiers, to what the tree
    reads as no.
    """
    for channel, cpu in BUILDS:
        plan = plan_of((channel, cpu))
        text = render(ROOT, plan).job["tiers.cmake"]
        assert plan.env["CMAKE_PROJECT_INCLUDE"] == "C:/farm/job/tiers.cmake"
        off = set(re.findall(r"set\(CXX_(\w+)_FOUND OFF CACHE", text))
        assert off == set(cpu_levels()[cpu].without)
        library = re.search(r"set\((OpenMP_libomp_LIBRARY) (\S+) CACHE", text)
        assert library[2].endswith("libiomp5md.lib" if plan.options["blas"] == "mkl" else "vcomp")
        for version, tree in trees.items():
            assert f"find_library({library[1]}" in (
                tree / "cmake/Modules/FindOpenMP.cmake"
            ).read_text().replace("\n", "")
            codegen = (tree / "cmake/Codegen.cmake").read_text()
            assert {tier for tier in off if f"CXX_{tier}_FOUND" in codegen} == off, (cpu, version)
