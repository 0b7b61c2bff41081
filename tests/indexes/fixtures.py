"""Fixtures of the tests of the wheel index, in-process and on real parts."""

import itertools

import boto3
import botocore.session
import pytest

from farm.index.publish import check_store
from farm.index.store_urls import open_store
from tests.indexes.wheels import build_wheel, publish_wheel
from tests.servers import moto


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """Nobody pulls the plug in these tests, and a disk that is synced takes most of their time."""
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)


@pytest.fixture(scope="session")
def moto_url():
    """An S3 server in this process, on the loopback."""
    with moto.in_thread() as url:
        yield url


@pytest.fixture
def aws(monkeypatch):
    """Credentials for a test server, and nothing from this machine's own configuration."""
    name_credentials(monkeypatch)
    monkeypatch.setattr(boto3, "Session", _session)


_LOADER = botocore.session.get_session().get_component("data_loader")


def _session(plain=boto3.Session):
    """A session as boto3 makes it; but the model of S3 is read once, and not for each store."""
    session = botocore.session.get_session()
    session.register_component("data_loader", _LOADER)
    return plain(botocore_session=session)


def name_credentials(patch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        patch.setenv(name, value)
    for name in (
        "AWS_PROFILE",
        "AWS_SESSION_TOKEN",
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ):
        patch.delenv(name, raising=False)


_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_owner(moto_url):
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test-secret"}
    return boto3.client("s3", endpoint_url=moto_url, region_name="us-east-1", **keys)


@pytest.fixture
def s3_url(moto_url, s3_owner, aws):
    """A store URL in a bucket of its own."""
    return new_bucket(moto_url, s3_owner)


def new_bucket(moto_url, s3_owner):
    bucket = f"wheels-{next(_numbers)}"
    s3_owner.create_bucket(Bucket=bucket)
    return f"s3://{bucket}/py?endpoint_url={moto_url}"


@pytest.fixture(params=["directory", "s3"])
def store_url(request, tmp_path):
    """Each kind of store, empty."""
    return (
        str(tmp_path / "index")
        if request.param == "directory"
        else request.getfixturevalue("s3_url")
    )


@pytest.fixture
def store(store_url):
    """A store that was tried before."""
    opened = open_store(store_url)
    check_store(opened)
    return opened


@pytest.fixture
def make_wheel(tmp_path):
    """A factory of small pure wheels; the metadata says what the file name says, unless told
    otherwise.
    """
    return lambda filename, *arguments, **more: build_wheel(
        tmp_path / "made", filename, *arguments, **more
    )


@pytest.fixture
def put():
    """Publishes a wheel with the arguments that no test cares about."""
    return publish_wheel
