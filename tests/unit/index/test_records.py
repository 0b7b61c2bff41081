"""What is refused before anything is written."""

import hashlib
from datetime import datetime

import pytest

from farm.base.errors import FarmError, InfrastructureError, PublishRefusedError, UsageError
from farm.index.admission import describe
from farm.index.records import parse_record, record_key

NAME = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"


@pytest.fixture
def say(uploaded):
    def say(wheel, **changes):
        arguments = {
            "group": "sm35-avx",
            "upload_time": uploaded,
            "provenance": {"plan": "sha256:1"},
        }
        return describe(wheel.path, **(arguments | changes)).record

    return say


def test_a_record_says_what_the_wheel_is(make_wheel, say):
    wheel = make_wheel(NAME)
    record = say(wheel)
    assert record.sha256 == hashlib.sha256(wheel.path.read_bytes()).hexdigest()
    assert record.size == wheel.path.stat().st_size
    assert record.metadata_sha256 == hashlib.sha256(wheel.metadata).hexdigest()
    assert (record.project, record.version) == ("canary", "1.0+cu118.sm35.avx")
    assert record.requires_python == ">=3.7"
    assert record.groups == ("sm35-avx",)
    assert record.upload_time == "2026-11-21T01:02:03.000000Z"
    assert record.provenance == {"plan": "sha256:1"}
    assert parse_record(record.render(), record_key(NAME)) == record


def test_requires_python_may_be_absent(make_wheel, say):
    record = say(make_wheel(NAME, python=None))
    assert record.requires_python is None
    assert b"requires-python" not in record.render()


@pytest.mark.parametrize("metadata", [b"", b"\xff\xfe\x00", b"Name: canary\nVersion: 1.0\n"])
def test_metadata_of_something_else_is_refused(make_wheel, say, metadata):
    """`check_metadata` is tested by itself."""
    with pytest.raises(PublishRefusedError, match="METADATA"):
        say(make_wheel(NAME, metadata=metadata))


def test_names_are_compared_as_pip_does(make_wheel, say):
    metadata = b"Metadata-Version: 2.1\nName: Farm.Canary\nVersion: 1.0+CU118-sm35_avx\n"
    assert (
        say(make_wheel(NAME.replace("canary", "farm_canary"), metadata=metadata)).project
        == "farm-canary"
    )


def test_a_file_that_is_not_a_zip_is_refused(make_wheel, say):
    wheel = make_wheel(NAME)
    wheel.path.write_bytes(b"PK\x03\x04 nothing more")
    with pytest.raises(PublishRefusedError, match="ZIP"):
        say(wheel)


def test_a_wrong_file_name_is_refused(make_wheel, say):
    wheel = make_wheel(NAME)
    wrong = wheel.path.rename(wheel.path.with_name("canary.whl"))
    with pytest.raises(PublishRefusedError, match="wheel"):
        say(wheel._replace(path=wrong))


def test_an_absent_file_is_a_usage_error(make_wheel, say):
    wheel = make_wheel(NAME)
    wheel.path.unlink()
    with pytest.raises(UsageError, match="cannot read"):
        say(wheel)


@pytest.mark.parametrize("provenance", [{"x": object()}, {"x": float("nan")}, {"x": "y" * 70_000}])
def test_provenance_is_small_json(make_wheel, say, provenance):
    with pytest.raises(UsageError, match="provenance"):
        say(make_wheel(NAME), provenance=provenance)


def test_a_time_needs_a_zone(make_wheel, say):
    with pytest.raises(ValueError, match="time zone"):
        say(make_wheel(NAME), upload_time=datetime(2026, 1, 1))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"schema": 0}', b"\xff"])
def test_a_foreign_record_is_an_error_of_the_farm(data):
    with pytest.raises(InfrastructureError, match="not of this farm") as caught:
        parse_record(data, "records/x.json")
    assert isinstance(caught.value, FarmError)
