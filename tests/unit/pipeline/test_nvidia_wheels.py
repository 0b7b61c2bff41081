"""The wheels of libraries that a plan names: in the plan or not, and fetched for verify."""

import hashlib
from pathlib import Path

import pytest

from farm.plan.build import resolve
from farm.plan.selectors import Selectors
from farm.plan.settings import Settings
from farm.plan.variant import Variant
from farm.run.inputs import library_wheels
from farm.run.workspace import Silent, Workspace

ROOT = Path(__file__).parents[3]


def plan_of(variant, **options):
    chosen = {name: (value, f"--{name}") for name, value in options.items()}
    return resolve(ROOT, Selectors(Variant.parse(variant), "torch", "linux", "debian-2.6.0", chosen))


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path, Settings.model_construct(index="index", artifacts=Path("artifacts")), Silent())


def test_a_build_for_a_gpu_needs_nvidias_wheels_and_one_for_the_cpu_none():
    names = [wheel.package for wheel in plan_of("sm35-avx-py311").library_wheels]
    assert {"nvidia-cublas-cu11", "nvidia-cuda-nvrtc-cu11", "nvidia-cudnn-cu11"} < set(names)
    assert plan_of("cpu-avx-py311").library_wheels == []


def test_vendored_is_another_packing_of_the_same_build():
    thin, thick = plan_of("sm35-avx-py311"), plan_of("sm35-avx-py311", cuda_libraries="vendored")
    assert thick.library_wheels == []
    assert thick.digest == thin.digest


def test_they_are_put_under_their_own_names_from_the_cache_of_sources(workspace, tmp_path):
    plan = plan_of("sm35-avx-py311")
    sha256 = hashlib.sha256(b"a wheel").hexdigest()
    wheel = plan.library_wheels[0].model_copy(update={"sha256": sha256})
    cache = workspace.artifacts / "sources"
    cache.mkdir(parents=True)
    (cache / f"{sha256}.whl").write_bytes(b"a wheel")
    folder = tmp_path / "dependencies"
    for _ in range(2):  # a run that goes on finds what is there
        assert library_wheels(workspace, plan.model_copy(update={"library_wheels": [wheel]}), folder) == [folder]
        assert [path.name for path in folder.iterdir()] == [wheel.file]
    assert library_wheels(workspace, plan_of("cpu-avx-py311"), tmp_path / "none") == []
