"""torchvision is built against the published torch of its variant: found by name, checked by
hash.
"""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError, UsageError
from farm.cli.main import main
from farm.index.layout import wheel_key
from farm.index.publish import publish
from farm.index.store_urls import open_store
from farm.plan.settings import Settings
from farm.run import needs
from farm.run.workspace import Watcher, Workspace
from tests.indexes.wheels import build_wheel
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
VARIANT = "sm61-avx-py313"


@pytest.fixture(scope="module")
def plan():
    # Without NCCL's wheel, which is the Python index's.
    return plan_of(VARIANT, "torchvision", "main").model_copy(update={"build_requires": []})


@pytest.fixture
def workspace(tmp_path):
    return Workspace(
        tmp_path, Settings.model_construct(index="index", artifacts=Path("artifacts")), Watcher()
    )


@pytest.fixture
def put(workspace, tmp_path):
    def run(version, tag, group="sm61-avx"):
        path = build_wheel(tmp_path, f"torch-{version}-{tag}.whl").path
        when = datetime(2026, 11, 21, tzinfo=UTC)
        publish(
            open_store(workspace.index_url),
            path,
            group=group,
            upload_time=when,
            provenance={"plan": "0" * 64},
        )
        return path

    return run


def test_the_wheel_of_the_variant_is_fetched_whole(plan, workspace, put, tmp_path):
    [need] = plan.needs
    version = need.partition("==")[2]
    put(version, "cp312-cp312-manylinux_2_28_x86_64")
    put(version, "cp313-cp313-win_amd64")
    put(version, "cp313-cp313-manylinux_2_28_aarch64")
    put(f"{version}.1", "cp313-cp313-manylinux_2_28_x86_64")
    wanted = put(version, "cp313-cp313-manylinux_2_28_x86_64")
    fetched = needs.fetch_needs(workspace, plan, tmp_path / "needs")
    files = {path.name: path for path in (tmp_path / "needs").iterdir()}
    assert fetched == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()
    }
    assert [path.name for path in (tmp_path / "needs").iterdir()] == [wanted.name]
    assert (tmp_path / "needs" / wanted.name).read_bytes() == wanted.read_bytes()


@pytest.mark.parametrize("tag", ["cp312-cp312-manylinux_2_28_x86_64", "cp313-cp313-win_amd64"])
def test_another_wheel_is_not_accepted(plan, workspace, put, tag):
    put(plan.needs[0].partition("==")[2], tag)
    with pytest.raises(UsageError, match=r"built against torch==.*no such wheel") as caught:
        needs.published_needs(workspace, plan)
    chosen = f"--variant {VARIANT} --package torch --platform linux --channel main"
    assert caught.value.hint == f"build it first: farm submit {chosen}"


def test_other_bytes_than_the_page_says_are_not_used(plan, workspace, put, tmp_path):
    wheel = put(plan.needs[0].partition("==")[2], "cp313-cp313-manylinux_2_28_x86_64")
    (tmp_path / "index" / wheel_key(wheel.name)).write_bytes(b"something else")
    with pytest.raises(InfrastructureError, match="other bytes than its page says"):
        needs.fetch_needs(workspace, plan, tmp_path / "needs")
    assert not list((tmp_path / "needs").iterdir())


def test_the_index_is_not_opened_for_a_build_that_needs_nothing(plan, tmp_path):
    away = Workspace(tmp_path, Settings.model_construct(index="gopher://nowhere"), Watcher())
    with pytest.raises(UsageError, match="gopher"):
        needs.published_needs(away, plan)
    assert needs.published_needs(away, plan.model_copy(update={"needs": []})) == {}


def test_submit_says_what_to_build_first_and_starts_nothing(tmp_path, capsys, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    for name in ("ci", "dockerfiles"):
        (project / name).symlink_to(ROOT / name)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    code = main(
        ["--project", str(project), "submit", "--variant", VARIANT, "--package", "torchvision"]
    )
    assert code == 2
    assert f"farm submit --variant {VARIANT} --package torch " in capsys.readouterr().err
    assert not (project / "artifacts").exists()
