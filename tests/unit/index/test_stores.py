"""Keys and store URLs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import UsageError
from farm.index.directory import DirectoryStore
from farm.index.s3 import S3Store
from farm.index.store_urls import open_store
from farm.index.stores import check_discardable, check_key


@pytest.mark.parametrize(
    "key",
    [
        "records/torch-2.0.1+cu118.sm35.avx-cp311-cp311-manylinux_2_31_x86_64.whl.json",
        "whl/files/a-1!2.0-py3-none-any.whl",
        "probe/x",
        "_~-/+",
    ],
)
def test_valid_keys_are_accepted(key):
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/etc/passwd",
        "a//b",
        "a/",
        ".",
        "..",
        "../a",
        "a/../../b",
        "a/./b",
        ".tmp/a",
        ".lock",
        "a/.hidden",
        "a\\b",
        "C:/a",
        "a b",
        "a\nb",
        "a\n",
        "a\x00",
        "ä",
        "a%2e",
        "x" * 256,
        "/".join(["x" * 100] * 10),
    ],
)
def test_invalid_keys_are_refused(key, tmp_path):
    with pytest.raises(UsageError, match="not a key"):
        check_key(key)
    with pytest.raises(UsageError, match="not a key"):
        DirectoryStore(tmp_path).get(key)


@given(st.text(alphabet="ab./\\~-+_ \n\x00é%", max_size=12))
def test_no_key_leaves_the_root(key):
    root = Path("/index/root")
    try:
        check_key(key)
    except UsageError:
        return
    path = root / key
    assert path.parts[:3] == root.parts
    assert len(path.parts) > len(root.parts)
    assert not any(part.startswith(".") for part in path.parts[3:])


def test_only_scratch_keys_may_be_discarded(tmp_path):
    for key in ("probe/x",):
        assert check_discardable(key) == key
    for key in ("records/a.json", "probes/x", "whl/probe/x"):
        with pytest.raises(ValueError, match="never discarded"):
            DirectoryStore(tmp_path).discard(key)


def test_a_path_or_file_url_is_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("index dir", str(tmp_path / "index dir"), (tmp_path / "index dir").as_uri()):
        store = open_store(url)
        assert isinstance(store, DirectoryStore)
        assert store.root == tmp_path / "index dir"
    assert store.url("whl/a+b.whl") == f"{tmp_path.as_uri()}/index%20dir/whl/a%2Bb.whl"
    assert not store.root.exists()


def test_s3_urls(monkeypatch):
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    store = open_store("s3://wheels/py/x?endpoint_url=http://127.0.0.1:9000&region=eu-west-1")
    assert isinstance(store, S3Store)
    assert (store.bucket, store.prefix) == ("wheels", "py/x/")
    assert store.client.meta.region_name == "eu-west-1"
    assert store.url("whl/a+b.whl") == "http://127.0.0.1:9000/wheels/py/x/whl/a%2Bb.whl"
    plain = open_store("s3://wheels")
    assert isinstance(plain, S3Store)
    assert plain.prefix == ""
    assert plain.client.meta.endpoint_url.startswith("https://")


@pytest.mark.parametrize("bucket", ["Old_Wheels", "a.b", "9", "x" * 255])
def test_a_bucket_may_have_any_name_that_a_server_gives_it(monkeypatch, bucket):
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    store = open_store(f"s3://{bucket}/py?endpoint_url=http://127.0.0.1:9000")
    assert isinstance(store, S3Store)
    assert store.url("whl/") == f"http://127.0.0.1:9000/{bucket}/py/whl/"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/x",
        "http://127.0.0.1/x",
        "file://otherhost/x",
        "file:///",
        "file:///x?y=1",
        "s3://",
        "s3://two words/x",
        "s3://ä/x",
        "s3://../x",
        "s3://tenant:wheels/x",
        f"s3://{'x' * 256}/x",
        "s3://b/../x",
        "s3://wheels/x?endpoint=http://h",
        "s3://wheels/x?endpoint_url=ftp://h",
        "s3://wheels/x?endpoint_url=",
        "s3://wheels/x#f",
        "s3://[wheels/x",
        "file://[wheels/x",
        "s3://wheels/x?endpoint_url=http://[::1",
    ],
)
def test_other_urls_are_usage_errors(url):
    with pytest.raises(UsageError):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:secret@wheels/x",
        "s3://wheels/x?endpoint_url=http://me:secret@127.0.0.1:9000",
        "s3://me:secret@\uff0f/x",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url):
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_a_file_is_no_directory_store(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="not a directory"):
        open_store(str(file))
