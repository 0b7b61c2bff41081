"""What runs inside a swarm job's container, run here against a real S3 server, and the exchange
that it writes to.
"""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from farm.base.errors import UsageError
from farm.base.processes import started
from farm.base.zipapps import pack
from farm.engines import transfer
from farm.engines.swarm import AGENT, Exchange
from farm.run.standalone import agent as main
from farm.run.standalone.agent import UPLOAD_FAILED
from tests.pythons import python


@pytest.fixture
def agent(exchange, tmp_path):
    """Runs the agent, as the packed file that ships, on a command; returns the process and the
    report.
    """
    inputs = tmp_path / "given"
    inputs.mkdir()
    (inputs / "greeting").write_text("hello\n")
    packed = io.BytesIO()
    transfer.pack({str(tmp_path / "in"): inputs}, packed)
    exchange.put("job/inputs.tar.gz", gzip.compress(packed.getvalue()))

    def go(*words, timeout_s=30, pieces=20, interval_s=0.2, interpreter=sys.executable, **changes):
        manifest = {
            "command": list(words),
            "environment": {"FARM_JOBS": "3"},
            "output": str(tmp_path / "out"),
            "timeout_s": timeout_s,
            "interval_s": interval_s,
            "logs": [exchange.put_url(f"job/log/{number:04d}", 600) for number in range(pieces)],
            "output_url": exchange.put_url("job/output.tar", 600),
            "report_url": exchange.put_url("job/report.json", 600),
            "inputs_url": exchange.get_url("job/inputs.tar.gz", 600),
        } | changes
        path = tmp_path / "manifest"
        path.write_bytes(gzip.compress(json.dumps(manifest).encode()))
        shipped = tmp_path / "agent.pyz"
        shipped.write_bytes(pack(AGENT))
        code = (
            "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
            "import farm_agent as main\n"
            "main.MANIFEST = Path(sys.argv[2]); main.RETRY_S = 3; main.CHUNK = 1000; main.SPOOL = "
            "5000\n"
            "sys.exit(main.main())"
        )
        command = [interpreter, "-I", "-S", "-c", code, shipped, path]
        done = subprocess.run(command, check=False, timeout=600, capture_output=True)
        report = exchange.get("job/report.json")
        return done, None if report is None else json.loads(report)

    return go


def log_of(exchange):
    pieces = [exchange.get(f"job/log/{number:04d}") for number in range(20)]
    return b"".join(piece for piece in pieces if piece is not None)


def test_inputs_command_output_and_report(agent, exchange, tmp_path):
    script = f"echo $FARM_JOBS; mkdir {tmp_path}/out; cp {tmp_path}/in/greeting {tmp_path}/out/"
    done, report = agent("sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert (report["exit_code"], report["timed_out"], report["out_of_memory"]) == (0, False, False)
    assert log_of(exchange) == b"3\n"
    files = transfer.unpack(exchange.chunks("job/output.tar"), tmp_path / "here", 1 << 20)
    assert [(path.name, path.read_text()) for path in files] == [("greeting", "hello\n")]


def test_it_runs_on_python_3_7(agent, exchange, tmp_path):
    script = f"mkdir {tmp_path}/out; cp {tmp_path}/in/greeting {tmp_path}/out/"
    done, report = agent("sh", "-c", script, interpreter=python(7))
    assert (done.returncode, report["exit_code"]) == (0, 0), done.stderr
    files = transfer.unpack(exchange.chunks("job/output.tar"), tmp_path / "here", 1 << 20)
    assert [path.read_text() for path in files] == ["hello\n"]


def test_a_failure_keeps_its_code_and_sends_no_output(agent, exchange):
    done, report = agent("sh", "-c", "echo bad; exit 3")
    assert (done.returncode, report["exit_code"]) == (3, 3)
    assert log_of(exchange) == b"bad\n"
    assert exchange.get("job/output.tar") is None


def test_a_command_that_does_not_exist_is_said_in_the_log(agent, exchange):
    done, report = agent("/nonexistent/command")
    assert (done.returncode, report["exit_code"]) == (127, 127)
    assert b"does not start" in log_of(exchange)


def test_the_time_limit_ends_the_children_too(agent, tmp_path):
    pid = tmp_path / "pid"
    for limit in (1, 10, 60):  # on a busy machine the child may not have come within a second
        begun = time.monotonic()
        _, report = agent(
            "sh", "-c", f"(sleep 600 & echo $! > {pid}; wait) & wait", timeout_s=limit
        )
        assert (report["exit_code"], report["timed_out"]) == (124, True)
        assert time.monotonic() - begun < 500
        if pid.exists() and pid.read_text():
            break
    child, end = int(pid.read_text()), time.monotonic() + 300
    while (
        started(child) and time.monotonic() < end
    ):  # it was told to end: the kernel may take a while to do it
        time.sleep(0.02)
    assert not started(child)


def test_a_stop_from_outside_is_no_fault_of_the_build(agent):
    done, report = agent("sh", "-c", "kill -TERM $PPID; sleep 30")
    assert report["stopped"] is True
    assert done.returncode == report["exit_code"] == 143


def test_a_log_beyond_its_urls_is_cut_and_said(agent, exchange):
    _, report = agent("sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; echo end", pieces=3)
    log = log_of(exchange)
    assert report["exit_code"] == 0
    assert len(log) < 4000
    assert b"bytes of the log are lost" in log


def test_a_store_that_is_away_is_no_success(agent):
    done, report = agent("true", report_url="http://127.0.0.1:9/report?X=1")
    assert (done.returncode, report) == (UPLOAD_FAILED, None)
    assert b"the store" in done.stderr


def test_a_url_serves_one_object_once(exchange):
    url = exchange.put_url("job/one", 60)
    main.put(url, b"first")
    main.put(url, b"second")  # refused; taken for an own try whose answer was lost
    assert exchange.get("job/one") == b"first"
    assert "X-Amz-SignedHeaders=host%3Bif-none-match" in url
    assert "secret-for-tests" not in url
    exchange.drop("job/")
    assert exchange.get("job/one") is None


def test_a_folder_is_no_exchange(tmp_path):
    with pytest.raises(UsageError, match="is not a bucket"):
        Exchange(str(tmp_path))


def test_what_the_command_leaves_behind_is_not_waited_for(agent, exchange, tmp_path):
    """A daemon of its own session, such as a compiler cache, keeps the log's pipe open."""
    start = time.monotonic()
    daemon = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600' &"
    script = f"{daemon} while [ ! -s {tmp_path}/pid ]; do sleep 0.05; done; echo over"
    try:
        _, report = agent("sh", "-c", script)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert report["exit_code"] == 0
    assert log_of(exchange) == b"over\n"
    assert time.monotonic() - start < 500
