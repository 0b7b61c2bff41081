"""`farm site build`: into the index of ci/farm.yaml, or into the one that --index names."""

import json
from pathlib import Path

import pytest
import yaml

from farm.cli.main import main
from farm.index.changes import record_event
from farm.index.check import check
from farm.index.store_urls import open_store
from farm.plan.settings import load_settings
from farm.run.smoke import keep_report
from farm.run.workspace import Watcher, Workspace
from farm.smoke.runner import Check, SmokeReport
from tests.indexes.wheels import build_wheel
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]


def project_with(folder, *channels):
    (folder / "ci").mkdir(parents=True)
    (folder / "ci/farm.yaml").write_text("index_public_url: https://wheels.example.org\n")
    matrix = yaml.safe_load((ROOT / "ci/matrix.yaml").read_text())
    small = matrix | {"channels": {name: matrix["channels"][name] for name in channels}}
    (folder / "ci/matrix.yaml").write_text(yaml.safe_dump(small))
    return folder


def test_a_test_record_without_a_run_is_reported(tmp_path, put_into):
    """As `farm smoke` and a submit of what is published make it; and a run's own, after its folder
    was cleaned.
    """
    project = project_with(tmp_path / "project", "debian-2.6.0")
    settings = load_settings(project)
    workspace = Workspace(project, settings, Watcher())
    plan = plan_of("sm35-avx-py311", channel="debian-2.6.0", project=project)
    name = f"torch-{plan.version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    put_into(open_store(workspace.index_url), name, "sm35-avx")
    check_ = Check(
        group="cpu",
        name="import",
        status="passed",
        seen="1",
        expected=None,
        reason=None,
        seconds=0.1,
    )
    for emulated in (None, "SandyBridge"):
        facts = {"machine": "x86_64", "python": "3.11.2"}
        report = SmokeReport(
            module="torch", emulated=emulated, outcome="passed", facts=facts, checks=(check_,)
        )
        assert keep_report(workspace, plan, report) is None
    assert main(["--project", str(project), "site", "build"]) == 0
    wheels = json.loads((project / "artifacts/index/catalog.wheels.json").read_bytes())["wheels"]
    assert list(wheels) == [name]
    assert wheels[name]["state"] == "published, CPU part tested; GPU part not run"
    assert [(test["where"], test["outcome"]) for test in wheels[name]["tests"]] == [
        ("SandyBridge (emulated)", "CPU part passed"),
        ("a real CPU (x86_64)", "CPU part passed"),
    ]


def test_an_index_that_is_named_gets_the_pages_and_its_own_addresses(tmp_path, capsys, put_into):
    project_with(tmp_path / "project", "main", "debian-2.6.0")
    other = tmp_path / "other"
    command = ["--project", str(tmp_path / "project"), "site", "build", "--json", "--index"]
    assert main([*command, str(other)]) == 2
    assert "is no index" in capsys.readouterr().err
    assert not other.exists()
    put_into(open_store(str(other)), "anything-1.0-py3-none-any.whl", "my-group")
    assert main([*command, str(other)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["where"] == (other / "index.html").as_uri()
    assert not (tmp_path / "project/artifacts/index").exists()
    page = (other / "project/anything.html").read_text()
    assert f"anything @ {other.as_uri()}/whl/files/anything-1.0-py3-none-any.whl#sha256=" in page
    assert "wheels.example.org" not in page, "that is where the project's own index is seen"
    assert check(open_store(str(other))) == []
    assert main([*command, other.as_uri()]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == []
    assert main([*command, "ftp://x"]) == 2


@pytest.fixture
def site(tmp_path, put_into):
    """A project whose index has two wheels and pages for people: `run(*command)` and the index."""
    project = project_with(tmp_path / "project", "debian-2.6.0")
    index = project / "artifacts/index"
    for name in ("canary-1.0-py3-none-any.whl", "canary-2.0-py3-none-any.whl"):
        put_into(open_store(str(index)), name, "g")

    def run(*command):
        return main(["--project", str(project), *command])

    assert run("site", "build") == 0
    assert run("index", "check") == 0
    return run, index


def test_what_is_yanked_or_removed_is_offered_nowhere(site):
    """Pages kept dead links and the pip line of what was removed, and were signed so."""
    run, index = site
    page = index / "project/canary.html"
    assert run("index", "yank", "canary-2.0-py3-none-any.whl", "--reason", "slow") == 0
    assert "yanked: slow" in page.read_text()
    assert "canary==2.0" not in page.read_text()
    assert "canary==2.0" not in (index / "index.html").read_text()
    assert run("index", "remove", "canary-1.0-py3-none-any.whl", "--reason", "key") == 0
    assert run("index", "remove", "canary-2.0-py3-none-any.whl", "--reason", "key") == 0
    assert "No wheel of this project" in page.read_text()
    assert run("index", "check") == 0


def test_a_published_and_a_promoted_wheel_are_on_the_pages(site, tmp_path):
    run, index = site
    path = build_wheel(tmp_path, "other-1.0-py3-none-any.whl").path
    assert run("publish", str(path), "--to", "staging") == 0
    assert ">staging</span>" in (index / "project/other.html").read_text()
    assert run("index", "promote", path.name, "--to", "g") == 0
    assert ">g</span>" in (index / "project/other.html").read_text()
    assert run("index", "check") == 0


def test_check_names_a_page_that_offers_what_was_withdrawn(site, capsys):
    run, index = site
    store = open_store(str(index))
    record_event(store, ["canary-2.0-py3-none-any.whl"], "yank", "slow")
    assert run("index", "check") == 6
    shown = " ".join(capsys.readouterr().out.split())
    assert "project/canary.html offers canary-2.0-py3-none-any.whl, which was" in shown
    record_event(store, ["canary-2.0-py3-none-any.whl"], "unyank", "")
    (index / "project/canary.html").unlink()
    assert run("index", "check") == 1
    assert run("index", "reconcile") == 0
    assert run("index", "check") == 0


def test_the_pages_of_a_copy_keep_the_addresses_of_the_index(site, tmp_path, capsys):
    run, index = site
    target = tmp_path / "copy"
    assert run("index", "copy", "--to", str(target)) == 0
    assert run("index", "check", "--index", str(target)) == 0
    assert run("index", "reconcile", "--index", str(target)) == 0
    assert "this is not the index of ci/farm.yaml" in capsys.readouterr().err
    page = "project/canary.html"
    assert (target / page).read_bytes() == (index / page).read_bytes()


def test_check_names_a_missing_catalogue_of_the_pages_for_people(site, capsys):
    run, index = site
    (index / "catalog.json").unlink()
    assert run("index", "check") == 1
    assert "catalog.json" in capsys.readouterr().out
