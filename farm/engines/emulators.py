"""Whether a Docker engine runs the programs of another machine."""

import io
import json
import tarfile
from contextlib import ExitStack
from itertools import starmap

import docker
import docker.errors
import requests

from farm.base.errors import NoRunnerError
from farm.base.interrupts import deferred_interrupts
from farm.engines.docker import guard, machine_of
from farm.engines.images import unnamed

CODE = {
    "x86_64": (62, "31ff b83c000000 0f05"),  # xor edi, edi; mov eax, 60; syscall
    "aarch64": (183, "000080d2 a80b80d2 010000d4"),  # mov x0, #0; mov x8, #93; svc #0
}
"""ELF's number of a machine, and its code for exit(0)."""
TRY_S = 60


@guard
def emulates(client: docker.DockerClient, machine: str) -> bool:
    """Return whether an engine runs programs of a machine by emulation.

    Raises:
        NoRunnerError: It runs them neither by emulation nor as its own.
    """
    host_machine = machine_of(client)
    if host_machine == machine:
        return False
    problem = _try(client, machine)
    if problem is None:
        return True
    raise NoRunnerError(
        f"the plan is for {machine}, the Docker engine runs on {host_machine}, which has no "
        "emulator "
        f"registered: {problem}",
        hint="register qemu on the engine's machine (Debian: apt-get install qemu-user-static; "
        "docs/how-to/runners.md), "
        f"or give a runner in ci/runners.yaml the URL of a Docker engine on {machine}",
    )


def _try(client: docker.DockerClient, machine: str) -> str | None:
    """Run the smallest program of a machine in a container.

    Returns:
        Why it does not run, or None.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        program = exit_program(machine)
        member = tarfile.TarInfo("run")
        member.size = len(program)
        member.mode = 0o755
        tar.addfile(member, io.BytesIO(program))
    with unnamed(client) as images, ExitStack() as stack:
        with deferred_interrupts():
            answer = client.api.import_image(archive.getvalue())
            images.append(str(json.loads(answer.splitlines()[-1])["status"]))
            container = client.containers.create(
                images[-1], ["/run"], network_mode="none", labels={"farm.kind": "emulator"}
            )
            stack.callback(container.remove, force=True)
        try:
            container.start()
            code = container.wait(timeout=TRY_S)["StatusCode"]
        except (docker.errors.APIError, requests.exceptions.RequestException) as error:
            return str(getattr(error, "explanation", None) or error)
        # The program has no other end: another code is that of runc, which could not start it.
        words = container.logs().decode("utf-8", "replace").strip().splitlines()
        if code == 0:
            return None
        return words[-1] if words else f"exit code {code}"


def exit_program(machine: str) -> bytes:
    """Return a Linux program that ends with 0: an ELF header, a segment and three instructions."""
    number, words = CODE[machine]
    code = bytes.fromhex(words)
    start = 0x400000
    size = 64 + 56 + len(code)
    fields = (
        *((2, 2), (number, 2), (1, 4), (start + 64 + 56, 8), (64, 8), (0, 8), (0, 4)),
        *((64, 2), (56, 2), (1, 2), (0, 2), (0, 2), (0, 2)),
        *((1, 4), (5, 4), (0, 8), (start, 8), (start, 8), (size, 8), (size, 8), (0x10000, 8)),
    )
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    return (
        ident
        + b"".join(starmap(lambda value, width: value.to_bytes(width, "little"), fields))
        + code
    )
