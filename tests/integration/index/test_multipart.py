"""Large files in parts: killed, continued, raced, refused."""

import os

import pytest

from farm.base.errors import InfrastructureError
from farm.index import multipart, s3
from farm.index.backends import open_store
from farm.index.pieces import Meter, Piece, spans
from farm.index.stores import Stat

TEXT = "text/plain"
KEY = "whl/files/big"
MIB = 2**20


@pytest.fixture
def store(s3_url):
    return open_store(s3_url)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(s3, "MAX_PUT", MIB)
    monkeypatch.setattr(multipart, "PART", 5 * MIB)
    monkeypatch.setattr(multipart, "SENDERS", 1)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _seconds: None)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(os.urandom(12 * MIB))
    return path


def operations(store):
    """The names of the operations that the store asks for from now on."""
    seen = []
    store.client.meta.events.register("before-call.s3", lambda model, **_: seen.append(model.name))
    return seen


def uploads(store):
    return store.client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", [])


class StopError(Exception):
    pass


def stop_at(store, operation, number):
    """The `number`th call of an operation and all after it never leave, as if the process had been killed."""
    seen = []

    def before(**_):
        seen.append(1)
        if len(seen) >= number:
            raise StopError

    store.client.meta.events.register(f"before-call.s3.{operation}", before)


def test_a_large_file_goes_up_whole(store, source):
    told = []
    seen = operations(store)
    assert store.create(KEY, source, content_type=TEXT, progress=told.append)
    assert seen.count("UploadPart") == 3
    assert told == sorted(told)
    assert told[-1] == 12 * MIB
    assert b"".join(store.chunks(KEY)) == source.read_bytes()
    assert store.stat(KEY).size == 12 * MIB
    del seen[:]
    assert not store.create(KEY, source, content_type=TEXT)
    assert seen == ["HeadObject"]
    assert uploads(store) == []


@pytest.mark.parametrize(
    ("operation", "number", "parts_again"),
    [
        ("CreateMultipartUpload", 1, 3),
        ("UploadPart", 1, 3),
        ("UploadPart", 2, 2),
        ("UploadPart", 3, 1),
        ("CompleteMultipartUpload", 1, 0),
    ],
)
def test_a_killed_upload_is_continued(store, s3_url, source, operation, number, parts_again):
    stop_at(store, operation, number)
    with pytest.raises(StopError):
        store.create(KEY, source, content_type=TEXT)
    assert store.get(KEY) is None
    again = open_store(s3_url)
    seen = operations(again)
    assert again.create(KEY, source, content_type=TEXT)
    assert seen.count("UploadPart") == parts_again
    assert b"".join(again.chunks(KEY)) == source.read_bytes()
    assert uploads(again) == []


def test_an_unfinished_upload_of_other_bytes_is_aborted(store, source):
    full = store.full(KEY)
    begun = store.client.create_multipart_upload(Bucket=store.bucket, Key=full)["UploadId"]
    part = {"Bucket": store.bucket, "Key": full, "UploadId": begun, "PartNumber": 1}
    store.client.upload_part(**part, Body=b"other" * MIB)
    neighbour = store.client.create_multipart_upload(Bucket=store.bucket, Key=f"{full}.other")["UploadId"]
    assert store.create(KEY, source, content_type=TEXT)
    assert b"".join(store.chunks(KEY)) == source.read_bytes()
    assert [upload["UploadId"] for upload in uploads(store)] == [neighbour]


def test_another_publisher_completes_first(store, s3_url, source):
    other = open_store(s3_url)

    def before(**_):
        assert other.create(KEY, source, content_type=TEXT)

    store.client.meta.events.register_first("before-call.s3.CompleteMultipartUpload", before)
    assert store.create(KEY, source, content_type=TEXT)  # the same bytes: ours as well
    assert b"".join(store.chunks(KEY)) == source.read_bytes()


def test_a_file_that_changed_is_refused(store, source):
    with pytest.raises(InfrastructureError, match="changed while"):
        store.create(KEY, source, content_type=TEXT, sha256="0" * 64)
    assert store.get(KEY) is None
    assert uploads(store) == []


def test_where_uploads_cannot_be_listed_each_call_begins_anew(store, source):
    def refuse(**_):
        from botocore.exceptions import ClientError

        answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(answer, "ListMultipartUploads")

    store.client.meta.events.register("before-call.s3.ListMultipartUploads", refuse)
    assert store.create(KEY, source, content_type=TEXT)
    assert store.stat(KEY) == Stat(12 * MIB, store.stat(KEY).sha256)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 25])
def test_spans_cover_a_file(tmp_path, size):
    path = tmp_path / "file"
    data = os.urandom(size)
    path.write_bytes(data)
    found, sha256 = spans(path, 10)
    assert [span.number for span in found] == list(range(1, len(found) + 1))
    pieces = []
    for span in found:
        with Piece(path, span.start, span.length, Meter(None).part(span.number)) as piece:
            pieces.append(piece.read())
            assert piece.read() == b""
            assert piece.seek(-1, os.SEEK_END) == max(span.length - 1, 0)
    assert b"".join(pieces) == data
    assert len(found) == max(1, -(-size // 10))
    assert len(sha256) == 64
