"""What Slurm's words for a job mean to the farm: its states, its reasons, a job's own report."""

import json
import re
from dataclasses import replace

from farm.base.text import plain
from farm.engines.base import Cause, Observation

ENDS: dict[str, Observation] = {
    "TIMEOUT": Observation("done", exit_code=124, cause=Cause.TIME_LIMIT),
    "DEADLINE": Observation("done", exit_code=124, cause=Cause.TIME_LIMIT),
    "OUT_OF_MEMORY": Observation("done", exit_code=137, cause=Cause.OUT_OF_MEMORY),
    "NODE_FAIL": Observation("lost", why="its node failed"),
    "BOOT_FAIL": Observation("lost", why="its node did not start"),
    "PREEMPTED": Observation("lost", why="preempted by another job"),
    "REVOKED": Observation("lost", why="revoked by Slurm"),
    "LAUNCH_FAILED": Observation("lost", why="its node could not start it"),
    "CANCELLED": Observation("cancelled", why="cancelled in Slurm's queue"),
}
"""Meanings of Slurm's final states (squeue(1), "JOB STATE CODES"). Of COMPLETED and FAILED the
supervisor says more.
"""
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
WITHOUT_REPORT = ("COMPLETED", "FAILED")
"""Ends of which Slurm does not say the cause: the job's own report does."""
REFUSED = 125

NEVER_LIFTS = {
    r"PartitionTimeLimit": "set slurm.minutes to what `scontrol show partition` says, or name "
    "another partition",
    r"PartitionNodeLimit|PartitionConfig": "name another partition in slurm.partition",
    r"(QOS|Assoc)(Max|Grp)?Wall\w*": "set slurm.minutes to the limit of the QOS or association "
    "(`sacctmgr show qos`, `sacctmgr show assoc`)",
    r"(QOS|Assoc)M(ax|in)\w*Per(Job|Node)\w*|QOSMin\w*": "lower slurm.cpus and slurm.memory_gb, or "
    "name another QOS or account",
    r"AccountNotAllowed|InvalidAccount": "name an account in slurm.account that may use the "
    "partition",
    r"QOSNotAllowed|InvalidQOS": "name a QOS in slurm.qos that the account may use",
    r"BadConstraints": "correct slurm.constraint: `sinfo -o %f` lists the features of the nodes",
    r"DependencyNeverSatisfied": "cancel it, and submit again",
    r"JobHeld(Admin|User)": "ask why it is held; `scontrol release` lets it go",
}
"""Reasons that do not lift by waiting (squeue(1), "JOB REASON CODES"), as patterns, and what to
change.
"""


def advice(reason: str) -> str | None:
    """What to change where a job waits for a reason that never lifts; None: it may lift."""
    for pattern, text in NEVER_LIFTS.items():
        if re.fullmatch(pattern, reason):
            return text
    return None


def observation(listed: str, ended: str, refused: str, cancelled: str) -> Observation:
    """Tell the state of a job by its line of squeue and its own files.

    `listed`: `number|STATE|nodes|reason`, empty where Slurm has forgotten it, as after minutes;
    `ended`: the supervisor's exit.json, written by the job, so not trusted; `refused`: why its node
    let it not enter the toolchain; `cancelled`: not empty where this engine asked for the end.
    """
    number, state, nodes, reason = (listed.split("|", 3) + [""] * 4)[:4]
    if state in ENDS:
        return _at_nodes(ENDS[state], nodes)
    if state in WAITING:
        return _waiting(number, reason)
    if state == "CONFIGURING":
        return Observation("starting", why=f"Slurm prepares {nodes}")
    report = read_report(ended)
    active = bool(state) and state not in WITHOUT_REPORT
    if active:
        # Slurm ends a job by SIGTERM, to the command as to its supervisor: only Slurm knows why,
        # and says so at the end.
        if report and report.exit_code == 0:
            return report
        return Observation("running")
    forgotten = not state
    if report:
        if forgotten and cancelled and report.exit_code:
            return Observation("cancelled", why="cancelled")
        return report
    if refused:
        text = f"node {nodes or '?'} lets no job enter a toolchain: {refused}"
        return Observation("done", why=text, exit_code=REFUSED, cause=Cause.NOT_STARTED)
    if not forgotten:
        # On a network file system the report may be seen later than the end.
        return Observation("running", why=f"Slurm says {state}; waiting for the job's own report")
    if cancelled:
        return Observation("cancelled", why="cancelled")
    return Observation("lost", why="Slurm does not know the job any more, and it left no report")


def _at_nodes(end: Observation, nodes: str) -> Observation:
    """The end of a job, with its nodes where they may be at fault."""
    if end.state == "lost" and nodes:
        return replace(end, why=f"{end.why}: {nodes}")
    return end


def _waiting(number: str, reason: str) -> Observation:
    why = f"in Slurm's queue, job {number}: {reason}"
    change = advice(reason)
    if change is None:
        return Observation("queued", why=why)
    return Observation("queued", why=f"{why}; {change}", cause=Cause.NEVER_STARTS)


def read_report(text: str) -> Observation | None:
    """The result that the supervisor wrote; None where it wrote nothing, or a job something else in
    its place.
    """
    try:
        data = json.loads(text)
        code = data["code"]
        cause = None
        if data["cause"]:
            cause = Cause[data["cause"]]
        detail = None
        if data["detail"] is not None:
            detail = plain(str(data["detail"]))[:200]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if type(code) is not int or not 0 <= code <= 255:
        return None
    if cause is Cause.CANCELLED:
        return Observation("cancelled", why=detail, exit_code=code, cause=cause)
    return Observation("done", why=detail, exit_code=code, cause=cause)
