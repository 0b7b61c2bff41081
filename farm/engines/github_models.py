"""Models of the answers of GitHub's REST API (version 2026-03-10), which are checked, not trusted."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict


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
