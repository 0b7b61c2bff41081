"""A signed index: sound, tampered with, old, with other keys; read by TUF's own client as it is."""

import datetime as dt
import hashlib
import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from tuf.api.metadata import Metadata
from tuf.ngclient import Updater, UpdaterConfig

from farm.base.errors import PublishRefusedError, UsageError, VerificationFailedError
from farm.cli.main import main
from farm.index import signatures as sign_module
from farm.index.changes import record_event
from farm.index.check import check
from farm.index.reader import open_reader
from farm.index.signatures import TIMESTAMP, set_keys, sign, verify_index
from farm.index.store_urls import open_store
from tests.indexes.keys import write_key
from tests.indexes.recorder import FIRST, GROUP, SECOND
from tests.servers.static import serving


@pytest.fixture
def keys(tmp_path):
    """The root key and two that may sign: signers by name."""
    return {name: write_key(tmp_path / f"{name}.key") for name in ("root", "online", "other")}


def start(store, root, *online):
    """The first root."""
    number, data = set_keys(store, root, [each.public_key for each in online])
    assert number == 1
    return data


@pytest.fixture
def signed(tmp_path, make_wheel, put, keys):
    """A signed index of one wheel: its store and the root that users trust."""
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST), channel="kepler")
    root = start(store, keys["root"], keys["online"])
    sign(store, keys["online"])
    return store, root


def problems(store, root, **options):
    return verify_index(open_reader(str(store.root)), root, **options).problems


def at(monkeypatch, moment):
    """Sets the clock of this machine, for who signs."""

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return moment.astimezone(tz) if tz else moment

    monkeypatch.setattr(sign_module, "datetime", Clock)
    monkeypatch.setattr("time.time_ns", lambda: int(moment.timestamp() * 10**9))


def test_a_sound_index_on_every_kind_of_store(store, store_url, make_wheel, put, keys):
    put(store, make_wheel(FIRST), channel="kepler")
    put(store, make_wheel(SECOND), group="sm37-avx")
    root = start(store, keys["root"], keys["online"])
    pages, wheels, _expires = sign(store, keys["online"])
    seen = verify_index(open_reader(store_url), root, wheels=True)
    assert (seen.problems, seen.wheels, seen.pages) == ((), 2, pages) == ((), wheels, pages)
    assert check(store) == []


def test_the_client_of_tuf_reads_it_as_it_is(signed, tmp_path):
    """`tuf.ngclient` with its own fetcher, over HTTP: pages and wheels are its targets."""
    store, root = signed
    (tmp_path / "seen").mkdir()
    with serving(store.root) as url:
        config = UpdaterConfig(prefix_targets_with_hash=False)
        client = Updater(
            str(tmp_path / "seen"),
            f"{url}/tuf/",
            str(tmp_path),
            f"{url}/",
            config=config,
            bootstrap=root,
        )
        client.refresh()
        for key in (
            f"whl/files/{FIRST}",
            f"whl/{GROUP}/simple/canary/index.html",
            "index.html",
            "catalog.json",
        ):
            got = client.download_target(client.get_targetinfo(key), str(tmp_path / "got"))
            assert Path(got).read_bytes() == (store.root / key).read_bytes()
        (store.root / f"whl/files/{FIRST}").write_bytes(b"evil")
        with pytest.raises(Exception, match=r"length|hash"):
            client.download_target(
                client.get_targetinfo(f"whl/files/{FIRST}"), str(tmp_path / "evil")
            )


def test_over_http(signed):
    store, root = signed
    with serving(store.root) as url:
        assert verify_index(open_reader(url), root, wheels=True).problems == ()
        (store.root / f"whl/{GROUP}/simple/canary/index.html").write_bytes(b"<a>evil</a>")
        [problem] = verify_index(open_reader(url), root).problems
        assert problem.startswith(f"whl/{GROUP}/simple/canary/index.html: not as it was signed on ")


def test_every_page_that_is_tampered_with_or_gone_is_named(signed):
    store, root = signed
    pages = [key for key in store.list("") if sign_module.is_page(key)]
    assert len(pages) > 6
    for key in pages:
        path = store.root / key
        before = path.read_bytes()
        path.write_bytes(before + b" ")
        assert [line.partition(":")[0] for line in problems(store, root)] == [key]
        path.unlink()
        assert problems(store, root) == (f"{key}: is signed, and is not there",)
        path.write_bytes(before)
    assert problems(store, root) == ()


@pytest.mark.parametrize("over", ["folder", "http"])
@pytest.mark.parametrize(
    "key",
    [f"whl/{GROUP}/simple/other/index.html", f"whl/{GROUP}/v1-json/other/index.json", "index.html"],
)
def test_an_unsigned_page_is_named(tmp_path, make_wheel, put, keys, key, over):
    """The root page too: people copy their pip line from it."""
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    put(store, make_wheel("other-1.0-py3-none-any.whl"), group="sm37-avx")
    root = start(store, keys["root"], keys["online"])
    (store.root / "index.html").unlink()
    sign(store, keys["online"])
    (store.root / key).parent.mkdir(parents=True, exist_ok=True)
    (store.root / key).write_bytes(b"<a href=evil>pip install evil</a>")
    with serving(store.root) as url:
        lines = verify_index(
            open_reader(str(store.root) if over == "folder" else url), root
        ).problems
    assert lines == (f"{key}: no signature covers this page",)


def test_an_unsigned_group_is_named_if_the_store_can_be_listed(signed):
    store, root = signed
    shutil.copytree(store.root / f"whl/{GROUP}", store.root / "whl/evil")
    lines = problems(store, root)
    assert lines
    assert all(
        line.startswith("whl/evil/") and line.endswith("no signature covers this page")
        for line in lines
    )


@pytest.mark.parametrize(
    "what", [f"whl/files/{FIRST}", f"whl/files/{FIRST}.metadata", f"records/{FIRST}.json"]
)
def test_files_next_to_pages_are_verified_too(signed, what):
    store, root = signed
    (store.root / what).write_bytes(b"other")
    assert problems(store, root, wheels=True) == (f"{what}: has other bytes than signed",)


def test_what_was_published_or_yanked_since_is_named_until_it_is_signed(
    signed, make_wheel, put, keys
):
    store, root = signed
    put(store, make_wheel(SECOND))
    record_event(store, [FIRST], "yank", "old")
    lines = problems(store, root)
    assert all("either its owner changed it and has not signed since" in line for line in lines)
    assert {line.partition(":")[0].rsplit("/", 1)[-1] for line in lines} == {
        "index.html",
        "index.json",
    }
    sign(store, keys["online"])
    assert problems(store, root, wheels=True) == ()


def test_a_stranger_trusts_nothing(signed, tmp_path, keys):
    store, root = signed
    elsewhere = open_store(str(tmp_path / "elsewhere"))
    theirs = start(elsewhere, keys["other"], keys["other"])
    with pytest.raises(VerificationFailedError, match="no signatures that lead back"):
        problems(store, theirs)
    with pytest.raises(VerificationFailedError, match="not signed, or not an index"):
        problems(elsewhere, root)
    with pytest.raises(VerificationFailedError, match="no signatures that lead back"):
        problems(store, b"{}")
    flipped = re.sub(
        rb'("sig": ?")(.)', lambda found: found[1] + (b"0" if found[2] != b"0" else b"1"), root
    )
    with pytest.raises(VerificationFailedError, match="no signatures that lead back"):
        problems(store, flipped)


def test_a_client_that_saw_a_newer_index_refuses_an_older_one(
    signed, tmp_path, make_wheel, put, keys
):
    store, root = signed
    old = shutil.copytree(store.root, tmp_path / "old")
    put(store, make_wheel(SECOND))
    sign(store, keys["online"])
    seen = tmp_path / "seen"
    assert problems(store, root, state=seen) == ()
    older = open_store(str(old))
    assert problems(older, root) == (), "nothing in an old state contradicts itself"
    with pytest.raises(VerificationFailedError, match="older than what was seen"):
        problems(older, root, state=seen)
    sign(older, keys["online"])  # a backup that was restored and signed again is newer
    assert problems(older, root, state=seen) == ()


def test_signatures_expire_and_check_says_so_before(signed, monkeypatch):
    store, root = signed
    ahead = datetime.now(UTC) + timedelta(days=21)
    [problem] = check(store, now=ahead)
    assert (problem.key, problem.broken) == (TIMESTAMP, False)
    assert "farm index sign" in problem.what
    findings = check(store, now=ahead + timedelta(days=300))
    assert {each.key: each.broken for each in findings} == {
        TIMESTAMP: True,
        "tuf/1.root.json": False,
    }
    later = SimpleNamespace(datetime=_Later, timezone=dt.timezone)
    monkeypatch.setattr("tuf.ngclient._internal.trusted_metadata_set.datetime", later)
    with pytest.raises(VerificationFailedError, match="have expired"):
        problems(store, root)


class _Later(dt.datetime):
    @classmethod
    def now(cls, tz=None):
        return dt.datetime.now(tz) + timedelta(days=40)


@pytest.mark.parametrize("days", [-400, -1, 2, 25, 400])
def test_a_wrong_clock_signs_nothing(signed, keys, monkeypatch, days):
    """It signed an expired state, rc 0; or one that an attacker can show for a year."""
    store, _root = signed
    before = store.get(TIMESTAMP).data
    now = datetime.now(UTC).replace(microsecond=0)
    at(monkeypatch, now + timedelta(days=days))
    with pytest.raises(PublishRefusedError, match="this machine's clock says") as caught:
        sign(store, keys["online"])
    for time in (now + timedelta(days=days), now):
        assert time.isoformat()[:13] in str(caught.value), "both times are named"
    assert store.get(TIMESTAMP).data == before
    sign(store, keys["online"], trust_clock=True)
    assert store.get(TIMESTAMP).data != before


@pytest.mark.parametrize("seconds", [-3000, 23 * 3600])
def test_a_clock_that_is_a_little_off_signs(signed, keys, monkeypatch, seconds):
    store, _root = signed
    at(monkeypatch, datetime.now(UTC) + timedelta(seconds=seconds))
    sign(store, keys["online"])


def test_the_clock_of_the_store_decides_where_it_has_one(signed, keys, monkeypatch):
    """A bucket that nobody signed for weeks is signed by a right clock, and by no wrong one."""
    store, _root = signed
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(days=25)
    monkeypatch.setattr(store, "clock", lambda: later)
    for wrong in (timedelta(days=2), timedelta(days=-2)):
        at(monkeypatch, later + wrong)
        with pytest.raises(PublishRefusedError, match="the store's clock says") as caught:
            sign(store, keys["online"])
        assert all(time.isoformat() in str(caught.value) for time in (later, later + wrong))
    at(monkeypatch, later)
    sign(store, keys["online"])


def test_other_keys_lead_users_of_the_first_root_on(signed, keys):
    store, root = signed
    online, other = keys["online"].public_key, keys["other"].public_key
    assert set_keys(store, keys["root"], [online, other])[0] == 2
    with pytest.raises(PublishRefusedError, match="may not sign"):
        sign(store, keys["root"])
    sign(store, keys["other"])
    assert problems(store, root) == ()
    assert set_keys(store, keys["root"], [online])[0] == 3
    with pytest.raises(VerificationFailedError, match="no signatures that lead back"):
        problems(store, root)
    with pytest.raises(PublishRefusedError, match="may not sign"):
        sign(store, keys["other"])
    sign(store, keys["online"])
    assert problems(store, root) == ()
    assert set_keys(store, keys["root"], [], keys["other"])[0] == 4
    with pytest.raises(UsageError, match="is not the root key"):
        set_keys(store, keys["root"], [other])
    assert set_keys(store, keys["other"], [])[0] == 5
    sign(store, keys["online"])
    assert problems(store, root) == (), "a user with the first root follows"
    assert problems(store, store.get("tuf/4.root.json").data) == ()


def test_a_root_names_a_key_that_signs(tmp_path, keys):
    with pytest.raises(UsageError, match="no key could sign"):
        set_keys(open_store(str(tmp_path / "new")), keys["root"], [])


def test_a_thief_of_a_key_that_signs_cannot_make_another_count(signed, keys):
    store, root = signed
    made = Metadata.from_bytes(store.get("tuf/1.root.json").data)
    made.signed.version = 2
    made.signatures.clear()
    made.sign(keys["online"])
    store.create("tuf/2.root.json", made.to_bytes(), content_type="application/json")
    with pytest.raises(VerificationFailedError, match="no signatures that lead back"):
        problems(store, root)


def test_two_who_sign_at_once_and_old_signatures_go(signed, keys):
    store, root = signed
    for _ in range(4):
        sign(store, keys["online"])
    assert problems(store, root) == ()
    assert len([key for key in store.list("tuf/") if key.endswith(".targets.json")]) == 2


def test_the_commands(tmp_path, make_wheel, put, keys, capsys, monkeypatch):
    index = ["--index", str(tmp_path / "index")]
    put(open_store(index[1]), make_wheel(FIRST))
    keys_ = ["index", "keys", "--root-key", str(tmp_path / "root.key"), *index]
    sign_ = ["index", "sign", *index, "--signing-key"]
    assert main([*sign_, str(tmp_path / "online.key")]) == 2
    assert "farm index keys" in capsys.readouterr().err
    assert main([*keys_, str(tmp_path / "online.key.pub"), str(tmp_path / "other.key.pub")]) == 0
    digest = hashlib.sha256((tmp_path / "index/tuf/1.root.json").read_bytes()).hexdigest()
    assert f"1.root.json to users (sha256 {digest})" in capsys.readouterr().out
    monkeypatch.setenv("FARM_TEST_KEY", (tmp_path / "other.key").read_text())
    assert main([*sign_, "env:FARM_TEST_KEY"]) == 0
    shutil.copy(tmp_path / "index/tuf/1.root.json", tmp_path / "trusted.json")
    verify = [
        "index",
        "verify",
        str(tmp_path / "index"),
        "--root",
        str(tmp_path / "trusted.json"),
        "--json",
    ]
    capsys.readouterr()
    assert main([*verify, "--wheels"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    assert main([*keys_, str(tmp_path / "online.key.pub")]) == 0
    assert "farm index sign" in capsys.readouterr().out
    assert main(verify) == 6
    assert main([*sign_, str(tmp_path / "online.key")]) == 0
    assert main(verify) == 0


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("none.key", "cannot read the key"),
        ("env:FARM_TEST_NONE", "FARM_TEST_NONE, and it is not set"),
        ("env:FARM_TEST_KEY", "FARM_TEST_KEY holds no private key"),
        ("root.key.pub", "holds no private key"),
    ],
)
def test_what_is_no_key_is_said_and_not_shown(tmp_path, monkeypatch, keys, capsys, where, message):
    monkeypatch.setenv(
        "FARM_TEST_KEY", "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["index", "sign", "--index", "index", "--signing-key", where]) == 2
    stderr = capsys.readouterr().err
    assert message in stderr
    assert "c2VjcmV0" not in stderr


@pytest.fixture
def many(tmp_path, make_wheel, put, keys, monkeypatch):
    """An index with more wheels than one file of signatures names: its store and root."""
    monkeypatch.setattr(sign_module, "WHEELS_PER_ROLE", 3)
    store = open_store(str(tmp_path / "index"))
    for number in range(14):
        put(store, make_wheel(f"canary-{number}.0-py3-none-any.whl"))
    root = start(store, keys["root"], keys["online"])
    sign(store, keys["online"])
    return store, root


def test_many_wheels_are_signed_by_roles_of_their_own(many, keys, tmp_path):
    """`sign` wrote one file that no client of TUF reads, from about 23,700 wheels on."""
    store, root = many
    assert len([key for key in store.list("tuf/") if ".wheels-" in key]) == 8
    seen = verify_index(open_reader(str(store.root)), root, wheels=True)
    assert (seen.problems, seen.wheels) == ((), 14)
    assert check(store) == []
    for _ in range(3):
        sign(store, keys["online"])
    assert len([key for key in store.list("tuf/") if ".wheels-" in key]) == 16
    (tmp_path / "seen").mkdir()
    with serving(store.root) as url:
        config = UpdaterConfig(prefix_targets_with_hash=False)
        client = Updater(
            str(tmp_path / "seen"), f"{url}/tuf/", str(tmp_path), f"{url}/",
            config=config, bootstrap=root,
        )  # fmt: skip
        client.refresh()
        key = "whl/files/canary-7.0-py3-none-any.whl"
        got = client.download_target(client.get_targetinfo(key), str(tmp_path / "got"))
        assert Path(got).read_bytes() == (store.root / key).read_bytes()


def test_a_wheel_that_was_swapped_is_named_among_many(many):
    store, root = many
    key = "whl/files/canary-7.0-py3-none-any.whl"
    (store.root / key).write_bytes(b"evil")
    assert problems(store, root, wheels=True) == (f"{key}: has other bytes than signed",)


def test_what_no_client_would_read_is_refused_before_anything_is_written(signed, keys, monkeypatch):
    store, _root = signed
    before = set(store.list("tuf/"))
    monkeypatch.setattr(sign_module, "MAX_ROLE_BYTES", 500)
    with pytest.raises(PublishRefusedError, match="too much to sign"):
        sign(store, keys["online"])
    assert set(store.list("tuf/")) == before
