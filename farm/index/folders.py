"""Pages at keys that end in a slash, for buckets that are read without a web server before them.

A client asks for `…/simple/torch/`. Web servers and website endpoints answer with `index.html`; a plain S3 endpoint
looks for an object with just that key, and has one when the store is opened with `?pages=slash`.
"""

import re

_PAGE = re.compile(r"(whl/(?:.*(?:simple|v1-json)/(?:[^/]+/)?)?)index\.(?:html|json)")


def to_folder(key: str) -> str:
    """`whl/g/simple/torch/` for `whl/g/simple/torch/index.html`; other keys as they are."""
    found = _PAGE.fullmatch(key)
    return found[1] if found else key


def from_folder(key: str) -> str:
    """The key of the page that lies at a folder; other keys as they are."""
    if not key.endswith("/"):
        return key
    return f"{key}index.json" if "/v1-json/" in key else f"{key}index.html"
