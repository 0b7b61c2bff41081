"""The command line of the probe."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform

from .checks import run_checks
from .jit import first_kernel
from .outcome import FAILED
from .recorder import Recorder

SCHEMA = 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description="Does an installed torch, or a module with its interface, work on this machine?",
        epilog="Exit codes: 0 no check failed, 1 a check failed or the time was over, 2 wrong arguments.",
    )
    made.add_argument("--module", default="torch", help="the module to test (default: torch)")
    made.add_argument("--json", required=True, help="where to write the report")
    made.add_argument("--expect-version", metavar="VERSION", help="the version that must be installed")
    made.add_argument("--expect-cuda", metavar="X.Y", help="the CUDA version it must be built with, or none")
    made.add_argument(
        "--expect-arch", nargs="+", default=[], metavar="ARCH", help="what it must hold: sm_35 compute_35"
    )
    made.add_argument("--expect-quantized", metavar="ENGINE", help="the quantized engine it must have: fbgemm")
    made.add_argument(
        "--expect-feature",
        action="append",
        default=[],
        metavar="NAME",
        help="a feature that it must have: gloo; may be repeated",
    )
    made.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="without torch's interface: import this; may be repeated",
    )
    made.add_argument("--script", metavar="FILE", help="without torch's interface: run this; it must exit with 0")
    made.add_argument("--cpu-only", action="store_true", help="leave out the GPU part")
    made.add_argument("--gpu-only", action="store_true", help="leave out the CPU part")
    made.add_argument(
        "--check-limit", type=float, default=900.0, metavar="SECONDS", help="for one check; 0: none (default: 900)"
    )
    made.add_argument(
        "--time-limit", type=float, default=0.0, metavar="SECONDS", help="for all checks; 0: none (default)"
    )
    made.add_argument("--seed", type=int, default=1, help="seed of the test data (default: 1)")
    made.add_argument("--first-kernel", action="store_true", help=argparse.SUPPRESS)
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    # Started by `jit.run_first_kernel`: one kernel in a process of its own.
    if options.first_kernel:
        found = first_kernel(importlib.import_module(options.module))
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file)
        return 0
    # Where the driver compiles PTX, a whole torch overflows the cache's usual size and would be compiled again and
    # again (CUDA C++ Programming Guide, "CUDA Environment Variables"). 4 GiB is the largest size.
    os.environ.setdefault("CUDA_CACHE_MAXSIZE", str(4 << 30))
    document = {
        "schema": SCHEMA,
        "module": options.module,
        "facts": {
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "system": platform.platform(),
            "machine": platform.machine(),
        },
    }
    recorder = Recorder(options.json, document, options.check_limit, options.time_limit)
    run_checks(recorder, options)
    document["complete"] = True
    recorder.write()
    is_failed = any(check["status"] == FAILED for check in recorder.checks)
    return 1 if is_failed or document["skipped"] else 0
