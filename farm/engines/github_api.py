"""A client of GitHub for one repository: what the `github` engine asks of its REST API.

Answers are kept with their ETags, writes are a second apart, and limits are waited for.
"""

import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from farm.base.errors import InfrastructureError, UsageError
from farm.base.text import plain

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


class RepositoryRunner(Answer):
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

    def runners(self) -> list[RepositoryRunner]:
        """The self-hosted runners of the repository, at most 2000."""
        return self._list(f"{self._actions}/runners?per_page=100", "runners", RepositoryRunner)

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
                of_page = TypeAdapter(list[model])  # type: ignore[valid-type]
                entries += of_page.validate_python(_object(body)[key])
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
