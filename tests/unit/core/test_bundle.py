"""Bundles: what is carried is what was packed; any user builds it, in a folder that nobody else
makes or changes.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from farm.base import enter
from farm.base.errors import InfrastructureError, UsageError
from farm.base.zipapps import pack
from farm.plan.recipe import recipe
from farm.plan.settings import Settings
from farm.run import offline_bundle
from farm.run.offline_bundle import CARRIED, RUNNER, join_pieces, write_bundle
from farm.run.standalone.bundle import bytes_needed, failure
from farm.run.workspace import Watcher, Workspace
from tests.plans import plan_of
from tests.pythons import python


@pytest.fixture(scope="session")
def plan():
    return plan_of("cpu-avx-py311", "canary")


WHEEL = "canary-0.1.0-py3-none-any.whl"
BUILD = f"""set -e
: > /dev/null
while [ -e /farm/job/wait ] && [ ! -e /farm/src/go ]; do sleep 0.1; done
mkdir -p /farm/out/wheel /farm/out/lib
echo wheel > /farm/out/wheel/{WHEEL}
echo library > /farm/out/lib/libx.so.1
if echo > /written; then exit 7; fi
exit $(< /farm/job/code)
"""


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """A packed root file system: some of this machine's programs, with the libraries that they
    load.
    """
    tree = tmp_path_factory.mktemp("tree") / "tree.tar.xz"
    with tarfile.open(tree, "w:xz", dereference=True, preset=0) as archive:
        found = [str(shutil.which(name)) for name in ("bash", "mkdir", "sleep")]
        answer = subprocess.run(["ldd", *found], capture_output=True, text=True, check=True).stdout
        for path in sorted(set(re.findall(r"(/\S+\.so\S*) \(", answer))):
            archive.add(path, path.lstrip("/"))
        for path in found:
            archive.add(path, f"usr/bin/{Path(path).name}")
    return tree


@pytest.fixture
def make(plan, tree, tmp_path, monkeypatch):
    """Makes a bundle in small parts that really builds, where this machine allows it: a wheel of a
    few bytes.
    """
    monkeypatch.setattr(offline_bundle, "PART_BYTES", 400_000)

    def made(code=0, *, wait=False, unpacked=1_000_000):
        job = tmp_path / "job"
        job.mkdir()
        (job / "build.sh").write_text(BUILD)
        (job / "code").write_text(str(code))
        if wait:
            (job / "wait").touch()
        dest = tmp_path / "bundle"
        files = write_bundle(
            plan,
            dest=dest,
            tree=tree,
            tree_bytes=unpacked,
            inputs={"job": job},
            environment={"LC_ALL": "C.UTF-8"},
        )
        return dest, files

    return made


@pytest.fixture
def made(make):
    return make()


def run(dest, *args, program=sys.executable, before=(), env=None):
    command = [*before, program, "-I", dest / "run", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)


@pytest.fixture
def entered():
    """Skips where this machine allows no root file system of one's own, as a container may."""
    if refused := enter.refusal():
        pytest.skip(refused[0])


def test_the_manifest_names_every_part(made, plan):
    dest, files = made
    manifest = json.loads((dest / "manifest.json").read_text())
    assert manifest["plan"] == plan.digest
    assert [path.name for path in files] == [
        "run",
        "manifest.json",
        *(p["name"] for p in manifest["parts"]),
    ]
    assert len(manifest["parts"]) > 2
    for part in manifest["parts"]:
        data = (dest / part["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (part["size"], part["sha256"])
        assert len(data) <= 400_000
    assert (dest / "run").read_bytes() == pack(RUNNER, CARRIED)


def test_a_folder_that_holds_something_is_refused_before_anything_is_packed(
    tmp_path, root, plan, monkeypatch
):
    (tmp_path / "mine").write_text("")
    monkeypatch.setattr(
        offline_bundle, "open_backend", lambda *_: pytest.fail("an engine was asked")
    )
    with pytest.raises(UsageError, match="is not empty"):
        offline_bundle.bundle(Workspace(root, Settings(), Watcher()), plan, tmp_path)


def test_a_bundle_that_does_not_fit_leaves_nothing_and_its_folder_is_named(
    plan, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(offline_bundle, "_write", full)
    with pytest.raises(
        InfrastructureError, match=re.escape(f"{tmp_path / 'new'}: No space left on device")
    ):
        write_bundle(
            plan,
            dest=tmp_path / "new",
            tree=tmp_path / "tree",
            tree_bytes=0,
            inputs={},
            environment={},
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_left_of_a_bundle_that_was_interrupted(
    made, plan, tree, tmp_path, monkeypatch, there
):
    whole, _ = made
    dest = tmp_path / "again"
    if there:
        dest.mkdir()
    given = {"tree": tree, "tree_bytes": 0, "inputs": {"job": whole}, "environment": {}}

    def interrupted(*_):
        assert any(dest.glob("part-*"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(offline_bundle, "pack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_bundle(plan, dest=dest, **given)
    assert dest.exists() == there
    assert not there or not any(dest.iterdir())
    assert dest / "run" in write_bundle(plan, dest=dest, **given)


def test_a_check_says_what_is_missing_and_unpacks_nothing(made, entered):
    dest, _ = made
    before = sorted(dest.iterdir())
    (dest / "part-01").rename(dest / "away")
    done = run(dest, "--check")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        10,
        "next: copy them here and call again",
    ), done.stderr
    assert "missing: part-01" in done.stdout
    (dest / "away").rename(dest / "part-01")
    done = run(dest, "--check", program=python(9))  # the oldest that it promises
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the toolchain can be entered" in done.stdout
    assert sorted(dest.iterdir()) == before


def test_a_bundle_builds_as_the_calling_user_and_leaves_the_wheel(made, plan, tmp_path, entered):
    dest, _ = made
    done = run(dest, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    (work,) = dest.glob("work-*")
    assert work.stat().st_mode & 0o777 == 0o700
    wheel = join_pieces(plan, tmp_path / "out", tmp_path / "built")
    assert (wheel.name, wheel.read_text()) == (WHEEL, "wheel\n")
    assert (tmp_path / "built/lib/libx.so.1").read_text() == "library\n"
    # Else who removes the folder walks into /proc, or where /dev was mounted, removes this
    # machine's devices.
    assert str(dest) not in Path("/proc/mounts").read_text()
    assert not list((work / "root/dev").iterdir())
    # A call that is repeated takes what is there.
    assert "unpacking" not in run(dest, "--out", tmp_path / "again").stdout


def test_a_failed_build_is_retried_only_on_request(make, tmp_path, entered):
    dest, _ = make(code=3)
    for arguments in ((), (), ("--retry",)):
        done = run(dest, *arguments)
        assert done.returncode == 5, done.stdout
        assert "failed with exit code 3" in done.stdout
        assert ("building with" in done.stdout) == (arguments != () or "unpacking" in done.stdout)


def test_a_call_that_ends_before_the_build_is_taken_up_by_the_next(make, tmp_path, entered):
    dest, _ = make(wait=True)
    done = run(dest, "--state", dest / "work", "--wait-s", "0")
    assert (done.returncode, "still running" in done.stdout) == (10, True), (
        done.stdout + done.stderr
    )
    (dest / "work/root/farm/src/go").touch()
    done = run(dest, "--state", dest / "work", "--out", tmp_path / "out")
    assert (done.returncode, "building with" in done.stdout) == (0, False), done.stdout


# --- what others may have made or changed


PLANTED = "#!/bin/sh\ntouch {mark}\n"


def test_folders_prepared_by_another_user_are_ignored(made, plan, tmp_path, entered):
    """`/var/tmp/farm-<plan>` was used whoever had made it, and its python3 was executed, by root
    too.
    """
    dest, _ = made
    planted = Path("/var/tmp") / f"farm-{plan.digest[:12]}"
    shutil.rmtree(planted, ignore_errors=True)
    for name in ("python3", "bash", "mkdir"):
        program = planted / "root/usr/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(PLANTED.format(mark=tmp_path / "executed"))
        program.chmod(0o755)
    (planted / "unpacked").write_text("{}")
    before = sorted(planted.rglob("*"))
    try:
        done = run(dest, "--out", tmp_path / "out")
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(planted.rglob("*")) == before
    finally:
        shutil.rmtree(planted)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda place: place.mkdir(mode=0o755), "is open to others"),
        (lambda place: place.touch(), "is a link or no folder"),
        (lambda place: place.symlink_to(place.parent), "is a link or no folder"),
        (lambda place: place.parent.chmod(0o777), "others may write to"),
    ],
)
def test_a_folder_that_others_may_write_is_refused(made, tmp_path, entered, spoil, why):
    dest, _ = made
    place = tmp_path / "below" / "state"
    place.parent.mkdir()
    spoil(place)
    done = run(dest, "--state", place)
    assert (done.returncode, done.stderr) == (9, "")
    assert why in done.stdout
    assert "next: name " in done.stdout
    assert not list(tmp_path.glob("below/**/unpacked"))


def test_a_bundle_in_a_folder_of_all_is_built_in_the_users_own(made, tmp_path, entered):
    dest, _ = made
    dest.chmod(0o777)
    done = run(dest, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob(".local/state/torch-farm/bundles/*/root"))
    assert not list(dest.glob("work*"))


@pytest.mark.parametrize("what", ["changed", "added", "mode"])
def test_unpacked_files_are_verified_again_before_a_run(make, tmp_path, entered, what):
    dest, _ = make(code=3)
    assert run(dest).returncode == 5
    (work,) = dest.glob("work-*")
    program = work / "root/usr/bin/mkdir"
    if what == "changed":
        program.write_text("#!/bin/bash\necho > /farm/src/executed\n")
    elif what == "added":
        program.with_name("added").write_text("")
    else:
        program.chmod(0o4755)
    done = run(dest, "--retry")
    assert f"/{'added' if what == 'added' else 'mkdir'} is not as it was unpacked" in done.stdout
    assert done.returncode == 5
    assert not (work / "root/farm/src/executed").exists()
    assert not program.with_name("added").exists()
    assert not program.stat().st_mode & 0o4000


def test_a_damaged_part_is_named_and_nothing_counts_as_unpacked(made, entered):
    dest, _ = made
    data = bytearray((dest / "part-01").read_bytes())
    data[100] ^= 1
    (dest / "part-01").write_bytes(data)
    done = run(dest)
    assert done.returncode == 2
    assert "part-01 is damaged" in done.stdout
    assert not list(dest.glob("work-*/unpacked"))


def test_results_replace_the_links_of_others_and_follow_none(made, plan, tmp_path, entered):
    dest, _ = made
    out = tmp_path / "out"
    out.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("build.log.xz", "piece-00", "result.json"):
        (out / name).symlink_to(precious)
    done = run(dest, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert precious.read_text() == "mine"
    assert join_pieces(plan, out, tmp_path / "built").name == WHEEL


def test_results_are_not_written_into_a_folder_of_all(made, tmp_path, entered):
    dest, _ = made
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    done = run(dest, "--out", out)
    assert (done.returncode, done.stderr) == (9, "")
    assert "others may write to" in done.stdout
    assert "with --out" in done.stdout
    assert not list(out.iterdir())


@pytest.mark.parametrize(
    "text", ["[", "{}", '{"name": "x", "plan": "y", "parts": [{}], "job": {}}']
)
def test_a_damaged_manifest_is_named(made, text):
    dest, _ = made
    (dest / "manifest.json").write_text(text)
    done = run(dest, "--check")
    assert (done.returncode, done.stderr) == (2, "")
    assert "manifest.json is damaged" in done.stdout


def test_a_place_for_results_that_cannot_be_made_is_named(made, tmp_path, entered):
    dest, _ = made
    (tmp_path / "file").touch()
    done = run(dest, "--out", tmp_path / "file" / "out")
    assert (done.returncode, done.stderr) == (9, "")
    assert "next: name another folder with --out" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_disk_that_is_too_small_is_named_before_and_while_it_is_unpacked(made, tmp_path, entered):
    dest, _ = made
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk], check=False
    )
    if mounted.returncode:
        pytest.skip("this container mounts nothing")
    try:
        done = run(dest, "--check", "--state", disk / "state")
        assert (done.returncode, done.stderr) == (9, "")
        assert "next: make room below" in done.stdout
        done = run(dest, "--state", disk / "state")
        assert (done.returncode, done.stderr) == (9, "")
        assert "No space left on device" in done.stdout
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_disk_that_holds_the_parts_but_not_what_they_unpack_to_is_named(make, entered):
    dest, _ = make(unpacked=10**18)
    done = run(dest, "--check")
    assert (done.returncode, done.stderr) == (9, "")
    assert "unpacked and built it takes 1000000001." in done.stdout
    assert "next: make room below" in done.stdout


def test_the_disk_that_the_build_takes_is_counted(made, entered):
    dest, _ = made
    manifest = json.loads((dest / "manifest.json").read_text())
    assert manifest["job"]["disk_gb"] == recipe("canary").disk_gb
    manifest["job"]["disk_gb"] = 1e9
    (dest / "manifest.json").write_text(json.dumps(manifest))
    done = run(dest, "--check")
    assert (done.returncode, done.stderr) == (9, "")
    assert "it takes 1000000000.0 GB more" in done.stdout


def test_what_an_earlier_call_unpacked_is_not_counted_again(tmp_path):
    manifest = {"parts": [{"size": 5}], "unpacked": 100, "job": {"disk_gb": 0}}
    assert bytes_needed(manifest, tmp_path / "state") == 105
    (tmp_path / "state/root").mkdir(parents=True)
    (tmp_path / "state/root/a").write_bytes(b"x" * 60)
    assert bytes_needed(manifest, tmp_path / "state") == 45


def test_a_machine_with_too_little_memory_is_named(made, entered):
    dest, _ = made
    manifest = json.loads((dest / "manifest.json").read_text())
    manifest["job"]["memory_per_job_gb"] = 1e6
    (dest / "manifest.json").write_text(json.dumps(manifest))
    done = run(dest, "--check")
    assert (done.returncode, done.stderr) == (9, "")
    assert "one compiler of this build takes 1e+06 GB of memory" in done.stdout


def test_each_part_that_is_written_is_a_line_with_the_bytes_so_far(plan, tree, tmp_path):
    lines = []
    files = write_bundle(
        plan,
        dest=tmp_path / "told",
        tree=tree,
        tree_bytes=0,
        inputs={},
        environment={},
        line=lines.append,
    )
    parts = [file.name for file in files if file.name.startswith("part-")]
    assert [line.split(":")[0] for line in lines] == parts
    assert lines[0].endswith(" in all")


# --- machines that allow no namespace


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("user/max_user_namespaces", "0"),
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ],
)
def test_the_setting_that_refuses_a_namespace_is_named(tmp_path, setting, value):
    path = tmp_path / setting
    path.parent.mkdir()
    path.write_text(value + "\n")
    text, todo = enter.explain(errno.EPERM, "unshare: Operation not permitted", tmp_path)
    dotted = setting.replace("/", ".")
    assert f"{dotted} is {value}" in text
    assert (
        "as root: sysctl -w "
        f"{dotted}={'15000' if value == '0' and 'max' in setting else 1 - int(value)}" in todo
    )


def test_missing_user_namespaces_are_detected_within_a_second(made, entered):
    """The limit counts in each namespace: in one of its own anybody sets it to 0."""
    dest, _ = made
    limit = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    before = ["unshare", "--user", "--map-user=1000", "--keep-caps", "sh", "-c", limit, "sh"]
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare here has no --keep-caps")
    done = run(dest, "--check", before=before)
    assert (done.returncode, done.stderr) == (9, "")
    assert "user.max_user_namespaces is 0" in done.stdout
    assert "next: as root: sysctl -w user.max_user_namespaces=15000" in done.stdout


def test_a_failed_build_shows_the_step_that_failed_and_not_kilobytes_of_its_command(tmp_path):
    log = tmp_path / "log"
    command = "g++ " + "-I/farm/src " * 1000
    lines = ["FAILED: a.cpp.o", command, "a.cpp:3:1: error: 'x' was not declared"]
    after = ["[2/3] Building b", "FAILED: b.cpp.o", "ninja: build stopped"]
    log.write_text("\n".join(["[1/3] Building a", *lines, *after]))
    shown = failure(log).splitlines()
    assert (shown[0], shown[2:]) == (lines[0], lines[2:])
    assert len(shown[1]) == 402
    assert command.startswith(shown[1][:400])


def test_a_failed_build_without_a_failed_step_shows_the_last_lines(tmp_path):
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {i}" for i in range(1000)))
    assert failure(log).splitlines() == [f"line {i}" for i in range(976, 1000)]
