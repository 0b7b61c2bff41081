"""Runs a batch file and shows what it writes into its log, while it runs.

Usage: follow_cmd.py BATCH LOG [SECONDS]. Ends with the batch file's exit code; after SECONDS with
124: a container whose first program this is ends then, with all that runs in it. What that prints
itself stands in its log as well, so it is shown only where no log came to be. The log must not be
there before.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POLL_S = 0.2


TIMED_OUT = 124


def follow(batch: str, log: Path, limit_s: float = float("inf")) -> int:
    """Return the exit code of `batch`, or TIMED_OUT."""
    shown = 0
    end = time.monotonic() + limit_s
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["cmd", "/d", "/c", batch],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        while True:
            ended = process.poll() is not None
            shown += show(log, shown)
            if ended:
                break
            if time.monotonic() > end:
                print(f"follow_cmd.py: not done after {limit_s:g} s", flush=True)
                return TIMED_OUT
            time.sleep(POLL_S)
        if not shown:
            output.seek(0)
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    return process.returncode


def show(log: Path, since: int) -> int:
    """Shows the log from a byte on; returns how many there were. It is not held open: others write
    it.
    """
    count = 0
    try:
        with log.open("rb") as stream:
            stream.seek(since)
            while piece := stream.read(1 << 20):
                sys.stdout.buffer.write(piece)
                count += len(piece)
    except OSError:  # not there yet, or being made
        pass
    sys.stdout.buffer.flush()
    return count


if __name__ == "__main__":
    sys.exit(follow(sys.argv[1], Path(sys.argv[2]), *map(float, sys.argv[3:])))
