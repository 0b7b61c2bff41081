"""The scripts of the workflows, job after job, on this machine: each in a checkout of its own, as
on GitHub.

What is GitHub's (actions, artifacts, environments, OIDC) is stood in for by copying files; it has
not been run.
"""

import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
import yaml

from tests.e2e.conftest import Farm, containers_of
from tests.e2e.workflow import carry_out, checkout, of_entry, outputs

CHANNEL = "kepler-debian"
Job = Callable[..., Path]


@pytest.fixture
def job(tmp_path: Path, client: docker.DockerClient) -> Iterator[Job]:
    """Runs the scripts of a job in a fresh checkout, with `before` copied in; returns the
    checkout.
    """
    checkouts: list[Path] = []

    def run(
        workflow: str,
        name: str,
        before: dict[str, Path] | None = None,
        fails: bool = False,
        **env: str,
    ) -> Path:
        made = checkout(tmp_path / f"{len(checkouts)}-{name}", tmp_path / "index", before)
        checkouts.append(made)
        carry_out(
            workflow,
            name,
            made,
            path=Path(sys.executable).parent,
            fails=fails,
            environ=os.environ,
            **env,
        )
        return made

    yield run
    for made in checkouts:
        for folder in (made / "artifacts" / "runs").glob("*"):
            for container in containers_of(client, folder.name):
                client.containers.get(container).remove(force=True)


def test_build_wheels_from_the_plan_to_the_pip_line(job: Job, tmp_path: Path) -> None:
    inputs = {"CHANNEL": CHANNEL, "PACKAGE": "canary", "VARIANT": "sm35-avx-*", "CHUNK": "0"}
    matrix = outputs(job("build-wheels.yml", "plan", **inputs))
    (entry,) = matrix["build"]["include"]
    env = of_entry(entry)

    built = job("build-wheels.yml", "build", **env) / "farm-out"
    (wheel,) = built.glob("*.whl")
    assert (
        wheel.name == "canary-0.1.0+cu118.sm35.avx-cp311-cp311-linux_x86_64.whl"
        or "manylinux" in wheel.name
    )
    job("build-wheels.yml", "verify", {"wheel": built}, **env)
    published = job("build-wheels.yml", "publish", {"wheel": built}, **env) / "published"
    document = json.loads((published / "published.json").read_text())
    assert document["changed"] is True
    assert document["pip"].startswith("pip install 'canary @ ")
    assert "/canary-0.1.0%2Bcu118.sm35.avx-" in document["pip"]
    job("build-wheels.yml", "smoke", {"published": published}, **env)

    tampered = tmp_path / "tampered"
    tampered.mkdir()
    with zipfile.ZipFile(wheel) as good, zipfile.ZipFile(tampered / wheel.name, "w") as bad:
        for member in good.infolist():
            bad.writestr(
                member,
                good.read(member) + (b"#" if member.filename.endswith("version.py") else b""),
            )
    job("build-wheels.yml", "verify", {"wheel": tampered}, fails=True, **env)


def test_a_plan_that_the_engine_sends(job: Job, farm: Farm) -> None:
    plan = farm.run("plan", "--variant", "sm35-avx-py311", "--package", "canary", "--json").stdout
    left = job("build-plan.yml", "build", PLAN=json.dumps(json.loads(plan))) / "farm-out"
    assert len(list((left / "wheel").glob("*.whl"))) == 1
    assert list((left / "lib").iterdir())  # the CUDA runtime, for repair


def test_a_runner_is_asked_what_it_is(farm: Farm, client: docker.DockerClient) -> None:
    info = client.info()
    path = farm.project / "ci" / "runners.yaml"
    data = yaml.safe_load(path.read_text())
    data["runners"] = {
        "local": {"engine": "docker"},
        "liar": {"engine": "docker", "platform": "windows", "cpus": float(info["NCPU"] + 1)},
    }
    path.write_text(yaml.safe_dump(data))
    done = farm.run("runners", "check", "--json")
    assert done.returncode == 4
    found = json.loads(done.stdout)
    assert found["runners"]["local"]["online"] is True
    assert found["runners"]["local"]["differences"] == []
    assert found["runners"]["liar"]["differences"] == [
        "platform is linux, the file says windows",
        f"has {info['NCPU']} CPUs, the file promises 1 x {info['NCPU'] + 1}",
    ]
