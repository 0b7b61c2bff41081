import shutil

import pytest
import yaml

from farm.engines.base import Capacity, Job
from farm.engines.github import GithubEngine
from farm.engines.github_api import GithubApi
from farm.plan.settings import load_github
from tests.integration.github.fake import REPOSITORY, TOKEN, WORKFLOWS, Clock, Fake, serve
from tests.plans import plan_of

ROOT = WORKFLOWS.parents[1]
K40 = [
    "self-hosted",
    "linux",
    "x64",
    "farm-smoke",
    "gpu",
    "cpu",
    "sm35",
    "kepler",
    "legacy",
    "sse41",
    "avx",
]
BUILDER = ["self-hosted", "linux", "x64", "farm-build"]


@pytest.fixture
def fake():
    made = Fake()
    server = serve(made)
    yield made
    server.shutdown()
    server.server_close()
    assert made.problems == []


@pytest.fixture
def on_the_fake(fake, tmp_path, monkeypatch):
    """Makes tmp_path a project with this one's ci/ whose GitHub is the fake; may change its
    ci/runners.yaml further.
    """

    def make(change=lambda _: None):
        shutil.copytree(ROOT / "ci", tmp_path / "ci")
        path = tmp_path / "ci" / "runners.yaml"
        data = yaml.safe_load(path.read_text())
        data["github"] |= {"repository": REPOSITORY, "api_url": fake.url}
        change(data)
        path.write_text(yaml.safe_dump(data))
        monkeypatch.setenv("FARM_GITHUB_TOKEN", TOKEN)
        return tmp_path

    return make


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def api(fake, clock):
    made = GithubApi(fake.url, REPOSITORY, TOKEN, sleep=clock)
    yield made
    made.close()


@pytest.fixture
def engine(api, clock):
    """The engine as the project configures it. Another one over the same server is a restarted
    controller.
    """
    return GithubEngine(
        api, load_github(ROOT), Capacity(cpus=8, memory=64 << 30), poll_s=15, sleep=clock
    )


@pytest.fixture
def plan():
    return plan_of("sm35-avx-py311", "canary")


@pytest.fixture
def job(tmp_path, plan):
    """Makes a job of the plan, as the pipeline does."""
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "plan.json").write_text(plan.to_json())

    def make(run="20261121-1"):
        return Job(
            name="canary-sm35-avx-py311",
            image="unused",
            command=("bash", "/farm/job/build.sh"),
            inputs={"/farm/job": folder},
            output="/farm/out",
            environment={},
            limits=Capacity(8, 64 << 30),
            timeout_s=600,
            labels={"farm.run": run, "farm.kind": "build"},
        )

    return make
