"""Admission: which waiting job goes to which runner now, and why the others wait. The engines place and run."""

from farm.engines.admission.decide import Admission, Decision, Placement
from farm.engines.admission.model import Running, Task, Worker, fits

__all__ = ["Admission", "Decision", "Placement", "Running", "Task", "Worker", "fits"]
