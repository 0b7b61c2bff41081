"""Two machines share what they compiled through a bucket: packs of ccache's entries, taken in without network.

A machine is a project, which has a cache of its own; the Docker engine, the compilers,
ccache and the server are real.
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from farm.index.backends import open_store
from farm.plan.settings import load_settings
from farm.run.journal import Journal
from farm.run.packs import KIND
from farm.run.report import Silent
from farm.run.workspace import Workspace
from tests.e2e.conftest import Farm, containers_of, make_project
from tests.larger_canary import larger_canary
from tests.servers import moto
from tests.servers.buckets import make_bucket

FILES = 3
ARGUMENTS = ("submit", "--variant", "cpu-avx-py311", "--package", "canary", "--no-smoke", "--json", "--rebuild")
Machines = Callable[..., Farm]


@pytest.fixture
def bucket(credentials: dict[str, str]) -> Iterator[str]:
    with moto.in_thread() as endpoint:
        yield make_bucket(endpoint, f"cache-{uuid.uuid4().hex}")  # moto keeps its buckets as long as this process


@pytest.fixture
def machine(tmp_path: Path, client: docker.DockerClient) -> Iterator[Machines]:
    """Makes machines that have the same farm with the same larger canary, which compiles through ccache."""
    larger_canary(tmp_path / "code", FILES, ccache=True)
    made: list[tuple[Farm, str]] = []

    def make(name: str, store: str | None) -> Farm:
        farm = Farm(make_project(tmp_path / name), tmp_path / "code")
        change(farm, compiler_cache=store)
        made.append((farm, volume_of(farm)))
        return farm

    yield make
    for farm, volume in made:
        kept = {volume}
        with Journal(farm.project / "artifacts/farm.db") as journal:
            for run in journal.runs():
                kept.add(f"farm-tree-{run.plan_digest[:24]}")  # of a build that failed
                for container in containers_of(client, run.id):
                    client.containers.get(container).remove(force=True)
        for each in client.volumes.list():
            if each.name in kept:
                each.remove()


def volume_of(farm: Farm) -> str:
    """The canary's compiler cache in a project."""
    workspace = Workspace(farm.project, load_settings(farm.project), Silent())
    return f"farm-ccache-{workspace.id}-canary"


def change(farm: Farm, **values: Any) -> None:
    path = farm.project / "ci/farm.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values))


def build(farm: Farm) -> tuple[bytes, Counter[str], dict[str, Any] | None, str]:
    """The wheel; how its compiles ended; what the journal notes of packs; what was said."""
    done = farm.run(*ARGUMENTS)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    counted: Counter[str] = Counter()
    for line in farm.json("cache", "report", said["run"])["lines"]:
        if line["axis"] != "configure":
            counted.update({"hits": line["direct"] + line["preprocessed"], "misses": line["miss"]})
    noted = [event["data"] for event in farm.json("status", said["run"])["events"] if event["kind"] == KIND]
    assert len(noted) <= 1
    return Path(said["wheel"]).read_bytes(), counted, noted[0] if noted else None, done.stderr


def counted_by_ccache(farm: Farm, client: docker.DockerClient) -> int:
    """How many files it believes to hold: what it does not know of it would never tidy up."""
    (image,) = {path.read_text() for path in (farm.project / "artifacts/runs").glob("*/image.id")}
    mounted = {volume_of(farm): {"bind": "/cache", "mode": "ro"}}
    command = ["ccache", "--dir", "/cache", "--print-stats"]
    said = client.containers.run(image, command, volumes=mounted, network_mode="none", remove=True).decode()
    return int(next(line.split()[1] for line in said.splitlines() if line.startswith("files_in_cache")))


def packs_in(store: str) -> list[str]:
    return sorted(open_store(store).list("packs/"))


def test_what_one_machine_compiled_the_other_has(machine: Machines, bucket: str, client: docker.DockerClient) -> None:
    store = bucket.replace("?", "/cache?")
    one, two, alone = (machine(name, place) for name, place in (("one", store), ("two", store), ("alone", None)))

    wheel, counted, told, _ = build(one)
    assert counted["hits"] == 0
    assert counted["misses"] >= FILES
    assert told is not None
    assert (told["held"], told["put"]) == ([], True)
    assert told["objects"] >= counted["misses"]
    (pack,) = packs_in(store)
    assert pack.startswith("packs/canary-0.1.0-x86_64-debian-bookworm/")
    assert pack.endswith(f"-{told['pack']}.tar")

    second, served, told_two, _ = build(two)
    assert served == Counter(hits=counted["misses"], misses=0)
    assert told_two is not None
    assert (told_two["held"], told_two["pack"]) == ([told["pack"]], None)
    assert packs_in(store) == [pack]

    # The same bytes as without: packs change nothing but the time.
    own, compiled, nothing, _ = build(alone)
    assert counted_by_ccache(two, client) >= told["objects"]
    assert compiled == counted
    assert nothing is None
    assert second == wheel == own

    # Each machine knows what its cache has had, and fetches it once.
    for farm in (one, two):
        _, again, told_again, said = build(farm)
        assert again == served
        assert told_again is not None
        assert (told_again["held"], told_again["pack"]) == ([told["pack"]], None)
        assert "compiler cache: 0 packs (0.0 MB) of 1 in the store" in said

    # The provenance names what other machines had a hand in.
    for farm, held in ((one, []), (two, [{"sha256": told["pack"]}])):
        (record,) = (json.loads(path.read_text()) for path in farm.index.rglob("canary-*.whl.json"))
        parts = record["provenance"]["slsa"]["buildDefinition"]["resolvedDependencies"]
        assert [part["digest"] for part in parts if part["name"] == "compiler cache pack"] == held


def test_a_store_that_is_away_or_broken_costs_no_build(machine: Machines, bucket: str) -> None:
    one = machine("one", bucket)
    wheel, _, told, _ = build(one)
    assert told is not None

    away = machine("away", "s3://cache?endpoint_url=http://127.0.0.1:9")
    alone, counted, _, said = build(away)
    assert alone == wheel
    assert counted["hits"] == 0
    assert said.count("the build goes on without other machines' packs: http://127.0.0.1:9/cache/") == 1
    assert said.count("nothing is put into the store: http://127.0.0.1:9/cache/") == 1

    (key,) = packs_in(bucket)
    store = open_store(bucket)
    found = store.get(key)
    assert found is not None
    broken = bytearray(found.data)
    broken[len(broken) // 2] ^= 1
    assert store.replace(key, bytes(broken), found.etag, content_type="application/x-tar")
    other, counted, told_other, said = build(machine("other", bucket))
    assert other == wheel
    assert counted["hits"] == 0
    assert told_other is not None
    assert told_other["held"] == []
    assert said.count("is left out: its bytes are not what its name says") == 1


def test_what_a_failed_build_compiled_is_not_lost(machine: Machines, bucket: str, tmp_path: Path) -> None:
    source = tmp_path / "code/farm/recipes/canary/src/csrc" / f"heavy_{FILES - 1}.cpp"
    text = source.read_text()
    source.write_text(f"{text}#error of the source\n")
    failed = machine("one", bucket).run(*ARGUMENTS)
    assert failed.returncode == 5, failed.stderr
    assert "#error of the source" in failed.stderr
    (pack,) = packs_in(bucket)
    source.write_text(text)
    _, counted, told, _ = build(machine("two", bucket))
    assert told is not None
    assert pack.endswith(f"-{told['held'][0]}.tar")
    assert counted["hits"] >= 1
    assert counted["misses"] >= 1
    assert told["put"] is True  # the rest
    assert len(packs_in(bucket)) == 2
