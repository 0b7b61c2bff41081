"""Only what a passing report is about is published, and what was waived is written down."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.base.errors import PublishRefusedError, VerificationFailedError
from farm.index.layout import record_key
from farm.index.publish import publish as publish_into
from farm.index.records import PREDICATE, parse_record
from farm.index.store_urls import open_store
from farm.plan.settings import Settings, load_settings
from farm.plan.variant import Variant
from farm.policy.rules import Policy, Waiver
from farm.run.build_inputs import BuildInputs
from farm.run.journal_records import Request
from farm.run.publish_step import publish_wheel
from farm.run.published import use_published
from farm.run.resume import adopt_orphaned_run, find_published
from farm.run.site_step import site_source
from farm.run.smoke import passed_mark
from farm.run.verify_step import refusal
from farm.run.workspace import Watcher, Workspace, open_journal
from farm.site.files import build
from farm.wheel.report import Check, Finding, Report, waive
from tests.indexes.wheels import build_wheel
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
POLICY = Policy(name="canary", version="1.0", python="cp311", platform="linux_x86_64", cpu="avx")
ARCHIVE = SimpleNamespace(
    component="cuda_nvcc", url="https://archives.example/nvcc.tar.xz", sha256="a" * 64
)
PLAN = SimpleNamespace(
    package="canary",
    version="1.0",
    variant="sm35-avx-py311",
    parsed_variant=Variant.parse("sm35-avx-py311"),
    platform="linux",
    base="debian-bookworm",
    digest="d" * 64,
    channel="kepler",
    options={"rebuild": None},
    source=SimpleNamespace(
        kind="git", url="https://git.example/canary.git", tag="v1.0", commit="c" * 40
    ),
    python=SimpleNamespace(url="https://archives.example/cpython-3.11.tar.gz", sha256="b" * 64),
    toolkit=SimpleNamespace(provider="nvidia", cuda="11.7", archives=[ARCHIVE], wheels=[]),
    parts=[],
    build_requires=[],
    library_wheels=[SimpleNamespace(package="nvidia-cublas-cu11")],
    cuda_libraries="wheels",
    without={"fbgemm": "needs AVX2"},
)
FINDING = Finding(
    check="members",
    where="canary/x_test.so",
    what="has no place",
    why="because",
    fix="leave it out",
)
WAIVER = Waiver(check="members", member="canary/*", reason="the testers want it")


@pytest.fixture
def wheel(request, tmp_path):
    platform = getattr(request, "param", "manylinux_2_17_x86_64")
    return build_wheel(tmp_path, f"canary-1.0-cp311-cp311-{platform}.whl").path


def passing_report(wheel):
    return Report(
        wheel=wheel.name,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        size=wheel.stat().st_size,
        policy=POLICY,
        checks=(Check(id="members", status="passed"),),
    )


@pytest.fixture
def notes():
    """What the user is told."""
    return []


@pytest.fixture
def workspace(tmp_path, notes):
    """A project with an index in a folder."""
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "farm.yaml").write_text("index: index\n")
    watcher = Watcher()
    watcher.note = notes.append
    return Workspace(tmp_path, load_settings(tmp_path), watcher)


def test_a_published_wheel_is_on_the_pages_for_people(tmp_path, workspace, notes, wheel):
    store = open_store(workspace.index_url)
    other = build_wheel(tmp_path, "other-1.0-py3-none-any.whl").path
    when = datetime(2026, 11, 28, tzinfo=UTC)
    publish_into(store, other, group="g", upload_time=when, provenance={})
    build(store, site_source(workspace))
    publish_wheel(workspace, PLAN, wheel, passing_report(wheel))
    assert wheel.name in (tmp_path / "index" / "project" / "canary.html").read_text()
    assert "project/canary.html" in (tmp_path / "index" / "index.html").read_text()
    assert build(store, site_source(workspace))[1] == []
    assert notes == []


def test_a_fault_of_the_pages_for_people_does_not_fail_the_publish(
    tmp_path, workspace, notes, wheel
):
    store = open_store(workspace.index_url)
    store.create("catalog.wheels.json", b"{}", content_type="application/json")
    (tmp_path / "ci" / "farm.yaml").write_text("index: [")
    result = publish_wheel(workspace, PLAN, wheel, passing_report(wheel))
    assert result.changed
    assert "farm site build writes them" in notes[0]


@pytest.fixture
def publish(tmp_path, wheel):
    """Publish with a report of these findings; gives the records that the index then holds."""

    def run(findings=(), waivers=(), sha256=None):
        settings = Settings.model_construct(index="index", index_public_url=None)
        workspace = Workspace(tmp_path, settings, Watcher())
        check = Check(
            id="members", status="failed" if findings else "passed", findings=tuple(findings)
        )
        report = Report(
            wheel=wheel.name,
            sha256=sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest(),
            size=wheel.stat().st_size,
            policy=POLICY,
            checks=(waive(check, waivers),),
            waivers=tuple(waivers),
        )
        given = BuildInputs(
            image="sha256:" + "e" * 64,
            wheels={"torch-2.0.1-cp311-cp311-linux_x86_64.whl": "f" * 64},
            cache="engine-1 farm-ccache",
        )
        publish_wheel(workspace, PLAN, wheel, report, given=given, run="r1")
        texts = [path.read_text() for path in (tmp_path / "index/records").iterdir()]
        return [json.loads(text)["provenance"] for text in texts]

    return run


@pytest.mark.parametrize("wheel", ["manylinux_2_99_x86_64"], indirect=True)
def test_a_wheel_that_this_machine_cannot_install_was_not_tested_here(publish, wheel, tmp_path):
    """As one built on Debian 13, on Debian 12: published, and the next run does not say that it
    passed.
    """
    publish()
    settings = Settings.model_construct(
        index="index", index_public_url=None, artifacts="artifacts", data=None
    )
    workspace = Workspace(tmp_path, settings, Watcher())
    key = record_key(wheel.name)
    record = parse_record((tmp_path / "index" / key).read_bytes(), key)
    for _ in range(2):
        steps = use_published(workspace, PLAN, record, test=True).steps
        assert [(step.name, step.outcome) for step in steps] == [
            ("publish", "done"),
            ("install", "not run"),
        ]
        assert steps[1].result.startswith(
            "the wheel is for manylinux_2_99_x86_64, this machine for "
        )
    assert not passed_mark(workspace, PLAN).exists()


def test_a_passing_report_is_published_without_waivers(publish, wheel):
    [provenance] = publish()
    assert provenance["verified"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert "waivers" not in provenance
    [listed] = provenance[PREDICATE]["runDetails"]["byproducts"]
    assert provenance["report"]["sha256"] == listed["digest"]["sha256"]


def test_the_record_says_where_the_wheel_comes_from(publish):
    [provenance] = publish()
    build, run = provenance[PREDICATE]["buildDefinition"], provenance[PREDICATE]["runDetails"]
    assert build["internalParameters"] == {"plan": {"sha256": "d" * 64}}
    assert build["resolvedDependencies"] == [
        {
            "name": "source",
            "uri": "git+https://git.example/canary.git@v1.0",
            "digest": {"gitCommit": "c" * 40},
        },
        {"name": "image", "uri": "debian-bookworm", "digest": {"sha256": "e" * 64}},
        {
            "name": "python",
            "uri": "https://archives.example/cpython-3.11.tar.gz",
            "digest": {"sha256": "b" * 64},
        },
        {
            "name": "cuda_nvcc",
            "uri": "https://archives.example/nvcc.tar.xz",
            "digest": {"sha256": "a" * 64},
        },
        {"name": "torch-2.0.1-cp311-cp311-linux_x86_64.whl", "digest": {"sha256": "f" * 64}},
        {"name": "local compiler cache", "annotations": {"volume": "engine-1 farm-ccache"}},
    ]
    assert run["builder"]["id"] == "urn:torch-farm"
    assert run["metadata"] == {"invocationId": "r1"}
    assert [each["name"] for each in run["byproducts"]] == ["verify.json"]
    assert provenance["without"] == "FBGEMM (needs AVX2)"


def test_the_reasons_of_waivers_are_published(publish):
    unused = Waiver(check="cpu", member="*", reason="never needed")
    other = FINDING.model_copy(update={"where": "canary/y_test.so"})
    [provenance] = publish([FINDING, other], [WAIVER, unused])
    assert provenance["waivers"] == [
        {"check": "members", "reason": "the testers want it", "findings": 2}
    ]


@pytest.mark.parametrize(
    "kwargs", [{"findings": [FINDING]}, {"sha256": "0" * 64}], ids=["failed", "another file"]
)
def test_nothing_is_published_without_a_passing_report_of_this_file(publish, tmp_path, kwargs):
    with pytest.raises(PublishRefusedError, match="is not published"):
        publish(**kwargs)
    assert not (tmp_path / "index").exists()


def test_a_waiver_for_something_else_does_not_publish(publish, tmp_path):
    with pytest.raises(PublishRefusedError, match="failed verification"):
        publish([FINDING], [Waiver(check="members", member="torch/*", reason="x")])
    assert not (tmp_path / "index").exists()


def test_a_refusal_names_only_what_is_open():
    check = Check(
        id="members",
        status="failed",
        findings=(FINDING, FINDING.model_copy(update={"where": "other"})),
    )
    report = Report(wheel="w", sha256="0", size=1, policy=POLICY, checks=(waive(check, [WAIVER]),))
    error = refusal(report)
    assert isinstance(error, VerificationFailedError)
    assert "other: has no place" in str(error)
    assert "canary/x_test.so" not in str(error)


def test_a_plan_whose_wheel_is_published_is_found_until_it_is_yanked(publish, tmp_path):
    workspace = Workspace(tmp_path, Settings(index="index"), Watcher())
    assert find_published(workspace, PLAN) is None
    publish()
    assert (
        find_published(workspace, PLAN).filename
        == "canary-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
    )
    assert find_published(workspace, SimpleNamespace(**{**vars(PLAN), "digest": "e" * 64})) is None
    page = tmp_path / "index" / "whl" / "sm35-avx" / "v1-json" / "canary" / "index.json"
    data = json.loads(page.read_text())
    data["files"][0]["yanked"] = "it crashes"
    page.write_text(json.dumps(data))
    assert find_published(workspace, PLAN) is None


def test_the_other_form_of_a_published_wheel_is_not_there_already(publish, tmp_path):
    """Both forms share what was compiled, so they have one digest, and one version: it said
    "already there".
    """
    workspace = Workspace(tmp_path, Settings(index="index"), Watcher())
    vendored = SimpleNamespace(**{**vars(PLAN), "library_wheels": [], "cuda_libraries": "vendored"})
    publish()
    with pytest.raises(
        PublishRefusedError, match="with `cuda_libraries: wheels`, this plan has vendored"
    ) as caught:
        find_published(workspace, vendored)
    assert caught.value.hint == "run it again with --rebuild 1"
    record = next(
        (tmp_path / "index/records").iterdir()
    )  # as an earlier version of the farm wrote it
    data = json.loads(record.read_text())
    del data["provenance"]["cuda-libraries"]
    record.write_text(json.dumps(data))
    assert find_published(workspace, vendored).filename == find_published(workspace, PLAN).filename


def test_an_unfinished_run_of_the_other_form_is_not_taken_up(tmp_path):
    torch = {"variant": "sm35-avx-py311", "channel": "debian-2.6.0"}
    thin, vendored = (plan_of(**torch, cuda_libraries=form) for form in ("wheels", "vendored"))
    assert thin.digest == vendored.digest
    assert [thin.cuda_libraries, vendored.cuda_libraries] == ["wheels", "vendored"]
    workspace = Workspace(
        tmp_path, Settings.model_construct(artifacts="artifacts", data=None), Watcher()
    )
    with open_journal(workspace.project, workspace.settings) as journal:
        run = journal.create_run(thin.digest, Request(), json.loads(thin.to_json()))
        assert adopt_orphaned_run(journal, vendored) is None
        assert adopt_orphaned_run(journal, thin).id == run.id


def test_a_published_wheel_whose_file_is_gone_is_built_again(publish, tmp_path):
    workspace = Workspace(tmp_path, Settings(index="index"), Watcher())
    publish()
    (tmp_path / "index/whl/files/canary-1.0-cp311-cp311-manylinux_2_17_x86_64.whl").unlink()
    assert find_published(workspace, PLAN) is None
