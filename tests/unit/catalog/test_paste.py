"""What people paste is read rightly: recorded texts of the field, each with its reading."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from farm.catalog import paste

PASTES = yaml.safe_load(Path(__file__).with_name("pastes.yaml").read_text(encoding="utf-8"))
FIELDS = ("driver", "platform", "machine", "python", "glibc", "cpu", "torch", "cuda")


@pytest.mark.parametrize("case", PASTES, ids=lambda case: case["what"])
def test_a_recorded_paste_is_read(case):
    reading = paste.read(case["text"])
    cards = [[card.name, card.copies, *([card.sm] if card.sm else [])] for card in reading.cards]
    assert cards == case["cards"]
    fields = {name: getattr(reading, name) for name in FIELDS if getattr(reading, name)}
    assert fields == {name: case[name] for name in FIELDS if name in case}
    assert (case.get("problem") or "") in (reading.problem or "")
    assert bool(reading.problem) == ("problem" in case)
    for words, note in zip(case.get("notes", []), reading.notes, strict=True):
        assert words in note


def test_sixty_pastes_are_recorded():
    assert len({case["text"] for case in PASTES}) >= 60


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error(text):
    reading = paste.read(text)
    assert not (reading.cards and reading.problem)


def test_a_long_text_is_read_in_time_that_grows_with_it():
    line = "|   0  " + "NVIDIA " * 40 + "\n"
    assert paste.read(line * 2000).cards == ()


@pytest.mark.parametrize(
    ("text", "version"),
    [("32.0.15.7688", "576.88"), ("31.0.15.3623", "536.23"), ("470.82.01", "470.82.01")],
)
def test_windows_own_number_of_a_driver_is_converted(text, version):
    assert paste.driver_number(text) == version
