"""How far a build is, by the events that it left."""

from farm.run.journal_records import Event
from farm.run.run_state import progress


def noted(*entries):
    """Events at seconds: (second, done, total, attempt)."""
    return [
        Event(
            n,
            "r",
            None,
            attempt,
            f"2026-01-01T00:{s // 60:02d}:{s % 60:02d}.000+00:00",
            "progress",
            {"done": d, "total": t},
        )
        for n, (s, d, t, attempt) in enumerate(entries)
    ]


def test_without_notes_there_is_no_progress():
    assert progress([]) is None
    assert progress([Event(1, "r", None, None, "2026-01-01T00:00:00+00:00", "step", {})]) is None


def test_one_note_gives_no_rate():
    found = progress(noted((0, 10, 100, 1)))
    assert (found.done, found.total, found.rate, found.minutes_left) == (10, 100, None, None)
    assert str(found) == "10/100 steps"


def test_rate_and_what_is_left():
    found = progress(noted((0, 10, 100, 1), (60, 40, 100, 1)))
    assert (found.rate, found.minutes_left) == (30.0, 2.0)
    assert str(found) == "40/100 steps, 30.0 a minute, about 2 min left"


def test_another_total_or_another_attempt_is_another_count():
    found = progress(noted((0, 1, 4, 1), (10, 4, 4, 1), (20, 100, 1000, 1), (80, 160, 1000, 1)))
    assert (found.rate, found.minutes_left) == (60.0, 14.0)
    assert progress(noted((0, 10, 100, 1), (60, 40, 100, 2))).rate is None


def test_only_the_last_minutes_count():
    slow = [(s, s // 10, 1000, 1) for s in range(0, 600, 10)]
    fast = [(600 + s, 60 + s, 1000, 1) for s in range(0, 310, 10)]
    assert progress(noted(*slow, *fast)).rate == 60.0
