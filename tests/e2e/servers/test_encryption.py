"""A bucket of Ceph's whose policy refuses what is put without the header of encryption at rest."""

import json

import pytest

from farm.base.errors import InfrastructureError
from farm.index.check import check
from farm.index.store_urls import open_store
from tests.indexes.wheels import build_wheel, publish_wheel
from tests.servers.buckets import make_bucket

DEMAND = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Deny", "Principal": "*", "Action": ["s3:PutObject"], "Resource": ["arn:aws:s3:::encrypted/*"],
         "Condition": {"Null": {"s3:x-amz-server-side-encryption": "true"}}}
    ],
}  # fmt: skip


def test_a_policy_that_demands_a_header(ceph, tmp_path):
    url = make_bucket(ceph.https, "encrypted")
    plain, store = open_store(url), open_store(f"{url}&encryption=AES256")
    plain.client.put_bucket_policy(Bucket="encrypted", Policy=json.dumps(DEMAND))
    wheel = build_wheel(tmp_path, "canary-1.0-py3-none-any.whl")
    with pytest.raises(InfrastructureError, match="403 AccessDenied"):
        publish_wheel(plain, wheel)
    publish_wheel(store, wheel)
    assert check(store) == []
