"""A cluster as its administrators set it up: few questions, limits, a folder that is full or
somebody else's. Slurm's commands are scripts that answer from files and count their calls.
"""

import threading
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError
from farm.engines import slurm, slurm_queue
from farm.engines.base import Cause
from farm.engines.slurm import SlurmEngine
from farm.engines.slurm_limits import minutes_of, time_limit
from farm.engines.slurm_queue import JobKey, SlurmQueue
from farm.engines.slurm_states import advice, observation
from farm.plan.settings import Slurm, SlurmCard

WAITS = "in Slurm's queue"


class Site:
    """The folder of a cluster, and what its commands say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shared"
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.folder.mkdir()
        self.calls = folder / "calls"
        self.calls.touch()
        self.rows: dict[str, str] = {}
        self.command("squeue", f"echo squeue >> {self.calls}; cat {folder}/rows 2>/dev/null; true")
        self.command("scontrol", "echo JobId=7 ExitCode=1:0 Requeue=0")
        self._rows = folder / "rows"

    def command(self, name: str, script: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def job(self, handle: str, row: str) -> str:
        """A job in the folder, with its line of squeue."""
        place = self.folder / "jobs" / handle
        (place / "run").mkdir(parents=True, exist_ok=True)
        (place / "task").write_text(f"farm-array {len(self.rows)}\n")
        self.rows[handle] = f"farm-array|{len(self.rows)}|{row}"
        self._rows.write_text("\n".join(self.rows.values()) + "\n")
        return handle

    @property
    def questions(self) -> int:
        return len(self.calls.read_text().split())


@pytest.fixture
def site(tmp_path, monkeypatch):
    made = Site(tmp_path)
    monkeypatch.setenv("PATH", f"{made.programs}:/usr/bin:/bin")
    return made


@pytest.fixture
def engine(site):
    return SlurmEngine(Slurm(folder=str(site.folder), cpus=1, memory_gb=1))


def test_one_question_serves_all_jobs(site, engine):
    handles = [site.job(f"job{n}", f"{n}|PENDING||Resources") for n in range(16)]
    handles += [site.job(f"job{n}", f"{n}|RUNNING|d1|None") for n in range(16, 32)]
    for _ in range(10):
        states = [engine.observe(handle).state for handle in handles]
    assert states == ["queued"] * 16 + ["running"] * 16
    assert site.questions == 1


def test_threads_that_ask_together_share_the_answer(site, engine):
    handles = [site.job(f"job{n}", f"{n}|PENDING||Resources") for n in range(8)]
    threads = [threading.Thread(target=engine.observe, args=[handle]) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert site.questions <= 2  # one that began before a job was first seen, and one after it


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(slurm_queue, "time", made)
    return made


@pytest.fixture
def asked(clock):
    """A queue with one job, and how often it was asked."""
    times = []

    def ask():
        times.append(clock.now)
        return ["farm-a|0|7|PENDING||Resources"]

    return SlurmQueue(ask), times


def test_a_job_that_is_listed_is_asked_about_every_twenty_seconds(asked, clock):
    queue, times = asked
    for _ in range(60):
        queue.row(JobKey("farm-a", "0"), since=0.0)
        clock.now += 1.0
    assert [time - times[0] for time in times] == [0.0, 20.0, 40.0]


def test_a_job_that_is_not_listed_yet_is_asked_about_soon(asked, clock):
    queue, times = asked
    queue.row(JobKey("farm-a", "0"), since=0.0)
    since = clock.now
    assert queue.row(JobKey("farm-b", "0"), since) is None  # the answer is older than the job
    clock.now += 2.0
    assert queue.row(JobKey("farm-b", "0"), since) == ""
    assert len(times) == 2


def test_the_end_of_a_job_that_is_cancelled_is_asked_about_each_second(asked, clock):
    queue, times = asked
    for _ in range(3):
        queue.row(JobKey("farm-a", "0"), since=0.0, urgent=True)
        clock.now += 1.0
    assert len(times) == 3


# --- reasons that never lift


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionTimeLimit",
        "PartitionNodeLimit",
        "QOSMaxWallDurationPerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "QOSMaxMemoryPerJob",
        "QOSMaxCpuPerJobLimit",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "InvalidAccount",
        "BadConstraints",
        "DependencyNeverSatisfied",
        "JobHeldAdmin",
    ],
)
def test_a_reason_that_never_lifts_says_what_to_change(reason):
    seen = observation(f"7|PENDING||{reason}", "", "", "")
    assert (seen.state, seen.cause) == ("queued", Cause.NEVER_STARTS)
    assert reason in seen.text
    assert advice(reason) in seen.text


@pytest.mark.parametrize(
    "reason",
    [
        "Resources",
        "Priority",
        "PartitionDown",
        "ReqNodeNotAvail",
        "QOSMaxJobsPerUserLimit",
        "AssocGrpCpuLimit",
        "Dependency",
        "BeginTime",
        "None",
    ],
)
def test_a_reason_that_may_lift_is_waited_for(reason):
    assert observation(f"7|PENDING||{reason}", "", "", "").cause is None


# --- time limits


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("10:00", 10),
        ("2:00:00", 120),
        ("1-00:00:00", 1440),
        ("infinite", None),
        ("", None),
        ("n/a", None),
    ],
)
def test_times_of_slurm_are_read(text, minutes):
    assert minutes_of(text) == minutes


LINES = [
    "partition|short*|2:00:00",
    "partition|long|infinite",
    "partition|day|1-00:00:00",
    "qos|night|8:00:00",
    "qos|normal|",
    "account|physics|12:00:00",
]


@pytest.mark.parametrize(
    ("card", "minutes"),
    [
        (SlurmCard(), 120),
        (SlurmCard(partition="long"), 720),
        (SlurmCard(partition="day"), 720),
        (SlurmCard(partition="short,day"), 720),
        (SlurmCard(partition="day", qos="night"), 480),
        (SlurmCard(partition="day", qos="normal", account="physics"), 720),
        (SlurmCard(partition="long", account="chemistry"), None),
    ],
)
def test_the_shortest_limit_that_holds_counts(card, minutes):
    limit = time_limit(LINES, card)
    assert (limit.minutes if limit else None) == minutes


def test_a_cluster_that_says_nothing_limits_nothing():
    assert time_limit([], SlurmCard()) is None


# --- the shared folder


def test_a_folder_of_another_user_is_reported_as_such(site, engine):
    site.command(
        "mkdir", "echo \"mkdir: cannot create directory 'jobs': Permission denied\" >&2; exit 1"
    )
    with pytest.raises(
        InfrastructureError, match=r"the shared folder .* Permission denied"
    ) as caught:
        engine.check_folder(0)
    assert "each user needs a folder of their own" in caught.value.hint


def test_a_full_folder_is_reported_as_such(site, engine):
    site.command("mktemp", "echo 'mktemp: failed to create: No space left on device' >&2; exit 1")
    with pytest.raises(InfrastructureError, match="No space left on device") as caught:
        engine.check_folder(0)
    assert "make room there" in caught.value.hint


def test_a_folder_with_too_little_space_is_found_before_the_build(engine):
    with pytest.raises(InfrastructureError, match=r"GB free, and 1000000000\.0 are needed"):
        engine.check_folder(1e18)


def test_a_usable_folder_is_tried_and_left_unchanged(site, engine):
    engine.check_folder(1.0)
    assert list((site.folder / "jobs").iterdir()) == []


# --- a job that ended without a report


def test_a_job_without_a_report_is_settled_with_all_that_is_known(site, engine, monkeypatch):
    handle = site.job("job0", "7|FAILED|d1|NonZeroExitCode")
    output = site.folder / "jobs/job0/slurm.out"
    output.write_text("cp: error writing 'x': No space left on device\n")
    assert engine.observe(handle).state == "running"  # it may be seen later on NFS
    monkeypatch.setattr(slurm, "REPORT_S", 0.0)
    seen = engine.observe(handle)
    assert seen.state == "lost"
    for word in ("FAILED", "NonZeroExitCode", "1:0", "No space left on device", "GB free"):
        assert word in seen.text
    assert engine.observe(handle) == seen


def test_a_report_that_comes_late_counts(site, engine, monkeypatch):
    handle = site.job("job0", "7|COMPLETED|d1|None")
    assert engine.observe(handle).state == "running"
    report = '{"code": 0, "cause": null, "detail": null}'
    (site.folder / "jobs/job0/run/exit.json").write_text(report)
    monkeypatch.setattr(slurm, "REPORT_S", 0.0)
    assert (engine.observe(handle).state, engine.observe(handle).exit_code) == ("done", 0)


def test_a_limit_of_the_site_is_distinguished_from_the_recipes(site, engine):
    handle = site.job("job0", "7|TIMEOUT|d1|TimeLimit")
    (site.folder / "jobs/job0/limit").write_text("120 of 1445 minutes: the limit of partition gpu")
    seen = engine.observe(handle)
    assert (seen.state, seen.exit_code, seen.cause) == ("done", 124, Cause.SITE_LIMIT)
    assert "120 of 1445 minutes" in seen.text


def test_few_sessions_are_on_the_login_node_at_a_time(site, monkeypatch, tmp_path):
    """OpenSSH refuses some of many that begin together: 26 of 32 threads were told so at once."""
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    counted = tmp_path / "counted"
    script = f"touch {sessions}/$$; ls {sessions} | wc -l >> {counted}; sleep 0.1; rm {sessions}/$$"
    site.command("ssh", script)
    engine = SlurmEngine(Slurm(folder=str(site.folder), ssh="login", cpus=1, memory_gb=1))
    threads = [threading.Thread(target=engine.observe, args=[f"job{n}"]) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = [int(count) for count in counted.read_text().split()]
    assert len(counts) == 32
    assert 1 < max(counts) <= slurm.SESSIONS
