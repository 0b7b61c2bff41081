"""Builds a plan from a bundle, on a machine without network, Docker or the farm: Python 3.9+,
nothing else.

    run --check                  can this machine do it, which parts are here; nothing is unpacked
    run [--jobs N] [--out DIR]   join, verify, unpack, build, and follow it to its end

Root and ordinary users alike enter the toolchain by `farm.base.enter`. The result goes back to the
farm: `farm submit --from-bundle DIR` joins its pieces and does all that follows.

The build runs in the background: a call that ends before it, by Ctrl-C or `--wait-s`, does not end
it, and the same command finds it again. A machine that was switched off in between goes on with the
objects that it had.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import io
import json
import lzma
import math
import os
import re
import shutil
import sys
import tarfile
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn

from farm.base import enter
from farm.base.errors import FarmError
from farm.base.locks import lock
from farm.base.processes import machine
from farm.base.safe_files import (
    UnsafeFolderError,
    checked_copy,
    is_noexec,
    make_folder,
    nearest_folder,
    open_folder,
    open_plain,
    read_small,
    replacing,
    weakness,
)
from farm.base.text import plain, plain_lines
from farm.engines import transfer
from farm.engines.base import Job
from farm.engines.host import HostEngine
from farm.run.standalone.unpacked_files import contents, difference, extract

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

DAMAGED = 2
FAILED = 5
CANNOT = 9
AGAIN = 10
INTERRUPTED = 130
EXIT_CODES = """exit codes:
  0    done: the wheel is there, or with --check: this machine can build it
  2    a part is damaged, or an option is wrong
  5    the build failed; its error is on the screen
  9    this machine cannot do it; the line `next:` says what to change
  10   call again: parts are missing, the build was lost, or --wait-s is over and it goes on
  130  Ctrl-C; the build goes on
"""


def say(text: str) -> None:
    text = text.removeprefix("farm: ")  # a line of the build's log has it already
    print(f"farm: {text}", flush=True)


def leave(code: int, text: str, todo: str | None = None) -> NoReturn:
    """End the program; `todo` is what to do about it."""
    say(text)
    if todo:
        print(f"next: {todo}", flush=True)
    raise SystemExit(code)


def place(folder: Path | None, bundle: Path, plan: str) -> Path:
    """Where to work: below the bundle's folder, or where others may write to that, in the user's
    folder for state.
    """
    if folder is not None:
        return Path(os.path.abspath(folder))  # noqa: PTH100 a link is to be seen, not followed
    if os.access(bundle, os.W_OK) and weakness(bundle) is None:
        return bundle / f"work-{plan[:12]}"
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(state) / "torch-farm" / "bundles" / plan[:12]


def folder_of_user(folder: Path, option: str, *, readable: bool = False) -> Path:
    """A folder that only this user can change; ends the program where it is not."""
    try:
        return make_folder(folder, readable=readable)
    except UnsafeFolderError as error:
        leave(
            CANNOT,
            f"{error}: nothing in it is used",
            f"name a folder below your own with {option}, or take the write permission of others "
            "and of the group from it",
        )
    except OSError as error:
        leave(
            CANNOT,
            f"{folder} cannot be made: {error.strerror}",
            f"name another folder with {option}",
        )


MAX_MANIFEST = 16 << 20  # bytes; a part has 100


def joined(parts: list[tuple[Path, dict[str, Any]]], state: Path) -> Iterator[bytes]:
    """The content of the parts, one after the other.

    Each is copied into the state folder and verified there before its first byte is used: whoever
    owns the part may change it at any moment.
    """
    total = sum(entry["size"] for _, entry in parts)
    done = 0
    printed = time.monotonic()
    for path, entry in parts:
        with checked_copy(path, state, sha256=entry["sha256"], size=entry["size"]) as copy:
            if copy is None:
                leave(
                    DAMAGED,
                    f"{path} is damaged: its sha256 differs from the manifest's",
                    "copy it here again",
                )
            while chunk := copy.read(1 << 20):
                yield chunk
                done += len(chunk)
                if time.monotonic() - printed > PROGRESS_S:
                    printed = time.monotonic()
                    say(f"unpacked {done >> 20} of {total >> 20} MB")


def look_for(
    manifest: dict[str, Any], folders: list[Path]
) -> tuple[list[tuple[Path, dict[str, Any]]], list[str]]:
    """The parts that are here, and the names of those that are not."""
    present = []
    missing = []
    for part in manifest["parts"]:
        path = _file_in(folders, part["name"])
        # A part that is still being copied has its name already, but not its size.
        if path is not None and path.stat().st_size == part["size"]:
            present.append((path, part))
        else:
            missing.append(part["name"])
    return present, missing


def _file_in(folders: list[Path], name: str) -> Path | None:
    for folder in folders:
        path = folder / name
        if path.is_file():
            return path
    return None


def unpack(manifest: dict[str, Any], folders: list[Path], state: Path) -> None:
    """Join the parts into `state`: `root` is the toolchain, the others are the build's inputs."""
    ready = state / "unpacked"
    inputs = list(manifest["job"]["inputs"].values())
    if ready.exists():
        changed = difference(json.loads(ready.read_text(encoding="utf-8")), contents(state, inputs))
        if changed is None:
            return
        say(f"{state / changed} is not as it was unpacked: unpacking again")
        ready.unlink()
    present, missing = look_for(manifest, folders)
    if missing:
        leave(
            AGAIN,
            f"{len(present)} parts are here; missing: {', '.join(missing)}",
            "copy them here and call again",
        )
    say(f"unpacking {len(present)} parts into {state}")
    start = time.monotonic()
    for leftover in state.glob(".copy-*"):  # of a part, by a call that was killed
        leftover.unlink()
    for name in ("root", *inputs):
        # What a killed call unpacked: there is no telling which of its files are whole.
        shutil.rmtree(state / name, ignore_errors=True)
    size = sum(entry["size"] for _, entry in present)
    with tarfile.open(
        fileobj=io.BufferedReader(transfer.Stream(joined(present, state), size), 1 << 20), mode="r|"
    ) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is None:
                continue
            # Unpacked out of the stream: the disk need not hold it twice.
            if member.name == "tree.tar.xz":
                with lzma.open(stream) as tar, tarfile.open(fileobj=tar, mode="r|") as tree:
                    extract(tree, state / "root")
                continue
            name = PurePosixPath(member.name)
            if name.parts[0] not in inputs or ".." in name.parts:
                leave(DAMAGED, f"the parts hold {member.name!r}, which is no input of this build")
            target = state / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
    part = state / "unpacked.part"
    part.write_text(json.dumps(contents(state, inputs)), encoding="utf-8")
    part.replace(ready)  # last: a call that was killed in between starts the unpacking again
    say(f"unpacked in {time.monotonic() - start:.0f} s")


PROGRESS_S = 15  # between two lines of progress
NINJA = re.compile(rb"^\[([0-9]{1,6})/([0-9]{1,6})\]", re.MULTILINE)
SHOWN = 24
WIDTH = 400  # lines of a failure, and characters of each: a compiler's command line has thousands


def steps(log: Path) -> Iterator[tuple[int, int]]:
    """How far ninja is, as its log says; the last entry is the newest."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - (1 << 18)))
        for match in NINJA.finditer(stream.read()):
            yield int(match[1]), int(match[2])


def failure(log: Path) -> str:
    """Where Ninja's first step failed, and what it printed; the log's last lines where no step is
    named.
    """
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - (4 << 20)))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    excerpt = _failed_step(lines)[:SHOWN] or lines[-SHOWN:]
    return plain_lines("\n".join(map(cut_off, excerpt)))


def _failed_step(lines: list[str]) -> list[str]:
    """The lines of the first step that failed; they end where the next step reports."""
    step: list[str] = []
    for line in lines:
        if step and line.startswith(("[", "ninja: ")):
            break
        if step or line.startswith("FAILED: "):
            step.append(line)
    return step


def cut_off(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    return line[:WIDTH] + " …"


def build(manifest: dict[str, Any], state: Path, args: argparse.Namespace) -> None:
    """Start the build or join one that runs, and follow it to its end."""
    jobs = args.jobs or os.cpu_count() or 1
    # Half as much again as the jobs are planned with, where no one says what the machine has to
    # give.
    memory = int((args.memory_gb or jobs * manifest["job"]["memory_per_job_gb"] * 1.5) * 1e9)
    engine = HostEngine(state / "root", tree=True, cpus=jobs, memory=memory)
    with (state / "lock").open("ab") as file:  # two calls at the same moment start one build
        lock(file.fileno(), wait=True)
        handle = start(engine, manifest, state, args)
    log = state / "root/farm-jobs" / handle / "log"
    follow(engine, handle, log, args.wait_s)
    now = engine.observe(handle)
    if args.out:
        # Also while the build runs, to show how far it is on a machine that is cut off.
        with open_folder(args.out) as out, replacing(out, "build.log.xz") as packed:
            packed.write(lzma.compress(log.read_bytes(), preset=1))
    if now.state in ("starting", "running"):
        leave(AGAIN, "the build is still running", "call again to follow it")
    if now.state != "done":
        leave(AGAIN, f"the build was {now.state}: {now.text}", "call again to continue")
    if now.exit_code:
        why = (
            f"the build failed with exit code {now.exit_code} "
            f"({now.text or 'its own'}):\n{failure(log)}\nlog: {log}"
        )
        leave(FAILED, why, "fix the cause, then call again with --retry: what was compiled is kept")


def start(
    engine: HostEngine, manifest: dict[str, Any], state: Path, args: argparse.Namespace
) -> str:
    """The handle of the plan's job: of one that runs or has ended well, else of a new one."""
    job = manifest["job"]
    labels = {"farm.plan": manifest["plan"]}
    # By the plan: a call that is repeated finds the build of the one before.
    handle = engine.find(labels)
    remark = ""
    if handle:
        before = engine.observe(handle)
        is_lost = before.state in ("lost", "cancelled")
        has_failed = before.state == "done" and before.exit_code
        if not is_lost and not (args.retry and has_failed):
            return handle
        # Also what a killed supervisor left, before the tree below it is made anew.
        engine.release(handle)
        remark = f" (before: {before.text or before.state})"
    unpack(manifest, args.parts, state)
    capacity = engine.capacity()
    say(f"building with {capacity.cpus:.0f} jobs{remark}")
    return engine.submit(
        Job(
            name=manifest["name"],
            image="",
            command=tuple(job["command"]),
            inputs={target: state / name for target, name in job["inputs"].items()},
            output=job["output"],
            environment={**job["environment"], "FARM_JOBS": f"{capacity.cpus:.0f}"},
            limits=capacity,
            timeout_s=job["timeout_s"],
            labels=labels,
            volumes=job["volumes"],
        )
    )


def follow(engine: HostEngine, handle: str, log: Path, wait_s: float | None) -> None:
    """Print progress until the build ends or `wait_s` seconds are over."""
    deadline = math.inf
    if wait_s is not None:
        deadline = time.monotonic() + wait_s
    printed = 0.0
    first: tuple[float, int] | None = None
    while engine.observe(handle).state in ("starting", "running") and time.monotonic() < deadline:
        now = time.monotonic()
        if now - printed > PROGRESS_S:
            printed = now
            reached = list(steps(log))
            if reached:
                done, total = reached[-1]
                first = first or (now, done)
                say(progress_text(done, total, done - first[1], now - first[0]))
            else:
                say(last_words(log))
        time.sleep(0.5)


def progress_text(done: int, total: int, steps_done: int, seconds: float) -> str:
    """How far the build is, and the rate of this call: its steps and seconds."""
    rate = 0.0
    if seconds > 0:
        rate = steps_done / seconds
    text = f"[{done}/{total}] {rate * 60:.0f} steps a minute"
    if rate > 0:
        text += f", about {(total - done) / rate / 60:.0f} min left"
    return text


def last_words(log: Path) -> str:
    lines = log.read_bytes()[-200:].decode("utf-8", "replace").strip().splitlines()
    if not lines:
        return "no output yet"
    return plain(lines[-1])


PIECE = 15 << 20
SAID = 8  # pieces between two lines of progress


class Pieces(io.RawIOBase):
    """A stream that is written as files `piece-00`, `piece-01`, … of an open folder."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._buffer = bytearray()
        self._digest = hashlib.sha256()
        self.count = 0
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._buffer += data
        while len(self._buffer) >= PIECE:
            self._put(self._buffer[:PIECE])
            del self._buffer[:PIECE]
        return len(data)

    def finish(self) -> str:
        """Write what is left; the sha256 of all pieces together."""
        if self._buffer:
            self._put(self._buffer)
        return self._digest.hexdigest()

    def _put(self, piece: bytearray) -> None:
        with replacing(self._folder, f"piece-{self.count:02d}") as stream:
            stream.write(piece)
        self._digest.update(piece)
        self.count += 1
        self.size += len(piece)
        if self.count % SAID == 0:
            say(f"{self.size >> 20} MB of the result are written")


def built_files(state: Path, output: str, folder: str) -> list[str]:
    """The names of the plain files in a folder of the build's output, which the build can write."""
    inside = Path("root", output.lstrip("/"), folder)
    try:
        with open_folder(inside, below=state) as opened, os.scandir(opened) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_pieces(manifest: dict[str, Any], state: Path, dest: Path) -> None:
    """Write the pieces of one tar into `dest`, and `result.json`, which says what they make."""
    output = manifest["job"]["output"]
    wheels = [name for name in built_files(state, output, "wheel") if name.endswith(".whl")]
    if len(wheels) != 1:
        leave(FAILED, f"the build left {len(wheels)} wheels, expected one")
    libraries = built_files(state, output, "lib")
    with open_folder(dest) as out:
        pieces = Pieces(out)
        with tarfile.open(fileobj=pieces, mode="w|", format=tarfile.GNU_FORMAT) as archive:
            add_files(archive, state, output, "wheel", wheels)
            add_files(archive, state, output, "lib", libraries)
        sha256 = pieces.finish()
        result = {
            "plan": manifest["plan"],
            "size": pieces.size,
            "sha256": sha256,
            "pieces": pieces.count,
        }
        with replacing(out, "result.json") as stream:
            stream.write((json.dumps(result, indent=1) + "\n").encode())
    say(
        f"{plain(wheels[0])}: {pieces.count} pieces in {dest}; give that folder to `farm submit "
        "--from-bundle`"
    )


def add_files(
    archive: tarfile.TarFile, state: Path, output: str, folder: str, names: Sequence[str]
) -> None:
    """Add files of the build's output to an archive, as they are when they are opened."""
    if not names:
        return
    with open_folder(Path("root", output.lstrip("/"), folder), below=state) as opened:
        for name in names:
            with open_plain(name, folder=opened) as stream:
                info = archive.gettarinfo(arcname=f"built/{folder}/{name}", fileobj=stream)
                # A second name of a file is a hard link to tarfile, and no file to who unpacks it.
                info.type = tarfile.REGTYPE
                info.size = os.fstat(stream.fileno()).st_size
                archive.addfile(info, stream)


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="run",
        description="Builds a plan from a bundle, without network, Docker or root, and follows the "
        "build to its end.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument(
        "--parts",
        type=Path,
        action="append",
        default=[],
        help="where parts are (default: beside run)",
    )
    arguments.add_argument(
        "--state", type=Path, help="where to unpack and build (default: work-<plan> beside run)"
    )
    arguments.add_argument("--jobs", type=int, help="compiles at a time (default: the CPUs)")
    arguments.add_argument(
        "--memory-gb",
        type=float,
        help="memory limit of the build (default: from the number of jobs)",
    )
    arguments.add_argument(
        "--wait-s",
        type=float,
        help="how long to follow the build in this call (default: to its end)",
    )
    arguments.add_argument("--out", type=Path, help="where the log and the pieces of the result go")
    arguments.add_argument(
        "--retry", action="store_true", help="build again after a build that failed"
    )
    arguments.add_argument(
        "--check", action="store_true", help="say whether this machine can build it; unpack nothing"
    )
    return arguments


def read_manifest(here: Path) -> dict[str, Any]:
    """The manifest beside `run`; ends the program where it is damaged."""
    path = here / "manifest.json"
    try:
        manifest = json.loads(read_small(path, MAX_MANIFEST))
        for key in ("name", "plan", "parts", "job", "unpacked"):
            manifest[key]
        manifest["job"]["disk_gb"]
        for part in manifest["parts"]:
            part["name"], part["size"], part["sha256"]
    except OSError as error:
        code = AGAIN
        if error.errno == errno.EFBIG:
            code = DAMAGED
        leave(code, f"{path}: {error.strerror}", "copy it here, beside run")
    except (ValueError, KeyError, TypeError, RecursionError):
        leave(DAMAGED, f"{path} is damaged: it is not what a bundle has", "copy it here again")
    return dict(manifest)


def main() -> int:
    args = parser().parse_args()
    # Of the packed file: the manifest and the parts are beside it.
    bundle_folder = Path(sys.argv[0]).resolve().parent
    manifest = read_manifest(bundle_folder)
    refused = enter.refusal()
    if refused:
        leave(CANNOT, *refused)
    args.parts = args.parts or [bundle_folder]
    folder = place(args.state, bundle_folder, manifest["plan"])
    if args.check:
        return check(manifest, args.parts, folder)
    try:
        folder = folder_of_user(folder, "--state")
        if args.out:
            args.out = folder_of_user(args.out, "--out", readable=True)
        build(manifest, folder, args)
        if args.out:
            write_pieces(manifest, folder, args.out)
    except FarmError as error:
        leave(CANNOT, str(error), error.hint)
    except (OSError, shutil.Error) as error:
        leave(CANNOT, *no_room(error, folder))
    except KeyboardInterrupt:
        leave(INTERRUPTED, "interrupted; a build that was started goes on: call again to follow it")
    if not args.out:
        say(f"done: {folder / 'root' / manifest['job']['output'].lstrip('/')}")
    return 0


def no_room(error: OSError, folder: Path) -> tuple[str, str]:
    """An error of the system in words, and what to do about it."""
    reason = error.strerror
    if reason is None:
        reason = str(error)
        if error.args and error.args[0]:
            # shutil.Error lists what could not be copied: (source, target, reason).
            reason = str(error.args[0][0][2])
    where = error.filename or folder
    return f"{where}: {reason}", "make room there, or name other folders with --state and --out"


def bytes_needed(manifest: dict[str, Any], state: Path) -> float:
    """The bytes that unpacking and building will still take below `state`."""
    largest_part = max((part["size"] for part in manifest["parts"]), default=0)
    total = manifest["unpacked"] + largest_part + manifest["job"]["disk_gb"] * 1e9
    # Of an earlier call: what it unpacked and compiled is there.
    present = 0
    for path, _, names in os.walk(state):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a build under way removes its own
                present += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 many files
    return float(max(0, total - present))


def check(manifest: dict[str, Any], folders: list[Path], folder: Path) -> int:
    """Print what this machine has for the build; 0 where all is there."""
    cpus, memory = machine()
    nearest = nearest_folder(folder)
    free = shutil.disk_usage(nearest).free
    say(f"{cpus:.0f} CPUs, {memory / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB free for {folder}")
    if is_noexec(nearest):
        leave(
            CANNOT,
            f"{nearest} is on a file system that runs no programs (noexec)",
            "name another folder with --state",
        )
    job_memory = manifest["job"]["memory_per_job_gb"]
    if memory < job_memory * 1e9:
        leave(
            CANNOT,
            f"one compiler of this build takes {job_memory:g} GB of memory; this machine, or what "
            f"limits it here, has {memory / 1e9:.1f} GB",
            "build on a machine, or in a job, with more memory",
        )
    needed = bytes_needed(manifest, folder)
    if free < needed:
        leave(
            CANNOT,
            f"unpacked and built it takes {needed / 1e9:.1f} GB more; {nearest} has "
            f"{free / 1e9:.1f} GB free",
            f"make room below {nearest}, or name another folder with --state",
        )
    if os.geteuid() == 0:
        say("the toolchain can be entered as root")
    else:
        say("the toolchain can be entered in a user namespace, without root")
    present, missing = look_for(manifest, folders)
    if missing:
        leave(
            AGAIN,
            f"{len(present)} parts are here; missing: {', '.join(missing)}",
            "copy them here and call again",
        )
    say(f"all {len(present)} parts are here; this machine can build {manifest['name']}")
    return 0
