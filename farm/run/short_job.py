"""A short job, from submit to release."""

from contextlib import ExitStack
from pathlib import Path

from farm.base.errors import BuildFailedError
from farm.base.interrupts import held
from farm.engines.base import Engine, Job

TAIL_BYTES = 2000


def run_to_end(engine: Engine, job: Job, dest: Path, limit: int) -> None:
    """Run a job to its end and put its output, of at most `limit` bytes, into `dest`.

    Raises:
        BuildFailedError: It failed; the text has the end of its log.
        InfrastructureError: The engine does not answer.
    """
    with ExitStack() as stack:
        with held():
            handle = engine.submit(job)
            stack.callback(engine.release, handle)
        # `logs` ends with the job: nothing else waits for it.
        log = b"".join(engine.logs(handle))
        observed = engine.observe(handle)
        if observed.state != "done" or observed.exit_code:
            tail = log[-TAIL_BYTES:].decode("utf-8", "replace")
            raise BuildFailedError(f"{job.name} failed ({observed.text or observed.exit_code}):\n{tail}")
        engine.collect(handle, dest, limit)
