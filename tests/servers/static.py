"""A plain web server of a folder: what `python -m http.server` does, with the media types that
installers ask for.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.servers.threads import answered_by

JSON = "application/vnd.pypi.simple.v1+json"


class Handler(SimpleHTTPRequestHandler):
    """Files of a folder; `requests` gets path, method and size of each answer."""

    def __init__(self, *arguments, requests: list, **options) -> None:
        self.requests = requests
        super().__init__(*arguments, **options)

    @property
    def index_pages(self):
        return ("index.json",) if "/v1-json/" in self.path else ("index.html",)

    @index_pages.setter
    def index_pages(self, _value) -> None:
        pass

    def translate_path(self, path):
        found = super().translate_path(path)
        # before Python 3.12 the names of a folder's page are fixed
        page = Path(found) / self.index_pages[0]
        return str(page) if found.endswith("/") and page.is_file() else found

    def guess_type(self, path):
        if str(path).endswith("index.json"):
            return JSON
        return (
            "text/html; charset=utf-8"
            if str(path).endswith(".html")
            else "application/octet-stream"
        )

    def list_directory(self, path):  # noqa: ARG002
        self.send_error(404)

    def send_header(self, keyword, value):
        if keyword == "Content-Length":
            self.requests.append((unquote(urlsplit(self.path).path), self.command, int(value)))
        super().send_header(keyword, value)

    def log_message(self, *_arguments) -> None:
        pass


@contextlib.contextmanager
def serving(root: Path, requests: list | None = None) -> Iterator[str]:
    """Serves a folder on the loopback; gives its URL."""
    handler = partial(Handler, directory=str(root), requests=[] if requests is None else requests)
    with answered_by(handler) as url:
        yield url
