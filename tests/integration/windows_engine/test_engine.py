"""The docker engine with a daemon for Windows containers: a stand-in that behaves as documented.

Nothing of this ran on Windows (tests/servers/windows_docker.py).
"""

import dataclasses

import pytest

from farm.base.errors import InfrastructureError, NoRunnerError
from farm.engines import base_images, images
from farm.engines.base import Cause
from farm.engines.docker import DockerEngine, connect, host_version, system_of
from farm.plan.platforms.base import platform
from farm.plan.render import render
from farm.run.build_job import container_cache, follow, judge, make_job
from farm.run.workspace import Watcher
from tests.plans import ROOT, plan_of
from tests.servers.windows_docker import windows_engine

OLDER = "10.0.17763"


def build(container, volumes):
    """build.cmd in the container: uses its cache, and leaves a wheel and a log."""
    [out] = (word for word in container.config["Cmd"] if word.endswith("build.log"))
    folder = out.rpartition("\\")[0]
    cache = next(name for name in volumes if name.endswith("-cache"))
    container.log = b"farm: step build\r\n[1/1] a.cu\r\n"
    if volumes[cache]:
        container.log += b"from the cache\r\n"
    volumes[cache]["a.obj"] = b"object"
    if container.config["Env"] and "FAIL=1" in container.config["Env"]:
        container.log += (
            b"FAILED: x.cu.obj\r\nnvcc error   : 'cudafe++' died with status 0xC0000409\r\n"
        )
        return 5
    if "WAIT=1" in (container.config["Env"] or []):
        container.stopped.wait(60)
    container.files[rf"{folder}\wheel\torch-2.0.1-cp311-cp311-win_amd64.whl"] = b"wheel"
    container.files[rf"{folder}\lib\cudart64_110.dll"] = b"dll"
    container.files[out] = container.log
    return 0


@pytest.fixture(scope="module")
def plan():
    return plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows")


@pytest.fixture
def served():
    with windows_engine(build) as (url, state):
        yield url, state


@pytest.fixture
def engine(served):
    client = connect(served[0])
    yield DockerEngine(client, cpus=4, memory=16 << 30, disk=200 * 10**9)
    client.close()


@pytest.fixture
def job(plan, tmp_path, engine):
    render(ROOT, plan).write(tmp_path / "context")

    def make(attempt="1", **environment):
        made = make_job(
            plan,
            image="farm/toolchain:0123456789abcdef",
            inputs={"/farm/job": tmp_path / "context/job"},
            capacity=engine.capacity(),
            labels={"farm.run": "r", "farm.attempt": attempt},
            volumes=container_cache(plan, "project"),
        )
        return dataclasses.replace(made, environment=made.environment | environment)

    return make


def test_a_build_runs_in_a_container_of_windows(served, engine, job, plan, tmp_path):
    _, state = served
    handle = engine.submit(job())
    observed = follow(engine, handle, tmp_path / "build.log", Watcher())
    assert (observed.state, observed.exit_code, observed.cause) == ("done", 0, None)
    assert b"step build" in (tmp_path / "build.log").read_bytes()
    collected = engine.collect(handle, tmp_path / "built", 1 << 30)
    names = {path.relative_to(tmp_path / "built").as_posix() for path in collected}
    assert names == {
        "wheel/torch-2.0.1-cp311-cp311-win_amd64.whl", "lib/cudart64_110.dll", "build.log",
    }  # fmt: skip
    [container] = state.containers.values()
    host = container.config["HostConfig"]
    assert host["Isolation"] == "process"
    assert (host["Memory"], host["NanoCpus"]) == (16 << 30, 4 * 10**9)
    assert host["StorageOpt"] == {"size": "200GB"}
    assert r"C:\farm\job\build.cmd" in container.files
    assert container.config["Cmd"][:3] == [
        r"C:\farm\python\python.exe", r"C:\farm\job\follow_cmd.py", r"C:\farm\job\build.cmd",
    ]  # fmt: skip
    assert container.config["Cmd"][-1] == str(plan.timeout_minutes * 60)
    engine.release(handle)
    assert not state.containers


def test_a_second_build_finds_what_the_first_compiled(served, engine, job, tmp_path):
    for attempt in ("1", "2"):
        handle = engine.submit(job(attempt))
        follow(engine, handle, tmp_path / f"{attempt}.log", Watcher())
        engine.release(handle)
    assert b"from the cache" not in (tmp_path / "1.log").read_bytes()
    assert b"from the cache" in (tmp_path / "2.log").read_bytes()
    assert sorted(served[1].volumes) == [
        "farm-ccache-project-torch-cache",
        "farm-ccache-project-torch-sources",
    ]
    for volume in list(served[1].volumes):
        engine.discard(volume)
    assert not served[1].volumes


def test_a_cancelled_build_ends(engine, job):
    handle = engine.submit(job(WAIT="1"))
    engine.cancel(handle)
    observed = engine.observe(handle)
    assert (observed.state, observed.cause) == ("done", Cause.KILLED)


def test_a_later_controller_resumes_the_container(served, job, engine, tmp_path):
    handle = engine.submit(job())
    later = DockerEngine(connect(served[0]))
    observed = follow(later, handle, tmp_path / "build.log", Watcher())
    assert observed.exit_code == 0
    assert later.collect(handle, tmp_path / "built", 1 << 30)


def test_a_submit_that_is_repeated_leaves_one_container(served, engine, job):
    engine.submit(job("7"))
    engine.submit(job("7"))
    assert len(served[1].containers) == 1


def test_a_failed_build_says_the_cause(engine, job, plan, tmp_path):
    handle = engine.submit(job(FAIL="1"))
    observed = follow(engine, handle, tmp_path / "build.log", Watcher())
    with pytest.raises(Exception, match="cudafe") as caught:
        judge(observed, tmp_path / "build.log", plan.platform)
    assert "cause: a compiler, or another program that the build runs, crashed" in str(caught.value)


def test_no_container_has_a_card(engine, job):
    with pytest.raises(NoRunnerError, match="no card"):
        engine.submit(dataclasses.replace(job(), gpus=1))


@pytest.fixture
def toolchain(plan):
    return images.Toolchain(
        repository="farm/toolchain",
        context=render(ROOT, plan).image,
        digest="d",
        base="sha256:base",
        labels={},
        system=plan.platform,
        options={"isolation": "process", "container_limits": {"memory": 16 << 30}},
    )


def ensure(client, toolchain, tmp_path):
    return images.ensure_image(client, toolchain, log=tmp_path / "image.log", line=lambda _: None)


def test_the_image_is_made_once_with_the_limits_of_a_build(served, engine, toolchain, tmp_path):
    made = ensure(engine.client, toolchain, tmp_path)
    again = ensure(engine.client, toolchain, tmp_path)
    assert (made.reused, again.reused, made.id == again.id) == (False, True, True)
    [build] = served[1].builds
    assert build["query"]["isolation"] == "process"
    assert build["query"]["memory"] == str(16 << 30)
    assert {"Dockerfile", "scripts/visual_studio.cmd"} <= set(build["names"])


def test_a_step_of_the_image_that_fails_is_shown(served, engine, toolchain, tmp_path):
    served[1].fails = 'get.cmd: "https://x" cannot be downloaded'
    with pytest.raises(
        InfrastructureError, match=r"ended with exit code 9(.|\n)*cannot be downloaded"
    ):
        ensure(engine.client, toolchain, tmp_path)


def test_an_engine_for_linux_is_refused_with_what_to_write(served, engine, toolchain, tmp_path):
    served[1].info["OSType"] = "linux"
    with pytest.raises(NoRunnerError, match="does not run Windows containers") as caught:
        ensure(engine.client, toolchain, tmp_path)
    assert "platform: windows" in caught.value.hint


def test_the_base_image_fits_the_host(served, engine, plan):
    _, state = served
    assert system_of(engine.client) == "windows"
    names = platform(plan.platform).container_bases(plan, host_version(engine.client))
    assert [name.rpartition("-")[2] for name in names] == ["ltsc2022"]
    state.registry |= set(names)

    def pulled():
        return base_images.pulled_base(
            engine.client, names, pull_timeout_s=60, line=lambda _: None, note=lambda _: None
        )

    assert pulled() == "sha256:base-4.8-windowsservercore-ltsc2022"
    state.registry.clear()
    assert pulled().startswith("sha256:base-")  # it is here


def test_a_registry_that_has_none_is_named(engine, plan):
    names = platform(plan.platform).container_bases(plan, "10.0.26100")
    with pytest.raises(InfrastructureError, match=r"ltsc2025.*ltsc2022"):
        base_images.pulled_base(
            engine.client, names, pull_timeout_s=60, line=lambda _: None, note=lambda _: None
        )


@pytest.mark.parametrize("version", [OLDER, "", "10", "10.0.x"])
def test_a_host_that_runs_no_such_image_is_refused(plan, version):
    with pytest.raises(NoRunnerError, match="cannot build in a container") as caught:
        platform(plan.platform).container_bases(plan, version)
    assert "--on host" in caught.value.hint
