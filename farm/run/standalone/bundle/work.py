"""The folder that a bundle is unpacked into and built in: the user's own, made by this program, closed to others.

Whoever could write there, or give it to this program, would have the user run what they put there.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .report import CANNOT, leave


def place(asked: Path | None, bundle: Path, plan: str) -> Path:
    """Where to work: below the bundle's folder, or where others may write to that, in the user's folder for state."""
    if asked is not None:
        return Path(os.path.abspath(asked))  # noqa: PTH100 a link is to be seen, not followed
    if os.access(bundle, os.W_OK) and weakness(bundle) is None:
        return bundle / f"work-{plan[:12]}"
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(state) / "torch-farm" / "bundles" / plan[:12]


def make(folder: Path) -> Path:
    """Make the folder, or take it as an earlier call made it; ends the program where it is not the user's alone."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        parent = folder.parent.resolve()
        folder = parent / folder.name
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                what = "is a link or no folder" if not stat.S_ISDIR(status.st_mode) else "is open to others"
                what = f"belongs to user {status.st_uid}" if status.st_uid != os.geteuid() else what
                leave(CANNOT, f"{folder} {what}: nothing in it is used", "name another folder with --state")
    except OSError as error:
        leave(CANNOT, f"{folder} cannot be made: {error.strerror}", "name another folder with --state")
    found = weakness(parent)
    if found:
        leave(CANNOT, f"{folder} is not safe: {found}", "name a folder below your own with --state")
    return folder


def weakness(folder: Path) -> str | None:
    """Why others could put something else in place of a folder; None where they cannot."""
    # In a user namespace the root folder's owner has another number than 0.
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    folder = folder.resolve()
    for each in (folder, *folder.parents):
        status = each.stat()
        if status.st_uid not in trusted:
            return f"{each} belongs to user {status.st_uid}"
        # A user's private group has the user's number; in a sticky folder others cannot rename what is not theirs.
        group = status.st_mode & 0o020 and status.st_gid not in (0, os.geteuid())
        if (group or status.st_mode & 0o002) and not status.st_mode & stat.S_ISVTX:
            return f"others may write to {each}"
    return None
