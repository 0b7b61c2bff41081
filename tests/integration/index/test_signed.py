"""A signed index: what a user's `verify` says of a sound one, a damaged one, and after a change of keys."""

import functools
import json
import threading
from datetime import UTC, datetime, timedelta

import pytest

from farm.errors import PublishRefusedError, UsageError, VerificationFailedError
from farm.index import pages
from farm.index.backends import open_store
from farm.index.catalogue import CATALOGUE_KEY
from farm.index.check import check
from farm.index.dependencies import link_dependencies, stacks
from farm.index.events import record_event
from farm.index.provenance import attestation_key
from farm.index.reader import open_reader
from farm.index.reconcile import reconcile
from farm.index.records import record_key
from farm.index.serve import server
from farm.index.signing import load_public, load_signer, new_key
from farm.index.snapshot import sign_pages
from farm.index.trust import add_key, key_event_key, revoke_key
from farm.index.verify import verify_index

FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
SLSA = {"slsa": {"buildDefinition": {"buildType": "urn:test"}}}


class Key:
    def __init__(self, path):
        public = new_key(path)
        self.signer, self.public = load_signer(path), load_public(public)
        self.pem = public.read_bytes()
        self.trusted = {self.public.keyid: self.public}


@pytest.fixture
def key(tmp_path):
    return Key(tmp_path / "old.key")


@pytest.fixture
def other(tmp_path):
    return Key(tmp_path / "new.key")


@pytest.fixture
def signed(tmp_path, make_wheel, put, key):
    """A directory index with two signed wheels: a publish to it, its store and its root."""
    store = open_store(str(tmp_path / "index"))
    publish = functools.partial(put, store, channel="kepler", provenance=SLSA)
    publish(make_wheel(FIRST), signer=key.signer)
    publish(make_wheel(SECOND), signer=key.signer)
    return publish, store, tmp_path / "index"


def problems(root, trusted, **options):
    return verify_index(open_reader(str(root)), trusted, **options).problems


def test_a_sound_index_on_every_kind_of_store(store, store_url, make_wheel, put, key):
    for name in (FIRST, SECOND):
        assert put(store, make_wheel(name), provenance=SLSA, signer=key.signer, channel="a").changed
    assert not put(store, make_wheel(SECOND), provenance=SLSA, signer=key.signer, channel="a").changed
    done = verify_index(open_reader(store_url), key.trusted, wheels=True)
    assert (done.problems, done.wheels, done.keys) == ((), 2, (key.public.keyid,))
    assert done.pages == sum(1 for each in store.list("") if each.endswith((".html", "index.json", "catalog.json")))


def test_over_http(signed, key):
    _publish, _store, root = signed
    with server(root, quiet=True) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{serving.server_port}"
        done = verify_index(open_reader(url), key.trusted, wheels=True)
        assert (done.problems, done.wheels) == ((), 2)
        path = root / f"whl/files/{FIRST}"
        path.write_bytes(path.read_bytes() + b"x")
        assert verify_index(open_reader(url), key.trusted).problems == ()
        told = verify_index(open_reader(url), key.trusted, wheels=True).problems
        assert told == (f"{FIRST}: its bytes are not those of its page",)
        serving.shutdown()
        thread.join()


def test_every_page_that_is_tampered_with_is_named(signed, key):
    _publish, store, root = signed
    named = 0
    for each in sorted(store.list("")):
        if each.endswith((".html", "index.json", "catalog.json")):
            path = root / each
            before = path.read_bytes()
            words = (b"1.0+cu118", b"2.0+cu118") if each == CATALOGUE_KEY else (b"canary", b"canari")
            path.write_bytes(before.replace(*words, 1))
            assert problems(root, key.trusted)[0].startswith(f"{each}: not what was signed"), each
            path.unlink()
            if each != CATALOGUE_KEY:  # without it there is no snapshot either
                assert problems(root, key.trusted)[0] == f"{each}: signed, and not there"
            path.write_bytes(before)
            named += 1
    assert named == 7
    assert problems(root, key.trusted) == ()


def test_an_attestation_of_another_wheel_or_by_another_key_does_not_count(signed, key, other):
    _publish, store, root = signed
    place, beside = root / record_key(FIRST), root / attestation_key(FIRST, key.public.keyid)
    beside.parent.mkdir(parents=True)
    record = json.loads(place.read_bytes())
    good = record.pop("attestation")
    for bad in (
        json.loads((root / record_key(SECOND)).read_bytes())["attestation"],
        json.loads(other.signer.countersign(b"{}", "application/vnd.in-toto+json")),
        good | {"signatures": [good["signatures"][0] | {"sig": "AAAA"}]},
        {},
        {"payload": 1, "payloadType": 2, "signatures": {"a": 3}},
    ):
        place.write_text(json.dumps(record | {"attestation": bad}))
        [told] = problems(root, key.trusted)
        assert told.startswith(FIRST)
        place.write_text(json.dumps(record))
        beside.write_text(json.dumps(bad))
        [told] = problems(root, key.trusted)
        assert told.startswith(FIRST)
    beside.write_bytes(b"[")
    assert problems(root, key.trusted) == (
        f"{FIRST}: {attestation_key(FIRST, key.public.keyid)} is no signed envelope",
    )
    beside.unlink()
    assert problems(root, key.trusted) == (f"{FIRST}: has no attestation by a trusted key",)
    assert reconcile(store, key.signer).attested == 1
    assert json.loads(beside.read_bytes()) == good
    assert problems(root, key.trusted) == ()


def test_a_stranger_trusts_nothing(signed, other):
    with pytest.raises(VerificationFailedError, match="not signed by a trusted key"):
        problems(signed[2], other.trusted)


def test_an_unsigned_index_is_not_one_that_verifies(tmp_path, make_wheel, put, key):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    with pytest.raises(VerificationFailedError, match="not signed"):
        problems(tmp_path / "index", key.trusted)


def test_an_old_state_of_the_whole_index_is_found_by_its_age(signed, key):
    later = datetime.now(UTC) + timedelta(days=8)
    assert problems(signed[2], key.trusted, max_age=timedelta(days=9), now=later) == ()
    [told] = problems(signed[2], key.trusted, max_age=timedelta(days=7), now=later)
    assert "longer ago than allowed" in told


def test_a_page_that_was_published_without_the_key_is_told(signed, make_wheel, key):
    publish, _store, root = signed
    publish(make_wheel("canary-2.0-py3-none-any.whl"))
    told = problems(root, key.trusted)
    assert told
    assert all("newer than the snapshot" in line for line in told)


def test_a_yank_is_signed_with_the_pages_that_show_it(signed, key):
    _publish, store, root = signed
    shown = record_event(store, FIRST, "yank", "x")
    assert problems(root, key.trusted) != ()
    assert sign_pages(store, key.signer, shown)
    assert problems(root, key.trusted) == ()


def test_nobody_signs_over_another_keys_snapshot(signed, make_wheel, other):
    publish, store, _root = signed
    before = sorted(store.list(""))
    with pytest.raises(PublishRefusedError, match="signed with another key") as caught:
        publish(make_wheel("canary-2.0-py3-none-any.whl"), signer=other.signer)
    assert "farm index key rotate" in caught.value.hint
    assert sorted(store.list("")) == before


def test_rotation_leads_the_users_of_the_old_key_to_the_new_one(signed, make_wheel, key, other):
    publish, store, root = signed
    assert add_key(store, key.signer, other.pem) == 1
    assert reconcile(store, other.signer).attested == 2
    publish(make_wheel("canary-2.0-py3-none-any.whl"), signer=other.signer)
    for trusted in (key.trusted, other.trusted):
        done = verify_index(open_reader(str(root)), trusted)
        assert (done.problems, done.wheels) == ((), 3)
    assert check(store) == []


def test_a_revoked_key_signs_nothing_that_counts(signed, key, other, tmp_path):
    _publish, store, root = signed
    add_key(store, key.signer, other.pem)
    revoke_key(store, other.signer, key.public.keyid, "the disk was stolen")
    with pytest.raises(VerificationFailedError, match=r"revoked: .* \(the disk was stolen\)"):
        problems(root, key.trusted)  # the snapshot is still the old key's
    reconcile(store, other.signer)
    assert problems(root, key.trusted) == ()
    assert verify_index(open_reader(str(root)), key.trusted).keys == (other.public.keyid,)
    (root / attestation_key(FIRST, other.public.keyid)).unlink()
    [told] = problems(root, key.trusted)
    assert told == f"{FIRST}: has no attestation by a trusted key; there is one by a revoked key"
    thief = Key(tmp_path / "thief.key")
    add_key(store, key.signer, thief.pem)  # what a thief does with a key that was revoked
    assert thief.public.keyid not in verify_index(open_reader(str(root)), key.trusted).keys


def test_a_key_that_a_thief_added_goes_with_the_stolen_one(signed, key, other, tmp_path):
    _publish, store, root = signed
    thief = Key(tmp_path / "thief.key")
    add_key(store, key.signer, thief.pem)
    add_key(store, key.signer, other.pem)
    revoke_key(store, other.signer, key.public.keyid, "stolen")
    reconcile(store, other.signer)
    assert verify_index(open_reader(str(root)), key.trusted).keys == (other.public.keyid,)


def test_a_key_that_revokes_itself_leaves_nothing(signed, key):
    _publish, store, root = signed
    revoke_key(store, key.signer, key.public.keyid, "farm closed")
    with pytest.raises(VerificationFailedError, match=r"every key that you trust is revoked .*farm closed"):
        problems(root, key.trusted)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"payload":"AA==","payloadType":"x","signatures":[]}'])
def test_rubbish_among_the_key_events_changes_nothing(signed, key, other, data):
    _publish, store, root = signed
    store.create(key_event_key(1), data, content_type="application/json")
    assert problems(root, key.trusted) == ()
    assert add_key(store, key.signer, other.pem) == 2
    assert set(verify_index(open_reader(str(root)), key.trusted).keys) == {key.public.keyid, other.public.keyid}


def test_a_record_that_does_not_say_how_it_was_built_is_not_signed(tmp_path, make_wheel, put, key):
    store = open_store(str(tmp_path / "index"))
    with pytest.raises(UsageError, match="does not say how it was built"):
        put(store, make_wheel(FIRST), signer=key.signer)
    assert store.get(pages.json_key("sm35-avx", "canary")) is None


KIND = "canary-2.0-py3-none-any.whl"
VERSIONS = ("1.3.0", "1.13.1", "1.26.4", "2.31", "3.1", "4.66", "8.1", "10.4.0", "80.9", "2024.1")


def other_index(root):
    """Pages of another index with some version of all that torch needs."""
    for project in {project for stack in stacks() for project in stack.needs}:
        names = [f"{project.replace('-', '_')}-{version}-py3-none-any.whl" for version in VERSIONS]
        (root / project).mkdir(parents=True)
        anchors = [f'<a href="../{name}#sha256={"ab" * 32}">{name}</a>' for name in names]
        (root / project / "index.html").write_text("".join(anchors))
    return root.as_uri()


@pytest.mark.parametrize("store_url", ["s3"], indirect=True)
@pytest.mark.parametrize(
    ("signs", "channel", "first", "kind", "rebuild", "opening"),
    [
        (False, None, 10, 10, 9, 9),
        (False, "kepler", 12, 11, 10, 11),
        (True, None, 10, 10, 10, 9),
        (True, "kepler", 12, 11, 11, 11),
    ],
)
def test_the_cost_in_requests(
    store_url, store, make_wheel, put, key, tmp_path, signs, channel, first, kind, rebuild, opening
):
    """Each as a process of its own, in an index with other groups, projects and dependency pages: docs/wheel-index.md.

    `opening` is the first wheel of a group.
    """
    options = {"provenance": SLSA, "signer": key.signer if signs else None, "channel": channel}

    def cost(name, **changes):
        again = open_store(store_url)
        requests = []
        again.client.meta.events.register("before-send.s3", lambda request, **_: requests.append(request.method))
        assert put(again, make_wheel(name), **(options | changes)).changed
        assert len(requests) <= 12, requests
        return len(requests)

    assert cost("torch-2.0.1+cu118.sm35.avx-py3-none-any.whl") == opening
    assert len(link_dependencies(store, other_index(tmp_path / "other"))) > 10
    assert cost("torch-2.0.1+cu118.sm37.avx-py3-none-any.whl", group="sm37-avx") == opening
    assert cost(FIRST) == first
    assert cost(KIND) == kind
    assert cost(SECOND) == rebuild
    if channel:  # the first of a channel writes a list more
        assert cost("canary-3.0-py3-none-any.whl", channel="other") == kind + 1
    assert check(store) == []
    if signs:
        assert problems(store_url, key.trusted) == ()


def test_attestation_and_snapshot_are_dsse_envelopes(signed):
    catalogue = json.loads(signed[1].get(CATALOGUE_KEY).data)
    record = json.loads(signed[1].get(record_key(FIRST)).data)
    for envelope in (catalogue["_snapshot"], record["attestation"]):
        assert set(envelope) == {"payload", "payloadType", "signatures"}
