"""Metadata of other packages that a wheel installs beside its own: pip reads all of site-packages at many commands."""

from packaging.version import Version

from farm.wheel.archive import Archive
from farm.wheel.installed import Problem
from farm.wheel.metadata import parse_headers
from farm.wheel.needs import installed_path

_FILES = {"egg-info": "PKG-INFO", "dist-info": "METADATA"}
_LIMIT = 4 << 20
_MAX_FOLDERS = 100


def check_foreign(archive: Archive, own: str) -> list[Problem]:
    """What pip cannot read of them, after which it fails in the whole environment.

    Args:
        archive: The open wheel.
        own: The wheel's `.dist-info` folder.

    Raises:
        VerificationFailedError: A member is damaged.
    """
    first: dict[str, str] = {}
    files: dict[str, str] = {}
    for member in archive.members:
        top, slash, rest = installed_path(member).partition("/")
        wanted = _FILES.get(top.rpartition(".")[2])
        if wanted is None or member.startswith(f"{own}/") or member.endswith("/"):
            continue
        first.setdefault(top, member)
        if not slash or rest == wanted:
            files[top] = member
    problems = []
    for top, member in list(first.items())[:_MAX_FOLDERS]:
        wrong = _wrong(archive.read(files[top], _LIMIT)) if top in files else "the file itself is missing"
        if wrong:
            problems.append(Problem(member, f"{top} is metadata of another package that pip cannot read: {wrong}"))
    return problems


def _wrong(content: bytes) -> str | None:
    try:
        headers = {name.lower(): value for name, value in parse_headers(content.decode())}
        Version(headers.get("version", ""))
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except ValueError:  # InvalidVersion, or int's where a number has 4300 digits
        return "it has no valid Version"
    return None
