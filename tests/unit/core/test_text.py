"""Text from outside made safe to print."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.text import MAX_LINE, json_lines, log_line, plain, plain_lines


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x1b[2Jb\x1bcc", "abc"),
        ("\x9b31mred", "31mred"),
        ("x\nfarm: PUBLISHED y", "x farm: PUBLISHED y"),
        ("x\rfarm: PUBLISHED y", "x farm: PUBLISHED y"),
        ("x\u2028y\x85z", "x y z"),
        ("zero\u200bwidth", "zerowidth"),
        ("line\r\n", "line"),
        ("gpj.\u202egnp", "gpj.gnp"),
        ("tab\tand ünïcode …", "tab\tand ünïcode …"),
    ],
)
def test_terminal_control_sequences_are_removed(hostile, shown):
    assert plain(hostile) == shown


def test_a_long_line_is_cut_with_a_mark():
    assert plain("x" * MAX_LINE) == "x" * MAX_LINE
    assert plain("x" * (MAX_LINE + 1)) == "x" * MAX_LINE + " […]"


def test_line_breaks_are_kept():
    assert (
        plain_lines("[1/9]\r[9/9] done\r\n\x1b[31mred\x1b[0m\nhalf \x1b")
        == "[9/9] done\nred\nhalf "
    )


def test_a_progress_line_of_a_log_is_shown_as_a_terminal_shows_it():
    assert log_line("[1/2] x\r[2/2] y\r\n") == "[2/2] y"


@given(st.text(alphabet=st.characters() | st.sampled_from("\x1b[]m;0\x07\\\r\n\x9b")))
def test_any_text_becomes_one_printable_line(text):
    left = plain(text)
    assert len(left.splitlines()) <= 1
    assert not [
        c for c in left if not c.isprintable() and c != "\t" and unicodedata.category(c) != "Zs"
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_json_lines_are_those_of_the_standard_library(data):
    assert json.loads(json_lines(data)) == data
    assert json_lines(data) == json.dumps(data, indent=2) + "\n"
