"""The journal of runs, jobs, attempts and events, and who owns a run."""

from farm.runs.journal import Journal
from farm.runs.model import FINAL, Attempt, Event, Job, JobKind, Result, Run, State
from farm.runs.owner import Process

__all__ = ["FINAL", "Attempt", "Event", "Job", "JobKind", "Journal", "Process", "Result", "Run", "State"]
