"""The `swarm` engine: one service a job, on the nodes of a Docker Swarm.

A service is `replicated`, one replica, restart `none`: job mode of Engine 20.10 loses nodes
silently, cannot be cancelled and runs failed jobs again when the manager restarts. The job's log,
report and output come back through the `Exchange`, written by `farm.run.standalone.agent` inside
the container with signed URLs.
"""

import contextlib
import gzip
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import boto3
import certifi
import docker
import docker.errors
import requests
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from docker.types import ConfigReference, Resources, RestartPolicy, ServiceMode

from farm.base import outputs
from farm.base.errors import InfrastructureError, NoRunnerError, UsageError
from farm.base.zipapps import pack
from farm.engines import transfer
from farm.engines.base import FINAL, Capacity, Cause, Job, Observation, Traits, attempt_name
from farm.engines.docker import CAP_DROP, LOG_DRIVER, LOG_OPTIONS, PIDS, guard
from farm.engines.transfer import too_large
from farm.index.s3 import S3Store
from farm.index.store_urls import open_store
from farm.platforms.facts import DEFAULT

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


MAX_SIGNED_S = 7 * 24 * 3600
"""The longest that a SigV4 URL lives: Amazon S3, "Sharing objects with presigned URLs". Temporary
credentials that signed it end it earlier.
"""

MAX_SMALL = 8 << 20  # bytes: a piece of a log has 4 MiB


class OversizeError(Exception):
    """An object that its writer made larger than it may be."""


class Exchange:
    """Objects in transit, in a bucket `s3://bucket/prefix?endpoint_url=…` of their own; UsageError:
    it is none.
    """

    def __init__(self, url: str) -> None:
        store = open_store(url)
        if not isinstance(store, S3Store):
            raise UsageError(
                f"the exchange {url!r} is not a bucket: jobs on other machines cannot write there",
                hint="set swarm.exchange in ci/farm.yaml to "
                "s3://bucket/prefix?endpoint_url=https://…",
            )
        self._store = store
        self.chunks = store.chunks  # of a large object, piece by piece
        # S3's own default for presigned URLs is an older scheme, which signs no header and lives in
        # few servers.
        self._signer: S3Client = boto3.Session().client(
            "s3",
            endpoint_url=store.client.meta.endpoint_url,
            region_name=store.client.meta.region_name,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )

    @property
    def encrypted(self) -> bool:
        """True if the job must check a certificate."""
        return self._store.url("").startswith("https://")

    def put_url(self, key: str, seconds: int) -> str:
        """A URL that stores one object, once; the request must carry `If-None-Match: *`."""
        return self._signed("put_object", key, seconds, IfNoneMatch="*")

    def get_url(self, key: str, seconds: int) -> str:
        """A URL that reads one object."""
        return self._signed("get_object", key, seconds)

    def _signed(self, verb: str, key: str, seconds: int, **more: str) -> str:
        try:
            return self._signer.generate_presigned_url(
                verb,
                Params={"Bucket": self._store.bucket, "Key": self._key(key), **more},
                ExpiresIn=seconds,
            )
        except (BotoCoreError, ClientError) as error:
            raise UsageError(
                f"a URL for {key} cannot be signed: {error}", hint="are there credentials?"
            ) from error

    def _key(self, key: str) -> str:
        return self._store.prefix + key

    def put(self, key: str, data: bytes | Path) -> None:
        """Stores an object for the job to read; the same bytes again are fine."""
        self._store.create(key, data, content_type="application/octet-stream")

    def get(self, key: str, limit: int = MAX_SMALL) -> bytes | None:
        """A small object whole, None where there is none; OversizeError: a job is not trusted to be
        brief.
        """
        size = self.size(key)
        if size is None:
            return None
        if size > limit:
            raise OversizeError(f"{size} bytes, at most {limit}")
        # By `chunks`: the store's `get` has a limit of its own.
        return b"".join(self._store.chunks(key))

    def size(self, key: str) -> int | None:
        """Bytes of an object, or None where there is none."""
        head = self._store.stat(key)
        if head is None:
            return None
        return head.size

    def drop(self, prefix: str) -> None:
        """Removes every object below `prefix`; a failure is left to the bucket's own expiry
        rule.
        """
        client = self._store.client
        with contextlib.suppress(InfrastructureError, BotoCoreError, ClientError):
            for key in list(self._store.list(prefix)):
                client.delete_object(Bucket=self._store.bucket, Key=self._key(key))


WAITING = ("new", "allocated", "pending")
STARTING = ("assigned", "accepted", "preparing", "ready", "starting")
ENDED = ("failed", "rejected", "orphaned", "shutdown", "remove")
MAX_ERR = 2000


@dataclass(frozen=True)
class Node:
    """A machine of the swarm. `memory` in bytes; `ready`: it is up and takes new tasks."""

    name: str
    cpus: float
    memory: int
    up: bool
    ready: bool

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        about = data["Description"]
        resources = data["Description"].get("Resources", {})
        up = data["Status"]["State"] == "ready"
        return cls(
            name=about.get("Hostname", data["ID"]),
            cpus=resources.get("NanoCPUs", 0) / 1e9,
            memory=resources.get("MemoryBytes", 0),
            up=up,
            ready=up and data["Spec"]["Availability"] == "active",
        )


@dataclass(frozen=True)
class Task:
    """The one task of a service."""

    state: str
    desired: str
    node: str | None
    error: str
    exit_code: int | None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        status = data["Status"]
        exit_code = None
        if status["State"] in ("complete", "failed"):
            exit_code = status.get("ContainerStatus", {}).get("ExitCode")
        if exit_code is not None:
            exit_code = int(exit_code)
        return cls(
            state=status["State"],
            desired=data["DesiredState"],
            node=data.get("NodeID"),
            error=str(status.get("Err", ""))[:MAX_ERR],
            exit_code=exit_code,
        )


def observation(task: Task | None, nodes: Mapping[str, Node], *, cancelled: bool) -> Observation:
    """The state of an attempt, from its task (None: there is none yet) and the machines by their
    ids.
    """
    if task is None:
        return Observation("queued", why="the manager of the swarm has made no task yet")
    if task.state in WAITING:
        return Observation(
            "queued", why=task.error or "the manager of the swarm is looking for a node"
        )
    if task.state == "complete":
        return Observation("done", exit_code=0)
    node = nodes.get(task.node or "")
    where = task.node or "no node"
    if node:
        where = node.name
    if task.state in ENDED:
        return _end_of(task, where, cancelled=cancelled)
    if node is None or not node.up:
        # It will not tell any more; should it end there after all, no one listens.
        return Observation("lost", why=f"node {where} is down")
    if task.state in STARTING:
        return Observation("starting", why=f"{where}: {task.state} {task.error}".rstrip())
    if task.desired == "shutdown":
        return Observation("running", why=f"{where}: it is being stopped")
    return Observation("running")


def _end_of(task: Task, where: str, *, cancelled: bool) -> Observation:
    """The end of a task that did not succeed; `where`: its node."""
    if task.state in ("rejected", "orphaned"):
        return Observation("lost", why=f"{where}: {task.state}: {task.error or 'the node is gone'}")
    if cancelled:
        return Observation("cancelled", why="stopped on request")
    if task.state != "failed":
        return Observation("lost", why=f"{where}: stopped from outside {task.error}".rstrip())
    if task.exit_code is None:  # it never ran its command
        return Observation("lost", why=f"{where}: {task.error}")
    return Observation("done", why=task.error, exit_code=task.exit_code)


MAX_PIECES = 1000
WAIT_S = 12 * 3600
"""How much longer than its time limit a job's URLs live: image pulls and a wait in the queue."""
GRACE_S = 10
CANCEL_S = 60
MAX_REPORT = 64 << 10
MAX_CODE = 0xFFFFFFFF  # Windows has 32 bits
AGENT = "farm.run.standalone.agent:main"
_AGENT = "/farm-agent.pyz"


class SwarmEngine:
    """See `farm.engines.base.Engine`; NoRunnerError: `client` is no manager. `cpus`, `memory`:
    limits of one job.
    """

    name = "swarm"
    poll_s = 1.0
    traits = Traits(queues=True)

    def __init__(
        self,
        client: docker.DockerClient,
        exchange: Exchange,
        *,
        cpus: float | None = None,
        memory: int | None = None,
    ) -> None:
        self.client = client
        self.exchange = exchange
        self._api: Any = client.api  # half of it has no types
        self._cpus = cpus
        self._memory = memory
        if not client.info().get("Swarm", {}).get("ControlAvailable"):
            raise NoRunnerError(
                "the Docker engine is not a manager of a swarm",
                hint="`docker swarm init` there, or name a manager as swarm.url in ci/farm.yaml",
            )

    @guard
    def _nodes(self) -> dict[str, Node]:
        return {node["ID"]: Node.of(node) for node in self._api.nodes()}

    def _ready(self) -> list[Node]:
        if not (ready := [node for node in self._nodes().values() if node.ready]):
            raise NoRunnerError(
                "no node of the swarm is ready", hint="docker node ls, on a manager"
            )
        return ready

    def slots(self) -> int:
        """How many jobs fit on the nodes at a time, each with the limits of one job."""
        ready = self._ready()
        limits = self._limits(ready)
        return sum(
            min(int(node.cpus // limits.cpus), int(node.memory // limits.memory)) for node in ready
        )

    def capacity(self) -> Capacity:
        return self._limits(self._ready())

    def _limits(self, ready: list[Node]) -> Capacity:
        """The limits of one job, which fits on the largest of these nodes."""
        cpus = max(node.cpus for node in ready)
        memory = max(node.memory for node in ready)
        return Capacity(
            min(self._cpus or cpus, cpus), min(self._memory or memory, int(memory * 0.9))
        )

    # --- start

    @guard
    def submit(self, job: Job) -> str:
        if job.volumes:
            raise UsageError("the swarm keeps no volumes: the next attempt may be on another node")
        name = attempt_name(job)
        service_id = self._named(name)
        if service_id is not None:  # a controller that was killed had started it
            return service_id
        # Configs first: a service names them by their id.
        configs = self._configs(name, job)
        try:
            services: Any = self.client.services
            service = services.create(
                job.image,
                command=["python3", _AGENT],
                name=name,
                labels={"farm.job": job.name, "farm.exchange": name, **job.labels},
                container_labels=job.labels,
                mode=ServiceMode("replicated", replicas=1),
                restart_policy=RestartPolicy("none"),
                # The manager chooses among those that can run it and have room.
                constraints=[
                    f"node.platform.os == {job.platform}",
                    f"node.platform.arch == {job.machine}",
                ],
                resources=_resources(job),
                configs=configs,
                # no new privileges: the agent sees to it, a service cannot say it
                cap_drop=CAP_DROP,
                log_driver=LOG_DRIVER,
                log_driver_options=LOG_OPTIONS,
                init=True if job.platform == DEFAULT else None,
                stop_grace_period=GRACE_S * 10**9,
            )
        except docker.errors.APIError as error:
            service_id = self._named(name)
            if service_id is not None:  # two controllers, or an answer that was lost
                return service_id
            self._drop_configs(name)
            raise InfrastructureError(f"the swarm refuses {name}: {error.explanation}") from error
        return str(service.id)

    def _named(self, name: str) -> str | None:
        services = self.client.services.list(
            filters={"name": name}
        )  # the filter matches beginnings
        return next((str(service.id) for service in services if service.name == name), None)

    def _configs(self, name: str, job: Job) -> list[ConfigReference]:
        files = {_AGENT: pack(AGENT), "/farm-manifest": self._manifest(name, job)}
        if self.exchange.encrypted:
            files["/farm-ca"] = Path(
                certifi.where()
            ).read_bytes()  # a slim image knows no authorities
        references = []
        for target, data in files.items():
            label = f"{name}-{target.strip('/').partition('.')[0].removeprefix('farm-')}"
            with contextlib.suppress(
                docker.errors.APIError
            ):  # a killed controller left one, perhaps half a set
                self.client.configs.get(label).remove()
            config = self.client.configs.create(
                name=label, data=data, labels={"farm.exchange": name}
            )
            references.append(ConfigReference(str(config.id), label, filename=target, mode=0o444))
        return references

    def _manifest(self, name: str, job: Job) -> bytes:
        # Every URL is signed before the job starts, which holds no credentials: it can send so many
        # pieces of log.
        lifetime = min(MAX_SIGNED_S, job.timeout_s + WAIT_S)
        pieces = max(50, min(MAX_PIECES, job.timeout_s // 4))
        manifest: dict[str, Any] = {
            "command": list(job.command),
            "environment": job.environment,
            "output": job.output,
            "timeout_s": job.timeout_s,
            "interval_s": max(1.0, job.timeout_s / (0.8 * pieces)),
            "logs": [
                self.exchange.put_url(f"{name}/log/{number:04d}", lifetime)
                for number in range(pieces)
            ],
            "output_url": self.exchange.put_url(f"{name}/output.tar", lifetime),
            "report_url": self.exchange.put_url(f"{name}/report.json", lifetime),
            "inputs_url": self.exchange.get_url(f"{name}/inputs.tar.gz", lifetime),
        }
        with tempfile.NamedTemporaryFile() as inputs:
            # mtime 0: the same inputs are the same bytes, whoever packs them
            with (
                outputs.writing(Path(inputs.name), outputs.ROOM),
                gzip.GzipFile("", "wb", compresslevel=6, fileobj=inputs, mtime=0) as plain,
            ):
                transfer.pack(job.inputs, plain)
            inputs.flush()
            self.exchange.put(f"{name}/inputs.tar.gz", Path(inputs.name))
        return gzip.compress(json.dumps(manifest).encode(), mtime=0)

    # --- watch

    def _service(self, handle: str) -> Any:
        try:
            return self._api.inspect_service(handle)
        except docker.errors.NotFound:
            return None

    def _task(self, handle: str) -> Task | None:
        try:
            tasks = self._api.tasks(filters={"service": handle})
        except docker.errors.NotFound:  # released since it was looked up, by another controller
            return None
        if tasks:
            return Task.of(max(tasks, key=lambda task: task["CreatedAt"]))
        return None

    @guard
    def observe(self, handle: str) -> Observation:
        service = self._service(handle)
        if service is None:
            return Observation("lost", why="the swarm does not know the service")
        labels = service["Spec"]["Labels"]
        # No replicas: `cancel` asked for the end. The swarm keeps that, whatever becomes of this
        # controller.
        cancelled = service["Spec"]["Mode"].get("Replicated", {}).get("Replicas") == 0
        task = self._task(handle)
        if cancelled and task is None:
            return Observation("cancelled", why="stopped on request")
        observed = observation(task, self._nodes(), cancelled=cancelled)
        if observed.state == "done":
            return self._reported(labels["farm.exchange"], observed)
        return observed

    def _reported(self, name: str, observed: Observation) -> Observation:
        """The agent's account of an end that the swarm reported; without it the job counts as
        lost.
        """
        try:
            data = self.exchange.get(f"{name}/report.json", MAX_REPORT)
            if data is None:
                text = (
                    f"ended without a report, exit code {observed.exit_code}: killed from "
                    "outside, or no store"
                )
                return Observation("lost", why=text)
            report = json.loads(data)
            code = int(report["exit_code"])
            late = bool(report["timed_out"])
            memory = bool(report["out_of_memory"])
            # The node, not the build, is at fault: lost, so that it is tried elsewhere.
            if report["stopped"]:
                return Observation(
                    "lost", why="stopped from outside: its node went down, or it was stopped there"
                )
            if not 0 <= code <= MAX_CODE:
                return Observation(
                    "lost", why="its report is malformed: an exit code that there is not"
                )
        except (
            ValueError,
            TypeError,
            KeyError,
            OverflowError,
            RecursionError,
            OversizeError,
        ) as error:
            return Observation("lost", why=f"its report is malformed: {type(error).__name__}")
        if memory:
            cause = Cause.OUT_OF_MEMORY
        elif late:
            cause = Cause.TIME_LIMIT
        else:
            cause = None
        return Observation("done", exit_code=code, cause=cause)

    def logs(self, handle: str, since: int = 0) -> Iterator[bytes]:
        service = guard(self._service)(handle)
        if service is None:
            return
        name = service["Spec"]["Labels"]["farm.exchange"]
        number = 0
        skip = since
        pause = 0.2
        while True:
            # Asked before the pieces are read: those that were sent up to the end are then read
            # below.
            ended = self.observe(handle).state in FINAL
            while (piece := self._piece(f"{name}/log/{number:04d}")) is not None:
                number = number + 1
                pause = 0.2
                if fresh := piece[skip:]:
                    yield fresh
                skip = max(0, skip - len(piece))
            if ended:
                return
            time.sleep(pause)
            pause = min(pause * 1.5, 3.0)

    def _piece(self, key: str) -> bytes | None:
        try:
            return self.exchange.get(key)
        except OversizeError as error:
            return f"\n[a piece of the log is left out: {error}]\n".encode()

    # --- end

    @guard
    def cancel(self, handle: str) -> None:
        if self.observe(handle).state in FINAL:
            return
        services: Any = self.client.services
        # Scaled to none, not removed: its labels and its task are still asked for, and say that the
        # end was wanted. `farm cancel` and the run's controller do so at the same time, and the
        # controller releases it then.
        try:
            services.get(handle).scale(0)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if "out of sequence" not in str(error):  # else the other was first, and its word counts
                raise
        deadline = time.monotonic() + CANCEL_S
        while time.monotonic() < deadline:
            if self.observe(handle).state in FINAL:
                return
            time.sleep(0.3)
        raise InfrastructureError(
            f"service {handle[:12]} does not stop within {CANCEL_S} s",
            hint="is its node up? `docker service ps` on a manager shows it; run `farm cancel` "
            "again",
        )

    @guard
    def collect(self, handle: str, dest: Path, max_bytes: int) -> list[Path]:
        service = self._service(handle)
        if service is None:
            raise InfrastructureError(f"service {handle[:12]} is gone, and its output with it")
        key = f"{service['Spec']['Labels']['farm.exchange']}/output.tar"
        size = self.exchange.size(key)
        if size is None:
            raise InfrastructureError(f"service {handle[:12]} left no output")
        # The headers of the tar are no output; `unpack` counts again what really comes.
        if size > max_bytes + (1 << 20):
            raise too_large(key, size, max_bytes)
        return transfer.unpack(self.exchange.chunks(key), dest, max_bytes)

    @guard
    def release(self, handle: str) -> None:
        service = self._service(handle)
        if service is None:
            return
        name = service["Spec"]["Labels"]["farm.exchange"]
        with contextlib.suppress(docker.errors.NotFound):
            self._api.remove_service(handle)
        self._drop_configs(name)
        self.exchange.drop(f"{name}/")

    def discard(self, volume: str) -> None:
        """Nothing to do: it keeps none."""

    def _drop_configs(self, name: str) -> None:
        for _ in range(20):  # a config is in use until the service's last task is gone
            configs = self.client.configs.list(filters={"label": f"farm.exchange={name}"})
            if not configs:
                return
            for config in configs:
                # Or the manager gave no answer, as a busy one did: the next round sees whether it
                # is gone.
                with contextlib.suppress(
                    docker.errors.APIError, requests.exceptions.ConnectionError
                ):
                    config.remove()
            time.sleep(0.1)


def _resources(job: Job) -> Resources:
    resources = Resources(
        cpu_limit=int(job.limits.cpus * 1e9),
        mem_limit=job.limits.memory,
        cpu_reservation=int(job.limits.cpus * 1e9),
        mem_reservation=job.limits.memory,
    )
    resources["Limits"]["Pids"] = PIDS  # Engine API 1.41; docker-py has no argument for it
    return resources
