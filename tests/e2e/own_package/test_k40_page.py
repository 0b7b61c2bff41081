"""The five commands of docs/tutorials/k40-in-ten-minutes.md, as an ordinary user types them in a
home of his own.

Canary takes PyTorch's place, as the page proposes, since PyTorch takes hours; there is no card.
"""

import grp
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, TIMEOUT_S

PAGE = ROOT / "docs" / "tutorials" / "k40-in-ten-minutes.md"
NOBODY = 65534
FIVE = re.compile(r"^## Five commands\n.*?^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
NO_DRIVER = 8


def commands() -> list[str]:
    found = FIVE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    return [line.removeprefix("$ ").partition("#")[0].strip() for line in found[1].splitlines()]


@pytest.fixture
def home() -> Iterator[Path]:
    """A user's home with a clone of the farm and uv in it; not of pytest, whose folders are closed
    to other users.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become an ordinary user")
    folder = Path(tempfile.mkdtemp(prefix="farm-k40-"))
    try:
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "torch-farm")], check=True)
        (folder / "bin").mkdir()
        shutil.copy(Path(sys.executable).with_name("uv"), folder / "bin")
        subprocess.run(
            ["chown", "-R", f"{NOBODY}:{grp.getgrnam('docker').gr_gid}", str(folder)], check=True
        )
        yield folder
    finally:
        shutil.rmtree(folder)


def test_the_page_by_the_letter(home, client):
    assert [command.split()[:2] for command in commands()] == [
        ["uv", "tool"], ["farm", "doctor"], ["farm", "plan"], ["farm", "submit"], ["farm", "smoke"],
    ]  # fmt: skip
    environ = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "UV_", "SSL_"))
    }
    environ |= {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{home / '.local' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "UV_PYTHON": "/usr/bin/python3",
        "CI": "1",
    }

    def typed(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=home / "torch-farm",
            env=environ,
            user=NOBODY,
            group=grp.getgrnam("docker").gr_gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    install, doctor, plan, submit, smoke = commands()
    done = typed(install)
    assert done.returncode == 0, done.stderr
    shown = typed(plan)  # PyTorch itself: only its build takes hours
    assert shown.returncode == 0, shown.stderr
    assert "about 9.2 CPU hours" in shown.stdout
    assert "not tested  a card with sm_35" in shown.stdout
    for command in (doctor, submit):
        done = typed(f"{command} --package canary")
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("pip install 'canary @ file:///")
    assert len(done.stderr.splitlines()) <= 60
    done = typed(f"{smoke} --package canary")
    assert done.returncode == NO_DRIVER, done.stdout + done.stderr
    assert "no NVIDIA driver" in done.stderr
