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
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from farm.base.errors import ExitCode, InfrastructureError, NoRunnerError, UsageError
from farm.base.temporary import temporary_folder
from farm.base.text import first_of, plain, printable
from farm.engines import transfer
from farm.engines.base import FINAL, Capacity, Cause, Job, Observation, Traits
from farm.engines.transfer import storing, too_large
from farm.plan.file import Plan
from farm.plan.settings import Github
from farm.platforms.facts import PLATFORMS

API_VERSION = "2026-03-10"
MAX_PAGES = 20
TRIES = 5
WRITE_EVERY_S = 1.0  # GitHub asks for a second between two writes
SECONDARY_WAIT_S = 60.0  # "wait for at least one minute" where a secondary limit names no time
MAX_WAIT_S = (
    900.0  # how long the farm waits for a limit by itself; beyond it says when to come back
)
TOKENS = ("FARM_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN")
HOW_TO_AUTHORISE = (
    "set FARM_GITHUB_TOKEN (or GITHUB_TOKEN, GH_TOKEN) to a fine-grained token for this "
    "repository alone, with "
    "Actions: read and write and Administration: read (docs/how-to/runners.md)"
)


class Answer(BaseModel):
    """A model of an answer; GitHub may add keys at any time."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Label(Answer):
    name: str
    type: str | None = None


class Listed(Answer):
    """A self-hosted runner as the repository lists it."""

    id: int
    name: str
    os: str
    status: str
    busy: bool
    labels: list[Label]


class Run(Answer):
    id: int
    display_title: str = ""
    status: str | None
    conclusion: str | None
    html_url: str = ""
    run_attempt: int = 1


class Step(Answer):
    name: str
    status: str
    conclusion: str | None


class RunJob(Answer):
    """A job of a run. `runner_name` is empty until a runner has taken it."""

    id: int
    name: str
    status: str
    conclusion: str | None
    runner_name: str | None = None
    labels: list[str] = []
    steps: list[Step] = []
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None


class Artifact(Answer):
    id: int
    name: str
    expired: bool
    digest: str | None = None


class DeploymentRule(Answer):
    """A name or pattern of the branches, or of the tags, that may deploy to an environment."""

    name: str
    type: str = "branch"


class Dispatched(Answer):
    workflow_run_id: int


M = TypeVar("M", bound=BaseModel)


class UncertainError(InfrastructureError):
    """A write was sent and its answer lost: it may have taken effect, so it is not sent again."""


class GithubApi:
    """A client for one repository. `sleep` waits; tests give their own.

    Everywhere UsageError: the token is absent, refused, or lacks a right, or GitHub refuses what
    was asked; InfrastructureError: it does not answer, or limits for longer than the farm waits by
    itself.
    """

    def __init__(
        self, url: str, repository: str, token: str, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not re.fullmatch(r"[!-~]{1,512}", token):
            raise UsageError("no usable token for GitHub", hint=HOW_TO_AUTHORISE)
        self._base = url.rstrip("/")
        self.repository = repository
        self._repo = f"/repos/{repository}"
        self._actions = f"{self._repo}/actions"
        self._sleep = sleep
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {token}",
            "User-Agent": "torch-farm",
            "X-GitHub-Api-Version": API_VERSION,
        }
        self._http = httpx.Client(
            verify=_tls(), timeout=httpx.Timeout(30, connect=10), headers=headers
        )
        self._known: dict[str, tuple[str, bytes, str | None]] = {}
        self._turn = (
            threading.Lock()
        )  # "make requests serially": runs are followed by a thread each
        self._written = float("-inf")
        self._ahead = time.time() - time.monotonic()

    def close(self) -> None:
        self._http.close()

    def now(self) -> datetime:
        """The time at GitHub, by the Date of its last answer: the clock here may be wrong, or
        jump.
        """
        return datetime.fromtimestamp(time.monotonic() + self._ahead, UTC)

    # -- what is read --

    def runners(self) -> list[Listed]:
        """The self-hosted runners of the repository, at most 2000."""
        return self._list(f"{self._actions}/runners?per_page=100", "runners", Listed)

    def run(self, run_id: int) -> Run | None:
        """A run; None if there is none."""
        answer = self._get(f"{self._actions}/runs/{run_id}", absent=True)
        return _read(Run, answer[0]) if answer else None

    def dispatched_runs(self, workflow: str, since: datetime) -> list[Run]:
        """The runs of a workflow that were dispatched since a time, the newest first."""
        when = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        query = f"event=workflow_dispatch&created=%3E%3D{when}&per_page=100"
        return self._list(
            f"{self._actions}/workflows/{workflow}/runs?{query}", "workflow_runs", Run
        )

    def jobs(self, run_id: int) -> list[RunJob]:
        """The jobs of the latest attempt of a run."""
        return self._list(
            f"{self._actions}/runs/{run_id}/jobs?filter=latest&per_page=100", "jobs", RunJob
        )

    def artifacts(self, run_id: int) -> list[Artifact]:
        return self._list(
            f"{self._actions}/runs/{run_id}/artifacts?per_page=100", "artifacts", Artifact
        )

    def setting(self, path: str) -> dict[str, Any] | None:
        """A setting of the repository, such as `/actions/permissions`; None if there is none."""
        answer = self._get(f"{self._repo}{path}", absent=True)
        return _object(answer[0]) if answer else None

    def deployment_rules(self, environment: str) -> list[DeploymentRule]:
        """Which branches and tags an environment with a policy of its own takes."""
        path = f"{self._repo}/environments/{environment}/deployment-branch-policies?per_page=100"
        return self._list(path, "branch_policies", DeploymentRule)

    def log(self, job_id: int) -> Iterator[bytes]:
        """The log of an ended job, in pieces."""
        return self._download(f"{self._actions}/jobs/{job_id}/logs")

    def artifact(self, artifact_id: int) -> Iterator[bytes]:
        """The zip of an artifact, in pieces."""
        return self._download(f"{self._actions}/artifacts/{artifact_id}/zip")

    # -- what is changed --

    def dispatch(self, workflow: str, ref: str, inputs: Mapping[str, str]) -> int | None:
        """Start a workflow, once; the id of its run, or None where GitHub gave none;
        UncertainError: it may exist.
        """
        answer = self._write(
            "POST",
            f"{self._actions}/workflows/{workflow}/dispatches",
            {"ref": ref, "inputs": inputs},
        )
        if answer.content:
            return _read(Dispatched, answer.content).workflow_run_id
        return None

    def cancel(self, run_id: int, *, force: bool = False) -> None:
        """Ask GitHub to cancel a run; one that has ended is fine."""
        self._write(
            "POST",
            f"{self._actions}/runs/{run_id}/{'force-cancel' if force else 'cancel'}",
            fine=(404, 409),
        )

    def delete_artifact(self, artifact_id: int) -> None:
        self._write("DELETE", f"{self._actions}/artifacts/{artifact_id}", fine=(404, 410))

    # -- how --

    def _list(self, path: str, key: str, model: type[M]) -> list[M]:
        entries: list[M] = []
        following: str | None = path
        for _ in range(MAX_PAGES):
            if following is None:
                break
            got = self._get(following)
            assert got is not None
            body, following = got
            try:
                entries += TypeAdapter(list[model]).validate_python(_object(body)[key])  # type: ignore[valid-type]
            except (ValidationError, KeyError) as error:
                raise _unexpected(error) from error
        return entries

    def _get(self, path: str, *, absent: bool = False) -> tuple[bytes, str | None] | None:
        """The body, and the path of the next page. An unchanged answer (304) costs nothing of the
        rate limit.
        """
        with self._turn:
            cached = self._known.get(path)
            answer = self._get_again(path, {"If-None-Match": cached[0]} if cached else {})
            if answer.status_code == 304 and cached:
                return cached[1], cached[2]
            if answer.status_code == 404 and absent:
                return None
            self._check(answer)
            following = answer.links.get("next", {}).get("url")
            if following is not None:
                # The token goes along to the next page.
                if not following.startswith(self._base + "/"):
                    raise InfrastructureError(
                        "GitHub: the next page of a list is elsewhere than its API"
                    )
                following = following.removeprefix(self._base)
            if etag := answer.headers.get("etag"):
                self._known[path] = etag, answer.content, following
            return answer.content, following

    def _get_again(self, path: str, headers: Mapping[str, str]) -> httpx.Response:
        """A read: sent again after a limit, a lost connection or an error of the server, a bounded
        number of times.
        """
        last = ""
        for attempt in range(TRIES):
            try:
                answer = self._send("GET", path, headers=headers)
            except httpx.TransportError as error:
                last = _reason(error)
            else:
                wait = self._limited(answer)
                if wait is not None:
                    last = "a rate limit that does not lift"
                    self._wait(wait)
                    continue
                if answer.status_code < 500:
                    return answer
                last = f"status {answer.status_code}"
            self._sleep(2.0**attempt)
        raise InfrastructureError(
            f"GitHub does not answer {urlsplit(path).path}: {last}", hint="try again later"
        )

    def _write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        fine: tuple[int, ...] = (),
    ) -> httpx.Response:
        """Sent once. Only an answer that says that nothing was done (a rate limit) lets it be sent
        again.
        """
        for _ in range(TRIES):
            with self._turn:
                if (early := self._written + WRITE_EVERY_S - time.monotonic()) > 0:
                    self._sleep(early)
                self._written = time.monotonic()
                try:
                    answer = self._send(method, path, json=body)
                except httpx.TransportError as error:
                    raise UncertainError(f"GitHub did not answer: {_reason(error)}") from error
            # The error may be that of a gateway, after the write was done.
            if answer.status_code >= 500:
                raise UncertainError(f"GitHub answered {answer.status_code} to {method} {path}")
            wait = self._limited(answer)
            if wait is None:
                if answer.status_code not in fine:
                    self._check(answer)
                return answer
            self._wait(wait)
        raise InfrastructureError(
            "GitHub's rate limit does not lift", hint="fewer runs at a time; try again later"
        )

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, self._base + path, **more)
        except httpx.DecodingError as error:
            raise _unexpected(error) from error
        with_date = answer.headers.get("date")
        if with_date:
            self._ahead = parsedate_to_datetime(with_date).timestamp() - time.monotonic()
        return answer

    def _limited(self, answer: httpx.Response) -> float | None:
        """Seconds to wait where the answer is a rate limit: Retry-After, else a used-up one's
        reset, else a minute.
        """
        if answer.status_code not in (403, 429):
            return None
        after = answer.headers.get("retry-after", "")
        if re.fullmatch(r"\d{1,9}", after):
            return float(after)
        reset = answer.headers.get("x-ratelimit-reset", "")
        if answer.headers.get("x-ratelimit-remaining") == "0" and re.fullmatch(r"\d{1,12}", reset):
            return max(1.0, float(reset) - self.now().timestamp())
        if answer.status_code == 429 or b"secondary rate limit" in answer.content[:4096].lower():
            return SECONDARY_WAIT_S
        return None

    def _wait(self, seconds: float) -> None:
        if seconds > MAX_WAIT_S:
            raise InfrastructureError(
                f"GitHub's rate limit lifts in {seconds / 60:.0f} minutes",
                hint="run the same command again then",
            )
        self._sleep(seconds)

    def _check(self, answer: httpx.Response) -> None:
        status = answer.status_code
        if status < 400:
            return
        detail = _message(answer)
        if status == 401:
            raise UsageError(f"GitHub refuses the token: {detail}", hint=HOW_TO_AUTHORISE)
        if status == 403:
            needs = answer.headers.get("x-accepted-github-permissions")
            text = f"the token may not do this in {self.repository}: {detail}"
            raise UsageError(
                text + (f" (needs {plain(needs)})" if needs else ""), hint=HOW_TO_AUTHORISE
            )
        if status == 404:
            text = (
                f"GitHub has no {urlsplit(str(answer.request.url)).path}, or the token may not "
                "see it"
            )
            raise UsageError(
                text, hint=f"is github.repository in ci/runners.yaml right? {HOW_TO_AUTHORISE}"
            )
        if status == 410 or status >= 500:
            raise InfrastructureError(f"GitHub answers {status}: {detail}", hint="try again later")
        raise UsageError(f"GitHub refuses (status {status}): {detail}")

    def _download(self, path: str) -> Iterator[bytes]:
        """Follows the redirect to the storage, without the token."""
        answer = self._get_again(path, {})
        self._check(answer)
        try:
            with httpx.stream(
                "GET", answer.headers.get("location", ""), verify=_tls(), timeout=30
            ) as stored:
                if stored.status_code != 200:
                    raise InfrastructureError(
                        f"GitHub's storage answers {stored.status_code}", hint="try again"
                    )
                yield from stored.iter_bytes(1 << 16)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InfrastructureError(
                f"a download from GitHub broke off: {_reason(error)}"
            ) from error


def _read(model: type[M], body: bytes) -> M:
    """An answer as a model; InfrastructureError where it is none."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _unexpected(error) from error


def _object(body: bytes) -> dict[str, Any]:
    try:
        return TypeAdapter(dict[str, Any]).validate_json(body)
    except ValidationError as error:
        raise _unexpected(error) from error


def _unexpected(error: Exception) -> InfrastructureError:
    return InfrastructureError(
        f"GitHub's answer is not what its API documents: {plain(str(error), 300)}"
    )


def _reason(error: Exception) -> str:
    """An error in one line."""
    return plain(str(error) or type(error).__name__)


def _message(answer: httpx.Response) -> str:
    """GitHub's message of a refusal."""
    try:
        message = answer.json()["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = answer.reason_phrase
    return plain(str(message), 300)


@cache
def _tls() -> ssl.SSLContext:
    """The certificates are read once: that takes longer than a request."""
    return httpx.create_ssl_context()


def connect(url: str, repository: str | None, environ: Mapping[str, str]) -> GithubApi:
    """A client of the repository, with the token of the first variable of TOKENS; UsageError:
    either is missing.
    """
    if repository is None:
        raise UsageError(
            "ci/runners.yaml: github.repository is not set", hint="write owner/name there"
        )
    token = next((environ[name] for name in TOKENS if environ.get(name)), "")
    return GithubApi(url, repository, token)


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
    title = re.search(r"at most (\d{1,6}) minutes", run.display_title)
    for job in jobs:
        if job.started_at is None or job.completed_at is None or not job.runner_name:
            continue
        took = job.completed_at - job.started_at
        limits = [timedelta(minutes=int(title[1]))] if title else []
        limits.append(SELF_HOSTED_LIMIT if "self-hosted" in job.labels else HOSTED_LIMIT)
        if took >= min(limits) - LIMIT_SLACK:
            why = f"after {took / timedelta(minutes=1):.0f} minutes, at a limit of GitHub's"
            return Observation("done", why=why, exit_code=TIMED_OUT, cause=Cause.TIME_LIMIT)
    return Observation("cancelled", why="cancelled at GitHub")


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
                if run.status != "completed" and any(
                    word.startswith(stem) for word in run.display_title.split()
                ):
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

    def _no_runner(self, labels: Sequence[str], listed: list[Listed]) -> str | None:
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
                step = next((step.name for step in job.steps if step.status == "in_progress"), None)
                return Observation(
                    "running", why=plain(f"on {job.runner_name}" + (f": {step}" if step else ""))
                )
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
        not_now = self._no_runner(waiting.labels, runners)
        carrying = _carrying(runners, waiting.labels)
        busy = ", ".join(
            runner.name for runner in carrying if runner.status == "online" and runner.busy
        )
        return (
            not_now or (f"busy: {busy}" if busy else "GitHub has not given it to a runner yet")
        ) + since

    def _ended(self, run: Run, jobs: list[RunJob]) -> Observation:
        if run.conclusion == "success":
            return Observation("done", exit_code=0)
        # The workflow's limit covers all steps. `farm build` keeps the plan's own, and ends with an
        # exit code.
        if run.conclusion == "timed_out" or any(job.conclusion == "timed_out" for job in jobs):
            return Observation(
                "done", why="of the workflow", exit_code=TIMED_OUT, cause=Cause.TIME_LIMIT
            )
        if run.conclusion == "cancelled":
            untouched = [job for job in jobs if not job.runner_name and job.completed_at]
            if any(
                job.completed_at - job.created_at >= QUEUE_LIMIT
                for job in untouched
                if job.completed_at
            ):
                return Observation(
                    "lost", why="GitHub dropped it: no runner took it within 24 hours"
                )
            return _cancelled_or_limit(run, jobs)
        failed = next((job for job in jobs if job.conclusion == "failure"), None)
        if run.conclusion != "failure" or failed is None:
            return Observation(
                "lost", why=plain(f"GitHub ended it as {run.conclusion}: {run.html_url}")
            )
        if not failed.runner_name:
            return Observation("lost", why="it failed before a runner had taken it")
        step = next((step for step in failed.steps if step.conclusion == "failure"), None)
        if step is None:
            at = next((step.name for step in failed.steps if step.status != "completed"), "the end")
            return Observation("lost", why=plain(f"{failed.runner_name} was lost at step {at!r}"))
        if step.name != WORK:
            return Observation(
                "lost", why=plain(f"step {step.name!r} failed on {failed.runner_name}")
            )
        code = self._exit_code(failed)
        why = plain(f"exit code {code} on {failed.runner_name}")
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
        return int(codes[-1]) if codes and codes[-1] != b"0" else 1

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
                with contextlib.suppress(
                    UncertainError
                ):  # whether it took effect is seen in the next rounds
                    # Force skips steps that run `always()`: only where a plain cancel has not
                    # helped.
                    self._api.cancel(run.id, force=look == FORCE_AFTER)
            self._sleep(self.poll_s)
        raise InfrastructureError(
            f"run {handle} does not stop", hint="look at it on GitHub; its runner may hang"
        )

    def collect(self, handle: str, dest: Path, max_bytes: int) -> list[Path]:
        run = self._run(handle)
        if run:
            artifacts = [a for a in self._api.artifacts(run.id) if a.name == OUTPUT]
        else:
            artifacts = []
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
        run = self._run(handle)
        for artifact in self._api.artifacts(run.id) if run else []:
            if artifact.name == OUTPUT:
                self._api.delete_artifact(artifact.id)

    def discard(self, volume: str) -> None:
        """Nothing to do: it keeps none."""


def _carrying(runners: list[Listed], labels: Sequence[str]) -> list[Listed]:
    needed_labels = {label.lower() for label in labels}
    return [
        runner
        for runner in runners
        if needed_labels <= {label.name.lower() for label in runner.labels}
    ]


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


RELEASE = "release"  # the environment of the job that publishes, whose name the index's role trusts
SHOWN = 5  # of the branches and tags that may publish
EVERYBODY = "all_external_contributors"
APPROVAL = "/actions/permissions/fork-pr-contributor-approval"


def missing_settings(api: GithubApi) -> list[str]:
    """Settings that GitHub lacks, each with the place to set it; UsageError: the token may not read
    them.
    """
    missing = []
    repository = api.setting("") or {}
    public = repository.get("visibility", "public") == "public"
    if public and (api.setting(APPROVAL) or {}).get("approval_policy") != EVERYBODY:
        missing.append(
            "a pull request of a stranger can run on the self-hosted runners: Settings, Actions, "
            "General, "
            "'Require approval for all external contributors'"
        )
    if not (api.setting("/actions/permissions") or {}).get("sha_pinning_required"):
        missing.append(
            "actions run that are not pinned: Settings, Actions, General, 'Require actions to be "
            "pinned to a "
            "full-length commit SHA'"
        )
    environment = api.setting(f"/environments/{RELEASE}")
    if environment:
        policy = environment.get("deployment_branch_policy")
    else:
        policy = None
    if environment is None:
        missing.append(
            f"there is no environment {RELEASE}: Settings, Environments; with reviewers, and for "
            "main alone"
        )
    elif policy is None:
        missing.append(
            f"every branch may publish: Settings, Environments, {RELEASE}, 'Deployment branches "
            "and tags': main alone"
        )
    elif policy["custom_branch_policies"]:
        missing += _wrong_branches(api, str(repository.get("default_branch", "main")))
    return missing


def _wrong_branches(api: GithubApi, default: str) -> list[str]:
    """Branches besides the default one that may publish, or that the default one may not."""
    rules = [(rule.type, rule.name) for rule in api.deployment_rules(RELEASE)]
    if rules == [("branch", default)]:
        return []
    names = [f"{kind} {printable(name)}" for kind, name in rules]
    branches = first_of(names, SHOWN) or "nothing"
    where = (
        f"Settings, Environments, {RELEASE}, 'Deployment branches and tags': the branch "
        f"{default} alone"
    )
    return [f"{branches} may publish: {where}"]
