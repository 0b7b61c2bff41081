"""What `farm plan` asks the index, when the index does not answer."""

import socket
import threading
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError, UsageError
from farm.cli import index_questions
from farm.cli.index_questions import answer_in_time
from farm.cli.plan import report_of
from farm.plan.request import BuildRequest
from farm.plan.settings import load_settings
from farm.plan.variant import Variant

ROOT = Path(__file__).parents[3]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(index_questions, "ANSWER_S", 0.1)


def test_an_answer_is_returned():
    assert answer_in_time(lambda: "torch") == "torch"


def test_a_refusal_is_raised():
    def refuse():
        raise UsageError("no such bucket")

    with pytest.raises(UsageError, match="no such bucket"):
        answer_in_time(refuse)


def test_a_question_without_an_answer_is_given_up(impatient):
    answered = threading.Event()
    with pytest.raises(InfrastructureError, match=r"no answer within 0\.1 s"):
        answer_in_time(answered.wait)
    answered.set()


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("torch", ("index", "not asked for tests of the wheel: no answer within 0.1 s")),
        ("torchvision", ("first", "the index cannot be asked: no answer within 0.1 s")),
    ],
)
def test_a_plan_does_not_wait_for_a_bucket_that_is_away(impatient, monkeypatch, package, line):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    # It takes connections, and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        index = f"s3://wheels?endpoint_url=http://127.0.0.1:{port}&region=us-east-1"
        settings = load_settings(ROOT).with_index(index)
        request = BuildRequest(Variant.parse("sm35-avx-py311"), package)
        lines = report_of(ROOT, settings, request).lines
    label, text = line
    assert any(text in words for key, words in lines if key == label)
