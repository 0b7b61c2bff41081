"""Runs inside the container of a swarm job: inputs in, command under a time limit, log, output and
report out.

Standard library only, Python 3.7 and newer: it runs on whatever Python the toolchain image has.
`farm.base.zipapps` makes one file of it, which the container gets as a Docker config; a second
config, the manifest (JSON, gzip), says what to do and holds the signed URLs. It writes nothing to
its own output but what went wrong with itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import io
import json
import os
import signal
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

CA = Path("/farm-ca")
KIND = "application/octet-stream"  # urllib would label the data as a form
RETRY_S = 900


def say(text: object) -> None:
    sys.stderr.write(f"farm agent: {text}\n")
    sys.stderr.flush()


def request(url: str, data: IO[bytes] | None = None, length: int = 0) -> Any:
    """One request, tried again for RETRY_S seconds; OSError: the store refuses it, or did not
    answer in that time.
    """
    if CA.exists():
        context = ssl.create_default_context(cafile=str(CA))
    else:
        context = None
    deadline = time.monotonic() + RETRY_S
    pause = 1.0
    while True:
        try:
            # An earlier try may have sent a part of it.
            if data is not None:
                data.seek(0)
            headers = {}
            if data is not None:
                # The signature covers If-None-Match: a URL writes one object once.
                headers = {
                    "If-None-Match": "*",
                    "Content-Length": str(length),
                    "Content-Type": KIND,
                }
            method = "GET" if data is None else "PUT"
            request = urllib.request.Request(url, data=data, headers=headers, method=method)
            return urllib.request.urlopen(request, timeout=60, context=context)
        except urllib.error.HTTPError as error:
            error.close()
            if (
                error.code == 412 and data is not None
            ):  # an earlier try got through, its answer was lost
                return None
            # 408 timeout, 409 a write at the same moment, 429 too many requests: all pass; other
            # refusals stay.
            if error.code < 500 and error.code not in (408, 409, 429):
                raise
            problem = f"HTTP {error.code}"
        except (urllib.error.URLError, OSError) as error:
            problem = str(getattr(error, "reason", error))
        if time.monotonic() > deadline:
            raise OSError(f"the store does not answer: {problem}")
        say(f"the store: {problem}; again in {pause:.0f} s")
        time.sleep(pause)
        pause = min(pause * 2, 15.0)


def put(url: str, data: bytes | IO[bytes]) -> None:
    stream: IO[bytes] = io.BytesIO(data) if isinstance(data, bytes) else data
    length = stream.seek(0, 2)
    answer = request(url, stream, length)
    if answer is not None:
        answer.close()


def send_output(folder: str, url: str) -> None:
    """The output folder as a tar with one top folder."""
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
            if Path(folder).is_dir():
                archive.add(folder, arcname="out")
        put(url, stream)


def unpack(manifest: dict[str, Any]) -> None:
    with tarfile.open(fileobj=request(manifest["inputs_url"]), mode="r|gz") as archive:
        archive.extractall("/")  # noqa: S202  the controller packed it


CHUNK = 4 << 20
SPOOL = 64 << 20  # what is held while the store is away
LINGER_S = 5.0  # for what is in the pipe when the command has ended


class Log(threading.Thread):
    """Ships the command's output in numbered chunks; what does not fit is dropped, and the log's
    last line says so.
    """

    def __init__(self, pipe: int, urls: list[str], interval: float) -> None:
        super().__init__(daemon=True)
        self.pipe = pipe
        self.urls = urls
        self.interval = interval
        self.buffer = bytearray()
        self.lock = threading.Condition()
        self.ended = False
        self.left = CHUNK * len(urls)
        self.lost = 0
        self.problem: str | None = None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def close(self) -> None:
        """The command has ended. Something that it left behind may hold the pipe for ever: nothing
        waits for it.
        """
        self.reader.join(LINGER_S)
        with self.lock:
            self.ended = True
            self.lock.notify_all()

    def read(self) -> None:
        while True:
            piece = os.read(self.pipe, 65536)
            with self.lock:
                # Reading never stops, else the command would block on a full pipe while the store
                # is away.
                kept_bytes = piece[: max(0, min(self.left, SPOOL - len(self.buffer)))]
                self.left -= len(kept_bytes)
                self.lost += len(piece) - len(kept_bytes)
                self.buffer += kept_bytes
                if not piece:
                    self.ended = True
                if not piece or len(self.buffer) >= CHUNK:
                    self.lock.notify_all()
            if not piece:
                return

    def run(self) -> None:
        try:
            for number, url in enumerate(self.urls):
                with self.lock:
                    self.lock.wait_for(
                        lambda: self.ended or len(self.buffer) >= CHUNK, timeout=self.interval
                    )
                    while not self.buffer and not self.ended:
                        self.lock.wait(timeout=self.interval)
                    # An object is written once: the last URL waits for the end, so that it can hold
                    # all that is left.
                    last = number == len(self.urls) - 1
                    if last:
                        self.lock.wait_for(lambda: self.ended)
                    data = bytes(self.buffer[:CHUNK])
                    del self.buffer[: len(data)]
                    if last:
                        self.lost += len(self.buffer)
                        self.buffer.clear()
                    finished = self.ended and not self.buffer
                    if finished and self.lost:
                        data += (
                            f"\n[{self.lost} bytes of the log are lost: too long, or the "
                            "store was away]\n"
                        ).encode()
                if data:
                    put(url, data)
                if finished:
                    return
        except (OSError, urllib.error.URLError) as error:
            self.problem = str(error)


GRACE_S = 30  # between SIGTERM and SIGKILL
TIMED_OUT = 124  # as timeout(1) of coreutils
NOT_STARTED = 127  # as a shell for a command that it does not find


def killed_for_memory() -> int:
    """How often the kernel killed in this container for memory: cgroup v2, else v1 (kernel
    documentation).
    """
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            words = dict(
                line.split()
                for line in Path(path).read_text().splitlines()
                if len(line.split()) == 2
            )
            return int(words.get("oom_kill", "0"))
        except (OSError, ValueError):
            continue
    return 0


def end(process: subprocess.Popen[bytes], number: int) -> None:
    """Signals the whole process group; the command may have left children."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.kill()
    except OSError:
        pass


def run_command(manifest: dict[str, Any]) -> dict[str, Any]:
    """Run the command and send its log; the report has exit code, seconds, and what ended it;
    OSError: no log.
    """
    environment = dict(os.environ, **manifest["environment"])
    # A pipe of its own, not the container's output: what dockerd keeps of that is bounded, and
    # stays on the node.
    pipe, write = os.pipe()
    log = Log(pipe, manifest["logs"], manifest["interval_s"])
    started = time.time()
    report: dict[str, Any] = {
        "exit_code": NOT_STARTED,
        "timed_out": False,
        "out_of_memory": False,
        "stopped": False,
    }
    running: list[subprocess.Popen[bytes]] = []

    def stop(number: int, _frame: object) -> None:
        report["stopped"] = (
            True  # the node goes down, or the job is cancelled: no fault of the build
        )
        for process in running:
            end(process, number)

    signal.signal(signal.SIGTERM, stop)
    try:
        process = subprocess.Popen(
            manifest["command"],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            env=environment,
            start_new_session=True,  # Windows ignores it
        )
    except OSError as error:
        os.write(write, f"farm: the command does not start: {error}\n".encode())
        process = None
    # The command has its own copy: the pipe ends when that ends, and only if no other is open here.
    os.close(write)
    log.start()
    if process is not None:
        running.append(process)
        # A stop that came before the process was in the list has signalled nothing yet.
        if report["stopped"]:
            end(process, signal.SIGTERM)
        try:
            code = process.wait(timeout=manifest["timeout_s"])
        except subprocess.TimeoutExpired:
            report["timed_out"] = True
            end(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=GRACE_S)
            code = TIMED_OUT
        # The command is over, or ignores SIGTERM; children of its group go as well.
        end(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        process.wait()
        # A negative code is a signal; a shell reports it as 128 plus its number.
        if code < 0:
            report["exit_code"] = 128 - code
        else:
            report["exit_code"] = code
        # One compiler may be killed for memory and the build still succeed by a second try: then it
        # is no cause.
        report["out_of_memory"] = bool(killed_for_memory()) and report["exit_code"] != 0
    log.close()
    log.join()
    if log.problem:
        raise OSError(log.problem)
    report["seconds"] = round(time.time() - started, 1)
    return report


MANIFEST = Path("/farm-manifest")
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h
UPLOAD_FAILED = 75  # EX_TEMPFAIL of sysexits.h


def protect() -> None:
    """From here on no program that is started gains rights by a set-uid bit, for which a swarm
    service has no option, and none reads this one's URLs or writes into its log by /proc.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_DUMPABLE cannot be set")


def main() -> int:
    with gzip.open(MANIFEST, "rt", encoding="utf-8") as stream:
        manifest = json.load(stream)
    try:
        protect()
        unpack(manifest)
        report = run_command(manifest)
        # A build that failed has no output that counts: its log says why.
        if report["exit_code"] == 0:
            send_output(manifest["output"], manifest["output_url"])
        # Last: where there is a report, the log and the output are in the store.
        put(manifest["report_url"], json.dumps(report).encode())
    except (OSError, urllib.error.URLError, tarfile.TarError) as error:
        say(error)
        return UPLOAD_FAILED
    return int(report["exit_code"])
