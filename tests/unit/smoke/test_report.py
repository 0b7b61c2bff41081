"""Reports: what is refused, what is shown."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.smoke.runner import MAX_DOCUMENT, Check, Row, SmokeReport, read_document

CHECK = Check(
    group="cpu",
    name="version",
    status="passed",
    seen="1.0",
    expected=None,
    reason=None,
    seconds=0.5,
)
FAILED = CHECK.model_copy(
    update={"name": "archs", "status": "failed", "seen": "sm_50", "expected": "also\nsm_35"}
)
NOT_RUN = CHECK.model_copy(
    update={"name": "driver", "status": "not_run", "seen": None, "reason": "no NVIDIA driver"}
)


def test_rows_of_the_report_table():
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
        Row("torch on SandyBridge (emulated)", "failed", "failed: archs"),
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


GOOD = (
    '{"schema": 1, "module": "m", "facts": {}, "complete": true, "running": null, "checks": '
    '[{"group": "cpu",'
    ' "name": "n", "status": "passed", "seen": "s", "expected": null, "reason": null, "seconds": '
    "0.1}]}"
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


def read(tmp_path, text):
    file = tmp_path / "report.json"
    file.write_text(text)
    return read_document(file)


def test_a_document_may_fill_its_place_to_the_last_byte(tmp_path):
    assert not isinstance(read(tmp_path, GOOD.ljust(MAX_DOCUMENT)), str)
    assert read(tmp_path, GOOD.ljust(MAX_DOCUMENT + 1)) == "the probe's report is larger than 1 MiB"


def test_neither_a_link_nor_a_pipe_nor_a_folder_is_read(tmp_path):
    (tmp_path / "good").write_text(GOOD)
    (tmp_path / "link").symlink_to("good")
    os.mkfifo(tmp_path / "pipe")  # opened to be read by one that waits, it would hang
    (tmp_path / "folder").mkdir()
    assert read_document(tmp_path / "link").startswith("the probe left no report (")
    assert (
        read_document(tmp_path / "none") == "the probe left no report (No such file or directory)"
    )
    for name in ("pipe", "folder"):
        assert read_document(tmp_path / name) == "the probe's report is not a regular file"


def test_a_warning_is_of_a_check_that_passed():
    warned = CHECK.model_copy(update={"warning": "slow"})
    failed = FAILED.model_copy(update={"warning": "slow"})
    skipped = NOT_RUN.model_copy(update={"warning": "slow"})
    report = SmokeReport(
        module="torch", emulated=None, outcome="failed", checks=(warned, failed, skipped)
    )
    assert [row.status for row in report.rows()] == ["warning", "failed", "not run", "failed"]
    assert report.rows()[0].detail == "1.0; slow"
    assert report.rows()[-1].name == "torch on this machine"
