"""What Docker alone does; what every engine promises is in
tests/e2e/dispatch/test_conformance.py.
"""

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import docker
import pytest

from farm import catalog
from farm.base.errors import BuildFailedError, InfrastructureError
from farm.engines.base import Cause, Job, Observation
from farm.engines.base_images import base_image
from farm.engines.docker import DockerEngine
from farm.engines.images import Toolchain, ensure_image
from tests.e2e.conftest import wait

Start = Callable[..., str]
RELEASE = catalog.debian_releases()["debian-bookworm"]


@pytest.fixture(scope="module")
def image(client: docker.DockerClient) -> str:
    return base_image(
        client, "debian-bookworm", RELEASE, pull_timeout_s=20, mirror=None, line=print
    )


@pytest.fixture
def engine(client: docker.DockerClient) -> DockerEngine:
    return DockerEngine(client, cpus=1, memory=256 << 20)


@pytest.fixture
def start(engine: DockerEngine, image: str) -> Iterator[Start]:
    handles: list[str] = []

    def go(script: str) -> str:
        job = Job(
            "test",
            image,
            ("sh", "-c", script),
            {},
            "/farm/out",
            {"FARM_JOBS": "1"},
            engine.capacity(),
            600,
        )
        handles.append(engine.submit(job))
        return handles[-1]

    yield go
    for handle in handles:
        engine.release(handle)


def test_there_is_no_network_and_no_credential(engine, start):
    handle = start("ls /sys/class/net; env | cut -d= -f1 | sort | tr '\\n' ' '")
    words = b"".join(engine.logs(handle)).decode().split()
    assert words == ["lo", "FARM_JOBS", "HOME", "HOSTNAME", "PATH", "PWD"]


@pytest.mark.parametrize(
    ("trap", "code"), [("", 143), ("trap '' TERM; ", 137)], ids=["SIGTERM", "SIGKILL"]
)
def test_a_container_that_is_stopped_from_outside_was_killed(client, engine, start, trap, code):
    """`docker stop`, or the shutdown of the machine: no failure of the build, which is to go on."""
    handle = start(f"{trap}echo ready; sleep 600")
    assert next(engine.logs(handle)) == b"ready\n"
    client.containers.get(handle).stop(timeout=1)
    assert engine.observe(handle) == Observation("done", exit_code=code, cause=Cause.KILLED)


def test_several_may_release_a_container_at_once(engine, start):
    """`farm cancel` and the run's own controller: whoever comes while Docker removes it is told
    409, or 404.
    """
    handle = start("sleep 600")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(engine.release, [handle] * 8)) == [None] * 8
    wait("its end", lambda: engine.observe(handle).state == "lost")


def test_a_local_tag_serves_as_base_image(client, image, tmp_path):
    client.images.get(image).tag("farm-test/local", "base")
    lines: list[str] = []
    release = RELEASE.model_copy(update={"image": "farm-test/local:base"})
    try:
        found = base_image(
            client, "nothing", release, pull_timeout_s=1, mirror=None, line=lines.append
        )
    finally:
        client.images.remove("farm-test/local:base")
    assert found == image
    assert lines == ["base image: farm-test/local:base is here"]


def test_no_way_to_a_base_image_names_all_three(client, monkeypatch):
    release = RELEASE.model_copy(update={"image": "localhost:1/absent:1"})
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InfrastructureError) as caught:
        base_image(client, "absent", release, pull_timeout_s=5, mirror=None, line=print)
    assert "no local tag" in str(caught.value)
    assert "pull of localhost:1/absent:1 failed" in str(caught.value)
    assert "debootstrap" in str(caught.value)
    assert "docker load" in str(caught.value.hint)


@pytest.mark.parametrize("name", catalog.debian_releases())
def test_debootstrap_takes_every_release(client, monkeypatch, name):
    """Also one that is newer than itself: it gets as far as the mirror, which is out of reach
    here.
    """
    release = catalog.debian_releases()[name].model_copy(
        update={"image": "localhost:1/absent:1", "keyring": RELEASE.keyring}
    )
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(InfrastructureError, match="Failed getting release file"):
        base_image(client, "absent", release, pull_timeout_s=5, mirror=None, line=print)


def test_what_debootstrap_made_becomes_an_image(client, monkeypatch, tmp_path):
    """debootstrap itself is a stand-in here, for speed: it makes the root that its command
    names.
    """
    program = tmp_path / "debootstrap"
    program.write_text(
        "#!/bin/sh\nfor root; do case $root in */root) echo made >$root/made ;; esac; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    release = RELEASE.model_copy(update={"image": "localhost:1/absent:1"})
    name = "test-made-by-debootstrap"
    try:
        made = base_image(client, name, release, pull_timeout_s=5, mirror=None, line=print)
        assert base_image(client, name, release, pull_timeout_s=5, mirror=None, line=print) == made
        box = client.containers.create(made, "none")
        packed, _ = box.get_archive("/made")
        assert b"made\n" in b"".join(packed)
        packed, _ = box.get_archive("/etc/dpkg/dpkg.cfg.d")
        assert b"force-unsafe-io\n" in b"".join(packed)
        box.remove()
    finally:
        client.images.remove(f"farm/base:{name}", force=True)


def test_a_toolkit_takes_from_a_wheel(client, image, tmp_path):
    wheel = tmp_path / "maths-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("maths/include/maths.h", "maths/lib/libmaths.so.1", "maths/lib/__init__.py"):
            archive.writestr(name, name)
    part = {
        "wheel": wheel.name,
        "members": {"maths/include/*.h": "usr/include", "maths/lib/*.so.*": "usr/lib"},
    }
    wanted = Toolchain(
        repository="farm-test/wheel",
        context={
            "Dockerfile": "ARG BASE\nFROM ${BASE}\nCOPY root/ /\nRUN cat /usr/include/maths.h "
            "/usr/lib/libmaths.so.1\n",
            "scripts/toolkit.json": json.dumps({"parts": [{"package": "another"}, part]}),
        },
        digest="1" * 64,
        base=image,
        labels={},
        wheels=lambda: {wheel.name: wheel},
    )
    there = replace(wanted, wheels=lambda: pytest.fail("the image is there"))
    lines: list[str] = []
    log = tmp_path / "image.log"
    try:
        made = ensure_image(client, wanted, log=log, line=lines.append)
        again = ensure_image(client, there, log=log, line=lines.append)
    finally:
        for found in client.images.list("farm-test/wheel"):
            client.images.remove(found.id, force=True)
    assert any("maths/include/maths.hmaths/lib/libmaths.so.1" in text for text in lines)
    assert (made.reused, again.reused, again.id) == (False, True, made.id)
    part["members"]["maths/share/*"] = "usr/share"
    lacking = replace(
        wanted, context={**wanted.context, "scripts/toolkit.json": json.dumps({"parts": [part]})}
    )
    with pytest.raises(
        BuildFailedError,
        match=r"maths-1-py3-none-any.whl holds nothing that matches maths/share/\*",
    ):
        ensure_image(client, lacking, log=log, line=lines.append)


def test_a_failing_image_names_its_step_and_leaves_no_tag(client, image, tmp_path):
    context = {"Dockerfile": "ARG BASE\nFROM ${BASE}\nRUN echo the reason; false\n"}
    wanted = Toolchain(
        repository="farm-test/broken", context=context, digest="0" * 64, base=image, labels={}
    )
    with pytest.raises(InfrastructureError, match=r"(?s)Step 3/3.*false.*the reason") as caught:
        ensure_image(client, wanted, log=tmp_path / "image.log", line=lambda _: None)
    assert str(tmp_path / "image.log") in str(caught.value.hint)
    assert client.images.list("farm-test/broken") == []
