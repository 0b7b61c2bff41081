"""Bundles: what is carried is what was packed, in parts, and a part that is missing or damaged is named."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError, UsageError
from farm.base.zipapps import pack
from farm.plan.build import resolve
from farm.plan.render import render
from farm.plan.selectors import Selectors
from farm.plan.settings import Settings
from farm.plan.variant import Variant
from farm.run import bundle
from farm.run.bundle import RUNNER, write_bundle
from farm.run.report import Silent
from farm.run.sources import gather
from farm.run.standalone.bundle.build import failure
from farm.run.workspace import Workspace
from tests.pythons import python


@pytest.fixture
def plan(root):
    return resolve(root, Selectors(Variant.parse("cpu-avx-py311"), "canary"))


@pytest.fixture
def made(plan, root, tmp_path, monkeypatch):
    """A bundle in small parts whose toolchain is not a toolchain: it can be joined and unpacked, not entered."""
    monkeypatch.setattr(bundle, "PART_BYTES", 40_000)
    import tarfile

    (tmp_path / "hello").write_text("hello\n")
    tree = tmp_path / "tree.tar.xz"
    with tarfile.open(tree, "w:xz") as archive:
        archive.add(tmp_path / "hello", arcname="etc/hello")
    render(root, plan).write(tmp_path / "context")
    gather(plan, tmp_path / "cache", tmp_path / "sources", mirror=None, line=print)
    dest = tmp_path / "bundle"
    files = write_bundle(
        plan,
        dest=dest,
        tree=tree,
        inputs={"job": tmp_path / "context" / "job", "source": tmp_path / "sources"},
        environment={"LC_ALL": "C.UTF-8"},
    )
    return dest, files


def run(dest, *args, program=sys.executable):
    command = [program, "-I", dest / "run", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_manifest_names_every_part(made, plan):
    dest, files = made
    manifest = json.loads((dest / "manifest.json").read_text())
    assert manifest["plan"] == plan.digest
    assert [path.name for path in files] == ["run", "manifest.json", *(p["name"] for p in manifest["parts"])]
    assert len(manifest["parts"]) > 2
    for part in manifest["parts"]:
        data = (dest / part["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (part["size"], part["sha256"])
        assert len(data) <= 40_000
    assert (dest / "run").read_bytes() == pack(RUNNER)


def test_a_folder_that_holds_something_is_refused_before_anything_is_packed(tmp_path, root, plan, monkeypatch):
    (tmp_path / "mine").write_text("")
    monkeypatch.setattr(bundle, "open_backend", lambda *_: pytest.fail("an engine was asked"))
    with pytest.raises(UsageError, match="is not empty"):
        bundle.bundle(Workspace(root, Settings(), Silent()), plan, tmp_path)


def test_a_bundle_that_does_not_fit_leaves_nothing_and_its_folder_is_named(plan, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bundle, "_write", full)
    with pytest.raises(InfrastructureError, match=re.escape(f"{tmp_path / 'new'}: No space left on device")):
        write_bundle(plan, dest=tmp_path / "new", tree=tmp_path / "tree", inputs={}, environment={})
    assert not list(tmp_path.iterdir())


def test_a_bundle_does_not_overwrite(made, plan, tmp_path):
    with pytest.raises(UsageError, match="is not empty"):
        write_bundle(plan, dest=made[0], tree=tmp_path, inputs={}, environment={})


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_left_of_a_bundle_that_was_interrupted(made, plan, tmp_path, monkeypatch, there):
    whole, _ = made
    dest = tmp_path / "again"
    if there:
        dest.mkdir()
    given = {"tree": tmp_path / "tree.tar.xz", "inputs": {"job": whole}, "environment": {}}

    def interrupted(_entry):
        assert any(dest.glob("part-*"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bundle, "pack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_bundle(plan, dest=dest, **given)
    assert dest.exists() == there
    assert not there or not any(dest.iterdir())
    assert dest / "run" in write_bundle(plan, dest=dest, **given)


def test_missing_parts_are_named_and_the_same_call_goes_on(made, tmp_path):
    dest, _ = made
    away = tmp_path / "away"
    away.mkdir()
    (dest / "part-01").rename(away / "part-01")
    done = run(dest, "--state", tmp_path / "state", "--check")
    assert done.returncode == 10
    assert "still missing: part-01" in done.stdout
    assert not (tmp_path / "state" / "unpacked").exists()
    run(dest, "--state", tmp_path / "state", "--check", "--parts", dest, "--parts", away)
    assert (tmp_path / "state/root/etc/hello").read_text() == "hello\n"
    assert (tmp_path / "state/job/build.sh").exists()
    assert (tmp_path / "state/source/00.tar").exists()
    assert (tmp_path / "state/lib/farm/engines/host.py").exists()


def test_it_runs_on_the_oldest_python_that_it_promises(made, tmp_path):
    done = run(made[0], "--state", tmp_path / "state", "--check", program=python(9))
    assert done.returncode in (0, 9), done.stderr  # 9: this tree cannot be entered
    assert (tmp_path / "state/root/etc/hello").read_text() == "hello\n"


def test_nothing_stays_mounted(made, tmp_path):
    """Else who removes the state folder walks into /proc, or where /dev was mounted, removes this machine's devices."""
    dest, _ = made
    run(dest, "--state", tmp_path / "state", "--check")
    assert (tmp_path / "state/root/proc").is_dir()
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def test_a_damaged_part_is_named_and_nothing_counts_as_unpacked(made, tmp_path):
    dest, _ = made
    data = bytearray((dest / "part-01").read_bytes())
    data[100] ^= 1
    (dest / "part-01").write_bytes(data)
    done = run(dest, "--state", tmp_path / "state", "--check")
    assert done.returncode == 2
    assert "part-01 is damaged" in done.stdout
    assert not (tmp_path / "state" / "unpacked").exists()


def test_the_engine_in_a_bundle_needs_the_standard_library_alone(made, tmp_path):
    dest, _ = made
    run(dest, "--state", tmp_path / "state", "--check")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import farm.engines.host; print(farm.__file__)"
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "state/lib")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "state/lib/farm/__init__.py")), done.stderr


def test_a_failed_build_shows_the_step_that_failed_and_not_kilobytes_of_its_command(tmp_path):
    log = tmp_path / "log"
    command = "g++ " + "-I/farm/src " * 1000
    said = ["FAILED: a.cpp.o", command, "a.cpp:3:1: error: 'x' was not declared"]
    after = ["[2/3] Building b", "FAILED: b.cpp.o", "ninja: build stopped"]
    log.write_text("\n".join(["[1/3] Building a", *said, *after]))
    shown = failure(log).splitlines()
    assert (shown[0], shown[2:]) == (said[0], said[2:])
    assert len(shown[1]) == 402
    assert command.startswith(shown[1][:400])


def test_a_failed_build_without_a_failed_step_shows_the_last_lines(tmp_path):
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {i}" for i in range(1000)))
    assert failure(log).splitlines() == [f"line {i}" for i in range(976, 1000)]
