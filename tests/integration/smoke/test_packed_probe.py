"""The probe as it ships: one file, for Python 3.7 and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm.base.zipapps import pack
from farm.smoke.runner import PROBE, Expectation, run_probe
from tests.pythons import python


@pytest.fixture
def packed(tmp_path) -> Path:
    file = tmp_path / "probe.pyz"
    file.write_bytes(pack(PROBE))
    return file


def test_what_ships_is_the_packed_file(environment, packed):
    """The runner has no other program: the module under test sees the same bytes."""
    addition = """
        import pathlib, sys
        pathlib.Path(sys.prefix, "program").write_bytes(pathlib.Path(sys.argv[0]).read_bytes())
    """
    python = environment(addition)
    assert (
        run_probe(python, module="fakemod", expect=Expectation(), timeout_s=60).outcome == "passed"
    )
    assert (python.parent.parent / "program").read_bytes() == packed.read_bytes()


def test_it_runs_on_python_3_7(packed, tmp_path, good_source):
    (tmp_path / "fakemod.py").write_text(good_source, encoding="utf-8")
    command = [
        str(python(7)),
        str(packed),
        "--module=fakemod",
        f"--json={tmp_path / 'report.json'}",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["complete"]
    assert document["facts"]["python"].startswith("3.7.")


def test_the_data_of_the_speed_checks_is_inside(packed):
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; from farm_probe.card import units_of as u; "
        "print(u('float32', 35))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(packed)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "192\n"


def test_a_check_is_printed_as_it_ends(environment, packed, tmp_path):
    """A log shows what has ended while the next check still runs."""
    python = environment(
        "def hang(s, o):\n    import time\n    time.sleep(600)\nTensor.__matmul__ = hang\n"
    )
    command = [
        str(python),
        "-I",
        str(packed),
        "--module=fakemod",
        f"--json={tmp_path / 'report.json'}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        lines = [child.stdout.readline().split() for _ in range(5)]
        child.kill()
    assert [line[:2] for line in lines[:2]] == [["passed", "import"], ["passed", "version"]]
    assert lines[4][:3] == ["not", "run", "architectures"]


def test_lines_reach_the_caller_of_the_runner(environment):
    lines = []
    run_probe(
        environment(), module="fakemod", expect=Expectation(), timeout_s=60, line=lines.append
    )
    assert [line.split()[:2] for line in lines[:2]] == [["passed", "import"], ["passed", "version"]]
    assert len(lines) == 15


def test_checks_after_the_time_limit_are_not_run(environment, packed, tmp_path):
    # Each reading of the clock is a second later: no real time is needed.
    addition = """
        import itertools, time
        seconds = itertools.count(1)
        time.perf_counter = lambda: started + next(seconds)
        started = time.monotonic()
    """
    options = ["--module=fakemod", f"--json={tmp_path / 'report.json'}", "--time-limit=20"]
    done = subprocess.run(
        [str(environment(addition)), "-I", str(packed), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    document = json.loads((tmp_path / "report.json").read_text())
    late = [
        check
        for check in document["checks"]
        if check["reason"] == "the time limit of 20 s was over"
    ]
    assert done.returncode == 1
    assert document["complete"]
    assert 0 < len(late) == document["skipped"] < len(document["checks"])
    assert document["checks"][-len(late) :] == late


@pytest.mark.parametrize("isolated", [True, False])
def test_a_process_of_its_own_finds_what_the_probe_finds(packed, tmp_path, good_source, isolated):
    """On a card that is cut off, torch lies on PYTHONPATH; the runner of a smoke test shuts that
    out.
    """
    (tmp_path / "fakemod.py").write_text(good_source, encoding="utf-8")
    ask = (
        f"import sys; sys.argv[0] = {str(packed)!r}\n"
        "from farm.smoke.probe.card import run_first_kernel\n"
        "print(run_first_kernel('fakemod', {}, 60.0)['error'])"
    )
    command = [sys.executable, *(["-I"] if isolated else []), "-c", ask]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert ("No module named 'fakemod'" in done.stdout) == isolated, done.stdout
