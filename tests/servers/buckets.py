"""A bucket on a server that is started for it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import boto3

from tests.servers import moto, others, rgw

SERVERS = ["rgw", "moto", "ministack"]
KEYS = {"AWS_ACCESS_KEY_ID": "farm-tests", "AWS_SECRET_ACCESS_KEY": "secret-of-farm-tests"}
ISOLATED = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


def make_bucket(endpoint: str, bucket: str) -> str:
    """Creates a bucket; gives the store's URL."""
    client = boto3.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1")
    with contextlib.closing(client):
        client.create_bucket(Bucket=bucket)
    return f"s3://{bucket}?endpoint_url={endpoint}"


@contextlib.contextmanager
def served(server: str, folder: Path) -> Iterator[str]:
    """Starts one of `SERVERS`; gives the URL of a store in an empty bucket. Sets the credentials of
    this process.
    """
    os.environ.update(KEYS | ISOLATED)
    with contextlib.ExitStack() as stack:
        if server == "rgw":
            endpoint = stack.enter_context(rgw.gateway(folder / "rgw")).http
        elif server == "ministack":
            endpoint = stack.enter_context(others.ministack(folder))
        else:
            endpoint = stack.enter_context(moto.process(folder / "moto.log"))
        yield make_bucket(endpoint, "wheels")
