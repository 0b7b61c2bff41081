"""Commands that are typed all day load little: what takes long to import is counted here, not measured."""

import json
import subprocess
import sys

import pytest

from farm.base.project import journal_path
from farm.plan.settings import load_settings
from farm.run.journal import Journal, Request

SLOW = (
    "pydantic",
    "rich",
    "jinja2",
    "docker",
    "boto3",
    "packaging",
    "farm.plan.settings",
    "farm.catalog",
    "farm.plan.recipe",
)
"""Each takes between a tenth and the whole of what `farm status` may take (0.3 s of CPU time)."""

PROGRAM = """
import json, sys
from farm.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
print(json.dumps([code, sorted(sys.modules)]))
"""


def loaded(project, *arguments):
    command = [sys.executable, "-c", PROGRAM, "--project", str(project), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    code, names = json.loads(done.stdout.splitlines()[-1])
    assert not code, done.stderr
    return done.stdout, names


def modules(project, *arguments):
    text, names = loaded(project, *arguments)
    return text, [name for name in SLOW if name in names]


@pytest.fixture
def project(tmp_path):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "farm.yaml").write_text("artifacts: left/over\n")
    with Journal(journal_path(tmp_path)) as journal:
        run = journal.create_run("d", Request(package="hello", variant="cpu-avx-py311"), {"package": "hello"})
        journal.finish_run(run.id, "success", 0)
    return tmp_path


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["status"], ["status", "--json"], ["status", "--help"]])
def test_what_is_typed_all_day_imports_nothing_slow(project, words):
    assert modules(project, *words)[1] == []


def test_status_reads_the_journal_that_submit_writes(project):
    text, _ = modules(project, "status")
    assert text.splitlines()[1].split()[1:4] == ["hello", "cpu-avx-py311", "success"]
    assert journal_path(project) == project / load_settings(project).artifacts / "farm.db"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "index: x\n",
        "artifacts: builds # b\n",
        "{artifacts: a}",
        "artifacts: 'a b'\n",
        "artifacts: >-\n  a\n  b\n",
    ],
)
def test_one_key_of_the_settings_is_read_as_all_of_them_are(tmp_path, text):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "farm.yaml").write_text(text or "swarm: null\n")
    assert journal_path(tmp_path) in (None, tmp_path / load_settings(tmp_path).artifacts / "farm.db")


@pytest.mark.parametrize(
    "text",
    [
        "artifacts: 3\n",
        "artifacts: [a]\n",
        "artifacts: a\nartifacts: b\n",
        "artifacts: {\n",
        "artifacts: " + "[" * 5_000,
    ],
)
def test_settings_that_are_wrong_are_named_as_ever(tmp_path, text, capsys):
    from farm.cli.main import main

    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "farm.yaml").write_text(text)
    assert main(["--project", str(tmp_path), "status"]) == 2
    assert "farm.yaml" in capsys.readouterr().err
