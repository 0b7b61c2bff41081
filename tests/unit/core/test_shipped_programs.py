"""Programs for machines without the farm: one packed file each, on the oldest Python that it
promises.
"""

import ast
import subprocess
import sys
import zipfile

import pytest

from farm.base.zipapps import ROOT, pack
from farm.engines.swarm import AGENT
from farm.run.offline_bundle import CARRIED, RUNNER
from farm.smoke.runner import PROBE
from tests.pythons import python

PROGRAMS = {PROBE: 7, AGENT: 7, RUNNER: 9}  # the minor version of the oldest Python
COMES_WITH_IT = {RUNNER: {"farm"}}  # the host engine
EACH = pytest.mark.parametrize("entry", PROGRAMS)


def sources(entry):
    path = ROOT.joinpath(*entry.partition(":")[0].split(".")).with_suffix(".py")
    return sorted(path.parent.glob("*.py")) if path.name == "main.py" else [path]


def imported(tree):
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    names += [
        str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level
    ]
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize(
    ("entry", "source"),
    [pytest.param(entry, path, id=path.stem) for entry in PROGRAMS for path in sources(entry)],
)
def test_every_module_needs_the_oldest_python_and_the_standard_library_alone(entry, source):
    tree = ast.parse(source.read_text(encoding="utf-8"), feature_version=(3, PROGRAMS[entry]))
    assert imported(tree) <= sys.stdlib_module_names | COMES_WITH_IT.get(entry, set())


@EACH
def test_the_same_sources_give_the_same_bytes(entry):
    assert pack(entry) == pack(entry)


@EACH
def test_every_module_of_the_packed_file_is_imported_by_the_oldest_python(entry, tmp_path):
    packed = tmp_path / "program"
    packed.write_bytes(pack(entry, CARRIED if entry == RUNNER else ()))
    with zipfile.ZipFile(packed) as archive:
        files = [
            name for name in archive.namelist() if name.startswith("farm_") and name.endswith(".py")
        ]
    modules = [
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in files
    ]
    code = (
        "import importlib, sys; sys.path.insert(0, sys.argv[1]); [importlib.import_module(n) "
        "for n in sys.argv[2:]]"
    )
    oldest = python(PROGRAMS[entry])
    command = [oldest, "-I", "-S", "-c", code, packed, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert len(modules) == len(sources(entry))


def test_the_engine_of_a_bundle_is_for_the_same_python_as_its_program(tmp_path):
    packed = tmp_path / "run"
    packed.write_bytes(pack(RUNNER, CARRIED))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import farm.engines.host as s; print(s)"
    command = [python(PROGRAMS[RUNNER]), "-I", "-S", "-c", code, packed]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert str(tmp_path) in done.stdout, done.stderr
