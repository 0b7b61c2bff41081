"""`farm recipe new`: what a recipe says of sources that nobody ran."""

import io
import tarfile

import pytest
import yaml

from farm.base.errors import UsageError
from farm.cli import project as recipe
from farm.cli.main import main
from farm.plan.recipe import use_project
from tests.plans import plan_of

BACKEND = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'


@pytest.fixture
def project(tmp_path):
    assert main(["init", str(tmp_path / "p")]) == 0
    yield tmp_path / "p"
    use_project(tmp_path / "none")


@pytest.fixture
def source(project):
    def make(**files):
        for name, text in {"pyproject.toml": BACKEND, **files}.items():
            path = project / "code" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(project / "code")

    return make


def new(project, source, *more):
    return main(["--project", str(project), "recipe", "new", source, *more])


def written(project, name="fast-thing"):
    return yaml.safe_load((project / "recipes" / name / "recipe.yaml").read_text())


ABOUT = BACKEND + '[project]\nname = "Fast.Thing"\nversion = "1.2"\ndescription = "Fast: \\"very\\"\\nenv: {A: b}"\n'


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
            "setup.py": "check_header('png.h')\nif not os.environ.get('FAST_NO_NATIVE'): flags.append('-march')\n",
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
    assert set(made["apt"]) - set(recipe.APT) == {
        "libfftw3-dev",
        "liblz4-dev",
        "libpng-dev",
    }  # it brings its own zlib.h
    assert (made["components"], made["device_code"]) == ([], False)
    plan = plan_of("cpu-avx-py311", "fast-thing", project=project)
    assert plan.version == "1.2+cpu.avx"
    assert "packages: [hello, fast-thing] " in (project / "ci/matrix.yaml").read_text()


def test_cuda_is_what_the_sources_hold(project, source):
    assert new(project, source(**{"pyproject.toml": ABOUT, "a.cu": "#include <cublas_v2.h>\n"})) == 0
    made = written(project)
    assert made["components"] == ["nvcc", "headers", "cudart", "cublas"]
    assert made["device_code"]
    plan = plan_of("sm35-avx-py311", "fast-thing", project=project)
    assert plan.env["CUDAARCHS"] == "35-real"


@pytest.mark.parametrize(("libraries", "stub"), [('["cuda"]', ["driver_stub"]), ('["cudart"]', [])])
def test_what_links_with_the_driver_gets_its_stub(project, source, libraries, stub):
    """PyCUDA's first build ended at `cannot find -lcuda`."""
    code = {"pyproject.toml": ABOUT, "a.cpp": "#include <cuda.h>\n", "setup.py": f"CUDA_LIBRARIES = {libraries}\n"}
    assert new(project, source(**code)) == 0
    made = written(project)
    assert made["components"] == ["nvcc", "headers", "cudart", *stub]
    assert ("LIBRARY_PATH" in made["env"]) == bool(stub)


def test_what_cmake_would_fetch_is_named(project, source, capsys):
    """implicit and sentencepiece failed so at their first build, after minutes."""
    text = "include(FetchContent)\n# FetchContent_Declare(old)\nfetchcontent_declare( json\n  URL https://x.example)\n"
    assert new(project, source(**{"pyproject.toml": ABOUT, "CMakeLists.txt": text})) == 0
    assert "note: CMake may fetch json while it configures" in capsys.readouterr().out


def test_an_extension_of_torch_names_the_channels_release(project, source, capsys, monkeypatch):
    monkeypatch.setattr(recipe, "TORCH_IMPORTS", ())  # resolved, they need an index
    assert new(project, source(**{"pyproject.toml": ABOUT + 'dependencies = ["torch>=2"]\n'})) == 0
    assert "note: it is built against torch 2." in capsys.readouterr().out
    plan = plan_of("cpu-avx-py311", "fast-thing", project=project)
    assert plan.needs[0].startswith("torch==")


def test_nothing_is_written_over_and_a_channel_is_named(project, source, capsys):
    where = source(**{"pyproject.toml": ABOUT})
    assert new(project, where, "--channel", "other") == 2
    assert "next: --channel mine" in capsys.readouterr().err
    assert new(project, where) == 0
    before = (project / "ci/matrix.yaml").read_text()
    assert new(project, where) == 2
    assert "fast-thing is already there: nothing was written" in capsys.readouterr().err
    assert (project / "ci/matrix.yaml").read_text() == before
    assert new(project, "no thing!") == 2
    assert new(project, str(project.parent)) == 2  # the build would not get what is outside of the project


def requirements(tmp_path, **files):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"x-1/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    with recipe._unpacked(tmp_path / "x.tar.gz") as tree:
        return recipe._requirements(tree, {"numpy": "numpy", "Cython": "Cython"})


def test_requirements_are_those_of_pyproject_else_what_setup_imports(tmp_path):
    text = '[build-system]\nrequires = ["a>1", "b; python_version < \'3\'", "c @ git+https://x.example/c", "torch"]\n'
    found, notes = requirements(tmp_path, **{"pyproject.toml": text, "setup.py": "import numpy\n"})
    assert found == {"a>1", "torch"}
    assert notes == ["pyproject.toml requires 'c @ git+https://x.example/c': add its wheel to build_requires by hand"]
    assert requirements(tmp_path, **{"setup.py": "from Cython.Build import x\nimport numpy as np\n"})[0] == {
        "setuptools", "wheel", "packaging>=24.2", "Cython", "numpy",
    }  # fmt: skip
    assert "cmake>=3.29" in requirements(tmp_path, **{"CMakeLists.txt": "CMAKE_MINIMUM_REQUIRED( VERSION 3.29)"})[0]
    with pytest.raises(UsageError, match="cannot be read"):
        requirements(tmp_path, **{"pyproject.toml": "["})
