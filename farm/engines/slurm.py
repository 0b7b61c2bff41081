"""The `slurm` engine: attempts are batch jobs on the nodes of a cluster, as an ordinary user and
without Docker.

Everything lies in a folder that the login node and the nodes share. The login node is this machine,
or is reached by `ssh`: it needs a POSIX shell, tar, xz and Slurm's own commands. A node needs
Python 3.6 and user namespaces, else bubblewrap, else apptainer: the job enters the toolchain's file
system by the first of them that works, and runs there under the host engine's supervisor, which
keeps its limits and notes its end.

    toolchains/<image>/root, image.json, project unpacked once jobs/<handle>/
    job.sh and what the job cannot write jobs/<handle>/farm, run, tmp                 what it sees
    as /farm (with the image's scripts), /run, /tmp volumes/<name>
    build trees

Jobs that come together and ask for the same go out as one array: each of its tasks enters the
folder of its job, where `task` has the array's name and the task's number. Slurm is asked by
`squeue` in a format of our own: `--json` has another shape in each release.
"""

import json
import math
import re
import shlex
import subprocess
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

from farm.base import processes
from farm.base.errors import FarmError, InfrastructureError, NoRunnerError
from farm.base.text import plain
from farm.base.zipapps import ROOT
from farm.engines import transfer
from farm.engines.base import FINAL, Capacity, Cause, Job, Observation, Traits, attempt_name
from farm.engines.host import CARRIED
from farm.engines.slurm_limits import LIMITS, TimeLimit, time_limit
from farm.engines.slurm_queue import JobKey, SlurmQueue
from farm.engines.slurm_states import WITHOUT_REPORT, observation, read_report
from farm.engines.transfer import storing
from farm.plan.settings import Slurm, SlurmCard

CHUNK = 1 << 20
CANCEL_S = 120
LOOKS = 5
LOOK_PAUSE_S = 6.0
"""A controller of Slurm that is busy, or restarted, answers no question for some seconds; the job
goes on.
"""
SESSIONS = 6
"""Sessions on the login node at a time: OpenSSH refuses some of more than ten that begin together
(sshd_config(5), MaxStartups).
"""
GATHER_S = 1.0  # how long a job waits for another that goes out with it
MAX_ARRAY = 1000  # tasks of one array; Slurm's own default for MaxArraySize is 1001
ALL_CPUS = 1 << 16
"""Slurm gives a job its CPUs: a supervisor that chose among all of a node's would give the same
ones to two jobs.
"""
ABSENT = 44  # exit code of our scripts for what is not there
GRACE_MINUTES = 5  # how much later than the supervisor Slurm ends a job
MAX_TEXT = 4000
MAX_TAIL = 400  # characters of a job's output in a reason
REPORT_S = 45.0  # how long a report may take over a network file system
LIMITS_S = 3600.0  # how long the cluster's time limits are remembered
FOLDER_ERRORS = {
    r"Permission denied|Operation not permitted": "each user needs a folder of their own: look at "
    "its owner and mode (`ls -ld`), or name another in slurm.folder of ci/farm.yaml",
    r"No space left on device|Disk quota exceeded": "make room there (`df`, `quota`; `farm clean "
    "--dry-run` shows what can go), or name another folder in slurm.folder",
    r"Read-only file system|Stale file handle|Input/output error": "is it mounted there, to be "
    "written?",
}
"""What the login node says of its file system, as patterns, and what to do."""

ROW = r"""
row() {
    [ -e "$1/task" ] || return 0
    read -r name index < "$1/task"; shift
    listed=$(squeue --noheader --array --user="$(id -un)" --name="$name" --format='%K|%i|%T|%N|%r' "$@") || return 9
    printf '%s\n' "$listed" | sed -n "s/^$index|//p"
}
"""
"""The line of a job in Slurm's queue, `number|STATE|nodes|reason`; nothing where it has none. All
scripts have it.
"""
LISTING = r"""
listed=$(squeue --noheader --array --states=all --user="$(id -un)" --format='%j|%K|%i|%T|%N|%r') || exit 9
printf '%s\n' "$listed" | grep '^farm-' || true
"""
"""The lines of all jobs of the farm's; the rows of other jobs stay on the login node."""
LOOK = r"""
cd "$1/jobs/$2" 2>/dev/null || exit 0
cat task 2>/dev/null || echo
dd if=run/exit.json iflag=nofollow,count_bytes count=4000 2>/dev/null | tr '\n' ' '; echo
[ ! -e refused ] || tr '\n' ' ' < refused; echo
[ ! -e cancelled ] || printf cancelled; echo
[ ! -e limit ] || tr '\n' ' ' < limit; echo
[ ! -e run/log ] || printf begun; echo
dd if=run/log iflag=nofollow,skip_bytes,count_bytes skip="$3" count="$4" bs=65536 2>/dev/null || true
"""
"""What the files of a job say. `nofollow`: the job can write to run/, and must not make us read
another file of this user.
"""
SETTLE = r"""
cd "$1/jobs/$2" 2>/dev/null || exit 0
scontrol --oneliner show job "$3" 2>/dev/null | tr ' ' '\n' | sed -n 's/^ExitCode=//p' | head -n 1
df -Pk . 2>/dev/null | awk 'NR == 2 { print $4 }'
tail -c 1000 slurm.out 2>/dev/null || true
"""
"""Of a job that ended without a report: its exit code, the KiB that are free, the end of its
output; a line each for the first two.
"""
CHECK_FOLDER = r"""
umask 077
mkdir -p "$1/jobs" "$1/toolchains" "$1/volumes" && probe=$(mktemp "$1/jobs/.farm.XXXXXX") || exit 9
echo farm > "$probe" || { rm -f "$probe"; exit 9; }
rm -f "$probe"
df -Pk "$1" | awk 'NR == 2 { print $4 }'
"""
PUT = """
set -e; umask 077; cd "$1"; handle=$2 image=$3; shift 3
[ -d "toolchains/$image/root" ] || exit 44
listed=$(row "jobs/$handle" --states=all)
if [ -e "jobs/$handle/submitted" ] || [ -n "$listed" ]; then echo there; exit 0; fi
rm -rf "jobs/$handle"; mkdir -p "jobs/$handle"; cd "jobs/$handle"; mkdir farm farm/home tmp run
cp -R "../../toolchains/$image/root/farm/." farm
tar -xf -
while read -r place volume; do mkdir -p "farm/$place"; [ -z "$volume" ] || mkdir -p "../../volumes/$volume"
done < places
"""
SEND = """
set -e; cd "$1/jobs"; top=$1/jobs name=$2 count=$3 index=0 handles=; shift 3
while [ "$index" -lt "$count" ]; do
    echo "$name $index" > "$1/task"; handles="$handles $1" index=$((index + 1)); shift
done
sbatch --job-name="$name" --array="0-$((count - 1))" --chdir="$top" --output=/dev/null --export=NIL --no-requeue "$@" \\
    <<END
#!/bin/sh
set -- $handles; shift "\\$SLURM_ARRAY_TASK_ID"; cd "$top/\\$1" && exec /bin/sh job.sh > slurm.out 2>&1
END
for handle in $handles; do touch "$handle/submitted"; done
"""
"""A job is known by its `task` before Slurm has it: whoever submits it again finds it."""
CANCEL = """
cd "$1/jobs/$2" 2>/dev/null || exit 0
touch cancelled; listed=$(row .) || exit 9
[ -z "$listed" ] || scancel "${listed%%|*}"
"""
COLLECT = (
    'cd "$1/jobs/$2/farm" 2>/dev/null || exit 44; [ ! -e "$3" ] && [ ! -L "$3" ] || exec tar '
    '-cf - -- "$3"'
)
RELEASE = """
cd "$1/jobs" 2>/dev/null || exit 0
for left in 5 4 3 2 1; do
    [ -d "$2" ] || exit 0
    chmod -R u+rwX "$2"
    rm -rf "$2" && exit 0
    sleep 1
done
exit 1
"""
"""Again where a file came in between: a job ends a moment after it has written how."""
DISCARD = r"""
cd "$1" 2>/dev/null || exit 0
for file in jobs/*/places; do
    if [ -e "$file" ] && grep -q " $2\$" "$file"; then
        listed=$(row "${file%/places}") || exit 9
        [ -z "$listed" ] || exit 0
    fi
done
[ ! -d "volumes/$2" ] || { chmod -R u+rwX "volumes/$2"; rm -rf "volumes/$2"; }
"""
FOLDERS = """
cd "$1" 2>/dev/null || exit 0
for path in jobs/* toolchains/* volumes/*; do
    [ -d "$path" ] || continue
    echo "$path|$(stat -c %Y "$path")|$(du -sk "$path" | cut -f 1)|$(cat "$path/project" 2>/dev/null)"
done
"""
REMOVE = 'cd "$1"; shift; for path; do chmod -R u+rwX "$path"; rm -rf "$path"; done'
INSTALL = """
set -e; umask 077; mkdir -p "$1/toolchains"; cd "$1/toolchains"; part=$(mktemp -d ".$2.XXXXXX")
trap 'rm -rf "$part"' EXIT
printf '%s\\n' "$3" > "$part/image.json"; printf %s "$4" > "$part/project"; mkdir "$part/root"
xz -dc | tar -xf - -C "$part/root" --no-same-owner
for name in dev proc run tmp farm; do mkdir -p "$part/root/$name"; done
mv -T "$part" "$2" 2>/dev/null || [ -d "$2/root" ]
"""
RUN = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, "/run/engine.zip")
from farm.engines.host import supervise
file = Path("/run/job.json")
job = json.loads(file.read_text())
job["environment"].update({name: value for name, value in os.environ.items() if name == "CUDA_VISIBLE_DEVICES"})
file.write_text(json.dumps(job))
supervise(Path("/run"))
sys.exit(min(255, json.loads(Path("/run/exit.json").read_text())["code"]))
"""
DRIVER = """
mkdir -p farm/driver
/sbin/ldconfig -p | sed -n 's|.*x86-64.* => \\(/.*/lib\\(cuda\\|nvidia-[a-z]*\\)\\.so\\.[0-9]*\\)$|\\1|p' |
    while read -r library; do cp -L "$library" farm/driver/; done
"""
"""The node's own driver, for a job with a card: its libraries belong to its kernel module."""
SCRIPT = """#!/bin/sh
PATH=/usr/local/bin:/usr/bin:/bin; export PATH
{driver}
if python3 enter.py --check 2> refused; then rm refused; exec {enter} {command}; fi
if {bwrap} /bin/true 2>> refused; then rm refused; exec {bwrap} {command}; fi
if {apptainer} /bin/true 2>> refused; then rm refused; exec {apptainer} {command}; fi
exit 125
"""
COMMAND = ["/usr/bin/python3", "-I", "/run/run.py"]


@dataclass(frozen=True)
class Folder:
    """A folder in the shared one: its path there, the time of its last change, its bytes, the
    project that made it.
    """

    path: str
    changed: datetime
    size: int
    project: str


class SlurmEngine:
    """See `farm.engines.base.Engine`; `slurm:` of `ci/farm.yaml` says where it is and what a job
    gets.
    """

    name = "slurm"
    traits = Traits(keeps_volumes=True, unpacks=True)

    def __init__(self, slurm: Slurm) -> None:
        self.folder = slurm.folder
        self.ssh = slurm.ssh
        self._slurm = slurm
        self._cpus = slurm.cpus
        self._memory = int((slurm.memory_gb or 0) * 1e9)
        self.poll_s = 1.0
        if slurm.ssh:
            self.poll_s = 5.0
        self._queue = SlurmQueue(self._listing)
        self._since: dict[str, float] = {}
        self._unreported: dict[str, float] = {}
        self._settled: dict[str, Observation] = {}
        self._limit_lines: tuple[float, list[str]] = (float("-inf"), [])
        self._waiting: list[tuple[list[str], str, Future[None]]] = []
        self._sending = threading.Lock()
        self._sessions = threading.Semaphore(SESSIONS)

    # --- the login node

    def _command(self, script: str, *arguments: str) -> list[str]:
        command = ["sh", "-c", ROW + script, "sh", *arguments]
        if self.ssh is None:
            return command
        return ["ssh", "-o", "BatchMode=yes", self.ssh, shlex.join(command)]

    def _run(
        self,
        script: str,
        *arguments: str,
        stdin: IO[bytes] | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Return the output of a script on the login node."""
        stdin_stream = stdin or subprocess.DEVNULL
        try:
            with self._sessions:
                done = subprocess.run(
                    self._command(script, *arguments),
                    stdin=stdin_stream,
                    capture_output=True,
                    check=False,
                    timeout=timeout_s,
                )
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(
                f"{self._where} does not answer within {timeout_s:.0f} s", hint="try squeue there"
            ) from error
        except OSError as error:
            raise InfrastructureError(
                f"{error.filename} cannot be run: {error.strerror}"
            ) from error
        if done.returncode == ABSENT:
            raise FileNotFoundError
        if done.returncode:
            raise self._failed(done.returncode, done.stderr)
        return done.stdout

    @property
    def _where(self) -> str:
        if self.ssh:
            return f"the login node {self.ssh}"
        return "Slurm on this machine"

    def _failed(self, code: int, stderr: bytes) -> FarmError:
        where = self._where
        text = plain(stderr.decode("utf-8", "replace")[-MAX_TEXT:]).strip()
        if "sbatch: error:" in text:
            # The site refuses the request itself: another try gives the same answer.
            return NoRunnerError(
                f"{where} takes no such job: {text}",
                hint="partition, account, qos, constraint, gres, cpus, memory_gb: see `slurm:` in "
                "ci/farm.yaml",
            )
        for pattern, hint in FOLDER_ERRORS.items():
            if re.search(pattern, text):
                return InfrastructureError(
                    f"the shared folder {self.folder} of {where} cannot be used: {text}", hint=hint
                )
        return InfrastructureError(
            f"{where} does not answer: {text or f'exit code {code}'}", hint="try squeue there"
        )

    # --- toolchains

    def add_toolchain(
        self, image: str, packed: Path, image_id: str, environment: dict[str, str], project: str
    ) -> None:
        """Unpack an image's file system (tar.xz) in the shared folder; `environment` is what the
        image sets.
        """
        data = json.dumps({"id": image_id, "environment": environment})
        with packed.open("rb") as stream:
            self._run(INSTALL, self.folder, _file_name(image), data, project, stdin=stream)

    def image(self, image: str) -> dict[str, Any] | None:
        """Id and environment of the image whose file system is in the shared folder under this
        name; None: none is.
        """
        try:
            data: dict[str, Any] = json.loads(
                self._run(
                    'cat "$1/toolchains/$2/image.json" 2>/dev/null || exit 44',
                    self.folder,
                    _file_name(image),
                )
            )
        except FileNotFoundError:
            return None
        return data

    # --- start

    def capacity(self) -> Capacity:
        if self._cpus and self._memory:
            return Capacity(self._cpus, self._memory)
        script = "sinfo --noheader --exact --format='%c|%m' \"$@\""
        options = []
        if self._slurm.partition:
            options.append(f"--partition={self._slurm.partition}")
        cpus = 0.0
        memory = 0
        for line in self._run(script, *options).decode().split():
            node_cpus, _, mebibytes = line.partition("|")
            cpus = max(cpus, float(node_cpus))
            memory = max(memory, int(mebibytes) << 20)
        if not cpus:
            raise NoRunnerError("Slurm has no node for builds", hint="sinfo, on the login node")
        return Capacity(
            min(self._cpus or cpus, cpus), min(self._memory or memory, int(memory * 0.9))
        )

    def submit(self, job: Job) -> str:
        handle = attempt_name(job)
        image = _file_name(job.image)
        card: SlurmCard = self._slurm
        if job.gpus:
            card = self._slurm.smoke or SlurmCard()
        needed = math.ceil(job.timeout_s / 60) + GRACE_MINUTES
        limit = self._time_limit(card)
        minutes = needed
        if limit:
            minutes = min(needed, limit.minutes)
        options = [
            f"--cpus-per-task={math.ceil(job.limits.cpus)}",
            f"--mem={math.ceil(job.limits.memory / 2**20)}M",
            f"--time={minutes}",
            *sbatch_options(card),
        ]
        image_data = self.image(job.image)
        try:
            if image_data is None:
                raise FileNotFoundError
            with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as inputs:
                self._write(Path(folder), handle, job, image_data["environment"])
                if limit and minutes < needed:
                    text = f"{minutes} of {needed} minutes: the limit of {limit.source}"
                    (Path(folder) / "limit").write_text(text, encoding="utf-8")
                with storing("a job's inputs", Path(folder)):
                    transfer.pack({"": Path(folder), **job.inputs}, inputs)
                    inputs.seek(0)
                already_submitted = self._run(PUT, self.folder, handle, image, stdin=inputs)
        except FileNotFoundError as error:
            raise InfrastructureError(
                f"no such image in the folder of the cluster: {job.image}",
                hint="farm submit puts it there",
            ) from error
        self._since[handle] = time.monotonic()
        self._settled.pop(handle, None)
        if not already_submitted:
            self._send(handle, options)
            self._since[handle] = time.monotonic()
        return handle

    def build_time_limit(self, timeout_s: float) -> TimeLimit | None:
        """Return the limit for a build; InfrastructureError: no answer within `timeout_s`."""
        return self._time_limit(self._slurm, timeout_s)

    def _time_limit(self, card: SlurmCard, timeout_s: float | None = None) -> TimeLimit | None:
        """The limit of the cluster for a job with these options, or that of ci/farm.yaml."""
        asked_at, lines = self._limit_lines
        if time.monotonic() - asked_at > LIMITS_S:
            answer = self._run(LIMITS, timeout_s=timeout_s)
            lines = answer.decode("utf-8", "replace").splitlines()
            self._limit_lines = (time.monotonic(), lines)
        limit = time_limit(lines, card)
        configured = self._slurm.minutes
        if configured and (limit is None or configured < limit.minutes):
            return TimeLimit(configured, "slurm.minutes")
        return limit

    def check_folder(self, needed: float) -> None:
        """Try the shared folder: it can be written, and has so many bytes free.

        Raises:
            InfrastructureError: It cannot, or has not.
        """
        free_kib = self._run(CHECK_FOLDER, self.folder).decode().strip()
        free = int(free_kib or 0) * 1024
        if free < needed:
            raise InfrastructureError(
                f"the shared folder {self.folder} has {free / 1e9:.1f} GB free, and "
                f"{needed / 1e9:.1f} are needed",
                hint="make room there (`farm clean --dry-run` shows what can go), or name another "
                "folder in slurm.folder",
            )

    def _send(self, handle: str, options: list[str]) -> None:
        """Gives a job to Slurm, in one array with the others that wait for that and ask for the
        same.
        """
        sent: Future[None] = Future()
        self._waiting.append((options, handle, sent))
        gathered = 0
        while gathered < len(self._waiting):  # more have come
            gathered = len(self._waiting)
            time.sleep(GATHER_S)
        with self._sending:  # meanwhile more gather
            if not sent.done():
                self._send_array(options)
        sent.result()

    def _send_array(self, options: list[str]) -> None:
        """Gives Slurm the jobs that wait for that with these options, and tells their threads."""
        together = [request for request in self._waiting if request[0] == options][:MAX_ARRAY]
        for request in together:
            self._waiting.remove(request)
        handles = [request[1] for request in together]
        name = f"farm-{uuid.uuid4().hex}"
        try:
            self._run(SEND, self.folder, name, str(len(handles)), *handles, *options)
        except BaseException as error:
            for _, _, future in together:
                future.set_exception(error)
        else:
            for _, _, future in together:
                future.set_result(None)

    def _write(self, folder: Path, handle: str, job: Job, image: dict[str, str]) -> None:
        """The files of a job's folder: what starts it, and what its supervisor needs in run/."""
        environment = {
            **processes.environment("/farm/home", tree=True),
            "FARM_ROOT": "/farm",
            **image,
        }
        if job.gpus:
            environment["LD_LIBRARY_PATH"] = "/farm/driver"
        data = {
            "command": job.command,
            "environment": {**environment, **job.environment, processes.MARK: handle},
            "root": "/",
            "chroot": False,
            "cpus": ALL_CPUS,
            "memory": job.limits.memory,
            "timeout_s": job.timeout_s,
        }
        (folder / "run").mkdir()
        (folder / "run/job.json").write_text(json.dumps(data), encoding="utf-8")
        (folder / "run/run.py").write_text(RUN, encoding="utf-8")
        with zipfile.ZipFile(folder / "run/engine.zip", "w") as archive:
            for name in CARRIED:
                archive.write(ROOT / name, name)
        (folder / "enter.py").write_bytes((ROOT / "farm/base/enter.py").read_bytes())
        places = {_below_farm(target): "" for target in job.inputs}
        for target, volume in job.volumes.items():
            places[_below_farm(target)] = _file_name(volume)
        text = "".join(f"{place} {volume}\n" for place, volume in places.items())
        (folder / "places").write_text(text, encoding="utf-8")
        (folder / "output").write_text(_below_farm(job.output), encoding="utf-8")
        top = PurePosixPath(self.folder)
        binds = [(str(top / "jobs" / handle / name), name) for name in ("farm", "run", "tmp")]
        for place, volume in places.items():
            if volume:
                binds.append((str(top / "volumes" / volume), f"farm/{place}"))
        root = str(top / "toolchains" / _file_name(job.image) / "root")
        script = _script(root, binds, card=bool(job.gpus))
        (folder / "job.sh").write_text(script, encoding="utf-8")

    # --- watch

    def _listing(self) -> list[str]:
        """Slurm's answer about all jobs of the farm's; it is asked again while it is busy."""
        for tries_left in reversed(range(LOOKS)):
            try:
                return self._run(LISTING).decode("utf-8", "replace").splitlines()
            except InfrastructureError:
                if not tries_left:
                    raise
                time.sleep(LOOK_PAUSE_S)
        raise AssertionError("unreachable")

    def _look(
        self, handle: str, since: int = 0, length: int = 0, *, urgent: bool = False
    ) -> tuple[Observation, bytes]:
        """The state, and the log from byte `since` on; the state is the older of the two."""
        first_seen = self._since.setdefault(handle, time.monotonic())
        answer = self._run(LOOK, self.folder, handle, str(since), str(length))
        if not answer:
            return Observation("lost", why="there is no folder of the job"), b""
        *fields, log = answer.split(b"\n", 6)
        task, ended, refused, cancelled, limit, begun = (
            plain(field.decode("utf-8", "replace")).strip() for field in fields
        )
        if handle in self._settled:
            return self._settled[handle], log
        name, _, index = task.partition(" ")
        row: str | None = ""
        if name:
            row = self._queue.row(JobKey(name, index), first_seen, urgent=urgent)
        if row is None:
            return _before_the_first_listing(ended, begun), log
        observed = observation(row, ended, refused, cancelled)
        observed = self._settle(handle, row, ended, observed)
        if observed.cause is Cause.TIME_LIMIT and limit:
            observed = replace(observed, cause=Cause.SITE_LIMIT, why=limit)
        elif observed.state == "queued" and limit:
            observed = replace(observed, why=f"{observed.why} ({limit})")
        return observed, log

    def _settle(self, handle: str, row: str, ended: str, observed: Observation) -> Observation:
        """Say of a job that ended a while ago without a report that it is lost, and what is
        known.
        """
        number, state, _, reason = (row.split("|", 3) + [""] * 4)[:4]
        if observed.state != "running" or state not in WITHOUT_REPORT or read_report(ended):
            self._unreported.pop(handle, None)
            return observed
        first = self._unreported.setdefault(handle, time.monotonic())
        if time.monotonic() - first < REPORT_S:
            return observed
        answer = self._run(SETTLE, self.folder, handle, number).decode("utf-8", "replace")
        code, free_kib, output = (answer.split("\n", 2) + [""] * 3)[:3]
        text = f"Slurm says {state} ({reason}, exit code {code or '?'}), and it left no report"
        last_words = " ".join(plain(output).split())[-MAX_TAIL:]
        if last_words:
            text += f"; its output ends: {last_words}"
        if free_kib.isdigit():
            text += f"; {self.folder} has {int(free_kib) * 1024 / 1e9:.1f} GB free"
        self._settled[handle] = Observation("lost", why=text)
        return self._settled[handle]

    def observe(self, handle: str) -> Observation:
        return self._look(handle)[0]

    def logs(self, handle: str, since: int = 0) -> Iterator[bytes]:
        pause = 0.3
        while True:
            observed, piece = self._look(handle, since, CHUNK)
            if piece:
                since = since + len(piece)
                pause = 0.3
                yield piece
            elif observed.state in FINAL:
                return
            else:
                time.sleep(pause)
                pause = min(pause * 1.5, self.poll_s)

    # --- end

    def cancel(self, handle: str) -> None:
        deadline = time.monotonic() + CANCEL_S
        if self.observe(handle).state in FINAL:
            return
        self._run(CANCEL, self.folder, handle)
        while time.monotonic() < deadline:
            if self._look(handle, urgent=True)[0].state in FINAL:
                return
            time.sleep(0.5)
        raise InfrastructureError(
            f"job {handle} does not end within {CANCEL_S} s", hint="squeue, on the login node"
        )

    def collect(self, handle: str, dest: Path, max_bytes: int) -> list[Path]:
        try:
            output = self._run(
                'cat "$1/jobs/$2/output" 2>/dev/null || exit 44', self.folder, handle
            ).decode()
        except FileNotFoundError as error:
            raise InfrastructureError(f"job {handle} is gone, and its output with it") from error
        command = self._command(COLLECT, self.folder, handle, output)
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            ) as process,
        ):
            assert process.stdout is not None
            try:
                first = process.stdout.read(CHUNK)
                if first:
                    files = transfer.unpack(_chunks(first, process.stdout), dest, max_bytes)
                else:
                    files = []
            except BaseException:
                process.kill()
                raise
            if process.wait():
                errors.seek(0)
                raise self._failed(process.returncode, errors.read())
        return files

    def release(self, handle: str) -> None:
        self.cancel(handle)
        self._run(RELEASE, self.folder, handle)
        for by_handle in (self._since, self._unreported, self._settled):
            by_handle.pop(handle, None)

    def discard(self, volume: str) -> None:
        self._run(DISCARD, self.folder, _file_name(volume))

    def folders(self) -> list[Folder]:
        """Contents of the shared folder: jobs, toolchains, volumes."""
        folders = []
        for line in self._run(FOLDERS, self.folder).decode("utf-8", "replace").splitlines():
            path, seconds, kib, project = line.split("|")
            changed = datetime.fromtimestamp(int(seconds), UTC)
            folders.append(Folder(path, changed, int(kib) << 10, project))
        return folders

    def remove(self, paths: Iterable[str]) -> None:
        """Remove some of `folders`."""
        self._run(REMOVE, self.folder, *paths)


def sbatch_options(card: SlurmCard) -> list[str]:
    """Options of `sbatch` beside a job's limits."""
    options = {name: getattr(card, name) for name in SlurmCard.model_fields}
    return [f"--{name}={value}" for name, value in options.items() if value]


def _script(root: str, binds: list[tuple[str, str]], *, card: bool) -> str:
    """The batch job: it becomes the supervisor, in the toolchain's file system, by the first way
    that the node has.
    """
    enter = ["python3", "enter.py"]
    bwrap = [
        "bwrap",
        "--die-with-parent",
        "--unshare-user",
        "--unshare-net",
        "--uid",
        "0",
        "--gid",
        "0",
    ]
    bwrap += ["--ro-bind", root, "/", "--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc"]
    apptainer = [
        "apptainer",
        "exec",
        "--contain",
        "--no-home",
        "--net",
        "--network",
        "none",
        "--pwd",
        "/",
    ]
    for source, place in binds:
        enter += ["--bind", source, place]
        bwrap += ["--bind", source, f"/{place}"]
        apptainer += ["--bind", f"{source}:/{place}"]
    driver = ""
    if card:
        driver = DRIVER
    return SCRIPT.format(
        driver=driver,
        enter=shlex.join([*enter, root]),
        bwrap=shlex.join(bwrap),
        apptainer=shlex.join([*apptainer, root]),
        command=shlex.join(COMMAND),
    )


def _before_the_first_listing(ended: str, begun: str) -> Observation:
    """The state of a job about which Slurm was not asked yet, by its files."""
    report = read_report(ended)
    if report and report.exit_code == 0:
        return report
    if begun:
        return Observation("running")
    return Observation("queued", why="submitted to Slurm")


def _chunks(first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    while first:
        yield first
        first = stream.read(CHUNK)


def _below_farm(target: str) -> str:
    """The name of a job's folder below /farm."""
    path = PurePosixPath(target)
    # One level: a job could put a link in place of a folder between, which is followed outside of
    # it.
    if path.parent != PurePosixPath("/farm") or not re.fullmatch(r"[\w-][\w.-]*", path.name):
        raise InfrastructureError(f"a job's folder {target!r} is not directly below /farm")
    return path.name


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name).lstrip(".-") or "none"
