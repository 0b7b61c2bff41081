"""The journal of runs, jobs, attempts and events; who owns a run, and the state it is in."""

from farm.run.journal.journal import Journal
from farm.run.journal.model import (
    FINAL,
    Attempt,
    Event,
    EventKind,
    Job,
    JobKind,
    OpenRun,
    Process,
    Request,
    Result,
    Run,
    State,
    Until,
)
from farm.run.journal.state import Phase, Reason, RunState, state_of

__all__ = [
    "FINAL",
    "Attempt",
    "Event",
    "EventKind",
    "Job",
    "JobKind",
    "Journal",
    "OpenRun",
    "Phase",
    "Process",
    "Reason",
    "Request",
    "Result",
    "Run",
    "RunState",
    "State",
    "Until",
    "state_of",
]
