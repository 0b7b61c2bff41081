"""The wheels of libraries that a plan names: in the plan or not, and fetched for verify."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from farm.plan.settings import Settings
from farm.run.job_inputs import library_wheels
from farm.run.workspace import Watcher, Workspace
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]


@pytest.fixture
def workspace(tmp_path):
    return Workspace(
        tmp_path, Settings.model_construct(index="index", artifacts=Path("artifacts")), Watcher()
    )


def test_a_build_for_a_gpu_needs_nvidias_wheels_and_one_for_the_cpu_none():
    names = [
        wheel.package for wheel in plan_of("sm35-avx-py311", channel="debian-2.6.0").library_wheels
    ]
    assert {"nvidia-cublas-cu11", "nvidia-cuda-nvrtc-cu11", "nvidia-cudnn-cu11"} < set(names)
    assert plan_of("cpu-avx-py311", channel="debian-2.6.0").library_wheels == []


def test_vendored_is_another_packing_of_the_same_build():
    thin, thick = (
        plan_of("sm35-avx-py311", channel="debian-2.6.0"),
        plan_of("sm35-avx-py311", channel="debian-2.6.0", cuda_libraries="vendored"),
    )
    assert thick.library_wheels == []
    assert thick.digest == thin.digest


def test_those_that_the_wheel_requires_are_put_under_their_own_names_from_the_cache_of_sources(
    workspace, tmp_path
):
    """All of CUDA's are 1 GB, and a package may need one of them."""
    plan = plan_of("sm35-avx-py311", channel="debian-2.6.0")
    sha256 = hashlib.sha256(b"a wheel").hexdigest()
    other, wanted = plan.library_wheels[
        :2
    ]  # of `other` there is nothing in the cache, and no network here
    wanted = wanted.model_copy(update={"sha256": sha256})
    cache = workspace.artifacts / "sources"
    cache.mkdir(parents=True)
    (cache / f"{sha256}.whl").write_bytes(b"a wheel")
    wheel = tmp_path / "canary-1.0-py3-none-any.whl"
    metadata = f"Name: canary\nVersion: 1.0\nRequires-Dist: {wanted.package.replace('-', '_')}\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {
            "METADATA": metadata,
            "WHEEL": "Tag: py3-none-any\n",
            "RECORD": "",
        }.items():
            archive.writestr(f"canary-1.0.dist-info/{name}", text)
    folder = tmp_path / "dependencies"
    plan = plan.model_copy(update={"library_wheels": [other, wanted]})
    for _ in range(2):  # a run that goes on finds what is there
        assert library_wheels(workspace, plan, wheel, folder) == [folder]
        assert [path.name for path in folder.iterdir()] == [wanted.file]
    assert (
        library_wheels(
            workspace, plan_of("cpu-avx-py311", channel="debian-2.6.0"), wheel, tmp_path / "none"
        )
        == []
    )
