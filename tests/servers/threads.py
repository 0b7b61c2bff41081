"""A web server in a thread of the test's own process."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def answered_by(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Requests on loopback are answered by `handler`, as long as the context lasts; gives the server's URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))  # seconds until it sees that it is to stop
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
