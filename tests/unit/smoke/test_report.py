"""Reports: what is refused, what is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from farm.smoke.report import Check, Row, SmokeReport, read_document

CHECK = Check(group="cpu", name="version", status="passed", seen="1.0", expected=None, reason=None, seconds=0.5)
FAILED = CHECK.model_copy(update={"name": "archs", "status": "failed", "seen": "sm_50", "expected": "also\nsm_35"})
NOT_RUN = CHECK.model_copy(update={"name": "driver", "status": "not_run", "seen": None, "reason": "no NVIDIA driver"})


def test_rows():
    report = SmokeReport(
        module="torch",
        emulated="SandyBridge",
        outcome="failed",
        reason="failed: archs",
        checks=(CHECK, FAILED, NOT_RUN),
    )
    assert report.rows() == (
        Row("version", "passed", "1.0"),
        Row("archs", "failed", "sm_50; expected: also sm_35"),
        Row("driver", "not run", "no NVIDIA driver"),
        Row("torch on SandyBridge", "failed", "failed: archs"),
    )


texts = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"]), max_size=50)


@given(texts, st.none() | texts, st.floats(0, 1e9), st.integers(-(2**31), 2**31))
def test_json_round_trip(tail, reason, seconds, code):
    report = SmokeReport(
        module="torch",
        emulated=None,
        outcome="failed",
        reason=reason,
        checks=(CHECK, FAILED),
        facts={"python": "3.11"},
        exit_code=code,
        output_tail=tail,
        seconds=seconds,
    )
    assert SmokeReport.model_validate_json(report.to_json()) == report


def test_a_report_cannot_be_changed():
    report = SmokeReport(module="torch", emulated=None, outcome="failed")
    with pytest.raises(ValidationError):
        report.outcome = "passed"  # type: ignore[misc]


GOOD = (
    '{"schema": 1, "module": "m", "facts": {}, "complete": true, "running": null, "checks": [{"group": "cpu",'
    ' "name": "n", "status": "passed", "seen": "s", "expected": null, "reason": null, "seconds": 0.1}]}'
)


def test_a_good_document(tmp_path):
    file = tmp_path / "report.json"
    file.write_text(GOOD)
    document = read_document(file)
    assert not isinstance(document, str)
    assert [check.name for check in document.checks] == ["n"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"schema": 1', '"schema": 2', "schema: "),
        ('"passed"', '"great"', "checks.0.status: "),
        ("0.1", "NaN", "checks.0.seconds: "),
        ("0.1", "-1", "checks.0.seconds: "),
        ('"facts": {}', '"facts": {}, "more": 1', "more: "),
        ('"s"', '"' + "x" * 9000 + '"', "checks.0.seen: "),
        ('"n"', '""', "checks.0.name: "),
        ('"complete": true', '"complete": "true"', "complete: "),
    ],
)
def test_a_bad_document_is_named(tmp_path, old, new, words):
    file = tmp_path / "report.json"
    assert old in GOOD
    file.write_text(GOOD.replace(old, new, 1))
    answer = read_document(file)
    assert isinstance(answer, str)
    assert answer.startswith(f"the probe's report is not valid: {words}")


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory, raw):
    file = tmp_path_factory.mktemp("any") / "report.json"
    file.write_bytes(raw)
    assert isinstance(read_document(file), str)  # 300 random bytes are no valid document
