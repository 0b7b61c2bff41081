"""What Slurm and a job's own files say together, and what a job may not reach."""

import json

import pytest

from farm.base.errors import FarmError
from farm.engines import slurm
from farm.engines.base import Cause, Job, attempt_name
from farm.engines.slurm import SlurmEngine, _below_farm, sbatch_options
from farm.engines.slurm_states import observation
from farm.plan.settings import Slurm, SlurmCard


def exit_json(code=0, cause=None, detail=None):
    return json.dumps({"code": code, "cause": cause, "detail": detail})


@pytest.mark.parametrize(
    ("state", "ended", "expected"),
    [
        ("PENDING", "", ("queued", None, None)),
        ("CONFIGURING", "", ("starting", None, None)),
        ("RUNNING", "", ("running", None, None)),
        ("SUSPENDED", "", ("running", None, None)),
        ("COMPLETING", "", ("running", None, None)),
        ("COMPLETED", exit_json(), ("done", 0, None)),
        ("FAILED", exit_json(3), ("done", 3, None)),
        ("FAILED", exit_json(137, "OUT_OF_MEMORY"), ("done", 137, Cause.OUT_OF_MEMORY)),
        ("FAILED", exit_json(124, "TIME_LIMIT"), ("done", 124, Cause.TIME_LIMIT)),
        # Slurm's own ends count more than what the supervisor made of its SIGTERM.
        ("TIMEOUT", exit_json(143, "CANCELLED"), ("done", 124, Cause.TIME_LIMIT)),
        ("OUT_OF_MEMORY", exit_json(137), ("done", 137, Cause.OUT_OF_MEMORY)),
        ("NODE_FAIL", "", ("lost", None, None)),
        ("BOOT_FAIL", "", ("lost", None, None)),
        ("PREEMPTED", exit_json(143, "CANCELLED"), ("lost", None, None)),
        ("CANCELLED", exit_json(143, "CANCELLED"), ("cancelled", None, None)),
        # It ends a job by SIGTERM, which may reach the command before the supervisor: the reason
        # comes a moment later.
        ("COMPLETING", exit_json(143, "CANCELLED"), ("running", None, None)),
        ("COMPLETING", exit_json(143), ("running", None, None)),
        ("CANCELLED", exit_json(143), ("cancelled", None, None)),
        ("COMPLETING", exit_json(0), ("done", 0, None)),
        # A network file system shows the report later than Slurm the end.
        ("FAILED", "", ("running", None, None)),
        # Slurm has forgotten it.
        ("", exit_json(3), ("done", 3, None)),
        ("", exit_json(143, "CANCELLED"), ("cancelled", 143, Cause.CANCELLED)),
        ("", "", ("lost", None, None)),
        # What a job wrote in the report's place is no report.
        ("", "[]", ("lost", None, None)),
        ("", exit_json("0"), ("lost", None, None)),
        ("", exit_json(-1), ("lost", None, None)),
        ("", exit_json(0, "NOTHING"), ("lost", None, None)),
        ("", "[" * 5000, ("lost", None, None)),
    ],
)
def test_every_end_state_of_slurm_is_understood(state, ended, expected):
    seen = observation(f"7|{state}|d1|Resources" if state else "", ended, "", "")
    assert (seen.state, seen.exit_code, seen.cause) == expected
    assert seen.state not in ("queued", "lost") or seen.why


def test_a_node_that_lets_no_job_in_is_named_with_what_it_said():
    seen = observation(
        "7|FAILED|d2|NonZeroExitCode", "", "users may not: user.max_user_namespaces is 0", ""
    )
    assert (seen.state, seen.cause) == ("done", Cause.NOT_STARTED)
    assert "d2" in seen.text
    assert "user.max_user_namespaces is 0" in seen.text


def test_what_was_cancelled_in_the_queue_stays_so_when_slurm_has_forgotten_it():
    assert observation("", "", "", "cancelled").state == "cancelled"
    assert observation("", exit_json(143), "", "cancelled").state == "cancelled"
    assert observation("", exit_json(0), "", "cancelled").state == "done"


@pytest.mark.parametrize(
    "target", ["/farm", "/farm/a/b", "/farm/..", "/etc", "farm/out", "/farm/a b", "/farm/$(x)"]
)
def test_a_folder_that_is_not_directly_below_farm_is_refused(target):
    with pytest.raises(FarmError, match="is not directly below /farm"):
        _below_farm(target)


def test_the_same_attempt_has_the_same_handle():
    job = Job(
        "canary",
        "",
        (),
        {},
        "/farm/out",
        {},
        None,
        1,
        labels={"farm.run": "1", "farm.attempt": "1"},
    )
    other = Job(
        "canary",
        "",
        (),
        {},
        "/farm/out",
        {},
        None,
        1,
        labels={"farm.run": "1", "farm.attempt": "2"},
    )
    assert attempt_name(job) == attempt_name(job) != attempt_name(other)


def test_options_that_are_not_set_are_left_to_slurm():
    assert sbatch_options(SlurmCard(gres="gpu:k40:1")) == ["--gres=gpu:k40:1"]


def test_a_login_node_that_does_not_answer_is_named(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'ssh: connect to host: refused' >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "LOOK_PAUSE_S", 0.0)
    with pytest.raises(
        FarmError, match="the login node k40 does not answer: ssh: connect to host: refused"
    ):
        SlurmEngine(Slurm(folder="/shared", ssh="k40")).observe("farm-1")
