"""Only what a passing report is about is published, and what was waived is written down."""

import hashlib
import json
import zipfile
from types import SimpleNamespace

import pytest

from farm.errors import PublishRefusedError, VerificationFailedError
from farm.pipeline.check import refusal
from farm.pipeline.release import publish_wheel
from farm.pipeline.report import Silent
from farm.pipeline.setting import Setting
from farm.settings import Settings
from farm.wheel.report import Check, Finding, Report, VerifyPolicy, Waiver, waive

POLICY = VerifyPolicy(name="canary", version="1.0", python="cp311", platform="linux_x86_64", cpu="avx")
PLAN = SimpleNamespace(variant="sm35-avx-py311", digest="d" * 64, channel="kepler", options={"rebuild": None})
FINDING = Finding(check="members", where="canary/x_test.so", what="has no place", why="because", fix="leave it out")
WAIVER = Waiver(check="members", member="canary/*", reason="the testers want it")


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "canary-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("canary-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: canary\nVersion: 1.0\n")
        archive.writestr("canary-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_17_x86_64\n")
        archive.writestr("canary-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def publish(tmp_path, wheel):
    """Publish with a report of these findings; gives the records that the index then holds."""
    setting = Setting(tmp_path, Settings.model_construct(index="index", index_public_url=None), Silent())

    def run(findings=(), waivers=(), sha256=None):
        check = Check(id="members", status="failed" if findings else "passed", findings=tuple(findings))
        report = Report(
            wheel=wheel.name,
            sha256=sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest(),
            size=wheel.stat().st_size,
            policy=POLICY,
            checks=(waive(check, waivers),),
            waivers=tuple(waivers),
        )
        publish_wheel(setting, PLAN, wheel, report)
        texts = [path.read_text() for path in (tmp_path / "index").rglob("*.json") if "provenance" in path.read_text()]
        return [json.loads(text)["provenance"] for text in texts]

    return run


def test_a_passing_report_is_published_without_waivers(publish, wheel):
    [provenance] = publish()
    assert provenance["verified"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert "waivers" not in provenance


def test_the_reasons_of_waivers_are_published(publish):
    unused = Waiver(check="cpu", member="*", reason="never needed")
    other = FINDING.model_copy(update={"where": "canary/y_test.so"})
    [provenance] = publish([FINDING, other], [WAIVER, unused])
    assert provenance["waivers"] == [{"check": "members", "reason": "the testers want it", "findings": 2}]


@pytest.mark.parametrize("kwargs", [{"findings": [FINDING]}, {"sha256": "0" * 64}], ids=["failed", "another file"])
def test_nothing_is_published_without_a_passing_report_of_this_file(publish, tmp_path, kwargs):
    with pytest.raises(PublishRefusedError, match="is not published"):
        publish(**kwargs)
    assert not (tmp_path / "index").exists()


def test_a_waiver_for_something_else_does_not_publish(publish, tmp_path):
    with pytest.raises(PublishRefusedError, match="failed verification"):
        publish([FINDING], [Waiver(check="members", member="torch/*", reason="x")])
    assert not (tmp_path / "index").exists()


def test_a_refusal_names_only_what_is_open():
    check = Check(id="members", status="failed", findings=(FINDING, FINDING.model_copy(update={"where": "other"})))
    report = Report(wheel="w", sha256="0", size=1, policy=POLICY, checks=(waive(check, [WAIVER]),))
    error = refusal(report)
    assert isinstance(error, VerificationFailedError)
    assert "other: has no place" in str(error)
    assert "canary/x_test.so" not in str(error)
