"""What a build had beside its plan: from the journal, from a runner's file, from the workflow that it runs in."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.base.errors import BuildFailedError
from farm.run.buildstep import note_inputs
from farm.run.inputs import MAX_INPUTS, BuildInputs, actions, read_inputs

ROOT = Path(__file__).parents[3]
CI = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_WORKFLOW_REF": "me/farm/.github/workflows/build-wheels.yml@refs/heads/main",
    "GITHUB_WORKFLOW_SHA": "0123456789" * 4,
}


def test_the_actions_of_the_workflow_under_way_by_their_commits():
    found = actions(CI, ROOT)
    text = (ROOT / ".github/workflows/build-wheels.yml").read_text()
    pinned = {f"git+https://github.com/{name}": sha for name, sha in re.findall(r"uses: ([\w/-]+)@(\w{40})", text)}
    assert len(pinned) >= 4
    assert found == pinned | {"git+https://github.com/me/farm@refs/heads/main": "0123456789" * 4}
    BuildInputs(actions=found)


def test_an_action_that_is_not_pinned_is_left_out_and_those_of_own_actions_are_there(tmp_path):
    (tmp_path / ".github/workflows").mkdir(parents=True)
    (tmp_path / ".github/actions/own").mkdir(parents=True)
    steps = (
        f"      - uses: a/loose@v4\n      - uses: a/path/below@{'a' * 40} # v1\n      - uses: ./.github/actions/own\n"
    )
    (tmp_path / ".github/workflows/build-wheels.yml").write_text(steps)
    (tmp_path / ".github/actions/own/action.yml").write_text(f"    - uses: b/inner@{'b' * 40}\n")
    assert actions({**CI, "GITHUB_WORKFLOW_SHA": "", "GITHUB_SERVER_URL": "https://git.example"}, tmp_path) == {
        "git+https://git.example/a/path": "a" * 40,
        "git+https://git.example/b/inner": "b" * 40,
    }


@pytest.mark.parametrize(
    "environ", [{}, {**CI, "GITHUB_ACTIONS": ""}, {**CI, "GITHUB_WORKFLOW_REF": "me/farm/../../etc/passwd@x"}]
)
def test_elsewhere_there_are_none(environ):
    assert actions(environ, ROOT) == {}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run on an engine, whose journal has these events, and the folder with what its build left."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)

    def make(on, **events):
        (tmp_path / "built").mkdir()
        journal = SimpleNamespace(
            happened=lambda _run, kind: SimpleNamespace(data=events[kind]) if kind in events else None
        )
        request = SimpleNamespace(on=on)
        workspace = SimpleNamespace(project=tmp_path)
        return SimpleNamespace(
            run=SimpleNamespace(id="1", request=request), journal=journal, folder=tmp_path, workspace=workspace
        )

    return make


def test_what_a_container_wrote_there_counts_for_nothing(run, tmp_path):
    events = {"inputs": {"wheels": {"torch-2.whl": "f" * 64}, "cache": "engine 1"}}
    context = run("docker", **events)
    (tmp_path / "image.id").write_text("sha256:" + "e" * 64)
    (tmp_path / "built/inputs.json").write_text('{"image": "a lie"}')
    made = note_inputs(context, tmp_path / "built")
    assert made == BuildInputs(image="sha256:" + "e" * 64, wheels={"torch-2.whl": "f" * 64}, cache="engine 1")
    assert read_inputs(tmp_path / "built/inputs.json") == made


def test_a_runner_that_gathers_the_inputs_says_them(run, tmp_path):
    context = run("github", inputs={"wheels": {}, "cache": None})
    assert note_inputs(context, tmp_path / "built") == BuildInputs()  # an older farm there leaves none
    told = {"wheels": {"torch-2.whl": "f" * 64}, "actions": {"git+https://github.com/a/b": "1" * 40}}
    (tmp_path / "built/inputs.json").write_text(json.dumps(told))
    assert note_inputs(context, tmp_path / "built") == BuildInputs(**told)


HOSTILE = ["", "[]", "{", '{"image": 1}', '{"wheels": {"../x": "f"}}', '{"more": 1}', '{"actions": {"x\\u001b": "1"}}']


@pytest.mark.parametrize("text", [*HOSTILE, "[" * 100_000, " " * (MAX_INPUTS + 1)])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path, text):
    (tmp_path / "inputs.json").write_text(text)
    with pytest.raises(BuildFailedError, match="cannot be used"):
        read_inputs(tmp_path / "inputs.json")


def test_a_link_is_refused(tmp_path):
    (tmp_path / "inputs.json").symlink_to("/etc/passwd")
    with pytest.raises(BuildFailedError, match="cannot be used"):
        read_inputs(tmp_path / "inputs.json")
