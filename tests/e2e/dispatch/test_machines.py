"""Several Docker machines of ci/runners.yaml: each builds, by an engine of its own."""

import io

import yaml


def test_each_docker_machine_builds(farm, swarm, client, toolchain):
    """Only the one called local ever did."""
    other = swarm.clients[2]  # a daemon with a socket, images and a network of its own
    for name in ("farm/base:debian-bookworm", toolchain.tag):
        other.images.load(io.BytesIO(b"".join(client.images.get(name).save(named=True))))
    runners = farm.project / "ci" / "runners.yaml"
    data = yaml.safe_load(runners.read_text())
    data["runners"] = {
        "local": {"engine": "docker", "memory_gb": 2},
        "m2": {"engine": "docker", "url": swarm.url(2), "memory_gb": 2},
    }
    runners.write_text(yaml.safe_dump(data))
    select = ["--variant", "cpu-avx-py311", "--variant", "cpu-avx2-py311", "--package", "canary"]
    runs = farm.json("submit", *select, "--no-smoke", "--detach")
    ids = [run["run"] for run in runs]
    waited = farm.run("wait", *ids)
    assert waited.returncode == 0, (waited.stdout, waited.stderr)
    told = [farm.json("status", run) for run in ids]
    assert sorted(run["runner"] for run in told) == ["local", "m2"]
    for run in told:
        assert "farm: done" in farm.run("logs", run["id"]).stdout
    assert not other.containers.list(all=True, filters={"label": "farm.kind=build"})
    trees = {volume.name for volume in other.volumes.list() if volume.name.startswith("farm-tree-")}
    assert trees == set()
