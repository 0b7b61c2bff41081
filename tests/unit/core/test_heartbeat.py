"""Words for the time in which a step prints nothing. The tests give the time; none waits."""

import threading
import time

from farm.base.heartbeat import DESCRIBE_S, Heartbeat, megabytes


def recording(describe=lambda _: None):
    shown = []
    return Heartbeat(shown.append, describe), shown


def test_of_lines_that_are_overwritten_the_newest_is_passed_on_once():
    heartbeat, shown = recording()
    heartbeat.overwrite("10%")
    heartbeat.overwrite("20%")
    now = time.monotonic()
    heartbeat.emit(now)
    heartbeat.emit(now)
    assert shown == ["20%"]


def test_a_whole_line_is_passed_on_at_once_and_ends_the_one_before():
    heartbeat, shown = recording()
    heartbeat.overwrite("10%")
    heartbeat.line("Get:1 gcc")
    heartbeat.emit(time.monotonic())
    assert shown == ["Get:1 gcc"]


def test_a_silent_step_is_asked_for_its_state_repeatedly():
    silences = []
    heartbeat, shown = recording(lambda silent: silences.append(silent) or f"{len(silences)} MB")
    began = time.monotonic()
    heartbeat.line("downloading")
    for second in range(2, 61, 2):
        heartbeat.emit(began + second)
    assert shown[0] == "downloading"
    # Every six seconds of a minute; the first line came a moment after it began.
    assert shown[1:] == [f"{n} MB" for n in range(1, 10)]
    # It is told how long nothing came, not how long nothing was said.
    assert silences == sorted(silences)
    assert silences[-1] > 50 > DESCRIBE_S


def test_a_heartbeat_without_news_prints_nothing():
    heartbeat, shown = recording()
    heartbeat.emit(time.monotonic() + 100)
    assert shown == []


def test_output_that_arrives_during_the_question_wins():
    heartbeat, shown = recording(lambda _: heartbeat.line("new") or "old")
    heartbeat.emit(time.monotonic() + 100)
    assert shown == ["new"]


def test_an_engine_that_fails_to_answer_does_not_end_the_work(monkeypatch):
    monkeypatch.setattr("farm.base.heartbeat.TICK_S", 0.001)
    event = threading.Event()

    def fails(silent):
        event.set()
        raise OSError("gone")

    shown = []
    heartbeat = Heartbeat(shown.append, fails, describe_s=0.0)
    with heartbeat:
        assert event.wait(30)
        heartbeat.line("done")
    assert shown == ["done"]


def test_nothing_is_printed_after_the_end():
    heartbeat, shown = recording(lambda _: "late")
    with heartbeat:
        pass
    heartbeat.emit(time.monotonic() + 100)
    assert shown == []


def test_the_end_waits_for_a_line_being_printed():
    """Else it comes behind the end: into a log that is closed, or below the line that says so."""
    saying, go, ended, order = threading.Event(), threading.Event(), threading.Event(), []

    def out(text):
        saying.set()
        go.wait(300)
        order.append(text)

    def end():
        heartbeat.__exit__(None, None, None)
        order.append("over")
        ended.set()

    heartbeat = Heartbeat(out, lambda _: "words")
    threads = [
        threading.Thread(target=heartbeat.emit, args=(time.monotonic() + 100,)),
        threading.Thread(target=end),
    ]
    threads[0].start()
    assert saying.wait(300)
    threads[1].start()
    ended.wait(0.3)  # one that does not wait is over by now
    go.set()
    for thread in threads:
        thread.join()
    assert order == ["words", "over"]


def test_byte_counts_are_shown_with_units():
    assert megabytes(12_300_000, 85_000_000) == "12.3 of 85.0 MB"
    assert megabytes(0) == "0.0 MB"
