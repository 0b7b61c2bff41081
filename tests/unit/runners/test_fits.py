"""Which machine can smoke-test which wheel: reasons, each on its own and together."""

from pathlib import Path

import pytest

from farm.plan.compat.stack import Stack
from farm.plan.settings import Runner, load_runners
from farm.plan.variant import Variant, cpu_words
from farm.run.backends import MachineReport, cannot_test, differences

ROOT = Path(__file__).parents[3]


def smoke(variant="sm35-avx-py311", cuda="11.8", platform="linux"):
    return Stack("torch", Variant.parse(variant), platform, cuda=cuda)


@pytest.fixture
def k40():
    return load_runners(ROOT)["k40"]


def changed(runner, **values):
    return Runner.model_validate({**runner.model_dump(), **values})


def test_the_k40_takes_what_it_can_run(k40):
    for variant in ("sm35-avx-py311", "sm35-sse41-py311", "kepler-avx-py311", "legacy-avx-py39"):
        assert cannot_test(smoke(variant), k40) == []
    assert cannot_test(smoke("cpu-avx-py311", cuda=None), k40) == []


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (smoke(platform="windows"), "is linux on x86_64, the wheel is for windows on x86_64"),
        (smoke("sm35-avx2-py311"), "its CPU levels are sse41, avx, the wheel is for avx2"),
        (smoke("sm50-avx-py311"), "its GPUs are Tesla K40 (sm35), the wheel is for sm50"),
    ],
)
def test_a_single_mismatch_gives_a_single_reason(k40, job, reason):
    assert cannot_test(job, k40) == [reason]
    assert cannot_test(smoke(), changed(k40, jobs=["build"])) == ["takes build jobs, not smoke"]


def test_a_driver_that_is_too_old_is_named(k40):
    """CUDA 12 needs branch 525 on Linux; 470 is Kepler's last branch."""
    old = "driver 470.256.02 does not run CUDA 12.1: CUDA 12 needs driver 525 or newer on linux"
    assert cannot_test(smoke(cuda="12.1"), k40) == [old]
    new = changed(k40, gpus=[{"name": "Tesla K40", "sm": "sm35", "driver": "535.54.03"}])
    assert cannot_test(smoke(), new) == [
        (
            "driver 535.54.03 does not run sm35 (Kepler, Tesla K40): 470 is the last driver branch "
            "for Kepler"
        )
    ]
    unknown = changed(k40, gpus=[{"name": "Tesla K40", "sm": "sm35"}])
    assert cannot_test(smoke(cuda="12.1"), unknown) == []


def test_one_good_card_is_enough(k40):
    both = changed(
        k40,
        gpus=[
            {"name": "Tesla K40", "sm": "sm35", "driver": "550.1"},
            {"name": "Tesla K80", "sm": "sm37"},
        ],
    )
    assert cannot_test(smoke("kepler-avx-py311"), both) == []
    assert len(cannot_test(smoke(), both)) == 1


@pytest.mark.parametrize("level", cpu_words())
def test_every_cpu_level_is_answered(k40, level):
    assert isinstance(cannot_test(smoke(f"legacy-{level}-py311"), k40), list)


# -- what the engine says against what the file says --


def test_as_written(k40):
    seen = MachineReport(online=True, platform="linux", machine="x86_64", labels=tuple(k40.labels))
    assert differences(k40, seen) == []
    assert (
        differences(k40, MachineReport(online=False, why="gone")) == []
    )  # an engine that says nothing contradicts nothing


def test_a_runner_whose_machine_differs_is_reported(k40):
    host = changed(k40, cpus=4.0, memory_gb=16.0, slots=2, os_version="12")
    seen = MachineReport(
        online=True, platform="windows", machine="aarch64", os_version="11", cpus=7, memory_gb=16,
        labels=("self-hosted", "linux", "x64", "sm61"),
    )  # fmt: skip
    assert differences(host, seen) == [
        "platform is windows, the file says linux",
        "machine is aarch64, the file says x86_64",
        "os_version is 11, the file says 12",
        "has 7 CPUs, the file promises 2 x 4",
        "has 16.0 GB of memory, the file promises 2 x 16",
        "does not carry the label farm-smoke, gpu, cpu, sm35, kepler, legacy, sse41, avx",
        "carries sm61, which the file does not say",
    ]


def test_memory_that_the_kernel_keeps_is_no_difference(k40):
    host = changed(k40, memory_gb=64.0)
    assert differences(host, MachineReport(online=True, memory_gb=62.7)) == []
    assert differences(host, MachineReport(online=True, memory_gb=60.0)) != []
