"""A stand-in for a self-hosted runner: takes what fake.py has queued, does the work for real, and
tells the fake.

As GitHub's own runner does it: one job at a time, the log when the job has ended, and a cancelled
job ends when its processes have.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

DONE = b"##[error]Process completed with exit code %d.\n"


@dataclass
class Ended:
    """How the step *Do the job* ended: its log, the files of the artifact, its exit code."""

    log: bytes
    files: dict[str, bytes] = field(default_factory=dict)
    code: int = 0


Work = Callable[[int, dict, Callable[[], bool]], Ended]
"""Does a run with its inputs; the last argument tells whether its end was asked for."""


class StandIn:
    """A runner of that name and labels, while the context lasts."""

    def __init__(self, fake, name: str, labels: list[str], work: Work) -> None:
        self.fake, self.name, self.labels, self.work = fake, name, set(labels), work
        self.taken: list[int] = []
        self.problems: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        fake.add_runner(name, labels)

    def __enter__(self) -> "StandIn":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        assert self.problems == []

    def _serve(self) -> None:
        while not self._over.wait(0.1):
            run = self._next()
            if run is None:
                continue
            try:
                ended = self.work(
                    run,
                    self.fake.inputs[run],
                    lambda run=run: self._over.is_set() or run in self.fake.stops,
                )
            except Exception as error:
                self.problems.append(repr(error))
                ended = Ended(b"the stand-in itself failed\n", {}, 9)
            self._tell(run, ended)

    def _next(self) -> int | None:
        with self.fake.lock:
            for run, about in self.fake.runs.items():
                if (
                    about["status"] == "queued"
                    and set(self.fake.jobs[run][0]["labels"]) <= self.labels
                ):
                    about["stubborn"] = True  # a cancel is carried out by this runner
                    self.fake.take(run, self.name)
                    self.taken.append(run)
                    return run
        return None

    def _tell(self, run: int, ended: Ended) -> None:
        with self.fake.lock:
            if self.fake.runs[run]["status"] == "completed":  # ended by force
                return
            if run in self.fake.stops:
                self.fake.finish(run, "cancelled", ended.log)
            elif ended.code:
                self.fake.finish(run, "failure", ended.log + DONE % ended.code)
            else:
                self.fake.leave(run, ended.files)
                self.fake.finish(run, "success", ended.log)
