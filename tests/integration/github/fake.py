"""A fake of GitHub's REST API for Actions, on loopback. It is a fake because the real one needs an
account, a network and somebody's runners; it says so here so that nobody takes a green test for a
run on GitHub.

What keeps it honest: every answer is checked against the models that githubkit-schemas makes of
GitHub's published OpenAPI description (version 2026-03-10), every request body too; inputs and run
names come from the project's own workflow files, and an input that a workflow does not declare is
refused as GitHub refuses it.
"""

import contextlib
import hashlib
import io
import json
import re
import threading
import time
import types
import typing
import zipfile
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import githubkit_schemas.v2026_03_10.models as published
import yaml
from pydantic import BaseModel

WORKFLOWS = Path(__file__).parents[3] / ".github" / "workflows"
REPOSITORY = "owner/farm"
TOKEN = "a-token-for-tests"


def sample(kind):
    """The least that a published model takes: required fields only, the simplest values."""
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return typing.get_args(kind)[0]
    if origin in (typing.Union, types.UnionType):
        choices = typing.get_args(kind)
        return None if type(None) in choices else sample(choices[0])
    if origin is typing.Annotated:
        return sample(typing.get_args(kind)[0])
    if origin is list or kind is list:
        return []
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        return {
            field.alias or name: sample(field.annotation)
            for name, field in fields
            if field.is_required()
        }
    return {int: 1, float: 1.0, str: "x", bool: False, datetime: "2026-01-01T00:00:00Z"}.get(kind)


def iso(when):
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


SETTINGS = {
    "": published.FullRepository,
    "actions/permissions": published.ActionsRepositoryPermissions,
    "actions/permissions/fork-pr-contributor-approval": published.ActionsForkPrContributorApproval,
    "environments/release": published.Environment,
    "environments/release/deployment-branch-policies": (
        published.ReposOwnerRepoEnvironmentsEnvironmentNameDeploymentBranchPoliciesGetResponse200
    ),
}


def deployment_rules(*rules):
    """What GitHub lists of an environment's branches and tags."""
    listed = [
        {"id": number, "name": name, "type": kind} for number, (kind, name) in enumerate(rules)
    ]
    return {"total_count": len(listed), "branch_policies": listed}


class Fake:
    """GitHub's side. `faults` maps "METHOD path-part" to answers that are given first, in order."""

    def __init__(self):
        self.runners, self.runs, self.jobs, self.artifacts, self.logs, self.zips = (
            [],
            {},
            {},
            {},
            {},
            {},
        )
        self.faults: dict[str, list] = {}
        self.requests: list[tuple[str, str, dict]] = []
        self.inputs: dict[int, dict] = {}
        self.stops: set[int] = set()
        self.scopes = {"read", "write", "admin"}
        self.settings = {  # as docs/how-to/runners.md asks for them
            "": {"visibility": "public", "default_branch": "main"},
            "actions/permissions": {"sha_pinning_required": True},
            "actions/permissions/fork-pr-contributor-approval": {
                "approval_policy": "all_external_contributors"
            },
            "environments/release": {
                "deployment_branch_policy": {
                    "protected_branches": False,
                    "custom_branch_policies": True,
                }
            },
            "environments/release/deployment-branch-policies": deployment_rules(("branch", "main")),
        }
        self.skew = timedelta(0)
        self.expired_links = 0
        self.problems: list[str] = []
        self.url = ""
        self._links: set[str] = set()
        self._next = 1000
        self.lock = threading.RLock()

    # -- what tests do --

    def now(self):
        return datetime.now(UTC) + self.skew

    def add_runner(self, name, labels, *, online=True, busy=False, system="linux"):
        own = {"self-hosted", "linux", "windows", "macos", "x64", "arm64"}
        self.runners.append(
            {
                "id": len(self.runners) + 1,
                "name": name,
                "os": system,
                "status": "online" if online else "offline",
                "busy": busy,
                "labels": [
                    {"id": i, "name": label, "type": "read-only" if label in own else "custom"}
                    for i, label in enumerate(labels)
                ],
            }
        )

    def new_run(self, workflow, inputs, *, made=None):
        """A run appears whole: tests look at `runs` without the lock."""
        with self.lock:
            self._next += 1
            run_id = self._next
            text = yaml.safe_load((WORKFLOWS / workflow).read_text())["run-name"]
            title = re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: str(inputs.get(m[1], "")), text)
            labels = json.loads(inputs.get("labels") or '["self-hosted"]')
            when = iso(made or self.now())
            self.inputs[run_id] = inputs
            self.jobs[run_id] = [
                {
                    **sample(published.Job),
                    "id": run_id * 10,
                    "run_id": run_id,
                    "name": "job",
                    "status": "queued",
                    "conclusion": None,
                    "labels": labels,
                    "created_at": when,
                    "runner_name": None,
                    "steps": [],
                }
            ]
            self.runs[run_id] = {
                **sample(published.WorkflowRun),
                "id": run_id,
                "display_title": title,
                "event": "workflow_dispatch",
                "status": "queued",
                "conclusion": None,
                "created_at": when,
                "html_url": f"https://github.com/{REPOSITORY}/actions/runs/{run_id}",
                "run_attempt": 1,
                "path": f".github/workflows/{workflow}",
            }
            return run_id

    def take(self, run_id, runner, step="Do the job"):
        with self.lock:
            self.runs[run_id]["status"] = "in_progress"
            self.jobs[run_id][0] |= {
                "status": "in_progress",
                "runner_name": runner,
                "started_at": iso(self.now()),
                "steps": [_step(step, None)],
            }

    def finish(self, run_id, conclusion="success", log=b"", *, step="Do the job"):
        """The end of a run. `step` is the one that concluded so; None: none did, since the runner
        vanished.
        """
        steps = [
            _step("Set up job", "success"),
            _step(step or "Do the job", conclusion if step else None),
        ]
        ended = {"status": "completed", "conclusion": conclusion}
        with self.lock:
            if step:
                self.logs[run_id * 10] = log
            self.jobs[run_id][0] |= {**ended, "steps": steps, "completed_at": iso(self.now())}
            self.runs[run_id] |= ended

    def leave(self, run_id, files, *, name="farm-out", expired=False, digest=None):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in files.items():
                archive.writestr(path, content)
        self._next += 1
        self.zips[self._next] = packed.getvalue()
        made = {
            **sample(published.Artifact),
            "id": self._next,
            "name": name,
            "size_in_bytes": len(packed.getvalue()),
            "expired": expired,
            "digest": digest or f"sha256:{hashlib.sha256(packed.getvalue()).hexdigest()}",
        }
        self.artifacts.setdefault(run_id, []).append(made)
        return self._next

    def sent(self, method, part):
        return [path for verb, path, _ in self.requests if verb == method and part in path]

    # -- what GitHub does --

    def answer(self, method, target, headers, body):
        """(status, headers, body) of a request."""
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        if path.startswith("/storage/"):
            if "authorization" in headers:
                self.problems.append(f"the token went to the storage: {path}")
            return self._storage(path)
        for wanted, answers in self.faults.items():
            verb, part = wanted.split(" ", 1)
            if verb == method and part in path and answers:
                fault = answers.pop(0)
                if callable(fault):
                    fault = fault(self, body)
                if fault is not None:
                    return fault
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return self._error(401, "Bad credentials")
        if headers.get("x-github-api-version") != "2026-03-10":
            return self._error(400, "no API version")
        setting = path.removeprefix(f"/repos/{REPOSITORY}").strip("/")
        if method == "GET" and path.startswith(f"/repos/{REPOSITORY}") and setting in SETTINGS:
            if setting not in self.settings:
                return self._error(404, "Not Found")
            SETTINGS[setting].model_validate(
                {**sample(SETTINGS[setting]), **self.settings[setting]}
            )
            return self._json(sample(SETTINGS[setting]) | self.settings[setting], SETTINGS[setting])
        prefix = f"/repos/{REPOSITORY}/actions"
        if not path.startswith(prefix):
            return self._error(404, "Not Found")
        needs = (
            "admin"
            if path.startswith(f"{prefix}/runners")
            else "write"
            if method != "GET"
            else "read"
        )
        if needs not in self.scopes:
            admin = "administration=read" if method == "GET" else "administration=write"
            permission = {"write": "actions=write", "admin": admin}.get(needs, "actions=read")
            refused = self._error(403, "Resource not accessible by personal access token")
            return refused[0], {"x-accepted-github-permissions": permission}, refused[2]
        return self._route(method, path.removeprefix(prefix), query, body)

    def _route(self, method, path, query, body):
        parts = path.strip("/").split("/")
        match (method, *parts):
            case ("GET", "runners"):
                return self._page(
                    "runners",
                    self.runners,
                    published.ReposOwnerRepoActionsRunnersGetResponse200,
                    query,
                )
            case ("POST", "workflows", workflow, "dispatches"):
                return self._dispatch(workflow, body)
            case ("GET", "workflows", workflow, "runs"):
                since = datetime.fromisoformat(query["created"][0].removeprefix(">="))
                found = [
                    run
                    for run in reversed(self.runs.values())
                    if run["path"].endswith(f"/{workflow}")
                    and datetime.fromisoformat(run["created_at"]) >= since
                ]
                model = published.ReposOwnerRepoActionsWorkflowsWorkflowIdRunsGetResponse200
                return self._page("workflow_runs", found, model, query)
            case ("DELETE", "artifacts", number):
                for kept in self.artifacts.values():
                    kept[:] = [a for a in kept if a["id"] != int(number)]
                return 204, {}, b""
            case ("GET", "artifacts", number, "zip"):
                return (
                    self._link(f"zip-{number}")
                    if int(number) in self.zips
                    else self._error(404, "Not Found")
                )
            case ("GET", "jobs", number, "logs"):
                return (
                    self._link(f"log-{number}")
                    if int(number) in self.logs
                    else self._error(404, "Not Found")
                )
            case (_, "runs", number, *rest) if number.isdigit() and int(number) in self.runs:
                return self._run(method, int(number), rest, query)
        return self._error(404, "Not Found")

    def _run(self, method, run_id, rest, query):
        run = self.runs[run_id]
        match (method, *rest):
            case ("GET",):
                return self._json(run, published.WorkflowRun)
            case ("GET", "jobs"):
                model = published.ReposOwnerRepoActionsRunsRunIdJobsGetResponse200
                return self._page("jobs", self.jobs[run_id], model, query)
            case ("GET", "artifacts"):
                model = published.ReposOwnerRepoActionsRunsRunIdArtifactsGetResponse200
                return self._page("artifacts", self.artifacts.get(run_id, []), model, query)
            case ("POST", "cancel") | ("POST", "force-cancel"):
                if run["status"] == "completed":
                    return self._error(409, "Cannot cancel a workflow run that is completed.")
                self.stops.add(run_id)
                if rest[0] == "force-cancel" or not run.get("stubborn"):
                    self.finish(run_id, "cancelled")
                return 202, {}, b"{}"
            case ("POST", "rerun-failed-jobs"):
                run |= {
                    "status": "queued",
                    "conclusion": None,
                    "run_attempt": run["run_attempt"] + 1,
                }
                self.jobs[run_id][0] |= {
                    "status": "queued",
                    "conclusion": None,
                    "runner_name": None,
                    "steps": [],
                }
                return 201, {}, b"{}"
        return self._error(404, "Not Found")

    def _dispatch(self, workflow, body):
        request = json.loads(body)
        published.ReposOwnerRepoActionsWorkflowsWorkflowIdDispatchesPostBody.model_validate(request)
        if not (WORKFLOWS / workflow).is_file():
            return self._error(404, "Not Found")
        text = yaml.safe_load((WORKFLOWS / workflow).read_text())
        declared = text[True]["workflow_dispatch"]["inputs"]  # YAML 1.1 reads `on` as true
        unexpected = sorted(set(request["inputs"]) - set(declared))
        missing = [
            n
            for n, spec in declared.items()
            if spec.get("required") and not request["inputs"].get(n)
        ]
        if (
            unexpected
            or missing
            or len(declared) > 25
            or sum(map(len, request["inputs"].values())) > 65_535
        ):
            return self._error(422, f"Unexpected inputs provided: {unexpected}, missing: {missing}")
        run_id = self.new_run(workflow, request["inputs"])
        at = f"{self.url}/repos/{REPOSITORY}/actions/runs/{run_id}"
        made = {"workflow_run_id": run_id, "run_url": at, "html_url": at}
        return self._json(made, published.WorkflowDispatchResponse)

    def _page(self, key, items, model, query):
        size, page = int(query.get("per_page", ["30"])[0]), int(query.get("page", ["1"])[0])
        status, headers, body = self._json(
            {"total_count": len(items), key: items[(page - 1) * size : page * size]}, model
        )
        if page * size < len(items):
            headers["next-page"] = str(page + 1)
        return status, headers, body

    def _json(self, data, model):
        model.model_validate(data)
        return 200, {}, json.dumps(data).encode()

    def _error(self, status, message):
        data = {
            "message": message,
            "documentation_url": "https://docs.github.com/rest",
            "status": str(status),
        }
        published.BasicError.model_validate(data)
        return status, {}, json.dumps(data).encode()

    def _link(self, name):
        self._next += 1
        link = f"/storage/{self._next}/{name}"
        if self.expired_links:
            self.expired_links -= 1
        else:
            self._links.add(link)
        return 302, {"location": self.url + link}, b""

    def _storage(self, path):
        if path not in self._links:
            return 403, {}, b"<Error><Code>AuthenticationFailed</Code></Error>"
        self._links.remove(path)
        kind, number = path.rsplit("/", 1)[1].split("-")
        return 200, {}, (self.logs if kind == "log" else self.zips)[int(number)]


def _step(name, conclusion):
    status = "completed" if conclusion else "in_progress"
    return {"name": name, "status": status, "conclusion": conclusion, "number": 1}


def handler(fake):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # head and body in one packet: two would wait for each other

        def log_message(self, *_):
            pass

        def serve(self):
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            with fake.lock:
                fake.requests.append((self.command, self.path, headers))
                try:
                    status, extra, answer = fake.answer(self.command, self.path, headers, body)
                except Exception as error:
                    fake.problems.append(f"{self.command} {self.path}: {error!r}")
                    status, extra, answer = 500, {}, b""
            if status == "hang up":
                self.close_connection = True
                self.connection.close()
                return
            if (page := extra.pop("next-page", None)) is not None:
                base = re.sub(r"&page=\d+", "", self.path)
                extra["link"] = f'<{fake.url}{base}&page={page}>; rel="next"'
            etag = f'"{hashlib.sha256(answer).hexdigest()[:16]}"'
            if self.command == "GET" and status == 200:
                extra["etag"] = etag
                if headers.get("if-none-match") == etag:
                    status, answer = 304, b""
            with contextlib.suppress(ConnectionError):  # a client that has read enough hangs up
                self.reply(status, extra, answer)

        def reply(self, status, extra, answer):
            self.send_response_only(status)
            self.send_header("date", format_datetime(fake.now(), usegmt=True))
            for name, value in extra.items():
                self.send_header(name, value)
            if status not in (204, 304):
                self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_DELETE = serve

    return Handler


def serve(fake):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(fake))
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    ).start()
    return server


class Clock:
    """Waits without waiting: what was slept is noted, and what is due then happens."""

    def __init__(self):
        self.slept, self.due = [], []

    def __call__(self, seconds):
        self.slept.append(seconds)
        if self.due:
            self.due.pop(0)()
        time.sleep(0)
