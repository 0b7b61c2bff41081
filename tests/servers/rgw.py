"""A real S3 server: Ceph's RADOS gateway from Debian's packages, with one monitor and one store in
memory.

Nothing is installed: the packages are downloaded and unpacked, and all processes run as whoever
calls. Ceph has no authentication among its own parts here; everything listens on the loopback.
"""

import contextlib
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers.process import (
    TOOLS,
    MissingError,
    answers,
    apt_get,
    free_port,
    running,
    wait_until,
)
from tests.servers.tls import Authority

PACKAGES = ["ceph-mon", "ceph-osd", "radosgw"]
STATUS = Path("/var/lib/dpkg/status")
_OF_CEPH = re.compile(r"^(Source|Package): (ceph|radosgw)\b", re.MULTILINE)
TRIES = 5
"""A store that meets a monitor which is not ready ends itself ("wrong fsid"); it is started again.
"""


@dataclass(frozen=True)
class Gateway:
    """Where it answers, and the one user it knows."""

    http: str
    https: str
    ca: Path
    environ: Mapping[str, str]
    """For Ceph's own programs, `radosgw-admin` for one, which lie in `programs`."""
    programs: Path
    access_key: str = "farm-tests"
    secret_key: str = "secret-of-farm-tests"


def status_without_ceph(status: str) -> str:
    """What dpkg has installed, without Ceph's own packages: apt fetches them too where the machine
    has them, which it else leaves out.
    """
    packages = status.strip().split("\n\n")
    others = [text for text in packages if not _OF_CEPH.search(text)]
    return "\n\n".join(others) + "\n"


def unpacked(folder: Path = TOOLS / "ceph") -> Path:
    """The unpacked packages, downloaded with apt-get at the first call (70 MB, 280 MB unpacked);
    else MissingError.
    """
    root = folder / "root"
    if (folder / ".complete").exists():
        return root
    archive = folder / "archive"
    (archive / "partial").mkdir(parents=True, exist_ok=True)
    status = folder / "status"
    status.write_text(status_without_ceph(STATUS.read_text(encoding="utf-8")), encoding="utf-8")
    options = [
        "--download-only",
        "-o",
        f"Dir::State::status={status}",
        "-o",
        f"Dir::Cache::archives={archive}",
        "-o",
        "Debug::NoLocking=1",
    ]
    if wrong := apt_get(*options, *PACKAGES):
        raise MissingError(f"Ceph: {wrong}")
    for package in sorted(archive.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, root], check=True)
    shutil.rmtree(archive)
    (folder / ".complete").touch()
    return root


@contextlib.contextmanager
def gateway(folder: Path, *, gigabytes: int = 4) -> Iterator[Gateway]:
    """Starts it in an empty folder; about 25 s on two cores. All is lost at the end.

    The path of `folder` must be short (sockets hold 107 characters); `gigabytes` is what the store
    may hold in memory.
    """
    root = unpacked()
    libraries = root / "usr/lib/x86_64-linux-gnu"
    for name in ("run", "log", "mon", "osd", "rgw"):
        (folder / name).mkdir(parents=True)
    authority = Authority(folder)
    http, https, monitor, fsid = free_port(), free_port(), free_port(), str(uuid.uuid4())
    pem = authority.server("127.0.0.1")
    (folder / "ceph.conf").write_text(f"""\
[global]
fsid = {fsid}
mon_initial_members = a
mon_host = v1:127.0.0.1:{monitor}/0
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_crush_chooseleaf_type = 0
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
mon_max_pg_per_osd = 2000
mon_allow_pool_size_one = true
mon_data_avail_crit = 1
mon_cluster_log_file = {folder}/log/cluster.log
ms_bind_msgr2 = false
run_dir = {folder}/run
admin_socket = {folder}/run/$name.asok
log_file = {folder}/log/$name.log
plugin_dir = {libraries}/ceph
erasure_code_dir = {libraries}/ceph/erasure-code
osd_class_dir = {libraries}/rados-classes
osd_class_load_list = *
osd_class_default_list = *
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
[mon.a]
mon_data = {folder}/mon
mon_addr = v1:127.0.0.1:{monitor}
[osd.0]
osd_data = {folder}/osd
osd_objectstore = memstore
memstore_device_bytes = {gigabytes * 2**30}
[client.rgw]
rgw_data = {folder}/rgw
rgw_dns_name = 127.0.0.1
rgw_frontends = beast endpoint=127.0.0.1:{http} ssl_endpoint=127.0.0.1:{https} ssl_certificate={pem}
""")
    environ = {
        "LD_LIBRARY_PATH": f"{libraries}:{libraries}/ceph:{root}/lib/x86_64-linux-gnu",
        "CEPH_CONF": str(folder / "ceph.conf"),
        "PATH": f"{root}/usr/bin:{os.environ['PATH']}",
    }
    programs = root / "usr/bin"
    made = Gateway(
        f"http://127.0.0.1:{http}",
        f"https://127.0.0.1:{https}",
        authority.certificate,
        environ,
        programs,
    )

    def call(name: str, *arguments: object) -> str:
        command = [str(programs / name), *map(str, arguments)]
        done = subprocess.run(
            command,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            raise MissingError(f"Ceph: {name} ended with {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    with contextlib.ExitStack() as stack:

        def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(
                running([programs / name, *arguments], folder / "log" / f"{name}.out", env=environ)
            )

        call(
            "monmaptool",
            "--create",
            "--fsid",
            fsid,
            "--addv",
            "a",
            f"[v1:127.0.0.1:{monitor}]",
            folder / "monmap",
        )
        call("ceph-mon", "-i", "a", "--mkfs", "--monmap", folder / "monmap")
        mon = start("ceph-mon", "-i", "a", "-f")
        wait_until("Ceph's monitor", lambda: answers(monitor), processes=[mon])
        call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", uuid.uuid4())
        booted = folder / "log" / "osd.0.log"
        for last in [False] * (TRIES - 1) + [True]:
            osd = start("ceph-osd", "-i", "0", "-f")
            try:
                wait_until(
                    "Ceph's store",
                    lambda: "state: booting -> active" in booted.read_text(),
                    processes=[osd],
                )
                break
            except MissingError:
                if last:
                    raise
        rgw = start("radosgw", "-n", "client.rgw", "-f")
        wait_until(
            "Ceph's gateway",
            lambda: answers(http) and answers(https),
            processes=[mon, osd, rgw],
            seconds=180,
        )
        user = ["--uid=farm-tests", "--display-name=tests", f"--access-key={made.access_key}"]
        call("radosgw-admin", "user", "create", *user, f"--secret-key={made.secret_key}")
        yield made
