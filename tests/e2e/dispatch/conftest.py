"""A Docker Swarm of three nodes on one machine: three more daemons, each in a network namespace of
its own.

Nothing of the Docker engine that was here before is touched: the manager too is one of the three.
Needs root.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import boto3
import docker
import pytest
import requests

from farm import catalog
from farm.engines.base_images import base_image
from farm.engines.images import Image, Toolchain, ensure_image
from farm.engines.swarm import Exchange, SwarmEngine
from farm.plan.render import render
from farm.run.toolchain import push
from tests.e2e.conftest import wait
from tests.e2e.dispatch import leftovers
from tests.e2e.dispatch.leftovers import STORE_PORT
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
HOST = "10.99.0.1"
MANAGER, TLS = 1, 2
PUSH_PORT, PULL_PORT = 5062, 5063
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "secret-for-tests"}
REGISTRY = """version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "{address}"}}
log: {{level: warn, accesslog: {{disabled: true}}}}
"""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=10).status_code < 500
    except requests.RequestException:
        return False


def require(what: str, present: object) -> None:
    if not present:
        message = f"the swarm tests need {what}"
        pytest.fail(message) if os.environ.get("FARM_REQUIRE") == "all" else pytest.skip(message)


@dataclass
class Swarm:
    """Three daemons; `folder` holds their state. Methods do to them what happens to machines."""

    folder: Path
    clients: dict[int, docker.DockerClient] = field(default_factory=dict)
    others: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def url(self, number: int) -> str:
        return f"unix://{self.folder}/n{number}/docker.sock"

    @property
    def manager(self) -> docker.DockerClient:
        return self.clients[MANAGER]

    def address(self, number: int) -> str:
        return f"10.99.0.1{number}"

    @property
    def certificates(self) -> Path:
        """As DOCKER_CERT_PATH: of a server and of its clients."""
        return self.folder / "certificates"

    def make_certificates(self) -> None:
        self.certificates.mkdir()
        new = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]
        authority = {"-keyout": "ca-key.pem", "-out": "ca.pem"}
        own = {"-CA": "ca.pem", "-CAkey": "ca-key.pem", "-keyout": "key.pem", "-out": "cert.pem"}
        use = [
            "-addext",
            f"subjectAltName=IP:{self.address(TLS)}",
            "-addext",
            "extendedKeyUsage=serverAuth,clientAuth",
        ]
        for name, files, more in (("authority", authority, []), ("farm", own, use)):
            paths = [
                word
                for option, file in files.items()
                for word in (option, str(self.certificates / file))
            ]
            run(*new, "-subj", f"/CN={name}", *more, *paths)

    def start_daemon(self, number: int) -> None:
        folder = self.folder / f"n{number}"
        folder.mkdir(exist_ok=True)
        (folder / "dockerd.pid").unlink(missing_ok=True)
        command = ["nsenter", f"--net=/run/netns/farm{number}", "dockerd"]
        command += [
            "--data-root",
            f"{folder}/data",
            "--exec-root",
            f"{folder}/run",
            "-H",
            self.url(number),
        ]
        command += ["--pidfile", f"{folder}/dockerd.pid", "--bip", f"10.97.{number}.1/24"]
        command += ["--storage-driver", "overlay2", "--insecure-registry", f"{HOST}:{PULL_PORT}"]
        if number == TLS:
            command += ["-H", f"tcp://{self.address(number)}:2376", "--tlsverify"]
            names = {"tlscacert": "ca.pem", "tlscert": "cert.pem", "tlskey": "key.pem"}
            command += [f"--{option}={self.certificates / name}" for option, name in names.items()]
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.others[f"daemon {number}"] = process

        def ready() -> bool:
            assert process.poll() is None, f"daemon {number} has ended; its log: {folder}/log"
            client = docker.DockerClient(base_url=self.url(number), timeout=60, version="1.41")
            try:
                client.ping()
            except (docker.errors.DockerException, requests.RequestException):
                client.close()
                return False
            self.clients[number] = client
            return True

        wait(f"daemon {number} (its log: {folder}/log)", ready)

    def kill_daemon(self, number: int) -> None:
        process = self.others.pop(f"daemon {number}")
        containerd = Path(
            "/proc", (self.folder / f"n{number}/run/containerd/containerd.pid").read_text().strip()
        )
        process.send_signal(signal.SIGKILL)  # nsenter has become dockerd: exec keeps the pid
        process.wait()
        # The kernel ends it with its dockerd, a moment later: the next dockerd would take it for
        # one that it can use.
        wait(f"the end of daemon {number}'s containerd", lambda: not containerd.exists())

    def cable(self, number: int, state: str) -> None:
        run("ip", "link", "set", f"farmv{number}", state)

    def node(self, number: int) -> str:
        """The node's id."""
        found = (
            n
            for n in self.manager.nodes.list()
            if n.attrs["Status"]["Addr"] == self.address(number)
        )
        return str(next(found).id)

    def state(self, number: int) -> str:
        found = (
            n
            for n in self.manager.nodes.list()
            if n.attrs["Status"]["Addr"] == self.address(number)
        )
        return str(next(found).attrs["Status"]["State"])

    # --- store and registry

    def start_store(self) -> None:
        # One request at a time: moto's own threads lose a conditional write in thousands, and the
        # farm would find it.
        command = [
            sys.executable,
            "-m",
            "tests.servers.moto",
            str(STORE_PORT),
            HOST,
            f"{self.folder}/moto",
        ]
        with (self.folder / "moto.log").open("ab") as log:
            self.others["store"] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        wait("the store", lambda: answers(f"http://{HOST}:{STORE_PORT}/moto-api/"))

    def store(self, *, away: bool) -> None:
        """Makes the store refuse every connection, its content kept, or answer again."""
        run("iptables", "-D" if not away else "-I", *leftovers.CLOSED)

    def start_registry(self) -> None:
        for port, host in ((PUSH_PORT, "127.0.0.1"), (PULL_PORT, HOST)):
            config = self.folder / f"registry-{port}.yml"
            config.write_text(
                REGISTRY.format(folder=self.folder / "registry", address=f"{host}:{port}")
            )
            with (self.folder / "registry.log").open("ab") as log:
                command = ["docker-registry", "serve", str(config)]
                self.others[f"registry {port}"] = subprocess.Popen(command, stdout=log, stderr=log)
            wait("the registry", lambda: answers(f"http://{host}:{port}/v2/"))  # noqa: B023

    def stop(self, name: str) -> None:
        process = self.others.pop(name)
        process.kill()
        process.wait()

    def s3(self, bucket: str) -> str:
        return f"s3://{bucket}?endpoint_url=http://{HOST}:{STORE_PORT}&region=us-east-1"


NAMESPACES = Path("/run/netns")


def _network() -> None:
    run("ip", "link", "add", leftovers.BRIDGE_NAME, "type", "bridge")
    run("ip", "addr", "add", f"{HOST}/24", "dev", leftovers.BRIDGE_NAME)
    run("ip", "link", "set", leftovers.BRIDGE_NAME, "up")
    run("iptables", "-I", *leftovers.BRIDGE)
    for number in leftovers.NUMBERS:
        name = f"farm{number}"
        run("ip", "netns", "add", name)
        run(
            "ip",
            "link",
            "add",
            f"farmv{number}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            name,
        )
        run("ip", "link", "set", f"farmv{number}", "master", leftovers.BRIDGE_NAME, "up")
        run("ip", "-n", name, "addr", "add", f"10.99.0.1{number}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")


def _join(swarm: Swarm) -> None:
    docker_cli = ["docker", "-H"]
    own = swarm.address(MANAGER)
    run(
        *docker_cli,
        swarm.url(MANAGER),
        "swarm",
        "init",
        "--advertise-addr",
        own,
        "--listen-addr",
        f"{own}:2377",
    )
    token = run(*docker_cli, swarm.url(MANAGER), "swarm", "join-token", "-q", "worker").strip()
    for number in (2, 3):
        here = [
            "--advertise-addr",
            swarm.address(number),
            "--listen-addr",
            f"{swarm.address(number)}:2377",
        ]
        run(*docker_cli, swarm.url(number), "swarm", "join", "--token", token, *here, f"{own}:2377")


@pytest.fixture(scope="session")
def alone() -> Iterator[None]:
    """The addresses and names of the swarm are there once on a machine: a second run of these tests
    waits.
    """
    with leftovers.alone(waits=True):
        yield


@pytest.fixture(scope="session")
def swarm(alone: None, client: docker.DockerClient) -> Iterator[Swarm]:
    require("root, for network namespaces", os.geteuid() == 0)
    require(
        "dockerd, ip, nsenter and iptables",
        all(map(shutil.which, ("dockerd", "ip", "nsenter", "iptables"))),
    )
    if not shutil.which("docker-registry") and shutil.which("apt-get"):
        subprocess.run(
            ["apt-get", "install", "-y", "-q", "docker-registry"], capture_output=True, check=False
        )
    require("docker-registry, Debian's package of that name", shutil.which("docker-registry"))
    made = Swarm(leftovers.FOLDER)  # one place, so that a killed run's is found
    patch = pytest.MonkeyPatch()
    for name, value in KEYS.items():
        patch.setenv(name, value)
    leftovers.clean()  # what a killed run left
    first = not NAMESPACES.exists()
    made.folder.mkdir()
    try:
        _network()
        made.make_certificates()
        made.start_store()
        made.start_registry()
        for number in leftovers.NUMBERS:
            made.start_daemon(number)
        _join(made)
        s3 = boto3.client("s3", endpoint_url=f"http://{HOST}:{STORE_PORT}", region_name="us-east-1")
        for bucket in ("exchange", "wheels"):
            s3.create_bucket(Bucket=bucket)
        s3.close()
        yield made
    finally:
        for opened in made.clients.values():
            opened.close()
        for name in list(made.others):
            made.stop(name)
        leftovers.clean()
        if first and NAMESPACES.is_dir() and not any(NAMESPACES.iterdir()):
            # The first `ip netns add` of a machine makes the folder, a mount of itself; no command
            # of ip removes it.
            subprocess.run(["umount", NAMESPACES], capture_output=True, check=False)
            NAMESPACES.rmdir()
        patch.undo()


@pytest.fixture(scope="session")
def toolchain(client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The toolchain image of a canary without CUDA."""
    plan = plan_of("cpu-avx-py311", "canary")
    rendered = render(ROOT, plan)
    release = catalog.debian_releases()["debian-bookworm"]
    base = base_image(
        client, "debian-bookworm", release, pull_timeout_s=20, mirror=None, line=print
    )
    wanted = Toolchain(
        repository="farm/toolchain",
        context=rendered.image,
        digest=rendered.image_digest,
        base=base,
        labels={"farm.base": "debian-bookworm", "farm.channel": plan.channel},
    )
    return ensure_image(
        client, wanted, log=tmp_path_factory.mktemp("toolchain") / "image.log", line=print
    )


@pytest.fixture(scope="session")
def pulled(swarm: Swarm, client: docker.DockerClient, toolchain: Image) -> str:
    """The toolchain image as the nodes call it, in the registry."""
    push(client, toolchain.tag, f"127.0.0.1:{PUSH_PORT}")
    return f"{HOST}:{PULL_PORT}/{toolchain.tag}"


@pytest.fixture
def swarm_engine(swarm: Swarm) -> SwarmEngine:
    return SwarmEngine(swarm.manager, Exchange(swarm.s3("exchange")), cpus=0.5, memory=256 << 20)
