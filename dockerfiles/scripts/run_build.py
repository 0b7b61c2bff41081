"""Runs `python -m build`, and names the signal that ended its backend: `build` says only that it
"exited".

Usage: run_build.py ARGUMENT…, those of `build`.
"""

import runpy
import signal
import subprocess
import sys
from typing import Any


class TellingError(subprocess.CalledProcessError):
    """Prints the number and name of the signal that ended a program."""

    def __init__(self, returncode: int, *args: Any, **options: Any) -> None:
        super().__init__(returncode, *args, **options)
        if returncode < 0:
            name = next(
                (known.name for known in signal.Signals if known == -returncode), "a signal"
            )
            print(
                f"ERROR the build backend was ended by signal {-returncode} ({name})",
                file=sys.stderr,
                flush=True,
            )


# What runs backends calls `check_call` or, newer ones, `run`: both raise the module's own error.
subprocess.CalledProcessError = TellingError
runpy.run_module("build", run_name="__main__", alter_sys=True)
