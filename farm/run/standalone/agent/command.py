"""The command of a job, under its time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from .log import Log

GRACE_S = 30  # between SIGTERM and SIGKILL
TIMED_OUT = 124  # as timeout(1) of coreutils
NOT_STARTED = 127  # as a shell for a command that it does not find


def killed_for_memory() -> int:
    """How often the kernel killed in this container for memory: cgroup v2, else v1 (kernel documentation)."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            words = dict(line.split() for line in Path(path).read_text().splitlines() if len(line.split()) == 2)
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
    """Run the command and send its log; returns the report: exit code, seconds, and what ended it.

    Raises:
        OSError: The log could not be sent.
    """
    environment = dict(os.environ, **manifest["environment"])
    # A pipe of its own, not the container's output: what dockerd keeps of that is bounded, and stays on the node.
    pipe, write = os.pipe()
    log = Log(pipe, manifest["logs"], manifest["interval_s"])
    started = time.time()
    report: dict[str, Any] = {"exit_code": NOT_STARTED, "timed_out": False, "out_of_memory": False, "stopped": False}
    running: list[subprocess.Popen[bytes]] = []

    def stop(number: int, _frame: object) -> None:
        report["stopped"] = True  # the node goes down, or the job is cancelled: no fault of the build
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
        report["exit_code"] = 128 - code if code < 0 else code
        # One compiler may be killed for memory and the build still succeed by a second try: then it is no cause.
        report["out_of_memory"] = bool(killed_for_memory()) and report["exit_code"] != 0
    log.close()
    log.join()
    if log.problem:
        raise OSError(log.problem)
    report["seconds"] = round(time.time() - started, 1)
    return report
