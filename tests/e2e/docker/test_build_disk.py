"""The disk of a build is full while it compiles, then while it links: said so, and the same command
goes on.
"""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from farm.run.build_job import tree_volume
from tests.e2e.conftest import OBJECT
from tests.larger_canary import larger_canary

FILES = 2
MIB = 8
"""Of data in one more source: its object takes as much, and the linked library once more."""
SELECT = ("--variant", "cpu-avx-py311", "--package", "canary")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The farm with a larger canary, which has a large source besides."""
    made = larger_canary(tmp_path / "code", FILES, ccache=False)
    source = made / "farm/recipes/canary/src/csrc/heavy_0.cpp"
    data = f'asm(".data\\n.globl large\\nlarge: .fill {MIB << 20}, 1, 1\\n");\n'
    source.write_text(source.read_text() + data)
    return made


@pytest.fixture
def disk(farm, client, code, tmp_path):
    """The build's tree lies on a disk of its own; `disk(n)` makes it n MiB large."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], check=True)
    made = type(farm)(farm.project, code)
    volume = client.volumes.create(
        tree_volume(made.json("plan", *SELECT)["digest"]),
        driver_opts={"type": "none", "o": "bind", "device": str(folder)},
    )
    yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}m", folder], check=True)
    if any(one.name == volume.name for one in client.volumes.list()):
        volume.remove()
    subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk: root")
def test_a_full_disk_while_it_compiles_and_while_it_links(farm, code, disk):
    made = type(farm)(farm.project, code)
    # One compiler: with two, Ninja's own log of the other's file may be what the disk has no room
    # for first.
    (farm.project / "ci" / "runners.yaml").write_text(
        "runners:\n  local: {engine: docker, cpus: 1}\n"
    )
    arguments = ("submit", *SELECT, "--no-publish", "--no-smoke", "--json")
    compiled: Counter[str] = Counter()
    for size, first in (
        (MIB // 2, "heavy_0.cpp.o: 'No space left on device'"),
        (MIB * 2 - 2, "final link failed: No "),
    ):
        disk(size)
        failed = made.run(*arguments)
        (run, *_) = made.json("status")
        log = made.folder(run["id"]) / "build.log"
        compiled.update(OBJECT.findall(log.read_text()))
        assert (failed.returncode, run["result"]) == (5, "failure")
        message = failed.stderr[failed.stderr.index("farm: the build failed") :]
        assert first in message.splitlines()[1]
        assert "\n    cause: the disk is full\n  next: make room " in message
        assert str(log) in message
    disk(MIB * 8)
    done = made.run(*arguments)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)["run"]
    compiled.update(OBJECT.findall((made.folder(run) / "build.log").read_text()))
    assert len([name for name in compiled if "heavy_" in name]) == FILES
    # The object that the first disk had no room for, and no other.
    assert [Path(name).name for name, times in compiled.items() if times > 1] == ["heavy_0.cpp.o"]
