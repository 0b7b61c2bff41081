"""The probe refuses stores that break either promise, whatever they answer."""

import json
import signal
import threading
from types import SimpleNamespace

import pytest

from farm.base.errors import InfrastructureError, PublishRefusedError
from farm.index import traits
from farm.index.catalogue import CATALOGUE_KEY, parse_catalogue
from farm.index.directory import DirectoryStore
from farm.index.probe import WRITERS, probe, prove
from farm.index.stores import StoreTraits


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
def test_a_store_that_lies_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("farm.index.probe.PATIENCE_S", 0.0)  # `SaysNo` would go on till then
    store = kind(tmp_path)
    with pytest.raises(PublishRefusedError, match="does not keep conditional writes") as caught:
        probe(store)
    assert tmp_path.as_uri() in str(caught.value)
    assert not store.proved
    assert list(store.list("")) == []


def test_additions_whose_answers_were_lost_are_no_lost_additions(tmp_path, monkeypatch):
    monkeypatch.setattr("farm.index.probe.PATIENCE_S", 300.0)  # all of them are done, also on a busy machine

    class LosesAnswers(DirectoryStore):
        """Now and then it replaces and says that somebody else was faster: it was, before the retry asked."""

        def replace(self, key, data, etag, **options):
            done = super().replace(key, data, etag, **options)
            return done and not (key.endswith("-swapped") and int(data.split()[0]) % 10 == 5)

    findings = {finding.what: finding for finding in probe(LosesAnswers(tmp_path))}
    swaps = findings["of many replacements none is lost"]
    assert swaps.good
    assert swaps.seen.endswith("36 of 36 additions were done; 0 were lost")


@pytest.mark.parametrize("suffix", ["-quoted", "-created-1", "-created-2", "-swapped"])
def test_ctrl_c_while_scratch_objects_go_leaves_none(suffix, tmp_path):
    class Interrupted(DirectoryStore):
        def discard(self, key):
            if key.endswith(suffix):
                signal.raise_signal(signal.SIGINT)
            super().discard(key)

    store = Interrupted(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        probe(store)
    assert list(store.list("")) == []


def test_ctrl_c_while_the_keys_of_a_trait_go_leaves_none(monkeypatch):
    gone = []

    def delete_object(Bucket, Key):  # noqa: N803 boto3's names
        if not gone:
            signal.raise_signal(signal.SIGINT)
        gone.append((Bucket, Key))

    store = SimpleNamespace(bucket="b", full="wheels/{}".format, client=SimpleNamespace(delete_object=delete_object))
    monkeypatch.setattr(traits, "_TRAITS", {"slash": lambda _store, _key: (True, "kept")})
    with pytest.raises(KeyboardInterrupt):
        list(traits.examine(store, "probe/x"))
    assert gone == [("b", "wheels/probe/x-0"), ("b", "wheels/probe/x-0/")]


def test_threads_that_do_not_start_in_time_are_no_verdict_on_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr("farm.index.probe.START_S", 0.0)
    store = DirectoryStore(tmp_path)
    with pytest.raises(InfrastructureError, match="12 threads could not be started together"):
        probe(store)
    assert not store.proved


def test_threads_that_cannot_be_started_are_no_verdict_on_the_store(tmp_path, monkeypatch):
    """As under a limit of processes: the first few start, the next does not."""
    start, left = threading.Thread.start, iter(range(5))

    def limited(thread):
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(InfrastructureError, match="threads could not be started"):
        probe(DirectoryStore(tmp_path))


def test_an_honest_store_is_proved_and_left_empty(tmp_path):
    store = DirectoryStore(tmp_path)
    probe(store)
    assert store.proved
    assert list(store.list("")) == [CATALOGUE_KEY]


class CannotDelete(DirectoryStore):
    def discard(self, _key):
        raise InfrastructureError("a policy forbids it")


def test_a_store_that_forbids_deletes_may_keep_the_scratch_object(tmp_path):
    store = CannotDelete(tmp_path)
    probe(store)
    assert store.proved
    assert len(list(store.list("probe/"))) > 1


class Racy(DirectoryStore):
    """Keeps its promises to one writer, and looks before it writes: two at once both win."""

    def __init__(self, root):
        super().__init__(root)
        self._looked = {}

    def _look_together(self, key):
        """In a race nobody writes before all have looked."""
        if "-created-" in key or key.endswith("-swapped"):
            self._looked.setdefault(key, threading.Barrier(WRITERS, timeout=300)).wait()

    def create(self, key, data, **options):
        if self.stat(key) is not None:
            return False
        self._look_together(key)
        super().create(key, data, **options)
        return True

    def replace(self, key, data, etag, **_options):
        found = self.get(key)
        if (found.etag if found else None) != etag:
            return False
        self._look_together(key)
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{threading.get_ident()}")
        temporary.write_bytes(data)
        temporary.replace(path)
        return True


def test_a_store_that_fails_only_under_concurrency_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("farm.index.probe.PATIENCE_S", 300.0)
    store = Racy(tmp_path)
    with pytest.raises(PublishRefusedError) as caught:
        probe(store)
    text = str(caught.value)
    assert "a second create" not in text
    assert "of many creators one wins; seen: 12 writers, 3 rounds: 3 went wrong" in text
    assert "of many replacements none is lost; seen: 12 writers were told that 36 of 36" in text
    assert "--single-writer" in caught.value.hint
    assert not store.proved
    assert not (tmp_path / CATALOGUE_KEY).exists()


class Counted(DirectoryStore):
    creates = 0

    def create(self, *arguments, **options):
        self.creates += 1
        return super().create(*arguments, **options)


def proofs(tmp_path, **changes):
    """A store whose proof was changed, opened anew."""
    probe(DirectoryStore(tmp_path))
    path = tmp_path / CATALOGUE_KEY
    catalogue = json.loads(path.read_text())
    path.write_text(json.dumps(catalogue | {"_proof": catalogue["_proof"] | changes}))
    return Counted(tmp_path)


def test_a_proof_in_the_store_spares_the_probe(tmp_path):
    store = proofs(tmp_path)
    prove(store)
    assert store.proved
    assert store.creates == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"store": "0" * 64},
        {"time": "2020-01-01T00:00:00Z"},
        {"time": "2999-01-01T00:00:00Z"},
        {"time": "yesterday"},
        {"schema": 2},
        {"unknown": 1},
    ],
)
def test_another_stores_old_or_strange_proof_is_not_believed(tmp_path, changes):
    store = proofs(tmp_path, **changes)
    prove(store)
    assert store.creates > 0
    again = Counted(tmp_path)
    prove(again)
    assert again.creates == 0


def test_a_catalogue_that_is_not_ours_is_left_and_the_store_is_probed(tmp_path):
    (tmp_path / CATALOGUE_KEY).write_bytes(b"by hand")
    store = Counted(tmp_path)
    prove(store)
    assert store.proved
    assert store.creates > 0
    assert (tmp_path / CATALOGUE_KEY).read_bytes() == b"by hand"


def test_a_proof_does_not_tell_where_the_store_is(tmp_path):
    probe(DirectoryStore(tmp_path))
    data = (tmp_path / CATALOGUE_KEY).read_bytes()
    assert str(tmp_path).encode() not in data
    assert parse_catalogue(data).proved() is not None


def test_a_proof_says_how_tags_are_sent(tmp_path):
    store = proofs(tmp_path, bare_etags=True)
    prove(store)
    assert store.traits == StoreTraits(bare_etags=True)


def test_one_writer_is_believed_only_while_it_says_so(tmp_path):
    store = Racy(tmp_path)
    prove(store, single_writer=True)
    assert store.proved
    assert store.traits == StoreTraits(reads_first=True)
    with pytest.raises(PublishRefusedError):
        prove(Racy(tmp_path))
