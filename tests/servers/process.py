"""Servers for tests: started on the loopback, waited for, ended by their process ids."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "artifacts" / "servers"
"""Where packages that only these servers need are installed; ignored by git, used again by the next
run.
"""


class MissingError(Exception):
    """A server cannot be had here; the text says why."""


def free_port() -> int:
    """One that nobody gets by asking for any: such a one may be given out again before our server
    has taken it.
    """
    while True:
        port = 20_000 + secrets.randbelow(
            12_000
        )  # Linux gives out those from 32,768 on, others higher ones
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def wait_until(what, done, *, processes=(), seconds: float = 90.0) -> None:
    """Polls until `done()`; a process that ends meanwhile, or the end of the time, is an error."""
    end = time.monotonic() + seconds
    while not done():
        for process in processes:
            if process.poll() is not None:
                raise MissingError(
                    f"{what}: a process ended with {process.returncode}: {process.args}"
                )
        if time.monotonic() > end:
            raise MissingError(f"{what} did not come up within {seconds:.0f} s")
        time.sleep(0.1)


@contextlib.contextmanager
def running(
    command: Sequence[str | os.PathLike[str]], log: Path, *, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process for as long as the block lasts."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def serving(
    command: Sequence[str | os.PathLike[str]], port: int, log: Path, **options
) -> Iterator[str]:
    """A server that is one process; gives its URL."""
    with running(command, log, **options) as process:
        wait_until(f"{command[0]} (log: {log})", lambda: answers(port), processes=[process])
        yield f"http://127.0.0.1:{port}"


def apt_get(*arguments: str) -> str | None:
    """Runs apt-get, a second time after an update; what went wrong, or None."""
    if not shutil.which("apt-get"):
        return "there is no apt-get here; the packages come from Debian or Ubuntu"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-y", "-qq", "install", "--no-install-recommends", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        subprocess.run(["apt-get", "-qq", "update"], env=env, capture_output=True, check=False)
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.stderr[-500:] if done.returncode else None


def environment(name: str, *requirements: str) -> Path:
    """The `bin` of a virtual environment of its own: these packages would change the versions of
    ours.
    """
    folder = TOOLS / name
    done = folder / ".installed"
    wanted = "\n".join(requirements)
    if not done.exists() or done.read_text() != wanted:
        uv, python = Path(sys.executable).with_name("uv"), folder / "bin" / "python"
        subprocess.run(
            [uv, "venv", "-q", "--clear", "--python", sys.executable, folder], check=True
        )
        command = [uv, "pip", "install", "-q", "--python", python, *requirements]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise MissingError(f"{', '.join(requirements)}: {made.stderr[-500:]}")
        done.write_text(wanted)
    return folder / "bin"
