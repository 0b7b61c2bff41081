"""The rights of every build container, on the `docker` and the `swarm` engine alike.

No capabilities, no new privileges, Docker's own seccomp profile, a bound on processes, memory without swap, a bound on
what the engine keeps of its output. What one of them cannot do is in its engine's module and in docs/dispatch.md.
"""

PIDS = 4096
CAP_DROP = ["ALL"]
SECURITY = ["no-new-privileges"]
LOG_DRIVER = "json-file"
LOG_OPTIONS = {"max-size": "64m", "max-file": "8"}
"""Limits of the output that dockerd keeps; the farm's own copy ends at `farm.run.build.MAX_LOG`."""
