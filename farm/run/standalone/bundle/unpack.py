"""The parts of a bundle, verified and unpacked; what was unpacked before, verified again."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import shutil
import stat
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator


DAMAGED, FAILED, CANNOT, AGAIN, INTERRUPTED = 2, 5, 9, 10, 130
EXIT_CODES = """exit codes:
  0    done: the wheel is there, or with --check: this machine can build it
  2    a part is damaged, or an option is wrong
  5    the build failed; its error is on the screen
  9    this machine cannot do it; the line `next:` says what to change
  10   call again: parts are missing, the build was lost, or --wait-s is over and it goes on
  130  Ctrl-C; the build goes on
"""


def say(text: str) -> None:
    print(f"farm: {text.removeprefix('farm: ')}", flush=True)  # a line of the build's log has it already


def leave(code: int, text: str, todo: str | None = None) -> NoReturn:
    """End the program; `todo` is what to do about it."""
    say(text)
    if todo:
        print(f"next: {todo}", flush=True)
    raise SystemExit(code)


def place(folder: Path | None, bundle: Path, plan: str) -> Path:
    """Where to work: below the bundle's folder, or where others may write to that, in the user's folder for state."""
    if folder is not None:
        return Path(os.path.abspath(folder))  # noqa: PTH100 a link is to be seen, not followed
    if os.access(bundle, os.W_OK) and weakness(bundle) is None:
        return bundle / f"work-{plan[:12]}"
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(state) / "torch-farm" / "bundles" / plan[:12]


def make_folder(folder: Path) -> Path:
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


PLACES = ("dev", "proc", "tmp", "run", "root", "farm")
"""Folders of a root file system beside files; nothing in them but /farm comes with the toolchain."""
CHANGING = ("root/dev", "root/proc", "root/tmp", "root/run", "root/root", "root/farm-jobs", "root/farm-volumes")
"""Folders that builds and their engine fill."""


class Joined(io.RawIOBase):
    """The parts, one after the other, as one file; each is verified before its first byte is used."""

    def __init__(self, parts: list[tuple[Path, dict[str, Any]]]) -> None:
        self._parts = iter(parts)
        self._stream: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            count = self._stream.readinto(buffer) if self._stream else 0
            if count:
                return int(count)
            following = next(self._parts, None)
            if following is None:
                return 0
            path, entry = following
            if digest(path) != entry["sha256"]:
                leave(DAMAGED, f"{path} is damaged: its sha256 differs from the manifest's", "copy it here again")
            self._stream = path.open("rb")


def digest(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            total.update(piece)
    return total.hexdigest()


def look_for(manifest: dict[str, Any], folders: list[Path]) -> tuple[list[tuple[Path, dict[str, Any]]], list[str]]:
    """The parts that are here, and the names of those that are not."""
    found, missing = [], []
    for part in manifest["parts"]:
        paths = [folder / part["name"] for folder in folders if (folder / part["name"]).is_file()]
        # A part that is still being copied has its name already, but not its size.
        if paths and paths[0].stat().st_size == part["size"]:
            found.append((paths[0], part))
        else:
            missing.append(part["name"])
    return found, missing


def unpack(manifest: dict[str, Any], folders: list[Path], state: Path) -> None:
    """Join the parts into `state`: `root` is the toolchain, the others are the build's inputs."""
    ready, inputs = state / "unpacked", list(manifest["job"]["inputs"].values())
    if ready.exists():
        changed = difference(json.loads(ready.read_text(encoding="utf-8")), contents(state, inputs))
        if changed is None:
            return
        say(f"{state / changed} is not as it was unpacked: unpacking again")
        ready.unlink()
    found, missing = look_for(manifest, folders)
    if missing:
        leave(AGAIN, f"{len(found)} parts are here; missing: {', '.join(missing)}", "copy them here and call again")
    say(f"unpacking {len(found)} parts into {state}")
    start = time.monotonic()
    for name in ("root", *inputs):
        # What a killed call unpacked: there is no telling which of its files are whole.
        shutil.rmtree(state / name, ignore_errors=True)
    with tarfile.open(fileobj=io.BufferedReader(Joined(found), 1 << 20), mode="r|") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is None:
                continue
            # Unpacked out of the stream: the disk need not hold it twice.
            if member.name == "tree.tar.xz":
                with lzma.open(stream) as plain, tarfile.open(fileobj=plain, mode="r|") as tree:
                    extract(tree, state / "root")
                continue
            target = state / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
    part = state / "unpacked.part"
    part.write_text(json.dumps(contents(state, inputs)), encoding="utf-8")
    part.replace(ready)  # last: a call that was killed in between starts the unpacking again
    say(f"unpacked in {time.monotonic() - start:.0f} s")


def extract(tree: tarfile.TarFile, root: Path) -> None:
    """The toolchain's files; the archive was made by the farm and verified, its links are its own."""
    root.mkdir(parents=True, exist_ok=True)
    if hasattr(tarfile, "fully_trusted_filter"):  # Python 3.14 filters by default, old ones know no filters
        tree.extraction_filter = tarfile.fully_trusted_filter
    tree.extractall(root)  # noqa: S202 verified: see above
    for name in PLACES:
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)


def contents(state: Path, inputs: list[str]) -> dict[str, str]:
    """Properties of each unpacked file that must not change: its hash and mode, or where a link leads."""
    found = {}
    for path in (each for name in ("root", *inputs) for each in walk(state, state / name)):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            found[path.relative_to(state).as_posix()] = f"-> {os.readlink(path)}"  # noqa: PTH115 no Path of it
        else:
            what = digest(path) if stat.S_ISREG(status.st_mode) else "no plain file"
            found[path.relative_to(state).as_posix()] = f"{stat.S_IMODE(status.st_mode):o} {what}"
    return found


def walk(state: Path, folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name) if folder.is_dir() else ():
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            if path.relative_to(state).as_posix() not in CHANGING:
                yield from walk(state, path)
        else:
            yield path


def difference(before: dict[str, str], now: dict[str, str]) -> str | None:
    """The first file that is not as it was; builds add files below /farm, and nowhere else."""
    changed = (name for name, value in before.items() if now.get(name) != value)
    added = (name for name in now if name not in before and not name.startswith("root/farm/"))
    return next(changed, None) or next(added, None)
