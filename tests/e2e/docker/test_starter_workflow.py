"""The workflow that `farm init` writes, from its start to the smoke test, in a stand-in for GitHub
Actions. It has not run on GitHub.
"""

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import ROOT, containers_of
from tests.e2e.starter import Actions

GH = """
last="$LAST/index"
if [ "$1 $2" = "run list" ]; then [ ! -d "$last" ] || echo 1; exit; fi
[ "$1 $2 $4 $5" = "run download --name index" ] || exit 99
mkdir -p "$(dirname "$7")"
cp -r "$last" "$7"
"""
INPUTS = {"package": "hello", "variant": "cpu-avx-py311"}


@pytest.fixture
def actions(tmp_path, client):
    """A repository with what `farm init` wrote."""
    programs = tmp_path / "bin"
    programs.mkdir()
    python = Path(sys.executable)
    for name, script in {
        "farm": f'PYTHONPATH={ROOT} exec {python} -m farm.cli.main "$@"',
        "pipx": 'test "$1" = install && test -n "$2"',
        "gh": GH,
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    project, work = tmp_path / "project", tmp_path / "work"
    shutil.copytree(ROOT / "farm/cli/example", project)
    workflow = project / ".github/workflows/wheels.yml"
    text = workflow.read_text()
    workflow.write_text(text.replace('FARM: ""', 'FARM: "torch-farm @ https://x.example"'))
    work.mkdir()
    yield Actions(project, programs, work)
    for folder in work.glob("*/artifacts/runs/*"):
        for container in containers_of(client, folder.name):
            client.containers.get(container).remove(force=True)


def keep_index(actions):
    """The artifact of the last run, where the stand-in of `gh` finds it."""
    target = actions.work.parent / "last/index"
    shutil.copytree(actions.last["index"], target)


def test_the_starter_builds_publishes_and_tests_and_builds_nothing_twice(actions):
    actions.variables = {"FARM_RUNNERS": '["self-hosted", "gpu"]', "FARM_PAGES": "true"}
    first = actions.run("wheels.yml", **INPUTS)
    assert set(first.results.values()) == {"success"}, first.log
    assert first.machines["build"] == ["self-hosted", "gpu"]
    assert first.machines["publish"] == "ubuntu-24.04"
    assert list(actions.last["index"].rglob("hello-*.whl"))
    assert (actions.last["index"] / "index.html").is_file()
    assert "actions/deploy-pages" in first.used
    assert "aws-actions/configure-aws-credentials" not in first.used
    keep_index(actions)
    second = actions.run("wheels.yml", **INPUTS)
    assert second.outputs["plan"]["builds"] == "[]", second.log
    assert second.results == {
        "plan": "success", "build": "skipped", "publish": "skipped", "pages": "skipped", "smoke": "skipped",
    }  # fmt: skip


def test_a_build_that_fails_leaves_the_rest_published_and_the_run_red(actions):
    """Two packages, of which one does not compile."""
    project = actions.project
    shutil.copytree(project / "recipes/hello", project / "recipes/broken")
    recipe = project / "recipes/broken/recipe.yaml"
    recipe.write_text(recipe.read_text().replace("package: hello", "package: broken"))
    (project / "recipes/broken/src/hello.cpp").write_text("#error broken\n")
    matrix = yaml.safe_load((project / "ci/matrix.yaml").read_text())
    matrix["channels"]["mine"]["packages"] = ["hello", "broken"]
    (project / "ci/matrix.yaml").write_text(yaml.safe_dump(matrix))
    run = actions.run("wheels.yml", package="*", variant="cpu-avx-py311")
    assert (run.results["build"], run.results["publish"]) == ("failure", "success"), run.log
    wheels = [path.name for path in run.artifacts["index"].rglob("*.whl")]
    assert [name.split("-")[0] for name in wheels] == ["hello"]


def test_a_bucket_is_written_with_the_credentials_of_its_role(actions):
    """No artifact holds the index then; what is published is another test's."""
    actions.variables = {"FARM_PUBLISH_ROLE": "arn:aws:iam::1:role/x", "FARM_AWS_REGION": "eu"}
    run = actions.run("wheels.yml", **INPUTS)
    assert run.results["publish"] == "success", run.log
    assert run.used.count("aws-actions/configure-aws-credentials") == 1
    assert "index" not in run.artifacts
    assert run.results["pages"] == "skipped"
