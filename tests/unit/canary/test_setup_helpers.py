"""The environment variables of the canary's build."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from hypothesis import strategies as st

import farm.recipes

CASES = yaml.safe_load(Path(__file__).with_name("setup_helpers.yaml").read_text(encoding="utf-8"))

SOURCE = Path(farm.recipes.__file__).parent / "canary" / "src" / "setup_helpers.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("canary_setup_helpers", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its NamedTuple looks itself up
    spec.loader.exec_module(module)
    return module


helpers = load()


@pytest.mark.parametrize(("text", "flags"), CASES["arch_list_becomes_exactly_these_flags"])
def test_an_arch_list_becomes_exactly_the_expected_nvcc_flags(text, flags):
    assert helpers.gencode_flags(helpers.parse_arch_list(text)) == flags


@pytest.mark.parametrize("text", CASES["a_wrong_arch_list_is_refused_by_name"])
def test_a_wrong_arch_list_is_refused_by_name(text):
    with pytest.raises(helpers.EnvironmentValueError, match=r"^TORCH_CUDA_ARCH_LIST: "):
        helpers.parse_arch_list(text)


archs = st.builds(
    "{}.{}{}".format, st.integers(1, 99), st.integers(0, 9), st.sampled_from(["", "a", "f"])
)


def test_prefixed_variables_become_defines_and_others_do_not():
    defines = helpers.cmake_defines(
        {
            "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
            "BUILD_TEST": "0",
            "USE_NCCL": "0",
            "CXXFLAGS": "-mavx",
            "PATH": "/bin",
            "CMAKE_INSTALL_PREFIX": "/elsewhere",
            "CMAKE_GENERATOR": "Unix Makefiles",
        },
        "0.1.0+cpu",
    )
    assert defines == {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
        "BUILD_TEST": "0",
        "USE_NCCL": "0",
        "USE_CUDA": "OFF",
        "CANARY_VERSION": "0.1.0+cpu",
    }


@pytest.mark.parametrize(
    ("environ", "use_cuda"),
    [
        ({}, "OFF"),
        ({"TORCH_CUDA_ARCH_LIST": "3.5"}, "ON"),
        ({"USE_CUDA": "0", "TORCH_CUDA_ARCH_LIST": "3.5"}, "OFF"),
        ({"USE_CUDA": "on", "TORCH_CUDA_ARCH_LIST": "3.5"}, "ON"),
        ({"USE_CUDA": "0", "TORCH_CUDA_ARCH_LIST": "nonsense"}, "OFF"),
    ],
)
def test_use_cuda_follows_the_environment(environ, use_cuda):
    defines = helpers.cmake_defines(environ, "1")
    assert defines["USE_CUDA"] == use_cuda
    assert ("CANARY_GENCODE" in defines) == (use_cuda == "ON")


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"USE_CUDA": "maybe"}, "USE_CUDA"),
        ({"USE_CUDA": "1"}, "TORCH_CUDA_ARCH_LIST"),
        ({"TORCH_CUDA_ARCH_LIST": "3.5;x"}, "TORCH_CUDA_ARCH_LIST"),
    ],
)
def test_a_wrong_value_names_its_variable(environ, name):
    with pytest.raises(helpers.EnvironmentValueError, match=f"^{name}: "):
        helpers.cmake_defines(environ, "1")


SCRIPT = """
import json, runpy, sys, sysconfig
free_threaded, known = json.loads(sys.argv[2]), sysconfig.get_config_var
sysconfig.get_config_var = lambda name: free_threaded if name == "Py_GIL_DISABLED" else known(name)
import setuptools
arguments = {}
setuptools.setup = lambda **words: arguments.update(words)
runpy.run_path(sys.argv[1])
tag = arguments["options"].get("bdist_wheel", {}).get("py_limited_api")
print(json.dumps([arguments["ext_modules"][0].py_limited_api, tag]))
"""


@pytest.mark.parametrize(("free_threaded", "tag"), [(0, "cp37"), (None, "cp37"), (1, None)])
def test_a_free_threaded_python_has_no_limited_api(free_threaded, tag):
    """Python.h of 3.13t: "The limited API is not currently supported in the free-threaded
    build".
    """
    # In a process of its own: setuptools refuses to take distutils' place where that is imported
    # already.
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        SOURCE.with_name("setup.py"),
        json.dumps(free_threaded),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [tag is not None, tag]


def test_max_jobs_limits_parallel_compilers():
    assert helpers.job_arguments({"MAX_JOBS": "4"}) == ["-j", "4"]
    assert helpers.job_arguments({}) == []
    assert helpers.job_arguments({"MAX_JOBS": ""}) == []


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "4;rm", "99999", "٤"])
def test_wrong_max_jobs(value):
    with pytest.raises(helpers.EnvironmentValueError, match=r"^MAX_JOBS: "):
        helpers.job_arguments({"MAX_JOBS": value})


@pytest.mark.parametrize(
    ("version", "good"), [("3.17.5", False), ("3.18.0", True), ("4.3.4", True), ("5.0.0", False)]
)
def test_cmake_version(version, good):
    text = f"cmake version {version}\n\nCMake suite maintained and supported by Kitware\n"
    if good:
        helpers.check_cmake_version(text)
    else:
        with pytest.raises(helpers.EnvironmentValueError, match=r"wanted: 3\.18"):
            helpers.check_cmake_version(text)
