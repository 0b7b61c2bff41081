"""Processes of this machine, where POSIX and Windows differ: one interface, two modules. The standard library alone.

For who starts a job: `machine`, `check`, `environment`, `ask_to_end`, `end_marked`, `read`, `remove`, `is_plain`. For
its supervisor: `leave`, `settle`, `end_wanted` and `Tree`, the job's processes. For both: `replace`, and `started`,
which with a pid names a process for good. `APART` are Popen's arguments to start one that outlives this one.
"""

import sys

if sys.platform == "win32":
    from farm.base.processes.windows import (
        APART,
        Tree,
        ask_to_end,
        check,
        end_marked,
        end_wanted,
        environment,
        is_plain,
        leave,
        machine,
        read,
        remove,
        replace,
        settle,
        started,
    )
else:
    from farm.base.processes.posix import (
        APART,
        Tree,
        ask_to_end,
        check,
        end_marked,
        end_wanted,
        environment,
        is_plain,
        leave,
        machine,
        read,
        remove,
        replace,
        settle,
        started,
    )

__all__ = [
    "APART",
    "Tree",
    "ask_to_end",
    "check",
    "end_marked",
    "end_wanted",
    "environment",
    "is_plain",
    "leave",
    "machine",
    "read",
    "remove",
    "replace",
    "settle",
    "started",
]
