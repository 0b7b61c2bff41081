"""Text from outside made safe to print."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.text import MAX_LINE, json_lines, plain


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x1b[2Jb\x1bcc", "abc"),
        ("\x9b31mred", "31mred"),
        ("[1/2] x\r[2/2] y", "[2/2] y"),
        ("line\r\n", "line"),
        ("gpj.\u202egnp", "gpj.gnp"),
        ("tab\tand ünïcode …", "tab\tand ünïcode …"),
    ],
)
def test_what_a_terminal_would_obey_is_left_out(hostile, shown):
    assert plain(hostile) == shown


def test_a_long_line_is_cut_with_a_mark():
    assert plain("x" * MAX_LINE) == "x" * MAX_LINE
    assert plain("x" * (MAX_LINE + 1)) == "x" * MAX_LINE + " […]"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]) | st.sampled_from("\x1b[]m;0\x07\\\r\x9b")))
def test_no_control_character_is_ever_left(text):
    left = plain(text)
    assert not [c for c in left if unicodedata.category(c) == "Cc" and c not in "\t\n"]
    assert "\u202e" not in left


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_lines_are_those_of_the_standard_library(data):
    assert json.loads(json_lines(data)) == data
    assert json_lines(data) == json.dumps(data, indent=2) + "\n"
