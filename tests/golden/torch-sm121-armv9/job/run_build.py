"""Runs `python -m build`, and names the signal that ended its backend: `build` says only that it "exited".

Usage: run_build.py ARGUMENT…, those of `build`.
"""

import runpy
import signal
import subprocess
import sys
from typing import Any

call = subprocess.check_call


def check_call(*args: Any, **options: Any) -> int:
    """As in `subprocess`; a program that a signal ended is told, with its number and name."""
    try:
        return call(*args, **options)
    except subprocess.CalledProcessError as error:
        if error.returncode < 0:
            number = -error.returncode
            name = next((known.name for known in signal.Signals if known == number), "a signal")
            print(f"ERROR the build backend was ended by signal {number} ({name})", file=sys.stderr, flush=True)
        raise


# Before the import: what runs backends takes the function by its name.
subprocess.check_call = check_call
runpy.run_module("build", run_name="__main__", alter_sys=True)
