"""The environment variables of the canary's build."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import strategies as st

import farm.recipes

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


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("3.5", ["-gencode=arch=compute_35,code=sm_35"]),
        (
            "3.5+PTX",
            ["-gencode=arch=compute_35,code=sm_35", "-gencode=arch=compute_35,code=compute_35"],
        ),
        (
            "3.5;5.0 8.6",
            [
                "-gencode=arch=compute_35,code=sm_35",
                "-gencode=arch=compute_50,code=sm_50",
                "-gencode=arch=compute_86,code=sm_86",
            ],
        ),
        ("9.0a", ["-gencode=arch=compute_90a,code=sm_90a"]),
        ("10.0", ["-gencode=arch=compute_100,code=sm_100"]),
        (" 3.5 ; 3.5+PTX;", ["-gencode=arch=compute_35,code=sm_35", "-gencode=arch=compute_35,code=compute_35"]),
        ("12.0f", ["-gencode=arch=compute_120f,code=sm_120f"]),
    ],
)
def test_arch_list_becomes_exactly_these_flags(text, flags):
    assert helpers.gencode_flags(helpers.parse_arch_list(text)) == flags


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ; ",
        "35",
        "sm_35",
        "3.5+ptx",
        "3.5,3.7",
        "3.55",
        "0.5",
        "103.0",
        "Kepler",
        "3.5+PTX+PTX",
        "3.5b",
        "٣.5",
        "3.5\x00",
    ],
)
def test_a_wrong_arch_list_is_refused_by_name(text):
    with pytest.raises(helpers.EnvironmentValueError, match=r"^TORCH_CUDA_ARCH_LIST: "):
        helpers.parse_arch_list(text)


archs = st.builds("{}.{}{}".format, st.integers(1, 99), st.integers(0, 9), st.sampled_from(["", "a", "f"]))


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
def test_use_cuda(environ, use_cuda):
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


ASKED = """
import json, runpy, sys, sysconfig
free_threaded, known = json.loads(sys.argv[2]), sysconfig.get_config_var
sysconfig.get_config_var = lambda name: free_threaded if name == "Py_GIL_DISABLED" else known(name)
import setuptools
asked = {}
setuptools.setup = lambda **words: asked.update(words)
runpy.run_path(sys.argv[1])
tag = asked["options"].get("bdist_wheel", {}).get("py_limited_api")
print(json.dumps([asked["ext_modules"][0].py_limited_api, tag]))
"""


@pytest.mark.parametrize(("free_threaded", "tag"), [(0, "cp37"), (None, "cp37"), (1, None)])
def test_a_free_threaded_python_has_no_limited_api(free_threaded, tag):
    """Python.h of 3.13t: "The limited API is not currently supported in the free-threaded build"."""
    # In a process of its own: setuptools refuses to take distutils' place where that is imported already.
    command = [sys.executable, "-c", ASKED, SOURCE.with_name("setup.py"), json.dumps(free_threaded)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [tag is not None, tag]
