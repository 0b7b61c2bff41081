"""What comes back from managers and jobs that do not behave."""

import json
from urllib.parse import urlsplit

import docker
import pytest

from farm.engines.swarm import SwarmEngine
from tests.servers.threads import Handler, answered_by


class Manager:
    """One service with one task on one node."""

    def __init__(self):
        self.node = {
            "ID": "n3",
            "Description": {
                "Hostname": "third",
                "Platform": {"OS": "linux", "Architecture": "x86_64"},
                "Resources": {"NanoCPUs": 2_000_000_000, "MemoryBytes": 4 << 30},
            },
            "Spec": {"Availability": "active", "Role": "worker"},
            "Status": {"State": "ready"},
        }
        status = {"State": "running", "ContainerStatus": {}}
        self.task = {
            "ID": "t",
            "CreatedAt": "1",
            "NodeID": "n3",
            "DesiredState": "running",
            "Status": status,
        }
        self.replicas, self.version = 1, {"Index": 1}
        self.left = None  # so many answers about the service, then somebody else has removed it
        self.conflicts = False  # somebody else asks for the same end at the same time

    def gone(self, path):
        """Whether the service is not there any more for this question."""
        if self.left is None or not path.endswith(("/tasks", "/services/s", "/update")):
            return False
        self.left -= 1
        return self.left < 0

    def update(self):
        """The code and the text of the answer to a change of the service."""
        self.replicas = 0
        self.task |= {
            "DesiredState": "shutdown",
            "Status": {"State": "shutdown", "ContainerStatus": {}},
        }
        return (
            (500, "rpc error: code = Unknown desc = update out of sequence")
            if self.conflicts
            else (200, "")
        )

    def answer(self, path):
        spec = {
            "Labels": {"farm.exchange": "farm-x"},
            "Mode": {"Replicated": {"Replicas": self.replicas}},
        }
        spec["TaskTemplate"] = {"ContainerSpec": {}, "Placement": {}}
        if path.endswith("/info"):
            return {"Swarm": {"ControlAvailable": True}}
        if path.endswith("/nodes"):
            return [self.node]
        if path.endswith("/tasks"):
            return [self.task]
        return {"ID": "s", "Version": self.version, "Spec": spec}


def handler(manager):
    class Api(Handler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path = urlsplit(self.path).path
            if manager.gone(path):
                self.reply(404, b'{"message": "service s not found"}')
                return
            self.reply(200, json.dumps(manager.answer(path)).encode())

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            if manager.gone(urlsplit(self.path).path):
                self.reply(404, b'{"message": "service s not found"}')
                return
            code, text = manager.update()
            self.reply(code, json.dumps({"message": text}).encode())

    return Api


@pytest.fixture
def manager():
    made = Manager()
    with answered_by(handler(made)) as url:
        made.url = url.replace("http", "tcp")
        yield made


@pytest.fixture
def engine(manager, exchange):
    client = docker.DockerClient(base_url=manager.url, version="1.41")
    yield SwarmEngine(client, exchange)
    client.close()


# -- two that end a job at the same time: `farm cancel` and the run's own controller, which releases it then --


@pytest.mark.parametrize("answers", range(8))
def test_a_service_that_is_removed_meanwhile_is_cancelled(manager, engine, answers):
    manager.left = answers
    engine.cancel("s")
    assert manager.replicas == (1 if answers < 5 else 0)  # the fifth question asks for the end


def test_two_cancels_at_once_are_one(manager, engine):
    manager.conflicts = True
    engine.cancel("s")
    assert engine.observe("s").state == "cancelled"


# -- a job that writes what it likes through its signed URLs --

WHOLE = {"exit_code": 0, "timed_out": False, "out_of_memory": False, "stopped": False}


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 60_000,
        b"1" * 5_000,
        json.dumps(WHOLE | {"exit_code": "9" * 5_000}).encode(),
        json.dumps(WHOLE | {"exit_code": -1}).encode(),
        json.dumps(WHOLE | {"exit_code": 10**30}).encode(),
        json.dumps(WHOLE).replace(" 0", " 1e999", 1).encode(),
        json.dumps(WHOLE | {"exit_code": "\x1b[2J"}).encode(),
        b" " * (70 << 10) + json.dumps(WHOLE).encode(),
    ],
    ids=[
        "empty",
        "list",
        "bytes",
        "deep",
        "number",
        "digits",
        "negative",
        "huge",
        "infinite",
        "escape",
        "large",
    ],
)
def test_an_invalid_report_is_no_verdict_and_ends_the_wait(manager, engine, exchange, report):
    manager.task["Status"] = {"State": "complete", "ContainerStatus": {"ExitCode": 0}}
    exchange.put("farm-x/report.json", report)
    seen = engine.observe("s")
    assert (seen.state, seen.exit_code) == ("lost", None)
    assert seen.why.startswith("its report is malformed: ")
    assert seen.why.isprintable()


def test_a_report_with_more_than_it_needs_is_read(manager, engine, exchange):
    manager.task["Status"] = {"State": "complete", "ContainerStatus": {"ExitCode": 0}}
    exchange.put(
        "farm-x/report.json",
        json.dumps(WHOLE | {"why": "\x1b]0;owned\x07", "exit_code": 3}).encode(),
    )
    seen = engine.observe("s")
    assert (seen.state, seen.exit_code, seen.why) == ("done", 3, None)


def test_a_piece_of_the_log_that_is_too_large_is_left_out_and_said(manager, engine, exchange):
    manager.task["Status"] = {"State": "complete", "ContainerStatus": {"ExitCode": 0}}
    exchange.put("farm-x/report.json", json.dumps(WHOLE).encode())
    exchange.put("farm-x/log/0000", b"one\n")
    exchange.put("farm-x/log/0001", bytes(9 << 20))
    exchange.put("farm-x/log/0002", b"three\n")
    message = f"[a piece of the log is left out: {9 << 20} bytes, at most {8 << 20}]"
    assert b"".join(engine.logs("s")).decode() == f"one\n\n{message}\nthree\n"
