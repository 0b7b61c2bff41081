import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from farm.index.backends import open_store
from farm.index.publish import publish
from farm.site.wheels import wheels, with_tests
from tests.indexes.wheels import build_wheel

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "index"))


@pytest.fixture
def put(store, put_into):
    """Publishes a tiny wheel of a name into a group; gives its sha256."""
    return lambda filename, group: put_into(store, filename, group)


@pytest.fixture
def put_verified(store, put_into):
    """The same, with a provenance."""
    return lambda filename, group, provenance: put_into(store, filename, group, provenance)


@pytest.fixture
def put_into(tmp_path):
    """The same, into a store of one's own."""

    def make(store, filename, group, provenance=None):
        path = build_wheel(tmp_path, filename).path
        when = datetime(2026, 11, 21, 12, tzinfo=UTC)
        publish(store, path, group=group, upload_time=when, provenance=provenance or {})
        return hashlib.sha256(path.read_bytes()).hexdigest()

    return make


@pytest.fixture
def there(store, put):
    """An index with one wheel."""
    put("torch-2.0.1+cu117.sm35.avx-cp311-cp311-manylinux_2_28_x86_64.whl", "sm35-avx")
    return with_tests(wheels(store), {})
