"""pip in an unpacked wheel, run again and again: `python forked.py FOLDER`, jobs as JSON lines on its input.

Each job is a fork of this process, which has the modules that the first job imported: a tenth of the time of a start.
`runpy` runs pip as `python -m pip` does.
"""

import importlib
import json
import os
import runpy
import sys
import traceback
from typing import Any


def run(job: dict[str, Any]) -> int:
    with open(job["log"], "wb") as log:  # noqa: PTH123
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.argv = ["pip", *job["arguments"]]
    try:
        runpy.run_module("pip", run_name="__main__", alter_sys=True)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException:
        traceback.print_exc()
        return 99
    return 0


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    first = True
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            names = [name for name in sys.modules if "__m" not in name]  # neither __main__ nor __mp_main__
            os.write(writing, json.dumps(names if first else []).encode()[:60000])
            os._exit(code)
        os.close(writing)
        with os.fdopen(reading, "rb") as names_of:
            found = names_of.read()
        for name in json.loads(found or b"[]"):
            try:
                importlib.import_module(name)
            except ImportError:  # pip has aliases for modules in it
                continue
        first = False
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


main()
