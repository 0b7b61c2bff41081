"""Which runner can take which job: reasons, each on its own and together."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.engines.runners import Needs, Reported, differences, fits, needs_of, stranded, untaken
from farm.plan.compat.stack import Stack
from farm.plan.matrix import load_matrix
from farm.plan.settings import Runner, load_github, load_runners
from farm.plan.variant import Variant, cpus

ROOT = Path(__file__).parents[3]
LABELS = ("self-hosted", "linux", "x64", "farm-smoke", "gpu", "sm35", "avx")


def smoke(variant="sm35-avx-py311", cuda="11.8", platform="linux", **more):
    return Needs("smoke", Stack("torch", Variant.parse(variant), platform, cuda=cuda), **more)


def build(variant="sm35-avx-py311", platform="linux", **more):
    return Needs("build", Stack("torch", Variant.parse(variant), platform, cuda="11.8"), **more)


@pytest.fixture
def k40():
    return load_runners(ROOT)["k40"]


def changed(runner, **values):
    return Runner.model_validate({**runner.model_dump(), **values})


def test_the_k40_takes_what_it_can_run(k40):
    for variant in ("sm35-avx-py311", "sm35-sse41-py311", "kepler-avx-py311", "legacy-avx-py39"):
        assert fits(smoke(variant), k40) == []
    assert fits(smoke("cpu-avx-py311", cuda=None), k40) == []
    assert fits(smoke(labels=LABELS), k40) == []


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (build(), "takes smoke jobs, not build"),
        (smoke(platform="windows"), "is a linux machine, the job is for windows"),
        (smoke("sm35-avx2-py311"), "its CPU levels are sse41, avx, the wheel is for avx2"),
        (smoke("sm50-avx-py311"), "its GPUs are Tesla K40 (sm35), the wheel is for sm50"),
        (smoke(labels=(*LABELS, "ltsc2019")), "has no label ltsc2019"),
    ],
)
def test_one_reason_alone(k40, job, reason):
    assert fits(job, k40) == [reason]


def test_a_driver_that_cannot(k40):
    """CUDA 12 needs branch 525 on Linux; 470 is Kepler's last branch."""
    old = "driver 470.256.02 does not run CUDA 12.1: CUDA 12 needs driver 525 or newer on linux"
    assert fits(smoke(cuda="12.1"), k40) == [old]
    new = changed(k40, gpus=[{"name": "Tesla K40", "sm": "sm35", "driver": "535.54.03"}])
    assert fits(smoke(), new) == [
        "driver 535.54.03 does not run sm35 (Kepler, Tesla K40): 470 is the last driver branch for Kepler"
    ]
    unknown = changed(k40, gpus=[{"name": "Tesla K40", "sm": "sm35"}])
    assert fits(smoke(cuda="12.1"), unknown) == []


def test_one_good_card_is_enough(k40):
    both = changed(
        k40,
        gpus=[{"name": "Tesla K40", "sm": "sm35", "driver": "550.1"}, {"name": "Tesla K80", "sm": "sm37"}],
    )
    assert fits(smoke("kepler-avx-py311"), both) == []
    assert len(fits(smoke(), both)) == 1


def test_builds_need_room():
    runner = Runner.model_validate({"engine": "docker", "memory_gb": 2.0, "disk_gb": 20.0})
    assert fits(build(memory_gb=2.0, disk_gb=20.0), runner) == []
    assert fits(build(memory_gb=2.2, disk_gb=30.5), runner) == [
        "gives a job 2 GB of memory, it needs 2.2",
        "gives a job 20 GB of disk, it needs 30.5",
    ]
    assert fits(build(memory_gb=999, disk_gb=999), Runner(engine="docker")) == []  # not written down: all there is


def test_a_windows_container_needs_the_hosts_own_build():
    """Under process isolation."""
    host = Runner.model_validate(
        {"engine": "github", "platform": "windows", "os_version": "10.0.20348", "labels": ["x"]}
    )
    assert fits(build(platform="windows", os_version="10.0.20348"), host) == []
    assert fits(build(platform="windows", os_version="10.0.2034"), host) == [
        "has system version 10.0.20348, the job needs 10.0.2034"
    ]


@pytest.mark.parametrize("platform", ["windows", "macos"])
def test_no_docker_engine_is_promised_what_it_does_not_build(platform):
    host = Runner.model_validate({"engine": "docker", "platform": platform})
    assert f"the docker engine builds nothing for {platform}" in fits(build(platform=platform), host)


def test_labels_count_on_github_alone():
    assert fits(build(labels=("farm-build",)), Runner(engine="docker")) == []
    assert fits(build(labels=("Farm-Build",)), Runner(engine="github", labels=["FARM-build"])) == []


def test_machines():
    assert fits(build("sm90-armv9-py313"), Runner(engine="docker")) == ["is x86_64, the job is for aarch64"]


facts = st.fixed_dictionaries(
    {
        "engine": st.just("docker"),
        "platform": st.sampled_from(["linux", "windows"]),
        "jobs": st.sampled_from([["build"], ["smoke"], ["build", "smoke"]]),
        "memory_gb": st.one_of(st.none(), st.floats(1, 64)),
        "cpu_levels": st.lists(st.sampled_from(["sse41", "avx", "avx2"]), unique=True),
        "gpus": st.lists(st.sampled_from([{"name": "a", "sm": "sm35"}, {"name": "b", "sm": "sm61"}]), max_size=2),
    }
)


@given(
    facts, st.sampled_from(["sm35-avx-py311", "cpu-avx2-py311"]), st.floats(1, 64), st.sampled_from(["build", "smoke"])
)
def test_more_of_everything_never_fits_less(values, variant, memory, kind):
    """A runner that can do more takes every job that the smaller one takes."""
    job = Needs(kind, Stack("torch", Variant.parse(variant), "linux"), memory_gb=memory)
    small = Runner.model_validate(values)
    more = {
        **values,
        "jobs": ["build", "smoke"],
        "memory_gb": None,
        "cpu_levels": ["sse41", "avx", "avx2"],
        "gpus": [*values["gpus"], {"name": "b", "sm": "sm61"}],
    }
    large = Runner.model_validate(more)
    assert fits(job, small) or not fits(job, large)


def test_needs_come_from_the_matrix_and_the_recipe():
    build_ = load_matrix(ROOT).named("kepler-2.0.1/pytorch-python311-cuda11_7-sm35-avx")
    needs = needs_of("build", build_, load_github(ROOT))
    assert (needs.memory_gb, needs.disk_gb) == (2.2, 20)
    assert needs.labels == ("self-hosted", "linux", "x64", "farm-build")
    assert needs.stack.cuda == "11.7"
    assert needs_of("smoke", build_, load_github(ROOT)).labels == LABELS
    assert needs_of("smoke", build_, None).labels == ()


def test_jobs_that_nobody_can_take_are_grouped_with_the_nearest_runner(k40):
    runners = {"local": Runner(engine="docker"), "k40": k40}
    jobs = [("a", smoke("sm50-avx-py311")), ("b", smoke("sm50-avx-py39")), ("c", smoke()), ("d", build())]
    groups = untaken(jobs, runners)
    assert [(g.kind, g.names, g.nearest, len(g.reasons)) for g in groups] == [("smoke", ("a", "b"), "k40", 1)]
    assert untaken(jobs[:1], {})[0].reasons == ("there is no runner",)


def test_jobs_whose_runners_are_all_offline(k40):
    runners = {"local": Runner(engine="docker"), "k40": k40, "k40-2": k40}
    jobs = [("a", smoke()), ("b", build()), ("c", smoke("sm50-avx-py311"))]
    found = stranded(jobs, runners, {"local"})
    assert [(g.kind, g.names, g.runners) for g in found] == [("smoke", ("a",), ("k40", "k40-2"))]
    assert stranded(jobs, runners, {"local", "k40-2"}) == []


def test_every_cpu_level_and_every_gpu_word_is_answered(k40):
    for level in cpus():
        assert isinstance(fits(smoke(f"legacy-{level}-py311"), k40), list)


# -- what the engine says against what the file says --


def test_as_written(k40):
    seen = Reported(online=True, platform="linux", machine="x86_64", labels=tuple(k40.labels))
    assert differences(k40, seen) == []
    assert differences(k40, Reported(online=False, why="gone")) == []  # an engine that says nothing contradicts nothing


def test_a_runner_that_lies(k40):
    host = changed(k40, cpus=4.0, memory_gb=16.0, slots=2, os_version="12")
    seen = Reported(
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
    assert differences(host, Reported(online=True, memory_gb=62.7)) == []
    assert differences(host, Reported(online=True, memory_gb=60.0)) != []
