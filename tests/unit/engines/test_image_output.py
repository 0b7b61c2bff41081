"""What an image's build prints, which the daemon hands over in pieces that end anywhere."""

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.engines.images import _follow
from farm.errors import InfrastructureError

TEXT = "Step 1/2 : FROM base\n\nStep 2/2 : RUN make\nfirst\r\nsecond\n"


def follow(events, tmp_path):
    lines, steps, log = [], [], io.StringIO()
    _follow(iter(events), log, lines.append, steps.append, tmp_path / "image.log")
    return lines, steps, log.getvalue()


@given(cuts=st.sets(st.integers(1, len(TEXT) - 1)))
def test_lines_are_whole_wherever_the_pieces_end(cuts, tmp_path_factory):
    ends = [0, *sorted(cuts), len(TEXT)]
    events = [{"stream": TEXT[a:b]} for a, b in itertools.pairwise(ends)]
    lines, steps, log = follow(events, tmp_path_factory.getbasetemp())
    assert lines == ["first", "second"]
    assert steps == ["Step 1/2 : FROM base", "Step 2/2 : RUN make"]
    assert [text for text in log.splitlines() if text] == [*steps, "first", "second"]


def test_an_output_without_a_last_line_end_is_shown_and_its_error_found(tmp_path):
    assert follow([{"stream": "a"}, {"stream": "b"}], tmp_path)[0] == ["ab"]
    events = [{"stream": "Step 1/1 : RUN make\n"}, {"stream": "x.c:1:1: error: no"}, {"stream": " such thing"}]
    failure = {"error": "The command returned 2", "errorDetail": {"code": 2}}
    with pytest.raises(InfrastructureError, match="error: no such thing"):
        follow([*events, failure], tmp_path)
