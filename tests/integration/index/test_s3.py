"""The S3 store under servers that lose answers, fail, refuse, or ignore conditions.

Faults are put between the client and the server by botocore's own event hooks, so what runs is the
real client and, where the request goes on, the real server.
"""

import io

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from farm.base.errors import InfrastructureError, PublishRefusedError, UsageError
from farm.index.publish import check_store
from farm.index.s3 import TRIES
from farm.index.store_urls import open_store
from tests.servers.threads import Handler, answered_by

TEXT = "text/plain"
ERROR = "<Error><Code>{}</Code><Message>detail from the server</Message></Error>"


@pytest.fixture
def store(s3_url):
    return open_store(s3_url)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _seconds: None)


class _Raw(io.BytesIO):
    def stream(self, *_args, **_kwargs):
        yield self.read()


def answer(request, status, code):
    body = ERROR.format(code).encode() if code else b""
    return AWSResponse(request.url, status, {"content-length": str(len(body))}, _Raw(body))


def fault(store, status, code, *, times=1, deliver=False, method="PUT"):
    """The next requests get an error; with `deliver` the server has carried them out before."""
    seen = []

    def before_send(request, **kwargs):
        if request.method != method:
            return None
        seen.append(request)
        if len(seen) > times:
            return None
        if deliver:
            store.client._endpoint.http_session.send(request)
        return answer(request, status, code)

    store.client.meta.events.register("before-send.s3", before_send)
    return seen


@pytest.mark.parametrize("data", ["bytes", "file"])
def test_a_lost_answer_to_our_own_create_is_a_success(store, tmp_path, data):
    source = tmp_path / "source"
    source.write_bytes(b"ours")
    seen = fault(store, 503, "SlowDown", deliver=True)
    assert store.create("a", b"ours" if data == "bytes" else source, content_type=TEXT) is True
    assert len(seen) == 2
    assert store.get("a").data == b"ours"


def test_a_lost_answer_to_our_own_replace_is_a_success(store):
    store.create("a", b"old", content_type=TEXT)
    etag = store.get("a").etag
    fault(store, 500, "InternalError", deliver=True)
    assert store.replace("a", b"new", etag, content_type=TEXT) is True
    assert store.get("a").data == b"new"


def test_a_retry_that_meets_another_ones_object_has_lost(store):
    store.create("a", b"theirs", content_type=TEXT)
    seen = fault(store, 503, "SlowDown")
    assert store.create("a", b"ours", content_type=TEXT) is False
    assert len(seen) == 2
    assert store.get("a").data == b"theirs"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (409, "ConditionalRequestConflict"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "SlowDown"),
        (400, "RequestTimeout"),
        (400, "IncompleteBody"),
    ],
)
def test_passing_failures_are_tried_again(store, status, code):
    seen = fault(store, status, code, times=3)
    assert store.create("a", b"x", content_type=TEXT) is True
    assert len(seen) == 4


def test_tries_are_bounded(store):
    seen = fault(store, 503, "SlowDown", times=1000)
    with pytest.raises(InfrastructureError, match="503 SlowDown"):
        store.create("a", b"x", content_type=TEXT)
    assert len(seen) == TRIES
    assert store.get("a") is None


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (405, "MethodNotAllowed")])
def test_lasting_failures_are_not_tried_again_and_never_mean_absent(store, status, code):
    store.create("a", b"x", content_type=TEXT)
    for method, operate in {"GET": store.get, "HEAD": store.stat}.items():
        seen = fault(store, status, code if method == "GET" else "", times=1000, method=method)
        with pytest.raises(InfrastructureError, match=str(status)) as caught:
            operate("a")
        assert len(seen) == 1
        assert "detail from the server" not in str(caught.value)
        assert "test-secret" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    ("method", "right"),
    [
        ("GET", "s3:GetObject, and s3:ListBucket for what is absent"),
        ("PUT", "s3:PutObject"),
        ("DELETE", "s3:DeleteObject"),
    ],
)
def test_a_missing_right_is_named(store, method, right):
    """Which one lacks, the store does not say: 403 is its answer to a read of nothing, too."""
    fault(store, 403, "AccessDenied", method=method)
    operate = {
        "GET": lambda: store.get("a"),
        "PUT": lambda: store.create("a", b"x", content_type=TEXT),
        "DELETE": lambda: store.discard("whl/files/a"),
    }[method]
    with pytest.raises(InfrastructureError, match="403 AccessDenied") as caught:
        operate()
    assert f"allow this ({right})?" in caught.value.hint
    fault(store, 403, "AccessDenied", method="GET")
    with pytest.raises(InfrastructureError, match="403 AccessDenied") as caught:
        list(store.list("whl/"))
    assert "(s3:ListBucket)" in caught.value.hint


def test_an_absent_bucket_is_no_empty_index(moto_url, aws):
    store = open_store(f"s3://nowhere?endpoint_url={moto_url}")
    for operate in (
        lambda: store.get("a"),
        lambda: store.create("a", b"", content_type=TEXT),
        lambda: list(store.list("")),
        lambda: check_store(store),
    ):
        with pytest.raises(UsageError, match="404 NoSuchBucket") as caught:
            operate()
        assert "create it first" in caught.value.hint


def test_a_bucket_whose_name_aws_gives_no_more(moto_url, s3_owner, aws):
    s3_owner.create_bucket(Bucket="Old_Wheels")
    store = open_store(f"s3://Old_Wheels/py?endpoint_url={moto_url}")
    assert store.create("whl/a+b.whl", b"x", content_type=TEXT)
    assert (store.get("whl/a+b.whl").data, list(store.list(""))) == (b"x", ["whl/a+b.whl"])


def test_no_credentials_are_a_usage_error(s3_url, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UsageError, match="no credentials") as caught:
        open_store(s3_url).get("a")
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_a_dead_endpoint_is_infrastructure(aws):
    store = open_store("s3://wheels?endpoint_url=http://127.0.0.1:9")
    with pytest.raises(InfrastructureError, match="EndpointConnectionError"):
        store.get("a")


PAGE = b"<html><body>Log in</body></html>"


def elsewhere(status, headers, body):
    """What stands at an endpoint that is no store: each request gets this answer."""

    class Elsewhere(Handler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.reply(status, body, headers)

        do_HEAD = do_GET

    return answered_by(Elsewhere)


@pytest.mark.parametrize("named", ["in the URL", "by AWS_ENDPOINT_URL"])
@pytest.mark.parametrize(
    ("status", "headers", "body", "message"),
    [
        (
            301,
            {"Location": "https://store.example.org/?token=1"},
            b"",
            r"no S3 store answers there \(301 https://store.example.org/\)",
        ),
        (307, {"Location": "/login"}, PAGE, r"no S3 store answers there \(307 /login\)"),
        (308, {}, b"", r"no S3 store answers there \(308 "),
        (200, {"Content-Type": "text/html"}, PAGE, r"no S3 store answers there \(200 text/html\)"),
        (200, {}, b"", r"no S3 store answers there \(200 \)"),
    ],
    ids=["https", "login", "nowhere", "page", "empty"],
)
def test_what_answers_and_is_no_store_is_named(
    aws, monkeypatch, named, status, headers, body, message
):
    """Not an empty index: a page reads as a listing without objects. And no traceback, wherever the
    address stands.
    """
    with elsewhere(status, headers, body) as endpoint:
        if named == "by AWS_ENDPOINT_URL":
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        store = open_store(
            "s3://wheels"
            if named == "by AWS_ENDPOINT_URL"
            else f"s3://wheels?endpoint_url={endpoint}"
        )
        for operate in (
            lambda: store.get("a"),
            lambda: store.stat("a"),
            lambda: list(store.list("")),
        ):
            with pytest.raises(InfrastructureError, match=message) as caught:
                operate()
            assert caught.value.hint


@pytest.mark.parametrize(
    ("status", "code", "more", "headers", "message"),
    [
        (301, "PermanentRedirect", "", {"x-amz-bucket-region": "eu-west-1"}, "region=eu-west-1"),
        (400, "AuthorizationHeaderMalformed", "<Region>garage</Region>", {}, "region=garage"),
        (400, "IllegalLocationConstraintException", "", {}, "region=NAME"),
    ],
)
def test_a_bucket_in_another_region_is_a_mistake_in_the_url(
    store, status, code, more, headers, message
):
    text = f"<Error><Code>{code}</Code>{more}</Error>".encode()

    def before_send(request, **kwargs):
        body = b"" if request.method == "HEAD" else text
        return AWSResponse(
            request.url, status, {"content-length": str(len(body)), **headers}, _Raw(body)
        )

    store.client.meta.events.register("before-send.s3", before_send)
    for operate in (lambda: store.get("catalog.json"), lambda: list(store.list("whl/"))):
        with pytest.raises(UsageError) as caught:
            operate()
        assert message in caught.value.hint


NOT_FOUND = (
    b"<html><head><title>404 Not Found</title></head><body><hr><center>nginx</center></body></html>"
)


@pytest.mark.parametrize(
    ("status", "body", "message", "hint"),
    [
        (404, NOT_FOUND, "404 Not Found$", "endpoint_url"),
        (404, b"", "404 Not Found$", "endpoint_url"),
        (501, b"Unsupported method ('PUT')", "501 Not Implemented$", "endpoint_url"),
        (413, b"<html></html>", "413 Request Entity Too Large$", "client_max_body_size"),
        (403, b"<html></html>", "403 Forbidden$", "proxy"),
        (400, b"", "400 Bad Request$", "again"),
    ],
)  # fmt: skip
def test_what_no_store_says_is_said_as_such(store, status, body, message, hint):
    """A web server has none of S3's codes, and its 404 is no refused condition."""
    store.create("whl/there", b"x", content_type=TEXT)

    def before_send(request, **kwargs):
        return AWSResponse(request.url, status, {"content-length": str(len(body))}, _Raw(body))

    store.client.meta.events.register("before-send.s3", before_send)
    for operate in (
        lambda: store.create("whl/a", b"x", content_type=TEXT),
        lambda: list(store.list("whl/")),
    ):
        with pytest.raises(InfrastructureError, match=message) as caught:
            operate()
        assert hint in caught.value.hint


def test_a_refusal_of_what_is_not_there_is_an_error(store):
    """A proxy that answers 412 by itself must not pass for another publisher's object."""
    lie = (
        "before-send.s3.PutObject",
        lambda request, **_: AWSResponse(request.url, 412, {}, _Raw(b"")),
    )
    store.client.meta.events.register(*lie)
    with pytest.raises(InfrastructureError, match=r"refused as existing \(412\) and is not there"):
        store.create("whl/a", b"x", content_type=TEXT)
    store.client.meta.events.unregister(*lie)
    assert store.create("whl/a", b"x", content_type=TEXT)
    store.client.meta.events.register(*lie)
    assert not store.create("whl/a", b"x", content_type=TEXT)


def test_objects_say_what_they_are(store):
    store.create("a.whl", b"x", content_type="application/octet-stream")
    store.replace("index.html", b"x", None, content_type="text/html; charset=utf-8")
    heads = {
        key: store.client.head_object(Bucket=store.bucket, Key=store.prefix + key)
        for key in ("a.whl", "index.html")
    }
    assert heads["a.whl"]["ContentType"] == "application/octet-stream"
    assert heads["a.whl"]["CacheControl"] == "max-age=31536000, immutable"
    assert heads["index.html"]["ContentType"] == "text/html; charset=utf-8"
    assert heads["index.html"]["CacheControl"] == "no-cache"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_uploads_carry_no_trailer_that_other_servers_refuse(aws, tmp_path, scheme):
    source = tmp_path / "source"
    source.write_bytes(b"wheel")
    store = open_store(f"s3://wheels?endpoint_url={scheme}://127.0.0.1:9")
    requests = []

    def before_send(request, **kwargs):
        requests.append(request)
        return answer(request, 200, "")

    store.client.meta.events.register("before-send.s3", before_send)
    assert store.create("a", source, content_type=TEXT) is True
    assert store.replace("b", b"12345", '"tag"', content_type=TEXT) is True
    for request in requests:
        headers = {
            name.lower(): value.decode() if isinstance(value, bytes) else value
            for name, value in request.headers.items()
        }
        assert headers["content-length"] == "5"
        assert not {
            "x-amz-trailer",
            "transfer-encoding",
            "content-encoding",
            "x-amz-sdk-checksum-algorithm",
        } & set(headers)
        assert "x-amz-checksum-sha256" in headers
    assert requests[0].headers["If-None-Match"] in {"*", b"*"}
    assert requests[1].headers["If-Match"] in {'"tag"', b'"tag"'}


def ignore(store, *headers):
    """The server never sees these headers, which is how one that ignores them behaves."""

    def before_sign(request, **kwargs):
        for header in headers:
            del request.headers[header]

    store.client.meta.events.register("before-sign.s3", before_sign)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (["If-None-Match"], "was created again"),
        (["If-None-Match", "If-Match"], "was created again"),
        (["If-Match"], "by a tag that it does not have"),
    ],
)
def test_a_store_that_ignores_conditions_is_refused(s3_url, make_wheel, put, headers, message):
    store = open_store(s3_url)
    ignore(store, *headers)
    with pytest.raises(PublishRefusedError, match=message):
        put(store, make_wheel("canary-1.0-py3-none-any.whl"))
    assert list(store.list("")) == []


def test_a_store_that_refuses_true_conditions_is_refused(store):

    def before_sign(request, **kwargs):
        if "If-Match" in request.headers:
            del request.headers["If-Match"]
            request.headers["If-Match"] = '"never"'

    store.client.meta.events.register("before-sign.s3", before_sign)
    with pytest.raises(PublishRefusedError, match="by the tag that it has"):
        check_store(store)


DATA = bytes(range(256)) * 10


def test_an_interrupted_read_is_resumed(store):
    """Of a wheel that is checked or copied; the transfer is boto3's."""
    store.create("whl/files/a.whl", DATA, content_type=TEXT)
    requests = []

    class Short(io.BytesIO):
        def stream(self, amount, **_):
            while piece := self.read(amount):
                yield piece

    def before_send(request, **_kwargs):
        if request.method != "GET" or requests:
            return None
        requests.append(request)
        answer = store.client._endpoint.http_session.send(request)
        return AWSResponse(
            answer.url, answer.status_code, answer.headers, Short(answer.content[:1000])
        )

    store.client.meta.events.register("before-send.s3", before_send)
    assert b"".join(store.chunks("whl/files/a.whl")) == DATA
    assert requests


@pytest.mark.parametrize(
    ("config", "profile", "message"),
    [
        ("", "absent", "no client for s3://.*absent"),
        ("[default", None, "no client for s3://.*config"),
        ("[profile sso]\nsso_start_url=https://sso.invalid\nsso_region=us-east-1\nsso_account_id=1\nsso_role_name=x\n",
         "sso", "no credentials for .*SSOTokenLoadError"),
    ],
)  # fmt: skip
def test_a_profile_that_gives_no_credentials_is_a_mistake_in_the_configuration(
    s3_url, monkeypatch, tmp_path, config, profile, message
):
    (tmp_path / "config").write_text(config)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(
        boto3, "Session", boto3.session.Session
    )  # a session reads the configuration as it is made
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    with pytest.raises(UsageError, match=f"(?s){message}"):
        open_store(s3_url).get("catalog.json")
