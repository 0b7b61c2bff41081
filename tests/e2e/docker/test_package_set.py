"""Packages that need each other by one command, with the real Docker engine: in order, on from
where it failed, and one line that installs them.
"""

import shlex
import subprocess
import sys

from farm.run.journal import Journal
from tests.companion import add_addon, add_companion

SET = ["--variant", "cpu-avx-py311", "--package", "addon", "companion", "torch"]


def test_a_set_is_built_in_order_and_resumed_where_it_failed(farm, tmp_path):
    add_companion(farm.project)
    add_addon(farm.project)
    setup = farm.project / "recipes/companion/src/setup.py"
    whole = setup.read_text()
    setup.write_text(f'raise SystemExit("broken on purpose")\n{whole}')
    failed = farm.run("submit", *SET, "--yes")
    assert failed.returncode == 5, failed.stderr
    assert "pip install" not in failed.stdout
    assert results(farm) == {"torch": "success", "companion": "failure", "addon": "failure"}
    setup.write_text(whole)
    done = farm.run("submit", *SET, "--yes")
    assert done.returncode == 0, done.stderr
    with Journal(farm.project / "artifacts/farm.db") as journal:
        packages = [run.request.package for run in journal.runs()]
    assert packages == ["addon", "companion", "addon", "companion", "torch"]  # the newest first
    line = done.stdout.splitlines()[-1]
    assert line.startswith("pip install ")
    python = fresh_python(tmp_path / "venv")
    installed = [python, "-m", *shlex.split(line)]
    subprocess.run(installed, check=True, capture_output=True, text=True)
    script = "import addon, companion, torch; print(addon.built_against, companion.built_against)"
    answer = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True)
    assert answer.stdout.split() == ["1.0.0+cpu.avx", "2.6.0+cpu.avx"]


def results(farm):
    """The result of the newest run of each package."""
    with Journal(farm.project / "artifacts/farm.db") as journal:
        return {run.request.package: run.result for run in reversed(journal.runs())}


def fresh_python(folder):
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin/python"
