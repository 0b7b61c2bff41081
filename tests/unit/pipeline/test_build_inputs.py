"""What a build had beside its plan: from the journal, from a runner's file, from the workflow that
it runs in.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.base.errors import BuildFailedError
from farm.run.build_inputs import MAX_INPUTS, BuildInputs, read_inputs
from farm.run.mainjob import note_inputs

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(tmp_path):
    """A run on an engine, whose journal has these events, and the folder with what its build
    left.
    """

    def make(on, **events):
        (tmp_path / "built").mkdir()
        journal = SimpleNamespace(
            happened=lambda _run, kind: (
                SimpleNamespace(data=events[kind]) if kind in events else None
            )
        )
        request = SimpleNamespace(on=on)
        workspace = SimpleNamespace(project=tmp_path)
        return SimpleNamespace(
            run=SimpleNamespace(id="1", request=request),
            journal=journal,
            folder=tmp_path,
            workspace=workspace,
        )

    return make


def test_inputs_written_by_a_container_are_ignored(run, tmp_path):
    events = {"inputs": {"wheels": {"torch-2.whl": "f" * 64}, "cache": "engine 1"}}
    context = run("docker", **events)
    (tmp_path / "image.id").write_text("sha256:" + "e" * 64)
    (tmp_path / "built/inputs.json").write_text('{"image": "a lie"}')
    made = note_inputs(context, tmp_path / "built")
    assert made == BuildInputs(
        image="sha256:" + "e" * 64, wheels={"torch-2.whl": "f" * 64}, cache="engine 1"
    )
    assert read_inputs(tmp_path / "built/inputs.json") == made


def test_a_runner_that_gathers_the_inputs_records_them(run, tmp_path):
    context = run("github", inputs={"wheels": {}, "cache": None})
    assert (
        note_inputs(context, tmp_path / "built") == BuildInputs()
    )  # an older farm there leaves none
    document = {"wheels": {"torch-2.whl": "f" * 64}}
    (tmp_path / "built/inputs.json").write_text(json.dumps(document))
    assert note_inputs(context, tmp_path / "built") == BuildInputs(**document)


HOSTILE = ["", "[]", "{", '{"image": 1}', '{"wheels": {"../x": "f"}}', '{"more": 1}']


@pytest.mark.parametrize("text", [*HOSTILE, "[" * 100_000, " " * (MAX_INPUTS + 1)])
def test_an_inputs_file_of_another_format_is_refused(tmp_path, text):
    (tmp_path / "inputs.json").write_text(text)
    with pytest.raises(BuildFailedError, match="cannot be used"):
        read_inputs(tmp_path / "inputs.json")


def test_a_link_is_refused(tmp_path):
    (tmp_path / "inputs.json").symlink_to("/etc/passwd")
    with pytest.raises(BuildFailedError, match="cannot be used"):
        read_inputs(tmp_path / "inputs.json")
