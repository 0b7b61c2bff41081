"""Where everything lies in an index, and which names are therefore not to be had."""

import re
from functools import lru_cache
from typing import Annotated

from packaging.tags import Tag
from packaging.utils import BuildTag, InvalidWheelFilename, NormalizedName, parse_wheel_filename
from packaging.version import Version
from pydantic import AfterValidator

from farm import catalog
from farm.base.errors import UsageError
from farm.base.text import undo_download_name

LAYOUT = {
    "catalog.json": "the projects of each group, for programs",
    "index.html": "the page for people",
    "records/{wheel}.json": "the claim on a name: which bytes it stands for; never changes",
    "events/{wheel}/{number}.json": "what happened to a wheel later (a yank, a removal); "
    "never changes",
    "whl/index.html": "the list of groups",
    "whl/files/{wheel}": "each wheel once, and beside it its `.metadata`; never changes",
    "whl/{group}/v1-json/{project}/index.json": "the JSON page of a project: all other pages "
    "follow from it",
    "whl/{group}/simple/{project}/index.html": "the HTML page of a project: what "
    "`pip --index-url` reads",
    "whl/{group}/v1-json/index.json": "the list of a group's projects",
    "whl/{group}/simple/index.html": "the same, as HTML",
    "whl/variant/…": "copies of wheels with a label of PEP 825 (`farm.index.variants`)",
    "smoke/{wheel}/{digest}.json": "reports of its smoke tests",
    "tuf/{number}.root.json": "which keys may sign (`farm.index.signatures`)",
    "tuf/timestamp.json": "the newest signatures (`farm.index.signatures`)",
}
"""Keys, and what is there. Names in braces are somebody's choice; all others are the layout's own.
"""

RESERVED = frozenset(
    part
    for key in LAYOUT
    if key.startswith("whl/")
    for part in key.split("/")[1:]
    if part.isascii() and "{" not in part
)
"""Names that a group, a channel or a project cannot have: a key would mean two things."""

DATA = ("records/", "events/", "whl/files/", "whl/variant/files/", "whl/variant/records/", "tuf/")
"""Below these are no pages: what a page leads to, and what pages follow from."""

SMOKE = "smoke/"
CATALOGUE = "catalog.json"
HOME = "index.html"
GROUPS = "whl/index.html"

_GROUP = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
# the longest sidecar adds 14 characters and must stay a file name of at most 255
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,235}\.whl", re.ASCII)
_FOLDER_PAGE = re.compile(r"(whl/(?:.*(?:simple|v1-json)/(?:[^/]+/)?)?)index\.(?:html|json)")

Identity = tuple[NormalizedName, Version, BuildTag, frozenset[Tag]]
"""Project, version, build and tags: what a wheel is to installers, whatever its spelling."""


def wheel_key(filename: str) -> str:
    return f"whl/files/{filename}"


def metadata_key(filename: str) -> str:
    return f"whl/files/{filename}.metadata"


def record_key(filename: str) -> str:
    return f"records/{filename}.json"


def event_key(target: str, number: int) -> str:
    return f"events/{target}/{number}.json"


def json_key(group: str, project: str) -> str:
    return f"whl/{group}/v1-json/{project}/index.json"


def html_key(group: str, project: str) -> str:
    return f"{simple_root(group)}{project}/index.html"


def simple_root(group: str) -> str:
    return f"whl/{group}/simple/"


def json_page_of(key: str) -> tuple[str, str] | None:
    """Group and project of a JSON page's key; None for other keys."""
    parts = key.split("/")
    if len(parts) != 5:
        return None
    top, group, folder, project, name = parts
    if (top, folder, name) != ("whl", "v1-json", "index.json") or group in RESERVED:
        return None
    return group, project


def to_folder(key: str) -> str:
    """`whl/g/simple/torch/` for `whl/g/simple/torch/index.html`, for a bucket that is read without
    a web server.

    A client asks for `…/simple/torch/`. Web servers answer with `index.html`; a plain S3 endpoint
    looks for an object with just that key, and has one when the store is opened with
    `?pages=slash`.
    """
    match = _FOLDER_PAGE.fullmatch(key)
    return match[1] if match else key


def from_folder(key: str) -> str:
    """The key of the page that is stored at a folder; other keys as they are."""
    if not key.endswith("/"):
        return key
    return f"{key}index.json" if "/v1-json/" in key else f"{key}index.html"


@lru_cache(maxsize=2**16)
def wheel_identity(filename: str) -> Identity:
    """The parts of a wheel's file name; ValueError if it is none, or has characters that do not
    belong into one.
    """
    if not _WHEEL.fullmatch(filename):
        was = undo_download_name(filename[:300])
        if was != filename and _WHEEL.fullmatch(was):
            before = f"; it was {was} before its download"
        else:
            before = ""
        raise ValueError(f"not the file name of a wheel: {filename[:200]!r}{before}")
    try:
        return parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise ValueError(str(error)) from error


def parse_wheel_name(filename: str) -> tuple[NormalizedName, Version]:
    """Project and version of a wheel's file name; ValueError as `wheel_identity`."""
    return wheel_identity(filename)[:2]


def _wheel_name(filename: str) -> str:
    parse_wheel_name(filename)
    return filename


WheelName = Annotated[str, AfterValidator(_wheel_name)]


def check_group(group: str) -> str:
    """Gives the name of a group or channel back; UsageError if it is not `a-z0-9._-`, or the layout
    has it.
    """
    if group in RESERVED:
        raise UsageError(
            f"{group!r} is a name of the index's own layout",
            hint="choose another: sm35-avx, for one",
        )
    if not _GROUP.fullmatch(group):
        raise UsageError(
            f"not a group of wheels: {group[:80]!r}", hint="a group looks like sm35-avx"
        )
    return group


def without_rebuild(version: str) -> str:
    """`2.0.1+cu118.sm35.avx` for `2.0.1+cu118.sm35.avx.1`: a number at the end of a local version
    counts rebuilds.

    The number at the end of `2.8.0+cu128.sm120.armv8.2` is the CPU's: a local version knows no
    underscore.
    """
    for cpu in catalog.cpu_levels():
        word = cpu.replace("_", ".")
        if version.endswith(f".{word}"):
            return version
    return re.sub(r"(\+.*[^.])\.[0-9]+$", r"\1", version)
