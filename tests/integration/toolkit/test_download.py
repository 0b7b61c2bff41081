"""The network and what comes over it: retries, resuming, lies about sizes, wrong bytes, secrets."""

import hashlib

import pytest

BODY = {"bin/tool": b"tool" * 5000, "include/x.h": b"x"}


@pytest.fixture
def one(case, make_tar):
    case.path = case.add("liba", make_tar("liba-1-archive", BODY))
    case.content = case.served.files[case.path]
    return case


def ranges(case):
    return [wanted for _, wanted, _ in case.served.log]


def test_503_is_tried_again(one):
    one.served.faults[one.path] = [("status", 503), ("status", 429)]
    output = one.installed()
    assert "HTTP 503; attempt 2 of 5" in output
    assert "HTTP 429; attempt 3 of 5" in output
    assert (one.prefix / "bin" / "tool").read_bytes() == BODY["bin/tool"]


def test_503_for_ever_ends_as_infrastructure(one):
    one.served.faults[one.path] = [("status", 503)] * 50
    assert "HTTP 503, 5 times" in one.refused(9)
    assert len(one.served.log) == 5


def test_404_is_not_tried_again(one):
    one.served.files.clear()
    assert "HTTP 404; check that the mirror has this file" in one.refused(9)
    assert len(one.served.log) == 1


def test_no_server(one):
    one.rows[0]["url"] = "http://127.0.0.1:9/liba.tar.xz"  # the discard port: nothing listens there
    assert "5 times; check the network" in one.refused(9)


def test_a_body_that_ends_early_is_continued_where_it_ended(one):
    one.served.faults[one.path] = [("cut", 100), ("cut", 50)]
    output = one.installed()
    assert ranges(one) == [None, "bytes=100-", "bytes=150-"]
    assert "the body ended after 100 of" in output


def test_a_body_that_always_ends_early_is_infrastructure(one):
    one.served.faults[one.path] = [("cut", 1)] * 50
    assert "the body ended after 5 of" in one.refused(9)


def test_a_partial_file_of_an_earlier_run_is_continued(one):
    one.served.faults[one.path] = [("cut", 40), *[("status", 500)] * 4]
    assert "HTTP 500, 5 times" in one.refused(9, "--cache", one.cache)
    one.served.log.clear()
    one.installed("--cache", one.cache)
    assert ranges(one) == ["bytes=40-"]


def test_a_server_that_cannot_continue_sends_all_of_it_again(one):
    one.served.faults[one.path] = [("cut", 40), ("no-range",)]
    one.installed()
    assert ranges(one) == [None, "bytes=40-"]


def part_of(case):
    case.cache.mkdir(exist_ok=True)
    return case.cache / f"{case.rows[0]['sha256']}.tar.xz.part"


def test_a_damaged_partial_file_is_dropped_and_fetched_anew(one):
    part_of(one).write_bytes(b"rubbish")
    assert "the partial file was damaged" in one.installed("--cache", one.cache)
    assert ranges(one) == ["bytes=7-", None]


def test_a_partial_file_longer_than_the_archive_is_dropped(one):
    part_of(one).write_bytes(one.content + b"more")
    one.installed("--cache", one.cache)
    assert ranges(one) == [None]


def test_a_damaged_file_in_the_cache_is_not_used(one):
    one.cache.mkdir()
    (one.cache / f"{one.rows[0]['sha256']}.tar.xz").write_bytes(one.content[:-1] + b"!")
    one.installed("--cache", one.cache)
    assert ranges(one) == [None]


def test_a_wrong_sha256_names_both_and_leaves_no_file(one, tree_of):
    right = one.rows[0]["sha256"]
    one.served.files[one.path] = one.content[:-1] + bytes([one.content[-1] ^ 1])
    wrong = hashlib.sha256(one.served.files[one.path]).hexdigest()
    error = one.refused(6, "--cache", one.cache)
    assert f"sha256 is {wrong}, expected {right}" in error
    assert tree_of(one.cache) == {}
    assert len(one.served.log) == 1


@pytest.mark.parametrize("difference", [-1, 1, 10**15])
def test_another_length_than_the_pinned_one_is_refused_before_the_body(one, tree_of, difference):
    one.served.faults[one.path] = [("length", len(one.content) + difference)]
    error = one.refused(6, "--cache", one.cache)
    assert f"offers {len(one.content) + difference} bytes, {len(one.content)} are pinned" in error
    assert tree_of(one.cache) == {}


def test_a_body_without_end_does_not_fill_the_disk(one, tree_of):
    one.served.faults[one.path] = [("endless",)]
    assert f"sends more than the {len(one.content)} bytes" in one.refused(6, "--cache", one.cache)
    assert tree_of(one.cache) == {}


def test_user_and_query_are_used_and_never_shown(one):
    one.rows[0]["url"] = one.rows[0]["url"].replace("http://", "http://me:s3cret@") + "?token=t0ken"
    one.served.faults[one.path] = [("status", 503)]
    output = one.installed()
    assert one.served.log[1] == (one.path + "?token=t0ken", None, "Basic bWU6czNjcmV0")
    shown = output + one.run("--prefix", one.folder / "opt" / "two").stdout
    one.served.files.clear()
    shown += one.refused(9, "--prefix", one.folder / "opt" / "three")
    one.rows[0]["url"] = "http://me:s3cret@127.0.0.1:notaport/x?token=t0ken"
    shown += one.refused(2, "--prefix", one.folder / "opt" / "four")
    assert "503" in shown
    assert "404" in shown
    assert "s3cret" not in shown
    assert "t0ken" not in shown


def test_a_redirect_is_followed_without_the_password_and_not_to_a_file(one):
    one.rows[0]["url"] = one.rows[0]["url"].replace("http://", "http://me:s3cret@")
    one.served.files["/moved"] = one.content
    one.served.faults[one.path] = [("redirect", one.served.url + "/moved")]
    one.installed()
    assert [(path, secret) for path, _, secret in one.served.log] == [
        (one.path, "Basic bWU6czNjcmV0"),
        ("/moved", None),
    ]
    one.served.faults[one.path] = [("redirect", "file:///etc/passwd")]
    one.rows[0]["component"] = "libb"
    assert "HTTP 302" in one.refused(9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": "file:///etc/passwd"}, "url is not of the form"),
        ({"url": "ftp://example.org/a"}, "url is not of the form"),
        ({"sha256": "abc"}, "sha256 is not of the form"),
        ({"size": 0}, "size must be"),
        ({"size": True}, "size must be"),
        ({"size": "5"}, "size must be"),
        ({"kind": "rar"}, "kind is not of the form"),
        ({"component": "../up"}, "component is not of the form"),
        ({"place": "/etc"}, "place is not of the form"),
        ({"surprise": 1}, "needs exactly"),
    ],
)
def test_a_bad_row_of_the_manifest(one, change, message):
    one.rows[0].update(change)
    assert message in one.refused(2)
    assert one.served.log == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "not a manifest of schema 1"),
        ('{"schema": 2}', "not a manifest of schema 1"),
        ('{"schema": 1, "layout": "macos"}', "layout must be"),
        ('{"schema": 1, "layout": "linux", "target": "../x-linux"}', "target must be"),
        ('{"schema": 1, "layout": "windows", "target": "x86_64-linux"}', "target must be"),
        ('{"schema": 1, "layout": "windows", "archives": []}', "archives must be"),
        ('{"schema": 1, "layout": "windows", "archives": [1]}', "needs exactly"),
    ],
)
def test_a_bad_manifest(one, monkeypatch, text, message):
    path = one.folder / "bad.json"
    path.write_text(text)
    monkeypatch.setattr(one, "manifest", lambda: path)
    assert message in one.refused(2)


def test_a_component_listed_twice(one):
    one.rows.append(dict(one.rows[0]))
    assert "listed twice" in one.refused(2)
