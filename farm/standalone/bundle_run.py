#!/usr/bin/env python3
"""Builds a plan from a bundle, on a machine without network, Docker or the farm: Python 3.9+, root, nothing else.

    run [--wait-s S] [--jobs N] [--out DIR]    join, verify, unpack and build; the same again goes on
    run --check                                what is there, what is missing, can this machine do it

The pieces of the wheel go back to the farm: `farm submit --from-bundle DIR` joins them and does all that follows.

The build goes on in the background when the time of one call is over; the next call finds it. A machine that was
switched off in between goes on with the objects that it had. Exit codes: 0 done, 2 a part is damaged, 5 the build
failed, 9 this machine cannot do it, 10 call again: parts are missing, the build goes on, or pieces are left.
"""

import argparse
import ctypes
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

DAMAGED, FAILED, CANNOT, AGAIN = 2, 5, 9, 10
HERE = Path(__file__).resolve().parent
CLONE_NEWNS = 0x00020000  # sched.h
PIECE = 15 << 20
PIECES_A_CALL = 4
TELL_S = 15
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
NINJA = re.compile(rb"^\[([0-9]{1,6})/([0-9]{1,6})\]", re.MULTILINE)


def say(text: str) -> None:
    print(f"farm: {text}", flush=True)


def leave(code: int, text: str) -> NoReturn:
    say(text)
    raise SystemExit(code)


class Joined(io.RawIOBase):
    """The parts, one after the other, as one file; each is verified before its first byte is used."""

    def __init__(self, parts: "list[tuple[Path, dict[str, Any]]]") -> None:
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
            path, told = following
            total = hashlib.sha256()
            with path.open("rb") as stream:
                while piece := stream.read(1 << 20):
                    total.update(piece)
            if total.hexdigest() != told["sha256"]:
                leave(DAMAGED, f"{path} is damaged: its sha256 is not the manifest's; carry it again")
            self._stream = path.open("rb")


def unpack(manifest: "dict[str, Any]", folders: "list[Path]", state: Path) -> None:
    """Join the parts into `state`: `root` is the toolchain, `lib` the engine, the others are the build's inputs."""
    ready = state / "unpacked"
    if ready.exists():
        return
    found, missing = [], []
    for part in manifest["parts"]:
        paths = [folder / part["name"] for folder in folders if (folder / part["name"]).is_file()]
        if paths and paths[0].stat().st_size == part["size"]:
            found.append((paths[0], part))
        else:
            missing.append(part["name"])
    if missing:
        here = ", ".join(path.name for path, _ in found) or "none"
        leave(AGAIN, f"parts here: {here}; still to be carried: {', '.join(missing)}")
    say(f"unpacking {len(found)} parts into {state}")
    start = time.monotonic()
    for name in ("root", "lib", *manifest["job"]["inputs"].values()):
        shutil.rmtree(state / name, ignore_errors=True)
    state.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BufferedReader(Joined(found), 1 << 20), mode="r|") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is None:
                continue
            if member.name == "tree.tar.xz":
                with lzma.open(stream) as plain, tarfile.open(fileobj=plain, mode="r|") as tree:
                    extract(tree, state / "root")
                continue
            target = state / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
    ready.touch()
    say(f"unpacked in {time.monotonic() - start:.0f} s")


def extract(tree: tarfile.TarFile, root: Path) -> None:
    """The toolchain's files; the archive was made by the farm and verified, its links are its own."""
    root.mkdir(parents=True, exist_ok=True)
    if hasattr(tarfile, "fully_trusted_filter"):
        tree.extraction_filter = tarfile.fully_trusted_filter
    tree.extractall(root)  # noqa: S202


def own_mounts() -> None:
    """What is mounted from here on ends with the last process of this run: nothing is left for a clean-up to walk into.

    Where this is refused, mounting is refused as well, and `prepare` says so.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)


def prepare(root: Path) -> None:
    """What a root file system needs beside files; says what this machine does not allow."""
    for name in ("dev", "proc", "tmp", "run", "root"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name, (major, minor) in DEVICES.items():
        path = root / "dev" / name
        if path.exists() and not stat.S_ISCHR(path.stat().st_mode):
            path.unlink()
        if not path.exists():
            try:
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
                path.chmod(0o666)
            except OSError as error:
                if subprocess.run(["mount", "--bind", "/dev", str(root / "dev")], check=False).returncode:
                    leave(CANNOT, f"no /dev/{name} in the toolchain: neither mknod ({error}) nor mount --bind works")
                break
    for name, to in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        if not (root / "dev" / name).is_symlink() and not (root / "dev" / name).exists():
            (root / "dev" / name).symlink_to(to)
    if not (root / "proc/self").exists():
        for command in (["mount", "-t", "proc", "proc"], ["mount", "--bind", "/proc"]):
            if subprocess.run([*command, str(root / "proc")], check=False, capture_output=True).returncode == 0:
                break
        else:
            say("/proc cannot be mounted in the toolchain; going on without it")
    try:
        done = subprocess.run(
            ["chroot", str(root), "/usr/bin/python3", "-c", "import sys; open('/dev/null'); print(sys.version)"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        leave(CANNOT, f"chroot cannot be run: {error}")
    if done.returncode:
        leave(CANNOT, f"chroot into the toolchain fails: {(done.stderr or done.stdout).strip()[-400:]}; is this root?")
    say(f"chroot works; Python there: {done.stdout.split()[0]}")


def steps(log: Path) -> "Iterator[tuple[int, int]]":
    """How far ninja is, as its log says; the last entry is the newest."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - (1 << 18)))
        for match in NINJA.finditer(stream.read()):
            yield int(match[1]), int(match[2])


def build(manifest: "dict[str, Any]", state: Path, args: argparse.Namespace) -> Path:
    """Start or take up the build and follow it; returns the folder with what it left."""
    sys.path.insert(0, str(state / "lib"))
    from farm.engines.base import Job  # noqa: PLC0415 there is no farm before the bundle is unpacked
    from farm.engines.host import HostEngine  # noqa: PLC0415

    job = manifest["job"]
    jobs = args.jobs or os.cpu_count() or 1
    memory = int((args.memory_gb or jobs * job["memory_per_job_gb"] * 1.5) * 1e9)
    engine = HostEngine(state / "root", tree=True, cpus=jobs, memory=memory)
    labels = {"farm.plan": manifest["plan"]}
    handle = engine.find(labels)
    seen = engine.observe(handle) if handle else None
    if seen is None or seen.state in ("lost", "cancelled") or (args.retry and seen.state == "done" and seen.exit_code):
        say(f"building with {jobs} jobs" + (f" (before: {seen.text or seen.state})" if seen else ""))
        handle = engine.submit(
            Job(
                name=manifest["name"],
                image="",
                command=tuple(job["command"]),
                inputs={target: state / name for target, name in job["inputs"].items()},
                output=job["output"],
                environment={**job["environment"], "FARM_JOBS": str(jobs)},
                limits=engine.capacity(),
                timeout_s=job["timeout_s"],
                labels=labels,
                volumes=job["volumes"],
            )
        )
    assert handle is not None
    log = state / "root/farm-jobs" / handle / "log"
    follow(engine, handle, log, args.wait_s)
    seen = engine.observe(handle)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "build.log.xz").write_bytes(lzma.compress(log.read_bytes(), preset=1))
    if seen.state in ("starting", "running"):
        leave(AGAIN, "the build goes on: call again")
    if seen.state != "done":
        leave(AGAIN, f"the build was {seen.state}: {seen.text}; call again to go on")
    if seen.exit_code:
        tail = log.read_bytes()[-6000:].decode("utf-8", "replace")
        leave(FAILED, f"the build failed with exit code {seen.exit_code} ({seen.text or 'its own'}):\n{tail}")
    return state / "root" / str(job["output"]).lstrip("/")


def follow(engine: Any, handle: str, log: Path, wait_s: float) -> None:
    deadline, told, first = time.monotonic() + wait_s, 0.0, None
    while engine.observe(handle).state in ("starting", "running") and time.monotonic() < deadline:
        now = time.monotonic()
        if now - told > TELL_S:
            told = now
            reached = list(steps(log))[-1:]
            if reached:
                done, total = reached[0]
                first = first or (now, done)
                rate = (done - first[1]) / (now - first[0]) if now > first[0] else 0.0
                left = f", about {(total - done) / rate / 60:.0f} min left" if rate > 0 else ""
                say(f"[{done}/{total}] {rate * 60:.0f} steps a minute{left}")
            else:
                last = log.read_bytes()[-200:].decode("utf-8", "replace").strip().splitlines()
                say(last[-1] if last else "no output yet")
        time.sleep(0.5)


def hand_out(manifest: "dict[str, Any]", output: Path, out: Path, first: int) -> None:
    """The wheel in pieces into `out`, a few a call."""
    wheels = sorted((output / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        leave(FAILED, f"the build left {len(wheels)} wheels, expected one")
    data = wheels[0].read_bytes()
    count = -(-len(data) // PIECE)
    told = {"wheel": wheels[0].name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pieces": count}
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps({**told, "plan": manifest["plan"]}, indent=1))
    last = min(first + PIECES_A_CALL, count)
    for number in range(first, last):
        (out / f"piece-{number:02d}").write_bytes(data[number * PIECE : (number + 1) * PIECE])
    say(f"{wheels[0].name}: {len(data)} bytes; pieces {first} to {last - 1} of {count} are in {out}")
    if last < count:
        leave(AGAIN, f"call again with --first-piece {last}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds a plan from a bundle, without network or Docker.")
    parser.add_argument("--parts", type=Path, action="append", default=[], help="where parts are (default: here)")
    parser.add_argument("--state", type=Path, help="where to unpack and build (default: /var/tmp/farm-<plan>)")
    parser.add_argument("--jobs", type=int, help="compiles at a time (default: the CPUs)")
    parser.add_argument("--memory-gb", type=float, help="kill the build above this (default: by the jobs)")
    parser.add_argument("--wait-s", type=float, default=540, help="how long to follow the build in this call")
    parser.add_argument("--out", type=Path, help="where the log and the pieces of the wheel go")
    parser.add_argument("--first-piece", type=int, default=0)
    parser.add_argument("--retry", action="store_true", help="a build that failed is tried again")
    parser.add_argument("--check", action="store_true", help="unpack and try the toolchain, build nothing")
    args = parser.parse_args()
    manifest = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
    state: Path = args.state or Path("/var/tmp") / f"farm-{manifest['plan'][:12]}"  # noqa: S108 root's, for days
    unpack(manifest, args.parts or [HERE], state)
    own_mounts()
    prepare(state / "root")
    if args.check:
        return 0
    output = build(manifest, state, args)
    if args.out:
        hand_out(manifest, output, args.out, args.first_piece)
    else:
        say(f"done: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
