"""Where a Docker engine is, and a client of it: DOCKER_HOST's, that of docker's context, or this machine's."""

import os
import socket
import sys
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import docker
import docker.api.client
import docker.errors
import requests
import urllib3.exceptions
from docker.context import ContextAPI
from docker.context.config import get_current_context_name

from farm.base.errors import NoRunnerError
from farm.engines.base import SOCKET_HINT

API_TIMEOUT_S = 600
FIRST_S = 30
"""A first question is answered in milliseconds; later ones take as long as what they ask for."""
DEFAULT_SOCKET = "unix:///var/run/docker.sock"
INSTALL_HINT = (
    "on Debian or Ubuntu: `apt-get install docker.io` and `systemctl start docker` (or `dockerd &`) as root; "
    "then make sure that `docker info` answers for this user, or set DOCKER_HOST"
)

# docker-py reads some answers past requests, such as what an image's build prints: urllib3's errors come through then.
ERRORS = (docker.errors.DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError)


def connect(url: str | None = None, timeout_s: int = API_TIMEOUT_S) -> docker.DockerClient:
    """A client of the engine at `url`, else of the one that the command docker talks to; it waits `timeout_s`.

    That is DOCKER_HOST's, else that of the current context (`docker context use`), which without one is this machine's.

    Raises:
        NoRunnerError: No engine answers there, within `FIRST_S` to the first question.
    """
    address = where = url or ""
    try:
        address, where = _address(url)
        _try_socket(address, FIRST_S)
        # docker-py speaks ssh through Paramiko unless it is told to run `ssh`, which knows the user's ~/.ssh/config and
        # agent.
        by_ssh = address.startswith("ssh://")
        if by_ssh:
            _ssh_without_paramiko()
        client = (
            docker.DockerClient(base_url=url, timeout=FIRST_S, use_ssh_client=by_ssh)
            if url
            else docker.from_env(timeout=FIRST_S, use_ssh_client=by_ssh)
        )
        try:
            client.ping()
        except BaseException:
            client.close()  # its socket: a dispatcher that asks again and again would run out of them
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
                f"no Docker engine answers at {where}: what listens there said nothing for {FIRST_S} s",
                hint="look at the engine's own log, restart it",
            ) from error
        hint = _elsewhere_hint(address) or INSTALL_HINT
        raise NoRunnerError(f"no Docker engine answers at {where}: {error}", hint=hint) from error
    return client


def describe() -> tuple[str, str, str]:
    """Which containers the engine that `connect` finds runs: their system, its version, its machine.

    Raises:
        NoRunnerError: None answers.
    """
    client = connect()
    try:
        info = client.info()
    except (*ERRORS, OSError) as error:
        raise NoRunnerError(f"the Docker engine does not say what it is: {error}", hint=INSTALL_HINT) from error
    finally:
        client.close()
    return str(info.get("OSType")), str(info.get("ServerVersion")), str(info.get("Architecture"))


def _elsewhere_hint(address: str) -> str | None:
    """The hint for an engine on another machine that does not answer; None: it is one of this machine."""
    where = urlsplit(address)
    if where.scheme == "ssh":
        port = f"-p {where.netloc.rpartition(':')[2]} " if ":" in where.netloc.rpartition("@")[2] else ""
        user = f"{where.username}@" if where.username else ""
        return (
            f"`ssh {port}{user}{where.hostname} docker info` must answer without a question: its host key in "
            "known_hosts, your key there, docker installed, its user in the group docker"
        )
    if where.scheme in ("tcp", "http", "https"):
        return "`docker info` must answer: look at the address and at what listens there; TLS needs DOCKER_TLS_VERIFY=1"
    return None


def _address(url: str | None) -> tuple[str, str]:
    """Where an engine is, and how to call that place: with what chose it, where that was not the caller."""
    if url:
        return url, url
    if host := os.environ.get("DOCKER_HOST"):
        return host, f"{host} (DOCKER_HOST)"
    if (host := _of_context()) and host != DEFAULT_SOCKET:
        return host, f"{host} (docker's context)"
    return DEFAULT_SOCKET, f"{DEFAULT_SOCKET} (this machine)"


def _ssh_without_paramiko() -> None:
    """docker-py 7.2 has no ssh at all where it cannot import Paramiko, though running `ssh` uses nothing of it.

    Paramiko and what it needs are four packages and half the time that docker-py takes to import: an empty module does.
    """
    client: Any = docker.api.client
    if hasattr(client, "SSHHTTPAdapter"):
        return
    sys.modules["paramiko"] = ModuleType("paramiko")
    try:
        from docker.transport.sshconn import SSHHTTPAdapter  # noqa: PLC0415 (it imports Paramiko)
    finally:
        sys.modules.pop("paramiko", None)  # whoever else asks for it is told the truth
    client.SSHHTTPAdapter = SSHHTTPAdapter


def _of_context() -> str | None:
    """The address of the context that the command docker uses; None: it has none of its own.

    Raises:
        NoRunnerError: There is no such context: docker-py would take this machine's engine.
    """
    name = os.environ.get("DOCKER_CONTEXT") or get_current_context_name()
    context = ContextAPI.get_context(name)
    if context is None:
        raise NoRunnerError(
            f"docker has no context {name!r}, which DOCKER_CONTEXT or its config.json names",
            hint="`docker context ls` lists those that there are",
        )
    return context.Host or None


def _try_socket(url: str, timeout_s: int) -> None:
    """docker-py never closes a socket that cannot be connected: here it is closed at once.

    Raises:
        OSError: Nothing listens there, or this user may not use it.
    """
    if url.startswith("unix://") and hasattr(socket, "AF_UNIX"):
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(timeout_s)
            trial.connect(url.removeprefix("unix://"))
