"""What is refused before anything is written."""

import hashlib
import zipfile
from datetime import datetime
from random import Random

import pytest

from farm.base.errors import FarmError, InfrastructureError, PublishRefusedError, UsageError
from farm.index.admission import Admission, check_name
from farm.index.records import describe, parse_record

NAME = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"


@pytest.fixture
def say(uploaded):
    def say(wheel, **changes):
        arguments = {
            "group": "sm35-avx",
            "metadata": wheel.metadata,
            "upload_time": uploaded,
            "provenance": {"plan": "sha256:1"},
        }
        return describe(wheel.path, **(arguments | changes))

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
    assert parse_record(record.render(), "key") == record


def test_requires_python_may_be_absent(make_wheel, say):
    record = say(make_wheel(NAME, requires_python=None))
    assert record.requires_python is None
    assert b"requires-python" not in record.render()


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\xff\xfe\x00",
        b"Name: canary\nVersion: 1.0\n",
        b"Name: other\nVersion: 1.0+cu118.sm35.avx\n",
        b"Name: canary\nVersion: nonsense\n",
        b"Version: 1.0+cu118.sm35.avx\n",
    ],
)
def test_metadata_of_something_else_is_refused(make_wheel, say, metadata):
    with pytest.raises(PublishRefusedError, match="its METADATA says"):
        say(make_wheel(NAME, metadata=metadata))


def test_names_are_compared_as_pip_does(make_wheel, say):
    metadata = b"Metadata-Version: 2.1\nName: Farm.Canary\nVersion: 1.0+CU118-sm35_avx\n"
    assert say(make_wheel(NAME.replace("canary", "farm_canary"), metadata=metadata)).project == "farm-canary"


def test_a_bad_requires_python_is_refused(make_wheel, say):
    with pytest.raises(PublishRefusedError, match="Requires-Python"):
        say(make_wheel(NAME, requires_python="whatever"))


HEAD = "Metadata-Version: 2.1\nName: canary\nVersion: 1.0+cu118.sm35.avx\n"


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        (HEAD.replace("2.1", "99.9"), "Metadata-Version"),
        (HEAD.replace("Metadata-Version: 2.1\n", ""), "Metadata-Version"),
        (HEAD + "Metadata-Version: 2.2\n", "Metadata-Version"),
        (HEAD + "Requires-Dist: numpy >=> 1\n", "Requires-Dist"),
        (HEAD + "Provides-Extra: a b\n", "Provides-Extra"),
        (HEAD.replace("2.1", "2.4") + "License-Expression: no such licence\n", "License-Expression"),
    ],
)
def test_metadata_that_pypi_refuses_is_refused(make_wheel, say, metadata, field):
    with pytest.raises(PublishRefusedError, match=field):
        say(make_wheel(NAME, metadata=metadata.encode()))


@pytest.mark.parametrize("need", ["x @ http://example.org/x.whl", "x@ file:///x.whl ; extra == 'a'"])
def test_direct_urls_are_refused_unless_they_are_allowed(make_wheel, say, need):
    wheel = make_wheel(NAME, metadata=f"{HEAD}Provides-Extra: a\nRequires-Dist: {need}\n".encode())
    with pytest.raises(PublishRefusedError, match="direct URL") as caught:
        say(wheel)
    assert "--allow direct-urls" in caught.value.hint
    assert say(wheel, policy=Admission(direct_urls=True)).project == "canary"


PRESENT = ("torch", "pillow")


@pytest.mark.parametrize("name", ["t0rch", "p1llow", "pi-llow", "to-rch"])
def test_a_new_name_that_looks_like_another_project_is_refused(name):
    with pytest.raises(PublishRefusedError, match="mistaken for") as caught:
        check_name(name, PRESENT, Admission())
    assert "--allow similar-names" in caught.value.hint
    check_name(name, PRESENT, Admission(similar_names=True))


@pytest.mark.parametrize("name", ["torch", "pillow", "torchvision", "torc", "canary"])
def test_other_names_are_taken(name):
    check_name(name, PRESENT, Admission())


def test_metadata_must_be_the_wheels_own(make_wheel, say):
    wheel = make_wheel(NAME)
    with pytest.raises(PublishRefusedError, match="not the METADATA in the wheel"):
        say(wheel, metadata=wheel.metadata + b"Requires-Dist: numpy\n")


def test_what_is_no_zip_file_is_refused(make_wheel, say):
    wheel = make_wheel(NAME)
    wheel.path.write_bytes(b"PK\x03\x04 nothing more")
    with pytest.raises(PublishRefusedError, match="zip"):
        say(wheel)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_damaged_wheel_never_crashes(make_wheel, say, method):
    wheel = make_wheel(NAME, method=method)
    good = wheel.path.read_bytes()
    random = Random(method)
    outcomes = set()
    for _ in range(400):
        bad = bytearray(good)
        for _ in range(random.randint(1, 4)):
            bad[random.randrange(len(bad))] = random.randrange(256)
        wheel.path.write_bytes(bad[: random.randrange(len(bad))] if random.random() < 0.1 else bad)
        try:
            outcomes.add(type(say(wheel)))
        except PublishRefusedError:
            outcomes.add(PublishRefusedError)
    assert PublishRefusedError in outcomes


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


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"schema": 2}', b"\xff"])
def test_a_foreign_record_is_an_error_of_the_farm(data):
    with pytest.raises(InfrastructureError, match="not a record") as caught:
        parse_record(data, "records/x.json")
    assert isinstance(caught.value, FarmError)
