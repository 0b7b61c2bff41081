"""The build as an engine's job: what it is given, how it is followed, and what its end means."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path

from farm.base import failures
from farm.base.errors import BuildFailedError, InfrastructureError
from farm.base.interrupts import deferred_interrupts
from farm.base.text import log_line
from farm.engines.base import FINAL, Capacity, Cause, Engine, Job, Observation
from farm.engines.transfer import storing
from farm.plan.file import Plan
from farm.plan.platforms.base import platform
from farm.platforms.facts import DEFAULT
from farm.run.run_state import EVERY_S
from farm.run.workspace import Watcher

MAX_LOG = 256 << 20
LOG_TAIL = 1 << 20  # bytes at the end of a log that are searched for the error
ADVICE = {
    Cause.OUT_OF_MEMORY: "raise memory_per_job_gb in the recipe so that fewer compilers run at "
    "once, or memory_gb of the runner in ci/runners.yaml",
    Cause.TIME_LIMIT: "raise timeout_minutes in the recipe; the next build continues with what is "
    "compiled",
    Cause.SITE_LIMIT: "the recipe allows more: name a partition or QOS with a longer limit in "
    "`slurm:`, or raise slurm.minutes; `farm retry` continues with what is compiled",
}
"""Hints for an end that the engine itself explains."""
NOTED = ("farm: step", "farm: waits")
"""How the lines begin that steps.py writes itself; it marks such lines of programs."""
NINJA = re.compile(r"\[([0-9]{1,6})/([0-9]{1,6})\]")

TREE = "/farm/src"
CACHE = "/farm/ccache"
TREES = "farm-tree-"
CACHES = "farm-ccache-"  # how the names of their volumes begin


def tree_volume(digest: str) -> str:
    """The volume with the build tree of the plan that has this digest."""
    return f"{TREES}{digest[:24]}"


def cache_volume(plan: Plan, project: str) -> str | None:
    """The compiler cache of one package of one project, which no other may find; None where the
    recipe has none.
    """
    if "ccache" in plan.apt:
        return f"{CACHES}{project}-{plan.package}"
    return None


def container_cache(plan: Plan, project: str) -> dict[str, str]:
    """Folders of a container that outlive it where the build tree does not, and their volumes."""
    begin = f"{CACHES}{project}-{plan.package}"
    return {
        folder: f"{begin}-{folder.rpartition('/')[2]}"
        for folder in platform(plan.platform).cache_folders
    }


def kept(plan: Plan, project: str) -> dict[str, str]:
    """Folders that outlive an attempt, and their volumes: the plan's own build tree, the package's
    compiler cache.
    """
    cache = cache_volume(plan, project)
    return {TREE: tree_volume(plan.digest), **({CACHE: cache} if cache else {})}


def make_job(
    plan: Plan,
    *,
    image: str,
    inputs: dict[str, Path],
    capacity: Capacity,
    labels: dict[str, str],
    volumes: dict[str, str] | None = None,
    holder: str = "",
) -> Job:
    """The job of a plan. `inputs`: the rendered job as /farm/job, the gathered sources as
    /farm/source.

    `holder`: the run and its log, for another build that waits for the same tree. The others are as
    in Job.
    """
    system = platform(plan.platform)
    output = system.host_output(plan)
    limit_s = plan.timeout_minutes * 60
    passed_on = {name: os.environ[name] for name in system.variables if name in os.environ}
    if image:
        command = system.container_command(output, limit_s)
        passed_on |= system.container_variables
    else:
        command = system.host_command(output)
    # So many compilers at a time that each has its memory, and not more than there are cores.
    by_memory = int(capacity.memory / (plan.memory_per_job_gb * 1e9))
    return Job(
        name=f"{plan.package}-{plan.variant}",
        image=image,
        command=command,
        inputs=inputs,
        output=output,
        environment={
            "FARM_JOBS": str(max(1, min(int(capacity.cpus), by_memory))),
            **({"FARM_RUN": holder} if holder else {}),
            **passed_on,
        },
        limits=capacity,
        timeout_s=limit_s,
        labels=labels,
        volumes=volumes or {},
        platform=plan.platform,
        machine=plan.machine,
        own_init=bool(image) and system.own_init,
    )


@contextlib.contextmanager
def completed(
    engine: Engine, job: Job, line: Callable[[str], object] = lambda _text: None
) -> Iterator[tuple[str, bytes, Observation]]:
    """A short job that has run to its end: its handle, its log and how it ended; the engine forgets
    it afterwards. `line` gets each line of its output.
    """
    with contextlib.ExitStack() as stack:
        with deferred_interrupts():
            handle = engine.submit(job)
            stack.callback(engine.release, handle)
        # `logs` ends with the job: nothing else waits for it.
        log = bytearray()
        for piece in engine.logs(handle):
            begin = log.rfind(b"\n") + 1
            log += piece
            for text in bytes(log[begin:]).split(b"\n")[:-1]:
                line(log_line(text.decode("utf-8", "replace")))
        yield handle, bytes(log), engine.observe(handle)


def follow(
    engine: Engine,
    handle: str,
    log: Path,
    watcher: Watcher,
    note: Callable[[int, int], object] = lambda *_: None,
    saw: Callable[[Observation], object] = lambda _: None,
) -> Observation:
    """Write the job's output to `log` and show it until its end, which is returned; `note` gets
    steps, `saw` states.
    """
    saw(observed := engine.observe(handle))
    while observed.state in ("queued", "starting"):
        time.sleep(engine.poll_s)
        saw(observed := engine.observe(handle))
    noted_at = float("-inf")
    with storing("the build's log", log):
        log.parent.mkdir(parents=True, exist_ok=True)
        stream = log.open(
            "wb", buffering=0
        )  # a full disk fails the write itself, not the close at the end
    # Closed where this machine's disk fails as well: else the engine's own stream would stay open.
    with stream, contextlib.closing(_lines(engine, handle, stream)) as lines:
        for text in lines:
            printable_line = log_line(text)
            match = NINJA.match(printable_line)
            if match:
                watcher.progress(int(match[1]), int(match[2]))
                if time.monotonic() - noted_at >= EVERY_S or match[1] == match[2]:
                    noted_at = time.monotonic()
                    note(int(match[1]), int(match[2]))
            (watcher.note if printable_line.startswith(NOTED) else watcher.line)(printable_line)
    while (observed := engine.observe(handle)).state not in FINAL:
        time.sleep(0.05)  # the output ends a moment before the engine notes the end
    return observed


def _lines(engine: Engine, handle: str, stream: FileIO) -> Generator[str, None, None]:
    """The lines of a build's output, of which so much as there may be goes to `stream`, too."""
    tail = b""
    bytes_left = MAX_LOG
    for piece in engine.logs(handle):
        with storing("the build's log", Path(str(stream.name))):
            stream.write(piece[: max(0, bytes_left)])
            if 0 < bytes_left < len(piece):
                stream.write(b"\n[the log is longer than the farm keeps]\n")
        bytes_left -= len(piece)
        *complete_lines, tail = (tail + piece).split(b"\n")
        # A line without end would fill the memory: of it the end is shown.
        tail = tail[-65536:]
        for line in complete_lines:
            yield line.decode("utf-8", "replace")
    if tail:
        yield tail.decode("utf-8", "replace")


def judge(observed: Observation, log: Path, platform_name: str = DEFAULT) -> None:
    """Raise what the end of a build means; a success returns.

    NoRunnerError: the machine lacks something, in the script's own words; BuildFailedError: the
    build's own fault, with its first error and the cause where known; InfrastructureError: the
    engine lost it, or it was killed from outside.
    """
    if observed.state != "done":
        raise InfrastructureError(
            f"the build was {observed.state}: {observed.text}", hint="run the same command again"
        )
    if observed.cause is Cause.KILLED:
        raise InfrastructureError(
            f"the build was {observed.text}",
            hint="run the same command again: it continues with what is compiled",
        )
    # A script reserves some exit codes for what its machine lacks; with a cause the code is the
    # engine's.
    failure = platform(platform_name).failures.get(observed.exit_code or 0)
    if failure is not None and observed.cause is None:
        text = "\n".join("    " + line for line in log_end(log)[-5:])
        script = platform(platform_name).entry
        raise failure(
            f"{script} ended with {observed.exit_code}; its last lines:\n{text}",
            hint=f"the whole log: {log}",
        )
    if observed.exit_code != 0:
        why = f" ({observed.text})" if observed.text else ""
        cause = failures.read(
            log_end(log), build=True, machine=platform(platform_name).self_contained
        )
        if observed.cause in ADVICE:
            cause = replace(cause, advice=ADVICE[observed.cause])
        raise BuildFailedError(
            f"the build failed with exit code {observed.exit_code}{why}:\n{cause.text}",
            hint=cause.hint(log),
        )


TIMES = re.compile(r"farm: times((?: +[0-9]+m[0-9.]+s){4})")
"""What each step of build.sh prints at its end: minutes and seconds of user and system, of the
shell and of what it started (`times` of bash).
"""


def cpu_seconds(log: Path) -> float | None:
    """Return the CPU time of a build as its log says; None: the log does not say it."""
    if not log.is_file():
        return None
    total = None
    for line in log_end(log):
        match = TIMES.search(line)
        if match is None:
            continue
        for word in match[1].split():
            minutes, _, seconds = word.rstrip("s").partition("m")
            total = (total or 0.0) + int(minutes) * 60 + float(seconds)
    return total


def log_end(log: Path) -> list[str]:
    """The last lines of a log, at most a megabyte, made safe to print."""
    size = log.stat().st_size
    with log.open("rb") as stream:
        stream.seek(max(0, size - LOG_TAIL))
        return [log_line(line) for line in stream.read().decode("utf-8", "replace").splitlines()]


def the_wheel(folder: Path) -> Path:
    """The one wheel that a build left in `folder`."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildFailedError(f"the build left {len(wheels)} wheels in {folder}, expected one")
    return wheels[0]
