"""A signed index: what a user's `verify` says of a sound one, a damaged one, and after a change of keys."""

import functools
import json
import shutil
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from tuf.api.metadata import Metadata

from farm.base.errors import InfrastructureError, PublishRefusedError, UsageError, VerificationFailedError
from farm.index import html, pages, roles
from farm.index import keys as roots
from farm.index.backends import open_store
from farm.index.catalogue import CATALOGUE_KEY
from farm.index.check import check
from farm.index.dependencies import link_dependencies, stacks
from farm.index.lifecycle import record_event
from farm.index.provenance import attestation_key
from farm.index.reader import open_reader
from farm.index.reconcile import reconcile
from farm.index.records import parse_record, record_key
from farm.index.roles import GROUPS_KEY, is_page, renew, sign_pages
from farm.index.serve import server
from farm.index.signing import load_public, load_signer, new_key
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
    assert done.pages == sum(map(is_page, store.list("")))


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
        if is_page(each) or each == CATALOGUE_KEY:
            path = root / each
            before = path.read_bytes()
            words = (b"sm35-avx</a>", b"sm36-avx</a>") if each == GROUPS_KEY else (b"canary", b"canari")
            words = (b">canary-", b">canari-") if each.endswith("links.html") else words
            # in the catalogue everywhere: its list of projects follows from its groups
            path.write_bytes(before.replace(*words, -1 if each == CATALOGUE_KEY else 1))
            told = problems(root, key.trusted)
            words = (f"{each}: not what was signed", f"{each}: does not say")
            assert any(line.startswith(words) for line in told), told
            path.unlink()
            if each == GROUPS_KEY:
                with pytest.raises(VerificationFailedError, match="not there"):
                    problems(root, key.trusted)
            elif each == CATALOGUE_KEY:
                assert any("does not say of canary" in line for line in problems(root, key.trusted))
            else:
                assert any(line == f"{each}: signed, and not there" for line in problems(root, key.trusted))
            path.write_bytes(before)
            named += 1
    assert named == 9
    assert problems(root, key.trusted) == ()


@pytest.mark.parametrize("what", ["metadata", "record"])
def test_files_beside_a_wheel_are_verified_too(signed, key, what):
    """Installers refuse a changed .metadata by its hash; a changed record would say another origin."""
    _publish, _store, root = signed
    path = root / (f"whl/files/{FIRST}.metadata" if what == "metadata" else record_key(FIRST))
    before = path.read_bytes()
    path.write_bytes(
        before.replace(b"canary", b"canari", 1) if what == "metadata" else before.replace(b"urn:test", b"x")
    )
    told = problems(root, key.trusted)
    assert told[0] == f"{FIRST}: its {'.metadata' if what == 'metadata' else 'record'} is not that of its page"
    path.unlink()
    assert problems(root, key.trusted)[0] == told[0]


def test_reconcile_does_not_attest_what_a_record_did_not_say_at_first(signed, key):
    _publish, store, root = signed
    path = root / record_key(FIRST)
    path.write_bytes(path.read_bytes().replace(b'{"buildDefinition":{"buildType":"urn:test"}}', b"{}"))
    with pytest.raises(InfrastructureError, match="does not say what was attested"):
        reconcile(store, key.signer)
    assert f"{FIRST}: its record is not that of its page" in problems(root, key.trusted)


def test_an_attestation_of_another_wheel_or_by_another_key_does_not_count(signed, key, other):
    _publish, store, root = signed
    beside = root / attestation_key(FIRST, key.public.keyid)
    beside.parent.mkdir(parents=True)
    good = parse_record((root / record_key(FIRST)).read_bytes(), "").attestation
    place = root / record_key(FIRST)
    bare = place.read_bytes().replace(
        b'"attestation":' + json.dumps(good, sort_keys=True, separators=(",", ":")).encode() + b",", b""
    )
    place.write_bytes(bare)
    expected = f"{FIRST}: its record is not that of its page"
    for bad in (
        json.loads((root / record_key(SECOND)).read_bytes())["attestation"],
        json.loads(other.signer.envelope({}, "application/vnd.in-toto+json")),
        good | {"signatures": [good["signatures"][0] | {"sig": "AAAA"}]},
        {},
        {"payload": 1, "payloadType": 2, "signatures": {"a": 3}},
        [],
    ):
        beside.write_text(json.dumps(bad))
        told = problems(root, key.trusted)
        assert [line.partition(":")[0] for line in told] == [FIRST, FIRST], told
    beside.unlink()
    assert problems(root, key.trusted) == (expected, f"{FIRST}: has no attestation by a trusted key")
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


def test_an_older_index_is_refused_by_whoever_saw_a_newer_one(signed, make_wheel, key, tmp_path):
    publish, _store, root = signed
    shutil.copytree(root, tmp_path / "older")
    publish(make_wheel("canary-2.0-py3-none-any.whl"), signer=key.signer)
    seen = {"state": tmp_path / "seen"}
    assert problems(root, key.trusted, **seen) == ()
    assert problems(root, key.trusted, **seen) == (), "the same again is not older"
    assert problems(tmp_path / "older", key.trusted) == (), "a stranger cannot know"
    told = problems(tmp_path / "older", key.trusted, **seen)
    assert any("older than what was there before" in line for line in told)
    assert problems(root, key.trusted, **seen) == ()


def test_a_group_that_disappears_is_told(signed, make_wheel, key, tmp_path):
    publish, _store, root = signed
    shutil.copytree(root, tmp_path / "one-group")
    publish(make_wheel("canary-1.0+cu118.sm37.avx-py3-none-any.whl"), group="sm37-avx", signer=key.signer)
    seen = {"state": tmp_path / "seen"}
    assert problems(root, key.trusted, **seen) == ()
    with pytest.raises(VerificationFailedError, match="older than what was there before"):
        problems(tmp_path / "one-group", key.trusted, **seen)


def test_one_groups_signature_does_not_count_for_another(signed, make_wheel, key):
    publish, _store, root = signed
    publish(make_wheel("canary-1.0+cu118.sm37.avx-py3-none-any.whl"), group="sm37-avx", signer=key.signer)
    shutil.copy(root / "whl/sm37-avx/links.html", root / "whl/sm35-avx/links.html")
    assert "whl/sm35-avx/links.html: its signature is about whl/sm37-avx/links.html" in problems(root, key.trusted)


def test_check_names_signatures_before_they_expire_and_what_to_do(signed, key):
    _publish, store, _root = signed

    def said(days):
        return {(p.key, p.broken): p.what for p in check(store, now=datetime.now(UTC) + timedelta(days=days))}

    links = pages.links_key("sm35-avx")
    assert said(19) == {}
    assert said(21).keys() == {(GROUPS_KEY, False), (links, False)}
    assert said(31).keys() == {(GROUPS_KEY, True), (links, True)}
    assert "farm index sign" in said(31)[links, True]
    assert (roots.root_key(1), False) in said(330)
    assert "farm index key renew" in said(366)[roots.root_key(1), True]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roles, "DAYS", 60)  # as a renewal in a month
        assert renew(store, key.signer)
    assert said(31) == {}


def test_an_index_whose_signatures_expired_is_refused_until_they_are_renewed(
    tmp_path, make_wheel, put, key, monkeypatch
):
    store = open_store(str(tmp_path / "index"))
    with monkeypatch.context() as patch:
        patch.setattr(roles, "DAYS", -1)
        put(store, make_wheel(FIRST), provenance=SLSA, signer=key.signer)
    with pytest.raises(VerificationFailedError, match="has expired"):
        problems(tmp_path / "index", key.trusted)
    assert sorted(renew(store, key.signer)) == [GROUPS_KEY, "whl/sm35-avx/links.html"]
    assert problems(tmp_path / "index", key.trusted) == ()
    assert problems(tmp_path / "index", key.trusted, max_age=timedelta(days=1)) == ()
    [told] = problems(tmp_path / "index", key.trusted, max_age=timedelta(days=-1))
    assert "longer ago than allowed" in told


def test_versions_grow_after_a_backup_was_restored(signed, make_wheel, key, tmp_path):
    """Users who saw the lost state believe the restored index as soon as it is signed again."""
    publish, _store, root = signed
    backup = tmp_path / "backup"
    shutil.copytree(root, backup)
    publish(make_wheel("canary-2.0-py3-none-any.whl"), signer=key.signer)
    seen = {"state": tmp_path / "seen"}
    assert problems(root, key.trusted, **seen) == ()
    shutil.rmtree(root)
    backup.rename(root)
    with pytest.MonkeyPatch.context() as patch:
        later = time.time() + 60  # a restore takes its time
        patch.setattr("time.time", lambda: later)
        reconcile(open_store(str(root)), key.signer)
    assert problems(root, key.trusted, **seen) == ()


def test_a_page_that_was_published_without_the_key_is_told(signed, make_wheel, key):
    publish, _store, root = signed
    publish(make_wheel("canary-2.0-py3-none-any.whl"))
    told = problems(root, key.trusted)
    assert told
    assert all("newer than its signature" in line for line in told), told


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
    assert roots.change(store, key.signer, add=[other.public]) == 2
    roots.remember_online(store)
    with pytest.raises(PublishRefusedError, match="another key"):
        publish(make_wheel("canary-2.0-py3-none-any.whl"), signer=other.signer)  # the pages are still the old key's
    assert reconcile(store, other.signer).attested == 2
    publish(make_wheel("canary-2.0-py3-none-any.whl"), signer=other.signer)
    done = verify_index(open_reader(str(root)), key.trusted)
    assert (done.problems, done.wheels) == ((), 3)
    assert set(done.keys) == {key.public.keyid, other.public.keyid}
    assert check(store) == []


def test_a_revoked_key_signs_nothing_that_counts(signed, key, other):
    _publish, store, root = signed
    roots.change(store, key.signer, add=[other.public])
    roots.change(store, key.signer, revoke=key.public, reason="the disk was stolen")
    with pytest.raises(VerificationFailedError, match=r"revoked: .* \(the disk was stolen\)"):
        problems(root, key.trusted)  # the pages are still the old key's
    with pytest.raises(PublishRefusedError, match="another key"):
        reconcile(store, key.signer)
    reconcile(store, other.signer)
    assert problems(root, key.trusted) == ()
    assert verify_index(open_reader(str(root)), key.trusted).keys == (other.public.keyid,)
    (root / attestation_key(FIRST, other.public.keyid)).unlink()
    [told] = problems(root, key.trusted)
    assert told == f"{FIRST}: has no attestation by a trusted key; there is one by a revoked key"
    with pytest.raises(UsageError, match="was revoked: the disk was stolen"):
        roots.change(store, key.signer, add=[key.public])


def test_the_root_key_may_stay_offline_and_be_replaced(tmp_path, make_wheel, put, key, other):
    """The publisher has `key`; `other` and then a third are root keys."""
    store, third = open_store(str(tmp_path / "index")), Key(tmp_path / "third.key")
    assert roots.start(store, other.signer, [key.public])
    assert not roots.start(store, key.signer)
    put(store, make_wheel(FIRST), provenance=SLSA, signer=key.signer)
    assert problems(tmp_path / "index", other.trusted) == ()
    with pytest.raises(VerificationFailedError) as caught:
        problems(tmp_path / "index", key.trusted)
    assert "publisher's key" in caught.value.hint
    with pytest.raises(UsageError, match="not the root key"):
        roots.change(store, key.signer, add=[third.public])
    assert roots.change(store, other.signer, successor=third.signer) == 2
    with pytest.raises(UsageError, match="not the root key"):
        roots.change(store, other.signer)
    assert roots.change(store, third.signer) == 3
    for trusted in (other.trusted, third.trusted):
        assert problems(tmp_path / "index", trusted) == ()
    with pytest.raises(UsageError, match="no online key would be left"):
        roots.change(store, third.signer, revoke=key.public, reason="x")


def test_a_thief_of_a_publishers_key_cannot_make_another_key_count(signed, key, other, tmp_path):
    """The next root must be signed by the root key; anything else there ends nothing but the verification."""
    _publish, store, root = signed
    thief = open_store(str(tmp_path / "thief"))
    assert roots.start(thief, other.signer)
    roots.change(thief, other.signer)
    store.create(roots.root_key(2), thief.get(roots.root_key(2)).data, content_type="application/json")
    with pytest.raises(VerificationFailedError, match="not signed by a trusted key"):
        problems(root, key.trusted)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"signed":{"_type":"targets"},"signatures":[]}'])
def test_rubbish_in_place_of_a_root_is_never_followed(signed, key, data):
    _publish, store, root = signed
    store.create(roots.root_key(2), data, content_type="application/json")
    with pytest.raises(VerificationFailedError, match="not signed by a trusted key"):
        problems(root, key.trusted)


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
@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize(("channel", "first", "more", "opening"), [(None, 12, 9, 13), ("kepler", 14, 10, 15)])
def test_the_cost_in_requests(store_url, store, make_wheel, put, key, tmp_path, signs, channel, first, more, opening):
    """Each as a process of its own, in an index with other groups, projects and dependency pages: docs/wheel-index.md.

    `opening` is the first wheel of a group; the list of groups is read before it is written.
    """
    options = {"provenance": SLSA, "signer": key.signer if signs else None, "channel": channel}

    def cost(name, **changes):
        again = open_store(store_url)
        requests = []
        again.client.meta.events.register("before-send.s3", lambda request, **_: requests.append(request.method))
        assert put(again, make_wheel(name), **(options | changes)).changed
        return len(requests)

    # the first of an index: its root page, and the root key if it is signed
    assert cost("torch-2.0.1+cu118.sm35.avx-py3-none-any.whl") == opening + (2 if signs else 0)
    linked = link_dependencies(store, other_index(tmp_path / "other"))
    assert len(linked) > 10
    if signs:
        sign_pages(store, key.signer, linked)
    assert cost("other-1.0-py3-none-any.whl", group="sm37-avx") == opening
    # what was said of a project in other groups (a quarantine) is read before its page is made too
    assert cost("torch-2.0.1+cu118.sm37.avx-py3-none-any.whl", group="sm37-avx") == first + 1
    assert cost(FIRST) == first
    assert cost(KIND) == more
    assert cost(SECOND) == more
    if channel:  # the first of a channel writes a list and the catalogue as well
        assert cost("canary-3.0-py3-none-any.whl", channel="other") == more + 2
    assert check(store) == []
    if signs:
        assert problems(store_url, key.trusted) == ()


def test_a_publish_rewrites_nothing_of_other_groups(signed, make_wheel, key):
    publish, _store, root = signed
    publish(make_wheel("canary-1.0+cu118.sm37.avx-py3-none-any.whl"), group="sm37-avx", signer=key.signer)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and "sm37-avx" not in path.parts}
    publish(make_wheel("canary-1.0+cu118.sm37.avx.1-py3-none-any.whl"), group="sm37-avx", signer=key.signer)
    assert {path: path.read_bytes() for path in before} == before


def test_the_clients_of_other_tools_read_the_signature(signed):
    """The roles are The Update Framework's, the attestation is a DSSE envelope."""
    _publish, store, root = signed
    signature = html.signature_of((root / "whl/sm35-avx/links.html").read_bytes(), "")
    for name in ("targets", "snapshot", "timestamp"):
        assert Metadata.from_dict(signature[name]).signed.type == name
    record = json.loads(store.get(record_key(FIRST)).data)
    assert set(record["attestation"]) == {"payload", "payloadType", "signatures"}


def test_check_names_pages_that_were_changed_without_the_key(signed, key):
    _publish, store, _root = signed
    assert check(store) == []
    record_event(store, FIRST, "yank", "by somebody without the key")
    found = check(store)
    assert {problem.key for problem in found} == {
        "whl/kepler/sm35-avx/simple/canary/index.html",
        "whl/sm35-avx/simple/canary/index.html",
        "whl/sm35-avx/v1-json/canary/index.json",
    }
    assert {(problem.broken, "without a new signature" in problem.what) for problem in found} == {(False, True)}
    reconcile(store, key.signer)
    assert check(store) == []
