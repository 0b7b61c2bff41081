"""The `docker` engine: one container a job, on the Docker engine here or at a URL (ssh, TLS, npipe).

Containers get no network, no credentials, no bind mounts: inputs are copied in, outputs copied out.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import docker
import docker.api.client
import docker.errors
import requests
import urllib3.exceptions
from docker.models.containers import Container
from docker.types import LogConfig

from farm.base import outputs
from farm.base.errors import InfrastructureError
from farm.engines import profile, transfer
from farm.engines.base import Capacity, Cause, Job, Observation, Traits
from farm.engines.reach import ERRORS

STOP_GRACE_S = 5
TIMED_OUT, KILLED = 124, 137
CRASHED = 255
"""Docker's exit code of a container that ran when the engine itself was killed."""
TERMINATED = 143
"""SIGTERM from outside: `docker stop`, or the shutdown of the machine."""
IN_USE = 409

P = ParamSpec("P")
T = TypeVar("T")

_CUT_OFF = (requests.exceptions.ConnectionError, urllib3.exceptions.ProtocolError)


def _engine_error(error: Exception) -> InfrastructureError:
    text = getattr(error, "explanation", None) or str(error)
    if isinstance(error, _CUT_OFF) and not isinstance(error, requests.exceptions.Timeout):
        text = f"it does not answer any more: {text}"
    return InfrastructureError(f"the Docker engine: {text}", hint="look at the engine's own log, then run again")


def guard(call: Callable[P, T]) -> Callable[P, T]:
    """Engine and transport errors become InfrastructureError."""

    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except ERRORS as error:
            raise _engine_error(error) from error

    return guarded


def _seconds(state: dict[str, Any]) -> float:
    """How long a container ran."""
    began, ended = (datetime.fromisoformat(state[name]) for name in ("StartedAt", "FinishedAt"))
    return (ended - began).total_seconds()


def _remove(container: Container) -> None:
    """Removes a container, whatever runs in it, with its nameless volumes; someone else may be at that as well."""
    try:
        container.remove(force=True, v=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        if error.status_code != IN_USE:  # "removal of container ... is already in progress"
            raise


class DockerEngine:
    """See `farm.engines.base.Engine`. `limits` narrow what the engine's machine has."""

    name = "docker"
    poll_s = 0.2
    traits = Traits(keeps_volumes=True)

    def __init__(self, client: docker.DockerClient, *, cpus: float | None = None, memory: int | None = None) -> None:
        self.client = client
        self._cpus = cpus
        self._memory = memory

    @guard
    def capacity(self) -> Capacity:
        info = self.client.info()
        cpus, memory = float(info["NCPU"]), int(info["MemTotal"])
        return Capacity(
            cpus=min(self._cpus or cpus, cpus),
            memory=min(self._memory or memory, int(memory * 0.9)),
        )

    @guard
    def image_environment(self, image: str) -> dict[str, str]:
        """The environment that an image gives its containers."""
        entries = self.client.images.get(image).attrs["Config"]["Env"] or []
        return dict(entry.split("=", 1) for entry in entries)

    @guard
    def submit(self, job: Job) -> str:
        # A controller that was killed before it wrote down the handle may have left a container of this very attempt.
        for old in self._labelled(job.labels):
            _remove(old)
        container = self.client.containers.create(
            job.image,
            # The limit also holds when no one is left to watch.
            ["timeout", "-k", "30", str(job.timeout_s), *job.command],
            labels={"farm.job": job.name, "farm.output": job.output, "farm.limit": str(job.timeout_s), **job.labels},
            environment=job.environment,
            network_mode="none",
            nano_cpus=int(job.limits.cpus * 1e9),
            mem_limit=job.limits.memory,
            # Memory and swap together: as much as the memory alone, so there is no swap.
            memswap_limit=job.limits.memory,
            pids_limit=profile.PIDS,
            cap_drop=profile.CAP_DROP,
            security_opt=profile.SECURITY,
            log_config=LogConfig(type=profile.LOG_DRIVER, config=profile.LOG_OPTIONS),
            # An init as process 1 reaps orphans and passes signals on to the command.
            init=True,
            volumes={name: {"bind": target, "mode": "rw"} for target, name in job.volumes.items()},
        )
        try:
            with outputs.temporary_file() as inputs:
                transfer.pack(job.inputs, inputs)
                inputs.seek(0)
                container.put_archive("/", inputs)
            container.start()
        except BaseException:
            _remove(container)
            raise
        return str(container.id)

    def _labelled(self, labels: dict[str, str]) -> list[Container]:
        if not labels:
            return []
        wanted = [f"{key}={value}" for key, value in labels.items()]
        return list(self.client.containers.list(all=True, filters={"label": wanted}, ignore_removed=True))

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
        # `timeout -k` ends with 137 where it had to send SIGKILL, as does a container that was killed from outside.
        # Only the time that it ran tells them apart.
        elif code == TIMED_OUT or (code == KILLED and _seconds(state) >= float(container.labels["farm.limit"])):
            cause = Cause.TIME_LIMIT
        elif code in (KILLED, CRASHED, TERMINATED):
            cause = Cause.KILLED
        return Observation("done", exit_code=code, cause=cause)

    def logs(self, handle: str, since: int = 0) -> Iterator[bytes]:
        container = guard(self._find)(handle)
        if container is None:
            return
        sent, follow = since, True
        while True:
            skip = sent
            stream: Any = None
            try:
                stream = container.logs(stream=True, follow=follow)
                for piece in stream:
                    # A stream begins with the first byte of the log: Docker's own `since` is a time, `skip` counts
                    # bytes.
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
            # The engine may end a stream before it has noted a last line without newline: once more, the rest.
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
            f"container {handle[:12]} does not stop", hint="docker rm -f it, or restart the engine"
        )

    @guard
    def collect(self, handle: str, dest: Path, max_bytes: int) -> list[Path]:
        container = self._find(handle)
        if container is None:
            raise InfrastructureError(f"container {handle[:12]} is gone, and its output with it")
        output = container.labels["farm.output"]
        # docker-py's get_archive gives no way to close the stream, and dockerd holds the container's lock until that is
        # closed: nothing could stop or remove it.
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
    def volume_id(self, volume: str) -> str | None:
        try:
            # A volume that was removed and made again has the same name: the time tells them apart, the ID the engines.
            made = self.client.volumes.get(volume).attrs["CreatedAt"]
        except docker.errors.NotFound:
            return None
        return f"{self.client.info()['ID']} {volume} {made}"

    @guard
    def discard(self, volume: str) -> None:
        try:
            self.client.volumes.get(volume).remove()
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if error.status_code != IN_USE:  # the same plan is built once more: that build removes it
                raise
