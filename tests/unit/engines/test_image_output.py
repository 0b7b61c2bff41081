"""What an image's build prints, which the daemon hands over in pieces that end anywhere."""

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import BuildFailedError, InfrastructureError
from farm.base.heartbeat import Heartbeat
from farm.engines.images import _follow

TEXT = "Step 1/2 : FROM base\n\nStep 2/2 : RUN make\nfirst\r\nsecond\n"


class Screen(Heartbeat):
    """What is shown of an output, in order; a line that is overwritten is marked by a tilde."""

    def __init__(self):
        self.shown = []
        super().__init__(self.shown.append, lambda _: None)

    def overwrite(self, text):
        self.shown.append("~" + text)


def follow(events, tmp_path):
    screen, steps, log = Screen(), [], io.StringIO()
    _follow(iter(events), log, screen, steps.append, tmp_path / "image.log")
    return [text for text in screen.shown if not text.startswith("~")], steps, log.getvalue()


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
    events = [
        {"stream": "Step 1/1 : RUN make\n"},
        {"stream": "x.c:1:1: error: no"},
        {"stream": " such thing"},
    ]
    failure = {"error": "The command returned 2", "errorDetail": {"code": 2}}
    with pytest.raises(InfrastructureError, match="error: no such thing"):
        follow([*events, failure], tmp_path)


def test_podmans_steps_are_steps(tmp_path):
    """As Podman 4.3 prints them through Docker's API; its errors have no exit code."""
    events = [
        {"stream": text + "\n"}
        for text in ("STEP 1/2: FROM base", "--> d93d0363e78", "STEP 2/2: RUN make", "x")
    ]
    assert follow(events, tmp_path)[1] == ["STEP 1/2: FROM base", "STEP 2/2: RUN make"]
    with pytest.raises(InfrastructureError, match="cannot be built: STEP 2/2: RUN make"):
        follow([*events, {"error": "exit status 1"}], tmp_path)


APT = [
    "\r              \r",
    "\r7% [6 media-types 0 B/26.1 kB 0%]",
    (
        "\r                    \rGet:20 http://mirror.example/debian bookworm/main python3.11 "
        "amd64 "
        "3.11.2 [574 kB]\n"
    ),
    "\r38% [37 libgomp1 0 B/116 kB 0%]",
    "\r             \rFetched 79.4 MB in 1s (62.3 MB/s)\n\rReading package lists... 0%\r",
]
"""As Docker handed on what `apt-get -q=0` of Debian 12 wrote."""


def test_what_apt_overwrites_is_shown_as_it_comes_and_not_kept(tmp_path):
    screen, log = Screen(), io.StringIO()
    _follow(
        iter([{"stream": text} for text in APT]),
        log,
        screen,
        lambda _: None,
        tmp_path / "image.log",
    )
    assert screen.shown == [
        "~7% [6 media-types 0 B/26.1 kB 0%]",
        "Get:20 http://mirror.example/debian bookworm/main python3.11 amd64 3.11.2 [574 kB]",
        "~38% [37 libgomp1 0 B/116 kB 0%]",
        "Fetched 79.4 MB in 1s (62.3 MB/s)",
        "~Reading package lists... 0%",
        "Reading package lists... 0%",
    ]
    assert "libgomp1" not in log.getvalue()
    assert "\r" not in log.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "E: Unable to locate package libfmt-dve",
        "E: Package 'libfmt-dve' has no installation candidate",
    ],
)
def test_a_package_that_the_distribution_does_not_have_is_the_recipes_fault(tmp_path, text):
    events = [
        {"stream": f"Step 2/2 : RUN apt-get install x\nBuilding dependency tree...\n{text}\n"}
    ]
    failure = {"error": "The command returned 100", "errorDetail": {"code": 100}}
    with pytest.raises(BuildFailedError, match="libfmt-dve") as caught:
        follow([*events, failure], tmp_path)
    assert "apt in the recipe" in caught.value.hint


def test_a_package_that_is_not_found_without_a_network_is_not(tmp_path):
    text = "Err:1 http://mirror.example bookworm\n  Temporary failure resolving 'mirror.example'\n"
    events = [
        {"stream": f"Step 2/2 : RUN apt-get install gcc\n\n{text}E: Unable to locate package gcc\n"}
    ]
    failure = {"error": "The command returned 100", "errorDetail": {"code": 100}}
    with pytest.raises(InfrastructureError, match="no network"):
        follow([*events, failure], tmp_path)
