"""nginx before a bucket: parts of a wheel on a cold cache, and addresses without their last slash."""

import contextlib
import http.client
import threading

import pytest

from tests.servers import web
from tests.servers.process import MissingError
from tests.servers.threads import Handler, answered_by

WHEEL = b"wheel" * 200_000
CLIENTS = 3
PATH = "/whl/files/torch-2.0-py3-none-any.whl"
PATIENCE_S = 60


def asked(url, path, **headers):
    """A connection on which a request was sent."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    connection.request("GET", path, headers=headers)
    return contextlib.closing(connection)


@pytest.fixture
def before(tmp_path, require):
    """Starts nginx before a store; gives its URL."""
    with contextlib.ExitStack() as stack:

        def start(store):
            words = {
                "127.0.0.1:7480": store.removeprefix("http://"),
                "/var/cache/nginx/wheels": str(tmp_path / "cache"),
            }
            try:
                return stack.enter_context(web.nginx(tmp_path, "nginx-bucket.conf", **words))
            except MissingError as error:
                return require("nginx", error)

        yield start


def test_parts_that_are_asked_for_at_once_fetch_a_wheel_once(before):
    """Three ranges on a cold cache fetched the whole wheel three times from the store."""
    paths = []
    all_were_sent = threading.Event()

    class Store(Handler):
        def do_GET(self):
            paths.append(self.path)
            all_were_sent.wait(PATIENCE_S)
            self.reply(200, WHEEL, {"Accept-Ranges": "bytes", "ETag": '"1"'})

    with answered_by(Store) as store, contextlib.ExitStack() as clients:
        url = before(store)
        part = {"Range": "bytes=-1000"}
        connections = [clients.enter_context(asked(url, PATH, **part)) for _ in range(CLIENTS)]
        all_were_sent.set()
        for connection in connections:
            response = connection.getresponse()
            assert (response.status, response.read()) == (206, WHEEL[-1000:])
    assert paths == [f"/wheels{PATH}"]


@pytest.mark.parametrize("place", ["/whl/sm35-avx/simple/torch", "/whl/sm35-avx/simple", "/whl/x"])
def test_an_address_without_its_last_slash_leads_to_the_one_with_it(before, place):
    url = before("http://127.0.0.1:1")
    with asked(url, place) as connection:
        response = connection.getresponse()
        assert (response.status, response.headers["Location"]) == (301, f"{place}/")
