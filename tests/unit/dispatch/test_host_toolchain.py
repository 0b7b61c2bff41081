"""What the host engine asks of this machine before a build."""

from pathlib import Path

import pytest

from farm.base.errors import NoRunnerError
from farm.plan.settings import load_settings
from farm.run.toolchain import prove_host
from farm.run.workspace import Outcomes, Watcher, Workspace
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]


@pytest.fixture
def prove(tmp_path, monkeypatch):
    """Proves a machine whose python3 says so."""
    plain = plan_of("cpu-avx-py311", "canary")

    def go(output, plan=plain):
        python = tmp_path / "python3"
        python.write_text(f'#!/bin/sh\necho "{output}"\n')
        python.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        workspace = Workspace(tmp_path, load_settings(ROOT), Watcher())
        outcomes = Outcomes(run="r")
        prove_host(workspace, plan, tmp_path / "script.py", outcomes)
        return outcomes.steps[0].result

    return go


def test_a_different_python_on_the_host_is_reported(prove):
    with pytest.raises(NoRunnerError, match=r"the plan is for Python 3\.11; python3 here is 3\.9"):
        prove("3.9 build")


def test_missing_build_requirements_are_reported(prove):
    with pytest.raises(NoRunnerError, match="python3 here lacks build, wheel") as caught:
        prove("3.11 build wheel")
    assert (
        "python3 -m venv" in caught.value.hint
    )  # Debian's own Python refuses `pip install` (PEP 668)
    assert "bin/pip install build wheel" in caught.value.hint
    assert "apt-get install python3-build python3-wheel" in caught.value.hint


def test_a_fitting_toolchain_is_noted(prove):
    assert prove("3.11").startswith("Python 3.11, ")


def test_a_package_without_device_code_is_proved_for_its_variants_gpus(prove):
    plan = plan_of("sm35-avx-py311", "canary")
    no_code = plan.model_copy(update={"verify": plan.verify.model_copy(update={"sass": ()})})
    assert prove("3.11", no_code).partition(";")[0].endswith(f"CUDA {plan.toolkit.cuda}")


def test_the_toolchain_is_proved_in_the_builds_environment(prove, tmp_path, monkeypatch):
    """With the caller's own, a compiler that only works there would pass."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert prove('3.11"; test -z "$PYTHONPATH" || echo "PYTHONPATH').startswith("Python 3.11, ")
