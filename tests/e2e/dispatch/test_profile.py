"""One container profile (farm/engines/docker.py): `docker inspect` of a running build, and what it
finds itself.

What the engines cannot have in common stands here as in docs/how-to/dispatch.md: a swarm service
has the node's network and swap, and its program, not the engine, gives up new privileges.
"""

import time

import pytest

from farm.engines import docker
from farm.engines.base import Job
from farm.engines.docker import DockerEngine

MEMORY = 256 << 20
LOOK = (
    "grep -E '^(NoNewPrivs|Cap[A-Z][a-z]+|Seccomp):' /proc/self/status; ls /sys/class/net; "
    "echo looked; sleep 600"
)


@pytest.fixture
def docker_build(client, toolchain):
    """The engine, the image by its name there, and a function from a handle to the container."""
    return DockerEngine(client, cpus=0.5, memory=MEMORY), toolchain.tag, client.containers.get


@pytest.fixture
def swarm_build(swarm, swarm_engine, pulled):
    def container(handle):
        wanted = {"label": f"com.docker.swarm.service.id={handle}"}
        return next(
            c for node in swarm.clients.values() for c in node.containers.list(filters=wanted)
        )

    return swarm_engine, pulled, container


@pytest.fixture(params=["docker", "swarm"])
def build(request):
    return request.param, *request.getfixturevalue(f"{request.param}_build")


def test_a_build_may_do_no_more_than_the_profile_says(build):
    name, engine, image, container = build
    job = Job("test", image, ("sh", "-c", LOOK), {}, "/farm/out", {}, engine.capacity(), 600)
    handle = engine.submit(job)
    try:
        log, until = b"", time.monotonic() + 300
        for piece in engine.logs(handle):
            log += piece
            if b"looked" in log or time.monotonic() > until:
                break
        found = container(handle).attrs
    finally:
        engine.cancel(handle)
        engine.release(handle)
    host = found["HostConfig"]
    assert host["CapDrop"] == docker.CAP_DROP
    assert not host["CapAdd"]
    assert (host["Privileged"], host["PidMode"], host["IpcMode"] in ("private", "shareable")) == (
        False,
        "",
        True,
    )
    assert (host["PidsLimit"], host["Memory"]) == (docker.PIDS, MEMORY)
    assert host["LogConfig"] == {"Type": docker.LOG_DRIVER, "Config": docker.LOG_OPTIONS}
    assert not host["Binds"]
    assert not host["Devices"]
    assert [
        mount
        for mount in found["Mounts"]
        if mount["Type"] == "bind" and "/swarm/" not in mount["Source"]
    ] == []

    status = dict(line.split(":\t") for line in log.decode().splitlines() if ":\t" in line)
    assert status.pop("NoNewPrivs") == "1"
    assert status.pop("Seccomp") == "2", "Docker's own filter"
    assert set(status) == {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}
    assert {int(value, 16) for value in status.values()} == {0}

    networks = set(log.decode().split("\n")) & {"lo", "eth0"}
    if name == "docker":
        assert (host["NetworkMode"], networks) == ("none", {"lo"})
        assert host["MemorySwap"] == host["Memory"], "no swap"
        assert host["SecurityOpt"] == docker.SECURITY
    else:
        assert "eth0" in networks
        assert not host["SecurityOpt"]
