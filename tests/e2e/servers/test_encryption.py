"""A bucket of Ceph's whose policy refuses what is put without the header of encryption at rest."""

import json

import pytest
from boto3.s3.transfer import TransferConfig

from farm.base.errors import InfrastructureError
from farm.index import s3
from farm.index.backends import open_store
from farm.index.check import check
from tests.indexes.wheels import build_wheel, publish_wheel
from tests.servers.buckets import make_bucket

DEMAND = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Deny", "Principal": "*", "Action": ["s3:PutObject"], "Resource": ["arn:aws:s3:::encrypted/*"],
         "Condition": {"Null": {"s3:x-amz-server-side-encryption": "true"}}}
    ],
}  # fmt: skip


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_policy_that_demands_a_header(ceph, tmp_path, monkeypatch, in_parts):
    url = make_bucket(ceph.https, "encrypted")
    plain = open_store(url)
    plain.client.put_bucket_policy(Bucket="encrypted", Policy=json.dumps(DEMAND))
    wheel = build_wheel(tmp_path, f"canary-{1 + in_parts}.0-py3-none-any.whl", "x = 1\n" * 2**20)
    with pytest.raises(InfrastructureError, match="403 AccessDenied"):
        publish_wheel(plain, wheel)
    if in_parts:
        monkeypatch.setattr(s3, "MAX_PUT", 1000)
        monkeypatch.setattr(s3, "_PARTS", TransferConfig(multipart_threshold=1000, multipart_chunksize=5 * 2**20))
    store = open_store(f"{url}&encryption=AES256")
    publish_wheel(store, wheel)
    assert check(store) == []
    head = store.client.head_object(Bucket="encrypted", Key=f"whl/files/{wheel.path.name}")
    assert head["ServerSideEncryption"] == "AES256"
