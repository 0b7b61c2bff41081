"""Names of members of a wheel, and its symbolic links: none may lead out of where it is unpacked, on any system."""

import re
import unicodedata

from farm.base.errors import VerificationFailedError
from farm.wheel.zipformat import Entry, refuse

_MAX_NAME = 1024
_MAX_PART = 255  # bytes: NAME_MAX of Linux, and of NTFS and APFS in characters
_MAX_DEPTH = 64
# Names that Windows gives to devices, with any extension and in any folder.
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(\..*)?", re.IGNORECASE)
# What nearly all names are; nothing that is refused matches. The checks one by one take longer than all the rest.
_PLAIN = re.compile(
    r"(?:(?!(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:[./]|\Z))[a-z0-9_+-][a-z0-9_.+-]{0,199}(?<!\.)(?:/|\Z))+",
    re.IGNORECASE | re.ASCII,
)
# The same of the last part of a name, of no great length.
_PLAIN_PART = re.compile(
    r"(?!(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|\Z))[a-z0-9_+-][a-z0-9_.+-]{0,199}(?<!\.)", re.IGNORECASE | re.ASCII
)
_SHORT = 512  # characters; a longer path is looked at in full


def check_name(name: str) -> None:
    """Refuse a member name that could leave the folder it is unpacked in, on any operating system.

    Raises:
        VerificationFailedError: With the name and the reason.
    """
    if len(name) <= _MAX_NAME and name.count("/") < _MAX_DEPTH and _PLAIN.fullmatch(name):
        return
    if not name or len(name) > _MAX_NAME:
        refuse("its name is empty or too long", name[:80])
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in name):
        refuse("its name holds control characters", name)
    if any(unicodedata.category(char) in ("Cf", "Zl", "Zp") for char in name):
        refuse("its name holds invisible characters or such as change the direction of writing", ascii(name))
    if "\\" in name or ":" in name:
        refuse("its name holds a backslash or a colon (a path or drive on Windows)", name)
    if name.startswith("/"):
        refuse("its name is an absolute path", name)
    parts = name.removesuffix("/").split("/")
    if any(len(part.encode()) > _MAX_PART for part in parts):
        refuse(f"a part of its path has more than {_MAX_PART} bytes, the most that disks take", name[:80])
    if len(parts) > _MAX_DEPTH:
        refuse(f"more than {_MAX_DEPTH} folders deep", name)
    for part in parts:
        if part in ("", ".", ".."):
            refuse("its path is not in normal form (empty part, '.' or '..')", name)
        if part[-1] in ". ":
            refuse("a part of its path ends in a dot or space, which Windows drops", name)
        if _DEVICES.fullmatch(part):
            refuse("a part of its path is the name of a Windows device", name)


def check_names(entries: list[Entry]) -> dict[str, Entry]:
    """The members of an archive by name, in its order.

    Raises:
        VerificationFailedError: A name is unsafe, or two could not both be unpacked on every disk: they differ by case
            alone, or one is a file and the other below it.
    """
    folded: dict[str, str] = {}
    parents: dict[str, str] = {}  # to the first member in it
    fine: set[str] = set()  # folders of which every part has been checked
    plain = _PLAIN_PART.fullmatch
    for entry in entries:
        name = entry.name
        parent, _, base = name.rpartition("/")
        if not (parent in fine and plain(base)):
            check_name(name)
            if len(parent) < _SHORT:
                fine.add(parent)
        key = name.lower() if base and name.isascii() else _fold(name)
        if key in folded:
            if folded[key] == name:
                refuse("occurs twice", name)
            refuse(f"differs only by case or normal form from {folded[key]!r}", name)
        folded[key] = name
        if not base:
            if entry.size:
                refuse("a folder with content", name)
            parent = parent.rpartition("/")[0]
        if parent not in parents:
            parents[parent] = name
    checked: set[str] = set()
    for parent, name in parents.items():
        while parent and parent not in checked:
            checked.add(parent)
            above = folded.get(_fold(parent))
            if above is not None and not above.endswith("/"):
                refuse(f"is below {above!r}, which is not a folder", name)
            parent = parent.rpartition("/")[0]  # noqa: PLW2901 upwards, folder by folder
    return {entry.name: entry for entry in entries}


def _fold(name: str) -> str:
    name = name.removesuffix("/")
    return name.lower() if name.isascii() else unicodedata.normalize("NFC", name).casefold()


def check_link(name: str, raw: bytes) -> None:
    """A link may climb only at its start and only to inside the wheel: then no chain of links gets out.

    One to nothing leads nowhere: installers write an empty file for it (nodejs-bin).

    Raises:
        VerificationFailedError: With the name of the link and the reason.
    """
    if not raw:
        return
    try:
        target = raw.decode()
    except UnicodeDecodeError:
        refuse("a symbolic link to a name that is not UTF-8", name)
    parts = target.split("/")
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    if ups > name.count("/"):
        refuse(f"a symbolic link out of the wheel, to {target!r}", name)
    rest = "/".join(parts[ups:])
    if rest:
        try:
            check_name(rest)
        except VerificationFailedError:
            refuse(f"a symbolic link to an unsafe path, {target!r}", name)
