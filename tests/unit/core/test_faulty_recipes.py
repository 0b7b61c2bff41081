"""A recipe that is gone or broken stays with its package: others are planned and built."""

import shutil
from pathlib import Path

import pytest

from farm.cli.main import main
from farm.plan.matrix import load_matrix

ROOT = Path(__file__).parents[3]
RECIPE = """\
package: {name}
summary: a package of one's own
version: "1.0.0"
source: {{kind: path, path: src}}
platforms: [linux]
env: {{}}
components: []
device_code: false
apt: [python3-build, python3-dev, python3-setuptools, python3-wheel]
memory_per_job_gb: 0.5
disk_gb: 0.5
timeout_minutes: 10
vendor_into: {name}.libs
smoke: {{imports: [{name}]}}
"""
MATRIX = """\
channels:
  mine:
    summary: packages of one's own
    platforms: [linux]
    packages: [good, bad]
    base: debian-bookworm
    toolkit: debian
    cuda: "11.8"
    blas: openblas
    gpus: [cpu]
    cpus: [avx]
    pythons: [py311]
"""
GOOD = ["--variant", "cpu-avx-py311", "--package", "good"]


@pytest.fixture
def project(tmp_path):
    (tmp_path / "ci").mkdir()
    for name in ("farm.yaml", "runners.yaml"):
        (tmp_path / "ci" / name).write_text((ROOT / "ci" / name).read_text())
    (tmp_path / "ci/matrix.yaml").write_text(MATRIX)
    for name in ("good", "bad"):
        folder = tmp_path / "recipes" / name
        (folder / "src").mkdir(parents=True)
        (folder / "src/setup.py").write_text("from setuptools import setup\nsetup()\n")
        (folder / "recipe.yaml").write_text(RECIPE.format(name=name))
    return tmp_path


def gone(project):
    shutil.rmtree(project / "recipes/bad")


def broken(project):
    (project / "recipes/bad/recipe.yaml").write_text("package: bad\nversion: 1.0\n")


def not_yaml(project):
    (project / "recipes/bad/recipe.yaml").write_text("package: [bad\n")


FAULTS = [gone, broken, not_yaml]


def farm(project, *words):
    return main(["--project", str(project), *words])


@pytest.mark.parametrize("fault", FAULTS)
def test_another_package_is_planned_with_a_warning(project, capsys, fault):
    fault(project)
    assert farm(project, "plan", *GOOD) == 0
    output, error = capsys.readouterr()
    assert "good 1.0.0+cpu.avx for cpu-avx-py311" in output
    assert "farm: warning: bad is left out: " in error


@pytest.mark.parametrize("fault", FAULTS)
def test_the_package_itself_is_refused(project, capsys, fault):
    fault(project)
    assert farm(project, "plan", "--variant", "cpu-avx-py311", "--package", "bad") == 2
    assert "bad" in capsys.readouterr().err


@pytest.mark.usefixtures("capsys")
def test_a_channel_without_any_good_recipe_is_refused(project, capsys):
    for name in ("good", "bad"):
        shutil.rmtree(project / "recipes" / name)
    assert farm(project, "plan", *GOOD) == 2
    assert "no recipe for package" in capsys.readouterr().err


def test_remove_takes_away_the_recipe_and_its_line(project, capsys):
    assert farm(project, "recipe", "remove", "bad") == 0
    assert not (project / "recipes/bad").exists()
    assert "packages: [good]" in (project / "ci/matrix.yaml").read_text()
    assert load_matrix(project).faults == ()
    assert farm(project, "plan", *GOOD) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["unknown", "../recipes/bad", "."])
def test_remove_takes_only_a_recipe_of_the_project(project, capsys, name):
    assert farm(project, "recipe", "remove", name) == 2
    assert "it has bad, good" in capsys.readouterr().err
    assert (project / "recipes/bad").exists()
