"""After all other groups: the machine is as it was. `tests/e2e/run` notes before them how it
was.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.afterwards.machine import differences, state
from tests.e2e.dispatch import leftovers

BEFORE = os.environ.get("FARM_E2E_BEFORE")
ENDING_S = 300
"""What was told to end (containers, a shell's children) may take so long on a busy machine."""


@pytest.mark.skipif(BEFORE is None, reason="tests/e2e/run alone notes how the machine was before")
def test_the_machine_is_as_it_was():
    before = json.loads(Path(BEFORE).read_text())
    end = time.monotonic() + ENDING_S
    while (found := differences(before, state())) and time.monotonic() < end:
        time.sleep(1)
    assert found == []


def test_what_is_left_behind_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FARM_E2E_RUN", "this-test")
    for shared in (".local/share", ".local/state", ".config"):
        (tmp_path / shared).mkdir(parents=True)
    before = state()
    (tmp_path / ".wine").mkdir()
    left = (".local/share/uv", ".local/state/torch-farm", ".local/bin", ".config/menus")
    for folder in (*left, ".cache", ".npm"):
        (tmp_path / folder).mkdir()
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        found = differences(before, state())
        assert {f"files: new: {tmp_path}/{name}" for name in (".wine", *left)} <= set(found)
        assert not [line for line in found if line.endswith((".cache", ".npm"))], (
            "downloads are kept"
        )
        assert f"processes: new: {sleeper.pid} sleep 600 " in found
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"),
    reason="makes a network link and a file in /etc: root",
)
def test_a_link_and_a_file_that_stay_are_noticed():
    before, name, path = state(), "farmtest0", Path("/etc/farm-test-left")
    try:
        path.write_text("x")
        made = subprocess.run(
            ["ip", "link", "add", name, "type", "dummy"], check=False, capture_output=True
        )
        found = differences(before, state())
    finally:
        path.unlink()
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
    assert any(line.startswith(f"files: new: {path} 1 ") for line in found)
    assert (f"network links: new: {name}" in found) is (made.returncode == 0), (
        "a container may forbid links"
    )


def test_a_tree_of_an_interrupted_build_may_be_used_up():
    before = {"volumes": ["data", "farm-tree-90eb82d7a21e1f3caeaeb7b8"]}
    assert differences(before, {"volumes": []}) == ["volumes: gone: data"]
    left = {
        "volumes": [
            "data",
            "farm-tree-90eb82d7a21e1f3caeaeb7b8",
            "farm-tree-1f3caeaeb7b890eb82d7a21e",
        ]
    }
    assert differences(before, left) == ["volumes: new: farm-tree-1f3caeaeb7b890eb82d7a21e"]


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="makes a network link and a mount: root"
)
def test_the_swarm_that_a_killed_run_left_is_ended_before_the_next(capsys, monkeypatch):
    """As a session's end did: the next run removed it, and was told that a bridge, a mount and a
    rule were gone.
    """
    monkeypatch.setenv("FARM_E2E_RUN", "this-test")
    folder, link = leftovers.FOLDER / "n1", leftovers.BRIDGE_NAME
    before = state()
    folder.mkdir(parents=True)
    daemon = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", f"{folder}/docker.sock"]
    )
    try:
        mounted = (
            subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=False).returncode == 0
        )
        linked = (
            subprocess.run(["ip", "link", "add", link, "type", "dummy"], check=False).returncode
            == 0
        )
        left = [line for line in differences(before, state()) if "processes" not in line]
        assert (
            left == [f"network links: new: {link}"] * linked + [f"mounts: new: {folder}"] * mounted
        )
        with leftovers.alone(waits=True):  # another run's swarm
            leftovers.main()
        assert "another run has its swarm" in capsys.readouterr().out
        assert (daemon.poll(), folder.exists()) == (None, True)
        leftovers.main()
        assert daemon.wait(timeout=60) == -9
        assert differences(before, state()) == []
        assert not leftovers.FOLDER.exists()
    finally:
        daemon.kill()
        daemon.wait()
        leftovers.clean()
