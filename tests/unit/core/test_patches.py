# ruff: noqa: E501 - pieces of source files stay as they are
"""Declared changes: applied once, skipped with a reason, refused where the source looks different."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from farm.plan.patches import Facts, PatchError, compiler_name, not_needed, plan_patches, write
from farm.plan.recipe import patches

INTEL = Facts("windows", 80, 4, "icx")
PINNED = Facts("windows", 72, 3, "cl")
BUILD_LIBS = """import os
from setuptools import distutils  # type: ignore[import]

def _overlay_windows_vcvars(env: Dict[str, str]) -> Dict[str, str]:
    vc_arch = 'x64' if IS_64BIT else 'x86'
    vc_env: Dict[str, str] = distutils._msvccompiler._get_vc_env(vc_arch)
    return vc_env
"""
FILES = {
    "tools/build_pytorch_libs.py": BUILD_LIBS,
    "third_party/protobuf/CMakeLists.txt": "cmake_minimum_required(VERSION 3.1.3)\nproject(protobuf)\n",
    "third_party/flatbuffers/CMakeLists.txt": "cmake_minimum_required(VERSION 2.8.12...3.22.1)\n",
    "third_party/FXdiv/CMakeLists.txt": "CMAKE_MINIMUM_REQUIRED(VERSION 3.5 FATAL_ERROR)\n",
    "cmake/x.cmake": "  cmake_minimum_required( VERSION 2.8.12 FATAL_ERROR)\n",
    "third_party/flatbuffers/include/flatbuffers/stl_emulation.h": " private:\n  pointer const data_;\n"
    "  const size_type count_;\n",
    "torch/csrc/jit/runtime/static/native_ops.cpp": "namespace {\nclass TORCH_API ForkedSubgraphSRLauncher {\n};\n}\n",
    "functorch/csrc/dim/arena.h": "#ifdef _WIN32\n#include <intrin.h>\ninline unsigned int __builtin_clz(unsigned int x)"
    " {\n    unsigned long r = 0;\n    _BitScanReverse(&r, x);\n    return (31 - r);\n}\n#endif\n\n"
    "inline int round2min8(int num) {\n   int nzeros = __builtin_clz((num - 1)|4);\n}\n",
}


@pytest.fixture
def tree(tmp_path):
    """What stands in a tree of torch 1.13 where the five patches look."""
    for name, text in FILES.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return tmp_path / "source"


def states(outcomes):
    return {outcome.name: outcome.state for outcome in outcomes}


def contents(tree):
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in sorted(tree.rglob("*")) if path.is_file()}


def test_all_five_are_needed_with_new_tools_and_intels_compiler_and_then_done(tree):
    known = patches("torch")
    first = plan_patches(tree, known, INTEL)
    assert list(states(first).items()) == [
        ("vcvars-overlay", "needed"),
        ("cmake-minimum", "needed"),
        ("flatbuffers-const", "needed"),
        ("forked-subgraph-export", "needed"),
        ("functorch-clz", "needed"),
    ]
    assert contents(tree) == {name: text.encode() for name, text in FILES.items()}, "a dry run writes nothing"
    write(tree, first)
    after = {name: content.decode() for name, content in contents(tree).items()}
    libs = after["tools/build_pytorch_libs.py"]
    assert "from setuptools._distutils import _msvccompiler as distutils_msvccompiler\n" in libs
    assert "vc_env: Dict[str, str] = distutils_msvccompiler._get_vc_env(vc_arch)" in libs
    assert after["third_party/protobuf/CMakeLists.txt"].startswith("cmake_minimum_required(VERSION 3.5)")
    assert after["cmake/x.cmake"] == "  cmake_minimum_required( VERSION 3.5 FATAL_ERROR)\n"
    for unchanged in ("third_party/flatbuffers/CMakeLists.txt", "third_party/FXdiv/CMakeLists.txt"):
        assert after[unchanged] == FILES[unchanged]
    assert "  size_type count_;" in after["third_party/flatbuffers/include/flatbuffers/stl_emulation.h"]
    assert "TORCH_API" not in after["torch/csrc/jit/runtime/static/native_ops.cpp"]
    assert "__builtin_clz((num" not in after["functorch/csrc/dim/arena.h"]
    again = plan_patches(tree, known, INTEL)
    assert set(states(again).values()) == {"done"}
    assert not any(outcome.changed for outcome in again)


def test_the_pinned_build_environment_needs_none_and_says_why(tree):
    outcomes = plan_patches(tree, patches("torch"), PINNED)
    assert set(states(outcomes).values()) == {"skipped"}
    why = {outcome.name: outcome.why for outcome in outcomes}
    assert why["vcvars-overlay"] == "it is for setuptools 74 and newer, this is setuptools 72"
    assert why["cmake-minimum"] == "it is for cmake 4 and newer, this is cmake 3"
    assert "the compiler is cl" in why["functorch-clz"]


def test_a_release_that_lacks_the_thing_is_skipped(tree):
    """1.12.1 has no ForkedSubgraphSRLauncher and no functorch; 2.6.0 has the fallback for setuptools."""
    (tree / "torch/csrc/jit/runtime/static/native_ops.cpp").write_text("namespace {\n}\n")
    (tree / "functorch/csrc/dim/arena.h").unlink()
    libs = tree / "tools/build_pytorch_libs.py"
    libs.write_text(
        "try:\n    distutils._msvccompiler\nexcept AttributeError:\n    from setuptools._distutils import _msvccompiler\n"
    )
    outcomes = {outcome.name: outcome for outcome in plan_patches(tree, patches("torch"), INTEL)}
    assert outcomes["forked-subgraph-export"].why.startswith("this release has no ForkedSubgraphSRLauncher in")
    assert outcomes["functorch-clz"].why == "this release has no functorch/csrc/dim/arena.h"
    assert {outcomes[name].state for name in ("forked-subgraph-export", "functorch-clz")} == {"skipped"}
    assert outcomes["vcvars-overlay"].state == "done"


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("tools/build_pytorch_libs.py", "import distutils  # type", "import distutils as d  # type", "vcvars-overlay"),
        ("functorch/csrc/dim/arena.h", "return (31 - r)", "return 31 - r", "functorch-clz"),
        ("torch/csrc/jit/runtime/static/native_ops.cpp", "class TORCH_API", "struct TORCH_API", "forked-subgraph"),
    ],
)
def test_a_source_that_looks_different_is_refused_and_nothing_is_written(tree, name, old, new, told):
    path = tree / name
    path.write_text(path.read_text().replace(old, new))
    before = contents(tree)
    with pytest.raises(PatchError, match=rf"patch {told}.*{name} does not look as expected: .* 0 times, not once"):
        plan_patches(tree, patches("torch"), INTEL)
    path.write_text(FILES[name] + FILES[name])
    with pytest.raises(PatchError, match="2 times, not once"):
        plan_patches(tree, patches("torch"), INTEL)
    path.write_text(FILES[name].replace(old, new))
    assert contents(tree) == before


def test_windows_line_ends_stay(tree):
    path = tree / "torch/csrc/jit/runtime/static/native_ops.cpp"
    path.write_bytes(FILES["torch/csrc/jit/runtime/static/native_ops.cpp"].replace("\n", "\r\n").encode())
    write(tree, plan_patches(tree, patches("torch"), INTEL))
    assert path.read_bytes() == b"namespace {\r\nclass ForkedSubgraphSRLauncher {\r\n};\r\n}\r\n"


def test_a_link_that_leads_out_is_refused(tree, tmp_path):
    outside = tmp_path / "outside.h"
    outside.write_text(FILES["functorch/csrc/dim/arena.h"])
    path = tree / "functorch/csrc/dim/arena.h"
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(PatchError, match="leads out of"):
        plan_patches(tree, patches("torch"), INTEL)


@pytest.mark.parametrize(
    ("when", "facts", "why"),
    [
        ({"setuptools_from": 74}, Facts("linux", 74, None, "gcc"), None),
        ({"setuptools_from": 74}, Facts("linux", None, None, "gcc"), "there is no setuptools here"),
        ({"cmake_from": 4}, Facts("linux", None, 4, "gcc"), None),
        (
            {"system": "windows", "setuptools_from": 74},
            Facts("linux", 80, 4, "gcc"),
            "it is for windows, this is linux",
        ),
        ({"compilers": ["icx"]}, Facts("linux", 80, 4, "gcc"), "the compiler is gcc"),
    ],
)
def test_when_a_patch_is_needed(when, facts, why):
    found = not_needed(when, facts)
    assert found == why if why is None else why in found


def test_names_of_compilers():
    names = {
        "gcc-12": "gcc",
        "/usr/bin/clang-18": "clang",
        r"C:\oneAPI\bin\icx.EXE": "icx",
        "clang-cl": "clang-cl",
        "cl": "cl",
    }
    assert {name: compiler_name(name) for name in names} == names


def test_the_copied_script_does_the_same_without_the_farm(tree, tmp_path):
    """As a build runs it: one file, standard library, isolated Python."""
    from farm.plan import patches as module

    script, declared = tmp_path / "patches.py", tmp_path / "patches.json"
    script.write_text(Path(module.__file__).read_text())
    known = [patch | {"when": {}} for patch in patches("torch")]
    declared.write_text(json.dumps(known))
    command = [sys.executable, "-I", script, declared, tree]
    dry = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True)
    assert "+class ForkedSubgraphSRLauncher {" in dry.stdout
    assert contents(tree) == {name: text.encode() for name, text in FILES.items()}
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("applied") == 5
    twice = subprocess.run(command, capture_output=True, text=True, check=True)
    assert twice.stdout.count(": done: ") == 5
    (tree / "functorch/csrc/dim/arena.h").write_text("__builtin_clz, otherwise")
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, "does not look as expected" in refused.stderr) == (5, True)
