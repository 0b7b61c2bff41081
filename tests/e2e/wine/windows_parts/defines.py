"""What PyTorch's own build scripts hand to CMake in some environments: runs in Windows' Python.

Usage: defines.py CASE... -- TREE... A case is a file with what cmd's `set` printed. Prints JSON:
for each case and each tree the arguments of CMake's configuration, from its own scripts. One
process for all: Python starts slowly under Wine.
"""

import importlib
import json
import os
import sys
from pathlib import Path


def arguments_of(tree: str) -> list[str]:
    """The arguments that the scripts of `tree` give to CMake; they are imported anew, and read
    os.environ then.
    """
    os.chdir(tree)
    for name in [each for each in sys.modules if each.partition(".")[0] == "tools"]:
        del sys.modules[name]
    sys.path[:0] = [tree]
    libs = importlib.import_module("tools.build_pytorch_libs")
    cmake = importlib.import_module("tools.setup_helpers.cmake").CMake
    sys.path.remove(tree)
    given: list[list[str]] = []
    cmake.run = lambda _self, args, env: given.append(list(args))  # noqa: ARG005 the signature is PyTorch's
    build = getattr(libs, "build_pytorch", None) or libs.build_caffe2
    build(
        version=os.environ["PYTORCH_BUILD_VERSION"],
        cmake_python_library=f"{sys.base_prefix}/libs/python311.lib",
        build_python=True,
        rerun_cmake=True,
        cmake_only=True,
        cmake=cmake(),
    )
    [arguments] = given
    return arguments


def enter(case: str) -> None:
    """Makes the environment of a case this process's; os.environ writes names in upper case, as
    when Python starts.
    """
    os.environ.clear()
    for line in Path(case).read_text(encoding="latin-1").splitlines():
        name, is_variable, value = line.partition("=")
        if is_variable:
            os.environ[name] = value


split = sys.argv.index("--")
found = {}
for each in [os.path.abspath(path) for path in sys.argv[1:split]]:  # noqa: PTH100 trees change the current folder
    enter(each)
    found[Path(each).stem] = [arguments_of(tree) for tree in sys.argv[split + 1 :]]
print(json.dumps(found))
