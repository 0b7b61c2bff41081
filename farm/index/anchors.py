"""The links on a page, read as a client reads them: not by what wrote it."""

from dataclasses import dataclass
from html.parser import HTMLParser


@dataclass(frozen=True)
class Anchor:
    """One link."""

    href: str
    text: str
    attributes: dict[str, str | None]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Anchor] = []
        self._open: dict[str, str | None] | None = None
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._open, self._text = dict(attrs), ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._open is not None:
            self.found.append(Anchor(self._open.get("href") or "", self._text, self._open))
            self._open = None


def anchors(html: bytes) -> list[Anchor]:
    """All links on a page."""
    parser = _Parser()
    parser.feed(html.decode(errors="replace"))
    parser.close()
    return parser.found
