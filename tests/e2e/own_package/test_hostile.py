"""A package that tries to reach beyond its own build, on a real Docker engine; then a stranger's
build after it.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import yaml

from farm.plan.settings import load_settings
from farm.run.build_job import CACHES, tree_volume
from farm.run.workspace import Watcher, Workspace, open_journal
from tests.e2e.conftest import Farm, containers_of

HOSTILE = Path(__file__).parent / "hostile"
SUBMIT = ("submit", "--variant", "cpu-avx-py311", "--no-smoke")


def project(folder: Path, package: str, source: Path | None = None, **env: str) -> Farm:
    """A project of `farm init` with one package, compiled through ccache."""
    farm = Farm(folder)
    folder.mkdir()
    assert farm.run("init", str(folder)).returncode == 0
    recipe = folder / "recipes" / "hello"
    if source:
        shutil.rmtree(recipe / "src")
        shutil.copytree(source, recipe / "src")
    written = yaml.safe_load((recipe / "recipe.yaml").read_text())
    written["apt"].append("ccache")
    written["env"] |= env
    if package != "hello":
        written |= {
            "package": package,
            "vendor_into": f"{package}.libs",
            "smoke": {"imports": [package]},
        }
        matrix = folder / "ci" / "matrix.yaml"
        matrix.write_text(matrix.read_text().replace("packages: [hello]", f"packages: [{package}]"))
    (recipe / "recipe.yaml").write_text(yaml.safe_dump(written))
    recipe.rename(recipe.with_name(package))
    return farm


def log_of(farm: Farm) -> str:
    (log,) = (farm.project / "artifacts/runs").glob("*/build.log")
    return log.read_text(errors="replace")


@pytest.fixture
def cleaned(tmp_path: Path, client: docker.DockerClient) -> Iterator[None]:
    """The containers and volumes of this test's projects go; other tests have theirs at the same
    time.
    """
    yield
    for run in tmp_path.glob("*/artifacts/runs/*"):
        for container in containers_of(client, run.name):
            client.containers.get(container).remove(force=True)
    own = [name for folder in tmp_path.iterdir() for name in volumes_of(folder)]
    for volume in client.volumes.list():
        if volume.name.startswith(tuple(own)):
            volume.remove()


def volumes_of(folder: Path) -> Iterator[str]:
    """How the names of a project's volumes begin."""
    workspace = Workspace(folder, load_settings(folder), Watcher())
    yield f"{CACHES}{workspace.id}-"
    with open_journal(folder, workspace.settings) as journal:
        yield from (tree_volume(run.plan["digest"]) for run in journal.runs(10))


@pytest.mark.usefixtures("cleaned")
def test_a_hostile_build_changes_nothing_that_another_reads(
    tmp_path: Path, client: docker.DockerClient
) -> None:
    hostile = project(tmp_path / "hostile", "hostile", HOSTILE)
    done = hostile.run(*SUBMIT, "--package", "hostile")
    assert done.returncode == 0, done.stderr
    log = log_of(hostile)
    tries = dict(re.findall(r"^tried (\w+): (.*)$", log, re.MULTILINE))
    assert tries == {
        "cache": "done",  # its own package's alone
        "tree": "done, sees 0 other trees",
        "temporary": "done",  # in its own container
        "logs": "done",
        "steps": "done, process 1: Permission denied",
        "limits": "bounded below 5000 processes",
        "clock": "refused: Operation not permitted",
        "network": "refused: Network is unreachable",
        "device": "refused: Operation not permitted",
        "mount": "refused: Operation not permitted",
        "names": "done",
        "socket": "False",
    }
    assert [line for line in log.splitlines() if line.startswith("farm: ")] == [
        *(f"farm: step {name}" for name in ("source", "build", "libraries")),
        "farm: done",
    ]
    # Nothing of it stands where the farm's own lines begin, or moves the cursor.
    shown = done.stdout + done.stderr
    assert not [line for line in shown.splitlines() if line.startswith("farm: ")]
    assert "\x1b" not in shown
    assert len(max(shown.splitlines(), key=len)) < 3000

    victim = project(tmp_path / "victim", "hello")
    document = json.loads(victim.run(*SUBMIT, "--package", "hello", "--json").stdout)
    assert "stranger" not in log_of(victim)
    assert Path(document["wheel"]).is_file()

    # And again in the hostile package's own project: another package there.
    shutil.copytree(victim.project / "recipes/hello", hostile.project / "recipes/hello")
    matrix = hostile.project / "ci/matrix.yaml"
    matrix.write_text(matrix.read_text().replace("[hostile]", "[hostile, hello]"))
    run = json.loads(hostile.run(*SUBMIT, "--package", "hello", "--json").stdout)["run"]
    assert "stranger" not in (hostile.folder(run) / "build.log").read_text(errors="replace")


@pytest.mark.usefixtures("cleaned")
def test_a_recipe_without_ccache_has_no_cache(tmp_path: Path, client: docker.DockerClient) -> None:
    farm = project(tmp_path / "plain", "hostile", HOSTILE)
    recipe = farm.project / "recipes/hostile/recipe.yaml"
    recipe.write_text(recipe.read_text().replace("- ccache\n", ""))
    assert farm.run(*SUBMIT, "--package", "hostile").returncode == 0
    own = tuple(volumes_of(farm.project))
    kept = [volume.name for volume in client.volumes.list() if volume.name.startswith(own)]
    assert not [name for name in kept if name.startswith(CACHES)]


@pytest.mark.usefixtures("cleaned")
@pytest.mark.parametrize(
    "name", [r"x\nfarm: PUBLISHED forged-1.0-py3-none-any.whl", r"x\x1b[2Ky-1.0-py3-none-any.whl"]
)
def test_a_name_that_is_more_than_a_name(tmp_path: Path, name: str) -> None:
    farm = project(tmp_path / "named", "hostile", HOSTILE, HOSTILE_NAME=name)
    done = farm.run(*SUBMIT, "--package", "hostile")
    assert done.returncode == 5, done.stderr
    assert not [line for line in done.stderr.splitlines() if line.startswith("farm: PUBLISHED")]
    assert "\x1b" not in done.stderr
    assert not list(farm.index.rglob("*.whl"))
