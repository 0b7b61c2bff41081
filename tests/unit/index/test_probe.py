"""The probe refuses stores that break either promise, whatever they answer."""

import pytest

from farm.errors import InfrastructureError, PublishRefusedError
from farm.index.directory import DirectoryStore
from farm.index.probe import probe


class SaysYes(DirectoryStore):
    """Refuses rightly, and answers that it stored."""

    def create(self, key, data, **options):
        super().create(key, data, **options)
        return True


class SaysNo(DirectoryStore):
    """Stores, and answers that it did not."""

    def replace(self, key, data, etag, **options):
        super().replace(key, data, etag, **options)
        return False


class Overwrites(DirectoryStore):
    """Answers rightly, and overwrites all the same."""

    def create(self, key, data, **options):
        created = super().create(key, data, **options)
        self._path(key).write_bytes(data)
        return created


class Forgets(DirectoryStore):
    """Answers that it stored, and did not."""

    def create(self, *_args, **_options):
        return True


@pytest.mark.parametrize("kind", [SaysYes, SaysNo, Overwrites, Forgets])
def test_a_store_that_lies_is_refused(kind, tmp_path):
    store = kind(tmp_path)
    with pytest.raises(PublishRefusedError, match="does not keep conditional writes") as caught:
        probe(store)
    assert tmp_path.as_uri() in str(caught.value)
    assert not store.proved
    assert list(store.list("")) == []


def test_an_honest_store_is_proved_and_left_empty(tmp_path):
    store = DirectoryStore(tmp_path)
    probe(store)
    assert store.proved
    assert list(store.list("")) == []


class CannotDelete(DirectoryStore):
    def discard(self, _key):
        raise InfrastructureError("a policy forbids it")


def test_a_store_that_forbids_deletes_may_keep_the_scratch_object(tmp_path):
    store = CannotDelete(tmp_path)
    probe(store)
    assert store.proved
    assert len(list(store.list("probe/"))) == 1
