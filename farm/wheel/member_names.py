"""Names of members: which of them can be unpacked, on which system, beside one another."""

import re
import unicodedata

from farm.base.errors import VerificationFailedError
from farm.wheel.zipformat import Entry, refuse

_MAX_NAME = 1024
_MAX_PART = 255  # bytes: NAME_MAX of Linux, and of NTFS and APFS in characters
_MAX_DEPTH = 64
_SHORT = 2 * _MAX_DEPTH - 1  # characters: no more folders fit
# Nearly all names: parts of these characters, none of which begins or ends with a dot.
_PLAIN = re.compile(r"(?:\w(?:[\w.+-]*[\w+-])?/)*\w(?:[\w.+-]*[\w+-])?", re.ASCII)
# Names that Windows gives to devices, with any extension and in any folder.
_DEVICES = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(\..*)?", re.IGNORECASE
)


def check_name(name: str) -> None:
    """Refuse a member name that cannot be unpacked on every operating system, or leaves its folder.

    Raises:
        VerificationFailedError: With the name and the reason.
    """
    _check_safe(name)
    problem = windows_problem(name)
    if problem:
        refuse(problem, name)


def _check_safe(name: str) -> None:
    """Refuse a member name that could leave the folder it is unpacked in, on any operating
    system.
    """
    if len(name) <= _SHORT and _PLAIN.fullmatch(name):
        return
    if not name or len(name) > _MAX_NAME:
        refuse("its name is empty or too long", name[:80])
    if not name.isprintable():
        _check_characters(name)
    if "\\" in name or ":" in name:
        refuse("its name holds a backslash or a colon (a path or drive on Windows)", name)
    if name.startswith("/"):
        refuse("its name is an absolute path", name)
    _check_parts(name)


def _check_characters(name: str) -> None:
    """Refuse characters that are not seen, or that change how others are."""
    categories = set(map(unicodedata.category, name))
    if categories & {"Cc", "Cs"}:
        refuse("its name holds control characters", name)
    if categories & {"Cf", "Zl", "Zp"}:
        refuse(
            "its name holds invisible characters or such as change the direction of writing",
            ascii(name),
        )


def _check_parts(name: str) -> None:
    """Refuse a path whose parts are too long or too many, or not in normal form."""
    parts = name.removesuffix("/").split("/")
    longest = max(len(part.encode()) for part in parts)
    if longest > _MAX_PART:
        refuse(
            f"a part of its path has more than {_MAX_PART} bytes, the most that disks take",
            name[:80],
        )
    if len(parts) > _MAX_DEPTH:
        refuse(f"more than {_MAX_DEPTH} folders deep", name)
    if not {"", ".", ".."}.isdisjoint(parts):
        refuse("its path is not in normal form (empty part, '.' or '..')", name)


def windows_problem(name: str) -> str | None:
    """Why Windows cannot unpack a member name as it is; None where it can."""
    for part in name.removesuffix("/").split("/"):
        if part[-1:] in (".", " "):
            return "a part of its path ends in a dot or space, which Windows drops"
        if _DEVICES.fullmatch(part):
            return "a part of its path is the name of a Windows device"
    return None


def check_names(entries: list[Entry]) -> tuple[dict[str, Entry], dict[str, str]]:
    """Check that all members can be unpacked beside one another.

    Returns:
        The members by name, in the order of the archive; and those that some system cannot unpack
        beside the others (Windows' names, differences by case alone), each with the reason.
    """
    folded: dict[str, str] = {}
    parents: dict[str, str] = {}  # to the first member in it
    unportable: dict[str, str] = {}
    for entry in entries:
        name = entry.name
        _check_safe(name)
        problem = windows_problem(name)
        if problem:
            unportable[name] = problem
        key = _fold(name)
        twin = folded.get(key)
        if twin:
            _check_twin(name, twin)
            unportable[name] = f"differs only by case or normal form from {twin!r}"
        folded[key] = name
        if entry.is_dir and entry.size:
            refuse("a folder with content", name)
        parents.setdefault(name.removesuffix("/").rpartition("/")[0], name)
    _check_parents(parents, folded)
    return {entry.name: entry for entry in entries}, unportable


def _check_twin(name: str, twin: str) -> None:
    """Refuse two members that no system tells apart."""
    if twin == name:
        refuse("occurs twice", name)
    if twin.removesuffix("/") == name.removesuffix("/"):
        refuse("a file and a folder of one name", name)


def _check_parents(parents: dict[str, str], folded: dict[str, str]) -> None:
    """Refuse members below a member that is no folder.

    Args:
        parents: Each folder that members are in, with one of them.
        folded: All members by their folded name.
    """
    checked: set[str] = set()
    for folder, name in parents.items():
        parent = folder
        while parent and parent not in checked:
            checked.add(parent)
            above = folded.get(_fold(parent))
            if above is not None and not above.endswith("/"):
                refuse(f"is below {above!r}, which is not a folder", name)
            parent = parent.rpartition("/")[0]


def _fold(name: str) -> str:
    """A name as systems compare it that tell neither cases nor normal forms apart."""
    name = name.removesuffix("/")
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", name).casefold()


def check_link(name: str, raw: bytes) -> None:
    """A link may climb only at its start and only to inside the wheel: then no chain of links gets
    out.

    One to nothing leads nowhere: installers write an empty file for it (nodejs-bin).
    """
    if not raw:
        return
    try:
        target = raw.decode()
    except UnicodeDecodeError:
        refuse("a symbolic link to a name that is not UTF-8", name)
    below_root = target
    ups = 0
    while below_root == ".." or below_root.startswith("../"):
        below_root = below_root[3:]
        ups += 1
    if ups > name.count("/"):
        refuse(f"a symbolic link out of the wheel, to {target!r}", name)
    if below_root:
        try:
            check_name(below_root)
        except VerificationFailedError:
            refuse(f"a symbolic link to an unsafe path, {target!r}", name)
