"""The farm command in a process of its own, as a user starts it."""

import json

from tests.answers import CANARY, HOSTILE, failed


def test_outside_a_project(farm_process, tmp_path):
    """Any folder will do: the farm's own channels are taken, and nothing is written where nothing
    is built.
    """
    answer = farm_process("plan", *CANARY, cwd=tmp_path)
    assert (answer.returncode, "kepler-debian" in answer.stdout) == (0, True), answer.stderr
    assert list(tmp_path.iterdir()) == []
    text = failed(farm_process("--project", tmp_path / "absent", "plan", *CANARY), 2)
    assert "absent: no such folder" in text
    assert "--project DIR" in text


def test_no_engine(farm, farm_process, project):
    text = failed(
        farm_process(
            "--project", project, "submit", *CANARY, env={"DOCKER_HOST": "unix:///nonexistent"}
        ),
        4,
    )
    assert "no Docker engine answers" in text
    assert "set DOCKER_HOST" in text
    listed = farm("--project", project, "status", "--json")
    [run] = json.loads(listed.stdout)
    assert (run["result"], run["variant"]) == ("infra", "sm35-avx-py311")
    one = json.loads(farm("--project", project, "status", run["id"], "--json").stdout)
    steps = {e["data"]["name"]: e["data"]["outcome"] for e in one["events"] if e["kind"] == "step"}
    assert steps["render"] == "done"
    assert one["exit_code"] == 4
    logs = failed(farm("--project", project, "logs"), 2)
    assert "has no build log: it did not come to the build" in logs
    assert "image.log" not in logs  # there is none
    image = project / "artifacts" / "runs" / run["id"] / "image.log"
    image.touch()
    assert str(image) in failed(farm("--project", project, "logs"), 2)


def test_traceback_is_there_for_bug_reports(farm_process):
    answer = farm_process("--traceback", "plan", "--variant", "x")
    assert "Traceback" in answer.stderr
    assert "UsageError" in answer.stderr


def test_the_log_of_a_run_is_shown_without_its_control_characters(farm, farm_process, project):
    farm_process(
        "--project", project, "submit", *CANARY, env={"DOCKER_HOST": "unix:///nonexistent"}
    )
    [run] = [p for p in (project / "artifacts" / "runs").iterdir() if p.is_dir()]
    (run / "build.log").write_bytes(b"one\n" + HOSTILE.encode() + b"\xff\n[1/2] a\r[2/2] b\n")
    answer = farm("--project", project, "logs")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines() == ["one", "red2J\ufffd", "[2/2] b"]


def test_a_terminal_without_the_characters_is_no_error(farm_process, tmp_path):
    answer = farm_process(
        "render", *CANARY, "-o", tmp_path / "größe", env={"PYTHONIOENCODING": "ascii"}
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "gr\\xf6\\xdfe" in answer.stdout
