"""The `host` engine: one process tree a job, on this very machine, for machines without Docker.

A job sees its folders under `<root>/farm`, which FARM_ROOT names; where `<root>` is a whole root
filesystem (`tree`), the job runs in it, by chroot, under /farm. Only one job of a user runs at a
time on a machine, whatever project it is of: its supervisor holds a lock (on Windows one of each
project). Unlike a container it is not cut off from the network or from this machine's files: run
only plans that you trust. Needs the standard library alone.

What Linux, macOS and Windows do differently is in `farm.base.processes`.
"""

from __future__ import annotations  # also for the Python 3.9 of such a machine

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import farm
from farm.base import processes
from farm.base.errors import InfrastructureError, NoRunnerError
from farm.base.locks import lock, retry_while_open
from farm.base.processes import end_requested, leave, limit_cpus, started
from farm.base.safe_files import plain_files
from farm.engines.base import FINAL, Capacity, Cause, Job, Observation, State, Traits
from farm.engines.transfer import OutputWriter, RefusedOutputError
from farm.platforms.facts import here

POLL_S = 0.2
LOOK_S = 2
START_S = 120  # Python starts in seconds under Wine, and in a minute on a machine that is busy
END_S = 10
CHUNK = 1 << 20
LOCK_TRIES = 10
TOP = "/farm"
GRACE_S = 30
EXIT_CODES = {
    Cause.TIME_LIMIT: 124,  # as `timeout` gives it
    Cause.OUT_OF_MEMORY: 128 + 9,  # SIGKILL, as a shell gives it
    Cause.CANCELLED: 128 + signal.SIGTERM,
    Cause.NOT_STARTED: 127,
}


def supervise(folder: Path) -> None:
    """Run the job in `folder` and write how it ended."""
    job: dict[str, Any] = json.loads((folder / JOB).read_text(encoding="utf-8"))
    end_wanted = end_requested(folder)
    # With the time of its start: another process may have the same number later.
    _write(folder / "pid", {"pid": os.getpid(), "start": started(os.getpid())})
    limit_cpus(job["cpus"])
    with (folder / "log").open("ab", buffering=0) as log:
        streams: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": log,
            "stderr": subprocess.STDOUT,
        }
        try:
            process = processes.start(
                job["command"],
                environment=job["environment"],
                folder=job["root"],
                chroot=job["chroot"],
                **streams,
            )
        except (OSError, subprocess.SubprocessError) as error:
            _write_end(folder, EXIT_CODES[Cause.NOT_STARTED], Cause.NOT_STARTED, str(error))
            return
        cause = _watch(process, job, end_wanted)
        # What takes all memory gets no time to end by itself.
        grace_s = 0.0
        if cause in (Cause.CANCELLED, Cause.TIME_LIMIT):
            grace_s = GRACE_S
        code = processes.end(process, job["environment"][processes.MARK], grace_s)
    if code < 0:  # Popen gives -N for a command that signal N ended, a shell 128 + N
        code = 128 - code
    if cause is not None:
        code = EXIT_CODES[cause]
    detail = None
    if cause is Cause.TIME_LIMIT:
        detail = f"{job['timeout_s']} s"
    elif cause is Cause.OUT_OF_MEMORY:
        detail = f"{job['memory']} bytes"
    _write_end(folder, code, cause, detail)


def _watch(
    process: subprocess.Popen[bytes], job: Mapping[str, Any], end_wanted: Callable[[], bool]
) -> Cause | None:
    """Wait until the command of a job has ended, or must be ended, and why; None: by itself."""
    handle = job["environment"][processes.MARK]
    looked = begun = time.monotonic()
    while process.poll() is None:
        if end_wanted():
            return Cause.CANCELLED
        if time.monotonic() > begun + job["timeout_s"]:
            return Cause.TIME_LIMIT
        if time.monotonic() - looked > LOOK_S:
            looked = time.monotonic()
            if processes.memory_of_job(handle) > job["memory"]:
                return Cause.OUT_OF_MEMORY
        time.sleep(POLL_S)
    # It may have ended between two looks: what is left of the tree can still be over the limit.
    if process.returncode and processes.memory_of_job(handle) > job["memory"]:
        return Cause.OUT_OF_MEMORY
    return None


def _write_end(folder: Path, code: int, cause: Cause | None, detail: str | None) -> None:
    name = None
    if cause is not None:
        name = cause.name
    _write(folder / "exit.json", {"code": code, "cause": name, "detail": detail})


def _write(path: Path, data: dict[str, Any]) -> None:
    # Engines read these files at any moment: they find the whole file or none.
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data), encoding="utf-8")
    retry_while_open(part.replace, path)


CARRIED = (
    "farm/__init__.py",
    "farm/base/__init__.py",
    "farm/base/errors.py",
    "farm/base/locks.py",
    "farm/base/enter.py",
    "farm/base/processes.py",
    "farm/base/safe_files.py",
    "farm/base/text.py",
    "farm/base/zips.py",
    "farm/platforms/__init__.py",
    "farm/platforms/facts.py",
    "farm/engines/__init__.py",
    "farm/engines/base.py",
    "farm/engines/host.py",
    "farm/engines/transfer.py",
)
"""The files of the farm that make this engine, for machines that have no farm."""
JOB = "job.json"  # the submitted job; a folder without it is no job


def _open_machine_lock() -> BinaryIO:
    """The user's lock on this machine, in the folder for temporary files; InfrastructureError: it
    does not belong to this user alone.
    """
    if sys.platform == "win32":  # which has no such numbers, and no such lock
        raise NotImplementedError
    path = Path(tempfile.gettempdir()) / f"torch-farm-{os.getuid()}.lock"
    try:
        file = os.fdopen(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600), "r+b", 0
        )
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.getuid():
            return file
        file.close()
        why = "it is no file of this user alone"
    except OSError as error:
        why = error.strerror or str(error)
    raise InfrastructureError(
        f"{path} cannot be used as this user's lock: {why}",
        hint=f"remove it (ls -l {path} shows whose it is), or set TMPDIR to a folder of your own",
    )


def _here() -> frozenset[str]:
    platform = here()
    if platform is None:
        return frozenset()
    return frozenset({platform.name})


class HostEngine:
    """See `farm.engines.base.Engine`. `cpus` and `memory` narrow what this machine has."""

    name = "host"
    poll_s = POLL_S
    traits = Traits(in_container=False, keeps_volumes=True, platforms=_here(), on_this_machine=True)

    def __init__(
        self,
        root: Path,
        *,
        tree: bool = False,
        cpus: float | None = None,
        memory: int | None = None,
    ) -> None:
        """`root` holds everything that the engine keeps; NoRunnerError: a `tree` cannot be entered
        here.
        """
        processes.check(tree=tree)
        self.root = root.resolve()
        self.tree = tree
        self._cpus = cpus
        self._memory = memory

    @property
    def _farm(self) -> Path:
        return self.root / "farm"

    @property
    def _jobs(self) -> Path:
        return self.root / "farm-jobs"

    @property
    def _volumes(self) -> Path:
        return self.root / "farm-volumes"

    def capacity(self) -> Capacity:
        cpus, memory = processes.machine()
        # A machine that grows its memory as it is used tells too little: an explicit figure is
        # believed.
        return Capacity(
            cpus=min(self._cpus or cpus, cpus), memory=self._memory or int(memory * 0.9)
        )

    def submit(self, job: Job) -> str:
        try:
            self._jobs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InfrastructureError(
                f"{self._jobs} cannot be made: {error}", hint="check that you may write there"
            ) from error
        # Two controllers may submit at the same moment.
        with (self._jobs / "lock").open("ab") as file:
            lock(file.fileno(), wait=True)
            with self._machine(job) as machine_lock:
                return self._submit(job, machine_lock)

    def busy(self) -> str | None:
        """The job that has this machine, of whatever project; None: it is free."""
        if sys.platform == "win32":
            return None
        with contextlib.suppress(InfrastructureError), _open_machine_lock() as file:
            try:
                lock(file.fileno(), wait=False)
            except BlockingIOError:
                return file.read().decode("utf-8", "replace") or "another job"
        return None

    @contextlib.contextmanager
    def _machine(self, job: Job) -> Iterator[int | None]:
        """The descriptor of the machine's lock, for the supervisor to inherit and hold."""
        if sys.platform == "win32" or self.tree:
            # A bundle's job is where a cluster's scheduler put it.
            yield None
            return
        if job.labels and (handle := self.find(job.labels)):
            # Of this very attempt, whose controller was killed.
            self.cancel(handle)
            self.release(handle)
        with _open_machine_lock() as file:
            for tries_left in reversed(range(LOCK_TRIES)):
                try:
                    lock(file.fileno(), wait=False)
                    break
                except BlockingIOError:
                    # For a moment also by `busy`, or by a job that has just ended.
                    if not tries_left:
                        file.seek(0)
                        holder = file.read().decode("utf-8", "replace")
                        raise NoRunnerError(
                            f"this machine already runs {holder}",
                            hint="wait for it, or cancel it in its project",
                        ) from None
                    time.sleep(POLL_S)
            file.truncate(0)
            place = f"in {self.root}"
            if "farm.run" in job.labels:
                place = f"run {job.labels['farm.run']}, {place}"
            file.write(f"{job.name} ({place})".encode())
            yield file.fileno()

    def _submit(self, job: Job, machine_lock: int | None) -> str:
        for handle, old in self._all():
            same = bool(job.labels) and job.labels.items() <= old["labels"].items()
            if same:
                self.cancel(handle)
                self.release(handle)
            elif self.observe(handle).state not in FINAL:
                raise NoRunnerError(
                    f"this machine already runs {old['name']}", hint="wait for it, or cancel it"
                )
        for target, folder in job.inputs.items():
            dest = self._inside(target)
            processes.remove(dest)
            shutil.copytree(
                folder, dest, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        self._place(job.volumes)
        processes.remove(self._inside(job.output))
        handle = uuid.uuid4().hex[:12]
        folder = self._jobs / handle
        folder.mkdir()
        (folder / "log").touch()
        data = {
            "name": job.name,
            "labels": job.labels,
            "output": job.output,
            "command": [self._path(word) for word in job.command],
            "environment": {**self._environment(job), processes.MARK: handle},
            "root": str(self.root),
            "chroot": self.tree,
            "cpus": job.limits.cpus,
            "memory": job.limits.memory,
            "timeout_s": job.timeout_s,
            "submitted": time.monotonic(),
        }
        _write(folder / JOB, data)
        if not self._start_supervisor(folder, machine_lock):
            text = (folder / "supervisor.log").read_text(encoding="utf-8", errors="replace")[-500:]
            raise InfrastructureError(f"the job's supervisor does not start: {text}")
        return handle

    def _start_supervisor(self, folder: Path, machine_lock: int | None) -> bool:
        """Start the supervisor of a job, which holds the lock; False where it does not appear."""
        inherited: tuple[int, ...] = ()
        if machine_lock is not None:
            inherited = (machine_lock,)
        with (folder / "supervisor.log").open("wb") as log:
            # The supervisor detaches itself at once (`processes.leave`), so this returns while the
            # job goes on.
            begun = subprocess.run(
                [sys.executable, "-m", __name__, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.root,
                # It imports the package from where this one lies: that of an offline bundle is
                # installed nowhere.
                env={**os.environ, "PYTHONPATH": str(Path(farm.__file__).parents[1])},
                check=False,
                pass_fds=inherited,
            )
        # What ended before it detached itself, as by the Ctrl-C of this very terminal, will not
        # appear any more.
        if begun.returncode:
            return False
        for _ in range(int(START_S / POLL_S)):
            if (folder / "pid").exists() or (folder / "exit.json").exists():
                return True
            time.sleep(POLL_S)
        return False

    def _inside(self, target: str) -> Path:
        """Where a folder of the job is on this machine."""
        path = PurePosixPath(target)
        if not path.is_relative_to(TOP) or ".." in path.parts:
            raise InfrastructureError(f"a job's folder {target!r} is not below {TOP}")
        return self._farm / path.relative_to(TOP)

    def _path(self, word: str) -> str:
        if self.tree or not word.startswith(TOP + "/"):
            return word
        return str(self._inside(word))

    def _environment(self, job: Job) -> dict[str, str]:
        (self._farm / "home").mkdir(parents=True, exist_ok=True)
        top = str(self._farm)
        home = str(self._farm / "home")
        if self.tree:  # it is entered: the job sees the folders by other paths
            top = TOP
            home = f"{TOP}/home"
        variables = processes.environment(home, tree=self.tree)
        return {**variables, "FARM_ROOT": top, **job.environment}

    def _place(self, volumes: Mapping[str, str]) -> None:
        """Puts the volumes where the job looks for them; what stood there goes back to where
        volumes are kept.
        """
        for target, name in volumes.items():
            place = self._inside(target)
            mark = self._inside(target + ".volume")
            present_name = None
            if mark.exists():
                present_name = mark.read_text(encoding="utf-8")
            if present_name == name and place.is_dir():
                continue
            self._volumes.mkdir(parents=True, exist_ok=True)
            if present_name is not None and place.is_dir():
                place.rename(self._volumes / present_name)
            else:
                processes.remove(place)
            place.parent.mkdir(parents=True, exist_ok=True)
            # The mark before the folder. Killed between the two, a mark without a folder is fixed
            # by the next job; a folder under the mark of another volume would be put away under the
            # wrong name.
            mark.write_text(name, encoding="utf-8")
            if (self._volumes / name).is_dir():
                (self._volumes / name).rename(place)
            else:
                place.mkdir()

    def _all(self) -> list[tuple[str, dict[str, Any]]]:
        jobs = []
        for handle in sorted(path.parent.name for path in self._jobs.glob(f"*/{JOB}")):
            job = self._read(handle, JOB)
            if job is not None:  # else another controller has just released it
                jobs.append((handle, job))
        return jobs

    def find(self, labels: Mapping[str, str]) -> str | None:
        """The handle of the job with these labels."""
        for handle, job in self._all():
            if labels.items() <= job["labels"].items():
                return handle
        return None

    def _read(self, handle: str, name: str) -> dict[str, Any] | None:
        try:
            data: dict[str, Any] = json.loads(
                retry_while_open((self._jobs / handle / name).read_text, "utf-8")
            )
        except FileNotFoundError:
            return None
        return data

    def observe(self, handle: str) -> Observation:
        job = self._read(handle, JOB)
        if job is None:
            return Observation("lost", why="the engine does not know the job")
        pid = self._read(handle, "pid")
        alive = False
        with contextlib.suppress(OSError):  # another user has its pid by now
            alive = pid is not None and processes.started(pid["pid"]) == pid["start"] != ""
        # After the look at the process: it is written before that ends.
        ended = self._read(handle, "exit.json")
        if ended is not None:
            return _end_of(ended)
        # By the time since the machine was started, which no clock that jumps changes; it is less
        # after a reboot.
        if pid is None and not 0 <= time.monotonic() - job.get("submitted", 0.0) <= 2 * START_S:
            return Observation("lost", why="its supervisor never started")
        if pid is None:
            return Observation("starting", why="its supervisor starts")
        if alive:
            return Observation("running")
        return Observation("lost", why="its supervisor was killed")

    def logs(self, handle: str, since: int = 0) -> Iterator[bytes]:
        path = self._jobs / handle / "log"
        if not path.exists():
            return
        with path.open("rb", buffering=0) as stream:
            while True:
                # Asked before the log is read: what the job wrote up to its end is then read below.
                ended = self.observe(handle).state in FINAL
                stream.seek(since)  # a C library may stay at the end that it saw once; Wine's does
                while piece := stream.read(CHUNK):
                    since += len(piece)
                    yield piece
                if ended:
                    return
                time.sleep(POLL_S)

    def cancel(self, handle: str) -> None:
        pid = self._read(handle, "pid")
        if pid is None:
            return
        if self.observe(handle).state == "running":
            processes.request_end(pid["pid"], self._jobs / handle)
        for _ in range(int((GRACE_S + START_S) / POLL_S)):
            if self.observe(handle).state in FINAL:
                self._end_session(handle)
                return
            time.sleep(POLL_S)
        raise InfrastructureError(f"job {handle} does not stop", hint=f"kill process {pid['pid']}")

    def _end_session(self, handle: str) -> None:
        """Ends what a killed supervisor left."""
        if not processes.end_marked(handle, processes.KILL, END_S):
            raise InfrastructureError(
                f"processes of job {handle} do not end", hint="look at them with ps"
            )

    def collect(self, handle: str, dest: Path, max_bytes: int) -> list[Path]:
        job = self._read(handle, JOB)
        if job is None:
            raise InfrastructureError(f"job {handle} is gone, and its output with it")
        source = self._inside(job["output"])
        writer = OutputWriter(dest, max_bytes)
        if not os.path.lexists(source):
            return []
        try:
            # What the job left running may still change its output.
            for path, stream in plain_files(source.relative_to(self.root), below=self.root):
                writer.check(path.as_posix(), plain=stream is not None)
                assert stream is not None
                writer.write(path.as_posix(), path.parts, stream)
        except OSError as error:
            raise RefusedOutputError(f"the job's output cannot be read: {error}") from error
        return writer.written

    def release(self, handle: str) -> None:
        if self.observe(handle).state not in FINAL:
            self.cancel(handle)
        elif (self._jobs / handle).is_dir():
            self._end_session(handle)
        folder = self._jobs / handle
        # First it is no job any more: half removed, it would be one that starts, and keep the
        # machine from others.
        with contextlib.suppress(FileNotFoundError):
            retry_while_open((folder / JOB).replace, folder / "released.json")
        processes.remove(folder)

    def discard(self, volume: str) -> None:
        for mark in self._farm.glob("*.volume"):
            if mark.read_text(encoding="utf-8") == volume:
                processes.remove(mark.with_suffix(""))
                mark.unlink()
        processes.remove(self._volumes / volume)


def _end_of(ended: Mapping[str, Any]) -> Observation:
    """The end of a job by its `exit.json`."""
    state: State = "done"
    cause = None
    if ended["cause"]:
        cause = Cause[ended["cause"]]
        if cause is Cause.CANCELLED:
            state = "cancelled"
    return Observation(state, why=ended["detail"], exit_code=ended["code"], cause=cause)


if __name__ == "__main__":
    leave()
    supervise(Path(sys.argv[1]))
