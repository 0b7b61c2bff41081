"""Forks publishers: `python -m tests.faults.publisher`. Each is a real process, ready to publish at
once.

Reads a job a line as JSON: `{"id", "url", "wheels", "max_put", "part", "killed_at"}`, the last for
a publisher that is killed at one of its requests. Prints `{"id", "pid"}`, and when the process has
ended `{"id", "code", "error"}`.
"""

import itertools
import json
import os
import signal
import sys
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path

import boto3
from boto3.s3.transfer import TransferConfig

from farm.base.errors import FarmError
from farm.index import s3
from farm.index.publish import publish
from farm.index.store_urls import open_store

GROUP = "sm35-avx"


def work(job: dict, errors: str) -> int:
    if job.get("max_put"):
        s3.MAX_PUT = job["max_put"]
        s3._PARTS = TransferConfig(
            multipart_threshold=job["max_put"], multipart_chunksize=job["part"], max_concurrency=1
        )
    try:
        store = open_store(job["url"])
        if killed_at := job.get("killed_at"):
            numbers = itertools.count(1)

            def kill(**_: object) -> None:
                if next(numbers) == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)

            store.client.meta.events.register("before-send.s3", kill)
        for wheel in map(Path, job["wheels"]):
            now = datetime.now(UTC)
            publish(store, wheel, group=GROUP, upload_time=now, provenance={})
    except FarmError as error:
        Path(errors).write_text(f"{type(error).__name__}: {error}")
        return error.exit_code
    return 0


def main() -> None:
    session = boto3.Session()
    session.client("s3", region_name="us-east-1", endpoint_url="http://127.0.0.1:9")
    boto3.Session = lambda: session  # its model of S3 is read once, not in each process
    lock = threading.Lock()

    def say(**words: object) -> None:
        with lock:
            print(json.dumps(words), flush=True)

    def wait(identity: object, pid: int, errors: str) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        path = Path(errors)
        say(id=identity, code=code, error=path.read_text())
        path.unlink()

    for line in sys.stdin:
        job = json.loads(line)
        descriptor, errors = tempfile.mkstemp(prefix="publisher-")
        os.close(descriptor)
        with lock:
            pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = work(job, errors)
            finally:
                os._exit(code)
        say(id=job["id"], pid=pid)
        threading.Thread(target=wait, args=(job["id"], pid, errors)).start()


if __name__ == "__main__":
    main()
