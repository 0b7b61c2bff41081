"""HTML of a project's JSON page, and lists of projects.

Each page says which generation of the JSON page it shows, so that a slow writer cannot put an older one over a newer
one. PEP 503, 592, 629, 714.
"""

import re
from collections.abc import Iterable
from html import escape
from urllib.parse import quote

from farm.index.pages import API_VERSION, File, ProjectPage
from farm.index.records import foreign


def project_html(page: ProjectPage) -> bytes:
    """The HTML page that shows `page`."""
    head = [f'<meta name="farm:generation" content="{page.generation}">']
    return document(f"Links for {page.name}", head, [anchor(file, file.url) for file in page.files])


def generation_of(html: bytes, key: str) -> int:
    """Which generation of the JSON page a project's HTML page shows.

    Raises:
        ForeignObjectError: It is not one of ours.
    """
    found = re.search(rb'^<meta name="farm:generation" content="([1-9][0-9]{0,17})">$', html, re.MULTILINE)
    if found is None:
        raise foreign(key, "no generation")
    return int(found[1])


def list_html(title: str, names: Iterable[str], folder: str = "") -> bytes:
    """A list: of a group's projects (PEP 503), or of groups, whose own lists lie in `folder`."""
    anchors = [f'<a href="{quote(name, safe="")}/{folder}">{escape(name)}</a><br>' for name in sorted(names)]
    return document(title, [], anchors)


def parse_list(html: bytes, key: str) -> set[str]:
    """The names on a list, as `list_html` wrote it.

    Raises:
        ForeignObjectError: It is not one of ours.
    """
    projects = set()
    for line in _body(html, key):
        link = re.fullmatch(r'<a href="([a-z0-9._-]+)/(?:simple/)?">\1</a><br>', line)
        if link is None:
            raise foreign(key, f"a line that is not a link to a project: {line[:80]!r}")
        projects.add(link[1])
    return projects


def anchor(file: File, href: str | None) -> str:
    """The link to a file, as a line of a page."""
    attributes = {"href": f"{href}#sha256={file.hashes.sha256}"}
    if file.requires_python is not None:
        attributes["data-requires-python"] = file.requires_python
    if file.core_metadata is not None:
        # Not PEP 658's old name as well, which PEP 714 leaves open: pip 22.3 to 23.1 (Debian 12 has 23.0) read it, and
        # refuse METADATA that spells the project in another way than the requirement (Jinja2 for jinja2).
        attributes["data-core-metadata"] = f"sha256={file.core_metadata.sha256}"
    if file.yanked is not False:
        attributes["data-yanked"] = "" if file.yanked is True else file.yanked
    # a line break must stay inside its line: pages are read back by lines
    text = " ".join(f'{name}="{_quoted(value)}"' for name, value in attributes.items())
    return f"<a {text}>{escape(file.filename)}</a><br>"


def _quoted(value: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", escape(value))


def document(title: str, head: list[str], body: list[str]) -> bytes:
    """A page: lines of its head and body, as they are."""
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API_VERSION}">',
        *head,
        f"<title>{escape(title)}</title>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
        *body,
        "</body>",
        "</html>",
    ]
    return ("\n".join(lines) + "\n").encode()


def _body(html: bytes, key: str) -> list[str]:
    try:
        lines = html.decode().split("\n")
        start, end = lines.index("<body>"), lines.index("</body>")
    except ValueError as error:  # UnicodeDecodeError is one too
        raise foreign(key, "no body") from error
    if not (start + 1 < end and lines[start + 1].startswith("<h1>")):
        raise foreign(key, "no heading")
    return lines[start + 2 : end]
