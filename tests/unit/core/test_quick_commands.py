"""Help and the version load little: what takes long to import is counted here, not measured."""

import json
import subprocess
import sys

import pytest

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
"""Each takes a tenth of a second and more."""

PROGRAM = """
import json, sys
from farm.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
print(json.dumps([code, sorted(sys.modules)]))
"""


def modules(project, *arguments):
    command = [sys.executable, "-c", PROGRAM, "--project", str(project), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    code, names = json.loads(done.stdout.splitlines()[-1])
    assert not code, done.stderr
    return [name for name in SLOW if name in names]


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["status", "--help"]])
def test_help_imports_nothing_slow(tmp_path, words):
    assert modules(tmp_path, *words) == []
