"""The `github` engine: one run of a workflow a job, on self-hosted runners of GitHub Actions.

The run carries an id of the farm's own in its name. By it a run is found again whose answer was
lost, or whose controller died before it wrote the handle down. There is no live log: GitHub shows a
job's log when the job has ended.
"""

import contextlib
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from farm.base.errors import ExitCode, InfrastructureError, NoRunnerError, UsageError
from farm.base.temporary import temporary_folder
from farm.base.text import plain
from farm.engines import transfer
from farm.engines.base import FINAL, Capacity, Cause, Job, Observation, Traits
from farm.engines.github_api import (
    Artifact,
    GithubApi,
    RepositoryRunner,
    Run,
    RunJob,
    UncertainError,
)
from farm.engines.transfer import storing, too_large
from farm.plan.file import Plan
from farm.plan.settings import Github
from farm.platforms.facts import PLATFORMS

WORKFLOW = "build-plan.yml"
WORK = "Do the job"
"""The step of the workflow that does the work; any other step that fails is the runner's fault, not
the build's.
"""
OUTPUT = "farm-out"  # the artifact with the job's output folder
MAX_PLAN = 30_000
"""Characters: the inputs of a dispatch may have 65,535 in all (GitHub Docs, `workflow_dispatch`), a
variable of the environment on Windows 32,767 (Microsoft Learn, "Environment Variables").
"""
MAX_LOG = 256 << 20
LOOK_FOR_S = (
    1.0,
    2.0,
    4.0,
    8.0,
    15.0,
    30.0,
)  # waits between looks for a run whose dispatch was not answered
ADOPT = timedelta(days=7)  # a job may queue for one day and run for five
QUEUE_LIMIT = timedelta(hours=24)
HOSTED_LIMIT = timedelta(hours=6)  # of a job on a machine of GitHub's own
SELF_HOSTED_LIMIT = timedelta(days=5)  # of a job on a self-hosted runner
LIMIT_SLACK = timedelta(minutes=2)  # how much earlier a job that met a limit may be seen to end
CANCEL_LOOKS = 60
FORCE_AFTER = 20
TIMED_OUT = 124
INFRASTRUCTURE = (ExitCode.NO_RUNNER, ExitCode.INFRASTRUCTURE)
"""Exit codes of `farm` that are no fault of the build: no engine on the runner, infrastructure."""
_EXIT = re.compile(rb"Process completed with exit code (\d{1,3})\.")


def _cancelled_or_limit(run: Run, jobs: list[RunJob]) -> Observation:
    """Tell a person's cancel from a limit, which GitHub records as `cancelled` as well."""
    for job in jobs:
        if job.started_at is None or job.completed_at is None or not job.runner_name:
            continue
        took = job.completed_at - job.started_at
        if took >= _limit_of(run, job) - LIMIT_SLACK:
            why = f"after {took / timedelta(minutes=1):.0f} minutes, at a limit of GitHub's"
            return Observation("done", why=why, exit_code=TIMED_OUT, cause=Cause.TIME_LIMIT)
    return Observation("cancelled", why="cancelled at GitHub")


def _limit_of(run: Run, job: RunJob) -> timedelta:
    """How long a job may run: its workflow's limit, which the run's title has, or GitHub's."""
    limit = HOSTED_LIMIT
    if "self-hosted" in job.labels:
        limit = SELF_HOSTED_LIMIT
    title = re.search(r"at most (\d{1,6}) minutes", run.display_title)
    if title:
        limit = min(limit, timedelta(minutes=int(title[1])))
    return limit


def _was_dropped(jobs: Iterable[RunJob]) -> bool:
    """True if a job ended in the queue, after as long as GitHub keeps one there."""
    for job in jobs:
        if job.completed_at is None or job.runner_name:
            continue
        if job.completed_at - job.created_at >= QUEUE_LIMIT:
            return True
    return False


class GithubEngine:
    """See `farm.engines.base.Engine`. A job is a build: the runner carries out its plan,
    /farm/job/plan.json.
    """

    name = "github"
    # What its runners are, a build finds there: `farm build` takes the engine that can.
    traits = Traits(gathers=True, queues=True, platforms=frozenset(PLATFORMS))

    def __init__(
        self,
        api: GithubApi,
        github: Github,
        capacity: Capacity,
        *,
        poll_s: float = 15.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._github = github
        self._capacity = capacity
        self.poll_s = poll_s
        self._sleep = sleep
        self._ends: dict[tuple[int, int], Observation] = {}

    def capacity(self) -> Capacity:
        """The limits in `ci/runners.yaml`: GitHub does not know what a runner has."""
        return self._capacity

    def submit(self, job: Job) -> str:
        """Dispatch the job once; a run of the same labels and plan that has not ended is resumed
        instead.

        NoRunnerError: no runner with the labels is online; UsageError: the token may not do it, or
        there is no workflow; InfrastructureError: GitHub does not answer; where the run may have
        begun all the same, the text says so.
        """
        if job.volumes:
            raise UsageError("GitHub Actions keeps no volumes of the farm")
        plan = _plan(job)
        labels = self._github.runs_on("build", plan.parsed_variant, plan.platform)
        key = hashlib.sha256(
            json.dumps([job.name, plan.digest, job.labels], sort_keys=True).encode()
        )
        # The stem names the attempt: by it a run of a controller that died is found. The random end
        # names one dispatch: by it a run is found whose answer was lost.
        stem = f"farm-{key.hexdigest()[:16]}-"
        if job.labels:
            for run in self._api.dispatched_runs(WORKFLOW, self._api.now() - ADOPT):
                words = run.display_title.split()
                is_of_job = any(word.startswith(stem) for word in words)
                if is_of_job and run.status != "completed":
                    return str(run.id)
        if not_now := self._no_runner(labels, self._api.runners()):
            raise NoRunnerError(
                f"{plan.package} for {plan.variant}: {not_now}",
                hint="farm runners check; GitHub would keep the job queued for 24 hours and then "
                "drop it",
            )
        submission = stem + secrets.token_hex(4)
        inputs = {"submission_id": submission, "labels": json.dumps(labels), **_inputs(plan, job)}
        # By GitHub's clock, and with room: the list is cut at `created`, which has whole seconds.
        before = self._api.now() - timedelta(minutes=2)
        try:
            run_id = self._api.dispatch(WORKFLOW, self._github.ref, inputs)
        except UncertainError as error:
            if (run_id := self._look_for(submission, before)) is None:
                raise InfrastructureError(
                    f"{error}; no run {submission} has appeared since, but it still may",
                    hint="run the same command again in a few minutes: it continues with the run "
                    "if it is there",
                ) from error
        if run_id is None and (run_id := self._look_for(submission, before)) is None:
            raise InfrastructureError(f"GitHub accepted {submission}, but its run has not appeared")
        return str(run_id)

    def _look_for(self, submission: str, since: datetime) -> int | None:
        for wait in LOOK_FOR_S:
            self._sleep(wait)
            for run in self._api.dispatched_runs(WORKFLOW, since):
                if submission in run.display_title.split():
                    return run.id
        return None

    def _no_runner(self, labels: Sequence[str], listed: list[RepositoryRunner]) -> str | None:
        """Why no runner can start a job with these labels; None: one is online, busy or not."""
        carrying = _carrying(listed, labels)
        if not carrying:
            return f"no runner of {self._api.repository} has the labels {', '.join(labels)}"
        if not any(runner.status == "online" for runner in carrying):
            names = ", ".join(plain(runner.name) for runner in carrying)
            return f"every runner with the labels {', '.join(labels)} is offline: {names}"
        return None

    def _run(self, handle: str) -> Run | None:
        """The run of a handle; None where GitHub has none, or another engine made the handle."""
        if re.fullmatch(r"[0-9]{1,19}", handle):
            return self._api.run(int(handle))
        return None

    def observe(self, handle: str) -> Observation:
        run = self._run(handle)
        if run is None:
            return Observation("lost", why=f"{self._api.repository} has no run {handle}")
        if run.status == "completed":
            # An end stays as it is, but "Re-run jobs" on GitHub makes a new attempt of the same
            # run.
            if (run.id, run.run_attempt) not in self._ends:
                self._ends[run.id, run.run_attempt] = self._ended(run, self._api.jobs(run.id))
            return self._ends[run.id, run.run_attempt]
        jobs = self._api.jobs(run.id)
        for job in jobs:
            if job.status == "in_progress":
                why = f"on {job.runner_name}"
                for step in job.steps:
                    if step.status == "in_progress":
                        why += f": {step.name}"
                        break
                return Observation("running", why=plain(why))
        return Observation("queued", why=plain(self._why_waiting(run, jobs)))

    def _why_waiting(self, run: Run, jobs: list[RunJob]) -> str:
        if run.status == "waiting":
            return f"waits for a reviewer of its environment: {run.html_url}"
        if run.status == "pending":
            return "waits for another run of its concurrency group"
        waiting = next((job for job in jobs if job.status != "completed"), None)
        if waiting is None:
            return "GitHub has not made its jobs yet"
        if "self-hosted" not in waiting.labels:
            return "waits for a machine of GitHub's own"
        hours = (self._api.now() - waiting.created_at) / timedelta(hours=1)
        since = f"; queued for {hours:.1f} of the 24 hours that GitHub allows"
        try:
            runners = self._api.runners()
        except UsageError as error:  # the token may dispatch, but not list runners
            return (
                "queued at GitHub; why is not known, since the runners cannot be listed "
                f"({error}){since}"
            )
        why = self._no_runner(waiting.labels, runners)
        if why is None:
            why = _why_not_given(_carrying(runners, waiting.labels))
        return why + since

    def _ended(self, run: Run, jobs: list[RunJob]) -> Observation:
        if run.conclusion == "success":
            return Observation("done", exit_code=0)
        # The workflow's limit covers all steps. `farm build` keeps the plan's own, and ends with an
        # exit code.
        if "timed_out" in (run.conclusion, *(job.conclusion for job in jobs)):
            return Observation(
                "done", why="of the workflow", exit_code=TIMED_OUT, cause=Cause.TIME_LIMIT
            )
        if run.conclusion == "cancelled":
            if _was_dropped(jobs):
                return Observation(
                    "lost", why="GitHub dropped it: no runner took it within 24 hours"
                )
            return _cancelled_or_limit(run, jobs)
        if run.conclusion == "failure":
            for job in jobs:
                if job.conclusion == "failure":
                    return self._failed(job)
        return Observation(
            "lost", why=plain(f"GitHub ended it as {run.conclusion}: {run.html_url}")
        )

    def _failed(self, job: RunJob) -> Observation:
        """The end of a job that failed: the build's own fault only in the step that builds."""
        if not job.runner_name:
            return Observation("lost", why="it failed before a runner had taken it")
        step = next((step for step in job.steps if step.conclusion == "failure"), None)
        if step is None:
            at = next((step.name for step in job.steps if step.status != "completed"), "the end")
            return Observation("lost", why=plain(f"{job.runner_name} was lost at step {at!r}"))
        if step.name != WORK:
            return Observation("lost", why=plain(f"step {step.name!r} failed on {job.runner_name}"))
        code = self._exit_code(job)
        why = plain(f"exit code {code} on {job.runner_name}")
        if code in INFRASTRUCTURE:
            return Observation("lost", why=why)
        return Observation("done", why=why, exit_code=code)

    def _exit_code(self, job: RunJob) -> int:
        """The exit code at the end of the job's log; 1 where there is no log."""
        tail = b""
        try:
            for piece in self._bounded_log(job):
                tail = (tail + piece)[-(1 << 16) :]
        except UsageError:
            return 1
        codes = _EXIT.findall(tail)
        if not codes:
            return 1
        return int(codes[-1]) or 1

    def logs(self, handle: str, since: int = 0) -> Iterator[bytes]:
        while self.observe(handle).state not in FINAL:
            self._sleep(self.poll_s)
        run = self._run(handle)
        if run is None:
            return
        skip = since
        for job in self._api.jobs(run.id):
            if job.conclusion == "skipped":
                continue
            try:
                for piece in self._bounded_log(job):
                    fresh = piece[skip:]
                    skip -= len(piece) - len(fresh)
                    if fresh:
                        yield fresh
            except UsageError as error:  # a runner that vanished leaves none
                yield f"{plain(job.name)}: {error}\n".encode()

    def _bounded_log(self, job: RunJob) -> Iterator[bytes]:
        bytes_left = MAX_LOG
        for piece in self._api.log(job.id):
            yield piece[:bytes_left]
            bytes_left -= len(piece)
            if bytes_left <= 0:
                yield b"\n[the log is longer than the farm takes]\n"
                return

    def cancel(self, handle: str) -> None:
        for look in range(CANCEL_LOOKS):
            run = self._run(handle)
            if run is None or run.status == "completed":
                return
            if look in (0, FORCE_AFTER):
                # Whether it took effect is seen in the next rounds.
                with contextlib.suppress(UncertainError):
                    # Force skips steps that run `always()`: only where a plain cancel has not
                    # helped.
                    self._api.cancel(run.id, force=look == FORCE_AFTER)
            self._sleep(self.poll_s)
        raise InfrastructureError(
            f"run {handle} does not stop", hint="look at it on GitHub; its runner may hang"
        )

    def collect(self, handle: str, dest: Path, max_bytes: int) -> list[Path]:
        artifacts = self._outputs(handle)
        if not artifacts:
            raise InfrastructureError(f"run {handle} has left no artifact {OUTPUT}")
        newest = max(artifacts, key=lambda artifact: artifact.id)
        if newest.expired:
            raise InfrastructureError(
                f"the artifact of run {handle} has expired", hint="submit it again"
            )
        dest.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder("artifact-", dest.parent) as folder:
            path = folder / "artifact.zip"
            digest = hashlib.sha256()
            size = 0
            with path.open("wb") as file:
                for piece in self._api.artifact(newest.id):
                    size += len(piece)
                    if size > max_bytes:
                        raise too_large(OUTPUT, None, max_bytes)
                    digest.update(piece)
                    with storing(OUTPUT, path):
                        file.write(piece)
            if newest.digest and newest.digest != f"sha256:{digest.hexdigest()}":
                raise InfrastructureError(
                    f"the artifact of run {handle} does not match GitHub's size and digest",
                    hint="run it again",
                )
            return transfer.unpack_zip(path, dest, max_bytes)

    def release(self, handle: str) -> None:
        """Delete the output at GitHub, where it counts against the storage of the account; the run
        stays to read.
        """
        for artifact in self._outputs(handle):
            self._api.delete_artifact(artifact.id)

    def _outputs(self, handle: str) -> list[Artifact]:
        """The output of a run, once for each of its attempts."""
        run = self._run(handle)
        if run is None:
            return []
        return [artifact for artifact in self._api.artifacts(run.id) if artifact.name == OUTPUT]

    def discard(self, volume: str) -> None:
        """Nothing to do: it keeps none."""


def _carrying(runners: list[RepositoryRunner], labels: Sequence[str]) -> list[RepositoryRunner]:
    needed_labels = set(map(str.lower, labels))
    carrying = []
    for runner in runners:
        runner_labels = {label.name.lower() for label in runner.labels}
        if needed_labels <= runner_labels:
            carrying.append(runner)
    return carrying


def _why_not_given(carrying: list[RepositoryRunner]) -> str:
    busy = [runner.name for runner in carrying if runner.status == "online" and runner.busy]
    if busy:
        return f"busy: {', '.join(busy)}"
    return "GitHub has not given it to a runner yet"


def _plan(job: Job) -> Plan:
    folder = job.inputs.get("/farm/job")
    if folder is None:
        raise UsageError(
            "the github engine carries out plans, and this job has none: no /farm/job/plan.json"
        )
    return Plan.read(folder / "plan.json")


def _inputs(plan: Plan, job: Job) -> dict[str, str]:
    # Without indentation: an input has a limit.
    text = json.dumps(json.loads(plan.to_json()), separators=(",", ":"))
    if len(text) > MAX_PLAN:
        raise UsageError(f"the plan has {len(text)} characters, a dispatch takes {MAX_PLAN}")
    # An hour more than the plan's own limit, for the toolchain image: build-plan.yml.
    return {"plan": text, "timeout_minutes": str(job.timeout_s // 60 + 60)}
