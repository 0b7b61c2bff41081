"""The pictures of the docs: current, well-formed, and right about cards that are known by hand."""

import xml.etree.ElementTree as ET

import pytest

from farm.cli.main import main
from tools.pictures import OUT, PICTURES, SESSION, official


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_current(name):
    drawn = PICTURES[name]()
    ET.fromstring(drawn)
    assert (OUT / name).read_text(encoding="utf-8") == drawn, "run `make generate`"


@pytest.mark.parametrize(
    ("sm", "release", "state"),
    [
        (35, "2.6", None),  # no official wheel since 1.2 has code for sm_35
        (37, "2.6", "limited"),  # its cuDNN 9 begins at sm_50
        (61, "2.14", "official"),  # the last with CUDA 12.6
        (61, "2.15", None),
        (120, "2.6", None),  # Blackwell came with 2.7
        (120, "2.7", "official"),
    ],
)
def test_official_support_is_what_upstream_announced(sm, release, state):
    assert official(sm, release) == state


def test_the_recorded_session_still_answers_as_it_did(capsys):
    """Of the build only the picture knows; the question before it can be asked again."""
    question, _, _ = SESSION.read_text(encoding="utf-8").partition("\n\n$ farm submit")
    command, _, answer = question.partition("\n")
    assert command == '$ farm why --official --gpu "GTX 1080 Ti"'
    main(["why", "--official", "--gpu", "GTX 1080 Ti"])
    assert capsys.readouterr().out.split() == answer.split()
