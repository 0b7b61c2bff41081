"""The few calls of GitHub's REST API that the farm makes, with its rules on rates, retries and redirects.

Source: GitHub Docs, "REST API endpoints for GitHub Actions", "Rate limits for the REST API" and "Best practices for
using the REST API", API version 2026-03-10. What comes back is checked and bounded; the token goes to the API alone.
"""

import re
import ssl
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from farm.base.errors import InfrastructureError, UsageError
from farm.base.text import plain


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
    created_at: datetime
    run_attempt: int = 1
    path: str = ""
    """The file of its workflow, such as `.github/workflows/build-plan.yml`."""


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
    completed_at: datetime | None = None


class Artifact(Answer):
    id: int
    name: str
    size_in_bytes: int
    expired: bool
    digest: str | None = None


class Repository(Answer):
    visibility: str = "public"
    default_branch: str = "main"


class Approval(Answer):
    """Which pull requests from forks wait for a maintainer before their workflows run."""

    approval_policy: str


class Permissions(Answer):
    sha_pinning_required: bool = False


class BranchPolicy(Answer):
    protected_branches: bool
    custom_branch_policies: bool


class DeploymentRule(Answer):
    """A name or pattern of the branches, or of the tags, that may deploy to an environment."""

    name: str
    type: str = "branch"


class Environment(Answer):
    deployment_branch_policy: BranchPolicy | None = None


class Dispatched(Answer):
    workflow_run_id: int


class Token(Answer):
    """A registration token, valid for an hour."""

    token: str


class JitConfig(Answer):
    """The configuration of a runner that takes one job."""

    encoded_jit_config: str


M = TypeVar("M", bound=BaseModel)


def read(model: type[M], body: bytes) -> M:
    """An answer as a model; InfrastructureError where it is none."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise unexpected_answer(error) from error


def unexpected_answer(error: Exception) -> InfrastructureError:
    """The error for an answer that GitHub does not document."""
    lines = plain(str(error), 300)
    return InfrastructureError(f"GitHub's answer is not what its API documents: {lines}")


def reason(error: Exception) -> str:
    """An error in one line."""
    return plain(str(error) or type(error).__name__)


def message(answer: httpx.Response) -> str:
    """GitHub's message of a refusal."""
    try:
        message = answer.json()["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = answer.reason_phrase
    return plain(str(message), 300)


def parsed_date(text: str | None) -> datetime | None:
    """The time of a Date header; None where there is none."""
    try:
        return parsedate_to_datetime(text) if text else None
    except ValueError:
        return None


WINDOW_S = 60.0
POINTS = 440
READ, WRITE = 1, 5
WRITE_EVERY_S = 1.6
"""Seconds between two writes: fewer than 40 a minute. GitHub asks for one second at least."""


class Budget:
    """See the module. `clock` gives seconds, `sleep` waits; both may be a test's."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._spent: deque[tuple[float, int]] = deque()
        self._written = float("-inf")

    def spend(self, points: int) -> None:
        """Waits until a request of so many points may be sent, and counts it."""
        with self._lock:
            # The lock is held during the wait too: requests queue behind it, in order, instead of all waking at once.
            wait = self._until_it_fits(points)
            if points == WRITE:
                wait = max(wait, self._written + WRITE_EVERY_S - self._clock())
            if wait > 0:
                self._sleep(wait)
            now = self._clock()
            self._spent.append((now, points))
            if points == WRITE:
                self._written = now

    def _until_it_fits(self, points: int) -> float:
        """Seconds until enough of the last minute's requests are older than that."""
        now = self._clock()
        while self._spent and self._spent[0][0] <= now - WINDOW_S:
            self._spent.popleft()
        # The oldest requests leave the window first: wait for as many of them as make room.
        over = sum(cost for _, cost in self._spent) + points - POINTS
        for when, cost in self._spent:
            if over <= 0:
                break
            over -= cost
            now = when + WINDOW_S
        return now - self._clock()


API_VERSION = "2026-03-10"
MAX_BODY = 16 << 20
MAX_PAGES = 20
CACHED = 1024
"""Answers that are kept to be asked for again with their ETag: the jobs of 400 followed runs, and the lists."""
TRIES = 5
SECONDARY_WAIT_S = 60.0  # "wait for at least one minute" where a secondary limit names no time
MAX_WAIT_S = 900.0
"""How long the farm waits for a limit by itself; beyond it says when to come back."""
LINK_TRIES = 3
DEFAULT_GROUP = 1
"""The group of runners that every repository has."""
STORAGE_HEADERS = {"User-Agent": "torch-farm", "Accept-Encoding": "identity"}
TOKENS = ("FARM_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN")
HOW_TO_AUTHORISE = (
    "set FARM_GITHUB_TOKEN (or GITHUB_TOKEN, GH_TOKEN) to a fine-grained token for this repository alone, with "
    "Actions: read and write and Administration: read (docs/runners.md)"
)


class UncertainError(InfrastructureError):
    """A write was sent and its answer lost: it may have taken effect, so it is not sent again."""


class GithubApi:
    """A client for one repository. `sleep` waits, `clock` gives seconds; tests give their own.

    Raises (everywhere):
        UsageError: The token is absent, refused, or lacks a right; or GitHub refuses what was asked.
        InfrastructureError: GitHub does not answer, or limits for longer than the farm waits by itself.
    """

    def __init__(
        self,
        url: str,
        repository: str,
        token: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not re.fullmatch(r"[!-~]{1,512}", token):
            raise UsageError("no usable token for GitHub", hint=HOW_TO_AUTHORISE)
        self._base = url.rstrip("/")
        self.repository = repository
        self._prefix = f"/repos/{repository}/actions"
        self._sleep = sleep
        self._http = httpx.Client(verify=_tls(), timeout=httpx.Timeout(30, connect=10), follow_redirects=False)
        self._headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {token}",
            "User-Agent": "torch-farm",
            "X-GitHub-Api-Version": API_VERSION,
        }
        self._cache: OrderedDict[str, tuple[str, bytes, str | None]] = OrderedDict()
        self._budget = Budget(clock, sleep)
        self._turn = threading.Lock()  # "make requests serially": runs are followed by a thread each
        self._ahead = time.time() - time.monotonic()

    def close(self) -> None:
        self._http.close()

    def now(self) -> datetime:
        """The time at GitHub, by the Date of its last answer: the clock here may be wrong, or jump."""
        return datetime.fromtimestamp(time.monotonic() + self._ahead, UTC)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def runners(self) -> list[Listed]:
        """The self-hosted runners of the repository, at most 2000."""
        return self._list(f"{self._prefix}/runners?per_page=100", "runners", Listed)

    def run(self, run_id: int) -> Run | None:
        """A run; None if there is none."""
        found = self._get(f"{self._prefix}/runs/{run_id}", absent=True)
        return read(Run, found[0]) if found else None

    def dispatched_runs(self, workflow: str, since: datetime) -> list[Run]:
        """The runs of a workflow that were dispatched since a time, the newest first."""
        when = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        query = f"event=workflow_dispatch&created=%3E%3D{when}&per_page=100"
        return self._list(f"{self._prefix}/workflows/{workflow}/runs?{query}", "workflow_runs", Run)

    def jobs(self, run_id: int) -> list[RunJob]:
        """The jobs of the latest attempt of a run."""
        return self._list(f"{self._prefix}/runs/{run_id}/jobs?filter=latest&per_page=100", "jobs", RunJob)

    def artifacts(self, run_id: int) -> list[Artifact]:
        return self._list(f"{self._prefix}/runs/{run_id}/artifacts?per_page=100", "artifacts", Artifact)

    def about(self) -> Repository:
        """The repository's visibility and its default branch."""
        return self._setting("", Repository, Repository())

    def approval_policy(self) -> str | None:
        """Which pull requests from forks wait for approval; None where the repository has no such setting."""
        path = "/actions/permissions/fork-pr-contributor-approval"
        return self._setting(path, Approval, Approval(approval_policy="")).approval_policy or None

    def pins_actions(self) -> bool:
        """True if only actions run that are pinned to a commit."""
        return self._setting("/actions/permissions", Permissions, Permissions()).sha_pinning_required

    def environment(self, name: str) -> Environment | None:
        """An environment; None if there is none."""
        found = self._get(f"/repos/{self.repository}/environments/{name}", absent=True)
        return read(Environment, found[0]) if found else None

    def deployment_rules(self, environment: str) -> list[DeploymentRule]:
        """Which branches and tags an environment with a policy of its own takes."""
        path = f"/repos/{self.repository}/environments/{environment}/deployment-branch-policies?per_page=100"
        return self._list(path, "branch_policies", DeploymentRule)

    def _setting(self, path: str, model: type[M], absent: M) -> M:
        found = self._get(f"/repos/{self.repository}{path}", absent=True)
        return read(model, found[0]) if found else absent

    def log(self, job_id: int) -> Iterator[bytes]:
        """The log of an ended job, in pieces; nothing where GitHub has none."""
        return self._download(f"{self._prefix}/jobs/{job_id}/logs")

    def artifact(self, artifact_id: int) -> Iterator[bytes]:
        """The zip of an artifact, in pieces."""
        return self._download(f"{self._prefix}/artifacts/{artifact_id}/zip")

    # -- what is changed ----------------------------------------------------------------------------------------------

    def dispatch(self, workflow: str, ref: str, inputs: Mapping[str, str]) -> int | None:
        """Start a workflow, once: never sent again. The id of its run, or None where GitHub gave none.

        Raises:
            UncertainError: The answer was lost; the run may exist.
        """
        answer = self._write("POST", f"{self._prefix}/workflows/{workflow}/dispatches", {"ref": ref, "inputs": inputs})
        return read(Dispatched, answer.content).workflow_run_id if answer.content else None

    def cancel(self, run_id: int, *, force: bool = False) -> None:
        """Ask GitHub to cancel a run; one that has ended is fine."""
        self._write("POST", f"{self._prefix}/runs/{run_id}/{'force-cancel' if force else 'cancel'}", fine=(404, 409))

    def registration_token(self) -> str:
        """A secret with which machines register as runners, for an hour."""
        return read(Token, self._write("POST", f"{self._prefix}/runners/registration-token").content).token

    def jit_config(self, name: str, labels: Sequence[str]) -> str:
        """A secret with which one machine takes one job, under a name of its own, and is then gone."""
        asked = {"name": name, "runner_group_id": DEFAULT_GROUP, "labels": list(labels)}
        answer = self._write("POST", f"{self._prefix}/runners/generate-jitconfig", asked)
        return read(JitConfig, answer.content).encoded_jit_config

    def delete_artifact(self, artifact_id: int) -> None:
        self._write("DELETE", f"{self._prefix}/artifacts/{artifact_id}", fine=(404, 410))

    # -- how ----------------------------------------------------------------------------------------------------------

    def _list(self, path: str, key: str, model: type[M]) -> list[M]:
        found: list[M] = []
        following: str | None = path
        for _ in range(MAX_PAGES):
            if following is None:
                break
            got = self._get(following)
            assert got is not None
            body, following = got
            try:
                items = TypeAdapter(dict[str, Any]).validate_json(body)[key]
                found += TypeAdapter(list[model]).validate_python(items)  # type: ignore[valid-type]
            except (ValidationError, KeyError) as error:
                raise unexpected_answer(error) from error
        return found

    def _get(self, path: str, *, absent: bool = False) -> tuple[bytes, str | None] | None:
        """The body, and the path of the next page. An unchanged answer (304) costs nothing of the rate limit."""
        with self._turn:
            return self._get_in_turn(path, absent=absent)

    def _get_in_turn(self, path: str, *, absent: bool) -> tuple[bytes, str | None] | None:
        known = self._cache.get(path)
        headers = {"If-None-Match": known[0]} if known else {}
        answer = self._get_again("GET", path, headers)
        if answer.status_code == 304 and known:
            self._cache.move_to_end(path)
            return known[1], known[2]
        if answer.status_code == 404 and absent:
            return None
        self._check(answer)
        following = answer.links.get("next", {}).get("url")
        if following is not None:
            # The token goes along to the next page.
            if not following.startswith(self._base + "/"):
                raise InfrastructureError("GitHub: the next page of a list is elsewhere than its API")
            following = following.removeprefix(self._base)
        if etag := answer.headers.get("etag"):
            self._cache[path] = (etag, answer.content, following)
            while len(self._cache) > CACHED:
                self._cache.popitem(last=False)
        return answer.content, following

    def _write(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, fine: tuple[int, ...] = ()
    ) -> httpx.Response:
        """Sent once. Only an answer that says that nothing was done (a rate limit) lets it be sent again."""
        for _ in range(TRIES):
            with self._turn:
                try:
                    answer = self._send(method, path, {}, body)
                except httpx.TransportError as error:
                    raise UncertainError(f"GitHub did not answer: {reason(error)}") from error
            # The error may be that of a gateway, after the write was done.
            if answer.status_code >= 500:
                raise UncertainError(f"GitHub answered {answer.status_code} to {method} {path}")
            wait = self._limited(answer)
            if wait is None:
                if answer.status_code not in fine:
                    self._check(answer)
                return answer
            self._wait(wait)
        raise InfrastructureError("GitHub's rate limit does not lift", hint="fewer runs at a time; try again later")

    def _get_again(self, method: str, path: str, headers: Mapping[str, str]) -> httpx.Response:
        """A read: sent again after a limit, a lost connection or an error of the server, a bounded number of times."""
        last = ""
        for attempt in range(TRIES):
            try:
                answer = self._send(method, path, headers)
            except httpx.TransportError as error:
                last = reason(error)
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
        raise InfrastructureError(f"GitHub does not answer {urlsplit(path).path}: {last}", hint="try again later")

    def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        self._budget.spend(READ if method == "GET" else WRITE)
        request = self._http.build_request(method, self._base + path, headers={**self._headers, **headers}, json=body)
        answer = self._http.send(request, stream=True)
        try:
            read = bytearray()
            for piece in answer.iter_bytes():
                read += piece
                if len(read) > MAX_BODY:
                    raise InfrastructureError(f"GitHub: the answer is larger than {MAX_BODY >> 20} MiB to {path}")
        except httpx.DecodingError as error:
            raise unexpected_answer(error) from error
        finally:
            answer.close()
        if (date := parsed_date(answer.headers.get("date"))) is not None:
            self._ahead = date.timestamp() - time.monotonic()
        # `iter_bytes` has decoded the body: with this header httpx would decode it again.
        kept = {name: value for name, value in answer.headers.items() if name.lower() != "content-encoding"}
        return httpx.Response(answer.status_code, headers=kept, content=bytes(read), request=request)

    def _limited(self, answer: httpx.Response) -> float | None:
        """Seconds to wait where the answer is a rate limit, else None.

        Retry-After first, then the reset of a used-up limit, then a minute for a secondary limit.
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
                f"GitHub's rate limit lifts in {seconds / 60:.0f} minutes", hint="run the same command again then"
            )
        self._sleep(seconds)

    def _check(self, answer: httpx.Response) -> None:
        status = answer.status_code
        if status < 300:
            return
        detail = message(answer)
        if status == 401:
            raise UsageError(f"GitHub refuses the token: {detail}", hint=HOW_TO_AUTHORISE)
        if status == 403:
            needs = answer.headers.get("x-accepted-github-permissions")
            text = f"the token may not do this in {self.repository}: {detail}"
            raise UsageError(text + (f" (needs {plain(needs)})" if needs else ""), hint=HOW_TO_AUTHORISE)
        if status == 404:
            text = f"GitHub has no {urlsplit(str(answer.request.url)).path}, or the token may not see it"
            raise UsageError(text, hint=f"is github.repository in ci/runners.yaml right? {HOW_TO_AUTHORISE}")
        if status == 410:
            raise InfrastructureError(f"GitHub no longer has it: {detail}")
        raise UsageError(f"GitHub refuses (status {status}): {detail}")

    def _download(self, path: str) -> Iterator[bytes]:
        """Follow the redirect to the storage, without the token. Its link lives for a minute: an expired one is
        asked for anew, but only before the first byte.
        """
        for _ in range(LINK_TRIES):
            answer = self._get_again("GET", path, {})
            if answer.status_code not in (301, 302, 303, 307, 308):
                self._check(answer)
                raise InfrastructureError("GitHub's answer has no download link")
            link = answer.headers.get("location", "")
            own = urlsplit(self._base)
            # Plain http only from the address of the API itself, which a stand-in in a test has.
            if urlsplit(link).scheme != "https" and urlsplit(link)[:2] != own[:2]:
                raise InfrastructureError("GitHub's download link is not https")
            try:
                with self._http.stream("GET", link, headers=STORAGE_HEADERS) as stored:
                    if stored.status_code == 200:
                        yield from stored.iter_bytes(1 << 16)
                        return
                    status = stored.status_code
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise InfrastructureError(f"a download from GitHub broke off: {reason(error)}") from error
            if status < 500 and status not in (401, 403, 404, 410):
                break
            self._sleep(1.0)
        raise InfrastructureError(f"GitHub's storage answers {status} for the download link", hint="try again")


@cache
def _tls() -> ssl.SSLContext:
    """The certificates are read once: that takes longer than a request."""
    return httpx.create_ssl_context()


def connect(url: str, repository: str | None, environ: Mapping[str, str]) -> GithubApi:
    """A client of the repository, with the token of FARM_GITHUB_TOKEN, else GITHUB_TOKEN, else GH_TOKEN.

    Raises:
        UsageError: No repository is named, or there is no token.
    """
    if repository is None:
        raise UsageError("ci/runners.yaml: github.repository is not set", hint="write owner/name there")
    token = next((environ[name] for name in TOKENS if environ.get(name)), "")
    return GithubApi(url, repository, token)
