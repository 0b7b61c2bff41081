"""A controller on Windows, for tests that run elsewhere: calls of the host engine as JSON lines in,
answers out.

python controller.py ROOT
"""

import base64
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from farm.base import processes
from farm.base.errors import FarmError
from farm.engines.base import Capacity, Job
from farm.engines.host import HostEngine


class Controller:
    def __init__(self, root):
        self.engine, self.logs = HostEngine(Path(root), cpus=0.5, memory=256 << 20), {}

    def capacity(self):
        return asdict(self.engine.capacity())

    def submit(self, job):
        limits, inputs = Capacity(**job.pop("limits")), job.pop("inputs")
        inputs = {target: Path(folder) for target, folder in inputs.items()}
        return self.engine.submit(Job(**job, limits=limits, inputs=inputs))

    def find(self, labels):
        return self.engine.find(labels)

    def observe(self, handle):
        seen = asdict(self.engine.observe(handle))
        return {**seen, "cause": seen["cause"].name if seen["cause"] else None}

    def open_log(self, handle, since):
        self.logs[str(len(self.logs))] = self.engine.logs(handle, since)
        return str(len(self.logs) - 1)

    def next_piece(self, log):
        piece = next(self.logs[log], None)
        return piece if piece is None else base64.b64encode(piece).decode()

    def close_log(self, log):
        self.logs[log].close()

    def cancel(self, handle):
        self.engine.cancel(handle)

    def collect(self, handle, dest, max_bytes):
        return [str(path) for path in self.engine.collect(handle, Path(dest), max_bytes)]

    def release(self, handle):
        self.engine.release(handle)

    def discard(self, volume):
        self.engine.discard(volume)

    def started(self, pid):
        return processes.started(pid)

    def kill(self, pid):
        os.kill(pid, signal.SIGTERM)  # on Windows this is TerminateProcess


def main():
    controller = Controller(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(controller, request["call"])(*request["arguments"])}
        except FarmError as error:
            answer = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
        print(json.dumps(answer), flush=True)


main()
