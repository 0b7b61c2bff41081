"""Fixtures of the tests of the wheel index, in-process and on real parts."""

import itertools
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import boto3
import botocore.session
import pytest

from farm.index.backends import open_store
from farm.index.probe import keep_proof
from farm.index.publish import publish
from tests.servers import moto


class Wheel(NamedTuple):
    path: Path
    metadata: bytes


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
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
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
    return str(tmp_path / "index") if request.param == "directory" else request.getfixturevalue("s3_url")


@pytest.fixture
def store(store_url):
    """A store that was proved before, since a probe of moto takes two seconds."""
    opened = open_store(store_url)
    keep_proof(opened)
    return opened


@pytest.fixture
def make_wheel(tmp_path):
    """A factory of small wheels that pip installs."""
    return lambda filename, payload="x = 1\n", extra="": build_wheel(tmp_path / "made", filename, payload, extra)


def build_wheel(folder, filename, payload="x = 1\n", extra=""):
    name, version = filename.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: >=3.7\n{extra}"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members = {f"{name}/__init__.py": payload, f"{info}/METADATA": metadata, f"{info}/WHEEL": tags}
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / filename, "w") as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member), text)
        lines = [f"{member},," for member in [*members, f"{info}/RECORD"]]
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join(lines) + "\n")
    return Wheel(folder / filename, metadata.encode())


@pytest.fixture
def put():
    """Publishes a wheel with the arguments that no test cares about."""
    return publish_wheel


def publish_wheel(store, wheel, **changes):
    arguments = {
        "group": "sm35-avx",
        "metadata": wheel.metadata,
        "upload_time": datetime(2026, 11, 21, tzinfo=UTC),
        "provenance": {"plan": "sha256:1"},
    }
    return publish(store, wheel.path, **(arguments | changes))
