"""A proxy between a client and an S3 server that counts requests and, by a seeded plan, does harm
to them.
"""

import contextlib
import http.client
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

STATUSES = {
    403: "AccessDenied",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    500: "InternalError",
    503: "SlowDown",
}
HARMS = (
    "drop the request",
    "drop the answer",
    "delay",
    "send twice",
    "cut the request",
    "cut the answer",
    *(f"answer {status}" for status in STATUSES),
    *(f"carry out and answer {status}" for status in (500, 503)),
)
"""412 is a lie here: the server was not asked, or it did what was asked and the client is told that
it did not.
"""

DELAY_S = 0.05

Plan = Callable[[str, str], str | None]
"""From method and path to one of `HARMS`, or None for none."""


def seeded(seed: int, share: float) -> Plan:
    """Harms about `share` of all requests, in an order that follows from the seed."""
    chance, lock = random.Random(seed), threading.Lock()

    def plan(_method: str, _path: str) -> str | None:
        with lock:
            return chance.choice(HARMS) if chance.random() < share else None

    return plan


class Proxy(ThreadingHTTPServer):
    """Listens on the loopback.

    Attributes:
        plan: What harm to do; may be changed at any time.
        requests: Method and path of all that came.
        stored: Path and body of each page of JSON that the server took, in the order in which it
            took them.
        after: Called with the number of a request when the server has carried it out and the client
            knows nothing yet.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        parts = urlsplit(target)
        assert parts.scheme == "http"
        assert parts.hostname
        self.target = (parts.hostname, parts.port or 80)
        self.plan: Plan = lambda _method, _path: None
        self.requests: list[str] = []
        self.harms: Counter[str] = Counter()
        self.stored: list[tuple[str, bytes]] = []
        self.after: Callable[[int], None] | None = None
        self.pages = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address) -> None:
        """Broken connections are this server's work."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def handle_expect_100(self) -> bool:
        self.send_response_only(100)
        self.end_headers()
        return True

    def log_message(self, *_arguments) -> None:
        pass

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {self.path}")
        number = len(self.server.requests)
        harm = self.server.plan(self.command, self.path)
        if harm is not None:
            self.server.harms[harm] += 1
        if harm == "drop the request":
            self._hang_up()
        elif harm == "cut the request":
            self._pass_on_cut(body)
            self._hang_up()
        elif harm is not None and harm.startswith("answer "):
            self._refuse(int(harm.split()[-1]))
        else:
            if harm == "delay":
                time.sleep(DELAY_S)
            answer = self._pass_on(body)
            if harm == "send twice":
                answer = self._pass_on(body)
            if self.server.after is not None:
                self.server.after(number)
            if harm == "drop the answer":
                self._hang_up()
            elif harm is not None and harm.startswith("carry out"):
                self._refuse(int(harm.split()[-1]))
            else:
                self._answer(*answer, cut=harm == "cut the answer")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request

    def _headers(self) -> dict[str, str]:
        return {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in {"connection", "expect"}
        }

    def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        if self.command != "PUT" or not self.path.endswith("/index.json"):
            return self._sent(body)
        with self.server.pages:
            answer = self._sent(body)
            if answer[0] == 200:
                self.server.stored.append((self.path, body))
        return answer

    def _sent(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.server.target, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self._headers().items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _pass_on_cut(self, body: bytes) -> None:
        """The server sees the head of the request and half of its body."""
        head = [
            f"{self.command} {self.path} HTTP/1.1",
            *(f"{n}: {v}" for n, v in self._headers().items()),
            "",
            "",
        ]
        with socket.create_connection(self.server.target, timeout=10) as connection:
            connection.sendall("\r\n".join(head).encode("latin-1") + body[: len(body) // 2])

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        length = next(
            (value for name, value in headers if name.lower() == "content-length"), str(len(body))
        )
        if status not in {204, 304}:
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = True
        if cut:
            self._hang_up()

    def _refuse(self, status: int) -> None:
        text = (
            f"<Error><Code>{STATUSES[status]}</Code><Message>the proxy</Message></Error>".encode()
        )
        self._answer(
            status, [("Content-Type", "application/xml")], b"" if self.command == "HEAD" else text
        )

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy(target: str) -> Iterator[Proxy]:
    """A proxy before `target`, an http URL."""
    server = Proxy(target)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
