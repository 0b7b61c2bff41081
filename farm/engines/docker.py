"""The `docker` engine: one container a job, on the Docker engine here or at a URL (ssh, TLS,
npipe).

Containers get no network, no credentials, no bind mounts: inputs are copied in, outputs copied out.
`connect` finds an engine: that of a URL, DOCKER_HOST's, that of docker's context, or this
machine's.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

import docker
import docker.api.client
import docker.errors
import requests
import urllib3.exceptions
from docker.context import ContextAPI
from docker.context.config import get_current_context_name
from docker.models.containers import Container
from docker.types import DeviceRequest, LogConfig

from farm.base import outputs
from farm.base.errors import InfrastructureError, NoRunnerError
from farm.engines import transfer
from farm.engines.base import SOCKET_HINT, Capacity, Cause, Job, Observation, Traits
from farm.platforms.facts import DEFAULT, PLATFORMS, facts, named

PIDS = 4096
ISOLATION = "process"  # of Windows containers: by Hyper-V they have 1 GB and 2 CPUs unless told
DISK_BYTES = 150 * 10**9  # of a Windows container, where its runner's disk_gb does not say
CAP_DROP = ["ALL"]
SECURITY = ["no-new-privileges"]
LOG_DRIVER = "json-file"
LOG_OPTIONS = {"max-size": "64m", "max-file": "8"}
"""Limits of the output that dockerd keeps; the farm's own copy ends at
`farm.run.build_job.MAX_LOG`.
"""


API_TIMEOUT_S = 600
FIRST_S = (
    30  # a first question is answered in milliseconds; later ones take as long as what they ask for
)
if sys.platform == "win32":
    DEFAULT_SOCKET = "npipe:////./pipe/docker_engine"
else:
    DEFAULT_SOCKET = "unix:///var/run/docker.sock"
INSTALL_HINT = (
    "on Debian or Ubuntu: `apt-get install docker.io` and `systemctl start docker` (or `dockerd "
    "&`) as root; "
    "then make sure that `docker info` answers for this user, or set DOCKER_HOST"
)

# docker-py reads some answers past requests, such as what an image's build prints: urllib3's errors
# come through then.
ERRORS = (
    docker.errors.DockerException,
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
)


def connect(url: str | None = None, timeout_s: int = API_TIMEOUT_S) -> docker.DockerClient:
    """Connect to a Docker engine.

    Args:
        url: Its address. Without one it is the engine that the command docker talks to: that of
            DOCKER_HOST, else of the current context (`docker context use`), else of this machine.
        timeout_s: How long the client waits for an answer, after the first one.

    Raises:
        NoRunnerError: No engine answers there, or not within `FIRST_S` seconds.
    """
    address = where = url or ""
    try:
        address, where = _address(url)
        _try_socket(address, FIRST_S)
        # docker-py speaks ssh through Paramiko unless told to run `ssh`, which knows ~/.ssh/config
        # and the agent.
        by_ssh = address.startswith("ssh://")
        if by_ssh:
            _run_ssh()
        environment = dict(
            os.environ
        )  # DOCKER_TLS_VERIFY and DOCKER_CERT_PATH count for every machine
        if url or address == DEFAULT_SOCKET:  # a context says more than its address
            environment["DOCKER_HOST"] = address
        client = docker.from_env(timeout=FIRST_S, use_ssh_client=by_ssh, environment=environment)
        try:
            client.ping()
        except BaseException:
            # its socket: a dispatcher that asks again and again would run out of them
            client.close()
            raise
        client.api.timeout = timeout_s
    except (*ERRORS, OSError) as error:
        # docker-py passes on the text alone.
        if isinstance(error, PermissionError) or "PermissionError" in str(error):
            raise NoRunnerError(
                f"this user may not use the Docker engine at {where}: no permission for its socket",
                hint=SOCKET_HINT,
            ) from error
        if "timed out" in str(error).lower():  # the reason is a text where the client is made
            raise NoRunnerError(
                f"no Docker engine answers at {where}: what listens there said nothing for "
                f"{FIRST_S} s",
                hint="look at the engine's own log, restart it",
            ) from error
        hint = _elsewhere_hint(address) or INSTALL_HINT
        raise NoRunnerError(f"no Docker engine answers at {where}: {error}", hint=hint) from error
    return client


def describe() -> tuple[str, str, str]:
    """Return system, version and machine of the engine that `connect` finds.

    Raises:
        NoRunnerError: None answers.
    """
    client = connect()
    try:
        info = client.info()
    except (*ERRORS, OSError) as error:
        raise NoRunnerError(
            f"the Docker engine does not say what it is: {error}", hint=INSTALL_HINT
        ) from error
    finally:
        client.close()
    return str(info.get("OSType")), str(info.get("ServerVersion")), str(info.get("Architecture"))


def _elsewhere_hint(address: str) -> str | None:
    """Return the hint for an engine of another machine that does not answer, or None."""
    where = urlsplit(address)
    if where.scheme == "ssh":
        if ":" in where.netloc.rpartition("@")[2]:
            port = f"-p {where.netloc.rpartition(':')[2]} "
        else:
            port = ""
        user = f"{where.username}@" if where.username else ""
        return (
            f"`ssh {port}{user}{where.hostname} docker info` must answer without a question: its "
            "host key in "
            "known_hosts, your key there, docker installed, its user in the group docker"
        )
    if where.scheme in ("tcp", "http", "https"):
        return (
            "`docker info` must answer: look at the address and at what listens there; TLS "
            "needs DOCKER_TLS_VERIFY=1"
        )
    return None


def _address(url: str | None) -> tuple[str, str]:
    """Return the address of an engine, and a name for it that says what chose it."""
    if url:
        return url, url
    if host := os.environ.get("DOCKER_HOST"):
        return host, f"{host} (DOCKER_HOST)"
    if (host := _of_context()) and host != DEFAULT_SOCKET:
        return host, f"{host} (docker's context)"
    return DEFAULT_SOCKET, f"{DEFAULT_SOCKET} (this machine)"


def _run_ssh() -> None:
    """docker-py 7.2 has no ssh at all where it cannot import Paramiko, though running `ssh` uses
    nothing of it.

    Paramiko and what it needs are four packages and half the time that docker-py takes to import:
    an empty module does.
    """
    client: Any = docker.api.client
    if not hasattr(client, "SSHHTTPAdapter"):
        sys.modules["paramiko"] = ModuleType("paramiko")
    try:
        from docker.transport.sshconn import SSHHTTPAdapter  # noqa: PLC0415 (it imports Paramiko)
    finally:
        if not hasattr(client, "SSHHTTPAdapter"):
            sys.modules.pop("paramiko", None)  # other importers must not get the empty module
    # docker-py writes port 22 into an address without one, and ~/.ssh/config would not count.
    client.SSHHTTPAdapter = lambda url, *rest, **more: SSHHTTPAdapter(
        url.removesuffix(":22"), *rest, **more
    )


def _of_context() -> str | None:
    """Return the address of the context that the command docker uses, or None."""
    name = os.environ.get("DOCKER_CONTEXT") or get_current_context_name()
    context = ContextAPI.get_context(name)
    if context is None:
        raise NoRunnerError(
            f"docker has no context {name!r}, which DOCKER_CONTEXT or its config.json names",
            hint="`docker context ls` lists those that there are",
        )
    return context.Host or None


def _try_socket(url: str, timeout_s: int) -> None:
    """docker-py never closes a socket that cannot be connected: here it is closed at once."""
    if url.startswith("unix://") and hasattr(socket, "AF_UNIX"):
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(timeout_s)
            trial.connect(url.removeprefix("unix://"))


STOP_GRACE_S = 5
TIMED_OUT = 124
KILLED = 137
STOPPED = (3221225786, 1067)  # of a Windows container that was stopped, or whose process was ended
CRASHED = 255  # Docker's exit code of a container that ran when the engine itself was killed
TERMINATED = 143  # SIGTERM from outside: `docker stop`, or the shutdown of the machine
IN_USE = 409
GPU = [
    "gpu",
    "compute",
    "utility",
]  # capabilities of NVIDIA's Container Toolkit: CUDA, and nvidia-smi

P = ParamSpec("P")
T = TypeVar("T")

_CUT_OFF = (requests.exceptions.ConnectionError, urllib3.exceptions.ProtocolError)


def _engine_error(error: Exception) -> InfrastructureError:
    text = getattr(error, "explanation", None) or str(error)
    if isinstance(error, _CUT_OFF) and not isinstance(error, requests.exceptions.Timeout):
        text = f"it does not answer any more: {text}"
    return InfrastructureError(
        f"the Docker engine: {text}", hint="look at the engine's own log, then run again"
    )


def guard(call: Callable[P, T]) -> Callable[P, T]:
    """Turn errors of the engine and the transport into InfrastructureError."""

    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except ERRORS as error:
            raise _engine_error(error) from error

    return guarded


@guard
def machine_of(client: docker.DockerClient) -> str:
    """Return the machine that an engine runs on, by the farm's name."""
    return facts(DEFAULT).machine(str(client.info().get("Architecture")))


def _kernel_options(job: Job) -> dict[str, Any]:
    """Return the options of a container on Linux: no network, no rights, no swap."""
    return {
        "network_mode": "none",
        # Memory and swap together: as much as the memory alone, so there is no swap.
        "memswap_limit": job.limits.memory,
        "pids_limit": PIDS,
        "cap_drop": CAP_DROP,
        "security_opt": SECURITY,
        # An init as process 1 reaps orphans and passes signals on to the command.
        "init": not job.own_init,
        "device_requests": [DeviceRequest(count=-1, capabilities=[GPU])] if job.gpus else None,
    }


@guard
def system_of(client: docker.DockerClient) -> str:
    """Return the platform whose containers an engine runs, by the farm's name where it has one."""
    system = str(client.info().get("OSType"))
    platform = named(system)
    return platform.name if platform else system


@guard
def host_version(client: docker.DockerClient) -> str:
    """Return the version of the system that an engine runs on, such as 10.0.20348."""
    return str(client.info().get("OSVersion", ""))


def _seconds(state: dict[str, Any]) -> float:
    """Return for how many seconds a container ran."""
    began, ended = (datetime.fromisoformat(state[name]) for name in ("StartedAt", "FinishedAt"))
    return (ended - began).total_seconds()


def _remove(container: Container) -> None:
    """Remove a container and its nameless volumes; another controller may be doing the same."""
    try:
        container.remove(force=True, v=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        if error.status_code != IN_USE:  # "removal of container ... is already in progress"
            raise


_ON_SERVERS = tuple(name for name, facts in PLATFORMS.items() if facts.drive)
"""Platforms whose containers run on engines of their own, with a disk of their own size."""


class DockerEngine:
    """One container a job; see `farm.engines.base.Engine`.

    `cpus`, `memory` (bytes) and `disk` (bytes) limit what a job gets of the engine's machine.
    """

    name = "docker"
    poll_s = 0.2
    traits = Traits(
        makes_images=True,
        keeps_volumes=True,
        platforms=frozenset({DEFAULT, *_ON_SERVERS}),
    )

    def __init__(
        self,
        client: docker.DockerClient,
        *,
        cpus: float | None = None,
        memory: int | None = None,
        disk: int | None = None,
    ) -> None:
        self.client = client
        self._disk = disk or DISK_BYTES
        self._cpus = cpus
        self._memory = memory

    @guard
    def capacity(self) -> Capacity:
        info = self.client.info()
        cpus = float(info["NCPU"])
        memory = int(info["MemTotal"])
        return Capacity(
            cpus=min(self._cpus or cpus, cpus),
            memory=min(self._memory or memory, int(memory * 0.9)),
        )

    @guard
    def image_environment(self, image: str) -> dict[str, str]:
        """Return the environment that an image gives its containers."""
        entries = self.client.images.get(image).attrs["Config"]["Env"] or []
        return dict(entry.split("=", 1) for entry in entries)

    @guard
    def submit(self, job: Job) -> str:
        # A controller that was killed before it wrote down the handle may have left a container of
        # this very attempt.
        if job.labels:
            labels = [f"{key}={value}" for key, value in job.labels.items()]
            for old in self.client.containers.list(
                all=True, filters={"label": labels}, ignore_removed=True
            ):
                _remove(old)
        system = facts(job.platform)
        if system.drive:
            command = list(job.command)  # it ends itself
            options = self._server_options(job)
        else:
            # The limit also holds when no one is left to watch.
            limit = [] if job.own_init else ["timeout", "-k", "30", str(job.timeout_s)]
            command = [*limit, *job.command]
            options = _kernel_options(job)
        container = self.client.containers.create(
            job.image,
            command,
            labels={
                "farm.job": job.name,
                "farm.output": system.path(job.output),
                "farm.limit": str(job.timeout_s),
                **job.labels,
            },
            environment=job.environment,
            nano_cpus=int(job.limits.cpus * 1e9),
            mem_limit=job.limits.memory,
            log_config=LogConfig(type=LOG_DRIVER, config=LOG_OPTIONS),
            volumes={
                name: {"bind": system.path(target), "mode": "rw"}
                for target, name in job.volumes.items()
            },
            **options,
        )
        try:
            with outputs.temporary_file() as inputs:
                transfer.pack(job.inputs, inputs)
                inputs.seek(0)
                container.put_archive(system.path("/"), inputs)
            container.start()
        except BaseException as error:
            _remove(container)
            if job.gpus and "device driver" in str(error):
                raise NoRunnerError(
                    f"the Docker engine cannot give a container a GPU: {error}",
                    hint="install NVIDIA's Container Toolkit there until `docker run --gpus all "
                    "IMAGE nvidia-smi` runs",
                ) from error
            raise
        return str(container.id)

    def _server_options(self, job: Job) -> dict[str, Any]:
        """Return the options of a container on an engine whose kernel is not Linux's.

        Such engines refuse limits of swap and processes, capabilities and an init. The network is
        there: the build clones its source itself.
        """
        if job.gpus:
            raise NoRunnerError(
                "containers of this platform have no card",
                hint="run the smoke test on a machine itself (docs/how-to/windows.md)",
            )
        return {"isolation": ISOLATION, "storage_opt": {"size": f"{self._disk // 10**9}GB"}}

    def _find(self, handle: str) -> Container | None:
        try:
            return self.client.containers.get(handle)
        except docker.errors.NotFound:
            return None

    @guard
    def observe(self, handle: str) -> Observation:
        container = self._find(handle)
        if container is None:
            return Observation("lost", why="the engine does not know the container")
        state: dict[str, Any] = container.attrs["State"]
        status = state["Status"]
        if status == "created":
            # The start failed: Docker keeps the container as `created`, and it will never run.
            if state.get("Error"):
                return Observation("lost", why=state["Error"])
            return Observation("starting", why="the container is being prepared")
        if status in ("running", "paused", "restarting"):
            return Observation("running", why="paused" if status == "paused" else None)
        code = int(state["ExitCode"])
        cause = None
        if state.get("OOMKilled"):
            cause = Cause.OUT_OF_MEMORY
        # `timeout -k` ends with 137 where it had to send SIGKILL, as does a container that was
        # killed from outside. Only the time that it ran tells them apart.
        elif code == TIMED_OUT or (
            code == KILLED and _seconds(state) >= float(container.labels["farm.limit"])
        ):
            cause = Cause.TIME_LIMIT
        elif code in (KILLED, CRASHED, TERMINATED, *STOPPED):
            cause = Cause.KILLED
        return Observation("done", exit_code=code, cause=cause)

    def logs(self, handle: str, since: int = 0) -> Iterator[bytes]:
        container = guard(self._find)(handle)
        if container is None:
            return
        sent = since
        follow = True
        while True:
            skip = sent
            stream: Any = None
            try:
                stream = container.logs(stream=True, follow=follow)
                for piece in stream:
                    # A stream begins with the first byte of the log: Docker's own `since` is a
                    # time.
                    fresh = piece[skip:]
                    skip -= len(piece) - len(fresh)
                    if fresh:
                        sent += len(fresh)
                        yield fresh
                if follow:
                    container.wait()
            except requests.exceptions.Timeout:
                continue  # a long silence, such as a big link step: ask again from where we are
            except docker.errors.NotFound:
                return  # released in between: there is no more to read
            except ERRORS as error:
                raise _engine_error(error) from error
            finally:
                if stream is not None:
                    stream._response.close()  # the stream's own close() fails once it has ended
            if not follow:
                return
            # The engine may end a stream before it has noted a last line without newline: once
            # more, the rest.
            follow = False

    @guard
    def cancel(self, handle: str) -> None:
        container = self._find(handle)
        if container is None:
            return
        # It may have ended by itself just now. What counts is what is observed below.
        with contextlib.suppress(docker.errors.APIError):
            container.stop(timeout=STOP_GRACE_S)
        for _ in range(60):
            if self.observe(handle).state in ("done", "lost"):
                return
            time.sleep(0.5)
        raise InfrastructureError(
            f"container {handle[:12]} does not stop", hint="docker rm -f, or restart the engine"
        )

    @guard
    def collect(self, handle: str, dest: Path, max_bytes: int) -> list[Path]:
        container = self._find(handle)
        if container is None:
            raise InfrastructureError(f"container {handle[:12]} is gone, and its output with it")
        output = container.labels["farm.output"]
        # docker-py's get_archive cannot close the stream, and until then dockerd holds the
        # container's lock.
        api: Any = self.client.api
        url = api._url("/containers/{0}/archive", handle)
        answer = api._get(url, params={"path": output}, stream=True)
        try:
            api._raise_for_status(answer)
            return transfer.unpack(answer.iter_content(1 << 21), dest, max_bytes)
        finally:
            answer.close()

    @guard
    def release(self, handle: str) -> None:
        container = self._find(handle)
        if container is not None:
            _remove(container)

    @guard
    def discard(self, volume: str) -> None:
        try:
            self.client.volumes.get(volume).remove()
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if (
                error.status_code != IN_USE
            ):  # the same plan is built once more: that build removes it
                raise
