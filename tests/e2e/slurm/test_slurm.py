"""What happens to builds on a Slurm cluster: nodes die, people cancel, limits are met, controllers
are killed.
"""

import json
import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from farm.engines.base import FINAL, Cause, Job, Observation
from farm.engines.slurm import SlurmEngine, _script
from tests.e2e.conftest import TIMEOUT_S, Farm, make_project, pack_fast, wait
from tests.e2e.slurm.conftest import FOLDER, NOBODY, ROOT, Cluster, engine_at

ENTER = ROOT / "farm/base/enter.py"
CANARY = ("--variant", "cpu-avx-py311", "--package", "canary")


def make_job(image: str, script: str, **changes: object) -> Job:
    limits = engine_at(str(FOLDER / "shared")).capacity()
    job = Job("test", image, ("sh", "-c", script), {}, "/farm/out", {}, limits, 600)
    return replace(job, **changes)


@pytest.fixture
def running(cluster: Cluster, tree: str, slurm_engine: SlurmEngine):
    """Starts a job that never ends by itself, and returns its handle when it runs."""
    handles = []

    def start(engine: SlurmEngine = slurm_engine) -> str:
        handles.append(engine.submit(make_job(tree, "echo up; sleep 600")))
        assert next(engine.logs(handles[-1])) == b"up\n"
        return handles[-1]

    yield start
    for handle in handles:
        slurm_engine.release(handle)


def end(engine: SlurmEngine, handle: str) -> Observation:
    return wait(
        "the job's end", lambda: (seen := engine.observe(handle)).state in FINAL and seen, 300
    )


def test_a_job_that_another_user_cancels_is_cancelled(cluster, running, slurm_engine):
    handle = running()
    cluster.command("scancel", cluster.id_of(handle))
    assert end(slurm_engine, handle).state == "cancelled"


def test_jobs_that_come_together_are_one_array_and_end_each_for_itself(cluster, tree, slurm_engine):
    jobs = [
        make_job(tree, "echo $N", environment={"N": str(n)}, labels={"farm.attempt": f"{n}"})
        for n in range(3)
    ]
    jobs.append(
        replace(jobs[0], labels={"farm.attempt": "3"}, timeout_s=1200)
    )  # asks for another time
    with ThreadPoolExecutor(4) as threads:
        with slurm_engine._sending:
            submitted = [threads.submit(slurm_engine.submit, job) for job in jobs]
            wait("all four", lambda: len(slurm_engine._waiting) == 4)
            cluster.partition("down")
        handles = [each.result() for each in submitted]
    try:
        ids = [cluster.id_of(handle) for handle in handles]
        arrays = [each.partition("_")[0] for each in ids]
        assert arrays[0] == arrays[1] == arrays[2] != arrays[3], ids
        assert sorted(each.partition("_")[2] for each in ids[:3]) == ["0", "1", "2"]
        assert (
            slurm_engine.observe(handles[1]).why == f"in Slurm's queue, job {ids[1]}: PartitionDown"
        )
        assert engine_at(slurm_engine.folder).submit(jobs[2]) == handles[2]
        slurm_engine.cancel(handles[1])
        assert [cluster.id_of(handle) for handle in handles] == [ids[0], "", *ids[2:]]
        cluster.partition("up")
        assert [end(slurm_engine, handle).state for handle in handles] == [
            "done",
            "cancelled",
            "done",
            "done",
        ]
        assert b"".join(slurm_engine.logs(handles[2])) == b"2\n"
    finally:
        cluster.partition("up")
        for handle in handles:
            slurm_engine.release(handle)


def test_a_time_limit_of_the_site_is_distinguished_from_the_recipes(cluster, running):
    engine = engine_at(str(cluster.shared), minutes=1)
    seen = end(engine, running(engine))
    assert (seen.state, seen.exit_code, seen.cause) == ("done", 124, Cause.SITE_LIMIT), seen


def test_a_node_that_dies_loses_its_job_and_its_successor_takes_it_up(
    cluster, running, tree, slurm_engine
):
    handle = running(engine_at(str(cluster.shared), constraint="k80"))
    cluster.kill_node("d2")
    try:
        seen = end(slurm_engine, handle)
        assert seen.state == "lost", seen
        assert "d2" in str(seen.why)
    finally:
        cluster.start_node("d2")


def test_what_a_site_does_not_have_is_its_own_answer(cluster, tree):
    engine = engine_at(str(cluster.shared), constraint="k20")
    with pytest.raises(Exception, match="Invalid feature specification") as caught:
        engine.submit(make_job(tree, "true"))
    assert "slurm:" in str(caught.value.hint)


def test_a_job_does_not_make_the_login_node_read_another_file(cluster, tree, slurm_engine):
    secret = cluster.shared / "secret"
    secret.write_text("secret-for-tests")
    script = f"ln -sf {secret} /run/log; ln -sf {secret} /run/exit.json; ln -s {secret} /farm/out"
    handle = slurm_engine.submit(make_job(tree, script))
    try:
        wait("Slurm's end", lambda: not cluster.id_of(handle))
        assert slurm_engine._look(handle, 0, 1 << 20)[1] == b""
        with pytest.raises(Exception, match="not a plain file"):
            slurm_engine.collect(handle, FOLDER / "taken", 1 << 20)
    finally:
        cluster.command("rm", "-rf", str(cluster.shared / "jobs" / handle))


def _apptainers_node(root: Path) -> list[str]:
    """A command that begins others on a node that has apptainer, of Debian sid, and neither Python
    nor bubblewrap.
    """
    packages = [
        "--include=apptainer,base-files,coreutils,dash",
        "--variant=extract",
        "--format=dir",
    ]
    command = [
        "mmdebstrap",
        *packages,
        '--aptopt=Acquire::Check-Valid-Until "false"',
        "sid",
        str(root),
    ]
    subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)
    for name in ("passwd", "group", "hosts", "localtime"):  # what apptainer takes from its node
        shutil.copy(Path("/etc", name), root / "etc")
    devices = [
        word for name in ("dev", "proc", "sys") for word in ("--dev-bind", f"/{name}", f"/{name}")
    ]
    user = ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    return ["bwrap", *user, "--bind", str(root), "/", *devices, "--bind", str(FOLDER), str(FOLDER)]


@pytest.mark.parametrize("way", ["bwrap", "apptainer", "none"])
def test_a_node_without_user_namespaces_uses_another_way_or_names_the_setting(cluster, tree, way):
    """The limit of namespaces counts in each namespace: in one of its own anybody sets it to 0."""
    root = next((cluster.shared / "toolchains").iterdir()) / "root"
    folder = cluster.shared / way
    for name in ("farm", "run", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "run/run.py").write_text("print('inside', flush=True)")
    script = _script(
        str(root), [(str(folder / name), name) for name in ("farm", "run", "tmp")], card=False
    )
    (folder / "job.sh").write_text(script)
    enter = "import sys; sys.exit('enter: refused here')" if way == "bwrap" else ENTER.read_text()
    (folder / "enter.py").write_text(enter)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    if way == "none":
        limit = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
        command += ["unshare", "--user", "--map-user=1000", "--keep-caps", "sh", "-c", limit, "sh"]
    if way == "apptainer":
        command += [*_apptainers_node(folder / "node"), "--chdir", str(folder)]
    done = subprocess.run(
        [*command, "sh", "job.sh"], cwd=folder, capture_output=True, text=True, check=False
    )
    if way != "none":
        assert (done.returncode, done.stdout) == (0, "inside\n"), (
            done.stderr + (folder / "refused").read_text()
        )
        assert not (folder / "refused").exists()
    else:
        assert done.returncode == 125, done.stderr
        assert "user.max_user_namespaces is 0" in (folder / "refused").read_text()


# --- the farm's commands


@pytest.fixture
def farm(cluster: Cluster, tree: str, tmp_path: Path) -> Farm:
    made = Farm(make_project(tmp_path / "project"))
    pack_fast(made.project)
    settings = made.project / "ci/farm.yaml"
    slurm = {
        "folder": str(cluster.shared),
        "ssh": "login",
        "cpus": 1,
        "memory_gb": 2,
        "smoke": {"constraint": "k40"},
    }
    settings.write_text(
        settings.read_text().replace("\nslurm: null", f"\nslurm: {json.dumps(slurm)}")
    )
    return made


def test_a_canary_from_submit_to_the_pip_line_though_its_controller_is_killed(cluster, farm):
    before = set((cluster.shared / "jobs").glob("*"))  # of other tests
    process = farm.start("submit", *CANARY, "--on", "slurm", "--json")
    wait("the build's job", lambda: cluster.command("squeue", "-h", "-t", "RUNNING", "-o", "%i"))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    jobs = cluster.command("squeue", "-h", "-t", "all", "-o", "%j").split()
    done = farm.run("submit", *CANARY, "--on", "slurm", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    steps = {step["step"]: step["result"] for step in document["steps"]}
    assert steps["build"].startswith("resumed; canary-")
    assert "passed" in steps["smoke"]
    assert "pip install" in document["pip"]
    after = cluster.command("squeue", "-h", "-t", "all", "-o", "%j %N").splitlines()
    smoke = [line for line in after if line.split()[0] not in jobs]
    assert [line.split()[1] for line in smoke] == [
        "d1"
    ]  # the node with the card that `smoke` asks for
    assert set((cluster.shared / "jobs").iterdir()) <= before
    assert not list((cluster.shared / "volumes").glob("farm-tree-*"))
