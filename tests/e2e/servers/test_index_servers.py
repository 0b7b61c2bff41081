"""The index on real S3 servers: Ceph's gateway over http and https, a strict emulator, and two that
must be refused.
"""

import json
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError, PublishRefusedError, UsageError
from farm.index import s3
from farm.index.check import check
from farm.index.publish import NameTakenError, check_store, publish
from farm.index.store_urls import open_store
from tests.faults import campaign
from tests.faults.publisher import GROUP
from tests.servers import others
from tests.servers.buckets import make_bucket
from tests.servers.process import MissingError

ROOT = Path(__file__).parents[3]
TEXT = "text/plain"


def put(store, wheel, **options):
    return publish(
        store, wheel, group=GROUP, upload_time=datetime.now(UTC), provenance={}, **options
    )


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_publishing_to_ceph(ceph, scheme, tmp_path, monkeypatch):
    url = make_bucket(getattr(ceph, scheme), f"publish-{scheme}")
    store = open_store(url)
    wheel = campaign.make_wheel(tmp_path, 1)
    assert put(store, wheel).changed
    assert store._bare  # this Ceph never matches an ETag in quotes
    assert check(store) == []
    again = open_store(url)
    requests = []
    again.client.meta.events.register(
        "before-send.s3", lambda request, **_: requests.append(request.method)
    )
    assert put(again, campaign.make_wheel(tmp_path, 2)).changed
    assert len(requests) <= 12
    assert not put(again, wheel).changed
    wheel.write_bytes(campaign.make_wheel(tmp_path, 1, size=10).read_bytes())
    with pytest.raises(NameTakenError):
        put(again, wheel)
    monkeypatch.setattr(s3, "MAX_PUT", 2**20)
    big, progress = campaign.make_wheel(tmp_path, 3, size=12 * 2**20), []
    assert put(again, big, progress=progress.append).changed
    assert progress[-1] == big.stat().st_size
    assert check(again) == []


def test_ceph_takes_the_lifecycle_of_the_docs(ceph):
    store = open_store(make_bucket(ceph.http, "lifecycle"))
    text = (ROOT / "docs/how-to/index-stores.md").read_text()
    [rules] = re.findall(r'^```json\n(\{"Rules".*?)^```$', text, re.MULTILINE | re.DOTALL)
    store.client.put_bucket_lifecycle_configuration(
        Bucket=store.bucket, LifecycleConfiguration=json.loads(rules)
    )
    kept = store.client.get_bucket_lifecycle_configuration(Bucket=store.bucket)["Rules"]
    assert {rule["ID"]: rule["Status"] for rule in kept} == {
        "unfinished uploads": "Enabled",
        "scratch": "Enabled",
    }


def test_the_authority_is_not_trusted_by_itself(ceph, monkeypatch):
    url = make_bucket(ceph.https, "untrusted")
    monkeypatch.delenv("AWS_CA_BUNDLE")
    with pytest.raises(InfrastructureError, match="SSLError") as caught:
        open_store(url).get("a")
    assert "AWS_CA_BUNDLE" in caught.value.hint


def test_wrong_credentials_and_buckets(ceph, monkeypatch):
    url = make_bucket(ceph.http, "credentials")
    with pytest.raises(UsageError, match="404 NoSuchBucket"):
        check_store(open_store(f"s3://absent?endpoint_url={ceph.http}"))
    for name, value in {
        "AWS_SECRET_ACCESS_KEY": "wrong-secret",
        "AWS_ACCESS_KEY_ID": "nobody",
    }.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(
                UsageError, match=r"403 (SignatureDoesNotMatch|InvalidAccessKeyId)"
            ) as caught:
                check_store(open_store(url))
            assert value not in f"{caught.value}{caught.value.hint}"


def test_a_wrong_clock(ceph, monkeypatch):
    store = open_store(make_bucket(ceph.http, "clock"))
    wrong = datetime.now(UTC) + timedelta(hours=3)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: wrong.replace(tzinfo=None))
    with pytest.raises(InfrastructureError, match="RequestTimeTooSkewed") as caught:
        check_store(store)
    assert "this machine's clock is wrong" in caught.value.hint


def test_a_strict_emulator(credentials, tmp_path, require):
    try:
        with others.ministack(tmp_path) as endpoint:
            store = open_store(make_bucket(endpoint, "strict"))
            for number in (1, 2):
                assert put(store, campaign.make_wheel(tmp_path, number)).changed
            assert check(store) == []
    except MissingError as error:
        require("ministack", error)


@pytest.mark.parametrize("kind", ["rclone", "s3rver"])
def test_stores_that_ignore_conditions_are_refused(
    kind, credentials, tmp_path, monkeypatch, require
):
    keys = credentials
    if kind == "s3rver":
        keys = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
    try:
        server = (
            others.s3rver(tmp_path) if kind == "s3rver" else others.rclone(tmp_path, *keys.values())
        )
        with server as endpoint:
            url = make_bucket(endpoint, "careless")
            with pytest.raises(PublishRefusedError) as caught:
                put(open_store(url), campaign.make_wheel(tmp_path, 1))
            assert "If-None-Match" in str(caught.value)
            assert caught.value.exit_code == 7
            assert not [key for key in open_store(url).list("") if not key.startswith("probe/")]
    except MissingError as error:
        require(kind, error)


def test_a_full_disk_is_said_and_nothing_is_visible(tmp_path, require):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", small]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        require("a small file system", mounted.stderr)
    try:
        store = open_store(str(small / "index"))
        check_store(store)
        with pytest.raises(InfrastructureError, match="No space left on device"):
            put(store, campaign.make_wheel(tmp_path, 1, size=2**20))
        assert [problem for problem in check(store) if problem.broken] == []
        assert not list(store.list("whl/"))
    finally:
        subprocess.run(["umount", small], check=True)
