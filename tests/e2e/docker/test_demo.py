"""The README's first command, as a newcomer runs it: in a fresh clone, with an environment of its
own.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from farm.smoke.environment import make_environment

ROOT = Path(__file__).parents[3]


def test_make_demo_in_a_fresh_clone(client, tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ = {
        k: v for k, v in environ.items() if not k.startswith(("MAKE", "MFLAGS"))
    }  # make may run these tests
    result = subprocess.run(
        ["make", "demo"], cwd=clone, env=environ, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    lines = result.stdout.splitlines()
    # Without pip's words about its own mirrors, which depend on the machine.
    shown = [line for line in result.stderr.splitlines() if not line.startswith("WARNING: ")]
    assert len(lines) + len(shown) <= 60, result.stderr
    for step in ("image", "build", "repair", "verify", "publish", "install", "smoke"):
        assert any(line.split()[:1] == [step] and " done " in line for line in lines), (
            step,
            result.stdout,
        )
    assert shown[-1].startswith("next: ")
    assert "farm detect" in shown[-1]
    pip = shlex.split(lines[-1])
    assert pip[:2] == ["pip", "install"]
    python = make_environment(tmp_path / "env", Path(sys.executable))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")} | {
        "PIP_CONFIG_FILE": os.devnull
    }
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *pip[1:]],
        check=True,
        env=clean,
        capture_output=True,
    )
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, check=True, capture_output=True, text=True
    )
    assert changed.stdout == ""
