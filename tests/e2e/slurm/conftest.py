"""A Slurm cluster of two nodes on one machine, from Debian's packages, with munge: on loopback, in
one folder.

The daemons are root's, as on a cluster; jobs and the farm's commands on the login node are an
ordinary user's. The login node is this machine by OpenSSH: a server on loopback, whose forced
command becomes that user.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from farm.engines.slurm import SlurmEngine
from farm.plan.render import render
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.settings import Slurm, load_settings
from farm.plan.variant import Variant
from farm.run.toolchain import unpacked_toolchain
from farm.run.workspace import Outcomes, Watcher, Workspace
from tests.e2e.conftest import ROOT, make_project, need, pack_fast, wait
from tests.servers.ssh import serve_ssh

FOLDER = Path("/var/tmp/farm-e2e-slurm")
"""One place, so that what a killed run left is found."""
NOBODY = 65534
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sshd", "bwrap", "setpriv")
CONFIGURATION = """ClusterName=farm
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n
SlurmctldPort=16817
SlurmdTimeout=10
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldParameters=enable_configless
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=d1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17001 CPUs=1 RealMemory=4000 Features=k40
NodeName=d2 NodeHostname={host} NodeAddr=127.0.0.1 Port=17002 CPUs=1 RealMemory=4000 Features=k80
NodeName=d3 NodeHostname={host} NodeAddr=127.0.0.1 Port=17003 CPUs=16 RealMemory=16000
PartitionName=gpu Nodes=d1,d2 Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=d1,d2 MaxTime={limit} State=UP
PartitionName=many Nodes=d3 MaxTime=INFINITE State=UP
"""
LIMIT_MINUTES = 10
"""The time limit of the partition `short`."""
SECOND = 34
"""Another user that every Debian has: backup."""
LOGIN = f"""cd / && exec env -i PATH=/usr/bin:/bin SLURM_CONF={FOLDER}/slurm.conf HOME={FOLDER}/shared \\
    setpriv --reuid=@UID@ --regid=@UID@ --clear-groups sh -c "$SSH_ORIGINAL_COMMAND"
"""


@dataclass(frozen=True)
class Cluster:
    """What happens to its machines, and what an administrator does."""

    shared: Path = FOLDER / "shared"

    def command(self, *words: str) -> str:
        """One of Slurm's commands, as root."""
        environ = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "SLURM_CONF": str(FOLDER / "slurm.conf"),
        }
        done = subprocess.run(
            words, env=environ, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def start_node(self, name: str) -> None:
        self.command("slurmd", "-N", name, "-f", str(FOLDER / "slurm.conf"))
        wait(
            f"node {name}",
            lambda: "idle" in self.command("sinfo", "-h", "-n", name, "-o", "%T").split(),
        )

    def kill_node(self, name: str) -> None:
        """As if its power were cut: the daemon, and all that it started."""
        pid = int((FOLDER / f"{name}.pid").read_text())
        steps = [f"slurmstepd: [{job}." for job in self.jobs_on(name)]
        for each in [
            *_below([found for found, command in _ours() if command.startswith(tuple(steps))]),
            pid,
        ]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    def id_of(self, handle: str) -> str:
        """Slurm's number of a job, such as `12_3`; empty where its queue has it no more."""
        name, index = (self.shared / "jobs" / handle / "task").read_text().split()
        rows = self.command("squeue", "-h", "-r", f"--name={name}", "-o", "%K %i").splitlines()
        return next((row.split()[1] for row in rows if row.split()[0] == index), "")

    def partition(self, state: str) -> None:
        """`down`: it takes jobs and starts none."""
        self.command("scontrol", "update", "partitionname=gpu", f"state={state}")

    def jobs_on(self, name: str) -> list[str]:
        return self.command("squeue", "-h", "-w", name, "-o", "%i").split()


def _ours() -> list[tuple[int, str]]:
    """The processes of this cluster with their commands: by the path of its configuration, which
    all of them have.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            if f"{FOLDER}/".encode() in command + (entry / "environ").read_bytes():
                found.append((int(entry.name), command.decode(errors="replace")))
    return [(pid, command) for pid, command in found if pid != os.getpid()]


def _below(pids: list[int]) -> list[int]:
    """These processes and their descendants."""
    found = list(pids)
    for pid in found:  # grows while it is read
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _stop() -> None:
    """Ends a cluster with all its jobs, also one that a killed run left."""
    for _ in range(50):
        alive = [pid for pid, _ in _ours()]
        for pid in _below(alive):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not alive:
            break
        time.sleep(0.1)
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        need("root", "slurmd runs jobs as other users")
    if missing := [
        name for name in PROGRAMS if not shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    ]:
        need(
            ", ".join(missing),
            "Debian's packages slurmctld, slurmd, slurm-client, munge, bubblewrap, openssh-server",
        )
    _stop()
    for name in ("", "state", "log", "munge", "d1", "d2", "d3", "shared"):
        (FOLDER / name).mkdir(mode=0o755)
    os.chown(FOLDER / "shared", NOBODY, NOBODY)
    host = socket.gethostname().partition(".")[0]
    (FOLDER / "slurm.conf").write_text(
        CONFIGURATION.format(host=host, folder=FOLDER, limit=LIMIT_MINUTES)
    )
    (FOLDER / "munge/key").write_bytes(secrets.token_bytes(1024))
    (FOLDER / "munge/key").chmod(0o400)
    made = Cluster()
    try:
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        made.command(
            "munged", *(f"--{option}={FOLDER}/munge/{name}" for option, name in files.items())
        )
        made.command("slurmctld", "-f", str(FOLDER / "slurm.conf"))
        for name in ("d1", "d2"):
            made.start_node(name)
        programs = serve_ssh(FOLDER / "ssh", 17022, login_of(NOBODY))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
            yield made
    finally:
        _stop()


@pytest.fixture(scope="session")
def tree(
    cluster: Cluster, client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The canary's toolchain in the shared folder, as the first `farm submit` puts it there;
    returns its name.
    """
    folder = tmp_path_factory.mktemp("tree")
    project = make_project(folder / "project")
    pack_fast(project)
    plan = resolve(project, BuildRequest(Variant.parse("cpu-avx-py311"), "canary"))
    rendered = render(project, plan)
    rendered.write(folder / "context")
    workspace = Workspace(project, load_settings(project), Watcher())
    shared = engine_at(str(cluster.shared))
    return unpacked_toolchain(workspace, shared, plan, rendered, folder, Outcomes())


def login_of(uid: int) -> str:
    """The script by which the login node lets a user in."""
    return LOGIN.replace("@UID@", str(uid))


def engine_at(folder: str, **more: object) -> SlurmEngine:
    return SlurmEngine(Slurm(folder=folder, ssh="login", cpus=0.5, memory_gb=0.268435456, **more))


@pytest.fixture
def slurm_engine(cluster: Cluster) -> SlurmEngine:
    return engine_at(str(cluster.shared))


__all__ = ["ROOT"]
