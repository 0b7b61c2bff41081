"""Several Docker machines of ci/runners.yaml: each builds, by an engine of its own."""

import io
import os

import yaml

from tests.e2e.dispatch.conftest import TLS
from tests.servers.ssh import serve_ssh


def test_a_docker_machine_by_tls_and_one_by_ssh_build(farm, swarm, client, toolchain, monkeypatch):
    """Only the one called local ever did. These are daemons with images and a network of their
    own.
    """
    others = {"secure": swarm.clients[TLS], "remote": swarm.clients[3]}
    for name in ("farm/base:debian-bookworm", toolchain.tag):
        image = b"".join(client.images.get(name).save(named=True))
        for other in others.values():
            other.images.load(io.BytesIO(image))
    programs = serve_ssh(
        swarm.folder / "ssh",
        17023,
        f'DOCKER_HOST={swarm.url(3)} exec sh -c "$SSH_ORIGINAL_COMMAND"',
    )
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for name in (
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
    ):  # requests believes them more than DOCKER_CERT_PATH
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(swarm.certificates))
    runners = farm.project / "ci" / "runners.yaml"
    data = yaml.safe_load(runners.read_text())
    data["runners"] = {
        "secure": {"engine": "docker", "url": f"tcp://{swarm.address(TLS)}:2376", "memory_gb": 2},
        "remote": {"engine": "docker", "url": "ssh://login:17023", "memory_gb": 2},
    }
    runners.write_text(yaml.safe_dump(data))
    select = ["--variant", "cpu-avx-py311", "--variant", "cpu-avx2-py311", "--package", "canary"]
    runs = farm.json("submit", *select, "--no-smoke", "--detach")
    ids = [run["run"] for run in runs]
    waited = farm.run("wait", *ids)
    assert waited.returncode == 0, (waited.stdout, waited.stderr)
    statuses = [farm.json("status", run) for run in ids]
    assert {run["runner"] for run in statuses} == set(others)
    for run in statuses:
        assert "farm: done" in farm.run("logs", run["id"]).stdout
    for other in others.values():
        assert not other.containers.list(all=True, filters={"label": "farm.kind=build"})
        assert not [
            volume for volume in other.volumes.list() if volume.name.startswith("farm-tree-")
        ]
