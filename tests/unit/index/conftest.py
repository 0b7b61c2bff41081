from datetime import UTC, datetime

import pytest

from tests.indexes.wheels import build_wheel, publish_wheel

UPLOADED = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)


@pytest.fixture
def make_wheel(tmp_path):
    """A factory of small pure wheels; the metadata says what the file name says, unless told otherwise."""
    return lambda filename, *arguments, **more: build_wheel(tmp_path / "made", filename, *arguments, **more)


@pytest.fixture
def uploaded():
    return UPLOADED


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """Nobody pulls the plug in these tests, and a disk that is synced takes most of their time."""
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)


@pytest.fixture
def put():
    """Publishes a wheel with the arguments that no test cares about."""
    return publish_wheel
