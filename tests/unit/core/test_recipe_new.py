"""`farm recipe new`: what a recipe says of sources that nobody ran."""

import io
import subprocess
import tarfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from farm.base.errors import UsageError
from farm.base.yamlfile import checked
from farm.cli import recipe, sources
from farm.cli.main import main
from farm.cli.package_kind import HINTS, PackageKind, Tree
from farm.plan.recipe import Recipe, use_project
from tests.plans import plan_of

CASES = yaml.safe_load(Path(__file__).with_name("recipe_new.yaml").read_text(encoding="utf-8"))
BACKEND = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'


@pytest.fixture
def project(tmp_path):
    assert main(["init", str(tmp_path / "p")]) == 0
    yield tmp_path / "p"
    use_project(tmp_path / "none")


@pytest.fixture
def source(project):
    def make(**files):
        for name, text in {"pyproject.toml": BACKEND, "core.c": "", **files}.items():
            path = project / "code" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(project / "code")

    return make


def new(project, source, *more):
    return main(["--project", str(project), "recipe", "new", source, *more])


def written(project, name="fast-thing"):
    return yaml.safe_load((project / "recipes" / name / "recipe.yaml").read_text())


ABOUT = (
    BACKEND
    + '[project]\nname = "Fast.Thing"\nversion = "1.2"\ndescription = "Fast: \\"very\\"\\nenv: '
    '{A: b}"\n'
)


def test_a_folder_becomes_a_recipe_that_can_be_planned(project, source, capsys):
    where = source(
        **{
            "pyproject.toml": ABOUT,
            "src/fast_thing/__init__.py": "",
            "tests/__init__.py": "",
            "src/a.c": '#include <fftw3.h>\n#include "own.h"\n#include <zlib.h>\n',
            "src/zlib.h": "",
            "include/win/fftw3.h": "",
            "src/b.pyx": "cdef extern from 'lz4.h':\n    pass\n",
            "setup.py": "check_header('png.h')\nif not os.environ.get('FAST_NO_NATIVE'): "
            "flags.append('-march')\n",
            "CMakeLists.txt": "cmake_minimum_required(VERSION 3.20)\n",
        }
    )
    capsys.readouterr()
    assert new(project, where) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "next: farm submit --variant cpu-avx-py311 --package fast-thing"
    made = written(project)
    assert (made["package"], made["version"], made["env"], made["smoke"]) == (
        "Fast.Thing", "1.2", {"CMAKE_GENERATOR": "Ninja", "FAST_NO_NATIVE": "1"}, {"imports": ["fast_thing"]},
    )  # fmt: skip
    assert made["summary"] == 'Fast: "very" env: {A: b}'
    assert set(made["apt"]) - set(HINTS["apt"]) == {
        "libfftw3-dev",
        "liblz4-dev",
        "libpng-dev",
    }  # it brings its own zlib.h
    assert (made["components"], made["device_code"]) == ([], False)
    plan = plan_of("cpu-avx-py311", "fast-thing", project=project)
    assert plan.version == "1.2+cpu.avx"
    assert "packages: [hello, fast-thing] " in (project / "ci/matrix.yaml").read_text()


FOREIGN = {
    "pyproject.toml": ABOUT,
    "CMakeLists.txt": "project(fast LANGUAGES CXX)\nadd_subdirectory(extern/taskflow)\n",
    "src/fast.cpp": "#include <zlib.h>\n",
    "extern/taskflow/taskflow.hpp": "#include <lz4.h>\n",
    "extern/taskflow/3rd-party/eigen/test/a.cu": "#include <cublas_v2.h>\n",
    "extern/taskflow/3rd-party/httplib.h": "#include <openssl/ssl.h>\n",
    "third_party/other/b.c": "#include <gmp.h>\n",
    "tests/c.cu": "",
}


def test_sources_of_others_count_where_the_build_names_them(project, source, capsys):
    """rapidfuzz became a build for each GPU, with nvcc and six libraries of Eigen's tests."""
    assert new(project, source(**FOREIGN)) == 0
    made = written(project)
    assert (made["components"], made["device_code"]) == ([], False)
    assert set(made["apt"]) - set(HINTS["apt"]) == {"zlib1g-dev", "liblz4-dev"}
    assert "note: CUDA was found under extern/taskflow alone" in capsys.readouterr().out


def test_sources_of_others_that_the_build_compiles_for_cuda_are_its_own(project, source):
    files = {
        "pyproject.toml": ABOUT,
        "setup.py": "CUDAExtension(sources=['third_party/kernels/a.cu'])\n",
        "third_party/kernels/a.cu": "#include <curand.h>\n",
    }
    assert new(project, source(**files)) == 0
    made = written(project)
    assert made["components"] == ["nvcc", "headers", "cudart", "curand"]
    assert made["device_code"]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"fast_thing/__init__.py": "", "tests/x.c": ""}, "is Python alone"),
        ({"Cargo.toml": "", "src/lib.rs": ""}, "is built from Rust"),
        ({"fast_thing/__init__.py": "", "fast_thing/libfast.so": ""}, "holds 1 finished libraries"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is_written(
    project, source, capsys, files, reason
):
    where = source(**{"pyproject.toml": ABOUT, **files})
    (Path(where) / "core.c").unlink()
    before = sorted(project.rglob("*"))
    assert new(project, where) == 3
    error = capsys.readouterr().err
    assert reason in error
    assert "\n  next: " in error
    assert sorted(project.rglob("*")) == before
    assert new(project, where, "--anyway") == 0


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("CMakeLists.txt", "find_package(TBB REQUIRED)\nfind_package(Python REQUIRED)\n"),
        ("meson.build", "dep = dependency('tbb', required: true)\n"),
        ("CMakeLists.txt", "pkg_check_modules(TBB REQUIRED tbb)\n"),
    ],
)
def test_a_library_that_the_build_asks_for_is_a_package_of_debian(project, source, script, text):
    """manifold3d ended at its first build without TBB."""
    assert new(project, source(**{"pyproject.toml": ABOUT, script: text})) == 0
    assert set(written(project)["apt"]) - set(HINTS["apt"]) == {"libtbb-dev"}


def test_a_build_for_its_own_cpu_is_corrected(project, source, capsys, tmp_path):
    """annoy's first build was refused by verify, minutes later."""
    setup = "extra_compile_args = ['-march=native']  # -march=native\n"
    files = {"setup.py": setup, "cmake/own flags.cmake": "add_compile_options(-march=native)\n"}
    where = Path(source(**files, **{"README.md": "-march=native"}))
    assert new(project, str(where)) == 0
    said = capsys.readouterr().out
    assert "note: setup.py and cmake/own flags.cmake: -march=native, code for the CPU" in said
    (script,) = project.glob("recipes/*/job/prepare.sh")
    subprocess.run(["bash", script], cwd=where, check=True)
    assert "native" not in (where / "setup.py").read_text().partition("#")[0]
    assert (where / "cmake/own flags.cmake").read_text() == "add_compile_options(-mtune=generic)\n"
    assert (where / "README.md").read_text() == "-march=native"


def test_a_builds_own_switch_against_its_own_cpu_is_taken(project, source, capsys):
    setup = "if not os.environ.get('FAST_NO_NATIVE'):\n    flags = ['-march=native']\n"
    assert new(project, source(**{"pyproject.toml": ABOUT, "setup.py": setup})) == 0
    assert written(project)["env"] == {"FAST_NO_NATIVE": "1"}
    assert not list(project.glob("recipes/*/job"))
    assert "-march=native" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        (["fast/_fast.pyx"], True),
        (["fast/_fast.pyx", "fast/_other.c"], True),
        (["fast/_fast.pyx", "fast/_fast.c"], False),
        (["fast/_fast.pyx", "fast/_fast.cpp"], False),
        (["tests/ext.pyx", "core.c"], False),
    ],
)
def test_files_of_cython_without_their_c_need_cython(names, needed):
    """frozenlist's own build backend asks for it while it runs."""
    kind = PackageKind(Tree("x", tuple(names), lambda _name: b""))
    assert kind.needs_cython == needed


ASKS = "#include <cpuid.h>\nint has(void) { return __get_cpuid_max(0, 0); }\n"
TARGET = '__attribute__((__target__("avx2"))) void fast(void) {}\n'


@pytest.mark.parametrize(
    ("files", "dispatching"),
    [
        ({"core.c": ASKS + TARGET, "fast_thing/__init__.py": ""}, ["fast_thing/*.so"]),
        ({"core.c": ASKS + TARGET, "src/fast_thing/__init__.py": ""}, ["fast_thing/*.so"]),
        (
            {
                "core.c": "if (__builtin_cpu_supports(name)) run();",
                "wide.c": "#include <immintrin.h>\n",
                "fast.egg-info/top_level.txt": "_fast_thing\nfast_thing\n",
                "fast_thing/__init__.py": "",
            },
            ["_fast_thing.cpython-*.so", "_fast_thing.abi3.so", "fast_thing/*.so"],
        ),
        ({"core.c": ASKS, "fast_thing/__init__.py": ""}, None),
        ({"core.c": TARGET, "fast_thing/__init__.py": ""}, None),
        (
            {"third_party/x.c": ASKS + TARGET, "core.c": "", "fast_thing/__init__.py": ""},
            None,
        ),
    ],
    ids=["both", "in src", "a module beside it", "asks alone", "flags alone", "another's code"],
)
def test_code_that_chooses_by_the_cpu_is_in_the_recipe(project, source, capsys, files, dispatching):
    """xxhash, pybase64 and zstandard were refused by verify at their first submit."""
    assert new(project, source(**{"pyproject.toml": ABOUT, **files})) == 0
    assert written(project)["smoke"]["imports"] == ["fast_thing"]
    assert written(project).get("verify", {}).get("dispatching") == dispatching
    assert ("note: its code asks the CPU" in capsys.readouterr().out) == bool(dispatching)
    plan = plan_of("cpu-avx-py311", "fast-thing", project=project)
    assert list(plan.verify.dispatching) == (dispatching or [])


def test_a_library_without_an_entry_is_a_note(project, source, capsys):
    assert new(project, source(**{"CMakeLists.txt": "find_package(Frobnicate)\n"})) == 0
    assert "note: the build may ask for Frobnicate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("metadata", "files", "licence"),
    [
        ("License: MIT\n", {}, "MIT"),
        ("License-Expression: BSD-3-Clause\n", {}, "BSD-3-Clause"),
        (
            "License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License\n",
            {},
            "MIT License",
        ),
        ("License: UNKNOWN\n", {"LICENSE": "\nMIT License\n\nCopyright …\n"}, "MIT License"),
        (
            "License: BSD 3-Clause License\n        \n        Copyright …\n",
            {},
            "BSD 3-Clause License",
        ),
        ("", {}, ""),
    ],
)
def test_the_licence_is_a_few_words(metadata, files, licence):
    tree = Tree("x", tuple(files), lambda name: files[name].encode())
    assert PackageKind(tree).licence(HeaderParser().parsestr(metadata)) == licence


def test_a_recipe_has_the_compiler_cache(project, source):
    assert new(project, source()) == 0
    assert "ccache" in written(project, "code")["apt"]


def test_cuda_components_follow_from_the_sources(project, source):
    assert (
        new(project, source(**{"pyproject.toml": ABOUT, "a.cu": "#include <cublas_v2.h>\n"})) == 0
    )
    made = written(project)
    assert made["components"] == ["nvcc", "headers", "cudart", "cublas"]
    assert made["device_code"]
    plan = plan_of("sm35-avx-py311", "fast-thing", project=project)
    assert plan.env["CUDAARCHS"] == "35-real"


@pytest.mark.parametrize(("libraries", "stub"), [('["cuda"]', ["driver_stub"]), ('["cudart"]', [])])
def test_what_links_with_the_driver_gets_its_stub(project, source, libraries, stub):
    """PyCUDA's first build ended at `cannot find -lcuda`."""
    code = {
        "pyproject.toml": ABOUT,
        "a.cpp": "#include <cuda.h>\n",
        "setup.py": f"CUDA_LIBRARIES = {libraries}\n",
    }
    assert new(project, source(**code)) == 0
    made = written(project)
    assert made["components"] == ["nvcc", "headers", "cudart", *stub]
    assert ("LIBRARY_PATH" in made["env"]) == bool(stub)


def test_what_cmake_would_fetch_is_named(project, source, capsys):
    """implicit and sentencepiece failed so at their first build, after minutes."""
    text = (
        "include(FetchContent)\n# FetchContent_Declare(old)\nfetchcontent_declare( json\n  URL "
        "https://x.example)\n"
    )
    assert new(project, source(**{"pyproject.toml": ABOUT, "CMakeLists.txt": text})) == 0
    assert "note: CMake may fetch json while it configures" in capsys.readouterr().out


def test_an_extension_of_torch_names_the_channels_release(project, source, capsys, monkeypatch):
    monkeypatch.setitem(HINTS, "torch_imports", ())  # resolved, they need an index
    assert new(project, source(**{"pyproject.toml": ABOUT + 'dependencies = ["torch>=2"]\n'})) == 0
    assert "note: it is built against torch 2." in capsys.readouterr().out
    plan = plan_of("cpu-avx-py311", "fast-thing", project=project)
    assert plan.needs[0].startswith("torch==")


def test_recipe_new_overwrites_nothing_and_needs_one_channel(project, source, capsys):
    where = source(**{"pyproject.toml": ABOUT})
    assert new(project, where, "--channel", "other") == 2
    assert "next: --channel mine" in capsys.readouterr().err
    assert new(project, where) == 0
    before = (project / "ci/matrix.yaml").read_text()
    assert new(project, where) == 2
    assert "fast-thing is already there: nothing was written" in capsys.readouterr().err
    assert (project / "ci/matrix.yaml").read_text() == before
    assert new(project, "no thing!") == 2
    assert (
        new(project, str(project.parent)) == 2
    )  # the build would not get what is outside of the project


def requirements(tmp_path, **files):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"x-1/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    with sources.unpacked(tmp_path / "x.tar.gz") as tree:
        return sources._requirements(tree, {"numpy": "numpy", "Cython": "Cython"})


def test_requirements_are_those_of_pyproject_else_what_setup_imports(tmp_path):
    text = (
        '[build-system]\nrequires = ["a>1", "b; python_version < \'3\'", "c @ '
        'git+https://x.example/c", "torch"]\n'
    )
    found, notes = requirements(tmp_path, **{"pyproject.toml": text, "setup.py": "import numpy\n"})
    assert found == {"a>1", "torch"}
    assert notes == [
        (
            "pyproject.toml requires 'c @ git+https://x.example/c': add its wheel to "
            "build_requires "
            "by hand"
        )
    ]
    assert requirements(tmp_path, **{"setup.py": "from Cython.Build import x\nimport numpy as np\n"})[0] == {
        "setuptools", "wheel", "wheel>=0.46", "packaging>=24.2", "Cython", "numpy",
    }  # fmt: skip
    old = '[build-system]\nrequires = ["setuptools<70"]\n'  # the newest wheel has no part for it
    assert requirements(tmp_path, **{"pyproject.toml": old})[0] == {
        "setuptools<70",
        "packaging>=24.2",
    }
    assert (
        "cmake>=3.29"
        in requirements(tmp_path, **{"CMakeLists.txt": "CMAKE_MINIMUM_REQUIRED( VERSION 3.29)"})[0]
    )
    with pytest.raises(UsageError, match=r"x\.tar\.gz/pyproject\.toml: not valid TOML"):
        requirements(tmp_path, **{"pyproject.toml": "["})


@pytest.mark.parametrize(
    ("text", "fault"), CASES["a_malformed_pyproject_is_named_with_its_key_and_leaves_nothing"]
)
def test_a_malformed_pyproject_is_named_with_its_key_and_leaves_nothing(
    project, source, capsys, text, fault
):
    Path(where := source(), "pyproject.toml").write_bytes(text.encode("latin-1"))
    before = sorted(project.rglob("*"))
    assert new(project, where) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"farm: {where}/pyproject.toml: {fault}")
    assert "\n  next: " in error
    assert sorted(project.rglob("*")) == before


WORDS = [
    "3",
    "1e999",
    "2026-01-31",
    "true",
    '"no"',
    '"x y!"',
    '"1.2"',
    '"a>1"',
    '"\\U0001f600"',
    "[]",
    "{}",
    '"\\n"',
]
VALUES = st.recursive(
    st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner).map(lambda v: f"[{', '.join(v)}]") | inner.map("{{a = {}}}".format)
    ),
)
KEYS = [
    "project",
    *(f"project.{name}" for name in sources.PyProject.About.model_fields),
    "build-system.requires",
    "tool.scikit-build",
]


@given(
    st.binary()
    | st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2).map(
        lambda d: "\n".join(map(" = ".join, d.items())).encode()
    )
)
@example(b"project.name = 'no'")
@example(b"tool.scikit-build" + b".a" * 20000 + b" = 1")
def test_any_pyproject_is_read_or_refused(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "any" / "code"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_bytes(content)
    try:
        text = recipe._of_folder(folder, folder.parent, anyway=True).recipe([])
        checked(Path("recipe.yaml"), text.encode(), Recipe)
    except UsageError as error:
        assert str(error).startswith(f"{folder}/pyproject.toml: ")  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(("version", "files"), CASES["the_version_is_read_where_it_is_written"])
def test_the_version_is_read_where_it_is_written(project, source, capsys, version, files):
    assert new(project, source(**{"pyproject.toml": BACKEND, **files})) == 0
    assert written(project, "code")["version"] == version
    assert ("correct the recipe's 0.1.0" in capsys.readouterr().out) == (version == "0.1.0")


def test_a_folder_without_a_python_project_is_refused_with_advice(
    project, tmp_path, monkeypatch, capsys
):
    def refusal(*words):
        assert main(["recipe", "new", *words]) == 2
        assert sorted(path.name for path in (project / "recipes").iterdir()) == ["hello"]
        return capsys.readouterr().err

    monkeypatch.chdir(project)
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path}")
    (project / "setup.py").write_text("")
    assert "p is the project itself; without git" in (error := refusal("."))
    assert f"next: git init {project}" in error
    (project / "empty").mkdir()
    assert "empty has neither pyproject.toml nor setup.py" in refusal("./empty")
    (project / "nothere").mkdir()
    assert "no folder and no package 'nother' was found" in (error := refusal("nother"))
    assert "next: farm recipe new ./nothere" in error
    assert "there is no folder " in refusal("./nother")
