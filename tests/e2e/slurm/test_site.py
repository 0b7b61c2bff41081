"""A real cluster with limits, of more than one user, and how often it is asked.

QOS and associations need slurmdbd and its database, which are not here: scripts answer for them
(`tests/unit/engines/test_slurm_site.py`).
"""

import re
import threading
import time
from contextlib import contextmanager

import pytest

from farm.base.errors import InfrastructureError
from farm.engines import slurm_queue
from farm.engines.base import FINAL, Cause
from farm.plan.settings import load_settings
from tests.e2e.conftest import Farm, make_project, wait
from tests.e2e.slurm.conftest import FOLDER, LIMIT_MINUTES, NOBODY, SECOND, engine_at, login_of
from tests.e2e.slurm.test_slurm import make_job
from tests.servers.ssh import serve_ssh

HOUR_S = 3600


@contextmanager
def submitted(engine, job):
    handle = engine.submit(job)
    try:
        yield handle
    finally:
        engine.release(handle)


# --- limits


def test_a_job_asks_for_no_more_than_the_partition_allows(cluster, tree):
    engine = engine_at(str(cluster.shared), partition="short")
    with submitted(engine, make_job(tree, "echo up; sleep 600", timeout_s=HOUR_S)) as handle:
        assert next(engine.logs(handle)) == b"up\n"
        time_limit = cluster.command("squeue", "-h", "-j", cluster.id_of(handle), "-o", "%l")
        assert time_limit.strip() == f"{LIMIT_MINUTES}:00"


def test_plan_names_the_partitions_limit(cluster, tmp_path):
    farm = Farm(make_project(tmp_path / "project"))
    path = farm.project / "ci/farm.yaml"
    slurm = f"{{folder: {cluster.shared}, ssh: login, partition: short}}"
    path.write_text(path.read_text().replace("\nslurm: null", f"\nslurm: {slurm}"))
    assert load_settings(farm.project).slurm is not None
    done = farm.run("plan", "--variant", "cpu-avx-py311", "--package", "canary")
    text = f"a job gets {LIMIT_MINUTES} of the recipe's 15 minutes: the limit of partition short"
    assert text in " ".join(done.stdout.split())


def test_a_limit_that_is_lowered_while_a_job_waits_is_one_that_never_lifts(cluster, tree):
    engine = engine_at(str(cluster.shared), partition="short")
    cluster.command("scontrol", "update", "partitionname=short", "state=down")
    try:
        with submitted(engine, make_job(tree, "true", timeout_s=HOUR_S)) as handle:
            cluster.command("scontrol", "update", "partitionname=short", "maxtime=1", "state=up")
            seen = wait(
                "the reason",
                lambda: (now := engine.observe(handle)).cause is Cause.NEVER_STARTS and now,
            )
            assert seen.state == "queued"
            assert "PartitionTimeLimit; set slurm.minutes" in str(seen.why)
    finally:
        cluster.command(
            "scontrol", "update", "partitionname=short", f"maxtime={LIMIT_MINUTES}", "state=up"
        )


# --- two users


@pytest.fixture
def second_user(cluster, monkeypatch):
    """The login node lets this test in as another ordinary user."""
    folder = FOLDER / "ssh-second"
    if not folder.exists():
        serve_ssh(folder, 17024, login_of(SECOND))
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")


def test_a_second_user_learns_that_the_folder_belongs_to_the_first(cluster, tree, second_user):
    assert (cluster.shared / "jobs").stat().st_uid == NOBODY
    with pytest.raises(InfrastructureError, match="Permission denied") as caught:
        engine_at(str(cluster.shared)).check_folder(1.0)
    assert str(cluster.shared) in str(caught.value)
    assert "each user needs a folder of their own" in caught.value.hint


def test_a_second_user_may_not_read_the_jobs_of_the_first(cluster, tree, slurm_engine):
    with submitted(slurm_engine, make_job(tree, "echo secret; sleep 600")) as handle:
        assert next(slurm_engine.logs(handle)) == b"secret\n"
        assert (cluster.shared / "jobs" / handle).stat().st_mode & 0o077 == 0


def test_a_second_user_with_a_folder_of_their_own_is_not_in_the_way(
    cluster, tree, slurm_engine, second_user
):
    own = FOLDER / "second"
    own.mkdir(exist_ok=True)
    cluster.command("chown", f"{SECOND}:{SECOND}", str(own))
    engine = engine_at(str(own))
    engine.check_folder(1.0)
    cluster.command("cp", "-a", str(cluster.shared / "toolchains"), str(own))
    cluster.command("chown", "-R", f"{SECOND}:{SECOND}", str(own))
    job = make_job(tree, "id -u; cat /proc/self/uid_map", labels={"farm.attempt": "second"})
    with submitted(engine, job) as handle:
        seen = wait("the end", lambda: (now := engine.observe(handle)).state in FINAL and now)
        assert (seen.state, seen.exit_code) == ("done", 0), seen
        assert str(SECOND) in b"".join(engine.logs(handle)).decode().split()
        assert (own / "jobs" / handle).stat().st_uid == SECOND


# --- questions


RUNNING = WAITING = 16
MEASURED_S = 120.0
"""For which the questions are counted; the rate is per minute."""
FASTER = 5
"""Every pause between questions is shorter by this, and so is the time for which they are counted:
what slurmctld and ssh take of it stays, and at 5 is a few per cent.
"""


def test_few_questions_are_asked_for_sixteen_running_and_sixteen_waiting_jobs(
    cluster, tree, monkeypatch
):
    cluster.start_node("d3")
    engine = engine_at(str(cluster.shared), partition="many")
    engine.poll_s /= FASTER
    for pause in ("LISTING_S", "NEW_S"):
        monkeypatch.setattr(slurm_queue, pause, getattr(slurm_queue, pause) / FASTER)
    jobs = [
        make_job(tree, "echo up; sleep 900", labels={"farm.attempt": f"rpc-{number}"})
        for number in range(RUNNING + WAITING)
    ]
    try:
        handles = submit_together(engine, jobs)
        followers = [
            threading.Thread(target=follow, args=(engine, handle), daemon=True)
            for handle in handles
        ]
        for follower in followers:
            follower.start()
        wait("sixteen of them run", lambda: len(cluster.jobs_on("d3")) == RUNNING, 300)
        cluster.command("sdiag", "--reset")
        time.sleep(MEASURED_S / FASTER)  # what is measured is a rate
        a_minute = questions(cluster) / MEASURED_S * 60
        print(f"RPCs a minute: {a_minute:.1f}")
        assert a_minute <= 12, cluster.command("sdiag")
        cluster.command("scancel", "--partition=many")
        for follower in followers:
            follower.join(300)
    finally:
        cluster.command("scancel", "--partition=many")


def submit_together(engine, jobs):
    """Submit jobs from a thread each, as a dispatcher does; returns their handles."""
    handles = [None] * len(jobs)

    def submit(number):
        handles[number] = engine.submit(jobs[number])

    threads = [threading.Thread(target=submit, args=[number]) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return handles


def follow(engine, handle):
    """As a build is followed: its state while it waits, then its log."""
    while engine.observe(handle).state in ("queued", "starting"):
        time.sleep(engine.poll_s)
    for _ in engine.logs(handle):
        pass


def questions(cluster):
    """The calls of the farm's user that slurmctld has counted since the last reset."""
    by_user = cluster.command("sdiag").partition("statistics by user")[2]
    (count,) = re.findall(rf"\( *{NOBODY}\) count:(\d+)", by_user)
    return int(count)
