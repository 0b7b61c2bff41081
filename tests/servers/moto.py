"""moto, answering one request at a time: `python -m tests.servers.moto PORT [HOST]`, or
`in_thread()`.

Its own threads check a condition and store the object in two steps: the probe saw 1 of 48 swaps
lost with 48 writers.
"""

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server

from tests.servers.process import ROOT, free_port, serving


class OneAtATime:
    """A WSGI application behind a lock."""

    def __init__(self, application) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ, start_response):
        if length := environ.get(
            "CONTENT_LENGTH"
        ):  # before the lock: a client that is cut off must not keep it
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(length)))
        with self._lock:
            answer = self._application(environ, start_response)
            try:
                return list(answer)
            finally:
                if hasattr(answer, "close"):
                    answer.close()


def _server(port: int, host: str = "127.0.0.1") -> BaseWSGIServer:
    logging.getLogger("werkzeug").setLevel(
        logging.ERROR
    )  # a line for each of thousands of requests
    return make_server(
        host, port, OneAtATime(DomainDispatcherApplication(create_backend_app)), threaded=True
    )


@contextlib.contextmanager
def in_thread() -> Iterator[str]:
    """In this process, for quick tests; gives its URL."""
    server = _server(0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def process(log: Path) -> Iterator[str]:
    """In a process of its own; gives its URL."""
    port = free_port()
    command = [sys.executable, "-m", "tests.servers.moto", str(port)]
    with serving(command, port, log, env={"PYTHONPATH": str(ROOT)}) as url:
        yield url


if __name__ == "__main__":
    _server(int(sys.argv[1]), *sys.argv[2:3]).serve_forever()
